"""Writes a metadata table again while the broker serves: of a slave after it took its master's, of a master its own.

What a running broker knows is in memory, and its file may have been damaged since it was read. So a file that holds
something else than the broker does is kept in `kept-repairs` beside the log, and written again. A slave's table may be
wrong in memory as well: it takes its master's first, whatever versions say, and what it had is kept. Whether a master's
own table is right, it cannot know.

The other small files that a broker writes as a whole (`OwnFile`: who wrote its log, which disk it is, homes of message
groups, the checkpoint) have no master to be taken from: they are written as the broker knows them.

What was kept last can be put back.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import xxhash

from tandemmq.broker.audit.range_repair import KEPT_REPAIRS_FOLDER, keep_file
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.core.audit.repair_plan import Refusal, RepairRefused
from tandemmq.core.metadata.metadata_store import MetadataCorrupt, MetadataFile

__all__ = ["OwnFile", "TableRepair", "TableRepaired"]

log = structlog.get_logger(__name__)

_LOOKS_MAX: Final = 5
"""At a table that changes meanwhile."""
_DIGEST_CHARACTERS: Final = 32


@dataclass(frozen=True, slots=True)
class TableRepaired:
    """What came of it."""

    changed: bool
    kept_path: str = ""
    """Below the store; empty: nothing was overwritten that was not kept before."""


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A small file that is written as a whole, by one who knows what belongs in it."""

    path: str
    """Below the store."""
    known: Callable[[], bytes]
    """What belongs in it now."""
    write: Callable[[bytes | None], Awaitable[None]]
    """Writes bytes, or with None what is known; after it nobody else's older write follows."""

    @property
    def name(self) -> str:
        """Without its folder."""
        return self.path.rpartition("/")[2]


