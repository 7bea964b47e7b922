"""The CommitLog of one replica, a row for each record.

Reads like the audit does: through `ReplicaStore`, from a folder, an object store or a running broker, and over damage
to the next record. What is no record has no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import xxhash
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from consistency.data_sources.pushed_filters import PushedFilters
from consistency.data_sources.remembering_files import RememberingFiles
from consistency.data_sources.store_options import StoreOptions
from consistency.source_files.sources import open_source
from mqcore.audit.findings import extents_of
from mqcore.audit.log_walk import LogPiece, PieceKind, walk_log
from mqcore.audit.replica_store import ReplicaFacts, ReplicaStore
from mqcore.message.properties import decode_properties
from mqcore.message.property_names import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY
from mqcore.message.record import offset_message_id
from mqcore.message.record_decoder import RecordFound, decode_record, scan_record
from mqcore.replication.log_history import LogRange

__all__ = ["COMMIT_LOG_SCHEMA", "CommitLogSource"]

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


class CommitLogReader(DataSourceReader):
    """Plans and reads one query."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._filters = PushedFilters()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """See DataSourceReader; all filters stay Spark's, see pushed_filters."""
        self._filters.take(filters)
        return filters

    def partitions(self) -> list[_Part]:
        """Parts of the log, cut at absolute multiples of `partitionBytes`. Files of other times are left out."""
        with open_source(self._options.spec) as source:
            facts = source.facts()
            store = ReplicaStore(source.files, facts)
            wanted = self._wanted_files(store) if facts.end_offset > facts.min_offset else []
        offsets = self._filters.physical_offset
        values = facts.to_json()
        return [
            _Part(part.start_offset, part.end_offset, values)
            for log_range in wanted
            for part in extents_of(log_range, self._options.partition_bytes)
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

    def _wanted_files(self, store: ReplicaStore) -> list[LogRange]:
        """CommitLog files whose records may have been stored at a wanted time: those times never fall along the log."""
        facts = store.facts
        files = list(extents_of(LogRange(facts.min_offset, facts.end_offset), facts.segment_bytes))
        times = self._filters.store_timestamp_ms
        if times.low is None and times.high is None:
            return files
        first_ms = [_first_timestamp_ms(store, file.start_offset) for file in files]
        wanted = []
        for number, file in enumerate(files):
            first = first_ms[number]
            later = next((found for found in first_ms[number + 1 :] if found is not None), None)
            is_too_late = first is not None and times.high is not None and first > times.high
            is_too_early = later is not None and times.low is not None and later < times.low
            if not (is_too_late or is_too_early):
                wanted.append(file)
        return wanted


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


def _first_timestamp_ms(store: ReplicaStore, offset: int) -> int | None:
    """When the first record of a file was stored; None if none can be read there."""
    head = store.read_log(offset, min(offset + 8, store.facts.end_offset))
    size = int.from_bytes(head[:4], "big")
    end = min(offset + max(size, 8), store.segment_end(offset), store.facts.end_offset)
    view = store.read_log(offset, end)
    found = scan_record(view, 0, len(view), physical_offset=offset, check_crc=False)
    return found.store_timestamp_ms if isinstance(found, RecordFound) else None
