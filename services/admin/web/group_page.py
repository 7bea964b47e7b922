"""What the pages of consumer groups show. Pure; templates only lay it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from admin.operations.topic_names import RETRY_PREFIX
from admin.operations.values import GroupDetail, GroupSummary, OffsetReset, Page, Progress, Unseen
from admin.quantities import count_text, counted, duration_text
from admin.web.client_rows import ClientRow, client_rows
from admin.web.page_addresses import dead_letters_address, group_address, messages_address, topic_address

__all__ = ["GroupRow", "GroupView", "ResetView", "group_rows", "group_view", "reset_view"]

TOPICS_SHOWN: Final = 50
"""Topics on a group's page; where it has read more, those it lacks most in, or those that were searched."""
QUEUES_SHOWN: Final = 1_000
"""Rows of queues on a group's page, of all topics together."""
MOVES_SHOWN: Final = 256
_TOPICS_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group of the list."""

    name: str
    address: str
    members: int
    # Empty: not known.
    lag: str
    inflight: str
    is_behind: bool
    topics: tuple[tuple[str, str], ...]
    more_topics: int
    order: str
    retries: int
    enabled: bool


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group in one queue."""

    broker_name: str
    queue_id: int
    committed_offset: int
    max_offset: int
    lag: int
    inflight: int
    oldest_age: str
    # What it reads next; empty when it has read all.
    next_address: str


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """A group in one topic."""

    topic: str
    address: str
    is_retry: bool
    lag: int
    inflight: int
    oldest_age: str
    queues: tuple[QueueProgress, ...]
    queue_total: int


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group's page."""

    name: str
    ordered: bool
    retry_max_times: int
    enabled: bool
    lag: int
    inflight: int
    oldest_age: str
    dead_letters: int
    dead_letters_address: str
    # Sentences: disabled, or a lag that nobody works off.
    warnings: tuple[str, ...]
    topics: tuple[TopicProgress, ...]
    # Those it has read, and those of them that match the search.
    topic_total: int
    topic_matches: int
    members: tuple[ClientRow, ...]
    member_total: int
    unseen: tuple[Unseen, ...]


@dataclass(frozen=True, slots=True)
class MoveRow:
    """What a reset does in one queue."""

    broker_name: str
    queue_id: int
    from_text: str
    to_offset: int
    max_offset: int
    # back 1,200; skips 3; stays.
    effect: str
    inflight: int


@dataclass(frozen=True, slots=True)
class ResetView:
    """What a reset does."""

    rows: tuple[MoveRow, ...]
    queue_total: int
    # Whole sentences; empty: nothing moves.
    effects: tuple[str, ...]


def group_rows(page: Page[GroupSummary]) -> tuple[GroupRow, ...]:
    """The rows of a list."""
    return tuple(_group_row(group, all_seen=not page.unseen) for group in page.items)


def group_view(detail: GroupDetail, *, topic_search: str = "") -> GroupView:
    """All of a group's page; `topic_search` is a part of the names of the topics it shows."""
    summary = detail.summary
    by_topic = _by_topic(detail.progress)
    matching = {topic: found for topic, found in by_topic.items() if topic_search.lower() in topic.lower()}
    lag = sum(progress.lag for progress in detail.progress)
    return GroupView(
        name=summary.name,
        ordered=summary.ordered,
        retry_max_times=summary.retry_max_times,
        enabled=summary.enabled,
        lag=lag,
        inflight=sum(progress.inflight for progress in detail.progress),
        oldest_age=_oldest_text(detail.progress),
        dead_letters=detail.dead_letters,
        dead_letters_address=dead_letters_address(summary.name),
        warnings=tuple(_warnings(detail, lag)),
        topics=tuple(_shown(matching)),
        topic_total=len(by_topic),
        topic_matches=len(matching),
        members=client_rows(detail.members),
        member_total=max(len(detail.members), summary.member_count),
        unseen=tuple(detail.unseen),
    )


