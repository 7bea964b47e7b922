"""Topics of a broker."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from tandemmq.core.metadata.metadata_store import DataVersion, InvalidTopic, MetadataCorrupt
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable, is_system_topic, system_topics


def test_a_change_makes_a_new_version_and_a_repetition_does_not() -> None:
    table = TopicTable()
    assert table.put(TopicConfig("T", 8, 8), now_ms=5)
    assert table.version == DataVersion(0, 5, 1)
    assert not table.put(TopicConfig("T", 8, 8), now_ms=6)
    assert table.put(TopicConfig("T", 8, 4), now_ms=7)
    assert table.remove("T", now_ms=8)
    assert not table.remove("T", now_ms=9)
    assert table.version == DataVersion(0, 8, 3)


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig("", 1, 1),
        TopicConfig("a b", 1, 1),
        TopicConfig("ä", 1, 1),
        TopicConfig("x" * 128, 1, 1),
        TopicConfig("%RETRY%" + "x" * 249, 1, 1),
        TopicConfig("T", 0, 1),
        TopicConfig("T", 1, 1025),
        TopicConfig("T", 1, 1, perm=16),
        TopicConfig("T", 1, 1, attributes=MappingProxyType({"message.type": "ODD"})),
    ],
)
def test_a_topic_outside_the_limits_is_refused(config: TopicConfig) -> None:
    table = TopicTable()
    with pytest.raises(InvalidTopic):
        table.put(config, now_ms=0)
    assert len(table) == 0


def test_limits_themselves_are_fine() -> None:
    table = TopicTable()
    table.put(TopicConfig("x" * 127, 1, 1024), now_ms=0)
    table.put(TopicConfig("%DLQ%" + "g" * 250, 1, 1), now_ms=0)
    assert [topic.message_type for topic in table] == ["NORMAL", "NORMAL"]


def test_corrupt_text_leaves_the_table_as_it_was() -> None:
    table = TopicTable()
    table.put(TopicConfig("T", 8, 8), now_ms=5)
    before = table.to_json()
    for text in ('{"topicConfigTable":{"A":{"perm":"six"}}}', '{"dataVersion":7}', "{"):
        with pytest.raises(MetadataCorrupt):
            table.load_json(text)
    assert table.to_json() == before


def test_a_slave_takes_its_masters_table_and_keeps_what_nobody_deleted() -> None:
    master, slave = TopicTable(), TopicTable()
    for name in ("kept", "deleted", "again"):
        slave.put(TopicConfig(name, 8, 8), now_ms=50)
        if name != "kept":
            master.put(TopicConfig(name, 8, 8), now_ms=5)
            assert master.remove(name, now_ms=6)
    master.put(TopicConfig("again", 2, 2), now_ms=7)
    notices = slave.apply_from_master(master.to_json(), master.version)
    assert notices == ["topic kept: kept, since the master lacks it and nobody deleted it"]
    assert {topic.topic_name: topic.read_queue_count for topic in slave} == {"again": 2, "kept": 8}
    assert slave.version == master.version


@pytest.mark.parametrize(("read", "write", "is_marked"), [(8, 4, False), (4, 8, False), (4, 4, True), (9, 9, False)])
def test_a_topic_that_gets_fewer_queues_has_a_mark_of_it(read: int, write: int, *, is_marked: bool) -> None:
    table = TopicTable()
    table.put(TopicConfig("T", 8, 8), now_ms=5)
    assert table.put(TopicConfig("T", read, write), now_ms=7)
    assert table.was_removed("T") is is_marked
    assert table.get("T") == TopicConfig("T", read, write)
    slave = TopicTable()
    slave.apply_from_master(table.to_json(), table.version)
    assert (slave.was_removed("T"), slave.get("T")) == (is_marked, table.get("T"))


def test_fewer_queues_than_there_may_be_change_nothing() -> None:
    table = TopicTable()
    table.put(TopicConfig("T", 8, 8), now_ms=5)
    before = table.to_json()
    with pytest.raises(InvalidTopic):
        table.put(TopicConfig("T", 0, 0), now_ms=7)
    assert table.to_json() == before


def test_the_last_topic_can_be_deleted() -> None:
    master, slave = TopicTable(), TopicTable()
    master.put(TopicConfig("last", 8, 8), now_ms=5)
    slave.apply_from_master(master.to_json(), master.version)
    master.remove("last", now_ms=6)
    assert slave.apply_from_master(master.to_json(), master.version) == []
    assert len(slave) == 0


def test_what_brokers_make_by_themselves_is_the_masters_to_say() -> None:
    master, slave = TopicTable(), TopicTable()
    for table, auto_create in ((master, False), (slave, True)):
        table.add_system(system_topics(cluster="C", broker_name="a", auto_create_topic=auto_create))
    assert slave.apply_from_master(master.to_json(), master.version) == []
    assert slave.get("TBW102") is None


def test_first_boot_makes_the_system_topics() -> None:
    topics = {topic.topic_name: topic for topic in system_topics(cluster="C", broker_name="a", auto_create_topic=True)}
    assert {name: (topic.read_queue_count, topic.perm) for name, topic in topics.items()} == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "C": (16, 7),
        "a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "C_REPLY_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_C": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_a": (1, 1),
        "rmq_sys_wheel_timer": (1, 6),
        "rmq_sys_wheel_timer_op": (1, 6),
    }
    for topic in topics.values():
        topic.check()
        assert is_system_topic(topic.topic_name, cluster="C", broker_name="a")
    assert not is_system_topic("%RETRY%g", cluster="C", broker_name="a")
    names = [topic.topic_name for topic in system_topics(cluster="C", broker_name="a", auto_create_topic=False)]
    assert "TBW102" not in names
