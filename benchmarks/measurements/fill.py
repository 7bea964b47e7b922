"""Fills a store with messages through the client API."""

from __future__ import annotations

from typing import Final

from load_generators import Generators, Target
from processes import MeasurementFailed
from system_under_test import Member, SystemUnderTest

__all__ = ["fill"]

SLICE_S: Final = 4.0
BATCHES_IN_FLIGHT: Final = 8
BATCH: Final = 32


def fill(
    generators: Generators, system: SystemUnderTest, *, topic: str, until_bytes: int, size: int, batch: int = BATCH
) -> int:
    """Sends bodies of `size` bytes until the master's CommitLog holds `until_bytes`; its end. At most 15 minutes."""
    for _ in range(round(900 / SLICE_S)):
        progress = system.progress(Member.MASTER)
        if progress is not None and progress.end_offset >= until_bytes:
            return progress.end_offset
        generators.raw(
            Target(system.label, system.endpoint, system.pids()),
            "send",
            topic=topic,
            size=size,
            inflight=BATCHES_IN_FLIGHT,
            batch=batch,
            warmup=0,
            windows=1,
            seconds=SLICE_S,
        )
    raise MeasurementFailed(f"{system.label}: the store did not reach {until_bytes} bytes")
