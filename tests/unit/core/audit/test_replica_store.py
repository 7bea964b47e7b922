"""What the files of a folder say of a replica."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.audit_stores import AUDIT_OPTIONS, copy_group, replicate
from support.replica_folders import open_replica
from tandemmq.core.audit.replica_store import (
    ReplicaFacts,
    ReplicaFiles,
    ReplicaStore,
    StoreEntry,
    metadata_texts,
    whole_file,
)
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.replication.log_history import LogRange

SEGMENT_BYTES = AUDIT_OPTIONS.commit_log_file_bytes


@pytest.fixture
def folder(equal_group: list[Path], tmp_path: Path) -> Path:
    return copy_group(equal_group[:1], tmp_path)[0]


def test_store_that_was_ended_in_order(equal_group: list[Path]) -> None:
    facts = open_replica(equal_group[0], broker_id=2).facts
    assert facts.broker_id == 2
    assert facts.segment_bytes == SEGMENT_BYTES
    assert not facts.is_running
    assert facts.min_offset == 0
    assert 3 * SEGMENT_BYTES < facts.end_offset == facts.queues_offset
    assert not facts.holes
    assert ReplicaFacts.from_json(facts.to_json()) == facts


def test_few_heads_are_read_of_many_files_and_the_same_of_replicas_that_differ_in_length(folder: Path) -> None:
    store = open_replica(folder)
    assert list(store.file_heads()) == [number * SEGMENT_BYTES for number in range(4)]
    end = store.facts.end_offset
    for size in (256, 1024, 4096):
        chosen = []
        for held in (LogRange(0, end), LogRange(2 * size, end - 3 * size), LogRange(size, end // 2 + 5)):
            facts = replace(store.facts, min_offset=held.start_offset, end_offset=held.end_offset, segment_bytes=size)
            heads = ReplicaStore(store.files, facts).file_heads()
            assert len(heads) <= 18
            assert all(held.start_offset <= offset <= held.end_offset - 88 for offset in heads)
            chosen.append(heads)
        assert len(chosen[0].keys() & chosen[1].keys()) >= 8
        assert len(chosen[0].keys() & chosen[2].keys()) >= 4


def test_folder_without_a_log(tmp_path: Path) -> None:
    assert not open_replica(tmp_path).file_heads()
    facts = open_replica(tmp_path).facts
    assert (facts.min_offset, facts.end_offset, facts.holes) == (0, 0, ())


def test_log_without_consume_queues_is_walked(folder: Path) -> None:
    end_offset = open_replica(folder).facts.end_offset
    (folder / "consumequeue").rename(folder / "elsewhere")
    assert open_replica(folder).facts.end_offset == end_offset


def test_lost_tail_is_known_to_the_consume_queues(folder: Path) -> None:
    end_offset = open_replica(folder).facts.end_offset
    with (folder / "commitlog" / f"{3 * SEGMENT_BYTES:020d}").open("r+b") as file:
        file.seek(end_offset - 3 * SEGMENT_BYTES - 5000)
        file.write(bytes(5000))
    assert open_replica(folder).facts.end_offset == end_offset


def test_lost_last_file_is_a_hole(folder: Path) -> None:
    end_offset = open_replica(folder).facts.end_offset
    (folder / "commitlog" / f"{3 * SEGMENT_BYTES:020d}").unlink()
    facts = open_replica(folder).facts
    assert facts.end_offset == end_offset
    assert facts.holes == (LogRange(3 * SEGMENT_BYTES, end_offset),)


def test_wrong_newest_queue_entry_makes_no_tail(folder: Path) -> None:
    end_offset = open_replica(folder).facts.end_offset
    path = folder / "consumequeue" / "payments" / "0"
    last = max(file for file in path.iterdir() if any(file.read_bytes()[:20]))
    data = bytearray(last.read_bytes())
    used = len(data.rstrip(b"\0")) // 20 * 20
    data[used : used + 20] = (end_offset + 4000).to_bytes(8, "big") + (500).to_bytes(4, "big") + bytes(8)
    last.write_bytes(data)
    assert open_replica(folder).facts.end_offset == end_offset


def test_short_file_is_a_hole_to_its_end(folder: Path) -> None:
    os.truncate(folder / "commitlog" / f"{SEGMENT_BYTES:020d}", 1000)
    facts = open_replica(folder).facts
    assert facts.segment_bytes == SEGMENT_BYTES
    assert facts.holes == (LogRange(SEGMENT_BYTES + 1000, 2 * SEGMENT_BYTES),)


def test_log_is_read_across_files_and_holes_as_zeros(folder: Path) -> None:
    store = open_replica(folder)
    first, second = (path.read_bytes() for path in sorted((folder / "commitlog").iterdir())[:2])
    assert store.read_log(SEGMENT_BYTES - 10, SEGMENT_BYTES + 10) == first[-10:] + second[:10]
    assert bytes(store.read_log(9 * SEGMENT_BYTES, 9 * SEGMENT_BYTES + 5)) == bytes(5)
    assert not store.read_log(5, 5)


def test_slave_that_joined_late_begins_where_its_first_file_does(equal_group: list[Path], tmp_path: Path) -> None:
    replicate(equal_group[0], tmp_path / "late", from_offset=SEGMENT_BYTES)
    assert open_replica(tmp_path / "late").facts.min_offset == SEGMENT_BYTES


def test_queues_are_read_across_files(equal_group: list[Path]) -> None:
    store = open_replica(equal_group[0])
    assert ("orders", 3) in set(store.queues())
    path = equal_group[0] / "consumequeue" / "payments" / "0"
    whole = b"".join(file.read_bytes() for file in sorted(path.iterdir()))
    assert store.read_queue("payments", 0, 190, 30) == whole[3800:4400]
    assert store.read_queue("payments", 0, 10_000, 5) == b""
    assert store.read_queue("nothing", 0, 0, 5) == b""


@dataclass
class ExchangedFiles:
    """Files of which each is as `later` has it once its folder has been listed."""

    files: ReplicaFiles
    later: dict[str, bytes]

    def list_folder(self, path: str) -> list[StoreEntry]:
        return self.files.list_folder(path)

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        if (data := self.later.get(path)) is None:
            return self.files.read(path, offset, length)
        return data[offset : offset + length]


@given(file=st.sampled_from(MetadataFile), growth=st.integers(-200, 300_000))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_table_that_is_written_again_while_it_is_read_is_read_whole(
    equal_group: list[Path], file: MetadataFile, growth: int
) -> None:
    """Running brokers write some of them all the time. The beginning of a table is none, and no broker's fault."""
    files = open_replica(equal_group[0]).files
    path = f"config/{file.value}"
    before = bytes(files.read(path, 0, 1 << 20))
    later = json.dumps({"later": "x" * max(0, len(before) + growth)}).encode()
    exchanged = ExchangedFiles(files, {path: later})
    if before:
        assert metadata_texts(exchanged, (file,))[file] == later.decode()
        assert metadata_texts(files, (file,))[file] == before.decode()
    assert whole_file(exchanged, path, 0) == later


def test_metadata_falls_back_to_the_bak_file(folder: Path) -> None:
    store = open_replica(folder)
    topics = folder / "config" / MetadataFile.TOPICS.value
    assert store.metadata(MetadataFile.TOPICS) == topics.read_text()
    topics.rename(topics.with_name("topics.json.bak"))
    assert store.metadata(MetadataFile.TOPICS)
    topics.with_name("topics.json.bak").unlink()
    assert store.metadata(MetadataFile.TOPICS) is None


def test_checkpoint_of_a_killed_store_says_how_far_its_queues_go(folder: Path) -> None:
    durable = open_replica(folder).checkpoint().logics_physical_offset
    assert durable > 0
    (folder / "abort").write_text("1")
    assert open_replica(folder).facts.queues_offset == durable + 1
