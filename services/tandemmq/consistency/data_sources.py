"""The CommitLog of one replica, a row for each record.

Reads like the audit does: through `ReplicaStore`, from a folder, an object store or a running broker, and over damage
to the next record. What is no record has no row, and is not passed over in silence: it is logged, or a row of its own,
or ends the query (option `onDamage`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog
import xxhash
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes

from tandemmq.consistency.discovery import is_store, replicas_in_folders
from tandemmq.consistency.settings import NothingFound
from tandemmq.consistency.source_files.posix_files import ReadMode, SourceSpec, parse_source
from tandemmq.consistency.source_files.sources import open_source
from tandemmq.core.audit.equality import is_empty
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, next_anchor, walk_log, whole_records_end
from tandemmq.core.audit.replica_store import (
    STORE_MARKS,
    ReplicaFacts,
    ReplicaFiles,
    ReplicaStore,
    StoreEntry,
    extents_of,
    known_of_lost_log,
)
from tandemmq.core.message.properties import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
    raw_property,
)
from tandemmq.core.message.record import Host, decode_record, offset_message_id
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.storage.record_batch import RecordBatch, read_heads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log: Final = structlog.get_logger()


# Which rows are read at all. Options say it, not the filters of a query: Spark 4.3 keeps what one query pushed down
# for the next ones that ask the same table, so that they lack rows.


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows that are read; None: of all."""

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    min_offset: int = 0
    max_offset: int = (1 << 63) - 1
    """Records that start in [min_offset, max_offset)."""

    def admits(self, topic: str, queue_id: int) -> bool:
        return (self.topics is None or topic in self.topics) and (self.queue_ids is None or queue_id in self.queue_ids)

    def within(self, held: LogRange) -> LogRange:
        """The part of a log that is wanted; empty: none."""
        start = max(held.start_offset, self.min_offset)
        return LogRange(start, max(start, min(held.end_offset, self.max_offset)))


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
        return self._files.list_folder(path)

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        if path == self._path and self._offset <= offset and offset + length <= self._offset + len(self._data):
            return self._data[offset - self._offset : offset - self._offset + length]
        data = memoryview(self._files.read(path, offset, length))
        if length >= _LARGE_BYTES:
            self._path, self._offset, self._data = path, offset, data
        return data


# What both tables are told: which replicas, which columns, and by which parts they are read.

_DEFAULT_PARTITION_BYTES: Final = 256 << 20
_SMALLEST_PARTITION_BYTES: Final = 1 << 20
_BOOLEANS: Final = {"true": True, "false": False}
_NAME_SERVERS: Final = "nameserver://"


class OnDamage(StrEnum):
    """What becomes of parts of the log that hold no sound record."""

    SKIP = "skip"
    """They are logged."""
    ROWS = "rows"
    """Each has a row."""
    FAIL = "fail"


class DamageFound(RuntimeError):
    """A part of the log holds no sound record, and the query asked for all of it."""


