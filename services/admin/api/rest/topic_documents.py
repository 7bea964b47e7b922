"""Topics and groups as JSON: the values of `operations`, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from admin.operations.values import (
    Client,
    Extent,
    GroupDetail,
    GroupSummary,
    OffsetReset,
    Progress,
    Route,
    TopicDetail,
    TopicSummary,
    Unseen,
)

__all__ = ["ExtentDocument", "GroupDocument", "OffsetResetDocument", "ProgressDocument", "TopicDocument"]


@dataclass(frozen=True)
class ExtentDocument:
    """A queue of a topic on one master. Times are milliseconds since 1970, -1 where unknown."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    # Messages still held.
    held: int
    oldest_store_ms: int
    newest_store_ms: int

    @staticmethod
    def of(extent: Extent) -> ExtentDocument:
        """Of its value."""
        return ExtentDocument(
            broker_name=extent.broker_name,
            queue_id=extent.queue_id,
            min_offset=extent.min_offset,
            max_offset=extent.max_offset,
            held=extent.held,
            oldest_store_ms=extent.oldest_store_ms,
            newest_store_ms=extent.newest_store_ms,
        )


@dataclass(frozen=True)
class ProgressDocument:
    """A group in one queue, or in a topic when `queue_id` is -1."""

    group: str
    topic: str
    broker_name: str
    queue_id: int
    committed_offset: int
    max_offset: int
    # Messages not acknowledged.
    lag: int
    inflight: int
    # Age of the oldest message not acknowledged; 0: none, or not known.
    oldest_age_ms: int

    @staticmethod
    def of(progress: Progress) -> ProgressDocument:
        """Of its value."""
        return ProgressDocument(
            group=progress.group,
            topic=progress.topic,
            broker_name=progress.broker_name,
            queue_id=progress.queue_id,
            committed_offset=progress.committed_offset,
            max_offset=progress.max_offset,
            lag=progress.lag,
            inflight=progress.inflight,
            oldest_age_ms=progress.oldest_age_ms,
        )


@dataclass(frozen=True)
class TopicDocument:
    """All that is known of a topic."""

    summary: TopicSummary
    extents: Sequence[ExtentDocument]
    routes: Sequence[Route]
    # False: NameServers that answered disagree.
    routes_agree: bool
    # Groups that have read it.
    groups: Sequence[ProgressDocument]
    unseen: Sequence[Unseen]

    @staticmethod
    def of(topic: TopicDetail) -> TopicDocument:
        """Of its value."""
        return TopicDocument(
            summary=topic.summary,
            extents=[ExtentDocument.of(extent) for extent in topic.extents],
            routes=topic.routes,
            routes_agree=topic.routes_agree,
            groups=[ProgressDocument.of(progress) for progress in topic.groups],
            unseen=topic.unseen,
        )


@dataclass(frozen=True)
class GroupDocument:
    """All that is known of a group."""

    summary: GroupSummary
    progress: Sequence[ProgressDocument]
    members: Sequence[Client]
    # Messages in its dead letter queues.
    dead_letters: int
    unseen: Sequence[Unseen]

    @staticmethod
    def of(group: GroupDetail) -> GroupDocument:
        """Of its value."""
        return GroupDocument(
            summary=group.summary,
            progress=[ProgressDocument.of(progress) for progress in group.progress],
            members=group.members,
            dead_letters=group.dead_letters,
            unseen=group.unseen,
        )


@dataclass(frozen=True)
class OffsetResetDocument:
    """Where a group goes on, queue by queue."""

    dry_run: bool
    moves: Sequence[OffsetReset]
