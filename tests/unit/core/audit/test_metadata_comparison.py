"""Tables of master and slave: what will be copied is no finding, what never will be is."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.store_samples import STORE
from tandemmq.core.audit.findings import Finding, FindingKind
from tandemmq.core.audit.metadata_comparison import MetadataTexts, compare_metadata
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable, DelayOffsetTable
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig, SubscriptionGroupTable
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable

NOW_MS = 1_700_000_000_000
LATER_MS = NOW_MS + 3_600_000
Texts = dict[MetadataFile, str | None]


def texts(*, queues: int = 4, offset: int = 50, retries: int = 16, delayed: int = 7, now_ms: int = NOW_MS) -> Texts:
    """The files of one replica."""
    topics, groups, offsets, delays = TopicTable(), SubscriptionGroupTable(), ConsumerOffsetTable(), DelayOffsetTable()
    topics.put(TopicConfig("orders", queues, queues), now_ms=now_ms)
    groups.put(SubscriptionGroupConfig("billing", retry_max_times=retries), now_ms=now_ms)
    offsets.reset("billing", "orders", 2, offset, now_ms=now_ms)
    delays.advance(3, delayed, now_ms=now_ms)
    return {
        MetadataFile.TOPICS: topics.to_json(),
        MetadataFile.SUBSCRIPTION_GROUPS: groups.to_json(),
        MetadataFile.CONSUMER_OFFSETS: offsets.to_json(),
        MetadataFile.DELAY_OFFSETS: delays.to_json(),
    }


def compare(master: MetadataTexts, slave: MetadataTexts, *, settled: bool = True) -> list[Finding]:
    """With one slave."""
    return compare_metadata("broker-a", master, {1: slave}, settled=settled)


@pytest.mark.parametrize("settled", [False, True])
def test_equal_tables(settled: bool) -> None:
    assert not compare(texts(), texts(), settled=settled)


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    ("slave", "kind"),
    [
        (texts(queues=8), FindingKind.TOPIC_DIFFERS),
        (texts(offset=20), FindingKind.CONSUMER_OFFSET_STALE),
        (texts(retries=3), FindingKind.GROUP_DIFFERS),
        (texts(delayed=5), FindingKind.DELAY_OFFSET_STALE),
    ],
)
def test_same_version_with_other_content(slave: Texts, kind: FindingKind, settled: bool) -> None:
    (finding,) = compare(texts(), slave, settled=settled)
    assert finding.kind is kind
    assert finding.broker_id == 1


@pytest.mark.parametrize("slave", [texts(queues=8), texts(offset=20), texts(retries=3), texts(delayed=5)])
def test_older_table_counts_once_it_is_settled(slave: Texts) -> None:
    master = texts(now_ms=LATER_MS)
    assert not compare(master, slave, settled=False)
    assert len(compare(master, slave, settled=True)) == 1


def test_offsets_a_few_seconds_apart_are_on_their_way() -> None:
    assert not compare(texts(offset=60, now_ms=NOW_MS + 5000), texts(), settled=True)
    assert not compare(texts(), texts(offset=60, now_ms=NOW_MS + 5000), settled=True)


def test_consumer_offset_is_named_with_both_values() -> None:
    (finding,) = compare(texts(offset=50), texts(offset=20))
    assert (finding.topic, finding.queue_id, finding.queue_offset, finding.messages) == ("orders", 2, 20, 30)
    assert "billing" in finding.detail
    assert "offset 20 instead of 50; 30 messages would be consumed again" in finding.detail


def test_offset_ahead_of_the_master_skips_messages() -> None:
    (finding,) = compare(texts(offset=20), texts(offset=50))
    assert "30 messages would be skipped" in finding.detail


def test_topic_the_slave_does_not_know() -> None:
    master = TopicTable()
    for name in ("orders", "payments", "broker-a", "rmq_sys_SYNC_BROKER_MEMBER_broker-a"):
        master.put(TopicConfig(name, 4, 4), now_ms=NOW_MS)
    slave = TopicTable()
    slave.put(TopicConfig("orders", 4, 4), now_ms=NOW_MS)
    findings = compare({MetadataFile.TOPICS: master.to_json()}, {MetadataFile.TOPICS: slave.to_json()})
    assert [(finding.kind, finding.topic) for finding in findings] == [(FindingKind.TOPIC_MISSING, "payments")]


def test_torn_table_is_unreadable_on_whichever_side() -> None:
    torn = texts() | {MetadataFile.TOPICS: '{"dataVersion":{'}
    assert [(found.kind, found.broker_id) for found in compare(torn, texts())] == [(FindingKind.METADATA_UNREADABLE, 0)]
    assert [(found.kind, found.broker_id) for found in compare(texts(), torn)] == [(FindingKind.METADATA_UNREADABLE, 1)]


def test_missing_file_counts_once_it_is_settled() -> None:
    slave: Texts = texts() | {MetadataFile.CONSUMER_OFFSETS: None}
    assert not compare(texts(), slave, settled=False)
    (finding,) = compare(texts(), slave, settled=True)
    assert finding.file == "config/consumerOffset.json"


def test_tables_of_a_java_broker_in_another_order() -> None:
    def read(file: MetadataFile) -> str | None:
        path: Path = STORE / "config" / file.value
        return path.read_text() if path.exists() else None

    java = {file: read(file) for file in MetadataFile}
    ours = dict(java)
    table = TopicTable()
    table.load_json(java[MetadataFile.TOPICS] or "")
    ours[MetadataFile.TOPICS] = table.to_json()
    assert not compare(java, ours)