class OptionsRefused(ValueError):
    """An option of the table is missing or wrong; the text says which and what would be right."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of `spark.read` and `spark.readStream`, judged."""

    specs: tuple[SourceSpec, ...]
    """One or more replicas, of one or more broker groups."""
    partition_bytes: int
    with_body: bool
    columns: tuple[str, ...]
    """Those that are made; empty: all."""
    wanted: Wanted
    starts_at_latest: bool
    batch_bytes: int
    """What a micro-batch of a stream holds at most, of each replica; 0: everything."""
    fails_on_data_loss: bool
    on_damage: OnDamage

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From what was written; names count in any case. Raises OptionsRefused."""
        given = {name.lower(): value for name, value in options.items()}
        mode = given.get("readmode", ReadMode.DIRECT)
        if mode not in set(ReadMode):
            raise OptionsRefused(f"readMode={mode}: choose one of {', '.join(ReadMode)}")
        on_damage = given.get("ondamage", OnDamage.SKIP)
        if on_damage not in set(OnDamage):
            raise OptionsRefused(f"onDamage={on_damage}: choose one of {', '.join(OnDamage)}")
        starts = given.get("startingoffsets", "earliest")
        if starts not in ("earliest", "latest"):
            raise OptionsRefused(f"startingOffsets={starts}: choose earliest or latest")
        return cls(
            specs=tuple(replace(spec, read_mode=ReadMode(mode)) for spec in _replicas(given)),
            partition_bytes=max(_SMALLEST_PARTITION_BYTES, _number(given, "partitionbytes", _DEFAULT_PARTITION_BYTES)),
            with_body=_boolean(given, "body", default=False),
            columns=_words(given, "columns"),
            wanted=_wanted(given),
            starts_at_latest=starts == "latest",
            batch_bytes=_number(given, "maxbytespertrigger", 0),
            fails_on_data_loss=_boolean(given, "failondataloss", default=True),
            on_damage=OnDamage(on_damage),
        )

    def picked(self, columns: Sequence[_Column]) -> tuple[_Column, ...]:
        """Those of a table's columns that are asked for, in the table's order. Raises OptionsRefused."""
        if not self.columns:
            return tuple(columns)
        unknown = sorted(set(self.columns) - {name for name, _, _ in columns})
        if unknown:
            names = ", ".join(name for name, _, _ in columns)
            raise OptionsRefused(f"columns={', '.join(unknown)}: there is no such column; there are {names}")
        return tuple(column for column in columns if column[0] in self.columns)


def _replicas(given: Mapping[str, str]) -> list[SourceSpec]:
    """What `path` leads to. `group` and `brokerId` name a single store, and choose among several replicas."""
    places = json.loads(given["paths"]) if given.get("paths") else [given.get("path", "")]
    places = [place.strip() for one in places for place in one.split(";") if place.strip()]
    if not places:
        raise OptionsRefused(
            "say which replica: .load('/data/broker-a'), a URI, 'broker://host:port', the folder of a cluster, or "
            "'nameserver://host:port'"
        )
    is_single = len(places) == 1 and "=" not in places[0] and not places[0].startswith(_NAME_SERVERS)
    if is_single and ("://" in places[0] or not (found := _found_in([places[0]]))):
        place = places[0]
        # Executors on this machine may stand in another folder.
        place = place if "://" in place else os.path.abspath(place)
        group = given.get("group", "") or os.path.basename(place.rstrip("/")) or "store"
        return [parse_source(f"{group}/{_number(given, 'brokerid', 0)}={place}")]
    if not is_single:
        found = [spec for place in places for spec in _named(place, len(places))]
    groups = _words(given, "group")
    wanted_id = _number(given, "brokerid", 0) if "brokerid" in given else None
    chosen = [
        spec
        for spec in found
        if (not groups or spec.group in groups) and (wanted_id is None or spec.broker_id == wanted_id)
    ]
    if not chosen:
        there = ", ".join(f"{spec.group}/{spec.broker_id}" for spec in found)
        raise OptionsRefused(f"group and brokerId choose none of {there}")
    return chosen


def _found_in(places: Sequence[str]) -> list[SourceSpec]:
    """Replicas below the folder of a cluster; none: it is a store itself, or anything else."""
    if is_store(Path(places[0])):
        return []
    try:
        return list(replicas_in_folders([Path(place) for place in places]).replicas)
    except NothingFound:
        return []


def _named(place: str, count: int) -> list[SourceSpec]:
    if place.startswith(_NAME_SERVERS):
        from tandemmq.consistency.source_files.broker_files import registered_brokers

        return list(registered_brokers(place.removeprefix(_NAME_SERVERS).split(","), cluster="").replicas)
    if "=" not in place:
        if found := _found_in([place]):
            return found
        raise OptionsRefused(f"{place}: of {count} replicas say which each is, as broker-a/0={place}")
    try:
        spec = parse_source(place)
    except ValueError as error:
        raise OptionsRefused(str(error)) from error
    return [spec if "://" in place else replace(spec, location=os.path.abspath(spec.location))]


def _wanted(given: Mapping[str, str]) -> Wanted:
    wanted = Wanted(topics=frozenset(_words(given, "topics")) or None)
    if queue_ids := _words(given, "queueids"):
        if not all(text.isdecimal() for text in queue_ids):
            raise OptionsRefused(f"queueIds={given['queueids']}: write numbers with commas between them")
        wanted = replace(wanted, queue_ids=frozenset(map(int, queue_ids)))
    start, end = _number(given, "minoffset", wanted.min_offset), _number(given, "maxoffset", wanted.max_offset)
    if start > end:
        raise OptionsRefused(f"minOffset={start}: it lies behind maxOffset={end}")
    return replace(wanted, min_offset=start, max_offset=end)


def _words(given: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in given.get(name, "").split(",") if word.strip())


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


_Column: TypeAlias = tuple[str, pa.DataType, str]
"""Name, type in Arrow and in SQL."""


def schema_of(columns: Sequence[_Column]) -> str:
    return ", ".join(f"`{name}` {sql}" for name, _, sql in columns)


_COLUMNS: Final[tuple[_Column, ...]] = (
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
_BODY_COLUMN: Final[_Column] = ("body", pa.binary(), "binary")
_DAMAGE_COLUMN: Final[_Column] = ("damage", pa.string(), "string")
COMMIT_LOG_SCHEMA: Final = schema_of(_COLUMNS)
"""Without the body."""

_BATCH_ROWS: Final = 4_096
_BATCH_BYTES: Final = 32 << 20
_RECORDS: Final = (PieceKind.RECORD, PieceKind.BAD_BODY)
_SIGN: Final = 1 << 63
_INT_MAX: Final = (1 << 31) - 1
_LAST_MS: Final = 253_402_300_799_999
"""Of the year 9999, the last that SQL and Python know."""


class CommitLogSource(DataSource):
    """`spark.read.format("commitlog")` and `spark.readStream.format("commitlog")`."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> str:
        return schema_of(_columns(StoreOptions.of(self.options)))

    def reader(self, schema: object) -> CommitLogReader:
        return CommitLogReader(StoreOptions.of(self.options))

    def streamReader(self, schema: object) -> CommitLogStreamReader:  # noqa: N802
        return CommitLogStreamReader(StoreOptions.of(self.options))


