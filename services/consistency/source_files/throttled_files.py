"""Files that are read no faster than they may be."""

from __future__ import annotations

import time

from mqcore.audit.replica_store import ReplicaFiles, StoreEntry

__all__ = ["ThrottledFiles"]


class ThrottledFiles:
    """`ReplicaFiles` around others: after each read it waits until the bytes so far are due. Saves up nothing: a task
    that computed for a while may not read all the faster afterwards."""

    def __init__(self, files: ReplicaFiles, *, bytes_per_second: int) -> None:
        self._files = files
        self._seconds_per_byte = 1.0 / bytes_per_second
        self._free_at = 0.0

    def list_folder(self, path: str) -> list[StoreEntry]:
        """See ReplicaFiles."""
        return self._files.list_folder(path)

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        """See ReplicaFiles."""
        now = time.monotonic()
        if self._free_at > now:
            time.sleep(self._free_at - now)
        data = self._files.read(path, offset, length)
        self._free_at = max(now, self._free_at) + len(data) * self._seconds_per_byte
        return data
