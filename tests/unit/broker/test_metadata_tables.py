"""What a broker keeps of its groups' progress."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.queue_memory import QueueMemory
from support.running_time import PATIENCE_S
from support.simulated_disk import SimulatedCrash, SimulatedDisk
from support.stores import ManualClock
from tandemmq.broker.leases import LeaseCopy
from tandemmq.broker.master.group_recovery import recover_metadata
from tandemmq.broker.metadata_tables import MetadataTables, MetadataWrite
from tandemmq.broker.slave.metadata_pull import MetadataPull
from tandemmq.core.access.users_and_policies import Acl, Action, Decision, PolicyEntry, Resource, User
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.subscription import EVERY_TAG
from tandemmq.core.metadata.metadata_store import ROCKETMQ_FILES, VERSIONS_FILE, DataVersion, MetadataFile
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig
from tandemmq.core.metadata.topic_table import TopicConfig


class Progress:
    """A group that consumes three messages of one queue, and the tables its progress goes into."""

    def __init__(self) -> None:
        queues = QueueMemory()
        for _ in range(3):
            queues.put("T", 0)
        self.leases = LeaseTable(
            queues,
            options=DeliveryOptions(consume_from_earliest=True),
            broker_name="broker-a",
            nonce=lambda: 1,
        )
        self.tables = MetadataTables(SimulatedDisk(random.Random(1)), ManualClock(), topics_changed=lambda: None)

    def consume(self, count: int) -> None:
        received = self.leases.receive(
            group="G",
            topic="T",
            queue_ids=[0],
            tag_filter=EVERY_TAG,
            batch_size=count,
            invisible_ms=10_000,
            now_ms=0,
            max_attempts=17,
            auto_renew=False,
            client_id="c",
        )
        for delivery in received.deliveries:
            assert self.leases.acknowledge(group="G", topic="T", handle=delivery.handle, now_ms=0)

    def collected(self) -> int | None:
        self.tables.collect_progress(self.leases)
        return self.tables.consumer_offsets.offset("G", "T", 0)


def test_progress_is_collected_when_it_moved() -> None:
    progress = Progress()
    assert progress.collected() is None
    progress.consume(2)
    assert progress.collected() == 2
    version = progress.tables.consumer_offsets.version
    assert progress.collected() == 2
    assert progress.tables.consumer_offsets.version == version


def test_an_operators_reset_goes_back_and_reaches_the_file() -> None:
    progress = Progress()
    progress.consume(3)
    assert progress.collected() == 3
    progress.leases.reset(group="G", topic="T", queue_id=0, offset=1)
    assert progress.collected() == 1
    assert not progress.tables.persist(MetadataFile.CONSUMER_OFFSETS), "written already"
    progress.consume(1)
    assert progress.collected() == 2


def test_a_removed_group_takes_its_progress_with_it_in_the_files_too() -> None:
    progress = Progress()
    progress.tables.put_group(SubscriptionGroupConfig("G"))
    progress.consume(2)
    assert progress.collected() == 2
    assert progress.tables.remove_group("G")
    assert progress.tables.groups.get("G") is None
    assert progress.tables.consumer_offsets.offset("G", "T", 0) is None
    for file in (MetadataFile.SUBSCRIPTION_GROUPS, MetadataFile.CONSUMER_OFFSETS):
        assert not progress.tables.persist(file), "written already"
    assert not progress.tables.remove_group("G")


@pytest.mark.parametrize("operation", range(1, 5))
def test_a_crash_while_a_group_is_removed_never_leaves_its_progress_alone(operation: int) -> None:
    disk = SimulatedDisk(random.Random(1))
    tables = MetadataTables(disk, ManualClock(), topics_changed=lambda: None)
    tables.put_group(SubscriptionGroupConfig("G"))
    tables.consumer_offsets.commit("G", "T", 0, 2, now_ms=1)
    tables.persist(MetadataFile.CONSUMER_OFFSETS)
    disk.crash_at_operation(operation)
    with pytest.raises(SimulatedCrash):
        tables.remove_group("G")
    disk.crash(power_loss=False)
    restarted = MetadataTables(disk, ManualClock(), topics_changed=lambda: None)
    restarted.load(cluster="c", broker_name="b", auto_create_topic=False)
    assert restarted.groups.get("G") is not None, "it can be removed again"
    restarted.remove_group("G")
    assert restarted.groups.get("G") is None
    assert restarted.consumer_offsets.offset("G", "T", 0) is None


def started(disk: SimulatedDisk, *, was_used: bool = False) -> MetadataTables:
    tables = MetadataTables(disk, ManualClock(), topics_changed=lambda: None)
    tables.load(cluster="c", broker_name="b", auto_create_topic=True, was_used=was_used)
    return tables


def new_disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1))


@pytest.fixture
def full() -> MetadataTables:
    """What a slave holds."""
    tables = started(new_disk())
    tables.put_topic(TopicConfig("T", 8, 8))
    tables.put_group(SubscriptionGroupConfig("G"))
    tables.consumer_offsets.commit("G", "T", 3, 7, now_ms=5)
    tables.delay_offsets.advance(2, 9, now_ms=5)
    tables.put_user(User("ann", "sealed"))
    entry = PolicyEntry(Resource.parse("Topic:T"), frozenset({Action.PUB}), Decision.ALLOW)
    tables.put_acl(Acl("User:ann", (entry,)))
    tables.persist_all()
    return tables


class Peer:
    """A replica that answers with its tables."""

    endpoint = "replica"

    def __init__(self, tables: MetadataTables) -> None:
        self.tables = tables

    async def metadata_table(
        self, file: MetadataFile, known: DataVersion | None, *, accept_copy: bool = False
    ) -> tuple[DataVersion, str | None]:
        table = self.tables.by_file[file]
        is_known = known == table.version or file in self.tables.damaged
        return table.version, None if is_known else table.to_json()


def recover(tables: MetadataTables, replica: MetadataTables) -> list[str]:
    peer: Any = Peer(replica)
    leases: Any = LeaseCopy(SimulatedDisk(random.Random(1)))
    return asyncio.run(recover_metadata(peer, tables, leases))


def texts(tables: MetadataTables) -> list[str]:
    return [table.to_json() for table in tables.by_file.values()]


def test_a_master_with_a_new_disk_takes_everything_from_its_slave_durably(full: MetadataTables) -> None:
    disk = new_disk()
    master = started(disk)
    assert recover(master, full) == [
        "topic T",
        "group G",
        "progress of T@G",
        "delay level 2",
        "user ann",
        "policies of User:ann",
    ]
    assert recover(master, full) == []
    disk.crash(power_loss=True)
    assert texts(started(disk)) == texts(full)


def test_a_slave_keeps_its_tables_when_its_master_comes_with_none(full: MetadataTables) -> None:
    master = started(new_disk())
    follow(full, master)
    assert full.topics.get("T") is not None
    assert full.groups.get("G") is not None
    assert full.consumer_offsets.offset("G", "T", 3) == 7
    assert full.delay_offsets.offset(2) == 9
    assert [file.value for file, lines in full.kept.items() if lines] == [
        "topics.json",
        "subscriptionGroup.json",
        "delayOffset.json",
        "users.json",
        "acls.json",
    ]
    recover(master, full)
    follow(full, master)
    assert not any(full.kept.values()), "the master has them again"


def follow(slave: MetadataTables, master: MetadataTables, *, accepted: bool = True) -> bool:
    """One pull; whether the slave has everything then."""
    pull = MetadataPull(
        tables=slave.by_file,
        master=lambda: "master",
        applied=slave.applied_from_master,
        accepted=lambda: accepted,
        damaged=slave.damaged,
    )
    peer: Any = Peer(master)
    asyncio.run(pull.pull(peer))
    return pull.has_all


def test_nothing_is_taken_from_a_master_whose_log_is_not_followed(full: MetadataTables) -> None:
    before = texts(full)
    master = started(new_disk())
    master.topics.put(TopicConfig("T", 1, 1), now_ms=9)
    assert not follow(full, master, accepted=False)
    assert texts(full) == before
    assert follow(full, master)
    assert texts(full) != before


def test_a_table_that_loses_most_of_its_entries_is_kept_aside() -> None:
    disk = new_disk()
    slave, master = started(disk), started(new_disk())
    for number in range(100):
        master.put_topic(TopicConfig(f"T{number}", 8, 8))
    follow(slave, master)
    long = disk.read_file("config/topics.json")
    for number in range(100):
        master.topics.remove(f"T{number}", now_ms=9)
    master.topics_edited()
    follow(slave, master)
    assert slave.topics.get("T1") is None
    assert disk.read_file("config/topics.json.before-removal") == long


@pytest.mark.parametrize("content", [b"", b"{half a fi", b"\xff"])
@pytest.mark.parametrize("file", list(MetadataFile))
def test_a_damaged_table_comes_from_a_replica_or_keeps_the_master_from_serving(
    full: MetadataTables, file: MetadataFile, content: bytes
) -> None:
    disk = new_disk()
    recover(started(disk), full)
    disk.write_file(f"config/{file.value}", content)
    disk.remove(f"config/{file.value}.bak")
    damaged = started(disk)
    assert list(damaged.damaged) == [file]
    assert f"config/{file.value}" in damaged.damaged[file]
    damaged.persist_all()
    assert disk.read_file(f"config/{file.value}") == content, "nothing takes its place yet"
    if file is not MetadataFile.DELAY_OFFSETS:
        recover(damaged, started(new_disk()))
        assert list(damaged.damaged) == [file], "a new replica has nothing to say"
    assert recover(damaged, full)
    assert not damaged.damaged
    assert texts(started(disk)) == texts(full)


def changed_twice(disk: SimulatedDisk) -> MetadataTables:
    """What was confirmed last is in no `.bak`."""
    tables = started(disk)
    for topic in ("older", "newest"):
        tables.put_topic(TopicConfig(topic, 8, 8))
    return tables


@pytest.mark.parametrize("content", [None, b"", b"{half a fi", b"\xff"])
def test_an_older_copy_beside_a_damaged_table_is_no_table(content: bytes | None) -> None:
    """Its master would have served without the topic that was made last, and with a user that was removed."""
    disk, replica = new_disk(), changed_twice(new_disk())
    changed_twice(disk)
    if content is None:
        disk.remove("config/topics.json")
    else:
        disk.write_file("config/topics.json", content)
    damaged = started(disk, was_used=True)
    assert list(damaged.damaged) == [MetadataFile.TOPICS]
    assert damaged.damaged[MetadataFile.TOPICS].endswith("config/topics.json.bak is what it was before its last change")
    recover(damaged, started(new_disk()))
    assert list(damaged.damaged) == [MetadataFile.TOPICS], "a new replica has nothing to say"
    recover(damaged, replica)
    assert not damaged.damaged
    assert started(disk, was_used=True).topics.get("newest") is not None


def test_an_operator_may_go_on_with_the_older_copy() -> None:
    disk = new_disk()
    changed_twice(disk)
    disk.write_file("config/topics.json", b"{half")
    damaged = started(disk, was_used=True)
    damaged.accept_damage()
    assert damaged.topics.get("older") is not None
    again = started(disk, was_used=True)
    assert not again.damaged
    assert again.topics.get("older") is not None
    assert again.topics.get("newest") is None
    assert disk.read_file("config/topics.json.damaged") == b"{half"


@pytest.mark.parametrize("file", ROCKETMQ_FILES)
def test_a_table_that_is_gone_from_a_disk_that_was_used_is_damaged(full: MetadataTables, file: MetadataFile) -> None:
    disk = new_disk()
    recover(started(disk), full)
    for path in (f"config/{file.value}", f"config/{file.value}.bak"):
        disk.remove(path)
    damaged = started(disk, was_used=True)
    assert damaged.damaged == {file: f"config/{file.value}: the file is gone"}
    recover(damaged, full)
    assert not damaged.damaged
    assert texts(started(disk, was_used=True)) == texts(full)


@pytest.mark.parametrize("was_used", [True, False])
@pytest.mark.parametrize("what", ["gone", "empty", "half", "older", "no entries", "another table", "gone whole"])
@pytest.mark.parametrize("file", [MetadataFile.USERS, MetadataFile.ACLS])
def test_damage_to_users_or_policies_gives_nobody_back_what_was_taken(
    full: MetadataTables, file: MetadataFile, what: str, was_used: bool
) -> None:
    """Whatever is left of the file: no user that was removed, and no first users made anew, before another replica or
    an operator has said what is right."""
    disk = new_disk()
    tables = started(disk)
    deny = PolicyEntry(Resource.parse("Topic:bills"), frozenset({Action.SUB}), Decision.DENY)
    everything = PolicyEntry(Resource.parse("*"), frozenset({Action.ALL}), Decision.ALLOW)
    path, older = f"config/{file.value}", None
    for name in ("ann", "bob"):
        tables.put_user(User(name, "sealed"))
        tables.put_acl(Acl(f"User:{name}", (everything,)))
        older = older or disk.read_file(path)
    tables.put_acl(Acl("User:bob", (everything, deny)))
    tables.remove_user("ann")
    content = {
        "empty": b"",
        "half": (disk.read_file(path) or b"")[:40],
        "older": older,
        "no entries": b'{"dataVersion":{"counter":9,"stateVersion":0,"timestamp":99}}',
        "another table": disk.read_file("config/topics.json"),
    }.get(what)
    if content is None:
        disk.remove(path)
    else:
        disk.write_file(path, content)
    if what == "gone whole":
        disk.remove(f"{path}.bak")
    again = started(disk, was_used=was_used)
    if file is MetadataFile.ACLS and what == "gone whole":
        # It may never have been: nobody may anything then.
        assert again.acls.get("User:bob") is None
        return
    assert list(again.damaged) == [file]
    assert again.users.get("ann") is None
    assert again.acls.get("User:ann") is None
    bob = again.acls.get("User:bob")
    assert bob is None or deny in bob.entries


@pytest.mark.parametrize("file", ROCKETMQ_FILES)
def test_a_slave_has_its_damaged_table_from_its_master_though_nobody_ever_changed_it(file: MetadataFile) -> None:
    disk = new_disk()
    started(disk)
    disk.remove(f"config/{file.value}")
    disk.remove(VERSIONS_FILE)
    slave = started(disk, was_used=True)
    assert list(slave.damaged) == [file]
    assert follow(slave, started(new_disk()))
    assert not slave.damaged
    assert not started(disk, was_used=True).damaged


@pytest.mark.parametrize("content", [None, b"", b"{half a fi", b"\xff"])
@pytest.mark.parametrize("file", ROCKETMQ_FILES)
@pytest.mark.parametrize("tells", ["nobody", "the table before", "an older version"])
def test_a_damaged_table_is_none_where_the_disk_says_that_nobody_ever_changed_it(
    file: MetadataFile, content: bytes | None, tells: str
) -> None:
    """Nobody could give it again, since a replica's says as little, and an operator would be waited for."""
    disk = new_disk()
    started(disk)
    path = f"config/{file.value}"
    changed = b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":9}}'
    if content is None:
        disk.remove(path)
    else:
        disk.write_file(path, content)
    if tells == "the table before":
        disk.write_file(f"{path}.bak", changed)
    elif tells == "an older version":
        disk.remove(VERSIONS_FILE)
    again = started(disk, was_used=True)
    assert list(again.damaged) == ([] if tells == "nobody" else [file])
    if tells == "nobody":
        assert disk.read_file(f"{path}.damaged") == (content or None), "kept all the same"
        assert not started(disk, was_used=True).damaged


