"""Nothing that any replica held and nobody removed is lost, whoever is older, empty, or heard first."""

from __future__ import annotations

import random
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.metadata.metadata_store import read_java_json
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable, DelayOffsetTable
from tandemmq.core.metadata.replica_merge import MARKS_KEPT_MS, REMOVALS_MAX, Entries, merge_replica, removed
from tandemmq.core.metadata.subscription_group_table import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    system_subscription_groups,
)
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable, system_topics

Table: TypeAlias = TopicTable | SubscriptionGroupTable | ConsumerOffsetTable | DelayOffsetTable

NAMES = ("A", "B", "C")
EARLY_MS, LATE_MS = 1_000_000, 1_000_020


class Broker:
    """One broker's tables, and what was ever removed or set by an operator."""

    def __init__(self, *texts: str) -> None:
        self.topics, self.groups, self.offsets = TopicTable(), SubscriptionGroupTable(), ConsumerOffsetTable()
        self.delays = DelayOffsetTable()
        for table, text in zip(self.tables, texts, strict=False):
            table.load_json(text)
        self.topics.add_system(system_topics(cluster="c", broker_name="b", auto_create_topic=True))
        self.groups.add_system(system_subscription_groups())
        self.removed: set[str] = set()
        self.was_set: set[tuple[str, int]] = set()

    @property
    def tables(self) -> tuple[Table, ...]:
        return self.topics, self.groups, self.offsets, self.delays

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(table.to_json() for table in self.tables)

    @property
    def names(self) -> tuple[set[str], set[str]]:
        return {topic.topic_name for topic in self.topics}, {group.group_name for group in self.groups}

    @property
    def configs(self) -> tuple[object, ...]:
        return (
            {topic.topic_name: topic for topic in self.topics},
            {group.group_name: group for group in self.groups},
            set(self.offsets),
            {level: self.delays.offset(level) for level in range(4)},
        )

    def live(self, steps: list[Step]) -> Broker:
        for kind, name, number, now_ms in steps:
            if kind == "put":
                self.topics.put(TopicConfig(name, number + 1, number + 1), now_ms=now_ms)
                self.groups.put(SubscriptionGroupConfig(name, retry_max_times=number), now_ms=now_ms)
            elif kind == "remove":
                self.topics.remove(name, now_ms=now_ms)
                self.groups.remove(name, now_ms=now_ms)
                self.offsets.remove_topic(name, now_ms=now_ms)
                self.removed.add(name)
            elif kind == "reset":
                self.offsets.reset("G", name, number % 2, number, now_ms=now_ms)
                self.was_set.add((name, number % 2))
            else:
                self.offsets.commit("G", name, number % 2, number, now_ms=now_ms)
                self.delays.advance(number % 4, number, now_ms=now_ms)
        return self

    def hear(self, texts: tuple[str, ...]) -> list[str]:
        return [line for table, text in zip(self.tables, texts, strict=True) for line in table.merge_replica(text)]


Step: TypeAlias = tuple[str, str, int, int]
Steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "remove", "reset", "commit"]),
        st.sampled_from(NAMES),
        st.integers(0, 9),
        # A clock that stands still or goes back is one too.
        st.integers(EARLY_MS, LATE_MS),
    ),
    max_size=20,
)


@given(history=Steps, copies=st.lists(st.integers(0, 20), max_size=3), own=st.none() | st.integers(0, 20))
def test_a_rolled_back_or_empty_disk_comes_to_what_the_newest_copy_has(
    history: list[Step], copies: list[int], own: int | None
) -> None:
    """One history, of which each replica holds the part up to some step, and the starting master another or nothing."""
    newest = Broker().live(history[: max([*copies, own or 0])])
    held = [Broker().live(history[:end]).texts for end in sorted(copies, reverse=True)]
    master = Broker() if own is None else Broker(*Broker().live(history[:own]).texts)
    for texts in held:
        master.hear(texts)
    assert master.configs == newest.configs
    version = [table.version for table in master.tables]
    for texts in held:
        assert master.hear(texts) == []
    assert [table.version for table in master.tables] == version, "heard again it changes nothing"
    for texts in held:
        slave = Broker(*texts)
        for table, mine in zip(slave.tables, master.tables, strict=True):
            assert table.apply_from_master(mine.to_json(), mine.version) == []
        assert slave.configs == master.configs


@given(shared=Steps, parts=st.lists(Steps, min_size=1, max_size=3), seed=st.integers(0, 99))
def test_nothing_is_lost_that_nobody_removed_even_when_histories_parted(
    shared: list[Step], parts: list[list[Step]], seed: int
) -> None:
    """Masters that went on without each other: what an operator accepted, or two with one id."""
    brokers = [Broker(*Broker().live(shared).texts).live(steps) for steps in parts]
    removed_names = {name for broker in [*brokers, Broker().live(shared)] for name in broker.removed}
    was_set = {queue for broker in [*brokers, Broker().live(shared)] for queue in broker.was_set}
    outcomes = []
    for _ in range(2):
        random.Random(seed).shuffle(brokers)
        master = Broker()
        for broker in brokers:
            master.hear(broker.texts)
        outcomes.append((master.names, set(master.offsets)))
        for broker in brokers:
            for ours, theirs in zip(master.names, broker.names, strict=True):
                assert theirs - ours <= removed_names
            for group, topic, queue_id, offset in broker.offsets:
                if topic not in removed_names and (topic, queue_id) not in was_set:
                    reached = master.offsets.offset(group, topic, queue_id)
                    assert reached is not None
                    assert reached >= offset
            assert all(master.delays.offset(level) >= broker.delays.offset(level) for level in range(4))
        seed += 1
    assert outcomes[0] == outcomes[1], "the order in which replicas are heard does not matter"


