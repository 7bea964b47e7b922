"""The twenty tasks in the console, each as the document says it, and what the brokers say of it afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from playwright.sync_api import expect

from e2e.admin.brokers import MASTERS
from e2e.admin.console import Console
from e2e.admin.stage import Stage

BODY: Final = '{"parcel": 17, "weight_kg": 2.5}'

Doing = Callable[[Console, Stage], None]
CONSOLE_TASKS: Final[dict[int, Doing]] = {}


def task(number: int) -> Callable[[Doing], Doing]:
    """Says which task a function does."""

    def added(doing: Doing) -> Doing:
        CONSOLE_TASKS[number] = doing
        return doing

    return added


@task(1)
def see_health(console: Console, stage: Stage) -> None:
    console.open("/")
    expect(console.page.locator("#verdict")).to_have_text("healthy")
    servers = console.section("NameServers")
    expect(servers).to_contain_text("They know the same brokers")
    for address in stage.cluster.record()["name_servers"]:
        expect(servers.get_by_role("row", name=address)).to_contain_text("answers")


@task(2)
def see_slaves(console: Console, stage: Stage) -> None:
    console.open("/")
    console.choose("Replication")
    for group in MASTERS:
        status = stage.brokers.status(group)
        assert [slave.in_sync for slave in status.slaves] == [True]
        expect(console.row(f"{group}:1")).to_contain_text("in sync")
    left = console.section("broker-a").get_by_role("table", name=re.compile("ended"))
    departures = stage.brokers.status("broker-a").slave_departures
    assert departures
    expect(left.get_by_role("row")).to_have_count(len(departures) + 1)
    expect(left).to_contain_text("closed by the slave")


@task(3)
def create_topic(console: Console, stage: Stage) -> None:
    console.open("/")
    console.choose("Topics")
    console.follow("New topic")
    console.type("Name", "parcels")
    console.type("Queues to write, on each master", "4")
    console.type("Queues to read, on each master", "4")
    console.press("Create topic")
    console.expect_heading("parcels")
    found = stage.brokers.topic("parcels")
    assert [(topic.write_queue_count, topic.read_queue_count) for topic in found.values()] == [(4, 4)] * len(MASTERS)


@task(4)
def send_message(console: Console, stage: Stage) -> None:
    console.open("/topics/parcels")
    console.follow("Send a test message")
    console.type("Body", BODY)
    console.type("Tag", "created")
    console.type("Keys", "parcel-17")
    console.press("Send")
    console.expect_said("stored")
    message = stage.brokers.newest("parcels", "parcel-17")
    assert (message.body.decode(), message.tag) == (BODY, "created")


@task(5)
def find_message(console: Console, stage: Stage) -> None:
    message = stage.brokers.newest("parcels", "parcel-17")
    console.open("/")
    console.choose("Messages")
    console.type("Topic", "parcels")
    console.type("Key", "parcel-17")
    console.press("Search")
    found = console.section("Found").get_by_role("row").nth(1).get_by_role("link").first
    assert found.inner_text() == message.message_id
    found.click()
    console.expect_heading(message.message_id)
    console.choose("Messages")
    console.type("Message id", message.message_id)
    console.press("Find")
    console.expect_heading(message.message_id)


@task(6)
def read_body(console: Console, stage: Stage) -> None:
    _open_message(console, stage)
    body = console.page.locator("pre.body")
    console.follow("Text")
    expect(body).to_have_text(BODY)
    console.follow("JSON")
    expect(body).to_contain_text('"weight_kg": 2.5')
    console.follow("Hex")
    expect(body).to_contain_text("7b 22 70 61 72 63 65 6c")


@task(7)
def compare_copies(console: Console, stage: Stage) -> None:
    _open_message(console, stage)
    message = stage.brokers.newest("parcels", "parcel-17")
    group = stage.brokers.holder("parcels", "parcel-17")
    (digest,) = stage.brokers.digests(group, message.physical_offset, message.record_bytes)
    copies = console.section("Copies").get_by_role("table")
    for replica in (f"{group}:0", f"{group}:1"):
        expect(copies.get_by_role("row", name=replica)).to_contain_text(digest.hex())


@task(8)
def see_trace(console: Console, stage: Stage) -> None:
    message = stage.brokers.newest("parcels", "parcel-17")
    assert stage.brokers.traces(message.message_id)
    _open_message(console, stage)
    console.follow("Trace")
    steps = console.section("Where the time went").get_by_role("listitem")
    expect(steps.first).to_contain_text("SendMessage")
    expect(steps.filter(has_text="replica append")).to_have_count(1)


@task(9)
def list_newest(console: Console, stage: Stage) -> None:
    console.open("/")
    console.choose("Messages")
    console.type("Topic", "orders")
    console.type("Stored from", "10m")
    console.press("Search")
    rows = console.section("Found").locator("tbody tr")
    expect(rows).to_have_count(50)
    key = rows.first.locator(".tags a").first.inner_text()
    newest = stage.brokers.newest("orders", key)
    assert rows.first.get_by_role("link").first.inner_text() == newest.message_id


@task(10)
def watch_messages(console: Console, stage: Stage) -> None:
    console.open("/topics/orders")
    console.follow("Live tail")
    console.expect_heading("Live tail of orders")
    arrived = console.page.locator("main tr.new")
    expect(arrived.nth(2)).to_be_visible()
    console.page.get_by_role("button", name="Pause").click()
    key = arrived.first.locator(".tags a").first.inner_text()
    assert stage.brokers.messages("orders", key)


@task(11)
def create_group(console: Console, stage: Stage) -> None:
    console.open("/")
    console.choose("Groups")
    console.follow("New group")
    console.type("Name", "drivers")
    console.type("Retries before a dead letter", "3")
    console.press("Create group")
    console.expect_heading("drivers")
    assert {master: group.retry_max_times for master, group in stage.brokers.group("drivers").items()} == dict.fromkeys(
        MASTERS, 3
    )


@task(12)
def see_lag_and_members(console: Console, stage: Stage) -> None:
    console.open("/")
    console.choose("Groups")
    console.follow("billing")
    console.expect_heading("billing")
    queues = [
        f"{master}-{progress.queue_id}"
        for master, group in stage.brokers.group("billing").items()
        for progress in group.progress
        if progress.topic == "orders"
    ]
    for queue in queues:
        expect(console.row(queue)).to_be_visible()
    members = {client.client_id for client in stage.brokers.clients("billing")}
    (member,) = members
    expect(console.section("Members")).to_contain_text(member)


@task(13)
def reset_group(console: Console, stage: Stage) -> None:
    stage.move_archive_away()
    before = stage.brokers.committed("archive", "orders")
    assert before > 0
    console.open("/")
    console.choose("Groups")
    console.follow("archive")
    console.follow("Reset offsets")
    console.page.get_by_label("From a moment on").check()
    console.type("Moment", "1h")
    console.press("Show what it does")
    expect(console.page.get_by_role("table", name="What will happen in each queue")).to_be_visible()
    assert stage.brokers.committed("archive", "orders") == before
    console.press("Reset archive")
    console.expect_said("archive")
    assert stage.brokers.committed("archive", "orders") == 0


@task(14)
def resend_dead_letter(console: Console, stage: Stage) -> None:
    console.open("/")
    console.choose("Dead letters")
    console.follow("fraud-check")
    letter = console.page.locator("main table.messages tbody tr").first
    key = letter.locator(".tags a").first.inner_text()
    before = len(stage.brokers.messages("payments", key))
    letter.get_by_role("checkbox").check()
    console.press("Resend selected…")
    console.expect_heading("Resend 1 dead letter")
    assert len(stage.brokers.messages("payments", key)) == before
    console.press("Resend 1 letter")
    console.expect_said("1")
    assert len(stage.brokers.messages("payments", key)) == before + 1


@task(15)
def change_queues(console: Console, stage: Stage) -> None:
    console.open("/topics/parcels")
    console.follow("Edit")
    console.type("Queues to write, on each master", "6")
    console.type("Queues to read, on each master", "6")
    console.press("Review change")
    expect(console.page.get_by_role("table", name="What will happen")).to_be_visible()
    assert {topic.write_queue_count for topic in stage.brokers.topic("parcels").values()} == {4}
    console.press("Change parcels")
    console.expect_heading("parcels")
    assert {(topic.write_queue_count, topic.read_queue_count) for topic in stage.brokers.topic("parcels").values()} == {
        (6, 6)
    }


@task(16)
def change_setting(console: Console, stage: Stage) -> None:
    stage.put_setting_back()
    console.open("/")
    console.choose("Brokers")
    console.follow("broker-a:0")
    console.follow("Settings")
    expect(console.section("Not the defaults")).to_contain_text("brokerRole")
    console.page.get_by_role("link", name="Change fileReservedTime").click()
    console.type("New value", "24")
    console.press("See what changes")
    assert stage.brokers.setting("broker-a", "fileReservedTime").value != "24"
    console.press("Change it now")
    console.expect_said("broker-a:0")
    setting = stage.brokers.setting("broker-a", "fileReservedTime")
    assert (setting.value, setting.origin) == ("24", "changed")


@task(17)
def stop_writes(console: Console, stage: Stage) -> None:
    console.open("/")
    console.choose("Brokers")
    console.follow("broker-b:0")
    console.press("Take it away")
    assert stage.brokers.writable("broker-b", "orders") == {True}
    console.press("Take it away now")
    console.expect_said("broker-b")
    assert stage.brokers.writable("broker-b", "orders") == {False}
    console.press("Give it back")
    console.press("Give it back now")
    console.expect_said("broker-b")
    assert stage.brokers.writable("broker-b", "orders") == {True}


@task(18)
def see_events(console: Console, stage: Stage) -> None:
    console.open("/")
    console.choose("Events")
    console.type("Part of an event or its fields", "parcels")
    console.press("Search")
    events = console.page.get_by_role("table", name="Events, newest first")
    expect(events).to_contain_text("topic created")
    expect(events).to_contain_text("operator")


@task(19)
def see_consistency(console: Console, stage: Stage) -> None:
    # The same task on the command line came before and made one.
    console.open("/")
    console.choose("Consistency")
    expect(console.page.get_by_role("main")).to_contain_text("Proven equal")
    expect(console.page.get_by_role("table", name="Runs, newest first").locator("tbody tr")).not_to_have_count(0)


@task(20)
def delete_both(console: Console, stage: Stage) -> None:
    for kind, name, asked in (("groups", "drivers", "group"), ("topics", "parcels", "topic")):
        console.open(f"/{kind}/{name}")
        console.follow("Delete")
        console.type(f"Type the {asked}'s name to delete it", "orders")
        console.press(f"Delete {name}")
        expect(console.page.locator("main [aria-invalid=true]")).to_be_visible()
        assert len(getattr(stage.brokers, asked)(name)) == len(MASTERS)
        console.type(f"Type the {asked}'s name to delete it", name)
        console.press(f"Delete {name}")
        console.expect_said(name)
        assert getattr(stage.brokers, asked)(name) == {}


def _open_message(console: Console, stage: Stage) -> None:
    message = stage.brokers.newest("parcels", "parcel-17")
    console.open(f"/message?id={message.message_id}")
    console.expect_heading(message.message_id)
