"""Official clients at work while somebody disturbs their broker group, and what they felt of it.

Python sends and receives messages without an order, Go in message groups, one after the other in each; Java's have
transactions and Node's are delayed, if they are asked for. All repeat what is not acknowledged. Their records are
judged when all has come.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

from support.cluster_processes import wait_until
from support.running_time import PATIENCE_S

ROOT: Final = Path(__file__).resolve().parents[2]
SCRIPTS: Final = ROOT / "tests" / "e2e" / "kubernetes" / "client"
PLAIN_TOPIC: Final = "official-plain"
PLAIN_GROUP: Final = "official-plain-readers"
FIFO_TOPIC: Final = "official-fifo"
FIFO_GROUP: Final = "official-fifo-readers"
TRANSACTION_TOPIC: Final = "official-transaction"
TRANSACTION_GROUP: Final = "official-transaction-readers"
DELAY_TOPIC: Final = "official-delay"
DELAY_GROUP: Final = "official-delay-readers"
LANES: Final = 8
_RATE: Final = 100
_DRAIN_LIMIT_S: Final = 120.0
_DRAIN_PAUSE_S: Final = 1.0
_NEVER_S: Final = 1e9


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
    forbidden: int
    """Deliveries of what was rolled back (Java)."""
    doubled: int
    """Messages at two places, of clients that never send one twice (Java)."""
    early: int
    """Deliveries before they were due (Node)."""
    failed_programs: tuple[str, ...]
    """Which did not end as they should."""
    settled_again: int
    """Deliveries of a place whose acknowledgement had been answered OK (Java, Node)."""
    acknowledged_at: tuple[float, ...]
    delivered_at: tuple[float, ...]


class OfficialLoad:
    """From `with` on. `python` is the interpreter that has the official client, the others are commands of programs;
    without `java` or `node` there are no transactions or delays."""

    def __init__(
        self,
        folder: Path,
        *,
        endpoints: Sequence[str],
        python: Path,
        go: Sequence[str],
        java: Sequence[str] = (),
        node: Sequence[str] = (),
        rate: int = _RATE,
        lanes: int = LANES,
    ) -> None:
        self._folder = folder
        self._endpoints = ";".join(endpoints)
        self._python = python
        programs = {"go": go, "java": java, "node": node}
        self._programs = {
            language: (*command, "--endpoint", self._endpoints) for language, command in programs.items() if command
        }
        self._rate, self._lanes = rate, lanes
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        python = (str(self._python), "-u")
        self._start(
            *("python-sent", *python, str(SCRIPTS / "send.py"), "--endpoints", self._endpoints, "--topic", PLAIN_TOPIC),
            *("--record", self._path("python-sent"), "--stop", self._path("stop"), "--rate", str(self._rate)),
            *("--limit-s", str(_NEVER_S)),
        )
        self._start(
            "python-received",
            *(*python, str(SCRIPTS / "receive.py"), "--endpoints", self._endpoints, "--topic", PLAIN_TOPIC),
            *("--group", PLAIN_GROUP, "--record", self._path("python-received")),
            *("--awaited", self._path("python-sent"), "--until", self._path("all-sent")),
            *("--limit-s", str(_DRAIN_LIMIT_S)),
        )
        places = {
            "go": (FIFO_TOPIC, FIFO_GROUP),
            "java": (TRANSACTION_TOPIC, TRANSACTION_GROUP),
            "node": (DELAY_TOPIC, DELAY_GROUP),
        }
        for language, command in self._programs.items():
            topic, group = places[language]
            sending = (topic, self._path(f"{language}-sent"), self._path("stop"), str(self._lanes))
            # Java's answers checks until all has come.
            end = (self._path("all-received"),) if language == "java" else ()
            self._start(f"{language}-sent", *command, "send", *sending, *end)
            receiving = (topic, group, self._path(f"{language}-received"), self._path("all-received"))
            self._start(f"{language}-received", *command, "receive", *receiving)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait(PATIENCE_S)

    def wait_busy(self) -> None:
        """Returns when all are at work."""
        what = f"the official clients are at work; see {self._folder}"
        wait_until(lambda: all(self._lines(name) for name in self._processes), limit_s=_DRAIN_LIMIT_S, what=what)

    def finish(self) -> list[Felt]:
        """Stops the senders, lets the receivers come to the end, and says what they saw."""
        (self._folder / "stop").touch()
        for name, process in self._processes.items():
            if name == "java-sent":
                done = Path(self._path(name) + ".done")
                with suppress(AssertionError):
                    wait_until(done.exists, limit_s=PATIENCE_S, what="the last transactions are begun")
            elif name.endswith("-sent"):
                _end_of(process, PATIENCE_S)
        (self._folder / "all-sent").touch()
        self._drain()
        (self._folder / "all-received").touch()
        for process in self._processes.values():
            _end_of(process, PATIENCE_S + _DRAIN_LIMIT_S)
        return [self._felt(language) for language in ("python", *self._programs)]

    def _drain(self) -> None:
        """Returns when all has come, or nothing more has for the limit: a slow reader is none that misses something."""
        fewest, since_s = sum(len(self._missing(language)) for language in self._programs), time.monotonic()
        while fewest and time.monotonic() - since_s < _DRAIN_LIMIT_S:
            time.sleep(_DRAIN_PAUSE_S)
            missing = sum(len(self._missing(language)) for language in self._programs)
            if missing < fewest:
                fewest, since_s = missing, time.monotonic()

    def _felt(self, language: str) -> Felt:
        sent, received = self._lines(f"{language}-sent"), self._lines(f"{language}-received")
        ids = [line[_id_at(language)] for line in received]
        promised = self._promised(language)
        places = {(line[2], line[3]) for line in received}
        due = {line[2]: float(line[3]) for line in sent} if language == "node" else {}
        return Felt(
            language,
            acknowledged=len(promised),
            missing=tuple(self._missing(language)),
            repeated=len(ids) - len(set(ids)),
            out_of_order=_inversions((int(line[0]), int(line[1])) for line in received) if language == "go" else 0,
            forbidden=sum(line[2] not in set(promised) for line in received) if language == "java" else 0,
            doubled=len(places) - len(set(ids)) if language == "java" else 0,
            failed_programs=tuple(
                name for name, process in self._processes.items() if name.startswith(language) and process.returncode
            ),
            early=sum(float(line[-1]) < due.get(line[2], 0) for line in received),
            settled_again=settled_again(received) if language in ("java", "node") else 0,
            acknowledged_at=tuple(float(line[-1]) for line in sent),
            delivered_at=tuple(float(line[-1]) for line in received),
        )

    def _promised(self, language: str) -> list[str]:
        """Ids, in Java's case bodies, of what must come."""
        sent = self._lines(f"{language}-sent")
        return [line[_id_at(language)] for line in sent if language != "java" or line[3] == "C"]

    def _missing(self, language: str) -> list[str]:
        received = {line[_id_at(language)] for line in self._lines(f"{language}-received")}
        return [each for each in self._promised(language) if each not in received]

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
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
            )


def _end_of(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """One that stands still is killed, and told as failed."""
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _id_at(language: str) -> int:
    return 1 if language == "python" else 2


def longest_gap_s(moments: Iterable[float], began_s: float, ended_s: float) -> float:
    """The longest time without one between two moments, ends included."""
    inside = sorted(moment for moment in moments if began_s <= moment <= ended_s)
    edges = [began_s, *inside, ended_s]
    return max(after - before for before, after in pairwise(edges))


def settled_again(received: Sequence[Sequence[str]]) -> int:
    """Deliveries of lane, number, id, offset, acknowledged and received whose place was acknowledged before."""
    settled: dict[tuple[str, str], float] = {}
    for line in received:
        if float(line[4]):
            settled[line[2], line[3]] = min(float(line[4]), settled.get((line[2], line[3]), math.inf))
    return sum(settled.get((line[2], line[3]), math.inf) < float(line[5]) for line in received)


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
