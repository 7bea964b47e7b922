"""Metadata files and their backups."""

from __future__ import annotations

import random

import pytest

from support.simulated_disk import SimulatedCrash, SimulatedDisk
from tandemmq.core.metadata.metadata_store import LoadedFrom, MetadataCorrupt, MetadataFile, MetadataStore
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable

MAIN = "config/topics.json"
BACKUP = "config/topics.json.bak"


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1))


def table_with(*names: str) -> TopicTable:
    table = TopicTable()
    for name in names:
        table.put(TopicConfig(name, 8, 8), now_ms=1)
    return table


def loaded(disk: SimulatedDisk) -> tuple[LoadedFrom, list[str]]:
    table = TopicTable()
    source = MetadataStore(disk).load(MetadataFile.TOPICS, table)
    return source, [topic.topic_name for topic in table]


def test_first_start_has_nothing(disk: SimulatedDisk) -> None:
    assert loaded(disk) == (LoadedFrom.NOWHERE, [])


def test_the_content_before_a_change_is_kept_as_backup(disk: SimulatedDisk) -> None:
    store = MetadataStore(disk)
    one, two = table_with("one").to_json(), table_with("one", "two").to_json()
    assert store.persist(MetadataFile.TOPICS, one)
    assert disk.read_file(BACKUP) is None
    assert store.persist(MetadataFile.TOPICS, two)
    assert not store.persist(MetadataFile.TOPICS, two)
    assert disk.read_file(BACKUP) == one.encode()
    assert loaded(disk) == (LoadedFrom.MAIN, ["one", "two"])


@pytest.mark.parametrize("main", [None, b"", b'{"topicConf', b"\xff\xfe", b"[]"])
def test_an_unreadable_main_file_is_replaced_by_the_backup(disk: SimulatedDisk, main: bytes | None) -> None:
    disk.write_file(BACKUP, table_with("one").to_json().encode())
    if main is not None:
        disk.write_file(MAIN, main)
    assert loaded(disk) == (LoadedFrom.BACKUP, ["one"])


def test_an_unreadable_main_file_never_becomes_the_backup(disk: SimulatedDisk) -> None:
    good = table_with("one").to_json()
    disk.write_file(BACKUP, good.encode())
    disk.write_file(MAIN, b"{")
    store = MetadataStore(disk)
    store.load(MetadataFile.TOPICS, TopicTable())
    store.persist(MetadataFile.TOPICS, table_with("two").to_json())
    assert disk.read_file(BACKUP) == good.encode()
    assert loaded(disk) == (LoadedFrom.MAIN, ["two"])


def test_two_unreadable_files_stop_the_start(disk: SimulatedDisk) -> None:
    disk.write_file(MAIN, b"{")
    disk.write_file(BACKUP, b"}")
    with pytest.raises(MetadataCorrupt, match=r"topics\.json: .*topics\.json\.bak: "):
        loaded(disk)


@pytest.mark.parametrize(("main", "backup"), [(b"", None), (None, b""), (b"", b"{")])
def test_an_empty_file_is_damage_and_no_first_start(
    disk: SimulatedDisk, main: bytes | None, backup: bytes | None
) -> None:
    for path, data in ((MAIN, main), (BACKUP, backup)):
        if data is not None:
            disk.write_file(path, data)
    with pytest.raises(MetadataCorrupt, match="the file is empty"):
        loaded(disk)


def test_what_was_damaged_is_kept_when_another_table_takes_its_place(disk: SimulatedDisk) -> None:
    disk.write_file(MAIN, b"{half")
    store = MetadataStore(disk)
    with pytest.raises(MetadataCorrupt):
        store.load(MetadataFile.TOPICS, TopicTable())
    store.persist(MetadataFile.TOPICS, table_with("one").to_json())
    assert disk.read_file("config/topics.json.damaged") == b"{half"
    assert loaded(disk) == (LoadedFrom.MAIN, ["one"])


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_crash_at_any_step_leaves_the_old_table_or_the_new_one(power_loss: bool) -> None:
    for operation in range(1, 12):
        disk = SimulatedDisk(random.Random(operation))
        store = MetadataStore(disk)
        store.persist(MetadataFile.TOPICS, table_with("one").to_json())
        store.persist(MetadataFile.TOPICS, table_with("two").to_json())
        disk.crash_at_operation(operation)
        try:
            store.persist(MetadataFile.TOPICS, table_with("three").to_json())
        except SimulatedCrash:
            disk.crash(power_loss=power_loss)
            assert loaded(disk)[1] in (["two"], ["three"])
        else:
            assert operation > 1, "the fault must come in the way at least once"
            break
