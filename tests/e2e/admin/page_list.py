"""Every page of the console and every confirmation, as addresses and steps that lead there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from e2e.admin.console import Console
from e2e.admin.stage import Stage

Steps = Callable[[Console], None]


@dataclass(frozen=True, slots=True)
class Shown:
    """A page by the name of its test and its picture. `path` may be told from what the cluster holds."""

    name: str
    path: str | Callable[[Stage], str]
    # From there to the page meant; none: it is that page.
    steps: Steps | None = None

    def open(self, console: Console, stage: Stage) -> None:
        """Opens it. AssertionError when the server does not answer 200."""
        path = self.path if isinstance(self.path, str) else self.path(stage)
        status = console.open(path)
        assert status == 200, f"{path}: {status}"
        if self.steps is not None:
            self.steps(console)


def _look_at_sending_again(console: Console) -> None:
    console.page.get_by_role("link", name="Send again").click()
    console.page.get_by_role("button", name="Send it again").wait_for()


def _message_path(stage: Stage) -> str:
    return f"/message?id={_recent_id(stage)}"


def _trace_path(stage: Stage) -> str:
    return f"/traces?id={_recent_id(stage)}"


def _recent_id(stage: Stage) -> str:
    line = "ID=$(tandemmq message query orders --limit 10 -o json | jq -r '.messages[-1].message_id')"
    answer = stage.shell.run(line)
    assert answer.code == 0, answer.output
    return stage.shell.variables["ID"]


# Without what the cluster holds: they have something to say at any time.
PLAIN_PAGES: Final = (
    Shown("overview", "/"),
    Shown("replication", "/replication"),
    Shown("replication-of-a-group", "/replication/broker-a"),
    Shown("brokers", "/brokers"),
    Shown("broker", "/brokers/broker-a:0"),
    Shown("settings", "/brokers/broker-a:0/settings"),
    Shown("all-settings", "/settings"),
    Shown("consistency", "/consistency"),
    Shown("events", "/events"),
    Shown("topics", "/topics"),
    Shown("topic", "/topics/orders"),
    Shown("new-topic", "/new-topic"),
    Shown("groups", "/groups"),
    Shown("group", "/groups/billing"),
    Shown("new-group", "/new-group"),
    Shown("messages", "/messages"),
    Shown("found-messages", "/messages?topic=orders&from=10m"),
    Shown("found-by-text", "/messages?topic=orders&text=order"),
    Shown("tail", "/messages/tail?topic=orders"),
    Shown("waiting", "/messages/waiting"),
    Shown("dead-letters", "/dead-letters"),
    Shown("dead-letters-of-a-group", "/dead-letters/fraud-check"),
    Shown("traces", "/traces"),
    Shown("login", "/login"),
    Shown("api", "/api/docs"),
)
PAGES: Final = (
    *PLAIN_PAGES,
    Shown("message", _message_path),
    Shown("trace", _trace_path),
    Shown("send-again", lambda stage: f"/message?id={_recent_id(stage)}", _look_at_sending_again),
    Shown("edit-topic", "/topics/orders/edit"),
    Shown("send", "/topics/orders/send"),
    Shown("edit-group", "/groups/billing/edit"),
    Shown("reset-group", "/groups/archive/reset"),
    Shown("change-setting", "/brokers/broker-a:0/settings/fileReservedTime"),
)


def _review_topic(console: Console) -> None:
    console.type("Queues to write, on each master", "8")
    console.type("Queues to read, on each master", "8")
    console.press("Review change")
    console.page.get_by_role("button", name="Change orders").wait_for()


def _review_group(console: Console) -> None:
    console.type("Retries before a dead letter", "5")
    console.press("Review change")
    console.page.get_by_role("button", name="Change billing").wait_for()


def _review_reset(console: Console) -> None:
    console.page.get_by_label("Behind the newest message").check()
    console.press("Show what it does")
    console.page.get_by_role("button", name="Reset archive").wait_for()


def _review_letters(console: Console) -> None:
    console.page.get_by_role("button", name="Resend all").click()
    console.page.get_by_role("heading", level=1, name="Resend").wait_for()


def _review_setting(console: Console) -> None:
    console.type("New value", "49")
    console.press("See what changes")
    console.page.get_by_role("button", name="Change it now").wait_for()


def _review_writes(console: Console) -> None:
    console.press("Take it away")
    console.page.get_by_role("button", name="Take it away now").wait_for()


def _review_disabling(console: Console) -> None:
    console.press("Disable")
    console.page.get_by_role("button", name="Disable billing").wait_for()


def _refuse_name(console: Console) -> None:
    console.type("Name", "not a name!")
    console.press("Create topic")
    console.page.locator("main [aria-invalid=true]").wait_for()


CONFIRMATIONS: Final = (
    Shown("confirm-edit-topic", "/topics/orders/edit", _review_topic),
    Shown("confirm-delete-topic", "/topics/orders/delete"),
    Shown("confirm-edit-group", "/groups/billing/edit", _review_group),
    Shown("confirm-disable-group", "/groups/billing", _review_disabling),
    Shown("confirm-delete-group", "/groups/archive/delete"),
    Shown("confirm-reset", "/groups/archive/reset", _review_reset),
    Shown("confirm-resend", "/dead-letters/fraud-check", _review_letters),
    Shown("confirm-setting", "/brokers/broker-a:0/settings/fileReservedTime", _review_setting),
    Shown("confirm-writes", "/brokers/broker-b:0", _review_writes),
    Shown("refused-topic", "/new-topic", _refuse_name),
)
