"""What lies behind the end of a log after a stop: nothing, the record a killed process was just writing, or damage.

A log is written from its end on, into files of zeros. So whatever kills the process leaves a *prefix* of what it wrote:
whole records, a part of one, zeros. Anything else behind the last valid record was valid once, and damage hides it: a
flipped bit, a page of zeros with bytes behind it. (A power loss may leave anything of what was not flushed.)

A part of a record, and a whole record whose last bytes have become zeros, look the same: only who knows how far the log
went can tell. The checkpoint knows, as of its last writing, and what was derived from the log since: entries of
ConsumeQueues and index are made once their records are in the log, so that one beyond its end says that it was longer.
After a power loss such an entry may have reached the disk where its record did not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mqcore.message.checksum import crc32
from mqcore.message.record_layout import (
    BLANK_MAGIC,
    CRC_MASK,
    HOST_FLAGS,
    PART_LENGTH,
    SCAN_HEADS,
    SMALLEST_RECORD_BYTES,
    V1_MAGIC,
    V2_MAGIC,
)
from mqcore.storage.consume_queue_loading import StopKind
from mqcore.storage.mapped_file_queue import MappedFileQueue

__all__ = ["LogTail", "describe_damage", "read_log_tail"]

_MAGICS: Final = tuple(magic.to_bytes(4, "big") for magic in (V1_MAGIC, V2_MAGIC, BLANK_MAGIC))
_SIZE_BYTES: Final = 4
_MAGIC_END: Final = 8
_PHYSICAL_OFFSET_AT: Final = 28
_SYS_FLAG_AT: Final = 36
_SYS_FLAG_END: Final = 40


@dataclass(frozen=True, slots=True)
class LogTail:
    """Bytes [start_offset, end_offset) behind the last valid record; zeros follow. Empty where zeros follow at once."""

    start_offset: int
    end_offset: int
    is_torn_record: bool
    """They may be the beginning of one record, as a killed process leaves it."""

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end_offset - self.start_offset


def read_log_tail(files: MappedFileQueue, start_offset: int, *, file_bytes: int) -> LogTail:
    """Looks at everything behind `start_offset`, where a walk through the log has ended."""
    file_start = files.end_offset - file_bytes
    while file_start > start_offset - file_bytes and (segment := files.segment(file_start)) is not None:
        first = max(start_offset, file_start)
        used = segment.used_bytes_from(first - file_start)
        if used:
            end_offset = first + used
            is_torn = first == start_offset and is_torn_record(
                segment.view[first - file_start :], used, physical_offset=start_offset
            )
            return LogTail(start_offset, end_offset, is_torn)
        file_start -= file_bytes
    return LogTail(start_offset, start_offset, False)


def is_torn_record(view: memoryview, used: int, *, physical_offset: int) -> bool:
    """Whether the first `used` bytes of `view`, behind which are zeros, may be the beginning of a record.

    `view` goes to the end of the file; no valid record begins there. Every field that lies whole in these bytes was
    written whole, and must be right.
    """
    if used <= _SIZE_BYTES:
        return True
    if not any(magic.startswith(bytes(view[_SIZE_BYTES : min(used, _MAGIC_END)])) for magic in _MAGICS):
        return False
    if used <= _MAGIC_END:
        return True
    size = int.from_bytes(view[:_SIZE_BYTES], "big", signed=True)
    if bytes(view[_SIZE_BYTES:_MAGIC_END]) == _MAGICS[-1] or not max(used, SMALLEST_RECORD_BYTES - 1) < size:
        return False
    if size > len(view):
        return False
    if used < _SYS_FLAG_AT:
        return True
    if int.from_bytes(view[_PHYSICAL_OFFSET_AT:_SYS_FLAG_AT], "big") != physical_offset:
        return False
    if used < _SYS_FLAG_END:
        return True
    head = SCAN_HEADS[(int.from_bytes(view[_SYS_FLAG_AT:_SYS_FLAG_END], "big") & HOST_FLAGS) >> 4]
    return size >= head.size and (used < head.size or _may_go_on(view, used, size, head.size))


def _may_go_on(view: memoryview, used: int, size: int, head_bytes: int) -> bool:
    """The same of a record of `size` bytes whose head is there: of its body, topic and properties."""
    body_bytes = int.from_bytes(view[head_bytes - _SIZE_BYTES : head_bytes], "big", signed=True)
    body_end = head_bytes + body_bytes
    if body_bytes < 0 or body_end + 3 > size:
        return False
    if used < body_end:
        return True
    body_crc = int.from_bytes(view[8:12], "big")
    if crc32(view[head_bytes:body_end]) & CRC_MASK != body_crc:
        return False
    length_bytes = 1 if bytes(view[_SIZE_BYTES:_MAGIC_END]) == _MAGICS[0] else PART_LENGTH.size
    topic_start = body_end + length_bytes
    if used < topic_start:
        return True
    topic_end = topic_start + int.from_bytes(view[body_end:topic_start], "big", signed=True)
    properties_start = topic_end + PART_LENGTH.size
    if topic_end < topic_start or properties_start > size:
        return False
    if 0 in view[topic_start : min(used, topic_end)]:
        return False
    if used < properties_start:
        return True
    properties_bytes = int.from_bytes(view[topic_end:properties_start], "big", signed=True)
    return properties_start + properties_bytes == size and 0 not in view[properties_start:used]


def describe_damage(tail: LogTail, stop: StopKind, *, reason: str, vouched_offset: int, told_end: int = 0) -> str:
    """What was lost by something else than the stop, or by it though others tell of it, in words; "" if nothing was.

    `vouched_offset`: where the record starts up to which the log was known to be durable, 0: unknown. `told_end`: how
    far the log went as ConsumeQueues and index tell, which learn of a record only once it is in the log. `reason`: why
    the walk ended.
    """
    end = tail.start_offset
    evidence = []
    if vouched_offset and end <= vouched_offset:
        evidence.append(f"the checkpoint says that a record at {vouched_offset} was on disk")
    if told_end > end:
        evidence.append(f"ConsumeQueues or index know of records up to {told_end}")
    parts = [f"the log ends at {end} ({reason}); {' and '.join(evidence)}"] if evidence else []
    is_left_by_stop = stop is StopKind.POWER_LOST or (stop is StopKind.KILLED and tail.is_torn_record)
    if tail.size and not is_left_by_stop:
        parts.append(f"{tail.size} bytes lie behind the last valid record, in [{end}, {tail.end_offset}): {reason}")
    return "; ".join(parts)
