"""What lies behind the end of a log: how it is judged after a stop, kept aside when it is cut off, and read again.

A log is written from its end on, into files of zeros. So a process that is killed leaves a *prefix* of what it wrote:
whole records, a part of one, zeros. Anything else behind the last valid record was valid once, and damage hides it: a
flipped bit, or a page of zeros with bytes behind it. (A power loss may leave anything of what was not flushed.) A part
of a record looks like a whole record whose last bytes have become zeros; only who knows how far the log went can tell.
The checkpoint knows it as of its last writing. ConsumeQueues and index know more: their entries are made once their
records are in the log, so an entry beyond the log's end says that the log was longer. After a power loss such an entry
may have reached the disk where its record did not.

`kept-tails/<20 digits of the start offset>-<wall-clock ms>.log` holds the bytes as they stood in the log, one file's
after the other's; `….json` beside it says why they were cut. A name appears only when all of its bytes are durable, the
reason before them.

`TailWalk` reads such bytes without trusting any: a tail is kept because something went wrong. Behind whatever is no
record it looks for the next thing that is one: a magic code, the record's own offset at its place, sizes that add up,
and the body's CRC. So no valid record is missed, wherever the tail was cut or damaged, and what lies between is named.
"""

from __future__ import annotations

import json
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Final

from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import (
    Blank,
    Corrupt,
    RecordFound,
    ScanStop,
    decode_record,
    message_id_of,
    scan_record,
)
from tandemmq.core.message.record_layout import (
    BLANK,
    BLANK_MAGIC,
    CRC_MASK,
    HOST_FLAGS,
    PART_LENGTH,
    SCAN_HEADS,
    SMALLEST_RECORD_BYTES,
    V1_MAGIC,
    V2_MAGIC,
    MalformedRecord,
    crc32,
)
from tandemmq.core.storage.commit_log import CommitLog, MappedFileQueue, file_name
from tandemmq.core.storage.consume_queue_table import StopKind
from tandemmq.core.storage.disk import Disk, DiskError, DiskFull, FolderEntry

KEPT_TAILS_FOLDER: Final = "kept-tails"
KEPT_REPAIRS_FOLDER: Final = "kept-repairs"
"""What repairs have overwritten, below the store's root, too."""
TAIL_RECORD_BYTES_MAX: Final = 32 << 20
"""A record that says it is larger is damaged: the largest `maxMessageSize` has room in it."""

_CHUNK_BYTES: Final = 1 << 20
_CUT_MARK_BYTES: Final = 8
"""CommitLog.set_end makes them zero first of all."""
_READ_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"(\d{20})-(\d{1,20})\.log", re.ASCII)
_REASON_CHARACTERS_MAX: Final = 500

_MAGICS: Final = re.compile(b"|".join(re.escape(magic.to_bytes(4)) for magic in (V1_MAGIC, V2_MAGIC)))
_MAGIC_AT: Final = 4
_OWN_OFFSET: Final = Struct(">q")
_OWN_OFFSET_AT: Final = 28


@dataclass(frozen=True, slots=True)
class KeptTail:
    """Bytes [start_offset, end_offset) of a log, cut off and kept."""

    path: str
    start_offset: int
    end_offset: int
    kept_wall_ms: int = 0
    reason: str = ""
    """Why they were cut off, in words; empty: it was not written down."""

    @property
    def name(self) -> str:
        """Its file, without the folder."""
        return self.path.rpartition("/")[2]


def keep_tail(
    disk: Disk, log: CommitLog, *, start_offset: int, end_offset: int, wall_ms: int, reason: str = ""
) -> KeptTail:
    """Copies [start_offset, end_offset) of the log. Durable when it returns; DiskError: nothing kept, nor left."""
    path = f"{KEPT_TAILS_FOLDER}/{file_name(start_offset)}-{wall_ms}.log"
    usage, needed_bytes = disk.usage(), end_offset - start_offset
    if 0 < usage.total_bytes < usage.used_bytes + needed_bytes:
        free = f"{usage.total_bytes - usage.used_bytes:,} are free"
        raise DiskFull(f"disk full: {path}: {needed_bytes:,} bytes are cut off the log and kept there, and {free}")
    try:
        return _kept(disk, log, path, LogTail(start_offset, end_offset, is_torn_record=False), wall_ms, reason)
    except DiskError:
        # It would take from others what room there is, and the next try has another name.
        with suppress(DiskError):
            disk.remove(_unfinished(path))
            disk.remove(reason_path(path))
        raise


