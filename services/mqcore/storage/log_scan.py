"""Walks through the CommitLog record by record, file by file, up to the first thing that is no record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mqcore.message.record_decoder import Blank, Corrupt, RecordFound, ScanResult, scan_record
from mqcore.storage.dispatch import BatchDone
from mqcore.storage.mapped_file_queue import MappedFileQueue

__all__ = ["LogScan", "first_record", "record_at", "scan_log"]


@dataclass(slots=True)
class LogScan:
    """Where a walk ended and what it saw."""

    start_offset: int
    end_offset: int
    """End of the last valid record, or of the file a blank closed."""
    record_count: int
    last_record: RecordFound | None
    stop_reason: str
    """Why it went no further."""


def scan_log(
    files: MappedFileQueue,
    start_offset: int,
    *,
    file_bytes: int,
    limit_offset: int,
    check_crc: bool,
    on_record: Callable[[RecordFound], None],
    on_many: Callable[[memoryview, int, int, int], BatchDone | None] | None = None,
) -> LogScan:
    """Calls `on_record` for each valid record that starts in [start_offset, limit_offset); stops at the first bad one.

    The bytes are not trusted: sizes, magic codes, body CRC and the record's own idea of its offset must fit. Neither
    topic nor properties are covered by a CRC; a torn write leaves zeros there, which no valid text contains.

    `on_many(view, position, limit, physical_offset)` may take several records at once, checked no less; None: it takes
    none of what lies at `position`.
    """
    offset = start_offset
    count = 0
    last: RecordFound | None = None
    found: ScanResult
    reason = "end of the files"
    while offset < limit_offset and (segment := files.segment(offset)) is not None:
        view = segment.view
        file_start = offset - offset % file_bytes
        position = offset - file_start
        data_limit = min(file_bytes, limit_offset - file_start)
        while True:
            done = on_many(view, position, data_limit, file_start + position) if on_many is not None else None
            if done is not None:
                last = record_at(files, done.last_record_offset, file_bytes=file_bytes)
                assert last is not None, "a batch ended with no record"
                found = last
                count += done.record_count
                position = done.end_offset - file_start
                if done.end_offset >= limit_offset:
                    break
                continue
            found = scan_record(view, position, file_bytes, physical_offset=file_start + position, check_crc=check_crc)
            if not isinstance(found, RecordFound):
                break
            if b"\0" in found.properties or "\0" in found.topic:
                found = Corrupt("zeros in topic or properties")
                break
            on_record(found)
            last = found
            count += 1
            position += found.size
            if file_start + position >= limit_offset:
                break
        offset = file_start + position
        if isinstance(found, RecordFound):
            break
        if not isinstance(found, Blank):
            reason = found.reason if isinstance(found, Corrupt) else found.value
            break
        if found.size != file_bytes - position:
            reason = f"a blank of {found.size} bytes where {file_bytes - position} are left"
            break
        offset = file_start + file_bytes
    return LogScan(start_offset, offset, count, last, reason)


def record_at(files: MappedFileQueue, offset: int, *, file_bytes: int) -> RecordFound | None:
    """The valid record that starts at `offset`, if there is one."""
    segment = files.segment(offset)
    if segment is None:
        return None
    found = scan_record(segment.view, offset % file_bytes, file_bytes, physical_offset=offset)
    return found if isinstance(found, RecordFound) else None


def first_record(files: MappedFileQueue, file_start: int, *, file_bytes: int) -> RecordFound | None:
    """The first record of a file, its body unchecked; None if the file does not begin with one."""
    segment = files.segment(file_start)
    if segment is None:
        return None
    found = scan_record(segment.view, 0, file_bytes, physical_offset=file_start, check_crc=False)
    return found if isinstance(found, RecordFound) else None