def reset_view(moves: Sequence[OffsetReset]) -> ResetView:
    """A dry run, or what was done."""
    again = sum(max(0, move.from_offset - move.to_offset) for move in moves if move.from_offset >= 0)
    skipped = sum(max(0, move.to_offset - move.from_offset) for move in moves if move.from_offset >= 0)
    inflight = sum(move.inflight for move in moves)
    unread = sum(move.from_offset < 0 for move in moves)
    effects = []
    if again:
        effects.append(f"{counted(again, 'message')} will be delivered again.")
    if skipped:
        effects.append(f"{counted(skipped, 'message')} will be skipped.")
    if inflight:
        effects.append(f"{counted(inflight, 'message')} in clients' hands may be consumed twice.")
    if unread:
        effects.append(f"{unread} of {len(moves)} queues have never been read by this group; it starts there as shown.")
    return ResetView(tuple(_move_row(move) for move in moves[:MOVES_SHOWN]), len(moves), tuple(effects))


def _group_row(group: GroupSummary, *, all_seen: bool) -> GroupRow:
    return GroupRow(
        name=group.name,
        address=group_address(group.name),
        members=group.member_count,
        lag=count_text(group.lag) if group.lag >= 0 else "",
        inflight=count_text(group.inflight) if group.inflight >= 0 else "",
        is_behind=group.lag > 0 and group.member_count == 0 and all_seen,
        topics=tuple((topic, topic_address(topic)) for topic in group.topics[:_TOPICS_NAMED]),
        more_topics=max(0, len(group.topics) - _TOPICS_NAMED),
        order="in order" if group.ordered else "concurrent",
        retries=group.retry_max_times,
        enabled=group.enabled,
    )


def _warnings(detail: GroupDetail, lag: int) -> list[str]:
    found = []
    if not detail.summary.enabled:
        found.append("This group is disabled: its consumers receive nothing until it is enabled.")
    elif lag and not detail.members and not detail.unseen:
        found.append(f"{counted(lag, 'message')} behind, and no consumer of this group is connected.")
    return found


def _by_topic(progress: Iterable[Progress]) -> dict[str, list[Progress]]:
    topics: dict[str, list[Progress]] = {}
    for one in progress:
        topics.setdefault(one.topic, []).append(one)
    return dict(sorted(topics.items()))


def _shown(topics: Mapping[str, Sequence[Progress]]) -> Iterable[TopicProgress]:
    """By name as long as all have room; else those it lacks most in. Queues as long as there is room for them."""
    names = list(topics)
    if len(names) > TOPICS_SHOWN:
        names.sort(key=lambda name: -sum(one.lag for one in topics[name]))
    room = QUEUES_SHOWN
    for name in names[:TOPICS_SHOWN]:
        yield _topic_progress(name, topics[name], queues=topics[name][:room])
        room = max(0, room - len(topics[name]))


def _topic_progress(topic: str, progress: Sequence[Progress], *, queues: Sequence[Progress]) -> TopicProgress:
    return TopicProgress(
        topic=topic,
        address=topic_address(topic),
        is_retry=topic.startswith(RETRY_PREFIX),
        lag=sum(one.lag for one in progress),
        inflight=sum(one.inflight for one in progress),
        oldest_age=_oldest_text(progress),
        queues=tuple(_queue_progress(one) for one in queues),
        queue_total=len(progress),
    )


def _queue_progress(progress: Progress) -> QueueProgress:
    return QueueProgress(
        broker_name=progress.broker_name,
        queue_id=progress.queue_id,
        committed_offset=progress.committed_offset,
        max_offset=progress.max_offset,
        lag=progress.lag,
        inflight=progress.inflight,
        oldest_age=_oldest_text([progress]),
        next_address=messages_address(
            topic=progress.topic,
            broker=progress.broker_name,
            queue=progress.queue_id,
            offset=progress.committed_offset,
        )
        if progress.lag
        else "",
    )


def _oldest_text(progress: Iterable[Progress]) -> str:
    oldest_ms = max((one.oldest_age_ms for one in progress), default=0)
    return duration_text(oldest_ms / 1_000) if oldest_ms > 0 else ""


def _move_row(move: OffsetReset) -> MoveRow:
    by = move.to_offset - move.from_offset
    if move.from_offset < 0:
        effect = "starts here"
    elif by == 0:
        effect = "stays"
    else:
        effect = f"back {-by:,}" if by < 0 else f"skips {by:,}"
    return MoveRow(
        broker_name=move.broker_name,
        queue_id=move.queue_id,
        from_text=count_text(move.from_offset) if move.from_offset >= 0 else "never read",
        to_offset=move.to_offset,
        max_offset=move.max_offset,
        effect=effect,
        inflight=move.inflight,
    )