class TableRepair:
    """Carries out orders, one at a time. Event loop only.

    `retake` has a slave take its master's table; it says whether that changed, or would change, anything.
    """

    def __init__(
        self,
        *,
        root: str,
        tables: MetadataTables,
        retake: Callable[[MetadataFile, bool], Awaitable[bool]],
        own_files: Sequence[OwnFile] = (),
    ) -> None:
        self._root = root
        self._tables = tables
        self._retake = retake
        self._own_files = {own.name: own for own in own_files}

    async def run(self, name: str, *, dry_run: bool, undo: bool = False) -> TableRepaired:
        """Raises RepairRefused; OSError when the disk refuses."""
        own = self._own_files.get(name)
        file = next((each for each in MetadataFile if each.value == name), None)
        if own is None and file is None:
            known = ", ".join([each.value for each in MetadataFile] + [*self._own_files])
            raise RepairRefused(Refusal.MALFORMED, f"table: there is no {name!r}; ask for one of {known}")
        if undo:
            return await self._put_back(name, file, own, dry_run=dry_run)
        if own is not None:
            return await self._rewrite_own(own, dry_run=dry_run)
        assert file is not None, "it is one of the two"
        return await self._rewrite(file, dry_run=dry_run)

    # A table

    async def _rewrite(self, file: MetadataFile, *, dry_run: bool) -> TableRepaired:
        if file in self._tables.damaged:
            raise RepairRefused(
                Refusal.NOT_AS_EXPECTED,
                f"{file.value} could not be read at the start, and no replica gave it yet: see its log",
            )
        held = await self._other_content(file)
        is_due = await self._retake(file, True)
        if dry_run:
            return TableRepaired(changed=is_due or held is not None)
        kept = ""
        if held is not None:
            # First: whatever comes next writes the file.
            kept = await self._keep(file.value, held)
        elif is_due:
            kept = await self._keep(file.value, self._tables.by_file[file].to_json().encode())
        is_taken = await self._retake(file, False)
        if held is not None:
            self._tables.write_again(file)
        await self._tables.written()
        if is_taken or kept:
            log.warning("metadata_table_rewritten", table=file.value, kept=kept, from_master=is_taken)
        return TableRepaired(changed=is_taken or held is not None, kept_path=kept)

    async def _other_content(self, file: MetadataFile) -> bytes | None:
        """What the file holds if that is something else than the broker knows; b"" where there is no file."""
        for _ in range(_LOOKS_MAX):
            await self._tables.written()
            before = self._tables.by_file[file].version
            held = await asyncio.to_thread(self._tables.read_file, file)
            if held == self._tables.by_file[file].to_json().encode():
                return None
            if self._tables.by_file[file].version == before and not self._tables.is_unwritten(file):
                return held or b""
        raise RepairRefused(Refusal.BUSY, f"{file.value} changes all the time; try again")

    # Another file

    async def _rewrite_own(self, own: OwnFile, *, dry_run: bool) -> TableRepaired:
        held = await self._other_content_of(own)
        if held is None or dry_run:
            return TableRepaired(changed=held is not None)
        kept = await self._keep(own.name, held)
        await own.write(None)
        log.warning("file_rewritten", file=own.path, kept=kept)
        return TableRepaired(changed=True, kept_path=kept)

    async def _other_content_of(self, own: OwnFile) -> bytes | None:
        for _ in range(_LOOKS_MAX):
            before = own.known()
            held = await asyncio.to_thread(self._read, own.path)
            if held == before:
                return None
            if own.known() == before:
                return held
        raise RepairRefused(Refusal.BUSY, f"{own.path} changes all the time; try again")

    # Back

    async def _put_back(
        self, name: str, file: MetadataFile | None, own: OwnFile | None, *, dry_run: bool
    ) -> TableRepaired:
        path = await asyncio.to_thread(self._newest_kept, name)
        if path is None:
            raise RepairRefused(Refusal.NOT_FOUND, f"nothing is kept of {name}: it was not repaired")
        data = await asyncio.to_thread(self._read, path)
        if own is not None:
            held = await asyncio.to_thread(self._read, own.path)
        else:
            assert file is not None, "it is one of the two"
            self._check_readable(file, data, path)
            held = self._tables.by_file[file].to_json().encode()
        if held == data or dry_run:
            return TableRepaired(changed=held != data)
        kept = await self._keep(name, held, undone=True)
        if own is not None:
            await own.write(data)
        elif file is not None:
            self._tables.put_back(file, data.decode())
            await self._tables.written()
        log.warning("table_put_back", table=name, from_file=path, kept=kept)
        return TableRepaired(changed=True, kept_path=kept)

    def _check_readable(self, file: MetadataFile, data: bytes, path: str) -> None:
        try:
            type(self._tables.by_file[file])().load_json(data.decode())
        except (MetadataCorrupt, UnicodeDecodeError) as error:
            raise RepairRefused(
                Refusal.NOT_AS_EXPECTED, f"what was overwritten cannot be read by a broker ({error}); it is in {path}"
            ) from error

    # Files

    async def _keep(self, name: str, data: bytes, *, undone: bool = False) -> str:
        """`NAME-DIGEST`; what an undo has overwritten is `NAME-DIGEST-undone`, and is not put back by another."""
        path = f"{KEPT_REPAIRS_FOLDER}/{name}-{xxhash.xxh3_128_hexdigest(data)}{_UNDONE if undone else ''}"
        await asyncio.to_thread(self._keep_file, path, data)
        return path

    def _keep_file(self, path: str, data: bytes) -> None:
        os.makedirs(f"{self._root}/{KEPT_REPAIRS_FOLDER}", exist_ok=True)
        keep_file(f"{self._root}/{path}", data)

    def _newest_kept(self, name: str) -> str | None:
        folder = f"{self._root}/{KEPT_REPAIRS_FOLDER}"
        names = os.listdir(folder) if os.path.isdir(folder) else []
        length = len(name) + 1 + _DIGEST_CHARACTERS
        found = [each for each in names if each.startswith(f"{name}-") and len(each) == length]
        newest = max(found, key=lambda each: os.stat(f"{folder}/{each}").st_mtime_ns, default=None)
        return None if newest is None else f"{KEPT_REPAIRS_FOLDER}/{newest}"

    def _read(self, path: str) -> bytes:
        """b"" where there is no file."""
        try:
            with open(f"{self._root}/{path}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""


_UNDONE: Final = "-undone"
