"""Many records at once: what dispatch needs of a run of common records, as columns instead of objects.

One record costs some 10 µs to read and enter one by one, and a slave that catches up has a million of them a gigabyte.
Here numpy looks at thousands in one go, at a tenth of that each. Import this module only where many records
are waiting: a broker without numpy goes without it.

A batch holds only records that `scan_record` accepts as well, with the same checks (sizes, magic, own offset, parts,
body CRC), and only *common* ones. The first record that is not ends the batch, whatever is the matter with it, and the
caller reads that one alone. Not common are V2 records, parts of transactions, inner batches, the schedule topic, and
records whose hosts are of another kind than the first one's.

Property strings are read by template: rows of equal length that agree with the first row in names and separators are a
matrix with values in fixed columns. A row that fits no template is decoded alone; it stays in the batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, starmap
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tandemmq.core.message.properties import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
    index_terms,
    java_hash,
    tags_code,
)
from tandemmq.core.message.record import SCHEDULE_TOPIC
from tandemmq.core.message.record_layout import (
    CRC_MASK,
    HOST_FLAGS,
    INNER_BATCH,
    SMALLEST_RECORD_BYTES,
    TRANSACTION_MASK,
    V1_MAGIC,
    crc32,
)
from tandemmq.core.storage.consume_queue import ENTRY
from tandemmq.core.storage.disk import DiskFull
from tandemmq.core.storage.index_file import key_hash, tag_hash

if TYPE_CHECKING:
    from tandemmq.core.storage.consume_queue_table import ConsumeQueueTable
    from tandemmq.core.storage.index_table import IndexTable

Integers: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Flags: TypeAlias = npt.NDArray[np.bool_]

_SIZE: Final = Struct(">i")
_V6_EXTRA_BYTES: Final = 12
_UNCOMMON_FLAGS: Final = INNER_BATCH | TRANSACTION_MASK
_V1_TOPIC_BYTES_MAX: Final = 127
_PROBE_RECORDS: Final = 32
"""Records of equal size that are looked for in one go, at first; twice as many after each success."""
_CHASE_RECORDS: Final = 64
"""Records followed one by one after sizes were found to differ."""
_TEMPLATES_MAX: Final = 16
"""Templates tried in a batch: each costs a pass over the rows that are left, so a motley rest is read row by row."""
_COPIED_BODY_BYTES_MAX: Final = 2048
"""From about here on copying a body costs more than the slice it spares."""
_FEW_VALUES: Final = 8
"""So many different tags are found by comparing all with each, faster than by sorting."""
_KEY_UNITS_MAX: Final = 255
_LOWEST_VALUE_BYTE: Final = 2
"""Zero, 0x01 and 0x02 are what no value of a template may contain."""
_BLOCK_BYTES: Final = 64 << 10
_SPACE: Final = 0x20
_ASCII_LIMIT: Final = 0x80
_INTEGER_BYTES: Final = 8

_WEIGHTS: Final[npt.NDArray[np.uint32]] = np.array(
    [pow(31, power, 1 << 32) for power in range(_KEY_UNITS_MAX, -1, -1)], dtype=np.uint32
)
"""Its last n are the weights of a text of n units in Java's hash."""


_EIGHT_UNITS: Final = np.uint32(pow(31, 8, 1 << 32))
"""Moves a hash eight units to the left."""
_BYTE_LANES: Final = np.uint64(0x00FF_00FF_00FF_00FF)
_PAIR_LANES: Final = np.uint64(0x0000_FFFF_0000_FFFF)
_FOUR_LANE: Final = np.uint64(0xFFFF_FFFF)


