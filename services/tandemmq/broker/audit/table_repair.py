"""Writes a metadata table again while the broker serves: of a slave after it took its master's, of a master its own.

What a running broker knows is in memory, and its file may have been damaged since it was read. So a file that holds
something else than the broker does is kept in `kept-repairs` beside the log, and written again. A slave's table may be
wrong in memory as well: it takes its master's first, whatever versions say. Whether a master's own table is right, it
cannot know.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog
import xxhash

from tandemmq.broker.audit.range_repair import KEPT_REPAIRS_FOLDER, keep_file
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.core.audit.repair_plan import Refusal, RepairRefused
from tandemmq.core.metadata.metadata_store import MetadataFile

__all__ = ["TableRepair", "TableRepaired"]

log = structlog.get_logger(__name__)

_LOOKS_MAX: Final = 5
"""At a table that changes meanwhile."""


@dataclass(frozen=True, slots=True)
class TableRepaired:
    """What came of it."""

    changed: bool
    kept_path: str = ""
    """Below the store; empty: nothing was overwritten that was not kept before."""


class TableRepair:
    """Carries out orders, one at a time. Event loop only.

    `retake` has a slave take its master's table; it says whether that changed, or would change, anything.
    """

    def __init__(
        self, *, root: str, tables: MetadataTables, retake: Callable[[MetadataFile, bool], Awaitable[bool]]
    ) -> None:
        self._root = root
        self._tables = tables
        self._retake = retake

    async def run(self, name: str, *, dry_run: bool) -> TableRepaired:
        """Raises RepairRefused; OSError when the disk refuses."""
        try:
            file = MetadataFile(name)
        except ValueError:
            known = ", ".join(own.value for own in MetadataFile)
            raise RepairRefused(Refusal.MALFORMED, f"table: there is no {name!r}; ask for one of {known}") from None
        if file in self._tables.damaged:
            raise RepairRefused(
                Refusal.NOT_AS_EXPECTED,
                f"{name} could not be read at the start, and no replica gave it yet: see its log",
            )
        held = await self._other_content(file)
        if dry_run:
            is_taken = await self._retake(file, True)
            return TableRepaired(changed=is_taken or held is not None)
        kept = ""
        if held is not None:
            # First: whatever comes next writes the file.
            kept = f"{KEPT_REPAIRS_FOLDER}/{name}-{xxhash.xxh3_128_hexdigest(held)}"
            await asyncio.to_thread(self._keep, kept, held)
        is_taken = await self._retake(file, False)
        if held is not None:
            self._tables.write_again(file)
        await self._tables.written()
        if is_taken or kept:
            log.warning("metadata_table_rewritten", table=name, kept=kept, from_master=is_taken)
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

    def _keep(self, path: str, data: bytes) -> None:
        os.makedirs(f"{self._root}/{KEPT_REPAIRS_FOLDER}", exist_ok=True)
        keep_file(f"{self._root}/{path}", data)
