"""The log as tables, read without Spark: rows of what is damaged, and of what is none of a message."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pyarrow as pa
import pytest
import structlog.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from support.audit_stores import copy_group
from support.drawn_damage import ALL_DAMAGES, HARMLESS
from support.replica_folders import open_replica
from support.store_damage import write_at
from tandemmq.consistency import data_sources
from tandemmq.consistency.data_sources import (
    CommitLogReader,
    CommitLogSource,
    CommitLogStreamReader,
    ConsumeQueueReader,
    DamageFound,
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
        lambda store, start, end, *, in_batches, **more: walk_log(store, start, end, in_batches=False, **more),
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


# Damage of all kinds: what is sound has its row whatever is asked, and what has none is told.

_KINDS = sorted({*ALL_DAMAGES, *HARMLESS, "flips"} - {"repeated-file"})
_SEGMENT_BYTES = 256 << 10
_CASES = int(os.environ.get("DRAWN_SEEDS", "24"))
"""More of them: DRAWN_SEEDS=1000."""


@pytest.fixture(scope="module")
def sound_rows(small_group: list[Path]) -> list[dict[str, Any]]:
    """What the table shows of a sound replica."""
    return _rows(_batches(CommitLogReader(_options(small_group[0], group="g"))))


def _flip(folders: list[Path], chance: random.Random) -> None:
    """Bits of some records, most of them in their heads."""
    rows = _rows(_batches(CommitLogReader(_options(folders[0], columns="physical_offset,size"))))
    path = chance.choice(folders) / "commitlog"
    for row in chance.sample(rows, chance.randrange(1, 40)):
        place = row["physical_offset"] + chance.randrange(min(row["size"], chance.choice((40, 88, row["size"]))))
        file = path / f"{place - place % _SEGMENT_BYTES:020d}"
        byte = file.read_bytes()[place % _SEGMENT_BYTES]
        write_at(file, place % _SEGMENT_BYTES, bytes((byte ^ 1 << chance.randrange(8),)))


def _log_of(folder: Path) -> dict[int, bytes]:
    files = (folder / "commitlog").glob("0" * 8 + "*") if (folder / "commitlog").is_dir() else ()
    return {int(path.name): path.read_bytes() for path in files if path.is_file() and len(path.name) == 20}


def _record_bytes(log: dict[int, bytes], row: dict[str, Any]) -> bytes:
    start, within = divmod(row["physical_offset"], _SEGMENT_BYTES)
    return log.get(start * _SEGMENT_BYTES, b"")[within : within + row["size"]]


@pytest.mark.timeout(900)
@settings(max_examples=_CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(kind=st.sampled_from(_KINDS), seed=st.integers(0, 1 << 16))
def test_no_query_of_a_damaged_replica_is_wrong(
    kind: str,
    seed: int,
    small_group: list[Path],
    sound_rows: list[dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    chance = random.Random(f"{kind}/{seed}")
    root = tmp_path_factory.mktemp("damaged")
    folders = copy_group(small_group, root)
    if kind in ALL_DAMAGES:
        ALL_DAMAGES[kind].apply(folders, chance)
    else:
        (HARMLESS | {"flips": _flip})[kind](folders, chance)
    # A slave that is behind has all that it ought to have, and so has a disk of another group.
    ends_elsewhere = kind in ("behind", "disk-of-another-group") or kind.startswith("other-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_sources, "_SMALLEST_PARTITION_BYTES", 1)
        for folder in folders:
            _check_log(folder, small_group[0], sound_rows, chance, is_whole=not ends_elsewhere)
            _check_queues(folder, chance)
    shutil.rmtree(root)


@pytest.mark.parametrize("count", [1, 2])
def test_files_in_front_that_are_empty_have_lost_their_rows(
    small_group: list[Path], sound_rows: list[dict[str, Any]], tmp_path: Path, count: int
) -> None:
    """Retention deletes files. What begins behind them looked as if all before it had been deleted."""
    folder = copy_group(small_group, tmp_path)[0]
    for path in sorted((folder / "commitlog").iterdir())[:count]:
        path.write_bytes(b"")
    _check_log(folder, small_group[0], sound_rows, random.Random(count), is_whole=True)
    assert _told(folder)[0][0] == 0


@pytest.mark.parametrize("others", [(), ("consumequeue",), ("index",), ("consumequeue", "index")])
def test_a_log_that_is_gone_is_told_by_whatever_knows_of_it(
    small_group: list[Path], sound_rows: list[dict[str, Any]], tmp_path: Path, others: tuple[str, ...]
) -> None:
    """An empty table would be a wrong answer."""
    folder = copy_group(small_group, tmp_path)[0]
    for name in ("commitlog", *others):
        shutil.rmtree(folder / name)
    _check_log(folder, small_group[0], sound_rows, random.Random(0), is_whole=True)
    assert _told(folder) == [(0, 1 << 62)]


def _check_log(
    folder: Path, original: Path, sound_rows: list[dict[str, Any]], chance: random.Random, *, is_whole: bool
) -> None:
    """Not `is_whole`: files are sound, and end elsewhere."""
    whole, held = _log_of(original), _log_of(folder)
    rows = _rows(_batches(CommitLogReader(_options(folder, group="g")))) if held else []
    by_offset = {row["physical_offset"]: row for row in rows}
    assert list(by_offset) == sorted(by_offset)
    assert len(by_offset) == len(rows)
    told = _told(folder)
    for row in sound_rows:
        offset = row["physical_offset"]
        is_sound = _record_bytes(held, row) == _record_bytes(whole, row)
        found = by_offset.get(offset)
        assert found is None or not is_sound or found == row
        if found is None:
            is_expired = offset < min(held, default=0)
            is_other = any(own <= offset < own + its["size"] for own, its in by_offset.items())
            is_told = is_expired or is_other or any(start <= offset < end for start, end in told)
            assert is_told or not is_whole, (offset, told)

    def asked(**options: str) -> list[dict[str, Any]]:
        return _rows(_batches(CommitLogReader(_options(folder, group="g", **options))))

    if not held:
        return
    last = max(by_offset, default=1)
    low, high = sorted(chance.randrange(last + 2) for _ in range(2))
    topics = chance.sample(["orders", "payments", "logs", "SCHEDULE_TOPIC_XXXX", "batched", "none"], 2)
    for size in (chance.randrange(900, 9_000), chance.randrange(9_000, 300_000)):
        assert asked(partitionBytes=str(size)) == rows, f"partitionBytes={size}"
    chosen = {"topics": ",".join(topics), "queueIds": "0,1,2", "minOffset": str(low), "maxOffset": str(high)}
    expected = [
        row for row in rows if low <= row["physical_offset"] < high and row["topic"] in topics and row["queue_id"] < 3
    ]
    assert asked(**chosen) == [row for row in expected if row["queue_id"] >= 0], chosen
    columns = chance.sample(sorted(rows[0]) if rows else ["size"], 1)
    assert asked(columns=",".join(columns)) == [{name: row[name] for name in columns} for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        _one_by_one(patch)
        assert asked() == rows
    reader = CommitLogStreamReader(_options(folder, group="g"))
    place, streamed = reader.initialOffset(), list[int]()
    for step in (chance.randrange(1, 3_000), chance.randrange(1, 200_000), 1 << 40):
        offsets, place = _streamed(reader, place, ReadMaxBytes(step))
        streamed += offsets
    assert streamed == [offset for offset in by_offset if offset < place["g/0"]]


def _told(folder: Path) -> list[tuple[int, int]]:
    """Where the table says that it has no record; and that says so in each way."""
    options = {"group": "g", "columns": "physical_offset,damage"}
    rows = _rows(_batches(CommitLogReader(_options(folder, onDamage="rows", **options))))
    damaged = [row for row in rows if row["damage"] is not None]
    with structlog.testing.capture_logs() as logs:
        plain = _rows(_batches(CommitLogReader(_options(folder, group="g"))))
    assert [entry["event"] for entry in logs] == ["log_damaged"] * bool(damaged)
    if damaged:
        with pytest.raises(DamageFound, match="onDamage=rows"):
            _rows(_batches(CommitLogReader(_options(folder, group="g", onDamage="fail"))))
    else:
        assert len(_rows(_batches(CommitLogReader(_options(folder, group="g", onDamage="fail"))))) == len(plain)
    told = [(row["physical_offset"], row["damage"]) for row in damaged]
    return [
        (start, 1 << 62 if "no CommitLog" in text else int(text.rpartition(" ")[2]))
        for start, text in told
        if "up to" in text
    ]


def _check_queues(folder: Path, chance: random.Random) -> None:
    """Each entry that is not zero is a row, in the place where it lies."""

    def asked(**options: str) -> list[tuple[Any, ...]]:
        reader = ConsumeQueueReader(_options(folder, group="g", **options))
        rows = _rows(batch for part in reader.partitions() for batch in reader.read(part))
        names = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code")
        return [tuple(row[name] for name in names) for row in rows]

    if not (folder / "consumequeue").is_dir():
        return
    rows = asked()
    expected = []
    for topic, queue_id in open_replica(folder).queues():
        for path in sorted((folder / "consumequeue" / topic / str(queue_id)).iterdir()):
            if path.is_file() and len(path.name) == 20 and path.name.isdecimal():
                data = path.read_bytes()
                entries = enumerate(_ENTRY.iter_unpack(data[: len(data) // 20 * 20]), int(path.name) // 20)
                expected += [(topic, queue_id, place, *entry) for place, entry in entries if any(entry)]
    assert rows == expected
    assert asked(partitionBytes=str(chance.randrange(20, 5_000))) == rows
    topic, queue_id = chance.choice(["orders", "logs"]), chance.randrange(3)
    chosen = [row for row in rows if row[0] == topic and row[1] == queue_id]
    assert asked(topics=topic, queueIds=str(queue_id)) == chosen


def test_where_there_is_no_store_there_is_no_empty_table(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path, f"file://{tmp_path}/nothing"):
        with pytest.raises(OptionsRefused, match="holds no store"):
            CommitLogReader(StoreOptions.of({"path": str(path)})).partitions()


def test_keys_are_parted_as_the_index_parts_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "commitlog" / f"{0:020d}"
    at = file.read_bytes().find(b"customer-")
    write_at(file, at + 8, b"\t")

    def keys() -> set[str]:
        return {
            key for row in _rows(_batches(CommitLogReader(_options(folder, columns="keys")))) for key in row["keys"]
        }

    assert any("\t" in key for key in keys())
    _one_by_one(monkeypatch)
    assert any("\t" in key for key in keys())


@pytest.mark.parametrize("port_at", [52, 68])
def test_a_port_that_is_no_port_is_told_as_stored(folder: Path, port_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first one was born at an IPv6 address.
    second = _rows(_batches(CommitLogReader(_options(folder))))[1]["physical_offset"]
    write_at(folder / "commitlog" / f"{0:020d}", second + port_at, b"\x80")
    rows = _rows(_batches(CommitLogReader(_options(folder))))
    assert any(":-" in row["born_host"] + row["store_host"] for row in rows)
    _one_by_one(monkeypatch)
    assert _rows(_batches(CommitLogReader(_options(folder)))) == rows