@dataclass(slots=True)
class RecordBatch:
    """Common records that lie one behind the other. Columns have one row a record, in log order."""

    offsets: Integers
    """Physical, where each starts."""
    sizes: Integers
    queue_ids: Integers
    queue_offsets: Integers
    store_timestamps_ms: Integers
    topics: list[str]
    topic_of: Integers
    """Index into `topics`."""
    tags_codes: Integers
    index_records: Integers
    """The row of each index entry; ascending. A row has its keys first and its tag last."""
    index_hashes: Integers
    """What the index holds for each entry."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def end_offset(self) -> int:
        """Where the next record starts."""
        return int(self.offsets[-1] + self.sizes[-1])


def read_batch(
    view: memoryview, position: int, limit: int, *, physical_offset: int, with_zeros: bool = True
) -> RecordBatch | None:
    """The common records in view[position:limit], from its start on; None if the first one is not common.

    `physical_offset` is where in the CommitLog `position` is. Without `with_zeros` a record whose topic or properties
    contain a zero is not common: recovery takes that for a torn write.
    """
    starts = _starts(view, position, limit)
    if not len(starts):
        return None
    data = np.frombuffer(view, dtype=np.uint8, count=limit)
    host_flags = int(data[position + 39]) & HOST_FLAGS
    head_type = _HEADS[host_flags >> 4]
    if limit - position < head_type.itemsize:
        return None
    # The last record may be shorter than such a head; the view of heads ends with the data.
    starts = starts[: int(np.searchsorted(starts, limit - head_type.itemsize, side="right"))]
    head = _rows(view, starts, head_type.itemsize, limit).view(head_type)
    sizes = head["size"].astype(np.int64)
    own_offsets = head["physical_offset"].astype(np.int64)
    body_bytes = head["body_bytes"].astype(np.int64)
    flags = head["sys_flag"]
    is_common = (
        (head["magic"] == V1_MAGIC)
        & (own_offsets - starts == physical_offset - position)
        & (flags & (_UNCOMMON_FLAGS | HOST_FLAGS) == host_flags)
        & (body_bytes >= 0)
        & (body_bytes <= sizes - (head_type.itemsize + 3))
    )
    count = _true_count(is_common)
    body_starts = starts[:count] + head_type.itemsize
    body_ends = body_starts + body_bytes[:count]
    ends = starts[:count] + sizes[:count]
    topic_bytes = data[body_ends].astype(np.int64)
    topic_ends = body_ends + 1 + topic_bytes
    is_common = (topic_bytes <= _V1_TOPIC_BYTES_MAX) & (topic_ends + 2 <= ends)
    count = _true_count(is_common)
    topic_ends = topic_ends[:count]
    properties_bytes = data[topic_ends].astype(np.int64) << 8 | data[topic_ends + 1]
    is_common = topic_ends + 2 + properties_bytes == ends[:count]
    count = _true_count(is_common)
    count = _sound_bodies(view, body_starts[:count], body_ends[:count], head["body_crc"][:count])
    topic_of, topics = _topics(view, body_ends[:count] + 1, topic_bytes[:count], limit)
    count = _common_topics(topic_of, topics, with_zeros=with_zeros)
    if not count:
        return None
    terms = _Terms(view, limit, topic_of[:count], topics)
    count = terms.read(topic_ends[:count] + 2, properties_bytes[:count], with_zeros=with_zeros)
    if not count:
        return None
    index_records, index_hashes = terms.index_entries(count)
    return RecordBatch(
        offsets=own_offsets[:count],
        sizes=sizes[:count],
        queue_ids=head["queue_id"][:count].astype(np.int64),
        queue_offsets=head["queue_offset"][:count].astype(np.int64),
        store_timestamps_ms=head["store_timestamp_ms"][:count].astype(np.int64),
        topics=topics,
        topic_of=topic_of[:count],
        tags_codes=terms.tags_codes[:count],
        index_records=index_records,
        index_hashes=index_hashes,
    )


def _head_type(*, born_v6: bool, store_v6: bool) -> np.dtype[np.void]:
    """The fields of a record's head, see record_layout."""
    born = _V6_EXTRA_BYTES if born_v6 else 0
    both = born + (_V6_EXTRA_BYTES if store_v6 else 0)
    fields: list[tuple[str, str, int]] = [
        ("size", ">i4", 0),
        ("magic", ">u4", 4),
        ("body_crc", ">u4", 8),
        ("queue_id", ">i4", 12),
        ("flag", ">i4", 16),
        ("queue_offset", ">i8", 20),
        ("physical_offset", ">i8", 28),
        ("sys_flag", ">i4", 36),
        ("born_timestamp_ms", ">i8", 40),
        ("born_host", f"V{8 + born}", 48),
        ("store_timestamp_ms", ">i8", 56 + born),
        ("store_host", f"V{8 + both - born}", 64 + born),
        ("reconsume_times", ">i4", 72 + both),
        ("prepared_transaction_offset", ">i8", 76 + both),
        ("body_bytes", ">i4", 84 + both),
    ]
    return np.dtype(
        {
            "names": [name for name, _, _ in fields],
            "formats": [kind for _, kind, _ in fields],
            "offsets": [offset for _, _, offset in fields],
            "itemsize": 88 + both,
        }
    )


_HEADS: Final = tuple(_head_type(born_v6=bool(flags & 1), store_v6=bool(flags & 2)) for flags in range(4))
"""By (sysFlag & HOST_FLAGS) >> 4."""


