"""Damage planted in groups of their own, and whether a run named each of them: kind, replica and message."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from support.damaged_groups import GroupFolder
from support.store_damage import Damage, Expected
from tandemmq.core.audit.findings import Finding, Verdict


@dataclass(frozen=True, slots=True)
class Planted:
    group: str
    damage: Damage
    replicas: int
    expected: Expected


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a run made of it."""

    planted: Planted
    findings: tuple[Finding, ...]
    problem: str
    """What is missing or too much; empty when the damage was found and named."""

    @property
    def holds(self) -> bool:
        """Found, named, and nothing besides."""
        return not self.problem

    @property
    def found(self) -> str:
        """Kinds and how many of each."""
        if self.planted.expected.benign and not self.findings:
            return "padding: harmless"
        kinds = Counter(finding.kind for finding in self.findings)
        return ", ".join(kind if count == 1 else f"{kind} x {count}" for kind, count in sorted(kinds.items()))

    @property
    def named(self) -> str:
        """The message, as the first finding that has one tells it."""
        for finding in self.findings:
            if finding.message_id is not None:
                more = f" +{finding.messages - 1}" if finding.messages > 1 else ""
                return f"{finding.topic}/{finding.queue_id}@{finding.queue_offset} …{finding.message_id[-8:]}{more}"
        return next((finding.topic or finding.file or "" for finding in self.findings), "")

    @property
    def blamed(self) -> str:
        """Which replica, and by what evidence."""
        told = {
            f"{'?' if finding.broker_id is None else finding.broker_id} {finding.verdict}" for finding in self.findings
        }
        return ", ".join(sorted(told))


def plant(maker: GroupFolder, damages: Iterable[Damage], *, replicas: Sequence[int], seed: int) -> list[Planted]:
    """Each damage in a group of each size."""
    return [_plant(maker, damage, count, seed) for damage in damages for count in replicas]


def _plant(maker: GroupFolder, damage: Damage, replicas: int, seed: int) -> Planted:
    group = f"{damage.name}-{replicas}x"
    # By name: one more damage in the list changes no other one's place.
    chance = random.Random(seed ^ zlib.crc32(group.encode()))
    expected = maker.add_changed(group, lambda stores: damage.apply(stores, chance), replicas=replicas)
    return Planted(group, damage, replicas, expected)


def judge(planted: Planted, findings: Sequence[Finding], benign: Mapping[str, int]) -> Judgement:
    """Whether what a deep run found in the group is what was planted. `benign` is what the run counted as harmless."""
    return Judgement(planted, tuple(findings), _problem(planted, findings, benign))


def _problem(planted: Planted, findings: Sequence[Finding], benign: Mapping[str, int]) -> str:
    expected = planted.expected
    if not expected.kinds:
        if findings:
            return "false alarm"
        return "not noticed" if expected.benign and not any(benign.values()) else ""
    right_kind = [finding for finding in findings if finding.kind in expected.kinds]
    if not right_kind:
        return "not found"
    unnamed_is_right = expected.everywhere or expected.undecidable
    for finding in findings:
        if finding.kind not in expected.kinds | expected.consequences:
            return f"too much: {finding.kind}"
        if finding.broker_id is None:
            if finding.verdict is not Verdict.UNDECIDED and not expected.everywhere:
                return "nobody is named"
        elif not expected.everywhere and finding.broker_id not in expected.victims:
            return f"broker {finding.broker_id} is named instead of {expected.broker_id}"
    if not unnamed_is_right and all(finding.broker_id is None for finding in right_kind):
        return "nobody is named"
    return _problem_of_messages(expected, findings)


def _problem_of_messages(expected: Expected, findings: Sequence[Finding]) -> str:
    """Each message by its id or by where it lies, with its topic."""
    told = {message_id for finding in findings for message_id in (finding.message_id, finding.last_message_id)}
    for index, message_id in enumerate(expected.message_ids):
        start, end = expected.ranges[index] if index < len(expected.ranges) else (0, 0)
        if message_id not in told and not any(_reaches(finding, start, end) for finding in findings):
            return f"message {message_id} is not named"
    for start, end in expected.ranges:
        if not any(_reaches(finding, start, end) for finding in findings):
            return f"nothing is said of {start}"
    if expected.topic is not None and all(finding.topic != expected.topic for finding in findings):
        return f"topic {expected.topic} is not named"
    if expected.message_ids and expected.message_ids[0] not in told:
        return f"the first message {expected.message_ids[0]} is not named"
    return ""


def _reaches(finding: Finding, start: int, end: int) -> bool:
    return (
        finding.start_offset is not None
        and finding.end_offset is not None
        and finding.start_offset < end
        and start < finding.end_offset
    )
