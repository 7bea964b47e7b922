"""Brokers: the list, one of them, its settings and what an operator changes."""

from __future__ import annotations

from dataclasses import replace

from support.cluster_states import failover, healthy_cluster, master, slave, with_broker
from support.console_client import Page, console_client
from support.fake_operations import FakeOperations
from support.operations_samples import NOW_MS
from tandemmq.admin.audit_log import Role
from tandemmq.admin.cluster_state import ClusterState, DiskState
from tandemmq.admin.console.brokers import add_broker_pages, add_event_pages
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import EventLine, Unseen


async def _get(address: str, state: ClusterState | None = None, status: int = 200) -> Page:
    async with console_client(FakeOperations(), add_broker_pages, state=state) as client:
        return await client.get(address, status=status)


async def test_members_with_what_they_say() -> None:
    disk = DiskState("/data", 100 << 30, 12 << 30, 0.88, 0.9)
    page = await _get("/brokers", with_broker(healthy_cluster(), master(disk=disk, loop_stall_count=3)))
    row = "broker-a:0 serves SYNC_MASTER 0.1.0 not known 88%, 12.0 GiB free 50.0 MiB 1 3, longest 0 s 1 min 0 s"
    assert row in page.text
    assert "broker-a:1 follows its master SLAVE 0.1.0" in page.text
    assert '<span class="tag warning">88%, 12.0 GiB free' in page.html


async def test_silent_and_unregistered_members_come_first() -> None:
    lost = replace(master("broker-z"), status=None, error="UNAVAILABLE: refused")
    alone = replace(master("broker-y"), registered=False)
    page = await _get("/brokers", with_broker(with_broker(healthy_cluster(), lost), alone))
    order = [page.text.index(name) for name in ("broker-y:0 reg", "broker-z:0 does not answer", "broker-a:0 serves")]
    assert order == sorted(order)


async def test_search_and_paging_of_hundreds() -> None:
    state = ClusterState(name_servers=(), brokers=tuple(master(f"broker-{number:03d}") for number in range(120)))
    assert "51–100 of 120 brokers" in (await _get("/brokers?page=2", state)).text
    assert "10 brokers" in (await _get("/brokers?search=broker-11", state)).text
    assert "No broker matches “slave”" in (await _get("/brokers?search=slave", state)).text


async def test_one_broker_whole() -> None:
    page = await _get("/brokers/broker-a:0", with_broker(healthy_cluster(), master(kept_tails=("kept-tails/x",))))
    assert page.text.startswith("Brokers / broker-a broker-a:0 SYNC_MASTER of cluster DefaultCluster, version 0.1.0.")
    assert "end 1,234,567, 1.2 MiB held" in page.text
    assert "message put: FLUSH_SLAVE_TIMEOUT 10" in page.text
    assert "note keeps 1 cut-off CommitLog tail(s)" in page.text
    assert "cut-off tails kept-tails/x" in page.text
    assert "/brokers/broker-a%3A0/settings" in page.links()


async def test_silent_broker_has_a_page_and_unknown_ones_do_not() -> None:
    lost = replace(master(), status=None, error="UNAVAILABLE: refused")
    page = await _get("/brokers/broker-a:0", with_broker(healthy_cluster(), lost))
    assert "does not answer at 127.0.0.1:10911 (UNAVAILABLE: refused)" in page.text
    assert "no broker broker-x:0 is known" in (await _get("/brokers/broker-x:0", status=404)).text


async def test_settings_that_differ_come_first() -> None:
    page = await _get("/brokers/broker-a:0/settings")
    changed, alike = page.text.index("Not the defaults"), page.text.index("As the defaults")
    assert changed < page.text.index("fileReservedTime") < alike < page.text.index("flushDiskType")
    assert "/brokers/broker-a%3A0/settings/traceSampleRate" in page.links()
    found = await _get("/brokers/broker-a:0/settings?search=sample")
    assert "traceSampleRate" in found.text
    assert "flushDiskType" not in found.text
    assert "No setting matches “nonsense”" in (await _get("/brokers/broker-a:0/settings?search=nonsense")).text


