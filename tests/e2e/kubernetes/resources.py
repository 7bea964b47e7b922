"""What an idle installation costs: memory and CPU of each container, as its cgroup counts them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from e2e.kubernetes.installation import Installation

# cgroup v1 and v2, whichever is mounted in the pod. `cat` alone: what starts to look is counted, too.
_FILES: Final = (
    "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    "/sys/fs/cgroup/memory/memory.stat",
    "/sys/fs/cgroup/cpuacct/cpuacct.usage",
    "/sys/fs/cgroup/memory.current",
    "/sys/fs/cgroup/memory.stat",
    "/sys/fs/cgroup/cpu.stat",
)
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """One pod, at rest."""

    pod: str
    # Anonymous memory: what the process itself needs.
    anonymous_mib: float
    # The working set, as Kubernetes counts it: with files recently used, among them the store's.
    working_set_mib: float
    # Thousandths of a core.
    millicores: float


def idle_usage(installation: Installation, *, over_s: float) -> list[Usage]:
    """Every pod of the release, over some seconds in which nobody sends."""
    names = [pod["metadata"]["name"] for pod in installation.pods()]
    before = {name: (_counters(installation, name), time.monotonic()) for name in names}
    time.sleep(over_s)
    usages = []
    for name in names:
        counters, taken = _counters(installation, name), time.monotonic()
        former, former_taken = before[name]
        seconds = taken - former_taken
        usages.append(
            Usage(
                pod=name,
                anonymous_mib=counters["anonymous"] / _MIB,
                working_set_mib=(counters["used"] - counters["inactive_file"]) / _MIB,
                millicores=(counters["cpu_ns"] - former["cpu_ns"]) / 1e6 / seconds,
            )
        )
    return usages


def _counters(installation: Installation, pod: str) -> dict[str, float]:
    script = "; ".join(f"[ -r {path} ] && echo == {path} && cat {path}" for path in _FILES)
    printed = installation.in_pod(pod, "sh", "-c", f"{script}; true")
    found: dict[str, dict[str, float]] = {}
    values: dict[str, float] = {}
    for line in printed.splitlines():
        words = line.split()
        if words[0] == "==":
            values = found.setdefault(words[1], {})
        elif len(words) == 1:
            values[""] = float(words[0])
        else:
            values[words[0]] = float(words[1])
    first = found.get(_FILES[0])
    if first is not None:
        stat = found[_FILES[1]]
        return {
            "used": first[""],
            # The totals are the cgroup's with all below it.
            "anonymous": stat["total_rss"],
            "inactive_file": stat["total_inactive_file"],
            "cpu_ns": found[_FILES[2]][""],
        }
    stat = found[_FILES[4]]
    return {
        "used": found[_FILES[3]][""],
        "anonymous": stat["anon"],
        "inactive_file": stat["inactive_file"],
        "cpu_ns": found[_FILES[5]]["usage_usec"] * 1e3,
    }
