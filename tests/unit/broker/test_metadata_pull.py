"""A slave's pull of its master's tables lives as long as it should, whatever fails at the same moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Self

import grpc
import grpc.aio
import pytest
import structlog

from support.simulated_disk import SimulatedDisk
from tandemmq.broker.leases import LeaseChange, LeaseCopy, LeasePosition
from tandemmq.broker.peer_client import PeerUnavailable
from tandemmq.broker.slave import metadata_pull
from tandemmq.broker.slave.metadata_pull import MetadataPull
from tandemmq.core.metadata.metadata_store import DataVersion, MetadataFile
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable

OLD_MASTER, NEW_MASTER = "old:1", "new:1"


@dataclass
class Group:
    """The masters that the slave meets."""

    master: str = OLD_MASTER
    pulls: dict[str, int] = field(default_factory=dict)
    dials: int = 0
    pulled: asyncio.Event = field(default_factory=asyncio.Event)
    before_failure: Callable[[], object] = lambda: None
    """Is called when the first watch is about to fail, in the same step of the loop."""

    async def pulls_from(self, endpoint: str, count: int, *, or_ends: asyncio.Task[None]) -> None:
        """Returns when the slave has asked this master so often, or has ended."""
        while self.pulls.get(endpoint, 0) < count and not or_ends.done():
            self.pulled.clear()
            waiter = asyncio.ensure_future(self.pulled.wait())
            await asyncio.wait({waiter, or_ends}, return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()


@dataclass
class Peer:
    """A master whose tables never change."""

    group: Group
    endpoint: str

    async def __aenter__(self) -> Self:
        self.group.dials += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def metadata_table(self, _: MetadataFile, known: DataVersion) -> tuple[DataVersion, None]:
        self.group.pulls[self.endpoint] = self.group.pulls.get(self.endpoint, 0) + 1
        self.group.pulled.set()
        return known, None

    async def metadata_changes(self) -> AsyncIterator[None]:
        """The first one tells of a change and fails, the others are silent."""
        if self.group.dials > 1:
            await asyncio.Event().wait()
        # By then the pull most likely waits for a change; elsewhere the failure is an easier one.
        await asyncio.sleep(0.02)
        self.group.before_failure()
        yield None
        headers = grpc.aio.Metadata()
        gone = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, headers, headers, "it fell", None)
        raise PeerUnavailable(self.endpoint, "WatchMetadata", gone)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    made = Group()
    monkeypatch.setattr(metadata_pull, "PeerClient", lambda endpoint: Peer(made, endpoint))
    for pause in ("RETRY_PAUSE_S", "NOT_ACCEPTED_PAUSE_S"):
        monkeypatch.setattr(metadata_pull, pause, 0.001)
    return made


def pull_of(group: Group) -> MetadataPull:
    return MetadataPull(
        tables={MetadataFile.TOPICS: TopicTable()}, master=lambda: group.master, applied=lambda file, kept: None
    )


async def test_the_pull_outlives_a_watch_that_fails_while_another_master_takes_over(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change_master() -> None:
        group.master = NEW_MASTER
        monkeypatch.setattr(metadata_pull, "PULL_INTERVAL_S", 0.001)

    group.before_failure = change_master
    task = asyncio.create_task(pull_of(group).run())
    # Between two pulls of a table that does not change lies a timeout.
    await group.pulls_from(NEW_MASTER, 3, or_ends=task)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_pull_ends_when_told_so_though_its_watch_fails_in_the_same_moment(group: Group) -> None:
    task = asyncio.create_task(pull_of(group).run())
    group.before_failure = task.cancel
    await group.pulls_from(OLD_MASTER, 2, or_ends=task)
    assert task.cancelled()


class _LeasesOf(Peer):
    """Its leases change, and while it is asked for them this slave's role ends."""

    async def leases(self, known: LeasePosition) -> LeaseChange:
        self.group.before_failure()
        return LeaseChange(LeasePosition(1, 1, 0), b"snapshot", b"")


async def test_a_copy_that_is_asked_for_takes_nothing_once_the_role_has_ended(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_pull, "PeerClient", lambda endpoint: _LeasesOf(group, endpoint))
    accepted = [True]
    group.before_failure = accepted.clear
    disk = SimulatedDisk(random.Random(1))
    pull = MetadataPull(
        tables={},
        master=lambda: group.master,
        applied=lambda file, kept: None,
        accepted=lambda: bool(accepted),
        leases=LeaseCopy(disk),
    )
    assert not await pull.copy_now()
    assert not disk.list_folder("config")


class _TableOf(Peer):
    """A master that gives its table."""

    text = ""

    async def metadata_table(self, _: MetadataFile, known: DataVersion | None) -> tuple[DataVersion, str]:  # type: ignore[override]
        table = TopicTable()
        table.load_json(self.text)
        return table.version, self.text


