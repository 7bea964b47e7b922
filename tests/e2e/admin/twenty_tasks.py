"""docs/operations/twenty-tasks.md as data: what is there is what is tested."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from e2e.programs import ROOT

DOCUMENT: Final = ROOT / "docs" / "operations" / "twenty-tasks.md"
_TASK: Final = re.compile(r"(\d+)\. (.+)")
_COMMANDS: Final = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_STEP: Final = re.compile(r"^\d+\. ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Task:
    number: int
    title: str
    # Steps in the console, as written.
    steps: tuple[str, ...]
    # Lines for a shell.
    commands: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of its tests: `03_create_a_topic`."""
        words = re.sub(r"[^a-z0-9]+", "_", self.title.lower()).strip("_")
        return f"{self.number:02}_{words}"


def tasks() -> tuple[Task, ...]:
    """All tasks, in the document's order."""
    return tuple(_tasks())


def preparation() -> tuple[str, ...]:
    """Commands that give the cluster something to do, without the first one, which starts it."""
    section = next(text for title, text in _sections() if title == "Before you begin")
    start, *rest = _commands(section)
    assert start.startswith("tandemmq up"), start
    return tuple(rest)


def _tasks() -> Iterator[Task]:
    for title, text in _sections():
        found = _TASK.fullmatch(title)
        if found is None:
            continue
        console = text.split("In the console:")[1].split("On the command line")[0]
        steps = tuple(step.strip() for step in _STEP.split(console) if step.strip())
        yield Task(int(found[1]), found[2], steps, _commands(text))


def _sections() -> Iterator[tuple[str, str]]:
    for section in DOCUMENT.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        yield title.strip(), text


def _commands(text: str) -> tuple[str, ...]:
    return tuple(line for block in _COMMANDS.findall(text) for line in block.strip().splitlines())
