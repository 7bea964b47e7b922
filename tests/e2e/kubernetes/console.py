"""The console by port-forward, in a browser: what its pages show, and changes as a person makes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from playwright.sync_api import Error as BrowserError
from playwright.sync_api import expect, sync_playwright

from e2e.admin.console import Console, open_console
from e2e.chromium import chromium
from e2e.kubernetes.cluster import CommandFailed
from e2e.kubernetes.installation import Installation
from e2e.kubernetes.port_forward import admin_port
from e2e.kubernetes.report import Report

TOPIC: Final = "by-console"
GROUP: Final = "by-console-readers"
QUEUES: Final = 4
CHANGED_QUEUES: Final = 6
RETRIES: Final = 3


def look_at_console(installation: Installation, report: Report, *, topic: str, message_id: str) -> None:
    """Rows for what the pages show, and for a topic and a group made in it. `message_id` is the one of `topic`."""
    try:
        with admin_port(installation) as port, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            try:
                with open_console(browser, f"http://localhost:{port}") as console:
                    _look(_Visit(console, installation, report), topic, message_id)
            finally:
                browser.close()
    except (AssertionError, BrowserError) as error:
        raise CommandFailed(f"the console: {error}") from error


class _Visit:
    """One tab, and where what it shows is reported."""

    def __init__(self, console: Console, installation: Installation, report: Report) -> None:
        self.console = console
        self.installation = installation
        self._report = report
        self._name = installation.preset
        self._leaks: list[str] = []
        # name:id -> whether it is a master, as the cluster's state has it.
        self.members: Mapping[str, bool] = {
            f"{broker.group}:{broker.broker_id}": broker.broker_id == 0 for broker in installation.brokers()
        }
        self.groups: Sequence[str] = sorted({key.partition(":")[0] for key in self.members})

    def shows(self, path: str, *wanted: str) -> None:
        """A row: the page is there, and these words are on it."""
        status = self.console.open(path)
        text = self.console.text()
        missing = [word for word in wanted if word not in text] + ([f"answers {status}"] if status != 200 else [])
        self._leaks += self.console.leaks()
        page = path.partition("?")[0].replace(TOPIC, "TOPIC").replace(GROUP, "GROUP")
        self.check(f"{page} lacks of what it has to show", len(missing), "words", "== 0", f"{missing}: {text[:1_500]}")

    def check(self, what: str, value: float, unit: str, target: str, note: str = "") -> None:
        """A row of this preset's console."""
        self._report.check(f"{self._name}: console by port-forward: {what}", value, unit, target, note)

    def tell_faults(self) -> None:
        """Rows for what no page may do."""
        faults = self.console.faults
        self.check("errors in the browser, requests to elsewhere", len(faults), "times", "== 0", "\n".join(faults))
        self.check("words of programs on its pages", len(self._leaks), "words", "== 0", "\n".join(self._leaks))


def _look(visit: _Visit, topic: str, message_id: str) -> None:
    in_sync = ["in sync"] if visit.installation.has_slaves else []
    visit.shows("/", "Healthy: nothing needs you now", "They know the same brokers", *visit.members)
    expect(visit.console.page.locator("#verdict")).to_have_text("healthy")
    visit.shows("/replication", *visit.groups, *visit.members, *in_sync)
    visit.shows("/brokers", *visit.members)
    for key in visit.members:
        visit.shows(f"/brokers/{quote(key)}", key)
    visit.shows("/consistency", "Nothing is known of the consistency job")
    _change(visit)
    visit.shows("/topics", topic, TOPIC)
    visit.shows(f"/topics/{TOPIC}", TOPIC, *visit.groups)
    visit.shows("/groups", GROUP)
    visit.shows(f"/messages?topic={topic}&from=2h", message_id)
    copies = [key for key in visit.members if key.partition(":")[0] == _holder(visit, message_id)]
    visit.shows(f"/message?id={message_id}", message_id, topic, *copies)
    masters = [key for key, is_master in visit.members.items() if is_master]
    visit.shows("/events", "operator change", TOPIC, GROUP, "local", *masters)
    visit.tell_faults()


def _change(visit: _Visit) -> None:
    """A topic by the form, more queues of it by form and confirmation, a group by the form; the brokers are asked."""
    console = visit.console
    console.choose("Topics")
    console.follow("New topic")
    console.type("Name", TOPIC)
    _type_queues(console, QUEUES)
    console.press("Create topic")
    console.expect_heading(TOPIC)
    _check_queues(visit, "a topic made by its form", QUEUES)
    console.follow("Edit")
    _type_queues(console, CHANGED_QUEUES)
    console.press("Review change")
    expect(console.page.get_by_role("table", name="What will happen")).to_be_visible()
    _check_queues(visit, "a change that waits for its confirmation", QUEUES)
    console.press(f"Change {TOPIC}")
    console.expect_heading(TOPIC)
    _check_queues(visit, "a change that was confirmed", CHANGED_QUEUES)
    console.choose("Groups")
    console.follow("New group")
    console.type("Name", GROUP)
    console.type("Retries before a dead letter", str(RETRIES))
    console.press("Create group")
    console.expect_heading(GROUP)
    found = json.loads(visit.installation.tandemmq("group", "list", "--search", GROUP, "-o", "json"))["items"]
    retries = {group["name"]: group["retry_max_times"] for group in found}
    visit.check("a group made by its form: its retries", retries.get(GROUP, 0), "retries", f"== {RETRIES}")


def _type_queues(console: Console, count: int) -> None:
    console.type("Queues to write, on each master", str(count))
    console.type("Queues to read, on each master", str(count))


def _check_queues(visit: _Visit, what: str, count: int) -> None:
    """A row: how many masters have the topic with so many queues."""
    found = json.loads(visit.installation.tandemmq("topic", "list", "--search", TOPIC, "-o", "json"))["items"]
    having = [
        broker["broker_name"]
        for topic in found
        if topic["name"] == TOPIC
        for broker in topic["brokers"]
        if broker["write_queue_count"] == broker["read_queue_count"] == count
    ]
    visit.check(
        f"{what}: brokers with {count} queues", len(having), "brokers", f"== {len(visit.groups)}", json.dumps(found)
    )


def _holder(visit: _Visit, message_id: str) -> str:
    """The broker group that holds a message."""
    (found,) = json.loads(visit.installation.tandemmq("message", "find", message_id, "-o", "json"))
    name: str = found["broker_name"]
    return name
