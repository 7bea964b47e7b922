"""What a change of a topic comes to on each broker: what it is afterwards, and in which words that is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from admin.operations.values import BrokerTopic, Extent, TopicChange
from admin.quantities import counted
from mqcore.metadata.topic_table import topic_name_problem

__all__ = [
    "MESSAGE_TYPES",
    "NO_CHANGE",
    "PERMISSIONS",
    "changed_topic",
    "difference_text",
    "permission_text",
    "topic_problems",
    "unread_queues",
]

MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
PERMISSIONS: Final = {6: "read and write", 4: "read only", 2: "write only"}
"""RocketMQ's bits, and what they mean. Bit 1, `inherit`, is for the brokers' own topics."""
NO_CHANGE: Final = "no change"
_QUEUES_MAX: Final = 1_024
_DEFAULT: Final = "the broker's default number of"


def topic_problems(change: TopicChange) -> list[str]:
    """Why this change cannot be, whatever the cluster is like; empty if it can."""
    problems = []
    if (problem := topic_name_problem(change.name)) is not None:
        problems.append(problem)
    for what, count in (("read", change.read_queue_count), ("write", change.write_queue_count)):
        if not 0 <= count <= _QUEUES_MAX:
            problems.append(f"{count} {what} queues: from 1 to {_QUEUES_MAX:,}, or 0 for {_DEFAULT} queues")
    if change.permission and change.permission not in PERMISSIONS:
        known = ", ".join(f"{bits} ({meaning})" for bits, meaning in PERMISSIONS.items())
        problems.append(f"permission {change.permission}: choose one of {known}")
    if change.message_type and change.message_type not in MESSAGE_TYPES:
        problems.append(f"message type {change.message_type}: choose one of {', '.join(MESSAGE_TYPES)}")
    return problems


def changed_topic(change: TopicChange, broker_name: str, before: BrokerTopic | None) -> BrokerTopic:
    """The topic on a broker that has it as `before`, after the change. 0 queues: the broker's default."""
    old = before or BrokerTopic(broker_name, 0, 0, 6, "NORMAL")
    return replace(
        old,
        read_queue_count=change.read_queue_count or old.read_queue_count,
        write_queue_count=change.write_queue_count or old.write_queue_count,
        permission=change.permission or old.permission,
        message_type=change.message_type or old.message_type,
    )


def difference_text(before: BrokerTopic | None, after: BrokerTopic) -> str:
    """What happens, in words; `no change` if nothing does."""
    if before is None:
        return _creation(after)
    words = []
    if before.read_queue_count != after.read_queue_count:
        words.append(f"read queues {before.read_queue_count} → {after.read_queue_count}")
    if before.write_queue_count != after.write_queue_count:
        words.append(f"write queues {before.write_queue_count} → {after.write_queue_count}")
    if before.permission != after.permission:
        words.append(f"{permission_text(before.permission)} → {permission_text(after.permission)}")
    if before.message_type != after.message_type:
        words.append(f"type {before.message_type} → {after.message_type}")
    return ", ".join(words) or NO_CHANGE


def unread_queues(change: TopicChange, extents: Sequence[Extent]) -> list[str]:
    """What nobody could read any more: messages in queues beyond the new number, a line per broker."""
    if not change.read_queue_count:
        return []
    lost: dict[str, int] = {}
    for extent in extents:
        if extent.queue_id >= change.read_queue_count and extent.held:
            lost[extent.broker_name] = lost.get(extent.broker_name, 0) + extent.held
    return [
        f"{broker_name}: {counted(held, 'message')} in queues from {change.read_queue_count} on, "
        "which consumers no longer read; there again when the number of read queues is raised"
        for broker_name, held in lost.items()
    ]


def permission_text(bits: int) -> str:
    """`read and write`; with the bits if they are unusual."""
    return PERMISSIONS.get(bits, f"permission {bits}")


def _creation(topic: BrokerTopic) -> str:
    read, write = topic.read_queue_count, topic.write_queue_count
    queues = (
        f"{read or _DEFAULT} queues"
        if read == write
        else f"{read or _DEFAULT} read and {write or _DEFAULT} write queues"
    )
    return f"created with {queues}, {topic.message_type}, {permission_text(topic.permission)}"
