"""The way back from derived files to the log: what is there besides, and what others have to tell."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from struct import Struct

import pytest

from support.audit_stores import copy_group, open_group
from support.replica_folders import open_replica
from support.store_damage import write_at
from support.store_samples import STORE as JAVA_STORE
from tandemmq.core.audit.derived_facts import DerivedFacts, compare_derived_files, joined_spans
from tandemmq.core.audit.derived_files import check_derived_files
from tandemmq.core.audit.findings import Finding, FindingKind
from tandemmq.core.audit.record_check import check_records
from tandemmq.core.audit.record_columns import read_name
from tandemmq.core.audit.replica_store import ReplicaStore
from tandemmq.core.metadata.metadata_store import MetadataFile

ENTRY = Struct(">qiq")
EXTENSION = Struct(">hqqh")


def checked(store: ReplicaStore, *, is_live: bool = False) -> tuple[list[Finding], DerivedFacts]:
    facts = store.facts
    spans = joined_spans([check_records(store, facts.min_offset, facts.end_offset).queue_spans])
    return check_derived_files(store, spans, (), group_end=facts.end_offset, is_live=is_live)


@pytest.fixture
def folder(equal_group: list[Path], tmp_path: Path) -> Path:
    """A store to be changed."""
    return copy_group(equal_group[:1], tmp_path)[0]


def test_store_of_a_java_broker_holds_nothing_besides() -> None:
    findings, facts = checked(open_replica(JAVA_STORE))
    assert not findings
    assert facts.index_from is not None


def test_facts_survive_the_way_to_the_driver(folder: Path) -> None:
    _, facts = checked(open_replica(folder))
    assert DerivedFacts.from_json(facts.to_json()) == facts


def test_newest_entries_of_a_running_broker_are_no_strangers(folder: Path) -> None:
    """They came after its facts were taken."""
    store = open_replica(folder)
    path = folder / "consumequeue" / "payments" / "0"
    first, end = store.queue_bounds("payments", 0)
    used = sum(1 for number in range(first, end) if any(store.read_queue("payments", 0, number, 1)))
    newest = ENTRY.pack(store.facts.end_offset + 500, 300, 0)
    file_bytes = min(path.iterdir()).stat().st_size
    place = used * ENTRY.size
    write_at(path / f"{place - place % file_bytes:020d}", place % file_bytes, newest)
    running = ReplicaStore(store.files, replace(store.facts, is_running=True))
    assert not checked(running, is_live=True)[0]
    assert [own.kind for own in checked(open_replica(folder))[0]] == [FindingKind.QUEUE_ENTRY_EXTRA]


def test_tags_code_may_lead_into_consumequeue_ext_if_the_unit_is_there(folder: Path) -> None:
    store = open_replica(folder)
    raw = store.read_queue("payments", 0, 0, 1)
    offset, size, tags_code = ENTRY.unpack(raw)
    name = read_name(store.read_log(offset, offset + size), 0, offset)
    assert name is not None
    path = folder / "consumequeue" / "payments" / "0" / f"{0:020d}"
    write_at(path, 0, ENTRY.pack(offset, size, -(1 << 63) + 40))
    wrong = check_records(open_replica(folder), 0, store.facts.end_offset).findings
    assert [own.kind for own in wrong] == [FindingKind.QUEUE_ENTRY_WRONG]
    extension = folder / "consumequeue_ext" / "payments" / "0"
    extension.mkdir(parents=True)
    (extension / f"{0:020d}").write_bytes(
        bytes(40) + EXTENSION.pack(20, tags_code, name.store_timestamp_ms, 0) + bytes(400)
    )
    assert not check_records(open_replica(folder), 0, store.facts.end_offset).findings


def test_index_that_another_replica_has(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:2], tmp_path)
    shutil.rmtree(folders[1] / "index")
    facts = {broker_id: checked(store)[1] for broker_id, store in open_group(folders).items()}
    (finding,) = compare_derived_files("broker-a", facts, {})
    assert (finding.kind, finding.broker_id, finding.source_broker_id) == (FindingKind.INDEX_ENTRY_MISSING, 1, 0)


def test_offset_at_the_end_is_fine_and_one_behind_it_is_not(folder: Path) -> None:
    store = open_replica(folder)
    _, facts = checked(store)
    end = facts.queue_ends["payments", 0]
    for offset, count in ((end, 0), (end + 1, 1)):
        text = f'{{"offsetTable":{{"payments@billing":{{0:{offset}}}}}}}'
        texts = {0: {MetadataFile.CONSUMER_OFFSETS: text}}
        found = compare_derived_files("broker-a", {0: facts}, texts)
        assert [own.kind for own in found] == [FindingKind.OFFSET_BEYOND_END] * count


@pytest.mark.parametrize("seed", range(24))
def test_file_of_any_bytes_in_the_index_is_no_index_and_says_nothing_of_the_log(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    size = min((folder / "index").iterdir()).stat().st_size
    (folder / "index" / f"{chance.randrange(10**16, 10**17)}").write_bytes(chance.randbytes(size))
    findings, _ = checked(open_replica(folder))
    assert [finding.kind for finding in findings] == [FindingKind.INDEX_ENTRY_WRONG]
