"""Fills a store with messages through the client API."""

from __future__ import annotations

from typing import Final

from load_generators import Generators, Target
from measurements.first_send import wait_first_send
from processes import MeasurementFailed
from system_under_test import Member, SystemUnderTest

FIRST_SEND_LIMIT_S: Final = 60.0
SLICE_S: Final = 4.0
BATCHES_IN_FLIGHT: Final = 8
BATCH: Final = 32


def fill(
    generators: Generators, system: SystemUnderTest, *, topic: str, until_bytes: int, size: int, batch: int = BATCH
) -> int:
    """Sends bodies of `size` bytes until the master's CommitLog holds `until_bytes`; its end. At most 15 minutes."""
    # RocketMQ's proxy may hear of a new topic seconds after its broker has it; a generator would give up.
    wait_first_send(system.endpoint, topic, limit_s=FIRST_SEND_LIMIT_S)
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
