"""A store in whatever pyarrow.fs reaches: S3, Google Cloud Storage, Azure, HDFS."""

from __future__ import annotations

from typing import Any, Final

from pyarrow import fs

from mqcore.audit.replica_store import ReplicaUnreadable, StoreEntry

__all__ = ["ArrowFiles"]

_OPEN_FILES_MAX: Final = 16


class ArrowFiles:
    """`ReplicaFiles` below one URI. For one thread."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        try:
            self._file_system, self._root = fs.FileSystem.from_uri(uri)
        except (OSError, ValueError) as error:
            raise ReplicaUnreadable(f"{uri}: {error}") from error
        self._files: dict[str, Any] = {}

    def close(self) -> None:
        """Closes all files."""
        while self._files:
            self._files.popitem()[1].close()

    def list_folder(self, path: str) -> list[StoreEntry]:
        """See ReplicaFiles."""
        selector = fs.FileSelector(f"{self._root}/{path}".rstrip("/"), allow_not_found=True)
        try:
            found = self._file_system.get_file_info(selector)
        except OSError as error:
            raise ReplicaUnreadable(f"{self._uri}/{path}: {error}") from error
        is_folder = fs.FileType.Directory
        return sorted(StoreEntry(info.base_name, -1 if info.type == is_folder else int(info.size)) for info in found)

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        """See ReplicaFiles."""
        try:
            file = self._open(path)
            length = min(length, file.size() - offset)
            if length <= 0:
                return b""
            file.seek(offset)
            return memoryview(file.read_buffer(length))
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise ReplicaUnreadable(f"{self._uri}/{path} at {offset}: {error}") from error

    def _open(self, path: str) -> Any:
        file = self._files.get(path)
        if file is None:
            while len(self._files) >= _OPEN_FILES_MAX:
                self._files.pop(next(iter(self._files))).close()
            file = self._files[path] = self._file_system.open_input_file(f"{self._root}/{path}")
        return file