def test_an_operator_may_go_on_without_a_damaged_table(full: MetadataTables) -> None:
    disk = new_disk()
    disk.write_file("config/topics.json", b"{half")
    damaged = started(disk)
    (line,) = damaged.accept_damage()
    assert "config/topics.json" in line
    assert not damaged.damaged
    assert disk.read_file("config/topics.json.damaged") == b"{half"
    assert not started(disk).damaged


def test_a_damaged_replica_says_nothing(full: MetadataTables) -> None:
    disk = new_disk()
    disk.write_file("config/topics.json", b"")
    before = full.topics.to_json()
    recover(full, started(disk))
    assert full.topics.to_json() == before


class Written:
    """Tables with a worker that writes when the test says so."""

    def __init__(self) -> None:
        self.disk = new_disk()
        self.tables = started(self.disk)
        self.kicks = 0
        self.tables.attach(self._kicked)
        self.answered: list[str] = []

    def _kicked(self) -> None:
        self.kicks += 1

    def make(self, group: str) -> None:
        self.tables.put_group(SubscriptionGroupConfig(group))
        self.tables.when_group_written(group, lambda: self.answered.append(group))

    def begin(self) -> MetadataWrite:
        write = self.tables.take_write()
        assert write is not None
        return write

    def end(self, write: MetadataWrite) -> None:
        write.run()
        self.tables.write_finished(write)

    def on_disk(self) -> set[str]:
        self.disk.crash(power_loss=True)
        return {group.group_name for group in started(self.disk).groups}


