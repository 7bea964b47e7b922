"""The files of all ConsumeQueues: names, a few open handles, and which of them still have to be synced.

80,000 queues share this one object. None of them keeps a file open: a handle is opened for a read or a write and
lives on in a small least-recently-used table.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from mqcore.storage.disk import BlockFile, Disk
from mqcore.storage.errors import DiskError

__all__ = ["CONSUME_QUEUE_FOLDER", "ConsumeQueueFiles", "ConsumeQueueSync", "file_path", "queue_folder"]

CONSUME_QUEUE_FOLDER: Final = "consumequeue"
_OPEN_FILES_MAX: Final = 256
"""Handles kept open: enough for the queues of a moment, few against a usual limit of 1024 per process."""
_FEW_FILES: Final = 31
"""Up to so many are synced one by one, for 120 µs and more each (ext4): syncing all that there is takes some 20 ms, and
longer where others write to the same file system."""


def queue_folder(topic: str, queue_id: int) -> str:
    """Where the files of one queue are."""
    return f"{CONSUME_QUEUE_FOLDER}/{topic}/{queue_id}"


def file_path(folder: str, start: int) -> str:
    """A file is named after the position of its first byte in the queue's stream of entries."""
    return f"{folder}/{start:020d}"


@dataclass(slots=True)
class ConsumeQueueSync:
    """Makes durable what was written to ConsumeQueue files up to the moment this was taken.

    `run` blocks and is meant for a thread: it opens handles of its own and touches nothing the event loop uses.
    """

    disk: Disk
    file_bytes: int
    paths: list[str]
    removed: set[str] = field(default_factory=set)
    """Files that were deleted meanwhile. Filled before the deletion, so that a failed open can be told apart."""

    def run(self) -> None:
        """Raises DiskError if something could not be synced; then nobody knows what the files hold."""
        if len(self.paths) > _FEW_FILES and self.disk.sync_all():
            return
        for path in self.paths:
            try:
                file = self.disk.open_block_file(path, self.file_bytes, create=False)
                try:
                    file.sync()
                finally:
                    file.close()
            except DiskError:
                if path not in self.removed:
                    raise


class ConsumeQueueFiles:
    """Reads and writes the streams of entries. Not for use by two threads."""

    def __init__(self, disk: Disk, *, file_bytes: int) -> None:
        self.disk: Final = disk
        self.file_bytes: Final = file_bytes
        self._open: OrderedDict[str, BlockFile] = OrderedDict()
        self._unsynced: set[str] = set()
        self._running_sync: ConsumeQueueSync | None = None

    def read(self, folder: str, position: int, length: int) -> bytes:
        """`length` bytes from `position` of the stream; they may span files, all of which exist."""
        parts = []
        while length > 0:
            within = position % self.file_bytes
            count = min(length, self.file_bytes - within)
            parts.append(self._file(file_path(folder, position - within), create=False).read(within, count))
            position += count
            length -= count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, folder: str, position: int, data: bytes | bytearray) -> None:
        """Writes `data` at `position` of the stream and makes the files it begins. Durable after the next sync."""
        written = 0
        while written < len(data):
            within = (position + written) % self.file_bytes
            part = bytes(data[written : written + self.file_bytes - within])
            path = file_path(folder, position + written - within)
            if within and self.unsynced_count > _OPEN_FILES_MAX and path not in self._open:
                # So many are written in turn that no handle would be there the next time.
                self.disk.write_block(path, within, part)
            else:
                self._file(path, create=within == 0).write(within, part)
            self._unsynced.add(path)
            written += len(part)

    def used_bytes_from(self, folder: str, position: int) -> int:
        """The distance from `position` to the end of what is not zero in its file."""
        within = position % self.file_bytes
        return self._file(file_path(folder, position - within), create=False).used_bytes_from(within)

    def zero_from(self, folder: str, position: int) -> bool:
        """Makes the rest of a file zero, from `position` on; False if it was. Durable after the next sync."""
        within = position % self.file_bytes
        path = file_path(folder, position - within)
        if not self._file(path, create=False).zero_from(within):
            return False
        self._unsynced.add(path)
        return True

    def sync(self, folder: str, start: int) -> None:
        """Blocks until the file starting at `start` is durable."""
        path = file_path(folder, start)
        self._file(path, create=False).sync()
        self._unsynced.discard(path)

    @property
    def unsynced_count(self) -> int:
        """How many files were written since the last sync was taken."""
        return len(self._unsynced)

    def take_sync(self) -> ConsumeQueueSync | None:
        """What is to be made durable; None if everything is. The one taken before must have run."""
        if not self._unsynced:
            return None
        self._running_sync = ConsumeQueueSync(self.disk, self.file_bytes, sorted(self._unsynced))
        self._unsynced.clear()
        return self._running_sync

    def remove(self, folder: str, start: int) -> None:
        """Deletes one file, durably."""
        path = file_path(folder, start)
        self._forget(path)
        self.disk.remove(path)

    def remove_queue(self, folder: str) -> None:
        """Deletes the files of one queue, if there are any, durably.

        The disk is asked which they are. A slave that joins late does this for every queue at its first message: going
        through all that is open or unsynced each time would take the square of their number.
        """
        found = self.disk.list_folder(folder)
        for file in found:
            self._forget(f"{folder}/{file.name}")
        if found:
            self.disk.remove_folder(folder)

    def remove_folder(self, folder: str) -> None:
        """Deletes a folder of files, durably."""
        prefix = f"{folder}/"
        known = {*self._open, *self._unsynced, *(self._running_sync.paths if self._running_sync else ())}
        for path in [path for path in known if path.startswith(prefix)]:
            self._forget(path)
        self.disk.remove_folder(folder)

    def close(self) -> None:
        """Closes what is open."""
        while self._open:
            self._open.popitem()[1].close()

    def _file(self, path: str, *, create: bool) -> BlockFile:
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        file = self.disk.open_block_file(path, self.file_bytes, create=create)
        self._open[path] = file
        if len(self._open) > _OPEN_FILES_MAX:
            self._open.popitem(last=False)[1].close()
        return file

    def _forget(self, path: str) -> None:
        if self._running_sync is not None:
            self._running_sync.removed.add(path)
        self._unsynced.discard(path)
        file = self._open.pop(path, None)
        if file is not None:
            file.close()