def _unfinished(path: str) -> str:
    return f"{path}.unfinished"


def _kept(disk: Disk, log: CommitLog, path: str, tail: LogTail, wall_ms: int, reason: str) -> KeptTail:
    start_offset, end_offset = tail.start_offset, tail.end_offset
    if reason:
        crc = 0
        for offset in range(start_offset, end_offset, _CHUNK_BYTES):
            crc = zlib.crc32(bytes(log.read(offset, min(_CHUNK_BYTES, end_offset - offset))), crc)
        document = {
            "reason": reason[:_REASON_CHARACTERS_MAX],
            "startOffset": start_offset,
            "endOffset": end_offset,
            "crc32": crc,
        }
        disk.write_file(reason_path(path), json.dumps(document, indent=2).encode())
    unfinished = _unfinished(path)
    disk.remove(unfinished)  # A crash in the same millisecond may have left it; it would be appended to.
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
    return KeptTail(path, start_offset, offset, wall_ms, reason)


def is_cut_kept(disk: Disk, log: CommitLog, *, start_offset: int, end_offset: int) -> bool:
    """Whether a crash in the middle of a cut has left [start_offset, end_offset): its bytes were kept before."""
    prefix = f"{file_name(start_offset)}-"
    return not any(log.read(start_offset, _CUT_MARK_BYTES)) and any(
        kept.name.startswith(prefix) and kept.name.endswith(".log") and kept.size >= end_offset - start_offset
        for kept in disk.list_folder(KEPT_TAILS_FOLDER)
    )


def kept_tails(disk: Disk) -> list[KeptTail]:
    """All that are kept, ordered by where they begin and by time. Blocks. Other files in the folder are passed over."""
    return [tail for entry in disk.list_folder(KEPT_TAILS_FOLDER) if (tail := _of_entry(disk, entry)) is not None]


def kept_repairs(disk: Disk) -> tuple[int, int]:
    """How many files repairs have kept, and of how many bytes. Blocks."""
    sizes = [entry.size for entry in disk.list_folder(KEPT_REPAIRS_FOLDER) if not entry.is_folder]
    return len(sizes), sum(sizes)


def kept_tail_named(disk: Disk, name: str) -> KeptTail | None:
    """The one of that file name. Blocks. A name of any other form, a path among them, is nobody's."""
    if _NAME.fullmatch(name) is None:
        return None
    return next((tail for tail in kept_tails(disk) if tail.name == name), None)


