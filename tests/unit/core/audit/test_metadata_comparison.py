"""Tables of master and slave: what will be copied is no finding, what never will be is."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.store_samples import STORE
from tandemmq.core.access.users_and_policies import User, UserTable
from tandemmq.core.audit.findings import Finding, FindingKind, Verdict
from tandemmq.core.audit.metadata_comparison import (
    MetadataTexts,
    compare_metadata,
    older_than_seen,
    table_marks,
    without_secrets,
)
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable, DelayOffsetTable, GroupOffset
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
    # An offset only goes forward; of another number of queues nothing tells which was meant.
    is_offset = kind in (FindingKind.CONSUMER_OFFSET_STALE, FindingKind.DELAY_OFFSET_STALE)
    assert finding.broker_id == (1 if is_offset else None)
    assert finding.verdict is (Verdict.OWN_EVIDENCE if is_offset else Verdict.UNDECIDED)


@pytest.mark.parametrize("seen_of", [0, 1])
def test_a_table_that_was_seen_with_this_version_is_right(seen_of: int) -> None:
    sides = (texts(retries=16), texts(retries=3))
    marks = table_marks(sides[seen_of])
    (finding,) = compare_metadata("broker-a", sides[0], {1: sides[1]}, settled=True, seen=[marks])
    assert (finding.broker_id, finding.source_broker_id) == (1 - seen_of, seen_of)
    assert finding.verdict is Verdict.STORED_DIGEST


def test_a_master_whose_table_is_older_than_its_slaves_is_wrong() -> None:
    (finding,) = compare(texts(queues=4), texts(queues=8, now_ms=LATER_MS))
    assert (finding.broker_id, finding.source_broker_id, finding.verdict) == (0, 1, Verdict.OWN_EVIDENCE)
    assert "write_queue_count 4 instead of 8" in finding.detail


@pytest.mark.parametrize(("queues", "told"), [(4, 1), (8, 0)])
def test_a_table_that_all_replicas_have_older_or_otherwise_than_seen(queues: int, told: int) -> None:
    now, newer = texts(queues=4), texts(queues=queues, now_ms=LATER_MS if told else NOW_MS)
    seen = {0: table_marks(newer), 1: table_marks(newer if told else now)}
    found = list(older_than_seen("broker-a", {0: now, 1: now}, seen))
    assert [finding.kind for finding in found][:1] == [FindingKind.TABLE_OLDER] * told


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
    master = texts(offset=20)
    slave = texts(offset=50) | {MetadataFile.CONSUMER_OFFSETS: moved_on(50)}
    (finding,) = compare(master, slave)
    assert finding.broker_id == 1
    assert "30 messages would be skipped" in finding.detail


def test_a_master_whose_offset_went_back_by_no_operator_is_wrong() -> None:
    (finding,) = compare({MetadataFile.CONSUMER_OFFSETS: moved_on(20)}, {MetadataFile.CONSUMER_OFFSETS: moved_on(50)})
    assert (finding.broker_id, finding.source_broker_id) == (0, 1)
    assert "30 messages would be consumed again" in finding.detail


def test_an_offset_that_its_queue_has_not_reached_is_wrong_though_it_went_further() -> None:
    """On whichever side; an offset at the very end is none of these."""
    sound, wild = {MetadataFile.CONSUMER_OFFSETS: moved_on(50)}, {MetadataFile.CONSUMER_OFFSETS: moved_on(51)}
    for master, slave, victim in ((sound, wild, 1), (wild, sound, 0)):
        (finding,) = compare_metadata(
            "broker-a", master, {1: slave}, settled=True, queue_ends={("orders", 2): 50, ("orders", 1): 9}
        )
        assert (finding.broker_id, finding.source_broker_id) == (victim, 1 - victim)
        assert "offset 51 instead of 50; 1 messages would be skipped" in finding.detail


def moved_on(offset: int) -> str:
    """A table that came to an offset by commits alone."""
    table = ConsumerOffsetTable()
    table.commit_all([GroupOffset("billing", "orders", 2, offset)], now_ms=NOW_MS)
    return table.to_json()


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


def test_each_replica_that_lacks_a_file_is_named() -> None:
    gone = {**texts(), MetadataFile.TOPICS: None}
    found = compare_metadata("broker-a", gone, {1: gone, 2: texts()}, settled=True)
    assert [(own.kind, own.broker_id, own.source_broker_id) for own in found] == [
        (FindingKind.METADATA_UNREADABLE, 0, 2),
        (FindingKind.METADATA_UNREADABLE, 1, 2),
    ]


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


def users(*names: str, secret: str = "c2VhbGVk") -> Texts:
    table = UserTable()
    for name in names:
        table.put(User(name, secret), now_ms=NOW_MS)
    return texts() | {MetadataFile.USERS: table.to_json()}


def test_a_user_that_one_replica_lacks_is_told_and_so_is_another_secret() -> None:
    (lost,) = compare(users("shop"), users("shop") | {MetadataFile.USERS: None})
    assert (lost.kind, lost.broker_id) == (FindingKind.METADATA_UNREADABLE, 1)
    (other,) = compare(users("shop"), users("shop", secret="c2VhbGVL"))
    assert (other.kind, other.verdict) == (FindingKind.ACCESS_DIFFERS, Verdict.UNDECIDED)
    assert "another secret" in other.detail
    assert "c2Vh" not in other.detail


def test_a_table_without_users_is_as_good_as_none() -> None:
    assert not compare(texts(), users())
    assert not compare(users(), texts())


def test_secrets_become_digests_also_in_what_cannot_be_read() -> None:
    text = users("shop")[MetadataFile.USERS] or ""
    for held in (text, text[: text.index("c2VhbGVk") + 5]):
        assert "c2Vh" not in without_secrets(held)
    assert without_secrets(text) != without_secrets(text.replace("c2VhbGVk", "c2VhbGVL"))
    assert not compare(*[users("shop") | {MetadataFile.USERS: without_secrets(text)}] * 2)


def test_a_slave_that_forgot_what_operators_removed_is_told_and_not_one_that_knows_more() -> None:
    table = TopicTable()
    for name in ("orders", "former"):
        table.put(TopicConfig(name, 4, 4), now_ms=NOW_MS)
    table.remove("former", now_ms=NOW_MS + 1)
    knowing = texts() | {MetadataFile.TOPICS: table.to_json()}
    forgetful = {**knowing, MetadataFile.TOPICS: (table.to_json()).replace('"former":', '"farmer":')}
    (finding,) = compare(knowing, forgetful)
    assert (finding.kind, finding.broker_id) == (FindingKind.TOPIC_DIFFERS, 1)
    assert "former" in finding.detail
    more = (table.to_json()).replace('"former":', f'"earlier":{NOW_MS},"former":')
    assert not compare(knowing, {**knowing, MetadataFile.TOPICS: more})
