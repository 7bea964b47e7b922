"""Official clients of two languages at work while somebody disturbs their broker group, and what they felt of it.

Python sends and receives messages without an order, Go in message groups, one after the other in each. Both repeat what
is not acknowledged. Their records are judged when all has come.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from support.cluster_processes import wait_until

__all__ = ["FIFO_GROUP", "FIFO_TOPIC", "PLAIN_GROUP", "PLAIN_TOPIC", "Felt", "OfficialLoad", "longest_gap_s"]

ROOT: Final = Path(__file__).resolve().parents[2]
SCRIPTS: Final = ROOT / "tests" / "e2e" / "kubernetes" / "client"
PLAIN_TOPIC: Final = "official-plain"
PLAIN_GROUP: Final = "official-plain-readers"
FIFO_TOPIC: Final = "official-fifo"
FIFO_GROUP: Final = "official-fifo-readers"
LANES: Final = 8
_RATE: Final = 100
_DRAIN_LIMIT_S: Final = 120.0
_END_LIMIT_S: Final = 60.0


@dataclass(frozen=True)
class Felt:
    """What the clients of one language saw. Moments are seconds since the epoch."""

    language: str
    acknowledged: int
    missing: tuple[str, ...]
    """Acknowledged, and never received."""
    repeated: int
    """Deliveries beyond the first."""
    out_of_order: int
    """First deliveries of a message group behind a later one of it."""
    acknowledged_at: tuple[float, ...]
    delivered_at: tuple[float, ...]


class OfficialLoad:
    """From `with` on. `python` is the interpreter that has the official client, `go` the command of the Go program."""

    def __init__(self, folder: Path, *, endpoints: Sequence[str], python: Path, go: Sequence[str]) -> None:
        self._folder = folder
        self._endpoints = ";".join(endpoints)
        self._python = python
        self._go = (*go, "--endpoint", self._endpoints)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        python = (str(self._python), "-u")
        sending = ("--endpoints", self._endpoints, "--topic", PLAIN_TOPIC, "--record", self._path("python-sent"))
        self._start(
            "python-sent",
            *python,
            str(SCRIPTS / "send.py"),
            *sending,
            "--stop",
            self._path("stop"),
            "--rate",
            str(_RATE),
        )
        self._start(
            "python-received",
            *(*python, str(SCRIPTS / "receive.py"), "--endpoints", self._endpoints, "--topic", PLAIN_TOPIC),
            *(
                "--group",
                PLAIN_GROUP,
                "--record",
                self._path("python-received"),
                "--awaited",
                self._path("python-sent"),
            ),
            *("--until", self._path("all-sent"), "--limit-s", str(_DRAIN_LIMIT_S)),
        )
        self._start("go-sent", *self._go, "send", FIFO_TOPIC, self._path("go-sent"), self._path("stop"), str(LANES))
        self._start(
            *("go-received", *self._go, "receive", FIFO_TOPIC, FIFO_GROUP),
            *(self._path("go-received"), self._path("all-received")),
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait(_END_LIMIT_S)

    def wait_busy(self) -> None:
        """Returns when all four are at work."""
        names = ("python-sent", "python-received", "go-sent", "go-received")
        what = f"the official clients are at work; see {self._folder}"
        wait_until(lambda: all(self._lines(name) for name in names), limit_s=_DRAIN_LIMIT_S, what=what)

    def finish(self) -> list[Felt]:
        """Stops the senders, lets the receivers come to the end, and says what they saw."""
        (self._folder / "stop").touch()
        python_sends, python_receives, go_sends, go_receives = self._processes
        for process in (python_sends, go_sends):
            process.wait(_END_LIMIT_S)
        (self._folder / "all-sent").touch()
        # What is missing then is told as such.
        with suppress(AssertionError):
            wait_until(lambda: not self._missing("go"), limit_s=_DRAIN_LIMIT_S, what="all has come")
        (self._folder / "all-received").touch()
        for process in (python_receives, go_receives):
            process.wait(_END_LIMIT_S + _DRAIN_LIMIT_S)
        return [self._felt("python"), self._felt("go")]

    def _felt(self, language: str) -> Felt:
        sent, received = self._lines(f"{language}-sent"), self._lines(f"{language}-received")
        id_at = 1 if language == "python" else 2
        ids = [line[id_at] for line in received]
        return Felt(
            language,
            acknowledged=len(sent),
            missing=tuple(self._missing(language)),
            repeated=len(ids) - len(set(ids)),
            out_of_order=0 if language == "python" else _inversions((int(line[0]), int(line[1])) for line in received),
            acknowledged_at=tuple(float(line[-1]) for line in sent),
            delivered_at=tuple(float(line[-1]) for line in received),
        )

    def _missing(self, language: str) -> list[str]:
        at = 1 if language == "python" else 2
        received = {line[at] for line in self._lines(f"{language}-received")}
        return [line[at] for line in self._lines(f"{language}-sent") if line[at] not in received]

    def _lines(self, name: str) -> list[list[str]]:
        path = self._folder / f"{name}.tsv"
        text = path.read_text() if path.exists() else ""
        # The last one may be half written.
        return [line.split("\t") for line in text[: text.rfind("\n") + 1].splitlines()]

    def _path(self, name: str) -> str:
        is_record = name.endswith(("-sent", "-received")) and not name.startswith("all-")
        return str(self._folder / (f"{name}.tsv" if is_record else name))

    def _start(self, name: str, *command: str) -> None:
        home = self._folder / f"{name}-home"
        home.mkdir()
        environment: Mapping[str, str] = {**os.environ, "HOME": str(home)}
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
            )


def longest_gap_s(moments: Iterable[float], began_s: float, ended_s: float) -> float:
    """The longest time without one between two moments, ends included."""
    inside = sorted(moment for moment in moments if began_s <= moment <= ended_s)
    edges = [began_s, *inside, ended_s]
    return max(after - before for before, after in pairwise(edges))


def _inversions(deliveries: Iterable[tuple[int, int]]) -> int:
    """First deliveries of a lane that come behind one of a greater number."""
    newest: dict[int, int] = {}
    seen: set[tuple[int, int]] = set()
    count = 0
    for lane, number in deliveries:
        if (lane, number) in seen:
            continue
        seen.add((lane, number))
        count += number < newest.get(lane, -1)
        newest[lane] = max(number, newest.get(lane, -1))
    return count
