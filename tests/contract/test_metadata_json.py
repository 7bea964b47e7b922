"""Metadata files as RocketMQ 5.5.0 wrote them, and as we write them."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from tandemmq.core.metadata.metadata_store import DataVersion, read_java_json
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable, DelayOffsetTable, GroupOffset
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig, SubscriptionGroupTable
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable

FROM_JAVA: Final = Path(__file__).parent / "samples" / "store" / "config"

TOPICS = """{
\t"dataVersion":{
\t\t"counter":1,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000000
\t},
\t"topicConfigTable":{
\t\t"orders":{
\t\t\t"attributes":{
\t\t\t\t"message.type":"FIFO"
\t\t\t},
\t\t\t"order":false,
\t\t\t"perm":6,
\t\t\t"readQueueNums":8,
\t\t\t"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"orders",
\t\t\t"topicSysFlag":0,
\t\t\t"writeQueueNums":4
\t\t}
\t}
}"""

GROUPS = """{
\t"dataVersion":{
\t\t"counter":1,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000000
\t},
\t"forbiddenTable":{},
\t"subscriptionGroupTable":{
\t\t"billing":{
\t\t\t"attributes":{},
\t\t\t"brokerId":0,
\t\t\t"consumeBroadcastEnable":true,
\t\t\t"consumeEnable":true,
\t\t\t"consumeFromMinEnable":true,
\t\t\t"consumeMessageOrderly":true,
\t\t\t"consumeTimeoutMinute":15,
\t\t\t"groupName":"billing",
\t\t\t"groupRetryPolicy":{
\t\t\t\t"type":"CUSTOMIZED"
\t\t\t},
\t\t\t"groupSysFlag":0,
\t\t\t"notifyConsumerIdsChangedEnable":true,
\t\t\t"retryMaxTimes":5,
\t\t\t"retryQueueNums":1,
\t\t\t"whichBrokerWhenConsumeSlowly":1
\t\t}
\t}
}"""

CONSUMER_OFFSETS = """{
\t"dataVersion":{
\t\t"counter":1,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000000
\t},
\t"offsetTable":{
\t\t"orders@billing":{
\t\t\t0:123,
\t\t\t1:45
\t\t}
\t}
}"""

DELAY_OFFSETS = """{
\t"dataVersion":{
\t\t"counter":2,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000000
\t},
\t"offsetTable":{
\t\t1:10,
\t\t3:7
\t}
}"""

NOW_MS: Final = 1_700_000_000_000


@pytest.mark.parametrize("file", sorted(FROM_JAVA.iterdir()), ids=lambda file: file.name)
def test_every_file_of_a_java_broker_is_readable(file: Path) -> None:
    assert list(read_java_json(file.read_text()))


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("topics.json", TopicTable()),
        ("subscriptionGroup.json", SubscriptionGroupTable()),
        ("delayOffset.json", DelayOffsetTable()),
    ],
)
def test_java_files_are_written_back_byte_for_byte(
    name: str, table: TopicTable | SubscriptionGroupTable | DelayOffsetTable
) -> None:
    text = (FROM_JAVA / name).read_text()
    table.load_json(text)
    assert table.to_json() == text


def test_java_consumer_offsets_are_read_and_written_without_what_java_derives() -> None:
    text = (FROM_JAVA / "consumerOffset.json").read_text()
    table = ConsumerOffsetTable()
    table.load_json(text)
    assert list(table) == [
        GroupOffset("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, 1),
        GroupOffset("CID_DefaultHeartBeatSyncerTopic@broadcast", "DefaultHeartBeatSyncerTopic", 0, 0),
        GroupOffset("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 2),
    ]
    assert table.version == DataVersion(0, 1795259914321, 0)
    start, end = text.index('\t"groupTopicMap"'), text.index('\t"offsetTable"')
    assert table.to_json() == text[:start] + text[end:]


def test_java_topics_keep_their_message_type() -> None:
    table = TopicTable()
    table.load_json((FROM_JAVA / "topics.json").read_text())
    types = {topic.topic_name: topic.message_type for topic in table if topic.topic_name.startswith("sample")}
    assert types == {
        "sample": "NORMAL",
        "sample-bcq": "NORMAL",
        "sample-delay": "DELAY",
        "sample-fifo": "FIFO",
        "sample-normal": "NORMAL",
        "sample-tx": "TRANSACTION",
    }


def test_topics_as_we_write_them() -> None:
    table = TopicTable()
    attributes = MappingProxyType({"message.type": "FIFO"})
    table.put(TopicConfig("orders", 8, 4, attributes=attributes), now_ms=NOW_MS)
    assert table.to_json() == TOPICS


def test_groups_as_we_write_them() -> None:
    table = SubscriptionGroupTable()
    table.put(SubscriptionGroupConfig("billing", consume_message_orderly=True, retry_max_times=5), now_ms=NOW_MS)
    assert table.to_json() == GROUPS


def test_consumer_offsets_as_we_write_them() -> None:
    table = ConsumerOffsetTable()
    table.commit_all([GroupOffset("billing", "orders", 0, 123), GroupOffset("billing", "orders", 1, 45)], now_ms=NOW_MS)
    assert table.to_json() == CONSUMER_OFFSETS


def test_delay_offsets_as_we_write_them() -> None:
    table = DelayOffsetTable()
    table.advance(1, 10, now_ms=NOW_MS)
    table.advance(3, 7, now_ms=NOW_MS)
    assert table.to_json() == DELAY_OFFSETS