def test_all_changes_that_come_during_a_write_share_the_next_one() -> None:
    written = Written()
    written.make("first")
    write = written.begin()
    for number in range(100):
        written.make(f"G{number}")
    assert written.answered == []
    written.end(write)
    assert written.answered == ["first"]
    written.end(written.begin())
    assert len(written.answered) == 101
    assert written.tables.take_write() is None
    assert {"first", "G0", "G99"} <= written.on_disk()


def test_others_do_not_wait_for_a_new_group() -> None:
    written = Written()
    written.make("known")
    written.end(written.begin())
    written.make("new")
    written.make("known")
    assert written.answered == ["known", "known"]


@given(st.lists(st.sampled_from(["make", "begin", "end", "remove"]), max_size=40))
def test_who_was_answered_finds_the_group_after_a_power_loss(steps: list[str]) -> None:
    written, writes, made, removed = Written(), list[MetadataWrite](), 0, set[str]()
    for step in steps:
        if step == "make":
            written.make(f"G{made}")
            made += 1
        elif step == "remove" and made:
            removed.add(f"G{made - 1}")
            written.tables.remove_group(f"G{made - 1}")
        elif step == "begin" and not writes and (write := written.tables.take_write()) is not None:
            writes.append(write)
        elif step == "end" and writes:
            written.end(writes.pop())
    assert set(written.answered) - removed <= written.on_disk()


