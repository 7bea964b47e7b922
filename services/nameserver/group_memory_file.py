"""The file that a NameServer's group memory outlives its process in.

DIR/groupMemory.json               the memory, replaced as a whole; a reader sees the old or the new one
DIR/groupMemory.json.damaged-<ms>  one that could not be read, kept for people
DIR/lock                           locked while a NameServer runs there

The memory is evidence for brokers, and no broker waits for it: a change is on disk within about a second, the mere
growth of logs within five. What a power cut takes from it is asked of other NameServers and of the replicas.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

from mqcore.clock import Clock
from mqcore.routing.group_memory import GroupMemory, GroupMemoryDamaged, GroupMemoryImage

__all__ = ["GroupMemoryFile", "StoreFolderError"]

FILE_NAME: Final = "groupMemory.json"
_WRITE_INTERVAL_S: Final = 1.0
# Ends of logs move all the time and are only a hint of how far a replica was.
_PROGRESS_INTERVAL_MS: Final = 5_000


class StoreFolderError(Exception):
    """storePathRootDir cannot be used: the operator names another folder."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"storePathRootDir={folder}: {reason}")


class GroupMemoryFile:
    """One folder, from `load` until `close`; `keep` writes meanwhile, off the loop."""

    def __init__(self, folder: Path, *, clock: Clock, log: FilteringBoundLogger) -> None:
        self._folder = folder
        self._path = folder / FILE_NAME
        self._clock = clock
        self._log = log
        self._lock_fd = -1
        # What of the memory is on disk.
        self._changes = 0
        self._progress = 0
        self._progress_written_ms = clock.monotonic_ms()
        self._error = ""
        self._stopping = asyncio.Event()

    def load(self) -> GroupMemory | None:
        """Takes the folder and reads what is there; None if that is nothing, or nothing that can be read.

        `StoreFolderError` when the folder cannot be used.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock()
            text = self._path.read_text(encoding="utf-8")
            return GroupMemory.restored(text)
        except FileNotFoundError:
            return None
        except (GroupMemoryDamaged, UnicodeDecodeError) as damage:
            kept = self._path.with_name(f"{FILE_NAME}.damaged-{self._clock.wall_ms()}")
            self._path.rename(kept)
            self._log.error("group_memory_damaged", error=str(damage), kept_as=str(kept))
            return None
        except OSError as error:
            raise StoreFolderError(self._folder, f"{error.strerror}; name a folder that can be written") from error

    async def keep(self, memory: GroupMemory) -> None:
        """Writes what changed until `stop`, and then once more."""
        # At once: a new memory counts its age from its file.
        await self._write(memory)
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_WRITE_INTERVAL_S):
                    await self._stopping.wait()
            if self._is_due(memory):
                await self._write(memory)
        # It may have changed while the last write was under way.
        if self._is_due(memory):
            await self._write(memory)

    def stop(self) -> None:
        """Makes `keep` end."""
        self._stopping.set()

    def close(self) -> None:
        """Leaves the folder to others."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _is_due(self, memory: GroupMemory) -> bool:
        if memory.changes != self._changes:
            return True
        is_late = self._clock.monotonic_ms() - self._progress_written_ms >= _PROGRESS_INTERVAL_MS
        return memory.progress != self._progress and (is_late or self._stopping.is_set())

    async def _write(self, memory: GroupMemory) -> None:
        changes, progress = memory.changes, memory.progress
        if await asyncio.to_thread(self._write_logged, memory.image()):
            self._changes, self._progress = changes, progress
            self._progress_written_ms = self._clock.monotonic_ms()

    def _write_logged(self, image: GroupMemoryImage) -> bool:
        """False if it failed, which is logged once for each cause and tried again."""
        try:
            _replace_file(self._path, image.text().encode())
        except OSError as error:
            if str(error) != self._error:
                self._log.error("group_memory_not_written", path=str(self._path), error=str(error))
            self._error = str(error)
            return False
        self._error = ""
        return True

    def _lock(self) -> None:
        self._lock_fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise StoreFolderError(
                self._folder, "another NameServer uses this folder; give each one of its own"
            ) from None


def _replace_file(path: Path, content: bytes) -> None:
    """Replaces a file durably; a crash leaves the old or the new one."""
    unfinished = path.with_name(path.name + ".new")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd)
    unfinished.replace(path)
    folder_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)
