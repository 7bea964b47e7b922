"""Topics as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from admin.cli.status_view import new_table, plain_row
from admin.cli.time_option import aged_text
from admin.operations.values import Extent, Progress, Route, TopicDetail, TopicSummary

__all__ = ["permission_text", "routes_table", "topic_tables", "topics_table"]

_PERMISSION_LETTERS: Final = ((4, "r"), (2, "w"), (1, "i"))


def topics_table(topics: Iterable[TopicSummary]) -> Table:
    """One line a topic: type, permission, queues of each group, messages held."""
    table = new_table("topic", "category", "type", "permission", "read / write queues", "messages")
    for topic in topics:
        plain_row(
            table,
            topic.name,
            topic.category,
            _agreed(each.message_type or "NORMAL" for each in topic.brokers),
            _agreed(permission_text(each.permission) for each in topic.brokers),
            " ".join(f"{each.broker_name}:{each.read_queue_count}/{each.write_queue_count}" for each in topic.brokers),
            f"{topic.held:,}" if topic.held >= 0 else "?",
        )
    return table


def topic_tables(detail: TopicDetail, *, now_ms: int) -> RenderableType:
    """The topic, its queues, whether its routes agree, and who reads it."""
    routes = (
        Text("every NameServer that answers gives the same route")
        if detail.routes_agree
        else Text("NameServers disagree about its route; see `tandemmq topic routes`", style="bold yellow")
    )
    return Group(
        topics_table([detail.summary]),
        "",
        _queues_table(detail.extents, now_ms=now_ms),
        "",
        routes,
        "",
        _groups_table(detail.groups),
    )


def routes_table(routes: Sequence[Route]) -> Table:
    """One line a NameServer and broker group."""
    table = new_table("NameServer", "broker group", "read / write queues", "permission", "brokers")
    for route in routes:
        if not route.queues:
            plain_row(table, route.name_server, "knows no such topic", "-", "-", "-")
        for queues in route.queues:
            brokers = [
                f"{key}={endpoint}"
                for key, endpoint in sorted(route.brokers.items())
                if key.rpartition(":")[0] == queues.broker_name
            ]
            plain_row(
                table,
                route.name_server,
                queues.broker_name,
                f"{queues.read_queue_count}/{queues.write_queue_count}",
                permission_text(queues.permission),
                " ".join(brokers) or "-",
            )
    return table


def permission_text(bits: int) -> str:
    """rw-: read, write, inherit."""
    return "".join(letter if bits & bit else "-" for bit, letter in _PERMISSION_LETTERS)


def _queues_table(extents: Sequence[Extent], *, now_ms: int) -> Table:
    table = new_table("broker", "queue", "from offset", "to offset", "held", "oldest stored", "newest stored")
    for extent in extents:
        plain_row(
            table,
            extent.broker_name,
            str(extent.queue_id),
            f"{extent.min_offset:,}",
            f"{extent.max_offset:,}",
            f"{extent.held:,}",
            aged_text(extent.oldest_store_ms, now_ms=now_ms),
            aged_text(extent.newest_store_ms, now_ms=now_ms),
        )
    return table


def _groups_table(groups: Sequence[Progress]) -> RenderableType:
    if not groups:
        return Text("no group has read it")
    table = new_table("read by group", "lag", "in flight")
    for progress in groups:
        plain_row(table, progress.group, f"{progress.lag:,}", f"{progress.inflight:,}")
    return table


def _agreed(values: Iterable[str]) -> str:
    # Masters may differ while a change is under way.
    return "/".join(sorted(set(values))) or "-"