def kept_tail_of(path: str, size: int, reason_document: bytes | None) -> KeptTail | None:
    """What a file of that path and size keeps; None if the path is not a tail's."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    if match is None:
        return None
    start_offset = int(match[1])
    return KeptTail(path, start_offset, start_offset + size, int(match[2]), _reason(reason_document))


def reason_path(path: str) -> str:
    """The file beside a tail that says why it was cut off."""
    return path.removesuffix(".log") + ".json"


def _of_entry(disk: Disk, entry: FolderEntry) -> KeptTail | None:
    if entry.is_folder or _NAME.fullmatch(entry.name) is None:
        return None
    path = f"{KEPT_TAILS_FOLDER}/{entry.name}"
    return kept_tail_of(path, entry.size, disk.read_file(reason_path(path)))


def _reason(data: bytes | None) -> str:
    try:
        document = json.loads(data or b"{}")
        return str(document.get("reason", ""))[:_REASON_CHARACTERS_MAX]
    except (ValueError, AttributeError, RecursionError):
        return ""  # Damaged, as the tail may be. The tail counts.


@dataclass(frozen=True, slots=True)
class UnreadableRange:
    """Bytes [start_offset, end_offset) that are no valid record."""

    start_offset: int
    end_offset: int
    reason: str
    """Why not, and which message it was, where that can still be read."""


@dataclass(frozen=True, slots=True)
class TailPart:
    """What a read brought to light, in the order of the log."""

    records: list[tuple[int, bytes]]
    """Offset and bytes of each."""
    unreadable: list[UnreadableRange]


class TailWalk:
    """Finds every valid record of a tail. No disk: the caller reads what `wanted` names and gives it to `take`.

        searching: what lies from `_lost_from` on is no record, and the next one is looked for
        otherwise: a record, or a file's blank, is expected at `_position`

    Memory: one read, of `TAIL_RECORD_BYTES_MAX` at most.
    """

    def __init__(
        self, start_offset: int, end_offset: int, *, lost_from: int | None = None, lost_reason: str = ""
    ) -> None:
        """A walk through [start_offset, end_offset); `lost_from` and `lost_reason` are of one that is to go on."""
        self._end = end_offset
        self._position = start_offset
        self._want = _READ_BYTES
        self._lost_from = lost_from
        self._lost_reason = lost_reason
        """Empty: these bytes are a file's rest, which has no meaning."""

    @property
    def state(self) -> tuple[int, int | None, str]:
        """What another walk needs to go on: its start_offset, lost_from and lost_reason."""
        return self._position, self._lost_from, self._lost_reason

    @property
    def wanted(self) -> tuple[int, int] | None:
        """Offset and length of the next read, within the tail; None: all was read."""
        if self._position >= self._end:
            return None
        return self._position, min(self._want, self._end - self._position)

    def take(self, data: bytes) -> TailPart:
        """The bytes that were `wanted`, all of them."""
        assert self.wanted is not None, "there is nothing left to read"
        assert len(data) == self.wanted[1], f"{len(data)} bytes where {self.wanted[1]} were wanted"
        part = TailPart([], [])
        self._want = _READ_BYTES
        base, at = self._position, 0
        while at < len(data):
            if self._lost_from is None:
                step = self._record(data, at, base, part)
            else:
                step = self._next_record(data, at, base, part)
            if step is None:
                break
            at = step
        if base + at >= self._end:
            self._close(self._end, part)
        return part

    def _record(self, data: bytes, at: int, base: int, part: TailPart) -> int | None:
        """Takes what is at `at`, where a record is expected; where to go on, None: with another read."""
        found = _scan(data, at, base + at)
        match found:
            case RecordFound():
                part.records.append((base + at, data[at : at + found.size]))
                self._position = base + at + found.size
                return at + found.size
            case Blank():
                # Its size is not believed: if that were damaged, records would be passed over.
                self._lose(base + at, "")
                return at + BLANK.size
            case ScanStop.INCOMPLETE if self._has_more(data, at, base):
                return None
            case ScanStop.INCOMPLETE:
                self._lose(base + at, f"the rest of it is missing: only {self._end - base - at} bytes are there")
            case ScanStop.END_OF_DATA:
                self._lose(base + at, "nothing was written there")
            case _:
                self._lose(base + at, f"{found.reason}{_whose(data, at)}")
        return at + 1

    def _next_record(self, data: bytes, at: int, base: int, part: TailPart) -> int | None:
        """Looks for a valid record from `at` on."""
        for match in _MAGICS.finditer(data, at + _MAGIC_AT):
            start = match.start() - _MAGIC_AT
            if not _says_its_offset(data, start, base + start):
                # Chance, or a copy of another place; or its head is cut by the end of this read.
                if len(data) - start < SMALLEST_RECORD_BYTES and base + len(data) < self._end:
                    self._position = base + start
                    return None
                continue
            found = _scan(data, start, base + start)
            if isinstance(found, RecordFound):
                self._close(base + start, part)
                self._position = base + start
                return start
            if found is ScanStop.INCOMPLETE and self._has_more(data, start, base):
                return None
        # A magic code may begin with the last bytes.
        keep = max(at, len(data) - _MAGIC_AT - 3) if base + len(data) < self._end else len(data)
        self._position = base + keep
        return len(data) if keep == len(data) else None

    def _has_more(self, data: bytes, at: int, base: int) -> bool:
        """Whether what is at `at` lies whole in the tail, but not in this read: then it begins the next one."""
        left = self._end - base - at
        size = int.from_bytes(data[at : at + 4]) if len(data) - at >= BLANK.size else BLANK.size
        if size > min(left, TAIL_RECORD_BYTES_MAX) or base + len(data) >= self._end:
            return False
        self._position = base + at
        self._want = max(_READ_BYTES, size)
        return True

    def _lose(self, offset: int, reason: str) -> None:
        self._lost_from, self._lost_reason = offset, reason

    def _close(self, end_offset: int, part: TailPart) -> None:
        """The search is over at `end_offset`."""
        if self._lost_from is not None and self._lost_reason and self._lost_from < end_offset:
            part.unreadable.append(UnreadableRange(self._lost_from, end_offset, self._lost_reason))
        self._lost_from, self._position = None, end_offset


