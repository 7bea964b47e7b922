"""Keeps aside what a truncation takes from the log, so that an operator can still look into it.

`kept-tails/<20 digits of the start offset>-<wall-clock ms>.log` holds the bytes as they stood in the log, one file's
after the other's. A name appears only when all of its bytes are durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mqcore.storage.commit_log import CommitLog
from mqcore.storage.disk import Disk
from mqcore.storage.mapped_file_queue import file_name

__all__ = ["KEPT_TAILS_FOLDER", "KeptTail", "is_cut_kept", "keep_tail"]

KEPT_TAILS_FOLDER: Final = "kept-tails"

_CHUNK_BYTES: Final = 1 << 20
_CUT_MARK_BYTES: Final = 8
"""CommitLog.set_end makes them zero first of all."""


@dataclass(frozen=True, slots=True)
class KeptTail:
    """Bytes [start_offset, end_offset) of a log, cut off and kept."""

    path: str
    start_offset: int
    end_offset: int


def keep_tail(disk: Disk, log: CommitLog, *, start_offset: int, end_offset: int, wall_ms: int) -> KeptTail:
    """Copies [start_offset, end_offset) of the log. Durable when it returns; DiskError: nothing kept."""
    path = f"{KEPT_TAILS_FOLDER}/{file_name(start_offset)}-{wall_ms}.log"
    unfinished = f"{path}.unfinished"
    disk.remove(unfinished)  # Of a crash in the same millisecond's attempt: it would be appended to.
    file = disk.open_append_file(unfinished)
    try:
        offset = start_offset
        while offset < end_offset:
            chunk = log.read(offset, min(_CHUNK_BYTES, end_offset - offset))
            file.append(bytes(chunk))
            offset += len(chunk)
        file.sync()
    finally:
        file.close()
    disk.rename(unfinished, path)
    return KeptTail(path, start_offset, offset)


def is_cut_kept(disk: Disk, log: CommitLog, *, start_offset: int, end_offset: int) -> bool:
    """Whether a crash in the middle of a cut has left [start_offset, end_offset): its bytes were kept before."""
    prefix = f"{file_name(start_offset)}-"
    return not any(log.read(start_offset, _CUT_MARK_BYTES)) and any(
        kept.name.startswith(prefix) and kept.name.endswith(".log") and kept.size >= end_offset - start_offset
        for kept in disk.list_folder(KEPT_TAILS_FOLDER)
    )
