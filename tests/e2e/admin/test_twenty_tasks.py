"""The newcomer's script: every task on the command line and in the console, its effect judged by the brokers."""

from __future__ import annotations

import functools

import pytest
from playwright.sync_api import Browser, expect

from e2e.admin.brokers import MASTERS
from e2e.admin.console import Console, open_console
from e2e.admin.in_the_console import CONSOLE_TASKS
from e2e.admin.on_the_command_line import COMMAND_TASKS
from e2e.admin.shell import Answer
from e2e.admin.stage import Stage
from e2e.admin.twenty_tasks import Task, tasks

each_task = pytest.mark.parametrize("task", tasks(), ids=lambda task: task.name)
# The one that starts Java is given more time.
pytestmark = pytest.mark.timeout(240)


def test_the_document_has_twenty_tasks_and_each_has_its_tests() -> None:
    numbers = [task.number for task in tasks()]
    assert numbers == list(range(1, 21))
    assert sorted(CONSOLE_TASKS) == sorted(COMMAND_TASKS) == numbers
    assert all(task.steps and task.commands for task in tasks())


@each_task
def test_on_the_command_line(task: Task, stage: Stage) -> None:
    commands = [functools.partial(_run, stage, line) for line in task.commands]
    COMMAND_TASKS[task.number](commands, stage)


@each_task
def test_in_the_console(task: Task, console: Console, stage: Stage) -> None:
    CONSOLE_TASKS[task.number](console, stage)


def test_without_javascript(browser: Browser, stage: Stage) -> None:
    with open_console(browser, stage.cluster.admin_url, java_script_enabled=False) as console:
        for number in (3, 4, 5, 7, 11, 13, 15, 20):
            CONSOLE_TASKS[number](console, stage)
        assert console.faults == []


def test_a_topic_is_made_and_deleted_by_keyboard(console: Console, stage: Stage) -> None:
    keyboard = console.page.keyboard
    console.open("/topics")
    _walk_to(console, "New topic", "link")
    console.tab_to("Name", role="textbox")
    keyboard.type("by-hand")
    _walk_to(console, "Create topic", "button")
    console.expect_heading("by-hand")
    assert len(stage.brokers.topic("by-hand")) == len(MASTERS)
    _walk_to(console, "Delete", "link")
    console.tab_to("Type the topic's name to delete it", role="textbox")
    keyboard.type("by-hand")
    _walk_to(console, "Delete by-hand", "button")
    console.expect_said("by-hand")
    assert stage.brokers.topic("by-hand") == {}


def test_a_message_is_found_by_keyboard(console: Console, stage: Stage) -> None:
    keyboard = console.page.keyboard
    console.open("/")
    keyboard.press("Tab")
    expect(console.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    _walk_to(console, "Messages", "link")
    console.expect_heading("Messages")
    keyboard.press("/")
    keyboard.type("orders")
    keyboard.press("Enter")
    found = console.section("Found").locator("tbody tr").first.get_by_role("link").first
    wanted = found.inner_text()
    _walk_to(console, wanted, "link")
    console.expect_heading(wanted)


def _walk_to(console: Console, name: str, role: str) -> None:
    console.tab_to(name, role=role)
    console.page.keyboard.press("Enter")


def _run(stage: Stage, line: str) -> Answer:
    answer = stage.shell.run(line)
    assert answer.code == 0, f"{line}\n{answer.output}"
    return answer