async def test_an_operators_change_is_answered_when_it_is_written() -> None:
    written = Written()
    await written.tables.written()
    written.tables.put_topic(TopicConfig("T", 1, 1))
    waiting = asyncio.create_task(written.tables.written())
    await asyncio.sleep(0)
    write = written.begin()
    assert not waiting.done()
    late = asyncio.create_task(written.tables.written())
    await asyncio.sleep(0)
    written.end(write)
    await asyncio.gather(waiting, late)
    assert started(written.disk).topics.get("T") is not None


def test_what_is_being_written_is_the_table_of_that_moment() -> None:
    written = Written()
    written.make("A")
    written.tables.consumer_offsets.commit("A", "T", 0, 1, now_ms=1)
    written.tables.forget_progress_in("none")
    write = written.begin()
    before = [table.to_json() for table in written.tables.by_file.values()]
    written.make("B")
    written.tables.consumer_offsets.commit("A", "T", 0, 2, now_ms=2)
    written.tables.topics.put(TopicConfig("T", 1, 1), now_ms=3)
    write.run()
    assert texts(started(written.disk)) == before


async def test_who_writes_a_table_itself_waits_for_the_thread_that_does() -> None:
    disk = SimulatedDisk(random.Random(1))
    tables = MetadataTables(disk, ManualClock(), topics_changed=lambda: None)
    tables.attach(lambda: None)
    await tables.settled()
    tables.put_topic(TopicConfig("first", 1, 1))
    write = tables.take_write()
    assert write is not None
    tables.put_topic(TopicConfig("second", 1, 1))
    waiting = asyncio.create_task(tables.settled())
    await asyncio.sleep(0)
    assert not waiting.done()
    write.run()
    tables.write_finished(write)
    # The next write has begun before who waits gets on.
    second = tables.take_write()
    assert second is not None
    await asyncio.sleep(0)
    assert not waiting.done()
    second.run()
    tables.write_finished(second)
    await asyncio.wait_for(waiting, PATIENCE_S)
    tables.persist_all()
    assert b"second" in (disk.read_file("config/topics.json") or b"")


