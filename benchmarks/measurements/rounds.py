"""Contenders in turn, A B A B: each case is measured on every contender before the next case, round after round."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from load_generators import Window
from processes import MeasurementFailed
from report import Row, Samples
from system_under_test import SystemUnderTest

# A resumed JVM catches up with its timers before it is measured.
SETTLE_S = 1.0
_COLUMNS = (
    *("contender", "msg/s (spread)", "p50 ms", "p99 ms", "p99.9 ms", "server CPU, µs (spread)", "generator's"),
    "strangers",
)


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to carry the load of a case."""

    label: str
    system: SystemUnderTest
    run: Callable[[], list[Window]]


@dataclass(frozen=True, slots=True)
class Case:
    """One load, measured on several contenders."""

    name: str
    title: str
    contenders: Sequence[Contender]


@contextmanager
def alone(system: SystemUnderTest, all_systems: Sequence[SystemUnderTest]) -> Iterator[None]:
    """Pauses all systems but one."""
    others = [other for other in all_systems if other is not system]
    for other in others:
        other.pause()
    time.sleep(SETTLE_S)
    try:
        yield
    finally:
        for other in others:
            other.resume()


def _in_short(windows: Sequence[Window]) -> str:
    """The middle one of some windows, for a line of progress."""
    window = windows[len(windows) // 2]
    p99 = "—" if window.p99_ms is None else f"{window.p99_ms:.2f} ms"
    return (
        f"{window.rate:,.0f} msg/s, {window.server_cpu_us:.1f} µs of server CPU, p99 {p99}, "
        f"strangers {window.stranger_cores:.2f} CPUs"
    )


@dataclass
class Rounds:
    """Windows of all cases by case, contender and round."""

    say: Callable[[str], None]
    windows_path: Path
    found: dict[tuple[str, str], list[list[Window]]] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)

    def play(self, cases: Sequence[Case], systems: Sequence[SystemUnderTest], *, rounds: int) -> None:
        """Measures every case `rounds` times; each window goes to a file as it is had.

        A round that fails is said and left out; figures are missing only where all rounds failed.
        """
        for number in range(1, rounds + 1):
            for case in cases:
                self.titles[case.name] = case.title
                for contender in case.contenders:
                    try:
                        with alone(contender.system, systems):
                            windows = contender.run()
                    except MeasurementFailed as error:
                        self.say(f"[red]round {number} of {case.title} failed[/]: {error}")
                        continue
                    self._keep(case, contender, number, windows)
                    self.say(f"round {number}/{rounds} · {case.title} · {contender.label}: {_in_short(windows)}")

    def _keep(self, case: Case, contender: Contender, number: int, windows: list[Window]) -> None:
        self.found.setdefault((case.name, contender.label), []).append(windows)
        with self.windows_path.open("a") as output:
            for window in windows:
                line = {"case": case.name, "contender": contender.label, "round": number, **asdict(window)}
                output.write(json.dumps(line) + "\n")

    def contenders(self, case: str) -> list[str]:
        """Labels that have figures for a case."""
        return [label for name, label in self.found if name == case]

    def samples(self, case: str, label: str, figure: Callable[[Window], float | None]) -> Samples:
        """One figure, a value a round: the median of the round's windows."""
        rounds = []
        for windows in self.found.get((case, label), ()):
            values = [value for value in map(figure, windows) if value is not None]
            if values:
                rounds.append(statistics.median(values))
        return Samples(tuple(rounds))

    def median(self, case: str, label: str, figure: Callable[[Window], float | None]) -> float:
        """The figure that counts; MeasurementFailed when no round had it."""
        samples = self.samples(case, label, figure)
        if not samples.values:
            raise MeasurementFailed(f"{case}: no round of {label} has the figure")
        return samples.median

    def absolute_rows(self, prefix: str, suffix: str, case: str) -> list[Row]:
        """Every contender's figures and their spread between the rounds, as `PREFIX_figure_SUFFIX_contender`."""
        rows = []
        for label in self.contenders(case):
            for name, unit, figure in (
                ("rate", "msg/s", lambda window: window.rate),
                ("cpu", "us/msg", lambda window: window.server_cpu_us),
                ("p50", "ms", lambda window: window.p50_ms),
                ("p99", "ms", lambda window: window.p99_ms),
                ("p999", "ms", lambda window: window.p999_ms),
            ):
                samples = self.samples(case, label, figure)
                if samples.values:
                    row_name = "_".join(filter(None, (prefix, name, suffix, label)))
                    rows.append(Row.absolute(row_name, samples.median, unit))
                    rows.append(Row.absolute(f"{row_name}_spread", samples.spread_percent, "%"))
        return rows

    def noise_rows(self) -> list[Row]:
        """What the rest of the machine did meanwhile."""
        cores = [w.stranger_cores for rounds in self.found.values() for windows in rounds for w in windows]
        if not cores:
            return []
        return [
            Row.absolute("noise_stranger_cores_median", statistics.median(cores), "CPUs"),
            Row.absolute("noise_stranger_cores_max", max(cores), "CPUs"),
        ]

    def tables(self) -> str:
        """Markdown: one table for each case."""
        parts = []
        for case, title in self.titles.items():
            lines = [f"\n{title}:\n", f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}"]
            for label in self.contenders(case):
                rate = self.samples(case, label, lambda w: w.rate)
                cpu = self.samples(case, label, lambda w: w.server_cpu_us)
                quantiles = [
                    self.samples(case, label, lambda w: w.p50_ms),
                    self.samples(case, label, lambda w: w.p99_ms),
                    self.samples(case, label, lambda w: w.p999_ms),
                ]
                shown = " | ".join(f"{q.median:.3g}" if q.values else "—" for q in quantiles)
                generator = self.median(case, label, lambda w: w.generator_cpu_us)
                strangers = self.median(case, label, lambda w: w.stranger_cores)
                lines.append(
                    f"| {label} | {rate.median:,.0f} ({rate.spread_percent:.0f} %) | {shown} | "
                    f"{cpu.median:.1f} ({cpu.spread_percent:.0f} %) | {generator:.1f} | {strangers:.2f} |"
                )
            parts.append("\n".join(lines) + "\n")
        return "".join(parts)
