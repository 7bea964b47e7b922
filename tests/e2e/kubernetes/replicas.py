"""Whether the members of each broker group hold the same CommitLog, read in the pods byte by byte."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from e2e.kubernetes.cluster import CommandFailed, NotInTime, until
from e2e.kubernetes.installation import STORE, Broker, Installation

_SETTLE_LIMIT_S: Final = 120.0

# Runs in a broker's pod: SHA-256 of [start, end) of the CommitLog, over the files it is cut into.
_DIGEST: Final = """
import hashlib, json, pathlib, sys
start, end = int(sys.argv[2]), int(sys.argv[3])
digest, position = hashlib.sha256(), start
for path in sorted(pathlib.Path(sys.argv[1], "commitlog").iterdir()):
    first, size = int(path.name), path.stat().st_size
    if first + size <= position or first >= end:
        continue
    with path.open("rb") as source:
        source.seek(position - first)
        left = min(end, first + size) - position
        while left and (chunk := source.read(min(left, 1 << 20))):
            digest.update(chunk)
            left -= len(chunk)
            position += len(chunk)
print(json.dumps({"sha256": digest.hexdigest(), "bytes": position - start}))
"""


@dataclass(frozen=True, slots=True)
class LogsCompared:
    """All groups of a cluster."""

    groups: int
    # Members whose log was read, masters included.
    members: int
    # Bytes compared, counted once a group.
    compared_bytes: int
    # What differs, in words; empty when all are equal.
    differences: tuple[str, ...]


def compare_replicas(installation: Installation) -> LogsCompared:
    """Compares when nothing is on its way any more: all members of a group end at one offset."""
    groups: dict[str, list[Broker]] = {}

    def settled() -> str:
        groups.clear()
        groups.update(_by_group(installation.brokers()))
        open_ends = [name for name, members in groups.items() if len({member.end_offset for member in members}) > 1]
        return f"other ends in {', '.join(open_ends)}" if open_ends else ""

    differences: list[str] = []
    try:
        until(settled, _SETTLE_LIMIT_S, "the members of each group end at one offset")
    except NotInTime as error:
        differences.append(str(error))
    compared = 0
    for name, members in sorted(groups.items()):
        start = max(member.min_offset for member in members)
        end = min(member.end_offset for member in members)
        found = {member.pod: _digest(installation, member.pod, start, end) for member in members}
        compared += end - start
        if set(found.values()) != {found[members[0].pod]} or found[members[0].pod][1] != end - start:
            differences.append(f"{name} [{start}, {end}): {found}")
    return LogsCompared(len(groups), sum(map(len, groups.values())), compared, tuple(differences))


def _digest(installation: Installation, pod: str, start: int, end: int) -> tuple[str, int]:
    printed = installation.in_pod(pod, "python3", "-c", _DIGEST, STORE, str(start), str(end), limit_s=300)
    try:
        found = json.loads(printed)
    except json.JSONDecodeError as error:
        raise CommandFailed(f"{pod}: no digest: {printed[:300]!r}") from error
    return str(found["sha256"]), int(found["bytes"])


def _by_group(brokers: list[Broker]) -> dict[str, list[Broker]]:
    groups: dict[str, list[Broker]] = defaultdict(list)
    for broker in brokers:
        groups[broker.group].append(broker)
    return groups