def change(tables: MetadataTables, file: MetadataFile, number: int) -> None:
    match file:
        case MetadataFile.TOPICS:
            tables.put_topic(TopicConfig(f"T{number}", 8, 8))
        case MetadataFile.SUBSCRIPTION_GROUPS:
            tables.put_group(SubscriptionGroupConfig(f"G{number}"))
        case MetadataFile.CONSUMER_OFFSETS:
            tables.consumer_offsets.commit("G", "T", 0, number + 1, now_ms=5)
        case MetadataFile.DELAY_OFFSETS:
            tables.delay_offsets.advance(2, number + 1, now_ms=5)
        case MetadataFile.USERS:
            tables.put_user(User(f"user{number}", "sealed"))
        case MetadataFile.ACLS:
            entry = PolicyEntry(Resource.parse(f"Topic:T{number}"), frozenset({Action.PUB}), Decision.ALLOW)
            tables.put_user(User("ann", "sealed"))
            tables.put_acl(Acl("User:ann", (entry,)))
    tables.persist_all()


@given(
    file=st.sampled_from(MetadataFile),
    changes=st.integers(1, 5),
    age=st.integers(0, 5),
    with_backup=st.booleans(),
    remedy=st.sampled_from(("replica", "accepts", "means it")),
)
def test_an_older_copy_of_one_table_is_no_table(
    file: MetadataFile, changes: int, age: int, with_backup: bool, remedy: str
) -> None:
    """Put back while no other member is there, alone or with its `.bak`, as who puts back all of `config/` does."""
    disk = new_disk()
    tables, copies, path = started(disk), [], f"config/{file.value}"
    for number in range(changes):
        change(tables, file, number)
        copies.append((disk.read_file(path) or b"", disk.read_file(f"{path}.bak")))
    older, its_backup = copies[max(0, changes - 1 - age)]
    disk.write_file(path, older)
    if with_backup:
        disk.remove(f"{path}.bak")
        if its_backup is not None:
            disk.write_file(f"{path}.bak", its_backup)
    again = started(disk, was_used=True)
    is_older = changes > 1 and age > 0
    assert list(again.damaged) == [file] * is_older
    if not is_older:
        return
    assert "it is an older copy" in again.damaged[file]
    match remedy:
        case "replica":
            recover(again, tables)
            assert again.by_file[file].to_json() != copies[-2][0].decode()
        case "accepts":
            again.accept_damage()
            newest = older if with_backup else copies[-2][0]
            assert disk.read_file(path) == newest, "of what is there the newest counts"
            assert older in (newest, disk.read_file(f"{path}.damaged"))
        case "means it":
            for blames in (f"{path}.bak", VERSIONS_FILE):
                disk.remove(blames)
            again = started(disk, was_used=True)
            assert disk.read_file(path) == older
    assert not again.damaged
    change(again, file, 9)
    assert not started(disk, was_used=True).damaged


