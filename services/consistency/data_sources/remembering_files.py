"""Files of which the last large piece is kept: whoever read it looks at every record in it once more."""

from __future__ import annotations

from typing import Final

from mqcore.audit.replica_store import ReplicaFiles, StoreEntry

__all__ = ["RememberingFiles"]

_LARGE_BYTES: Final = 64 << 10


class RememberingFiles:
    """`ReplicaFiles` around others."""

    def __init__(self, files: ReplicaFiles) -> None:
        self._files = files
        self._path = ""
        self._offset = 0
        self._data = memoryview(b"")

    def list_folder(self, path: str) -> list[StoreEntry]:
        """See ReplicaFiles."""
        return self._files.list_folder(path)

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        """See ReplicaFiles."""
        if path == self._path and self._offset <= offset and offset + length <= self._offset + len(self._data):
            return self._data[offset - self._offset : offset - self._offset + length]
        data = memoryview(self._files.read(path, offset, length))
        if length >= _LARGE_BYTES:
            self._path, self._offset, self._data = path, offset, data
        return data