@given(history=Steps, master_history=Steps)
def test_a_slave_loses_nothing_to_a_master_that_nobody_told_to_remove_it(
    history: list[Step], master_history: list[Step]
) -> None:
    slave, master = Broker().live(history), Broker().live(master_history)
    before = slave.names
    for table, theirs in zip(slave.tables, master.tables, strict=True):
        table.apply_from_master(theirs.to_json(), theirs.version)
    for held, kept in zip(before, slave.names, strict=True):
        assert held - kept <= master.removed
    for table, theirs in zip(slave.tables, master.tables, strict=True):
        again = table.to_json()
        table.apply_from_master(theirs.to_json(), theirs.version)
        assert table.to_json() == again


@pytest.mark.parametrize("full_changed_ms", [1, LATE_MS])
def test_a_new_brokers_own_topics_are_never_the_newer_ones(full_changed_ms: int) -> None:
    full = Broker()
    full.topics.put(TopicConfig("TBW102", 4, 4), now_ms=full_changed_ms)
    full.groups.put(SubscriptionGroupConfig("TOOLS_CONSUMER", retry_max_times=3), now_ms=full_changed_ms)
    new = Broker()
    assert not new.topics.version.is_newer_than(full.topics.version)
    new.hear(full.texts)
    assert new.configs == full.configs
    assert [table.version for table in new.tables] == [table.version for table in full.tables]


def test_old_marks_go_by_age_and_by_number() -> None:
    entries: Entries[int] = Entries({"A": 1, "B": 2}, {"gone": 5})
    assert removed(entries, "A", now_ms=MARKS_KEPT_MS + 6) == Entries({"B": 2}, {"A": MARKS_KEPT_MS + 6})
    many: Entries[int] = Entries({}, {str(number): number for number in range(1, REMOVALS_MAX + 1)})
    merged = merge_replica(many, Entries({}, {"new": REMOVALS_MAX + 1}), theirs_newer=True)
    assert len(merged.removals) == REMOVALS_MAX
    assert "1" not in merged.removals


def test_what_one_slave_kept_reaches_the_others_once_it_is_the_master() -> None:
    """Its master was an older copy that lacked it. All three hold the table under one version by then."""
    master, keeper, other = TopicTable(), TopicTable(), TopicTable()
    keeper.put(TopicConfig("Kept", 1, 1), now_ms=EARLY_MS)
    master.put(TopicConfig("Other", 1, 1), now_ms=LATE_MS)
    for slave in (keeper, other):
        slave.apply_from_master(master.to_json(), master.version)
    assert keeper.version == other.version == master.version
    assert (keeper.get("Kept"), other.get("Kept")) == (TopicConfig("Kept", 1, 1), None)
    keeper.renew(now_ms=LATE_MS)
    assert keeper.version.is_newer_than(other.version)
    other.apply_from_master(keeper.to_json(), keeper.version)
    assert other.get("Kept") == TopicConfig("Kept", 1, 1)


@pytest.mark.parametrize("table", [TopicTable(), ConsumerOffsetTable()])
def test_a_table_that_nobody_changed_is_as_old_under_a_new_master(table: TopicTable | ConsumerOffsetTable) -> None:
    before = table.version
    table.renew(now_ms=LATE_MS)
    assert table.version == before


@given(shared=Steps, unconfirmed=Steps, later=Steps)
def test_what_was_confirmed_to_nobody_gives_way_and_leaves_no_mark(
    shared: list[Step], unconfirmed: list[Step], later: list[Step]
) -> None:
    """A master was lost with what it had changed last; its heir went on, and it comes back as that one's slave."""
    held = Broker().live(shared).texts
    lost, heir = Broker(*held).live(unconfirmed), Broker(*held).live(later)
    texts = heir.texts
    lost.topics.give_way(texts[0], is_needed=lambda name: False)
    lost.groups.give_way(texts[1], is_needed=lambda name: False)
    lost.offsets.give_way(texts[2])
    for table, theirs in zip(lost.tables, heir.tables, strict=True):
        table.apply_from_master(theirs.to_json(), theirs.version)
    for table, theirs in ((lost.topics, heir.topics), (lost.groups, heir.groups)):
        assert read_java_json(table.to_json()).canonical() == read_java_json(theirs.to_json()).canonical()
    assert lost.offsets.marks == heir.offsets.marks
    # What consumers finished stays finished.
    for group, topic, queue_id, offset in heir.offsets:
        reached = lost.offsets.offset(group, topic, queue_id)
        assert reached is not None
        assert reached >= offset or (topic, queue_id) in heir.was_set | lost.was_set or topic in lost.removed
    # Once more there is nothing to let go.
    assert lost.topics.give_way(texts[0], is_needed=lambda name: False) == []
    assert lost.groups.give_way(texts[1], is_needed=lambda name: False) == []
    assert lost.offsets.give_way(texts[2]) == []


@given(shared=Steps, unconfirmed=Steps, needed=st.sets(st.sampled_from(NAMES)))
def test_what_is_needed_does_not_give_way(shared: list[Step], unconfirmed: list[Step], needed: set[str]) -> None:
    held = Broker().live(shared).texts
    lost, heir = Broker(*held).live(unconfirmed), Broker(*held)
    before, removed_there = lost.names[0], set(heir.removed)
    lost.topics.give_way(heir.texts[0], is_needed=needed.__contains__)
    assert before & (needed | heir.names[0]) - removed_there <= lost.names[0]