@pytest.mark.parametrize("file", MetadataFile)
def test_a_table_that_is_gone_was_there(file: MetadataFile) -> None:
    """Users and policies, too: of them a first start has no file."""
    disk = new_disk()
    change(started(disk), file, 0)
    for path in (f"config/{file.value}", f"config/{file.value}.bak"):
        disk.remove(path)
    assert list(started(disk, was_used=True).damaged) == [file]


_FIRST_CHANGED: Final = (MetadataFile.TOPICS, MetadataFile.SUBSCRIPTION_GROUPS, MetadataFile.CONSUMER_OFFSETS)
"""By every cluster that is used."""


@given(
    changed=st.sets(st.sampled_from([file for file in MetadataFile if file not in _FIRST_CHANGED])),
    lost=st.sets(st.sampled_from(MetadataFile), min_size=1),
    begun=st.integers(0, 3),
)
def test_whatever_is_gone_comes_from_a_replica_that_followed(
    changed: set[MetadataFile], lost: set[MetadataFile], begun: int
) -> None:
    """Also where users and policies were never made: a master that begins writes their files all the same."""
    disk = new_disk()
    tables, replica = started(disk), started(new_disk())
    for file in (*_FIRST_CHANGED, *sorted(changed, key=lambda each: each.value)):
        change(tables, file, 0)
    tables.attach(lambda: None)
    for _ in range(begun):
        tables.renew()
        write = tables.take_write()
        assert write is not None
        write.run()
        tables.write_finished(write)
    follow(replica, tables)
    for file in lost:
        for path in (f"config/{file.value}", f"config/{file.value}.bak"):
            if disk.read_file(path) is not None:
                disk.remove(path)
    again = started(disk, was_used=True)
    recover(again, replica)
    assert not again.damaged
    assert not started(disk, was_used=True).damaged


@given(
    file=st.sampled_from([file for file in MetadataFile if file is not MetadataFile.CONSUMER_OFFSETS]),
    steps=st.lists(
        st.sampled_from(("change", "follows older", "put back", "restart", "damaged and follows")),
        min_size=1,
        max_size=8,
    ),
)
def test_a_table_that_goes_back_in_order_is_no_older_copy(file: MetadataFile, steps: list[str]) -> None:
    disk, older = new_disk(), started(new_disk())
    change(older, file, 0)
    tables, path = started(disk), f"config/{file.value}"
    if file is MetadataFile.ACLS:
        tables.put_user(User("ann", "sealed"))
    for number, step in enumerate(steps):
        match step:
            case "change":
                change(tables, file, number)
            case "follows older":
                follow(tables, older)
            case "put back":
                tables.put_back(file, older.by_file[file].to_json())
            case "damaged and follows":
                tables.persist_all()
                disk.write_file(path, b"{half")
                is_untouched = file in ROCKETMQ_FILES and not tables.by_file[file].version.timestamp_ms
                tables = started(disk, was_used=True)
                assert list(tables.damaged) == ([] if is_untouched else [file])
                follow(tables, older)
            case "restart":
                tables.persist_all()
                tables = started(disk, was_used=True)
        assert not tables.damaged
    tables.persist_all()
    newest = disk.read_file(path)
    assert not started(disk, was_used=True).damaged
    assert disk.read_file(path) == newest