async def test_settings_of_a_broker_that_does_not_answer() -> None:
    operations = FakeOperations()
    operations.failures["broker_settings"] = OperationFailed(
        FailureKind.UNAVAILABLE, "broker-a:0 does not answer", cause="refused", remedy="start it"
    )
    async with console_client(operations, add_broker_pages) as client:
        page = await client.get("/brokers/broker-a:0/settings", status=503)
    assert "broker-a:0 does not answer : refused start it" in page.text


async def test_setting_is_changed_in_two_steps() -> None:
    operations = FakeOperations()
    address = "/brokers/broker-a:0/settings/traceSampleRate"
    async with console_client(operations, add_broker_pages) as client:
        assert "Share of sends that are traced." in (await client.get(address)).text
        before = (await operations.broker_settings("broker-a:0")).settings
        asked = await client.post(address, {"value": "0.25"})
        assert "traceSampleRate" in asked.text
        assert (await operations.broker_settings("broker-a:0")).settings == before
        done = await client.post(address, asked.fields())
    assert done.address == "/brokers/broker-a%3A0/settings"
    assert "broker-a:0 works with the new value until its next start. traceSampleRate:" in done.text
    after = {setting.key: setting for setting in (await operations.broker_settings("broker-a:0")).settings}
    assert (after["traceSampleRate"].value, after["traceSampleRate"].origin) == ("0.25", "changed")


async def test_same_value_changes_nothing() -> None:
    async with console_client(FakeOperations(), add_broker_pages) as client:
        now = await client.get("/brokers/broker-a:0/settings/fileReservedTime")
        assert "48" in now.text
        page = await client.post("/brokers/broker-a:0/settings/fileReservedTime", {"value": "48"})
    assert "nothing would change" in page.text


async def test_wrong_value_is_told_beside_the_field() -> None:
    operations = FakeOperations()
    operations.failures["update_settings"] = OperationFailed(
        FailureKind.INVALID, "traceSampleRate must be between 0 and 1"
    )
    async with console_client(operations, add_broker_pages) as client:
        page = await client.post("/brokers/broker-a:0/settings/traceSampleRate", {"value": "7"}, status=422)
    assert 'aria-invalid="true"' in page.html
    assert 'id="value-error">traceSampleRate must be between 0 and 1' in page.html
    assert 'value="7"' in page.html


async def test_what_cannot_change_while_it_runs_is_refused() -> None:
    page = await _get("/brokers/broker-a:0/settings/flushDiskType", status=409)
    assert "cannot be changed while broker-a:0 runs" in page.text
    assert "has no setting nonsense" in (await _get("/brokers/broker-a:0/settings/nonsense", status=404)).text


async def test_write_permission_is_taken_in_two_steps() -> None:
    operations = FakeOperations()
    address = "/brokers/broker-a:0/write-permission"
    async with console_client(operations, add_broker_pages) as client:
        asked = await client.post(address, {"writable": "false"})
        assert "Take the write permission from broker-a" in asked.text
        assert operations.cluster.writable["broker-a"]
        done = await client.post(address, asked.fields())
        assert not operations.cluster.writable["broker-a"]
        assert "broker-a takes no new messages. 10.0.0.1:9876:" in done.text
        back = await client.post(address, {"writable": "true", "confirm": "true"})
    assert "broker-a has its write permission back." in back.text
    assert operations.cluster.writable["broker-a"]


async def test_a_slave_is_made_the_master_in_two_steps() -> None:
    operations = FakeOperations()
    state = with_broker(healthy_cluster(), slave(failover=failover(is_electable=True)))
    async with console_client(operations, add_broker_pages, state=state) as client:
        shown = await client.get("/brokers/broker-a:1")
        assert "Make it the master" in shown.text
        assert "in-sync set broker 0, broker 1" in shown.text
        asked = await client.post("/brokers/broker-a:1/failover", {"hand_over": "true"})
        assert "broker-a:0 hands over, and follows" in asked.text
        assert operations.cluster.masters["broker-a"] == (0, 1)
        done = await client.post("/brokers/broker-a:1/failover", asked.fields())
    assert "broker-a:0 handed over to broker-a:1" in done.text
    assert operations.cluster.masters["broker-a"] == (1, 2)