def _columns(options: StoreOptions) -> tuple[_Column, ...]:
    more = [_BODY_COLUMN] if options.with_body else []
    more += [_DAMAGE_COLUMN] if options.on_damage is OnDamage.ROWS else []
    return options.picked((*_COLUMNS, *more))


@dataclass
class _Part(InputPartition):
    """Records of a replica that start in [start_offset, end_offset). It was described once for all parts."""

    start_offset: int
    end_offset: int
    spec: Mapping[str, Any]
    facts: Mapping[str, Any]
    beside: tuple[LogPiece, ...] = ()
    """Damage that lies in no part of the log."""


class CommitLogReader(DataSourceReader):
    def __init__(self, options: StoreOptions) -> None:
        self._options = options

    def partitions(self) -> list[_Part]:
        """Parts of each log, cut at absolute multiples of `partitionBytes`."""
        parts = []
        for spec in self._options.specs:
            facts = facts_of(spec)
            own = _parts(spec, facts, LogRange(facts.min_offset, facts.end_offset), self._options)
            if beside := [] if spec.is_broker else _beside(spec, facts, self._options.wanted):
                own = own or [_Part(0, 0, spec.to_json(), facts.to_json())]
                own[-1].beside = tuple(beside)
            parts += own
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of rows, in the order of the log."""
        return _read(partition, self._options)


class CommitLogStreamReader(DataSourceStreamReader):
    """Of CommitLogs that grow. A place in the stream is an offset by replica, and lies between two records."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        at_latest = self._options.starts_at_latest
        return {
            _key(spec): _last_boundary(spec, facts) if at_latest else facts.min_offset
            for spec in self._options.specs
            for facts in [facts_of(spec)]
        }

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.batch_bytes
        return ReadMaxBytes(limit) if limit else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """See DataSourceStreamReader. The limit is one of each replica."""
        end = dict(start)
        for spec in self._options.specs:
            facts = facts_of(spec)
            boundary = _last_boundary(spec, facts)
            first = max(start.get(_key(spec), facts.min_offset), facts.min_offset)
            if isinstance(limit, ReadMaxBytes):
                boundary = min(boundary, first + limit.max_bytes)
            # A log that is shorter than it was: `partitions` says so.
            end[_key(spec)] = max(boundary, start.get(_key(spec), 0))
        return end

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[_Part]:
        """Parts of what came since. Raises DataLost if it is there no more."""
        parts = []
        for spec in self._options.specs:
            key = _key(spec)
            facts = facts_of(spec)
            first, last = start.get(key, facts.min_offset), end.get(key, 0)
            if self._options.fails_on_data_loss and (first < facts.min_offset or last > facts.end_offset):
                raise DataLost(
                    f"{key} holds [{facts.min_offset}, {facts.end_offset}), and the stream is to read "
                    f"[{first}, {last}): what is missing was deleted, or is on another disk. Begin with a new "
                    "checkpoint, or set failOnDataLoss=false to go on with what there is"
                )
            start_offset = max(first, facts.min_offset)
            came = LogRange(start_offset, max(start_offset, min(last, facts.end_offset)))
            parts += _parts(spec, facts, came, self._options)
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of rows, in the order of each log."""
        return _read(partition, self._options)


class DataLost(RuntimeError):
    """A replica no longer has what a stream is to read."""


def facts_of(spec: SourceSpec) -> ReplicaFacts:
    """What is known of a replica now. Raises ReplicaUnreadable, and OptionsRefused where there is none."""
    with open_source(spec) as source:
        facts = source.facts()
        if not spec.is_broker and is_empty(facts):
            held = {entry.name for entry in source.files.list_folder("")}
            if held.isdisjoint(STORE_MARKS):
                raise OptionsRefused(f"{spec.location} holds no store: name the folder with commitlog/ in it")
        return facts


def _key(spec: SourceSpec) -> str:
    return f"{spec.group}/{spec.broker_id}"


def _last_boundary(spec: SourceSpec, facts: ReplicaFacts) -> int:
    """What begins behind it may still be arriving."""
    with open_source(spec) as source:
        return whole_records_end(ReplicaStore(source.files, facts), facts.end_offset)


def _parts(spec: SourceSpec, facts: ReplicaFacts, held: LogRange, options: StoreOptions) -> list[_Part]:
    told, values, read = spec.to_json(), facts.to_json(), options.wanted.within(held)
    if read.start_offset == read.end_offset:
        return []
    return [
        _Part(part.start_offset, part.end_offset, told, values) for part in extents_of(read, options.partition_bytes)
    ]


_LOOKED_BEHIND_BYTES: Final = 1 << 20


def _beside(spec: SourceSpec, facts: ReplicaFacts, wanted: Wanted) -> Iterator[LogPiece]:
    """What a store at rest may have had, and where its log does not tell: all of it, or what follows its end."""
    end = facts.end_offset
    if is_empty(facts):
        if facts.queued_from is not None:
            reason = "there is no CommitLog; ConsumeQueues lead to records from here on"
            yield LogPiece(PieceKind.HOLE, facts.queued_from, facts.queued_from, reason=reason)
        elif not facts.is_running:
            with open_source(spec) as source:
                known = known_of_lost_log(ReplicaStore(source.files, facts))
            if known is not None:
                start = known[0].start_offset
                yield LogPiece(PieceKind.HOLE, start, start, reason=f"there is no CommitLog; {known[1]}")
        return
    if not wanted.min_offset <= end < wanted.max_offset:
        return
    with open_source(spec) as source:
        known_end = ReplicaStore(source.files, facts).checkpoint().logics_physical_offset + 1
        if not facts.is_running and known_end > end:
            reason = "the log ends here, and the checkpoint knows of messages behind that"
            yield LogPiece(PieceKind.HOLE, end, known_end, reason=reason)
            return
        if end % facts.segment_bytes == 0:
            return
        # As far as the file goes: the log itself has ended.
        file_end = end - end % facts.segment_bytes + facts.segment_bytes
        store = ReplicaStore(source.files, replace(facts, end_offset=file_end))
        first = next(walk_log(store, end, end + 1, in_batches=False, from_boundary=True), None)
        if isinstance(first, LogPiece) and first.kind is PieceKind.RECORD:
            return  # It came since.
        place = next_anchor(store, end, min(end + _LOOKED_BEHIND_BYTES, file_end))
        if place is not None:
            reason = f"the log breaks off, and nothing tells whether the records from {place} on are of it or were cut"
            yield LogPiece(PieceKind.BROKEN, end, file_end, reason=reason)


def _read(partition: InputPartition, options: StoreOptions) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, _Part):
        return  # Where there is no partition Spark asks for none.
    facts = ReplicaFacts.from_json(dict(partition.facts))
    with open_source(SourceSpec.from_json(dict(partition.spec))) as source:
        store = ReplicaStore(RememberingFiles(source.files), facts)
        columns = _columns(options)
        wanted = options.wanted
        rows = _Rows(facts, columns)
        damage = _Damage(facts, options.on_damage, rows)
        for found in walk_log(store, partition.start_offset, partition.end_offset, in_batches=True):
            if isinstance(found, LogPiece):
                record = found.record
                if found.kind in _RECORDS and record is not None and wanted.admits(record.topic, record.queue_id):
                    rows.add(store.read_log(found.start_offset, found.end_offset), found)
                    if found.kind is PieceKind.BAD_BODY:
                        damage.note(found)
                elif found.kind not in (*_RECORDS, PieceKind.PADDING):
                    damage.take(found)
            else:
                if len(rows):
                    yield rows.take()
                if (is_wanted := wanted_of(found, wanted)).any():
                    view = store.read_log(int(found.offsets[0]), found.end_offset)
                    yield columns_of(found, view, facts, columns).filter(pa.array(is_wanted))
            if rows.is_full:
                yield rows.take()
        for piece in partition.beside:
            damage.take(piece)
        if len(rows):
            yield rows.take()
        damage.tell()


class _Damage:
    """What one partition holds besides sound records. Nobody knows of which topic it was, so every query is told."""

    def __init__(self, facts: ReplicaFacts, on_damage: OnDamage, rows: _Rows) -> None:
        self._facts = facts
        self._on_damage = on_damage
        self._rows = rows
        self._first: LogPiece | None = None
        self._count = 0

    def take(self, piece: LogPiece) -> None:
        """What is no record."""
        self.note(piece)
        if self._on_damage is OnDamage.ROWS:
            self._rows.add_damage(piece)

    def note(self, piece: LogPiece) -> None:
        """The same of one that has a row. Raises DamageFound if that was asked for."""
        if self._on_damage is OnDamage.FAIL:
            own = f"{self._facts.group}/{self._facts.broker_id} at [{piece.start_offset}, {piece.end_offset})"
            raise DamageFound(
                f"{own}: {_reason(piece)}. Read another replica, or set onDamage=rows to see each such part, or skip"
            )
        self._first = self._first or piece
        self._count += 1

    def tell(self) -> None:
        if self._first is not None and self._on_damage is OnDamage.SKIP:
            _log.warning(
                "log_damaged",
                group=self._facts.group,
                broker_id=self._facts.broker_id,
                parts=self._count,
                first_offset=self._first.start_offset,
                reason=_reason(self._first),
                remedy="their rows are missing; onDamage=rows shows each part, the consistency job what was lost",
            )


def _reason(piece: LogPiece) -> str:
    if piece.kind is PieceKind.HOLE:
        return piece.reason or "there is no file"
    return f"{piece.kind.value}: {piece.reason}"


# Common records, many at once: as columns.

T = TypeVar("T")


def wanted_of(batch: RecordBatch, wanted: Wanted) -> npt.NDArray[np.bool_]:
    """`Wanted.admits` for all of its records."""
    found = np.ones(len(batch), dtype=np.bool_)
    if wanted.topics is not None:
        found &= np.array([topic in wanted.topics for topic in batch.topics])[batch.topic_of]
    if wanted.queue_ids is not None:
        found &= np.isin(batch.queue_ids, list(wanted.queue_ids))
    return found


def columns_of(batch: RecordBatch, view: memoryview, facts: ReplicaFacts, columns: Sequence[_Column]) -> pa.RecordBatch:
    """A batch's records as rows; `view` holds them from the first one's start on. What is not asked for is not made."""
    made = _BatchColumns(batch, view, facts)
    arrays = [pa.array(getattr(made, name)(), kind) for name, kind, _ in columns]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _, _ in columns])


class _BatchColumns:
    """A method for each column, by its name; the same values as `_row` gives."""

    def __init__(self, batch: RecordBatch, view: memoryview, facts: ReplicaFacts) -> None:
        self._batch = batch
        self._view = view
        self._facts = facts
        self._starts = (batch.offsets - batch.offsets[0]).tolist()
        self._sizes = batch.sizes.tolist()

    @cached_property
    def _heads(self) -> npt.NDArray[np.void]:
        return read_heads(self._view, self._batch)

    @cached_property
    def _properties(self) -> list[bytes]:
        """As stored: what is behind the body, the topic and the length of both."""
        view, found = self._view, []
        bodies = (self._heads["body_bytes"].astype(np.int64) + self._heads.dtype.itemsize).tolist()
        for start, size, body_end in zip(self._starts, self._sizes, bodies):
            topic_at = start + body_end
            found.append(bytes(view[topic_at + 3 + view[topic_at] : start + size]))
        return found

    @cached_property
    def _decoded(self) -> list[dict[str, str]]:
        return [decode_properties(raw) for raw in self._properties]

    def _of_head(self, name: str) -> npt.NDArray[np.int64]:
        return self._heads[name].astype(np.int64)

    def _hosts(self, name: str, text_of: Callable[[Host], T]) -> list[T]:
        """Few different ones, as a rule."""
        raws = list(map(bytes, self._heads[name].tolist()))
        known = {raw: text_of(Host(raw[:-4], int.from_bytes(raw[-4:], "big", signed=True))) for raw in set(raws)}
        return [known[raw] for raw in raws]

    def _texts(self, name: bytes) -> list[str | None]:
        return [raw_property(raw, name).decode("utf-8", "replace") or None for raw in self._properties]

    def group(self) -> pa.Array:
        return pa.repeat(self._facts.group, len(self._batch))

    def broker_id(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._facts.broker_id, pa.int32()), len(self._batch))

    def physical_offset(self) -> npt.NDArray[np.int64]:
        return self._batch.offsets

    def size(self) -> npt.NDArray[np.int64]:
        return self._batch.sizes

    def topic(self) -> pa.Array:
        return pa.array(self._batch.topics, pa.string()).take(pa.array(self._batch.topic_of))

    def queue_id(self) -> npt.NDArray[np.int64]:
        return self._batch.queue_ids

    def queue_offset(self) -> npt.NDArray[np.int64]:
        return self._batch.queue_offsets

    def message_id(self) -> list[str]:
        unique = self._texts(PROPERTY_UNIQUE_KEY.encode())
        if all(unique):
            return [text or "" for text in unique]
        return [text or own for text, own in zip(unique, self.offset_message_id())]

    def offset_message_id(self) -> list[str]:
        hosts = self._hosts("store_host", lambda host: host)
        return list(map(offset_message_id, hosts, self._batch.offsets.tolist()))

    def tags(self) -> list[str | None]:
        return self._texts(PROPERTY_TAGS.encode())

    def keys(self) -> list[list[str]]:
        return [_keys(text) for text in self._texts(PROPERTY_KEYS.encode())]

    def properties(self) -> list[list[tuple[str, str]]]:
        return [list(properties.items()) for properties in self._decoded]

    def store_timestamp(self) -> pa.Array:
        return _moments(self._batch.store_timestamps_ms)

    def born_timestamp(self) -> pa.Array:
        return _moments(self._of_head("born_timestamp_ms"))

    def born_host(self) -> list[str]:
        return self._hosts("born_host", str)

    def store_host(self) -> list[str]:
        return self._hosts("store_host", str)

    def sys_flag(self) -> npt.NDArray[np.int64]:
        return self._of_head("sys_flag")

    def flag(self) -> npt.NDArray[np.int64]:
        return self._of_head("flag")

    def reconsume_times(self) -> npt.NDArray[np.int64]:
        return self._of_head("reconsume_times")

    def prepared_transaction_offset(self) -> npt.NDArray[np.int64]:
        return self._of_head("prepared_transaction_offset")

    def body_crc(self) -> npt.NDArray[np.int64]:
        return self._of_head("body_crc")

    def body_crc_ok(self) -> npt.NDArray[np.bool_]:
        return np.ones(len(self._batch), dtype=np.bool_)

    def body_bytes(self) -> npt.NDArray[np.int64]:
        return self._of_head("body_bytes")

    def xxh3_64(self) -> npt.NDArray[np.int64]:
        view, digest = self._view, xxhash.xxh3_64_intdigest
        digests = [digest(view[start : start + size]) for start, size in zip(self._starts, self._sizes)]
        return np.array(digests, dtype=np.uint64).view(np.int64)

    def damage(self) -> pa.Array:
        return pa.nulls(len(self._batch), pa.string())

    def body(self) -> list[bytes]:
        head, view = self._heads.dtype.itemsize, self._view
        lengths = self._of_head("body_bytes").tolist()
        return [bytes(view[start + head : start + head + length]) for start, length in zip(self._starts, lengths)]


def _keys(text: str | None) -> list[str]:
    """As the index has them: nothing but a space parts two."""
    return [word for word in (text or "").split(" ") if word]


def _moments(wall_ms: npt.NDArray[np.int64]) -> pa.Array:
    """`_microseconds`, for all of them."""
    is_none = (wall_ms < 0) | (wall_ms > _LAST_MS)
    return pa.array(np.where(is_none, 0, wall_ms) * 1_000, pa.timestamp("us", tz="UTC"), mask=is_none)


# All others, one by one: what is odd about a record ends a batch.


class _Rows:
    """Rows on their way into Arrow."""

    def __init__(self, facts: ReplicaFacts, columns: Sequence[_Column]) -> None:
        self._facts = facts
        self._columns = columns
        self._rows: list[Mapping[str, Any]] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether they should be taken now."""
        return len(self._rows) >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES

    def add(self, view: memoryview, piece: LogPiece) -> None:
        """The record whose bytes are `view`."""
        self._rows.append(_row(view, piece, self._facts))
        self._bytes += len(view)

    def add_damage(self, piece: LogPiece) -> None:
        """What is no record: where, how long and why."""
        size = piece.end_offset - piece.start_offset
        self._rows.append(
            {
                "group": self._facts.group,
                "broker_id": self._facts.broker_id,
                "physical_offset": piece.start_offset,
                "size": size if size <= _INT_MAX else None,
                "damage": f"{_reason(piece)}; up to {piece.end_offset}",
            }
        )

    def take(self) -> pa.RecordBatch:
        arrays = [pa.array([row.get(name) for row in self._rows], kind) for name, kind, _ in self._columns]
        self._rows.clear()
        self._bytes = 0
        return pa.RecordBatch.from_arrays(arrays, names=[name for name, _, _ in self._columns])


