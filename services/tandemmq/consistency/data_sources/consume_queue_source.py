"""The ConsumeQueues of one replica, a row for each entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tandemmq.consistency.data_sources.commit_log_source import StoreOptions, facts_of, schema_of
from tandemmq.consistency.source_files.posix_files import SourceSpec
from tandemmq.consistency.source_files.sources import open_source
from tandemmq.core.audit.replica_store import ReplicaFacts, ReplicaStore

__all__ = ["CONSUME_QUEUE_SCHEMA", "ConsumeQueueSource"]

_COLUMNS: Final = (
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
CONSUME_QUEUE_SCHEMA: Final = schema_of(_COLUMNS)
_ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_BATCH_ENTRIES: Final = 1 << 16
_FILLER_SIZE: Final = 0x7FFF_FFFF
"""Of a position that no message has; see tandemmq.core.storage.consume_queue."""


class ConsumeQueueSource(DataSource):
    """`spark.read.format("consumequeue")`."""

    @classmethod
    def name(cls) -> str:
        """See DataSource."""
        return "consumequeue"

    def schema(self) -> str:
        """See DataSource."""
        return schema_of(StoreOptions.of(self.options).picked(_COLUMNS))

    def reader(self, schema: object) -> ConsumeQueueReader:
        """See DataSource."""
        return ConsumeQueueReader(StoreOptions.of(self.options))


@dataclass
class _Part(InputPartition):
    """Pieces of queues: topic, queue id, first position and number of entries."""

    pieces: list[tuple[str, int, int, int]]
    spec: Mapping[str, Any]
    facts: Mapping[str, Any]


class ConsumeQueueReader(DataSourceReader):
    """Of the ConsumeQueues."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options

    def partitions(self) -> list[_Part]:
        """Queues together up to `partitionBytes`; a larger queue in several parts. Unwanted queues are left out."""
        return [part for spec in self._options.specs for part in self._parts(spec)]

    def _parts(self, spec: SourceSpec) -> list[_Part]:
        facts = facts_of(spec)
        with open_source(spec) as source:
            pieces = list(self._pieces(ReplicaStore(source.files, facts)))
        told, values = spec.to_json(), facts.to_json()
        parts: list[_Part] = []
        room = 0
        for piece in pieces:
            needed = piece[3] * _ENTRY.itemsize
            if needed > room or not parts:
                parts.append(_Part([], told, values))
                room = self._options.partition_bytes
            parts[-1].pieces.append(piece)
            room -= needed
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of entries, each of one queue."""
        if not isinstance(partition, _Part):
            return  # Where there is no partition Spark asks for none.
        facts = ReplicaFacts.from_json(dict(partition.facts))
        names = [name for name, _, _ in self._options.picked(_COLUMNS)]
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
    written = np.flatnonzero(entries["size"] > 0)
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
        for value, (_, kind, _) in zip(values, _COLUMNS)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _, _ in _COLUMNS])
