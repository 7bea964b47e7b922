"""A disk in memory that crashes, tears writes, fails to sync and fills up, all from one seed.

Every file has two images: what the kernel would show (`cached`) and what the platter holds (`durable`). Stores reach
the first, syncs copy it to the second, and `crash` decides what is left: a killed process loses nothing, a power loss
keeps the durable image plus any of the 512-byte sectors written since.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tandemmq.core.storage.disk import (
    AppendFile,
    BlockFile,
    Disk,
    DiskError,
    DiskFull,
    DiskLock,
    DiskUsage,
    FolderEntry,
    MappedSegment,
    SegmentSizeMismatch,
    StoreLocked,
)

SECTOR_BYTES: Final = 512
"""What a disk writes whole or not at all."""
PAGE_BYTES: Final = 4096
"""Grain of the space a sparse file takes."""
UNLIMITED_BYTES: Final = 1 << 40
"""A disk of this capacity never fills up."""


class SimulatedCrash(Exception):
    """The process stops here. Raised by the disk operation the test chose; the test then calls `crash`."""


class SimulatedDisk(Disk):
    """See the module's docstring. `wall_ms` dates changes; `capacity_bytes` may be changed at any time.

    Faults: `crash_at_operation` raises SimulatedCrash before that operation (1 is the next), `failing_syncs` makes
    syncs of paths that start with the prefix fail, and what they should have written is lost even if a later sync
    succeeds, as Linux does after a failed fsync.
    """

    def __init__(
        self,
        chance: random.Random,
        *,
        capacity_bytes: int = UNLIMITED_BYTES,
        wall_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.failing_syncs: str | None = None
        self.can_sync_all = True
        self.operations = 0
        """Operations that changed something, since the disk was made."""
        self._chance = chance
        self._wall_ms = wall_ms
        self._files: dict[str, _File] = {}
        self._locked: set[str] = set()
        self._boot = 1
        self._generation = 1
        self._crash_countdown = 0

    # Faults

    def crash_at_operation(self, count: int) -> None:
        """The `count`-th operation from now that changes something raises SimulatedCrash instead; 0 calls it off."""
        self._crash_countdown = count

    def crash(self, *, power_loss: bool) -> None:
        """Ends the process, and with `power_loss` the machine. Everything opened before is dead; locks are gone."""
        self._crash_countdown = 0
        self._generation += 1
        self._locked.clear()
        if power_loss:
            self._boot += 1
            kept_share = self._chance.choice((0.0, 0.5, 1.0, self._chance.random()))
            for path, file in list(self._files.items()):
                if not file.name_durable and self._chance.random() >= kept_share:
                    del self._files[path]
                else:
                    file.lose_power(self._chance, kept_share)
        else:
            for file in self._files.values():
                file.detach()

    def write_back_some(self) -> None:
        """The kernel writes some dirty sectors on its own, as it may at any time."""
        for file in self._files.values():
            file.write_back(self._chance, self._chance.random())

    def durable_bytes(self, path: str) -> bytes:
        """What the platter holds of a file."""
        return bytes(self._files[path].durable)

    def shows(self, path: str, start: int, data: bytes) -> bool:
        """Whether a file holds these bytes there, for whoever reads it next."""
        file = self._files.get(path)
        return file is not None and file.cached[start : start + len(data)] == data

    def image(self) -> dict[str, bytes]:
        """All files as they are shown now: what a copy of the disk holds."""
        return {path: bytes(file.cached) for path, file in self._files.items()}

    def put_back(self, image: dict[str, bytes]) -> None:
        """The disk holds what `image` does, durably, and nothing else. No process may run on it."""
        sparse = {path for path, file in self._files.items() if file.is_sparse}
        self._generation += 1
        self._locked.clear()
        self._files = {
            path: _File.durable_copy(data, self._wall_ms(), is_sparse=path in sparse) for path, data in image.items()
        }

    def damage(self, path: str, start: int, data: bytes) -> None:
        """Other bytes than were written are found there from now on."""
        file = self._files[path]
        for content in (file.cached, file.durable):
            content[start : start + len(data)] = data[: max(0, len(content) - start)]

    def paths(self) -> list[str]:
        """Every file, sorted."""
        return sorted(self._files)

    def touch(self, path: str, *, modified_ms: int) -> None:
        """Dates the last change of a file."""
        self._files[path].modified_ms = modified_ms

    # Disk

    def list_folder(self, path: str) -> list[FolderEntry]:
        prefix = f"{path.rstrip('/')}/" if path else ""
        entries: dict[str, FolderEntry] = {}
        for file_path, file in self._files.items():
            if not file_path.startswith(prefix):
                continue
            name, _, below = file_path[len(prefix) :].partition("/")
            entries[name] = (
                FolderEntry(name=name, size=0, is_folder=True, modified_ms=0)
                if below
                else FolderEntry(name=name, size=len(file.cached), is_folder=False, modified_ms=file.modified_ms)
            )
        return [entries[name] for name in sorted(entries)]

    def map_segment(self, path: str, size: int, *, create: bool) -> MappedSegment:
        file = self._files.get(path)
        if create and (file is None or not file.cached):
            self._step()
            self._reserve(size)
            file = _File(bytearray(size), self._wall_ms(), is_sparse=False)
            file.sync()
            file.name_durable = True
            self._files[path] = file
        return _SimulatedMappedSegment(self, path, self._existing(path, size))

    def open_block_file(self, path: str, size: int, *, create: bool) -> BlockFile:
        file = self._files.get(path)
        if create and (file is None or not file.cached):
            self._step()
            file = _File(bytearray(size), self._wall_ms(), is_sparse=True)
            file.durable = bytearray(size)
            self._files[path] = file
        return _SimulatedBlockFile(self, path, self._existing(path, size))

    def write_block(self, path: str, offset: int, data: bytes) -> None:
        if path not in self._files:
            raise DiskError(f"{path}: no such file")
        self.open_block_file(path, len(self._files[path].cached), create=False).write(offset, data)

    def open_append_file(self, path: str) -> AppendFile:
        if path not in self._files:
            self._step()
            self._files[path] = _File(bytearray(), self._wall_ms(), is_sparse=False)
        return _SimulatedAppendFile(self, path, self._files[path])

    def read_file(self, path: str) -> bytes | None:
        file = self._files.get(path)
        return None if file is None else bytes(file.cached)

    def write_file(self, path: str, data: bytes) -> None:
        self._step()
        self._fail_if_chosen(path)
        self._reserve(len(data))
        file = _File(bytearray(data), self._wall_ms(), is_sparse=False)
        file.sync()
        file.name_durable = True
        self._files[path] = file

    def remove(self, path: str) -> None:
        self._step()
        self._files.pop(path, None)

    def remove_folder(self, path: str) -> None:
        for file_path in [p for p in self._files if p.startswith(f"{path}/")]:
            self.remove(file_path)

    def rename(self, old: str, new: str) -> None:
        self._step()
        if old not in self._files:
            raise DiskError(f"{old}: no such file")
        file = self._files.pop(old)
        file.name_durable = True
        self._files[new] = file

    def sync_all(self) -> bool:
        if not self.can_sync_all:
            return False
        for path, file in list(self._files.items()):
            self.sync_file(path, file)
        return True

    def usage(self) -> DiskUsage:
        return DiskUsage(
            used_bytes=sum(file.used_bytes for file in self._files.values()), total_bytes=self.capacity_bytes
        )

    def boot_id(self) -> str:
        return f"boot-{self._boot}"

    def lock(self, path: str) -> DiskLock:
        if path in self._locked:
            raise StoreLocked(path)
        if self.read_file(path) != b"lock":
            self.write_file(path, b"lock")
        self._locked.add(path)
        return _SimulatedDiskLock(path, self._locked)

    # For the files

    @property
    def generation(self) -> int:
        """Counts crashes: what was opened in another generation is dead."""
        return self._generation

    def sync_file(self, path: str, file: _File) -> None:
        """Makes a file durable, or fails as the test chose."""
        self._step()
        if self._should_fail(path):
            file.lose_dirty_sectors()
            raise DiskError(f"{path}: Input/output error")
        if file.sync():
            file.modified_ms = self._wall_ms()
        file.name_durable = True

    def write_sparse(self, file: _File, offset: int, data: bytes) -> None:
        self._step()
        pages = set(range(offset // PAGE_BYTES, (offset + len(data) - 1) // PAGE_BYTES + 1)) if data else set()
        self._reserve(PAGE_BYTES * len(pages - file.pages))
        file.pages |= pages
        file.cached[offset : offset + len(data)] = data
        file.stored_again(offset, offset + len(data))
        file.modified_ms = self._wall_ms()

    def append(self, file: _File, data: bytes) -> None:
        """Lengthens a journal."""
        self._step()
        self._reserve(len(data))
        file.cached += data
        file.modified_ms = self._wall_ms()

    def _step(self) -> None:
        if self._crash_countdown:
            self._crash_countdown -= 1
            if not self._crash_countdown:
                raise SimulatedCrash
        self.operations += 1

    def _reserve(self, size: int) -> None:
        # Adding up every file before every write costs more than the write: not where there is room for anything.
        if self.capacity_bytes < UNLIMITED_BYTES and self.usage().used_bytes + size > self.capacity_bytes:
            raise DiskFull("No space left on device")

    def _should_fail(self, path: str) -> bool:
        return self.failing_syncs is not None and path.startswith(self.failing_syncs)

    def _fail_if_chosen(self, path: str) -> None:
        if self._should_fail(path):
            raise DiskError(f"{path}: Input/output error")

    def _existing(self, path: str, size: int) -> _File:
        file = self._files.get(path)
        if file is None:
            raise DiskError(f"{path}: No such file or directory")
        if len(file.cached) != size:
            raise SegmentSizeMismatch(path, found_bytes=len(file.cached), expected_bytes=size)
        return file


class _File:
    """The two images of one file, and the sectors a failed sync has lost."""

    __slots__ = ("cached", "durable", "is_sparse", "lost", "modified_ms", "name_durable", "pages")

    def __init__(self, cached: bytearray, modified_ms: int, *, is_sparse: bool) -> None:
        self.cached = cached
        self.durable = bytearray()
        self.modified_ms = modified_ms
        self.is_sparse = is_sparse
        self.name_durable = False
        self.pages: set[int] = set()
        self.lost: dict[int, bytes] = {}

    @classmethod
    def durable_copy(cls, data: bytes, modified_ms: int, *, is_sparse: bool) -> _File:
        """A file that lies on the platter as a whole."""
        file = cls(bytearray(data), modified_ms, is_sparse=is_sparse)
        file.durable = bytearray(data)
        file.name_durable = True
        if is_sparse:
            pages = range(0, len(data), PAGE_BYTES)
            file.pages = {page // PAGE_BYTES for page in pages if any(data[page : page + PAGE_BYTES])}
        return file

    @property
    def used_bytes(self) -> int:
        return PAGE_BYTES * len(self.pages) if self.is_sparse else len(self.cached)

    def sync(self) -> bool:
        """Copies what is shown to the platter, but for lost sectors; tells whether anything changed."""
        if self.cached == self.durable:
            return False
        if self.lost:
            self._pad_durable()
            for start in list(self._dirty_sectors()):
                self._write_sector(start)
        else:
            self.durable[:] = self.cached
        return True

    def lose_dirty_sectors(self) -> None:
        """A failed sync: the kernel calls these pages clean, and they never reach the platter unless stored again."""
        for start in self._dirty_sectors():
            self.lost[start] = bytes(self.cached[start : start + SECTOR_BYTES])

    def stored_again(self, start: int, end: int) -> None:
        """These sectors are dirty again, whatever they hold: the next sync writes them."""
        for sector in range(start - start % SECTOR_BYTES, end, SECTOR_BYTES):
            self.lost.pop(sector, None)

    def write_back(self, chance: random.Random, share: float) -> None:
        """Some dirty sectors reach the platter. A file whose length changed is left alone."""
        if len(self.cached) == len(self.durable):
            for start in list(self._dirty_sectors()):
                if chance.random() < share:
                    self._write_sector(start)

    def lose_power(self, chance: random.Random, kept_share: float) -> None:
        """Only the platter is left; some sectors made it in the last moment."""
        if self.is_sparse and not self.name_durable and chance.random() < 0.25:
            self.durable = bytearray()  # Made, but never lengthened.
        else:
            if len(self.durable) < len(self.cached):
                shown_bytes = len(self.cached)
                kept_bytes = chance.randint(len(self.durable), shown_bytes) if kept_share else len(self.durable)
                self.cached = self.cached[:kept_bytes]
            self._pad_durable()
            self.write_back(chance, kept_share)
        self.name_durable = True
        self.lost.clear()
        self.cached = bytearray(self.durable)

    def detach(self) -> None:
        """Gives the next process an image of its own: stores through views of the dead one go nowhere."""
        self.cached = bytearray(self.cached)

    def _pad_durable(self) -> None:
        self.durable += bytes(len(self.cached) - len(self.durable))

    def _dirty_sectors(self) -> Iterator[int]:
        for start in range(0, len(self.cached), SECTOR_BYTES):
            if self.cached[start : start + SECTOR_BYTES] != self.durable[start : start + SECTOR_BYTES]:
                yield start

    def _write_sector(self, start: int) -> None:
        content = bytes(self.cached[start : start + SECTOR_BYTES])
        if self.lost.get(start) != content:
            self.lost.pop(start, None)
            self.durable[start : start + SECTOR_BYTES] = content


class _Opened:
    """What the three kinds of open file share: they die with the process that opened them."""

    def __init__(self, disk: SimulatedDisk, path: str, file: _File) -> None:
        self._disk = disk
        self._path = path
        self._file = file
        self._generation = disk.generation
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return len(self._file.cached)

    def sync(self) -> None:
        self._disk.sync_file(self._path, self._alive)

    def close(self) -> None:
        self._closed = True

    @property
    def _alive(self) -> _File:
        assert self._generation == self._disk.generation, f"{self._path} was opened by a process that is dead"
        assert not self._closed, f"{self._path} is closed"
        return self._file


class _SimulatedMappedSegment(_Opened, MappedSegment):
    def __init__(self, disk: SimulatedDisk, path: str, file: _File) -> None:
        super().__init__(disk, path, file)
        self._view = memoryview(file.cached)

    @property
    def view(self) -> memoryview:
        assert not self._closed, f"{self._path} is closed"
        return self._view

    def new_tail_view(self) -> memoryview:
        return self.view.toreadonly()

    def write_parts(self, start: int, parts: Sequence[bytes | memoryview]) -> None:
        for part in parts:
            self.view[start : start + len(part)] = part
            start += len(part)

    def fetch_pages(self, start: int, end: int) -> None:
        assert 0 <= start <= end <= len(self._view)

    def store_again(self, start: int, end: int) -> None:
        self._alive.stored_again(start, end)

    def used_bytes_from(self, start: int) -> int:
        return len(self._alive.cached[start:].rstrip(b"\0"))

    def zero_from(self, start: int) -> int:
        used_bytes = self.used_bytes_from(start)
        self._view[start : start + used_bytes] = bytes(used_bytes)
        return used_bytes


class _SimulatedBlockFile(_Opened, BlockFile):
    def read(self, offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= self.size, f"{self._path}: {offset}+{length} is outside"
        return bytes(self._alive.cached[offset : offset + length])

    def write(self, offset: int, data: bytes) -> None:
        assert 0 <= offset <= offset + len(data) <= self.size, f"{self._path}: {offset}+{len(data)} is outside"
        self._disk.write_sparse(self._alive, offset, data)

    def used_bytes_from(self, start: int) -> int:
        return len(self._alive.cached[start:].rstrip(b"\0"))

    def zero_from(self, start: int) -> int:
        used_bytes = len(self._alive.cached[start:].rstrip(b"\0"))
        if used_bytes:
            self.write(start, bytes(used_bytes))
        return used_bytes


class _SimulatedAppendFile(_Opened, AppendFile):
    def append(self, data: bytes) -> None:
        self._disk.append(self._alive, data)


class _SimulatedDiskLock(DiskLock):
    def __init__(self, path: str, locked: set[str]) -> None:
        self._path = path
        self._locked = locked

    def release(self) -> None:
        self._locked.discard(self._path)
