"""Consumer groups and connected clients as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from admin.cli.status_view import new_table, plain_row
from admin.operations.values import Client, GroupDetail, GroupSummary, OffsetReset, Progress
from admin.quantities import age_text, counted, duration_text

__all__ = ["clients_table", "group_tables", "groups_table", "progress_table", "reset_table"]


def groups_table(groups: Iterable[GroupSummary]) -> Table:
    """One line a group."""
    table = new_table("group", "members", "lag", "in flight", "order", "retries", "consumes", "topics")
    for group in groups:
        plain_row(
            table,
            group.name,
            str(group.member_count),
            _count(group.lag),
            _count(group.inflight),
            "FIFO" if group.ordered else "any",
            str(group.retry_max_times),
            "yes" if group.enabled else "no",
            " ".join(group.topics) or "-",
        )
    return table


def group_tables(detail: GroupDetail) -> RenderableType:
    """The group, its progress queue by queue, its members, and its dead letters."""
    letters = (
        f"{counted(detail.dead_letters, 'dead letter')}; see `tandemmq dlq show {detail.summary.name}`"
        if detail.dead_letters
        else "no dead letters"
    )
    members = clients_table(detail.members) if detail.members else "no member is connected"
    return Group(groups_table([detail.summary]), "", progress_table(detail.progress), "", members, "", letters)


def progress_table(progress: Sequence[Progress]) -> RenderableType:
    """One line a queue the group has read."""
    if not progress:
        return "it has read nothing yet"
    table = new_table(
        "topic", "broker", "queue", "acknowledged below", "queue's end", "lag", "in flight", "oldest waits for"
    )
    for each in progress:
        plain_row(
            table,
            each.topic,
            each.broker_name,
            str(each.queue_id),
            f"{each.committed_offset:,}",
            f"{each.max_offset:,}",
            f"{each.lag:,}",
            f"{each.inflight:,}",
            duration_text(each.oldest_age_ms / 1_000) if each.oldest_age_ms else "-",
        )
    return table


def clients_table(clients: Iterable[Client]) -> Table:
    """One line a connected client."""
    table = new_table("client", "type", "group", "library", "address", "heard", "connected to", "topics")
    for client in clients:
        plain_row(
            table,
            client.client_id,
            client.client_type or "?",
            client.group or "-",
            f"{client.language} {client.version}".strip() or "?",
            client.address,
            age_text(client.silent_ms),
            " ".join(client.brokers),
            " ".join(f"{topic}:{rule}" if rule else topic for topic, rule in sorted(client.subscriptions.items())),
        )
    return table


def reset_table(moves: Sequence[OffsetReset]) -> Table:
    """One line a queue: from where to where, and what comes of it."""
    table = new_table("broker", "queue", "from", "to", "queue's end", "effect")
    for move in moves:
        before = f"{move.from_offset:,}" if move.from_offset >= 0 else "not read yet"
        plain_row(
            table,
            move.broker_name,
            str(move.queue_id),
            before,
            f"{move.to_offset:,}",
            f"{move.max_offset:,}",
            _effect(move),
        )
    return table


def _effect(move: OffsetReset) -> str:
    twice = f"; {move.inflight:,} in clients' hands may come twice" if move.inflight else ""
    if move.from_offset < 0:
        return f"{move.max_offset - move.to_offset:,} to come{twice}"
    if move.to_offset < move.from_offset:
        return f"{move.from_offset - move.to_offset:,} come again{twice}"
    if move.to_offset > move.from_offset:
        return f"{move.to_offset - move.from_offset:,} are skipped{twice}"
    return f"stays{twice}"


def _count(value: int) -> str:
    return f"{value:,}" if value >= 0 else "?"
