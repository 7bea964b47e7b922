"""A folder as ReplicaFiles: what the checks read in tests."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tandemmq.core.audit.replica_store import ReplicaFiles, ReplicaStore, StoreEntry, inspect_replica


class FolderFiles(ReplicaFiles):
    """Reads plainly; counts what it was asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.reads = 0

    def list_folder(self, path: str) -> list[StoreEntry]:
        folder = self._root / path
        if not folder.is_dir():
            return []
        entries = []
        for entry in sorted(folder.iterdir()):
            with suppress(FileNotFoundError):  # A broker that runs replaces files meanwhile.
                entries.append(StoreEntry(entry.name, -1 if entry.is_dir() else entry.stat().st_size))
        return entries

    def read(self, path: str, offset: int, length: int) -> bytes:
        self.reads += 1
        try:
            with (self._root / path).open("rb") as file:
                file.seek(offset)
                return file.read(length)
        except (FileNotFoundError, IsADirectoryError):
            return b""


def open_replica(
    root: Path, *, group: str = "broker-a", broker_id: int = 0, segment_bytes: int | None = None
) -> ReplicaStore:
    files = FolderFiles(root)
    return ReplicaStore(files, inspect_replica(files, group=group, broker_id=broker_id, segment_bytes=segment_bytes))
