"""Topics over all masters of a cluster: create, delete, list, describe."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import grpc.aio
from rich.table import Table
from tandemmq.admin.v1 import broker_admin_service_pb2 as admin_pb

from admin.cli.cluster_address import ClusterAddress
from admin.cli.failure import CommandError
from admin.cli.masters import find_masters, on_each
from admin.cli.status_view import new_table
from admin.rpc import Channels, NameServerCalls

__all__ = ["create_topic", "delete_topic", "find_topic", "topic_queues_table", "topics_by_master", "topics_table"]

# A master registers a changed topic table at once; a NameServer that is away is found out by its own deadline.
_ROUTE_LIMIT_S: Final = 15.0
_ROUTE_POLL_S: Final = 0.1
_PERMISSION_LETTERS: Final = ((4, "r"), (2, "w"), (1, "i"))


async def create_topic(channels: Channels, cluster: ClusterAddress, request: admin_pb.UpdateTopicRequest) -> list[str]:
    """Creates or changes the topic on all masters; returns their names once every NameServer routes to all of them."""
    masters = await find_masters(channels, cluster)
    await on_each(channels, masters, lambda broker: broker.update_topic(request))
    names = [master.broker_name for master in masters]
    await _until_routed(channels, cluster, request.topic, names)
    return names


async def delete_topic(channels: Channels, cluster: ClusterAddress, topic: str) -> list[str]:
    """Removes the topic from all masters; returns their names."""
    masters = await find_masters(channels, cluster)
    await on_each(channels, masters, lambda broker: broker.delete_topic(topic))
    return [master.broker_name for master in masters]


async def topics_by_master(
    channels: Channels, cluster: ClusterAddress, *, include_system: bool = False
) -> dict[str, list[admin_pb.TopicStatus]]:
    """Topics of each master, by broker name."""
    masters = await find_masters(channels, cluster)
    lists = await on_each(channels, masters, lambda broker: broker.topics(include_system=include_system))
    return {master.broker_name: topics for master, topics in zip(masters, lists, strict=True)}


async def find_topic(channels: Channels, cluster: ClusterAddress, topic: str) -> dict[str, admin_pb.TopicStatus]:
    """The topic on each master that has it, by broker name; empty when none has."""
    by_master = await topics_by_master(channels, cluster, include_system=True)
    return {name: status for name, topics in by_master.items() for status in topics if status.topic == topic}


def topics_table(by_master: dict[str, list[admin_pb.TopicStatus]]) -> Table:
    """One line per topic: type, queues of each group, permission, messages held."""
    by_topic: dict[str, list[tuple[str, admin_pb.TopicStatus]]] = {}
    for name, topics in by_master.items():
        for topic in topics:
            by_topic.setdefault(topic.topic, []).append((name, topic))
    table = new_table("topic", "type", "permission", "read / write queues", "messages")
    for topic_name in sorted(by_topic):
        statuses = by_topic[topic_name]
        table.add_row(
            topic_name,
            _agreed(status.message_type or "NORMAL" for _, status in statuses),
            _agreed(_permission(status.permission) for _, status in statuses),
            " ".join(f"{name}:{status.read_queue_count}/{status.write_queue_count}" for name, status in statuses),
            f"{sum(_held(status) for _, status in statuses):,}",
        )
    return table


def topic_queues_table(by_master: dict[str, admin_pb.TopicStatus]) -> Table:
    """One line per queue that holds or held messages."""
    table = new_table("broker", "queue", "first", "next", "messages")
    for name, status in sorted(by_master.items()):
        for queue in status.queues:
            messages = queue.max_offset - queue.min_offset
            table.add_row(name, str(queue.queue_id), f"{queue.min_offset:,}", f"{queue.max_offset:,}", f"{messages:,}")
    return table


async def _until_routed(channels: Channels, cluster: ClusterAddress, topic: str, names: Sequence[str]) -> None:
    """Returns when every NameServer that answers routes the topic to all these groups."""
    waiting: dict[str, str] = dict.fromkeys(cluster.name_servers, "not asked yet")
    try:
        async with asyncio.timeout(_ROUTE_LIMIT_S):
            while waiting:
                for address in list(waiting):
                    missing = await _missing_from_route(channels, address, topic, names)
                    if missing:
                        waiting[address] = f"no route to {', '.join(missing)}"
                    else:
                        del waiting[address]
                await asyncio.sleep(_ROUTE_POLL_S if waiting else 0)
    except TimeoutError:
        raise CommandError(
            f"topic {topic} exists, but not every NameServer routes to it after {_ROUTE_LIMIT_S:.0f} s",
            cause="\n".join(f"{address}: {reason}" for address, reason in waiting.items()),
            remedy="see `tandemmq status`: a broker may not reach that NameServer",
        ) from None


async def _missing_from_route(channels: Channels, address: str, topic: str, names: Sequence[str]) -> list[str]:
    try:
        route = await NameServerCalls(channels, address).topic_route(topic)
    except grpc.aio.AioRpcError:
        # It is away and learns the topic from the brokers when it is back; waiting for it would help nobody.
        return []
    routed = {queues.broker_name for queues in route.queues} if route is not None else set()
    return [name for name in names if name not in routed]


def _agreed(values: Iterable[str]) -> str:
    # Masters may differ while a change is under way.
    return "/".join(sorted(set(values)))


def _permission(bits: int) -> str:
    return "".join(letter if bits & bit else "-" for bit, letter in _PERMISSION_LETTERS)


def _held(status: admin_pb.TopicStatus) -> int:
    return sum(queue.max_offset - queue.min_offset for queue in status.queues)