def _scan(data: bytes, at: int, offset: int) -> RecordFound | Blank | Corrupt | ScanStop:
    """As recovery does: no CRC covers topic and properties, and a torn write leaves zeros there."""
    found = scan_record(data, at, len(data), physical_offset=offset)
    if isinstance(found, RecordFound) and (b"\0" in found.properties or "\0" in found.topic):
        return Corrupt("zeros in topic or properties")
    return found


def _says_its_offset(data: bytes, at: int, offset: int) -> bool:
    own_at = at + _OWN_OFFSET_AT
    return own_at + _OWN_OFFSET.size <= len(data) and _OWN_OFFSET.unpack_from(data, own_at)[0] == offset


def _whose(data: bytes, at: int) -> str:
    """Which message a damaged record was, if its head and its end are whole."""
    try:
        record = decode_record(data, at, check_crc=False)
        message_id = message_id_of(record, decode_properties(record.properties))
    except (MalformedRecord, ValueError):
        return ""
    return f": message {message_id} of topic {record.topic}"


# How the bytes behind a log's end are judged.

_RECORD_MAGICS: Final = tuple(magic.to_bytes(4, "big") for magic in (V1_MAGIC, V2_MAGIC, BLANK_MAGIC))
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
    if not any(magic.startswith(bytes(view[_SIZE_BYTES : min(used, _MAGIC_END)])) for magic in _RECORD_MAGICS):
        return False
    if used <= _MAGIC_END:
        return True
    size = int.from_bytes(view[:_SIZE_BYTES], "big", signed=True)
    if bytes(view[_SIZE_BYTES:_MAGIC_END]) == _RECORD_MAGICS[-1] or not max(used, SMALLEST_RECORD_BYTES - 1) < size:
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
    length_bytes = 1 if bytes(view[_SIZE_BYTES:_MAGIC_END]) == _RECORD_MAGICS[0] else PART_LENGTH.size
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


def describe_damage(
    tail: LogTail, stop: StopKind, *, reason: str, vouched_offset: int, told_end: int = 0
) -> tuple[str, int]:
    """What was lost by something else than the stop, or by it though others tell of it, in words, and up to where the
    log went at least; ("", 0) if nothing was.

    `vouched_offset`: where the record starts up to which the log was known to be durable, 0: unknown. `told_end`: how
    far the log went as ConsumeQueues and index tell, which learn of a record only once it is in the log. `reason`: why
    the walk ended.
    """
    end = tail.start_offset
    evidence, reached = [], 0
    if vouched_offset and end <= vouched_offset:
        evidence.append(f"the checkpoint says that a record at {vouched_offset} was on disk")
        reached = vouched_offset + 1
    if told_end > end:
        evidence.append(f"ConsumeQueues or index know of records up to {told_end}")
        reached = max(reached, told_end)
    parts = [f"the log ends at {end} ({reason}); {' and '.join(evidence)}"] if evidence else []
    is_left_by_stop = stop is StopKind.POWER_LOST or (stop is StopKind.KILLED and tail.is_torn_record)
    if tail.size and not is_left_by_stop:
        parts.append(f"{tail.size} bytes lie behind the last valid record, in [{end}, {tail.end_offset}): {reason}")
        reached = max(reached, tail.end_offset)
    return "; ".join(parts), reached
