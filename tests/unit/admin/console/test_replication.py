"""The replication page: where each copy is, when it will be whole, and why slaves went."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.cluster_histories import observe
from support.cluster_states import failover, healthy_cluster, master, slave, with_broker
from support.console_client import Page, console_client
from support.fake_operations import FakeOperations
from support.operations_samples import NOW_MS
from tandemmq.admin.cluster_state import (
    ChangeOfMaster,
    ClusterState,
    LatencyCounts,
    MasterLinkState,
    SlaveDeparture,
    SlaveState,
)
from tandemmq.admin.console.replication import add_replication_pages
from tandemmq.admin.history import ClusterHistory

_BEHIND = SlaveState(
    peer="10.0.0.7:41000",
    broker_id=1,
    acked_offset=1_000_000,
    lag_bytes=8_000_000,
    in_sync=False,
    verified=True,
    lag_seconds=95.0,
    connected_seconds=330,
    sent_bytes=5 << 20,
)


async def _replication(
    state: ClusterState, history: ClusterHistory | None = None, address: str = "/replication", status: int = 200
) -> Page:
    async with console_client(FakeOperations(), add_replication_pages, state=state, history=history) as client:
        return await client.get(address, status=status)


def _cluster(**changes: Any) -> ClusterState:
    return with_broker(healthy_cluster(), master(**changes))


async def test_slave_in_sync() -> None:
    page = await _replication(healthy_cluster())
    assert page.text.startswith("Replication The group holds what it should.")
    assert "master's end 1,234,567 (1.2 MiB)" in page.text
    assert "on its disk up to 1,234,000, 567 B to go" in page.text
    assert "sends wait for 1 slave in sync (now 1)" in page.text
    assert "broker-a:1 in sync 67 B 0 s keeps up 1,234,500" in page.text
    assert "receives the master's log" in page.text
    assert "None since the master started, 1 min 0 s ago." in page.text


async def test_group_that_fails_over_shows_its_record_and_the_last_change() -> None:
    change = ChangeOfMaster(2, True, "the master handed over", NOW_MS, 58)
    state = _cluster(failover=failover(acts=True, changes=(change,)))
    state = with_broker(state, slave(failover=failover(is_electable=True)))
    page = await _replication(state)
    assert "fails over etcd:10.0.0.5:2379" in page.text
    assert "master by the record broker-a:0 in epoch 2: the master's lease is over" in page.text
    assert "in-sync set broker-a:0, broker-a:1" in page.text
    assert "could take over broker-a:1" in page.text
    assert "epoch 2 broker-a:0, served after 58 ms: the master handed over" in page.text
    assert "fails over" not in (await _replication(healthy_cluster())).text


async def test_slave_that_catches_up_says_when_it_will_be_done() -> None:
    history = ClusterHistory()
    states = [_cluster(slaves=(replace(_BEHIND, lag_bytes=lag),)) for lag in (10_000_000, 9_000_000, 8_000_000)]
    observe(history, *states, first_wall_ms=NOW_MS - 10_000)
    page = await _replication(states[-1], history)
    assert "broker-a:1 catching up 7.6 MiB 1 min 35 s in about 40 s 1,000,000 for 5 min 30 s, 5.0 MiB sent" in page.text
    assert 'aria-label="Lag, last 15 min: broker-a:1 now 7.6 MiB, highest 9.5 MiB."' in page.html


async def test_slave_that_falls_behind_says_by_how_much() -> None:
    history = ClusterHistory()
    states = [_cluster(slaves=(replace(_BEHIND, lag_bytes=lag),)) for lag in (0, 4_000_000, 8_000_000)]
    observe(history, *states, first_wall_ms=NOW_MS - 10_000)
    page = await _replication(states[-1], history)
    assert "falling behind" in page.text
    assert "never at this rate: the lag grows by 781.2 KiB/s" in page.text


async def test_slave_that_copies_what_it_lacks() -> None:
    link = MasterLinkState("10.0.0.1:10912", "resynchronising", 9_000_000, 8_000_000)
    state = with_broker(_cluster(slaves=(_BEHIND,)), slave(master_link=link))
    page = await _replication(state)
    assert "broker-a:1 copies what it lacks 7.6 MiB 1 min 35 s not known yet" in page.text


async def test_slave_that_is_away_and_why_it_went() -> None:
    departures = (
        SlaveDeparture("10.0.0.7:40000", 1, NOW_MS - 7_200_000, "connection reset by peer", 512),
        SlaveDeparture("10.0.0.7:41000", 1, NOW_MS - 60_000, "no report for 20 s", 3 << 20),
    )
    lost = replace(slave(), status=None, error="UNAVAILABLE: refused")
    page = await _replication(with_broker(_cluster(slaves=(), slave_departures=departures), lost))
    assert "0 of 1 needed slaves in sync" in page.text
    assert "broker-a:1 not connected 3.0 MiB when it went not known not while it is away not known no does" in page.text
    assert "does not answer: UNAVAILABLE: refused" in page.text
    first, second = page.text.index("60 s ago"), page.text.index("2 h ago")
    assert first < second
    assert "broker-a:1 no report for 20 s 3.0 MiB 10.0.0.7:41000" in page.text


async def test_slave_that_answers_but_is_not_connected_has_its_own_end() -> None:
    state = with_broker(_cluster(slaves=()), slave(end_offset=1_000_000))
    page = await _replication(state)
    assert "broker-a:1 not connected 229.1 KiB not known not while it is away 1,000,000 (its own end)" in page.text


async def test_master_that_is_away_leaves_what_slaves_say() -> None:
    lost = replace(master(), status=None, error="UNAVAILABLE: refused", registered=False)
    page = await _replication(with_broker(healthy_cluster(), lost))
    assert "The master broker-a:0 does not answer (UNAVAILABLE: refused)" in page.text
    assert "broker-a:1 the master cannot be asked 67 B" in page.text
    without = replace(healthy_cluster(), brokers=(slave(),))
    assert "No NameServer knows a master of this group" in (await _replication(without)).text


async def test_group_without_a_slave_says_so() -> None:
    state = replace(healthy_cluster(), brokers=(master(slaves=(), needed_slave_count=0),))
    page = await _replication(state)
    assert "This group has no slave: what its disk loses is lost." in page.text
    assert "sends wait for no slave" in page.text


async def test_latency_of_acknowledgements_in_the_last_minute() -> None:
    history = ClusterHistory()
    bounds = (0.001, 0.01)
    states = [_cluster(ack_latency=LatencyCounts(bounds, (0, count, 0))) for count in (0, 100)]
    observe(history, *states, first_wall_ms=NOW_MS - 5_000)
    assert "acknowledgement, last minute 5.5 ms (p50), 9.91 ms (p99)" in (await _replication(states[1], history)).text
    quiet = ClusterHistory()
    observe(quiet, states[1], states[1], first_wall_ms=NOW_MS - 5_000)
    assert "nothing sent in the last minute" in (await _replication(states[1], quiet)).text


async def test_many_groups_are_a_list_worst_first_and_each_has_a_page() -> None:
    brokers = [master(f"broker-{number:03d}", slaves=(), needed_slave_count=0) for number in range(120)]
    brokers[77] = master("broker-077", write_refusal="the disk is full")
    state = ClusterState(name_servers=(), brokers=tuple(brokers))
    page = await _replication(state)
    assert page.text.startswith("Replication 120 groups: 1 in trouble.")
    assert page.text.index("broker-077 refuses writes") < page.text.index("broker-000")
    assert "1–20 of 120 groups" in page.text
    assert '<svg class="lines"' not in page.html
    second = await _replication(state, address="/replication?page=2&search=broker-0")
    assert "21–40 of 100 groups" in second.text
    assert "search=broker-0" in second.html
    one = await _replication(state, address="/replication/broker-077")
    assert one.text.startswith("Replication / broker-077 Replication of broker-077")
    assert "refuses writes the disk is full" in one.text
    nothing = await _replication(state, address="/replication?search=nothing")
    assert "No broker group has “nothing” in its name" in nothing.text


async def test_unknown_group_is_said_to_be_unknown() -> None:
    page = await _replication(healthy_cluster(), address="/replication/broker-x", status=404)
    assert "no broker group broker-x is known" in page.text


async def test_range_of_plots_can_be_chosen() -> None:
    page = await _replication(healthy_cluster(), address="/replication?range=1h")
    assert 'href="/replication?range=1h" aria-current="page"' in page.html