async def test_a_table_that_is_repaired_keeps_no_topic_that_the_master_lacks(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair that was undone has it in memory: merged, it would stay for ever, and the repair would do nothing."""
    monkeypatch.setattr(metadata_pull, "PeerClient", lambda endpoint: _TableOf(group, endpoint))
    masters, table = TopicTable(), TopicTable()
    masters.put(TopicConfig("orders", 4, 4), now_ms=1)
    table.put(TopicConfig("another", 4, 4), now_ms=1)
    monkeypatch.setattr(_TableOf, "text", masters.to_json())
    taken: list[MetadataFile] = []
    pull = MetadataPull(
        tables={MetadataFile.TOPICS: table},
        master=lambda: group.master,
        applied=lambda file, kept: taken.append(file),
    )
    assert await pull.retake(MetadataFile.TOPICS, dry_run=True)
    assert "another" in table.to_json()
    assert await pull.retake(MetadataFile.TOPICS, dry_run=False)
    assert table.to_json() == masters.to_json()
    assert not await pull.retake(MetadataFile.TOPICS, dry_run=False)
    assert taken == [MetadataFile.TOPICS] * 2


async def test_what_a_slave_keeps_is_told_when_it_changes_and_not_with_each_table(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_pull, "PeerClient", lambda endpoint: _TableOf(group, endpoint))
    masters, table = TopicTable(), TopicTable()
    table.put(TopicConfig("one", 4, 4), now_ms=1)
    pull = MetadataPull(
        tables={MetadataFile.TOPICS: table}, master=lambda: group.master, applied=lambda file, kept: None
    )
    with structlog.testing.capture_logs() as lines:
        for name in ("orders", "bills", "one", "cars"):
            masters.put(TopicConfig(name, 4, 4), now_ms=2)
            monkeypatch.setattr(_TableOf, "text", masters.to_json())
            await pull.pull(_TableOf(group, OLD_MASTER))  # type: ignore[arg-type]  # the one method that it calls
            if name == "cars":
                table.put(TopicConfig("another", 4, 4), now_ms=3)
                await pull.pull(_TableOf(group, OLD_MASTER))  # type: ignore[arg-type]
    told = [line["notices"] for line in lines if line["event"] == "metadata_kept"]
    assert told == [
        [f"topic {name}: kept, since the master lacks it and nobody deleted it"] for name in ("one", "another")
    ]


@pytest.mark.parametrize("is_heir", [True, False])
async def test_what_a_lost_master_confirmed_to_nobody_gives_way_to_its_heirs_tables(
    group: Group, monkeypatch: pytest.MonkeyPatch, is_heir: bool
) -> None:
    """Kept, it stood on one member for good, and was the whole group's once that one became master again."""
    monkeypatch.setattr(metadata_pull, "PeerClient", lambda endpoint: _TableOf(group, endpoint))
    masters, table = TopicTable(), TopicTable()
    masters.put(TopicConfig("orders", 4, 4), now_ms=1)
    for name in ("orders", "made-too-late", "with-messages"):
        table.put(TopicConfig(name, 4, 4), now_ms=2)
    table.remove("orders", now_ms=3)
    monkeypatch.setattr(_TableOf, "text", masters.to_json())
    kept_aside: list[MetadataFile] = []
    pull = MetadataPull(
        tables={MetadataFile.TOPICS: table},
        master=lambda: group.master,
        applied=lambda file, kept: None,
        gives_way=lambda: is_heir,
        has_messages=lambda topic: topic == "with-messages",
        given_up=kept_aside.append,
    )
    with structlog.testing.capture_logs() as lines:
        await pull.pull(_TableOf(group, OLD_MASTER))  # type: ignore[arg-type]  # the one method that it calls
        await pull.pull(_TableOf(group, OLD_MASTER))  # type: ignore[arg-type]
    expected = {"orders", "with-messages"} | (set() if is_heir else {"made-too-late"})
    assert {topic.topic_name for topic in table} == expected
    told = [line["changes"] for line in lines if line["event"] == "metadata_unconfirmed"]
    if is_heir:
        [[made, removal]] = told
        assert made.startswith('topic made-too-late: {"attributes": {}')
        assert '"readQueueNums": 4' in made
        assert removal == "topic orders: its removal"
        assert kept_aside == [MetadataFile.TOPICS]
    else:
        assert told == []


async def test_a_copy_of_an_earlier_moment_takes_nothing_back(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies at a time: what was taken of the later one may have been confirmed by now."""
    monkeypatch.setattr(metadata_pull, "PeerClient", lambda endpoint: _TableOf(group, endpoint))
    masters, table = TopicTable(), TopicTable()
    masters.put(TopicConfig("orders", 4, 4), now_ms=1)
    early = _TableOf(group, OLD_MASTER)
    early_text, goes_on = masters.to_json(), asyncio.Event()

    async def late_answer(file: MetadataFile, known: DataVersion | None) -> tuple[DataVersion, str]:
        await goes_on.wait()
        return DataVersion(counter=1), early_text

    early.metadata_table = late_answer  # type: ignore[method-assign,assignment]
    pull = MetadataPull(
        tables={MetadataFile.TOPICS: table},
        master=lambda: group.master,
        applied=lambda file, kept: None,
        gives_way=lambda: True,
        has_messages=lambda topic: False,
    )
    first = asyncio.create_task(pull.pull(early))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    masters.put(TopicConfig("confirmed", 4, 4), now_ms=2)
    monkeypatch.setattr(_TableOf, "text", masters.to_json())
    await pull.pull(_TableOf(group, OLD_MASTER))  # type: ignore[arg-type]
    goes_on.set()
    await first
    assert table.get("confirmed") is not None
