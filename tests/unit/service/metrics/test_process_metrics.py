"""What is told of any process."""

from __future__ import annotations

import time

from tandemmq.service.metrics.process_metrics import process_families


def test_this_process_is_told_of() -> None:
    values = {family.info.name: family.samples[0][1] for family in process_families()}
    assert 0 < values["process_resident_memory_bytes"] < values["process_virtual_memory_bytes"]  # type: ignore[operator]
    assert time.time() - 3_600 < values["process_start_time_seconds"] < time.time() + 2  # type: ignore[operator]
    assert 0 < values["process_open_fds"] <= values["process_max_fds"]  # type: ignore[operator]
    assert values["process_cpu_seconds_total"] > 0  # type: ignore[operator]
