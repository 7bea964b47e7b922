"""What proving would cost in a cluster of another size: arithmetic on what was measured here.

python benchmarks/consistency_plan.py                                        # 1,000 groups of 10 TB, three replicas
python benchmarks/consistency_plan.py --groups 20 --terabytes 2 --replicas 2

Reads build/bench-consistency.json. docs/operations/consistency-at-scale.md says what the lines mean.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MEASURED: Final = ROOT / "build" / "bench-consistency.json"
EXTENT_BYTES: Final = 4 << 20
STORED_BYTES_PER_EXTENT: Final = 24
"""In Parquet: 16 of digest, the rest compresses well."""
AUDIT_READ_RATE: Final = 64 << 20
"""What the plan sets auditReadRate to, bytes a second: its brokers take more than the default of 24 MiB/s."""
RETENTION_HOURS: Final = 72
"""fileReservedTime."""
VOLUME_BYTES_PER_S: Final = 100e6
"""What the deep tier may take of a replica's volume."""
SCRUB_WINDOW_HOURS: Final = 7 * 24


@dataclass(frozen=True, slots=True)
class Measured:
    """Constants of one machine."""

    digest: float
    """MB/s per core, start and end of a run aside: on 20 GB they are most of it, on a cluster nothing."""
    deep: float
    """The same with every record, ConsumeQueue and index."""
    nothing_new_cpu_s: float
    nothing_new_s: float
    broker_cpu_percent: float
    """Of a core, for its log digested at `AUDIT_READ_RATE`: it grows with the rate."""

    @classmethod
    def read(cls, path: Path) -> Measured:
        """From the rows of the benchmark."""
        rows = {row["name"]: row["value"] for row in json.loads(path.read_text())}
        megabytes, fixed_s = rows["job_bytes"] / 1e6, rows["job_nothing_new_cpu"]
        return cls(
            digest=megabytes / (megabytes / rows["job_quick"] - fixed_s),
            deep=megabytes / (megabytes / rows["job_deep"] - fixed_s),
            nothing_new_cpu_s=rows["job_nothing_new_cpu"],
            nothing_new_s=rows["job_nothing_new_time"],
            broker_cpu_percent=(
                rows["broker_digest_cpu_from_disk"] / rows["broker_digest_rate_from_disk"] * AUDIT_READ_RATE / 1e6
            ),
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    groups: int
    terabytes: float
    """Log of one replica."""
    replicas: int

    @property
    def replica_bytes(self) -> float:
        return self.terabytes * 1e12

    @property
    def new_bytes_per_s(self) -> float:
        """Of a group that is full after the time of retention."""
        return self.replica_bytes / (RETENTION_HOURS * 3600)


def plan(cluster: Cluster, measured: Measured) -> Iterator[tuple[str, str]]:
    """The lines of the table."""
    extents = cluster.replica_bytes / EXTENT_BYTES
    new_share = cluster.new_bytes_per_s / AUDIT_READ_RATE
    scrub_rate = AUDIT_READ_RATE - cluster.new_bytes_per_s
    everything = cluster.replica_bytes * cluster.groups * cluster.replicas
    yield "log in all replicas", f"{everything / 1e15:,.1f} PB"
    yield (
        "new log of a group",
        f"{cluster.new_bytes_per_s / 1e6:.1f} MB/s, {cluster.new_bytes_per_s * 3.6e-6:,.0f} GB/h",
    )
    yield "quick, hourly: a broker reads new log for", f"{new_share * 60:.0f} of 60 minutes at auditReadRate"
    yield "quick: CPU of a broker meanwhile", f"{measured.broker_cpu_percent:.2g} % of a core"
    if scrub_rate > 0:
        hours = cluster.replica_bytes / scrub_rate / 3600
        yield (
            "quick: old log seen again in",
            f"{hours:,.0f} h with the rest of that rate (window: {SCRUB_WINDOW_HOURS} h)",
        )
    digests = AUDIT_READ_RATE * 3600 / EXTENT_BYTES
    yield "quick: digests a run takes from a broker", f"{digests:,.0f}, {digests * 40 / 1e6:.1f} MB"
    yield "remembered digests of a group", f"{extents * STORED_BYTES_PER_EXTENT / 1e6:,.0f} MB"
    yield (
        "remembered digests of the cluster",
        f"{extents * STORED_BYTES_PER_EXTENT * cluster.groups / 1e9:,.0f} GB",
    )
    core_hours = everything / 1e6 / measured.deep / 3600
    pass_hours = cluster.replica_bytes / VOLUME_BYTES_PER_S / 3600
    yield "deep, from volumes: CPU of one pass", f"{core_hours:,.0f} core-hours"
    yield "deep: one pass takes at least", f"{pass_hours:,.0f} h at {VOLUME_BYTES_PER_S / 1e6:.0f} MB/s per replica"
    yield "deep: cores for that", f"{core_hours / pass_hours:,.0f}"
    yield (
        "digests alone, from volumes: CPU of one pass",
        f"{everything / 1e6 / measured.digest / 3600:,.0f} core-hours",
    )
    yield "start and end of a run", f"{measured.nothing_new_s:.0f} s, {measured.nothing_new_cpu_s:.0f} s of CPU"


def main() -> int:
    """Prints the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--terabytes", type=float, default=10.0, help="log of one replica")
    parser.add_argument("--replicas", type=int, default=3)
    arguments = parser.parse_args()
    cluster = Cluster(arguments.groups, arguments.terabytes, arguments.replicas)
    if not MEASURED.exists():
        raise SystemExit("nothing was measured yet: run `make bench-consistency` first")
    print(f"| {cluster.groups:,} groups of {cluster.terabytes:g} TB, {cluster.replicas} replicas | |\n|---|---|")
    for name, value in plan(cluster, Measured.read(MEASURED)):
        print(f"| {name} | {value} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
