"""Members die, one after the other: every page goes on, says whom it cannot see, and shows when they are back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.admin.axe import violations
from e2e.admin.console import Console
from e2e.admin.page_list import PLAIN_PAGES
from e2e.admin.pictures import take_picture
from e2e.admin.stage import Stage
from support.cluster_processes import wait_until
from support.running_time import PATIENCE_S

# What the brokers of a group alone know; without them it cannot be shown, and the page says so.
_MAY_REFUSE = ("broker", "settings", "topic", "group", "found-messages", "tail", "dead-letters-of-a-group")


def test_a_slave_is_dead(console: Console, stage: Stage, pictures: Path | None) -> None:
    with _dead(stage, ["broker-b-s"]):
        wait_until(lambda: not stage.is_healthy(), limit_s=PATIENCE_S, what="the admin sees it")
        _look_at_all(console, stage)
        console.open("/")
        assert "problem" in console.page.locator("#verdict").inner_text()
        assert "broker-b:1" in console.section("What to do").inner_text()
        console.open("/replication")
        assert "broker-b:1" in console.text()
        console.open("/brokers")
        assert "does not answer" in console.row("broker-b:1").inner_text()
        if pictures is not None:
            console.open("/")
            take_picture(console.page, pictures, "degraded", view="wide-light")
        answer = stage.shell.run("tandemmq check health")
        assert answer.code == 2, answer.output
        assert "broker-b:1" in answer.output
    _see_recovery(console, stage)


def test_a_whole_broker_group_is_dead(console: Console, stage: Stage) -> None:
    with _dead(stage, ["broker-b", "broker-b-s"]):
        wait_until(lambda: not stage.is_healthy(), limit_s=PATIENCE_S, what="the admin sees it")
        _look_at_all(console, stage)
        for path in ("/topics", "/groups", "/topics/orders", "/groups/billing", "/dead-letters", "/events"):
            console.open(path)
            assert "broker-b:0" in console.text(), f"{path} does not say whom it cannot see"
        # A change that cannot reach every master is refused before its first step.
        console.open("/new-topic")
        console.type("Name", "halved")
        console.press("Create topic")
        console.page.get_by_role("alert").wait_for()
        assert "broker-b" in console.page.get_by_role("alert").inner_text()
        assert "halved" not in stage.shell.run("tandemmq topic list").output
        answer = stage.shell.run("tandemmq topic list")
        assert answer.code == 0, answer.output
        assert "broker-b" in answer.output
    _see_recovery(console, stage)


def test_no_nameserver_answers(console: Console, stage: Stage) -> None:
    with _dead(stage, ["namesrv-0", "namesrv-1"]):
        wait_until(lambda: not stage.is_healthy(), limit_s=PATIENCE_S, what="the admin sees it")
        _look_at_all(console, stage)
        console.open("/")
        servers = console.section("NameServers").inner_text()
        assert servers.count("does not answer") == 2
        # The brokers are known from before, and go on.
        console.open("/topics/orders")
        assert "No NameServer answers" in console.text()
        answer = stage.shell.run("tandemmq check nameservers")
        assert answer.code == 2, answer.output
    _see_recovery(console, stage)


@contextmanager
def _dead(stage: Stage, members: Sequence[str]) -> Iterator[None]:
    for member in members:
        stage.cluster.kill(member)
    try:
        yield
    finally:
        for member in members:
            stage.cluster.start_again(member)
        wait_until(stage.is_healthy, limit_s=PATIENCE_S, what="the cluster is whole again")


def _look_at_all(console: Console, stage: Stage) -> None:
    for shown in PLAIN_PAGES:
        assert isinstance(shown.path, str)
        status = console.open(shown.path)
        assert status == 200 or (shown.name in _MAY_REFUSE and status == 503), f"{shown.path}: {status}"
        assert console.leaks() == [], shown.path
        if shown.name in ("overview", "replication", "topic"):
            assert violations(console.page) == [], shown.path


def _see_recovery(console: Console, stage: Stage) -> None:
    console.open("/")
    assert console.page.locator("#verdict").inner_text() == "healthy"
    assert stage.shell.run("tandemmq check health").code == 0


pytestmark = pytest.mark.timeout(240)
