"""What the kernel says of this process, under the names every Prometheus client library gives it."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

from mqservice.metrics.metric_info import MetricInfo, MetricKind
from mqservice.metrics.metric_samples import MetricFamily, MetricSamples

__all__ = ["PROCESS_METRICS", "process_families"]

PROCESS_METRICS: Final = (
    MetricInfo(
        "process_cpu_seconds_total", MetricKind.COUNTER, "s", "Processor time of the process, in user and kernel mode."
    ),
    MetricInfo(
        "process_resident_memory_bytes",
        MetricKind.GAUGE,
        "By",
        "Resident memory; pages of mapped files count while they are in memory.",
    ),
    MetricInfo("process_virtual_memory_bytes", MetricKind.GAUGE, "By", "Address space; mapped files count in whole."),
    MetricInfo(
        "process_start_time_seconds", MetricKind.GAUGE, "s", "When the process started, in seconds since the epoch."
    ),
    MetricInfo("process_open_fds", MetricKind.GAUGE, "{file}", "Open file descriptors."),
    MetricInfo("process_max_fds", MetricKind.GAUGE, "{file}", "How many there may be."),
)

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/self/stat as counted from the one after the command, which may hold spaces; see proc(5).
_UTIME, _STIME, _STARTTIME, _VSIZE, _RSS = 11, 12, 19, 20, 21


def process_families() -> list[MetricFamily]:
    """As of now; nothing where /proc is missing. Any thread."""
    samples = MetricSamples(PROCESS_METRICS)
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        machine = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        open_files = len(os.listdir("/proc/self/fd"))
    except OSError:
        return []
    booted_s = next(int(line.split()[1]) for line in machine if line.startswith("btime "))
    samples.add("process_cpu_seconds_total", (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS)
    samples.add("process_resident_memory_bytes", int(fields[_RSS]) * _PAGE_BYTES)
    samples.add("process_virtual_memory_bytes", int(fields[_VSIZE]))
    samples.add("process_start_time_seconds", booted_s + int(fields[_STARTTIME]) / _TICKS)
    samples.add("process_open_fds", open_files)
    samples.add("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return samples.families()