def _row(view: memoryview, piece: LogPiece, facts: ReplicaFacts) -> Mapping[str, Any]:
    record = decode_record(view, check_crc=False)
    properties = decode_properties(record.properties)
    offset_id = offset_message_id(record.store_host, record.physical_offset)
    digest = xxhash.xxh3_64_intdigest(view)
    return {
        "group": facts.group,
        "broker_id": facts.broker_id,
        "physical_offset": record.physical_offset,
        "size": record.total_size,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "message_id": properties.get(PROPERTY_UNIQUE_KEY) or offset_id,
        "offset_message_id": offset_id,
        "tags": properties.get(PROPERTY_TAGS),
        "keys": _keys(properties.get(PROPERTY_KEYS)),
        "properties": list(properties.items()),
        "store_timestamp": _microseconds(record.store_timestamp_ms),
        "born_timestamp": _microseconds(record.born_timestamp_ms),
        "born_host": str(record.born_host),
        "store_host": str(record.store_host),
        "sys_flag": record.sys_flag,
        "flag": record.flag,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_crc": record.body_crc,
        "body_crc_ok": piece.kind is PieceKind.RECORD,
        "body_bytes": len(record.body),
        # SQL has no unsigned integers.
        "xxh3_64": digest - (1 << 64) if digest >= _SIGN else digest,
        "body": record.body,
        "damage": piece.reason or None,
    }


