"""The log as tables, read without Spark: rows of what is damaged, and of what is none of a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

from support.audit_stores import copy_group
from support.store_damage import write_at
from tandemmq.consistency.data_sources.commit_log_source import CommitLogReader, StoreOptions
from tandemmq.consistency.data_sources.consume_queue_source import ConsumeQueueReader

_ENTRY = Struct(">qiq")
_BORN_TIMESTAMP_AT = 40
_STORE_TIMESTAMP_AT = 56


@pytest.fixture
def folder(equal_group: list[Path], tmp_path: Path) -> Path:
    """A store to be damaged."""
    return copy_group(equal_group[:1], tmp_path / "broker-a")[0]


def _rows(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def _options(folder: Path) -> StoreOptions:
    return StoreOptions.of({"path": str(folder)})


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


@pytest.mark.parametrize("damaged_ms", [0, 1 << 62])
def test_a_damaged_time_hides_no_other_record_from_a_filter_by_time(damaged_ms: int, folder: Path) -> None:
    """Of the first record of a file: by it files were left out."""
    every_row = _rows(_batches(CommitLogReader(_options(folder))))
    for path in (folder / "commitlog").iterdir():
        write_at(path, _STORE_TIMESTAMP_AT, damaged_ms.to_bytes(8, "big"))
    moment = every_row[len(every_row) // 2]["store_timestamp"]
    damaged = {int(path.name) for path in (folder / "commitlog").iterdir()}
    for one in (GreaterThanOrEqual(("store_timestamp",), moment), LessThan(("store_timestamp",), moment)):
        reader = CommitLogReader(_options(folder))
        list(reader.pushFilters([one]))

        found = {row["physical_offset"] for row in _rows(_batches(reader))}

        due = {
            row["physical_offset"]
            for row in every_row
            if (row["store_timestamp"] >= moment) is isinstance(one, GreaterThanOrEqual)
        }
        assert due - damaged <= found


def _batches(reader: CommitLogReader) -> Iterator[pa.RecordBatch]:
    return (batch for part in reader.partitions() for batch in reader.read(part))