async def test_viewers_see_and_cannot_change() -> None:
    operations = FakeOperations()
    async with console_client(operations, add_broker_pages, role=Role.VIEWER) as client:
        assert "Operators may take it away" in (await client.get("/brokers/broker-a:0")).text
        settings = await client.get("/brokers/broker-a:0/settings")
        assert not [link for link in settings.links() if link.endswith("traceSampleRate")]
        await client.get("/brokers/broker-a:0/settings/traceSampleRate", status=403)
        await client.post("/brokers/broker-a:0/settings/traceSampleRate", {"value": "1"}, status=403)
        await client.post("/brokers/broker-a:0/write-permission", {"writable": "false", "confirm": "true"}, status=403)
    assert operations.cluster.writable["broker-a"]


# Events of all brokers and of operators, filtered.


async def _events(query: str = "", operations: FakeOperations | None = None, status: int = 200) -> Page:
    async with console_client(operations or FakeOperations(), add_event_pages) as client:
        return await client.get(f"/events{query}", status=status)


async def test_newest_first_with_fields_and_links() -> None:
    page = await _events()
    assert page.text.index("operator change") < page.text.index("slave connected") < page.text.index("slave lost")
    assert "reason= timed out lag= 3120" in page.text
    assert "/brokers/broker-a:0" in page.links()
    assert "&lt;refused&gt; &amp; gone" in page.html
    assert "60 s ago" in page.text


async def test_filters_by_level_source_and_text() -> None:
    worse = await _events("?level=warning")
    assert "slave lost" in worse.text
    assert "master unreachable" in worse.text
    assert "slave connected" not in worse.text
    assert "slave connected" not in (await _events("?source=broker-b:1")).text
    assert "1 events" in (await _events("?search=TIMED%20out")).text
    assert "No event matches" in (await _events("?search=nonsense")).text
    assert '<option value="gone:0" selected>' in (await _events("?source=gone:0")).html
    assert "There is no broker “gone:0”" in (await _events("?source=gone:0")).text
    assert "No event matches" in (await _events("?source=admin&search=nonsense")).text


async def test_nothing_has_happened() -> None:
    assert "Nothing has happened yet" in (await _events(operations=FakeOperations(empty=True))).text


async def test_who_could_not_be_asked_is_said() -> None:
    operations = FakeOperations()
    operations.unseen = (Unseen("broker-c:0", "does not answer: refused"),)
    assert "broker-c:0 does not answer: refused" in (await _events(operations=operations)).text


async def test_nobody_answers() -> None:
    operations = FakeOperations()
    operations.down = OperationFailed(FailureKind.UNAVAILABLE, "no broker answers", remedy="see whether they run")
    page = await _events(operations=operations, status=503)
    assert "no broker answers" in page.text
    assert "see whether they run" in page.text


async def test_five_hundred_events_are_pages_and_long_values_are_cut() -> None:
    operations = FakeOperations()
    operations.cluster.events = [
        EventLine(NOW_MS - number, "broker-a:0", "info", f"tick_{number % 2}", {"text": "x" * 10_000})
        for number in range(250)
    ]
    page = await _events("?page=3", operations)
    assert "201–250 of 250 events" in page.text
    assert "(10,000 characters)" in page.text
    assert len(page.html) < 100_000


async def test_what_is_told_again_and_again_hides_nothing() -> None:
    operations = FakeOperations()
    stalls = [
        EventLine(NOW_MS - 1_000 * number, "broker-a:0", "warning", "event_loop_stalled", {"duration_ms": str(number)})
        for number in range(1, 400)
    ]
    operations.cluster.events = [
        *stalls[:200],
        EventLine(NOW_MS - 200_500, "broker-a:1", "error", "log_cut", {}),
        *stalls[200:],
        EventLine(NOW_MS - 500_000, "broker-a:0", "info", "slave_connected", {}),
    ]
    page = await _events("", operations)
    assert page.text.count("event loop stalled") == 1
    assert "399 times since" in page.text
    assert "log cut" in page.text
    assert page.text.index("event loop stalled") < page.text.index("log cut") < page.text.index("slave connected")
    assert "399 times" not in (await _events("?source=broker-a:1", operations)).text