def read_heads(view: memoryview, batch: RecordBatch) -> npt.NDArray[np.void]:
    """Heads of a batch's records by the names of `_head_type`; `view` begins with the first record and holds them all.
    Hosts are an address and four bytes of port."""
    head_type = _HEADS[(int(view[39]) & HOST_FLAGS) >> 4]
    return _rows(view, batch.offsets - batch.offsets[0], head_type.itemsize, len(view)).view(head_type)


def _starts(view: memoryview, position: int, limit: int) -> Integers:
    """Where records start, by their sizes alone; the last one ends at or before `limit`."""
    found: list[Integers] = []
    probed, chased_max = _PROBE_RECORDS, _CHASE_RECORDS
    unpack_size = _SIZE.unpack_from
    last = limit - SMALLEST_RECORD_BYTES
    while position <= last:
        (size,) = unpack_size(view, position)
        if size < SMALLEST_RECORD_BYTES or position + size > limit:
            break
        # Equal sizes are the rule: see how far they go.
        count = min((limit - position) // size, probed)
        sizes = np.ndarray((count,), dtype=">i4", buffer=view, offset=position, strides=(size,))
        equal = _true_count(sizes == size)
        found.append(np.arange(position, position + equal * size, size, dtype=np.int64))
        position += equal * size
        if equal == count:
            probed *= 2
            continue
        probed = _PROBE_RECORDS
        if equal >= _CHASE_RECORDS:
            chased_max = _CHASE_RECORDS
            continue
        chased: list[int] = []
        append = chased.append
        for _ in range(chased_max):
            (size,) = unpack_size(view, position)
            if size < SMALLEST_RECORD_BYTES:
                break
            append(position)
            position += size
            if position > last:
                break
        if position > limit:
            position = chased.pop()
        if not chased:
            break
        found.append(np.array(chased, dtype=np.int64))
        # Where sizes differ they go on to.
        chased_max *= 2
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _rows(view: memoryview, starts: Integers, length: int, limit: int) -> npt.NDArray[np.void]:
    """Copies view[start : start + length] for each start; length > 0, all within `limit`."""
    count, stride = len(starts), _stride(starts)
    if stride:
        # Records of equal size, the usual case: a view with such steps is copied in half the time.
        matrix = np.ndarray((count, length), np.uint8, view, int(starts[0]), (stride, 1))
        return np.ascontiguousarray(matrix).view(f"V{length}").ravel()
    everywhere = np.ndarray((limit - length + 1,), dtype=f"V{length}", buffer=view, strides=(1,))
    return everywhere[starts]


def _stride(starts: Integers) -> int:
    """The distance from each start to the next, if it is the same for all; else 0, and for a single one."""
    count = len(starts)
    stride = int(starts[-1] - starts[0]) // (count - 1) if count > 1 else 0
    return stride if stride > 0 and (starts[1:] - starts[:-1] == stride).all() else 0


def _matrix(view: memoryview, starts: Integers, length: int, limit: int) -> Bytes:
    """The same as a matrix of bytes."""
    return _rows(view, starts, length, limit).view(np.uint8).reshape(len(starts), length)


def _true_count(conditions: Flags) -> int:
    """How many are true before the first that is not."""
    if conditions.all():
        return len(conditions)
    return int(conditions.argmin())


def _sound_bodies(view: memoryview, starts: Integers, ends: Integers, stored: npt.NDArray[Any]) -> int:
    """How many bodies match their CRC before the first that does not."""
    # By way of an array: it takes integers of Python three times as fast as numpy does.
    found = np.frombuffer(array("I", starmap(crc32, _bodies(view, starts, ends))), dtype=np.uint32)
    return _true_count(found & np.uint32(CRC_MASK) == stored)


def _bodies(view: memoryview, starts: Integers, ends: Integers) -> Iterator[tuple[memoryview | bytes]]:
    """Each body, alone in a tuple."""
    count, length, stride = len(starts), int((ends[:1] - starts[:1]).sum()), _stride(starts)
    if not stride or length > _COPIED_BODY_BYTES_MAX or not (ends - starts == length).all():
        return zip(map(view.__getitem__, map(slice, starts.tolist(), ends.tolist())))
    # Records of equal size: cutting copies out of them takes a quarter less time than slicing does, check included.
    first, last = int(starts[0]), int(starts[-1])
    cut = Struct(f"{length}s{stride - length}x").iter_unpack(view[first : first + (count - 1) * stride])
    return chain(cut, [(view[last : last + length],)])


def _topics(view: memoryview, starts: Integers, lengths: Integers, limit: int) -> tuple[Integers, list[str]]:
    """For each row the index of its topic, and the topics."""
    topic_of = np.zeros(len(starts), dtype=np.int64)
    if not len(starts):
        return topic_of, []
    first, length = int(starts[0]), int(lengths[0])
    first_topic = bytes(view[first : first + length])
    if (lengths == length).all():
        if not length:
            return topic_of, [""]
        rows = _matrix(view, starts, length, limit)
        if (rows == rows[0]).all():
            return topic_of, [str(first_topic, "utf-8", "replace")]
    # By text, not by bytes: what is not UTF-8 is read with replacements, and may then be the same topic.
    index_of: dict[str, int] = {}
    for length in np.flatnonzero(np.bincount(lengths)).tolist():
        left = np.flatnonzero(lengths == length)
        if not length:
            topic_of[left] = index_of.setdefault("", len(index_of))
            continue
        rows = _matrix(view, starts[left], length, limit)
        for _ in range(_FEW_VALUES):
            is_same = (rows == rows[0]).all(axis=1)
            topic_of[left[is_same]] = index_of.setdefault(str(rows[0].tobytes(), "utf-8", "replace"), len(index_of))
            left, rows = left[~is_same], rows[~is_same]
            if not len(left):
                break
        known: dict[bytes, int] = {}
        for row, raw in zip(left.tolist(), rows):
            text = raw.tobytes()
            index = known.get(text)
            if index is None:
                index = known[text] = index_of.setdefault(str(text, "utf-8", "replace"), len(index_of))
            topic_of[row] = index
    return topic_of, list(index_of)


def _common_topics(topic_of: Integers, topics: list[str], *, with_zeros: bool) -> int:
    """How many rows come before the first whose topic is not for a batch."""
    count = len(topic_of)
    for index, topic in enumerate(topics):
        if topic == SCHEDULE_TOPIC or (not with_zeros and "\0" in topic):
            count = min(count, int((topic_of == index).argmax()))
    return count


class _Template:
    """The layout of a property string: in which columns its values are."""

    __slots__ = ("ascii_mask", "fixed_mask", "key_columns", "low_count", "tag_columns", "words_columns")

    def __init__(self, raw: bytes) -> None:
        fixed = bytearray(b"\xff" * len(raw))
        ascii_only = bytearray(len(raw))
        columns: dict[bytes, slice] = {}
        start = 0
        for pair in raw.split(b"\x02"):
            name, separator, value = pair.partition(b"\x01")
            if name and value:
                value_start = start + len(name) + len(separator)
                columns[name] = slice(value_start, value_start + len(value))
                fixed[columns[name]] = bytes(len(value))
            start += len(pair) + 1
        self.tag_columns = columns.get(PROPERTY_TAGS.encode())
        self.words_columns = columns.get(PROPERTY_KEYS.encode())
        self.key_columns: list[slice] = []
        unique = columns.get(PROPERTY_UNIQUE_KEY.encode())
        if unique is not None:
            self.key_columns.append(unique)
        if self.words_columns is not None:
            word_start = self.words_columns.start
            for word in raw[self.words_columns].split(b" "):
                if word:
                    self.key_columns.append(slice(word_start, word_start + len(word)))
                word_start += len(word) + 1
        for key in self.key_columns:
            ascii_only[key] = b"\x80" * (key.stop - key.start)
        self.fixed_mask = np.frombuffer(fixed, dtype=np.uint8)
        self.ascii_mask = np.frombuffer(ascii_only, dtype=np.uint8)
        self.low_count = sum(low <= _LOWEST_VALUE_BYTE for low, is_fixed in zip(raw, fixed) if is_fixed)

    def fits(self, rows: Bytes) -> Flags | None:
        """Which rows have this layout; None: all of them. `rows[0]` is what the template was made from."""
        count, length = rows.shape
        # Block by block, flat: a row is too short for numpy's inner loop, and a block fits the processor's cache.
        block_rows = min(count, max(1, _BLOCK_BYTES // length))
        fixed = np.tile(self.fixed_mask, block_rows)
        first = (np.tile(rows[0], block_rows) & fixed).tobytes()
        flat = rows.ravel()
        low_count = highest = 0
        for start in range(0, count * length, block_rows * length):
            block = flat[start : start + block_rows * length]
            size = len(block)
            # As bytes: comparing them is one call of memcmp.
            if (block & fixed[:size]).tobytes() != first[:size]:
                return self._fitting(rows)
            low_count += int(np.count_nonzero(block <= _LOWEST_VALUE_BYTE))
            highest = max(highest, int(block.max()))
        if highest >= _ASCII_LIMIT and any((rows[:, columns] >= _ASCII_LIMIT).any() for columns in self.key_columns):
            return self._fitting(rows)
        # Low bytes in the fixed columns are all equal then, so any in a value makes the sum too large.
        if low_count != count * self.low_count:
            return self._fitting(rows)
        if self.words_columns is not None and not self._have_equal_spaces(rows).all():
            return self._fitting(rows)
        return None

    def _fitting(self, rows: Bytes) -> Flags:
        differences = rows ^ rows[0]
        differences &= self.fixed_mask
        differences |= rows & self.ascii_mask
        is_fit: Flags = ~differences.any(axis=1)
        is_fit &= (rows <= _LOWEST_VALUE_BYTE).sum(axis=1) == self.low_count
        if self.words_columns is not None:
            is_fit &= self._have_equal_spaces(rows).all(axis=1)
        return is_fit

    def _have_equal_spaces(self, rows: Bytes) -> Flags:
        """Where KEYS falls into words, compared with the first row's."""
        assert self.words_columns is not None
        spaces = rows[:, self.words_columns] == _SPACE
        same: Flags = spaces == spaces[0]
        return same


class _Terms:
    """What a batch is filtered and found by: tags codes and index hashes, read from the property strings."""

    def __init__(self, view: memoryview, limit: int, topic_of: Integers, topics: list[str]) -> None:
        self._view = view
        self._limit = limit
        self._topic_of = topic_of
        self._topics = topics
        # The hash of a topic that occurs in no row before the batch's end is never used.
        self._topic_hashes = np.array([java_hash(f"{topic}#") & 0xFFFF_FFFF for topic in topics], dtype=np.uint32)
        self.tags_codes = np.zeros(len(topic_of), dtype=np.int64)
        self._entries: list[tuple[Integers, int, Integers]] = []

    def read(self, starts: Integers, lengths: Integers, *, with_zeros: bool) -> int:
        """Reads every row's property string; returns how many rows may stay in the batch."""
        count = len(starts)
        left = np.flatnonzero(lengths)
        for _ in range(_TEMPLATES_MAX):
            if not len(left):
                return count
            length = int(lengths[left[0]])
            is_equal = lengths[left] == length
            rows = left[is_equal]
            matrix = _matrix(self._view, starts[rows], length, self._limit)
            first = matrix[0].tobytes()
            template = _Template(first)
            # A zero anywhere: no usual text, and what is to become of it is decided row by row.
            is_fit = template.fits(matrix) if b"\0" not in first else np.zeros(len(rows), dtype=np.bool_)
            if is_fit is None:
                self._enter(template, rows, matrix)
                left = left[~is_equal]
                continue
            if not is_fit[0]:
                # The layout's own first row breaks its rules, a letter beyond ASCII in a key for instance.
                is_fit[:] = False
                is_fit[0] = True
                count = min(count, self._enter_alone(rows[:1], starts, lengths, with_zeros=with_zeros))
            else:
                self._enter(template, rows[is_fit], matrix[is_fit])
            is_equal[is_equal] = is_fit
            left = left[~is_equal]
        return min(count, self._enter_alone(left, starts, lengths, with_zeros=with_zeros))

    def index_entries(self, count: int) -> tuple[Integers, Integers]:
        """Rows and hashes of all entries of the first `count` rows, in the order in which they are entered."""
        if not self._entries:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        ranks = max(rank for _, rank, _ in self._entries) + 1
        # Every row of the batch, and none behind the end that a row which may not be in it made of the batch.
        if all(len(rows) == count == rows[-1] + 1 for rows, _, _ in self._entries) and len(self._entries) == ranks:
            hashes = np.stack([hashes for _, _, hashes in self._entries], axis=1).ravel()
            return np.repeat(np.arange(count, dtype=np.int64), ranks), hashes
        places = np.concatenate([rows * ranks + rank for rows, rank, _ in self._entries])
        hashes = np.concatenate([hashes for _, _, hashes in self._entries])
        order = np.argsort(places)
        records = places[order] // ranks
        kept = int(np.searchsorted(records, count))
        return records[:kept], hashes[order][:kept]

    def _enter(self, template: _Template, rows: Integers, matrix: Bytes) -> None:
        topic_hashes = self._topic_hashes[self._topic_of[rows]] if len(self._topics) > 1 else self._topic_hashes
        for rank, columns in enumerate(template.key_columns):
            length = columns.stop - columns.start
            if length > _KEY_UNITS_MAX:
                hashes = self._long_key_hashes(rows, matrix[:, columns])
            else:
                summed = _java_hashes(matrix[:, columns])
                summed += topic_hashes * _WEIGHTS[_KEY_UNITS_MAX - length]
                hashes = _without_sign(summed)
            self._entries.append((rows, rank, hashes))
        if template.tag_columns is not None:
            self._enter_tags(rows, matrix[:, template.tag_columns], rank=len(template.key_columns))

    def _enter_tags(self, rows: Integers, values: Bytes, *, rank: int) -> None:
        """The tags of rows of one layout: few different ones, as a rule."""
        width = values.shape[1]
        if width <= _INTEGER_BYTES:
            padded = np.zeros((len(rows), _INTEGER_BYTES), dtype=np.uint8)
            padded[:, :width] = values
            found, tag_of = _distinct(padded.view(np.uint64).ravel())
            tags = [str(value.tobytes()[:width], "utf-8", "replace") for value in found]
        elif (values == values[0]).all():
            tags = [str(values[0].tobytes(), "utf-8", "replace")]
            tag_of = np.zeros(len(rows), dtype=np.int64)
        else:
            found, tag_of = np.unique(np.ascontiguousarray(values).view(f"S{width}").ravel(), return_inverse=True)
            tags = [str(value, "utf-8", "replace") for value in found.tolist()]
        self.tags_codes[rows] = np.array([tags_code(tag) for tag in tags], dtype=np.int64)[tag_of]
        if len(self._topics) == 1:
            pairs, pair_of = np.arange(len(tags), dtype=np.int64), tag_of
        else:
            pairs, pair_of = np.unique(self._topic_of[rows] * len(tags) + tag_of, return_inverse=True)
        hashes = [tag_hash(self._topics[pair // len(tags)], tags[pair % len(tags)]) for pair in pairs.tolist()]
        self._entries.append((rows, rank, np.array(hashes, dtype=np.int64)[pair_of]))

    def _long_key_hashes(self, rows: Integers, values: Bytes) -> Integers:
        topics = [self._topics[index] for index in self._topic_of[rows].tolist()]
        hashes = [key_hash(topic, str(value.tobytes(), "ascii")) for topic, value in zip(topics, values)]
        return np.array(hashes, dtype=np.int64)

    def _enter_alone(self, rows: Integers, starts: Integers, lengths: Integers, *, with_zeros: bool) -> int:
        """Rows one by one; returns the first that may not be in the batch, else the number of all rows."""
        for row in rows.tolist():
            start = int(starts[row])
            raw = bytes(self._view[start : start + int(lengths[row])])
            if not with_zeros and b"\0" in raw:
                return int(row)
            tag, keys = index_terms(decode_properties(raw))
            topic = self._topics[int(self._topic_of[row])]
            hashes = [key_hash(topic, key) for key in keys]
            if tag:
                self.tags_codes[row] = tags_code(tag)
                hashes.append(tag_hash(topic, tag))
            place = np.array([row], dtype=np.int64)
            for rank, hashed in enumerate(hashes):
                self._entries.append((place, rank, np.array([hashed], dtype=np.int64)))
        return len(starts)


def _distinct(values: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], Integers]:
    """Different values, and for each row the index of its own: np.unique, but for their order, and without its sort."""
    index_of = np.zeros(len(values), dtype=np.int64)
    found = [values[0]]
    is_new = values != values[0]
    while is_new.any():
        if len(found) == _FEW_VALUES:
            return np.unique(values, return_inverse=True)
        value = values[is_new.argmax()]
        has_value = values == value
        index_of[has_value] = len(found)
        found.append(value)
        is_new &= ~has_value
    return np.array(found, dtype=np.uint64), index_of


def _java_hashes(texts: Bytes) -> npt.NDArray[np.uint32]:
    """Java's hash of each row, which is ASCII.

    Eight letters at a time, in lanes of one integer: neighbours are joined to pairs, those to fours, those to eight.
    """
    count, length = texts.shape
    words = -(-length // _INTEGER_BYTES)
    padded = np.zeros((count, words * _INTEGER_BYTES), dtype=np.uint8)
    padded[:, words * _INTEGER_BYTES - length :] = texts  # Zeros in front add nothing.
    lanes = padded.view("<u8")
    lanes = (lanes & _BYTE_LANES) * np.uint64(31) + (lanes >> np.uint64(8) & _BYTE_LANES)
    lanes = (lanes & _PAIR_LANES) * np.uint64(31**2) + (lanes >> np.uint64(16) & _PAIR_LANES)
    lanes = (lanes & _FOUR_LANE) * np.uint64(31**4) + (lanes >> np.uint64(32))
    hashes = lanes.astype(np.uint32)
    summed = hashes[:, 0]
    for word in range(1, words):
        summed = summed * _EIGHT_UNITS + hashes[:, word]
    return summed


def _without_sign(hashes: npt.NDArray[np.uint32]) -> Integers:
    """See index_file: Java's Math.abs, and 0 for the one value that has no counterpart."""
    return np.abs(hashes.view(np.int32).astype(np.int64)) & 0x7FFF_FFFF


# Dispatch of a batch. It leaves what dispatching its records one by one would leave, byte for byte.

_Run: TypeAlias = tuple[str, int, Integers | slice]
"""Topic, queue id and rows, in log order."""

_ENTRIES: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert _ENTRIES.itemsize == ENTRY.size
_RUN_ROWS_MIN: Final = 24
"""With so many records of a queue their entries are made as columns: they share some ten calls of numpy, 6 µs.
One by one they cost 0.3 µs each."""


def enter_batch(batch: RecordBatch, queues: ConsumeQueueTable, index: IndexTable | None) -> None:
    """Enters records into their ConsumeQueues and into the index.

    DiskFull: something could not be written out; all entries of queues are in memory, and what comes next has no room.
    """
    runs = _by_queue(batch)
    no_room = _enter_each(batch, queues) if runs is None else _enter_runs(batch, runs, queues)
    enter_batch_into_index(batch, index)
    if no_room is not None:
        raise no_room


def _enter_each(batch: RecordBatch, queues: ConsumeQueueTable) -> DiskFull | None:
    """Record by record. Returns what could not be written out, if anything; the entry is in memory then."""
    no_room: DiskFull | None = None
    for topic, queue_id, queue_offset, physical_offset, size, code in zip(
        batch.topic_of.tolist(),
        batch.queue_ids.tolist(),
        batch.queue_offsets.tolist(),
        batch.offsets.tolist(),
        batch.sizes.tolist(),
        batch.tags_codes.tolist(),
    ):
        try:
            queues.get_or_create(batch.topics[topic], queue_id).append(queue_offset, physical_offset, size, code)
        except DiskFull as error:
            no_room = error
    return no_room


def _enter_runs(batch: RecordBatch, runs: Iterable[_Run], queues: ConsumeQueueTable) -> DiskFull | None:
    """Queue by queue, all entries of one at once. Returns as `_enter_each` does."""
    entries = np.empty(len(batch), dtype=_ENTRIES)
    entries["offset"] = batch.offsets
    entries["size"] = batch.sizes
    entries["tags_code"] = batch.tags_codes
    no_room: DiskFull | None = None
    for topic, queue_id, rows in runs:
        queue = queues.get_or_create(topic, queue_id)
        queue_offsets = batch.queue_offsets[rows]
        count = len(queue_offsets)
        first_offset = int(queue_offsets[0])
        own = entries[rows]
        try:
            if int(queue_offsets[-1]) - first_offset == count - 1 and (np.diff(queue_offsets) == 1).all():
                last_offset, last_size, _ = own[-1].tolist()
                if queue.append_run(
                    first_offset, int(own["offset"][0]), own.tobytes(), physical_end=last_offset + last_size
                ):
                    continue
            # A gap, or entries that are there already: the queue knows what to do with each.
            for queue_offset, (physical_offset, size, tags_code) in zip(queue_offsets.tolist(), own.tolist()):
                try:
                    queue.append(queue_offset, physical_offset, size, tags_code)
                except DiskFull as error:
                    no_room = error
        except DiskFull as error:
            no_room = error
    return no_room


def enter_batch_into_index(batch: RecordBatch, index: IndexTable | None) -> None:
    """Enters records into the index alone."""
    if index is not None and len(batch.index_hashes):
        index.put_columns(
            IndexColumns(
                hashes=batch.index_hashes,
                physical_offsets=batch.offsets[batch.index_records],
                store_timestamps_ms=batch.store_timestamps_ms[batch.index_records],
            )
        )


def _by_queue(batch: RecordBatch) -> list[_Run] | None:
    """Each queue that has records in the batch; None: they are too many for so few records."""
    topic_of, queue_ids = batch.topic_of, batch.queue_ids
    first_topic, first_queue = int(topic_of[0]), int(queue_ids[0])
    if len(batch.topics) == 1 and (queue_ids == first_queue).all():
        return [(batch.topics[first_topic], first_queue, slice(None))]
    places = topic_of << 32 | (queue_ids & 0xFFFF_FFFF)
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])).tolist()
    if len(starts) * _RUN_ROWS_MIN > len(order):
        return None
    runs: list[_Run] = []
    for start, end in zip(starts, [*starts[1:], len(order)]):
        rows = order[start:end]
        first = int(rows[0])
        runs.append((batch.topics[int(topic_of[first])], int(queue_ids[first]), rows))
    return runs


# Index entries of many records as columns, written into an IndexFile all at once. Imports numpy: see record_batch.
#
# The bytes are those of entering the records one by one.

_ENTRY_DTYPE: Final = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_SLOT_DTYPE: Final = np.dtype(">i4")
_WAITING: Final = np.dtype("<i8")
_MOST_SECONDS: Final = 0x7FFF_FFFF
_LOW_BITS: Final = 32
_LOW_MASK: Final = (1 << _LOW_BITS) - 1


@dataclass(frozen=True, slots=True)
class IndexColumns:
    """One row an entry, in the order in which they are entered; entries of a record are neighbours."""

    hashes: Integers
    physical_offsets: Integers
    """Ascending."""
    store_timestamps_ms: Integers

    @classmethod
    def of_records(cls, hashes: bytes, records: bytes) -> IndexColumns:
        """The entries of records in log order: all their hashes; and of each record how many are its, where and when it
        was stored. Numbers of 8 bytes, little-endian."""
        columns = np.frombuffer(records, dtype=_WAITING).reshape(-1, 3)
        repeats = columns[:, 0]
        return cls(
            np.frombuffer(hashes, dtype=_WAITING), np.repeat(columns[:, 1], repeats), np.repeat(columns[:, 2], repeats)
        )

    def __len__(self) -> int:
        return len(self.hashes)

    def part(self, start: int, end: int) -> IndexColumns:
        """Rows [start, end)."""
        return IndexColumns(
            self.hashes[start:end], self.physical_offsets[start:end], self.store_timestamps_ms[start:end]
        )

    def first_from(self, physical_offset: int) -> int:
        """The first row of a record that starts at or behind `physical_offset`."""
        return int(np.searchsorted(self.physical_offsets, physical_offset, side="left"))

    def record_start(self, row: int) -> int:
        """The first row of the record that `row` belongs to; the number of rows for that number."""
        return self.first_from(int(self.physical_offsets[row])) if row < len(self) else row

    def record_end(self, row: int) -> int:
        """The row behind the last one of the record that `row` belongs to."""
        return int(np.searchsorted(self.physical_offsets, int(self.physical_offsets[row]), side="right"))

    def write(
        self,
        view: memoryview,
        *,
        slots_start: int,
        slot_count: int,
        entries_start: int,
        first_entry: int,
        begin_timestamp_ms: int,
    ) -> int:
        """Writes entries and then slots; returns how many slots came into use. See index_file for the layout."""
        count = len(self)
        slots = np.ndarray((slot_count,), dtype=_SLOT_DTYPE, buffer=view, offset=slots_start)
        slot_of = self.hashes % slot_count
        numbers = np.arange(first_entry, first_entry + count, dtype=np.int64)
        previous = slots[slot_of].astype(np.int64)
        # By slot and then by row, in one sort of integers: the fastest there is.
        ordered = np.sort(slot_of << _LOW_BITS | np.arange(count, dtype=np.int64))
        order, ordered_slots = ordered & _LOW_MASK, ordered >> _LOW_BITS
        follows = ordered_slots[1:] == ordered_slots[:-1]
        previous[order[1:][follows]] = numbers[order[:-1][follows]]
        is_first_ever = (previous <= 0) | (previous >= numbers)
        previous[is_first_ever] = 0
        entries = np.ndarray(
            (count,),
            dtype=_ENTRY_DTYPE,
            buffer=view,
            offset=entries_start + first_entry * _ENTRY_DTYPE.itemsize,
        )
        entries["hash"] = self.hashes
        entries["offset"] = self.physical_offsets
        entries["seconds"] = self._seconds_since(begin_timestamp_ms)
        entries["previous"] = previous
        is_last = np.append(~follows, True)
        slots[ordered_slots[is_last]] = numbers[order[is_last]]
        return int(np.count_nonzero(is_first_ever))

    def _seconds_since(self, begin_timestamp_ms: int) -> Integers:
        if begin_timestamp_ms <= 0:
            return np.zeros(len(self), dtype=np.int64)
        return np.clip((self.store_timestamps_ms - begin_timestamp_ms) // 1000, 0, _MOST_SECONDS)
