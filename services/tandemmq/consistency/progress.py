"""How far a run is: for a person a line on standard error, for machines a log line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Final, Self

from rich.console import Console

from tandemmq.consistency.settings import ProgressKind
from tandemmq.service.logging import get_logger

_LINE_INTERVAL_S: Final = 0.5
_TEXT_INTERVAL_S: Final = 5.0
"""Where nothing can be drawn over."""
_LOG_INTERVAL_S: Final = 10.0
_PROGRAM_INTERVAL_S: Final = 1.0
_MB: Final = 1_000_000


class Progress:
    """Counts bytes over all replicas and groups. A context: shows itself while it is open. For any thread."""

    def __init__(
        self, *, in_flight: Callable[[], int], shown: bool = True, kind: ProgressKind = ProgressKind.LOG
    ) -> None:
        self._in_flight = in_flight
        self._lock = threading.Lock()
        self._planned = 0
        self._read = 0
        self._findings = 0
        self._groups = 0
        self._groups_done = 0
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._is_person = kind is ProgressKind.PERSON
        self._is_terminal = shown and kind is not ProgressKind.PROGRAM and sys.stderr.isatty()
        self._log_interval_s = _PROGRAM_INTERVAL_S if kind is ProgressKind.PROGRAM else _LOG_INTERVAL_S
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True) if shown else None

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def groups(self, count: int) -> None:
        with self._lock:
            self._groups = count

    def planned(self, byte_count: int) -> None:
        """So much more is to be read."""
        with self._lock:
            self._planned += byte_count

    def read(self, byte_count: int) -> None:
        """So much more was read."""
        with self._lock:
            self._read += byte_count

    def group_done(self, finding_count: int) -> None:
        with self._lock:
            self._groups_done += 1
            self._findings += finding_count

    def values(self) -> dict[str, int | float | None]:
        """The state now, as the log has it."""
        running = self._in_flight()
        with self._lock:
            read = min(self._read + running, max(self._planned, self._read))
            elapsed_s = time.monotonic() - self._started
            rate = read / elapsed_s if elapsed_s else 0.0
            # What is read twice, to see whether a broker's digests are true, is not known beforehand.
            planned = max(self._planned, read)
            left_s = (planned - read) / rate if rate else None
            return {
                "groups_done": self._groups_done,
                "groups": self._groups,
                "read_bytes": read,
                "planned_bytes": planned,
                "mb_per_second": round(rate / _MB, 1),
                "seconds_left": None if left_s is None else round(left_s),
                "findings": self._findings,
            }

    def _show(self) -> None:
        if self._is_terminal:
            with Console(stderr=True).status("verifying") as status:
                while not self._ended.wait(_LINE_INTERVAL_S):
                    status.update(_line(self.values()))
            return
        if self._is_person:
            while not self._ended.wait(_TEXT_INTERVAL_S):
                sys.stderr.write(f"{_line(self.values())}\n")
            return
        while not self._ended.wait(self._log_interval_s):
            get_logger().info("progress", **self.values())


def _line(values: dict[str, int | float | None]) -> str:
    planned, read, left = values["planned_bytes"] or 0, values["read_bytes"] or 0, values["seconds_left"]
    groups = f"{values['groups_done']} of {values['groups']} groups"
    if not planned:
        return f"{groups}, finding out what there is to read"
    parts = [groups, f"{100 * read // planned} % of {planned / _MB:,.0f} MB", f"{values['mb_per_second']:,} MB/s"]
    parts += [f"{left} s left"] if left else []
    parts += [f"{values['findings']} findings"] if values["findings"] else []
    return ", ".join(parts)
