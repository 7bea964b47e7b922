"""The reading everybody is shown: its age, what it remembers of brokers that are gone, and who is told."""

from __future__ import annotations

import asyncio

import pytest

from support.admin_readings import cached
from support.cluster_states import healthy_cluster, master, slave, with_broker
from tandemmq.admin.cluster_reader import ClusterReading
from tandemmq.admin.cluster_state import ClusterState, Severity


async def test_nothing_is_shown_before_the_first_reading() -> None:
    cluster, _, _ = cached()
    assert cluster.latest is None


async def test_age_grows_until_the_next_reading() -> None:
    cluster, _, clock = cached()
    first = await cluster.read_once()
    clock.advance(1_500)
    assert first.age_ms(clock.monotonic_ms()) == 1_500
    second = await cluster.read_once()
    assert (first.revision, second.revision, second.age_ms(clock.monotonic_ms())) == (1, 2, 0)
    assert cluster.latest is second


async def test_vanished_broker_is_asked_until_it_is_forgotten() -> None:
    cluster, reader, clock = cached(forget_after_ms=60_000)
    await cluster.read_once()
    reader.state = ClusterState(name_servers=healthy_cluster().name_servers, brokers=())
    await cluster.read_once()
    assert reader.remembered == ["broker-a:0", "broker-a:1"]
    clock.advance(60_001)
    await cluster.read_once()
    assert reader.remembered == []


async def test_findings_come_with_the_reading() -> None:
    servers = healthy_cluster().name_servers
    cluster, _, _ = cached(ClusterState(name_servers=servers, brokers=()))
    reading = await cluster.read_once()
    assert not reading.healthy
    assert reading.findings[0].subject == "cluster"


async def test_listener_is_told_until_it_is_taken_off() -> None:
    cluster, _, _ = cached()
    told: list[ClusterReading] = []
    forget = cluster.on_reading(told.append)
    await cluster.read_once()
    forget()
    await cluster.read_once()
    assert [reading.revision for reading in told] == [1]
    assert cluster.listener_count == 0


async def test_reading_that_never_ends_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, reader, clock = cached()
    await cluster.read_once()
    assert not cluster.is_stuck()
    hanging = asyncio.Event()

    async def hang(remembered: object = ()) -> ClusterState:
        await hanging.wait()
        return healthy_cluster()

    monkeypatch.setattr(reader, "read", hang)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cluster.read_once())
        await asyncio.sleep(0)
        clock.advance(60_001)
        assert cluster.is_stuck()
        hanging.set()


async def test_a_log_that_falls_back_is_a_problem_while_it_is_remembered() -> None:
    cluster, reader, clock = cached(forget_after_ms=60_000)
    await cluster.read_once()

    def ends(master_end: int, slave_end: int) -> None:
        state = with_broker(healthy_cluster(), master(end_offset=master_end))
        reader.state = with_broker(state, slave(end_offset=slave_end))

    async def fallen() -> list[tuple[str, Severity]]:
        reading = await cluster.read_once()
        return [(each.subject, each.severity) for each in reading.findings if "its log ends at" in each.problem]

    ends(2_000_000, 2_000_000)
    assert await fallen() == []
    ends(2_000_000, 0)
    assert await fallen() == [("broker-a:1", Severity.NOTE)], "its master holds it"
    ends(0, 0)
    assert await fallen() == [("broker-a:0", Severity.PROBLEM), ("broker-a:1", Severity.PROBLEM)]
    clock.advance(60_001)
    assert await fallen() == []
