"""The log as tables, read without Spark: rows of what is damaged, and of what is none of a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from support.audit_stores import copy_group
from support.replica_folders import open_replica
from support.store_damage import write_at
from tandemmq.consistency import data_sources
from tandemmq.consistency.data_sources import (
    CommitLogReader,
    CommitLogSource,
    CommitLogStreamReader,
    ConsumeQueueReader,
    DataLost,
    OptionsRefused,
    StoreOptions,
    facts_of,
)
from tandemmq.core.audit.log_walk import walk_log, whole_records_end

_ENTRY = Struct(">qiq")
_BORN_TIMESTAMP_AT = 40


@pytest.fixture
def folder(equal_group: list[Path], tmp_path: Path) -> Path:
    """A store to be damaged."""
    return copy_group(equal_group[:1], tmp_path / "broker-a")[0]


def _rows(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def _options(folder: Path, **options: str) -> StoreOptions:
    return StoreOptions.of({"path": str(folder), **options})


def test_a_record_with_a_damaged_time_has_a_row_without_one(folder: Path) -> None:
    write_at(folder / "commitlog" / f"{0:020d}", _BORN_TIMESTAMP_AT, b"\x7f")
    reader = CommitLogReader(_options(folder))

    rows = _rows(batch for part in reader.partitions() for batch in reader.read(part))

    assert rows[0]["physical_offset"] == 0
    assert rows[0]["born_timestamp"] is None
    assert all(row["born_timestamp"] is not None for row in rows[1:])


def test_fillers_of_a_gap_are_fillers(folder: Path) -> None:
    path = min((folder / "consumequeue").glob("*/*/*"))
    write_at(path, 0, _ENTRY.pack(4_711, 0x7FFF_FFFF, 0))
    reader = ConsumeQueueReader(_options(folder))

    rows = _rows(batch for part in reader.partitions() for batch in reader.read(part))

    assert [(row["physical_offset"], row["queue_offset"]) for row in rows if row["is_filler"]] == [(4_711, 0)]


def _batches(reader: CommitLogReader) -> Iterator[pa.RecordBatch]:
    return (batch for part in reader.partitions() for batch in reader.read(part))


# Columns, and the rows they have to equal.


def _one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        data_sources,
        "walk_log",
        lambda store, start, end, *, in_batches: walk_log(store, start, end, in_batches=False),
    )


def test_columns_of_many_records_are_the_rows_of_each(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_at(folder / "commitlog" / f"{0:020d}", _BORN_TIMESTAMP_AT, b"\x7f")
    options = _options(folder, body="true")
    batches = list(_batches(CommitLogReader(options)))
    assert max(batch.num_rows for batch in batches) > 16
    _one_by_one(monkeypatch)

    assert _rows(batches) == _rows(_batches(CommitLogReader(options)))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    topics=st.lists(st.sampled_from(["Orders", "orders", "Payments", "none"]), max_size=2),
    queue_ids=st.lists(st.integers(0, 4), max_size=2),
    bounds=st.lists(st.integers(0, 200_000), min_size=2, max_size=2).map(sorted),
)
def test_options_choose_the_same_of_columns_and_of_rows(
    equal_group: list[Path], topics: list[str], queue_ids: list[int], bounds: list[int]
) -> None:
    everything = _rows(_batches(CommitLogReader(_options(equal_group[0]))))
    chosen = _options(
        equal_group[0],
        topics=",".join(topics),
        queueIds=",".join(map(str, queue_ids)),
        minOffset=str(bounds[0]),
        maxOffset=str(bounds[1]),
    )
    expected = [
        row
        for row in everything
        if (not topics or row["topic"] in topics)
        and (not queue_ids or row["queue_id"] in queue_ids)
        and bounds[0] <= row["physical_offset"] < bounds[1]
    ]
    assert _rows(_batches(CommitLogReader(chosen))) == expected
    with pytest.MonkeyPatch.context() as patch:
        _one_by_one(patch)
        assert _rows(_batches(CommitLogReader(chosen))) == expected


def test_only_the_columns_that_are_asked_for_are_made(equal_group: list[Path]) -> None:
    options = {"path": str(equal_group[0]), "columns": "size, topic"}
    assert CommitLogSource(options).schema() == "`size` int, `topic` string"
    (batch, *_) = _batches(CommitLogReader(StoreOptions.of(options)))
    assert batch.schema.names == ["size", "topic"]
    with pytest.raises(OptionsRefused, match="no such column; there are group, broker_id"):
        CommitLogSource(options | {"columns": "size,colour"}).schema()


def test_a_cluster_is_one_load_and_group_and_broker_id_choose(equal_group: list[Path], tmp_path: Path) -> None:
    for group in ("broker-a", "broker-b"):
        copy_group(equal_group[:2], tmp_path / group)
    for options, replicas in (
        ({}, {("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1)}),
        ({"brokerId": "1"}, {("broker-a", 1), ("broker-b", 1)}),
        ({"group": "broker-b", "brokerId": "0"}, {("broker-b", 0)}),
    ):
        reader = CommitLogReader(_options(tmp_path, columns="group,broker_id", **options))
        rows = _rows(_batches(reader))
        assert {(row["group"], row["broker_id"]) for row in rows} == replicas
        assert len(rows) == len(replicas) * len(rows) // len(replicas) > 0
    with pytest.raises(OptionsRefused, match="choose none of broker-a/0, broker-a/1"):
        _options(tmp_path, brokerId="7")
    named = ";".join(f"b/{number}={folder}" for number, folder in enumerate(equal_group[:2]))
    assert [(spec.group, spec.broker_id) for spec in StoreOptions.of({"path": named}).specs] == [("b", 0), ("b", 1)]


# Streams


def _streamed(
    reader: CommitLogStreamReader, start: dict[str, int], limit: ReadAllAvailable | ReadMaxBytes
) -> tuple[list[int], dict[str, int]]:
    end = reader.latestOffset(start, limit)
    rows = _rows(batch for part in reader.partitions(start, end) for batch in reader.read(part))
    return [row["physical_offset"] for row in rows], end


@pytest.mark.parametrize("step", [97, 20_000, 1 << 30])
def test_a_stream_gives_each_record_once_whatever_its_steps(folder: Path, step: int) -> None:
    reader = CommitLogStreamReader(_options(folder))
    every_row = [row["physical_offset"] for row in _rows(_batches(CommitLogReader(_options(folder))))]
    place, found = reader.initialOffset(), list[int]()
    # Small steps are many, and those at the beginning tell enough.
    for _ in range(100):
        rows, after = _streamed(reader, place, ReadMaxBytes(step))
        if after == place:
            break
        found, place = found + rows, after
    assert found == every_row[: len(found)]
    assert len(found) == len(every_row) or step == 97
    assert found


def test_a_record_that_is_still_arriving_comes_when_it_is_whole(folder: Path, tmp_path: Path) -> None:
    """Of each cut within the last records: all rows come once, in two steps."""
    path = max((folder / "commitlog").iterdir())
    facts = facts_of(_options(folder).specs[0])
    every_row = [row["physical_offset"] for row in _rows(_batches(CommitLogReader(_options(folder))))]
    whole = path.read_bytes()
    start = every_row[-3]
    for cut in range(start, facts.end_offset, 101):
        half = copy_group([folder], tmp_path / f"cut-{cut}")[0]
        at = cut - int(path.name)
        write_at(half / "commitlog" / path.name, at, bytes(min(len(whole), facts.end_offset - int(path.name)) - at))
        reader = CommitLogStreamReader(_options(half, group="g"))
        # What its ConsumeQueues and its checkpoint know of is more than there is: as a broker says it, the end is here.
        store = open_replica(half)
        end = whole_records_end(store, cut)
        assert end in (*every_row, facts.end_offset)
        assert end <= cut
        before = [offset for offset in every_row if offset < end]
        write_at(half / "commitlog" / path.name, at, whole[at : facts.end_offset - int(path.name)])
        after, _ = _streamed(reader, {"g/0": end}, ReadAllAvailable())
        assert before + after == every_row


def test_a_stream_from_the_latest_place_begins_empty(folder: Path) -> None:
    reader = CommitLogStreamReader(_options(folder, startingOffsets="latest"))
    place = reader.initialOffset()
    assert _streamed(reader, place, ReadAllAvailable()) == ([], place)
    with pytest.raises(OptionsRefused, match="choose earliest or latest"):
        _options(folder, startingOffsets="newest")


def test_a_stream_says_when_what_it_is_to_read_is_gone(folder: Path) -> None:
    reader = CommitLogStreamReader(_options(folder, group="g"))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    beyond = {"g/0": end["g/0"] + 1}
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        reader.partitions(beyond, reader.latestOffset(beyond, ReadAllAvailable()))
    assert CommitLogStreamReader(_options(folder, group="g", failOnDataLoss="false")).partitions(beyond, beyond) == []
