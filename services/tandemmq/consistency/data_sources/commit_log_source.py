"""The CommitLog of one replica, a row for each record.

Reads like the audit does: through `ReplicaStore`, from a folder, an object store or a running broker, and over damage
to the next record. What is no record has no row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

import pyarrow as pa
import xxhash
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from tandemmq.consistency.source_files.posix_files import ReadMode, SourceSpec, parse_source
from tandemmq.consistency.source_files.sources import open_source
from tandemmq.core.audit.findings import extents_of
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.replica_store import ReplicaFacts, ReplicaFiles, ReplicaStore, StoreEntry
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.property_names import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY
from tandemmq.core.message.record import offset_message_id
from tandemmq.core.message.record_decoder import RecordFound, decode_record
from tandemmq.core.replication.log_history import LogRange

__all__ = [
    "COMMIT_LOG_SCHEMA",
    "Bounds",
    "CommitLogSource",
    "FilteredReader",
    "OptionsRefused",
    "PushedFilters",
    "RememberingFiles",
    "StoreOptions",
]


# What the filters of a query say about where its rows may lie.
#
# Filters only narrow what is read; Spark still applies each of them to the rows that come. So a filter that is not
# understood costs time and never a wrong answer.


@dataclass(slots=True)
class Bounds:
    """Values that a column may have; both ends included. None: no limit."""

    low: int | None = None
    high: int | None = None

    def admit(self, first: int, last: int) -> bool:
        """Whether a value in [first, last] may be one."""
        return (self.low is None or last >= self.low) and (self.high is None or first <= self.high)

    def raise_low(self, value: int) -> None:
        """No value below it."""
        self.low = value if self.low is None else max(self.low, value)

    def lower_high(self, value: int) -> None:
        """No value above it."""
        self.high = value if self.high is None else min(self.high, value)


@dataclass(slots=True)
class PushedFilters:
    """The filters of one query, as far as they help."""

    physical_offset: Bounds = field(default_factory=Bounds)
    store_timestamp_ms: Bounds = field(default_factory=Bounds)
    queue_offset: Bounds = field(default_factory=Bounds)
    topics: frozenset[str] | None = None
    """None: all."""
    queue_ids: frozenset[int] | None = None

    def take(self, filters: Iterable[Filter]) -> None:
        """Narrows by these; they hold all at once."""
        for one in filters:
            column: tuple[str, ...] = getattr(one, "attribute", ())
            if len(column) == 1:
                self._take(column[0], one)

    def admits(self, topic: str, queue_id: int) -> bool:
        """Whether rows of a queue are wanted."""
        return (self.topics is None or topic in self.topics) and (self.queue_ids is None or queue_id in self.queue_ids)

    def _take(self, column: str, one: Filter) -> None:
        values = _values(one)
        if column == "topic" and values is not None:
            self.topics = _narrowed(self.topics, values)
        elif column == "queue_id" and values is not None:
            self.queue_ids = _narrowed(self.queue_ids, values)
        elif column == "physical_offset":
            _narrow(self.physical_offset, one)
        elif column == "queue_offset":
            _narrow(self.queue_offset, one)
        elif column == "store_timestamp":
            _narrow(self.store_timestamp_ms, one)


def _values(one: Filter) -> frozenset[Any] | None:
    """The only values that pass, if the filter says them."""
    if isinstance(one, EqualTo):
        return frozenset([one.value])
    return frozenset(one.value) if isinstance(one, In) else None


def _narrowed(known: frozenset[Any] | None, values: frozenset[Any]) -> frozenset[Any]:
    return values if known is None else known & values


def _narrow(bounds: Bounds, one: Filter) -> None:
    # Moments are cut to whole milliseconds: a bound that is one too wide costs nothing.
    if isinstance(one, (EqualTo, GreaterThan, GreaterThanOrEqual)):
        bounds.raise_low(_as_number(one.value))
    if isinstance(one, (EqualTo, LessThan, LessThanOrEqual)):
        bounds.lower_high(_as_number(one.value))


def _as_number(value: Any) -> int:
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1_000)
    return int(value)


# Files of which the last large piece is kept: whoever read it looks at every record in it once more.

_LARGE_BYTES: Final = 64 << 10


class RememberingFiles:
    """`ReplicaFiles` around others."""

    def __init__(self, files: ReplicaFiles) -> None:
        self._files = files
        self._path = ""
        self._offset = 0
        self._data = memoryview(b"")

    def list_folder(self, path: str) -> list[StoreEntry]:
        """See ReplicaFiles."""
        return self._files.list_folder(path)

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        """See ReplicaFiles."""
        if path == self._path and self._offset <= offset and offset + length <= self._offset + len(self._data):
            return self._data[offset - self._offset : offset - self._offset + length]
        data = memoryview(self._files.read(path, offset, length))
        if length >= _LARGE_BYTES:
            self._path, self._offset, self._data = path, offset, data
        return data


# What both tables are told: which replica, and by which parts it is read.

_DEFAULT_PARTITION_BYTES: Final = 256 << 20
_SMALLEST_PARTITION_BYTES: Final = 1 << 20
_BOOLEANS: Final = {"true": True, "false": False}


class OptionsRefused(ValueError):
    """An option of the table is missing or wrong; the text says which and what would be right."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of `spark.read`, judged."""

    spec: SourceSpec
    partition_bytes: int
    with_body: bool

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From what was written; names count in any case. Raises OptionsRefused."""
        given = {name.lower(): value for name, value in options.items()}
        place = given.get("path", "")
        if not place:
            raise OptionsRefused("say which replica: .load('/data/broker-a'), a URI, or 'broker://host:port'")
        broker_id = _number(given, "brokerid", 0)
        if "://" not in place:
            # Executors on this machine may stand in another folder.
            place = os.path.abspath(place)
        group = given.get("group", "") or os.path.basename(place.rstrip("/")) or "store"
        mode = given.get("readmode", ReadMode.DIRECT)
        if mode not in set(ReadMode):
            raise OptionsRefused(f"readMode={mode}: choose one of {', '.join(ReadMode)}")
        spec = parse_source(f"{group}/{broker_id}={place}")
        return cls(
            spec=SourceSpec(spec.group, spec.broker_id, spec.kind, spec.location, ReadMode(mode)),
            partition_bytes=max(_SMALLEST_PARTITION_BYTES, _number(given, "partitionbytes", _DEFAULT_PARTITION_BYTES)),
            with_body=_boolean(given, "body", default=False),
        )


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default))
    if not text.isdecimal():
        raise OptionsRefused(f"{name}={text}: write a number")
    return int(text)


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in _BOOLEANS:
        raise OptionsRefused(f"{name}={text}: write true or false")
    return _BOOLEANS[text]


_COLUMNS: Final = (
    ("group", pa.string(), "string"),
    ("broker_id", pa.int32(), "int"),
    ("physical_offset", pa.int64(), "bigint"),
    ("size", pa.int32(), "int"),
    ("topic", pa.string(), "string"),
    ("queue_id", pa.int32(), "int"),
    ("queue_offset", pa.int64(), "bigint"),
    ("message_id", pa.string(), "string"),
    ("offset_message_id", pa.string(), "string"),
    ("tags", pa.string(), "string"),
    ("keys", pa.list_(pa.string()), "array<string>"),
    ("properties", pa.map_(pa.string(), pa.string()), "map<string,string>"),
    ("store_timestamp", pa.timestamp("us", tz="UTC"), "timestamp"),
    ("born_timestamp", pa.timestamp("us", tz="UTC"), "timestamp"),
    ("born_host", pa.string(), "string"),
    ("store_host", pa.string(), "string"),
    ("sys_flag", pa.int32(), "int"),
    ("flag", pa.int32(), "int"),
    ("reconsume_times", pa.int32(), "int"),
    ("prepared_transaction_offset", pa.int64(), "bigint"),
    ("body_crc", pa.int64(), "bigint"),
    ("body_crc_ok", pa.bool_(), "boolean"),
    ("body_bytes", pa.int32(), "int"),
    ("xxh3_64", pa.int64(), "bigint"),
)
_BODY_COLUMN: Final = ("body", pa.binary(), "binary")
COMMIT_LOG_SCHEMA: Final = ", ".join(f"`{name}` {sql}" for name, _, sql in _COLUMNS)
"""Without the body."""

_BATCH_ROWS: Final = 4_096
_BATCH_BYTES: Final = 32 << 20
_RECORDS: Final = (PieceKind.RECORD, PieceKind.BAD_BODY)
_SIGN: Final = 1 << 63
_LAST_MS: Final = 253_402_300_799_999
"""Of the year 9999, the last that SQL and Python know."""


class CommitLogSource(DataSource):
    """`spark.read.format("commitlog")`."""

    @classmethod
    def name(cls) -> str:
        """See DataSource."""
        return "commitlog"

    def schema(self) -> str:
        """See DataSource."""
        options = StoreOptions.of(self.options)
        return f"{COMMIT_LOG_SCHEMA}, `body` binary" if options.with_body else COMMIT_LOG_SCHEMA

    def reader(self, schema: object) -> CommitLogReader:
        """See DataSource."""
        return CommitLogReader(StoreOptions.of(self.options))


@dataclass
class _Part(InputPartition):
    """Records that start in [start_offset, end_offset), of a replica that was described once for all parts."""

    start_offset: int
    end_offset: int
    facts: Mapping[str, Any]


class FilteredReader(DataSourceReader):
    """Plans and reads one query, less than all of it where the query's filters allow."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._filters = PushedFilters()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """See DataSourceReader; all filters stay Spark's, see `PushedFilters`."""
        self._filters.take(filters)
        return filters


class CommitLogReader(FilteredReader):
    """Of the CommitLog."""

    def partitions(self) -> list[_Part]:
        """Parts of the log, cut at absolute multiples of `partitionBytes`.

        No part is left out for its records' times: they may be damaged, or of a clock that was set back, and only who
        reads a record knows.
        """
        with open_source(self._options.spec) as source:
            facts = source.facts()
        offsets = self._filters.physical_offset
        values = facts.to_json()
        return [
            _Part(part.start_offset, part.end_offset, values)
            for part in extents_of(LogRange(facts.min_offset, facts.end_offset), self._options.partition_bytes)
            if offsets.admit(part.start_offset, part.end_offset - 1)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of rows, in the order of the log."""
        if not isinstance(partition, _Part):
            return  # Where there is no partition Spark asks for none.
        facts = ReplicaFacts.from_json(dict(partition.facts))
        with open_source(self._options.spec) as source:
            store = ReplicaStore(RememberingFiles(source.files), facts)
            batch = _Batch(facts, with_body=self._options.with_body)
            for piece in walk_log(store, partition.start_offset, partition.end_offset, in_batches=False):
                assert isinstance(piece, LogPiece), "not in batches"
                if piece.kind in _RECORDS and piece.record is not None and self._is_wanted(piece.record):
                    batch.add(store.read_log(piece.start_offset, piece.end_offset), piece)
                    if batch.is_full:
                        yield batch.take()
            if len(batch):
                yield batch.take()

    def _is_wanted(self, record: RecordFound) -> bool:
        filters = self._filters
        return (
            filters.admits(record.topic, record.queue_id)
            and filters.physical_offset.admit(record.physical_offset, record.physical_offset)
            and filters.queue_offset.admit(record.queue_offset, record.queue_offset)
            and filters.store_timestamp_ms.admit(record.store_timestamp_ms, record.store_timestamp_ms)
        )


