"""The overview: figures, groups, NameServers, what to do; and the frame that all pages have."""

from __future__ import annotations

import re
from dataclasses import replace

from support.cluster_histories import observe
from support.cluster_states import healthy_cluster, master, with_broker
from support.console_client import Page, console_client
from support.fake_operations import FakeOperations
from support.operations_samples import NOW_MS
from tandemmq.admin.cluster_state import ClusterState, DiskState
from tandemmq.admin.console.overview import add_overview_pages
from tandemmq.admin.history import ClusterHistory


async def _overview(
    state: ClusterState | None = None, *, history: ClusterHistory | None = None, is_read: bool = True
) -> Page:
    async with console_client(
        FakeOperations(), add_overview_pages, state=state, history=history, is_read=is_read
    ) as client:
        return await client.get("/")


async def test_healthy_cluster_at_a_glance() -> None:
    page = await _overview()
    assert page.text.startswith("DefaultCluster Healthy: nothing needs you now.")
    assert "broker-a serving, 1 of 1 slaves in sync broker-a:0 , broker-a:1" in page.text
    assert "Brokers 2 of 2 answer" in page.text
    assert "They know the same brokers." in page.text
    assert "What to do" not in page.text
    assert {"/replication", "/brokers", "/topics", "/groups", "/brokers/broker-a%3A0"} <= set(page.links())


async def test_rates_come_from_the_history() -> None:
    history = ClusterHistory()
    states = [
        with_broker(healthy_cluster(), master(messages_in_count=count, messages_out_count=2 * count))
        for count in (0, 500, 1_500)
    ]
    observe(history, *states, first_wall_ms=NOW_MS - 10_000)
    page = await _overview(history=history)
    assert "Messages in 200/s" in page.text
    assert "Messages out 400/s" in page.text
    assert 'aria-label="Messages, last 15 min: in now 200/s, highest 200/s; out now 400/s, highest 400/s."' in page.html


async def test_right_after_the_start_rates_are_not_known() -> None:
    history = ClusterHistory()
    observe(history, healthy_cluster(), first_wall_ms=NOW_MS)
    page = await _overview(history=history)
    assert "Messages in not known" in page.text
    nobody = ClusterHistory()
    observe(nobody, ClusterState((), ()), ClusterState((), ()), first_wall_ms=NOW_MS)
    assert "Messages in not known" in (await _overview(history=nobody)).text


async def test_problems_come_first_with_their_remedies() -> None:
    page = await _overview(with_broker(healthy_cluster(), master(slaves=())))
    assert page.text.startswith("DefaultCluster Degraded: see what to do first.")
    assert "problem broker-a:0 has 0 of 1 slaves in sync" in page.text
    assert "start the slave of this group" in page.text
    assert "Slowest slave lacks not known a slave of broker-a" in page.text
    assert re.search(r'class="verdict bad" href="/">\d problems?<', page.html)


async def test_slaves_that_hold_all_lack_nothing() -> None:
    (slave,) = healthy_cluster().brokers[0].status.slaves  # type: ignore[union-attr]
    page = await _overview(with_broker(healthy_cluster(), master(slaves=(replace(slave, lag_bytes=0),))))
    assert "Slowest slave lacks nothing" in page.text


async def test_full_disk_is_seen() -> None:
    disk = DiskState("/data", 100 << 30, 4 << 30, 0.96, 0.9)
    page = await _overview(with_broker(healthy_cluster(), master(disk=disk)))
    assert "Fullest disk 96% 4.0 GiB free, broker-a:0" in page.text
    assert '<div class="bad"><dt><a href="/brokers/broker-a:0">Fullest disk' in page.html


async def test_half_of_the_cluster_is_away() -> None:
    lost = replace(master(), status=None, error="UNAVAILABLE: refused", registered=False)
    state = with_broker(healthy_cluster(), lost)
    down = replace(state.name_servers[1], error="DEADLINE_EXCEEDED: no answer", brokers=())
    page = await _overview(replace(state, name_servers=(state.name_servers[0], down)))
    assert "1 of 2 1 does not answer" in page.text
    assert "broker-a no working master" in page.text
    assert "Only 1 of 2 answers." in page.text
    assert "does not answer: DEADLINE_EXCEEDED: no answer not known not known" in page.text


async def test_all_name_servers_are_away() -> None:
    state = healthy_cluster()
    servers = tuple(replace(server, error="refused", brokers=()) for server in state.name_servers)
    assert "No NameServer answers" in (await _overview(replace(state, name_servers=servers))).text
    disagreeing = replace(state.name_servers[1], brokers=("broker-a:0",))
    page = await _overview(replace(state, name_servers=(state.name_servers[0], disagreeing)))
    assert "They do not know the same brokers." in page.text


async def test_before_the_first_reading_and_without_brokers() -> None:
    page = await _overview(is_read=False)
    assert "The cluster has not been read yet" in page.text
    assert "not read yet" in page.html
    empty = await _overview(ClusterState(name_servers=healthy_cluster().name_servers, brokers=()))
    assert "No broker is known" in empty.text
    assert "Slaves none is connected" in empty.text


async def test_hundreds_of_groups_show_those_in_trouble() -> None:
    brokers = [master(f"broker-{number:03d}", slaves=()) for number in range(300)]
    for number in (7, 250):
        brokers[number] = master(f"broker-{number:03d}", write_refusal="the disk is full")
    sound = [
        replace(broker, status=replace(broker.status, needed_slave_count=0)) for broker in brokers if broker.status
    ]
    page = await _overview(ClusterState(name_servers=(), brokers=tuple(sound)))
    assert page.text.index("broker-250 refuses writes") < page.text.index("broker-000 serving")
    assert "280 more on the page Replication" in page.text
    assert len(page.html) < 200_000


async def test_what_a_broker_says_is_text() -> None:
    page = await _overview(with_broker(healthy_cluster(), master(write_refusal="<script>alert(1)</script>")))
    assert "<script>alert" not in page.html
    assert "&lt;script&gt;alert(1)" in page.html


async def test_pages_load_their_own_files_only_and_have_one_heading() -> None:
    page = await _overview()
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.html)
    assert all(re.match(r"/(?!/)|#main$", address) for address in loaded)
    assert "style=" not in page.html
    assert re.findall(r"<script[^>]*>(.*?)</script>", page.html) == [""]
    assert page.html.count("<h1>") == 1
    assert page.html.count('aria-current="page"') == 2


async def test_page_about_the_api_lists_its_methods() -> None:
    async with console_client(FakeOperations(), add_overview_pages) as client:
        page = await client.get("/api/docs")
    assert "GET /api/v1/cluster" in page.text
    assert "/api/v1/findings" in page.links()
    assert "grpcurl" in page.text


async def test_an_address_says_nothing_by_itself() -> None:
    async with console_client(FakeOperations(), add_overview_pages) as client:
        page = await client.get("/?said=%3Cb%3Efooled%3C/b%3E")
    assert "fooled" not in page.html
    assert 'class="flash' not in page.html
