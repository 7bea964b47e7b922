"""The log as tables: the columns agree with what the store says, filters narrow, and the documented SQL runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from support.replica_folders import open_replica
from support.store_damage import write_at
from tandemmq.consistency.data_sources import CommitLogSource, register
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log

_DOCUMENT = Path(__file__).parents[3] / "docs" / "protocol" / "log-as-tables.md"
_EXAMPLES = re.findall(r"```sql\n(.*?)```", _DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def session(spark: SparkSession, equal_group: list[Path]) -> SparkSession:
    """With both tables of one replica, in parts."""
    register(spark)
    for table, view in (("commitlog", "log"), ("consumequeue", "queues")):
        reader = spark.read.format(table).option("partitionBytes", str(1 << 20)).option("group", "broker-a")
        reader.load(str(equal_group[0])).createOrReplaceTempView(view)
    return spark


def _records(folder: Path) -> list[LogPiece]:
    store = open_replica(folder)
    pieces = walk_log(store, store.facts.min_offset, store.facts.end_offset, in_batches=False)
    return [piece for piece in pieces if isinstance(piece, LogPiece) and piece.kind is PieceKind.RECORD]


def _read_rows(table: DataFrame) -> list[tuple[object, ...]]:
    return [tuple(row) for row in table.collect()]


def test_each_record_is_one_row_in_the_order_of_the_log(session: SparkSession, equal_group: list[Path]) -> None:
    rows = _read_rows(session.sql("SELECT physical_offset, size, topic, queue_id, queue_offset, body_crc_ok FROM log"))

    expected = [
        (piece.start_offset, found.size, found.topic, found.queue_id, found.queue_offset, True)
        for piece in _records(equal_group[0])
        if (found := piece.record) is not None
    ]
    assert sorted(rows) == expected


def test_every_entry_points_to_its_record(session: SparkSession) -> None:
    entries = session.sql("SELECT count(*) FROM queues WHERE NOT is_filler").collect()[0][0]
    matching = session.sql(
        "SELECT count(*) FROM queues q JOIN log l USING (physical_offset, size, topic, queue_id, queue_offset)"
    ).collect()[0][0]

    assert entries == matching > 0


@pytest.mark.parametrize("example", _EXAMPLES, ids=range(len(_EXAMPLES)))
def test_documented_sql_runs(session: SparkSession, example: str) -> None:
    session.sql(example).collect()


def test_queries_of_one_view_do_not_know_of_each_other(session: SparkSession) -> None:
    """Spark kept a filter that was pushed down for the next query, and for the other side of a union."""
    everything = session.sql("SELECT physical_offset, store_timestamp, queue_id, queue_offset FROM log").collect()
    middle = sorted(everything)[len(everything) // 2]
    moment = f"timestamp_millis({int(middle['store_timestamp'].timestamp() * 1_000)})"
    expected = {
        f"physical_offset >= {middle[0]}": [row for row in everything if row[0] >= middle[0]],
        f"store_timestamp < {moment}": [row for row in everything if row[1] < middle[1]],
        "queue_id IN (0, 1) AND queue_offset > 3": [row for row in everything if row[2] in (0, 1) and row[3] > 3],
        "true": everything,
    }
    for condition, rows in expected.items():
        found = session.sql(f"SELECT physical_offset FROM log WHERE {condition}").collect()
        assert sorted(row[0] for row in found) == sorted(row[0] for row in rows), condition
    parts = " UNION ALL ".join(f"SELECT physical_offset FROM log WHERE {condition}" for condition in expected)
    assert len(session.sql(parts).collect()) == sum(map(len, expected.values()))


def test_body_and_its_damage_are_shown(session: SparkSession, equal_group: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(equal_group[0], folder)
    victim = next(piece for piece in _records(folder) if piece.end_offset - piece.start_offset > 300)
    write_at(folder / "commitlog" / f"{0:020d}", victim.start_offset + 100, b"\xff\x00\xff")

    table = session.read.format("commitlog").option("body", "true").load(str(folder))
    rows = table.where("NOT body_crc_ok").select("physical_offset", "body", "body_bytes").collect()

    assert [row["physical_offset"] for row in rows] == [victim.start_offset]
    assert len(rows[0]["body"]) == rows[0]["body_bytes"]
    assert b"\xff\x00\xff" in bytes(rows[0]["body"])


def test_a_wrong_option_says_what_would_be_right(equal_group: list[Path]) -> None:
    with pytest.raises(ValueError, match="write true or false"):
        CommitLogSource({"path": str(equal_group[0]), "body": "perhaps"}).schema()


def test_a_stream_goes_on_where_its_checkpoint_ends(
    session: SparkSession, equal_group: list[Path], tmp_path: Path
) -> None:
    """Two queries of one checkpoint, and a log that grows between them."""
    grown, folder = equal_group[0], tmp_path / "broker-a"
    every_row = sorted(row[0] for row in session.sql("SELECT physical_offset FROM log").collect())
    last = every_row[len(every_row) // 2]
    shutil.copytree(grown, folder)
    for path in (folder / "commitlog").iterdir():
        kept = max(0, last - int(path.name))
        data = path.read_bytes()
        path.write_bytes(data[:kept] + bytes(len(data) - kept))
    shutil.rmtree(folder / "consumequeue")

    def read_on() -> list[int]:
        stream = session.readStream.format("commitlog").option("maxBytesPerTrigger", "20000")
        rows = stream.option("columns", "physical_offset").load(str(folder))
        results = str(tmp_path / "rows")
        query = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start(results).awaitTermination(120)
        return sorted(row[0] for row in session.read.parquet(results).collect())

    before = read_on()
    shutil.copytree(grown, folder, dirs_exist_ok=True)

    assert before == [offset for offset in every_row if offset < last]
    assert read_on() == every_row