class _Batch:
    """Rows on their way into Arrow, as columns."""

    def __init__(self, facts: ReplicaFacts, *, with_body: bool) -> None:
        self._facts = facts
        self._with_body = with_body
        columns = (*_COLUMNS, _BODY_COLUMN) if with_body else _COLUMNS
        self._schema = pa.schema([(name, kind) for name, kind, _ in columns])
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether it should be taken now."""
        return len(self._rows) >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES

    def add(self, view: memoryview, piece: LogPiece) -> None:
        """The record whose bytes are `view`."""
        record = decode_record(view, check_crc=False)
        properties = decode_properties(record.properties)
        offset_id = offset_message_id(record.store_host, record.physical_offset)
        digest = xxhash.xxh3_64_intdigest(view)
        row = (
            self._facts.group,
            self._facts.broker_id,
            record.physical_offset,
            record.total_size,
            record.topic,
            record.queue_id,
            record.queue_offset,
            properties.get(PROPERTY_UNIQUE_KEY) or offset_id,
            offset_id,
            properties.get(PROPERTY_TAGS),
            properties.get(PROPERTY_KEYS, "").split(),
            list(properties.items()),
            _microseconds(record.store_timestamp_ms),
            _microseconds(record.born_timestamp_ms),
            str(record.born_host),
            str(record.store_host),
            record.sys_flag,
            record.flag,
            record.reconsume_times,
            record.prepared_transaction_offset,
            record.body_crc,
            piece.kind is PieceKind.RECORD,
            len(record.body),
            # SQL has no unsigned integers.
            digest - (1 << 64) if digest >= _SIGN else digest,
        )
        self._rows.append((*row, record.body) if self._with_body else row)
        self._bytes += len(view)

    def take(self) -> pa.RecordBatch:
        """All rows; empties it."""
        columns = zip(*self._rows)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, self._schema.types)]
        self._rows.clear()
        self._bytes = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _microseconds(wall_ms: int) -> int | None:
    """Since 1970; None for what is no time: nothing but the body has a checksum, so damage may be in here."""
    return wall_ms * 1_000 if 0 <= wall_ms <= _LAST_MS else None