def _microseconds(wall_ms: int) -> int | None:
    """Since 1970; None for what is no time: nothing but the body has a checksum, so damage may be in here."""
    return wall_ms * 1_000 if 0 <= wall_ms <= _LAST_MS else None


# The ConsumeQueues of one replica, a row for each entry.

_QUEUE_COLUMNS: Final = (
    ("group", pa.string(), "string"),
    ("broker_id", pa.int32(), "int"),
    ("topic", pa.string(), "string"),
    ("queue_id", pa.int32(), "int"),
    ("queue_offset", pa.int64(), "bigint"),
    ("physical_offset", pa.int64(), "bigint"),
    ("size", pa.int32(), "int"),
    ("tags_code", pa.int64(), "bigint"),
    ("is_filler", pa.bool_(), "boolean"),
)
CONSUME_QUEUE_SCHEMA: Final = schema_of(_QUEUE_COLUMNS)
_ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_BATCH_ENTRIES: Final = 1 << 16
_FILLER_SIZE: Final = 0x7FFF_FFFF
"""Of a position that no message has; see tandemmq.core.storage.consume_queue."""


class ConsumeQueueSource(DataSource):
    """`spark.read.format("consumequeue")`."""

    @classmethod
    def name(cls) -> str:
        return "consumequeue"

    def schema(self) -> str:
        return schema_of(StoreOptions.of(self.options).picked(_QUEUE_COLUMNS))

    def reader(self, schema: object) -> ConsumeQueueReader:
        return ConsumeQueueReader(StoreOptions.of(self.options))


@dataclass
class _QueuePart(InputPartition):
    """Pieces of queues: topic, queue id, first position and number of entries."""

    pieces: list[tuple[str, int, int, int]]
    spec: Mapping[str, Any]
    facts: Mapping[str, Any]


class ConsumeQueueReader(DataSourceReader):
    def __init__(self, options: StoreOptions) -> None:
        self._options = options

    def partitions(self) -> list[_QueuePart]:
        """Queues together up to `partitionBytes`; a larger queue in several parts. Unwanted queues are left out."""
        return [part for spec in self._options.specs for part in self._parts(spec)]

    def _parts(self, spec: SourceSpec) -> list[_QueuePart]:
        facts = facts_of(spec)
        with open_source(spec) as source:
            pieces = list(self._pieces(ReplicaStore(source.files, facts)))
        told, values = spec.to_json(), facts.to_json()
        parts: list[_QueuePart] = []
        room = 0
        for piece in pieces:
            needed = piece[3] * _ENTRY.itemsize
            if needed > room or not parts:
                parts.append(_QueuePart([], told, values))
                room = self._options.partition_bytes
            parts[-1].pieces.append(piece)
            room -= needed
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _QueuePart):
            return  # Where there is no partition Spark asks for none.
        facts = ReplicaFacts.from_json(dict(partition.facts))
        names = [name for name, _, _ in self._options.picked(_QUEUE_COLUMNS)]
        with open_source(SourceSpec.from_json(dict(partition.spec))) as source:
            store = ReplicaStore(source.files, facts)
            for topic, queue_id, first, count in partition.pieces:
                for start in range(first, first + count, _BATCH_ENTRIES):
                    wanted = min(_BATCH_ENTRIES, first + count - start)
                    batch = _batch(facts, topic, queue_id, start, store.read_queue(topic, queue_id, start, wanted))
                    if batch.num_rows:
                        yield batch.select(names)

    def _pieces(self, store: ReplicaStore) -> Iterator[tuple[str, int, int, int]]:
        most = max(1, self._options.partition_bytes // _ENTRY.itemsize)
        for topic, queue_id in store.queues():
            if not self._options.wanted.admits(topic, queue_id):
                continue
            first, end = store.queue_bounds(topic, queue_id)
            for start in range(first, end, most):
                yield topic, queue_id, start, min(most, end - start)


def _batch(facts: ReplicaFacts, topic: str, queue_id: int, first: int, data: bytes) -> pa.RecordBatch:
    """The entries that were written: files are longer than their queue, and zero behind its end."""
    entries = np.frombuffer(data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize], dtype=_ENTRY)
    # What a broker takes for the end of a queue, and is not zero, is damage: it has a row.
    written = np.flatnonzero((entries["physical_offset"] != 0) | (entries["size"] != 0) | (entries["tags_code"] != 0))
    found = entries[written]
    count = len(found)
    sizes = found["size"].astype(np.int32)
    values = [
        pa.repeat(facts.group, count),
        pa.repeat(facts.broker_id, count),
        pa.repeat(topic, count),
        pa.repeat(queue_id, count),
        (written + first).astype(np.int64),
        found["physical_offset"].astype(np.int64),
        sizes,
        found["tags_code"].astype(np.int64),
        sizes == _FILLER_SIZE,
    ]
    arrays = [
        pa.array(value, kind) if isinstance(value, np.ndarray) else value.cast(kind)
        for value, (_, kind, _) in zip(values, _QUEUE_COLUMNS)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _, _ in _QUEUE_COLUMNS])


# A replica's log as tables: `spark.read.format("commitlog")` and `"consumequeue"`.
#
#     from tandemmq.consistency.data_sources import register
#     register(spark)
#     spark.read.format("commitlog").load("/data/broker-a").createOrReplaceTempView("log")
#     spark.sql("SELECT topic, count(*) FROM log GROUP BY topic").show()
#
# Columns and options are in docs/protocol/log-as-tables.md.


def register(spark: SparkSession) -> None:
    """Makes both known to a session."""
    for source in (CommitLogSource, ConsumeQueueSource):
        spark.dataSource.register(source)
