"""Subscription groups over all masters of a cluster: create and list."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from tandemmq.admin.v1 import broker_admin_service_pb2 as admin_pb

from admin.cli.cluster_address import ClusterAddress
from admin.cli.masters import find_masters, on_each
from admin.cli.status_view import new_table
from admin.rpc import Channels

__all__ = ["create_group", "group_queues_table", "groups_by_master", "groups_table"]


async def create_group(
    channels: Channels, cluster: ClusterAddress, request: admin_pb.UpdateSubscriptionGroupRequest
) -> list[str]:
    """Creates or changes the group on all masters; returns their names."""
    masters = await find_masters(channels, cluster)
    await on_each(channels, masters, lambda broker: broker.update_group(request))
    return [master.broker_name for master in masters]


async def groups_by_master(
    channels: Channels, cluster: ClusterAddress
) -> dict[str, list[admin_pb.SubscriptionGroupStatus]]:
    """Groups of each master with their progress, by broker name."""
    masters = await find_masters(channels, cluster)
    lists = await on_each(channels, masters, lambda broker: broker.groups())
    return {master.broker_name: groups for master, groups in zip(masters, lists, strict=True)}


def groups_table(by_master: dict[str, list[admin_pb.SubscriptionGroupStatus]]) -> Table:
    """One line per group and topic: messages behind, in flight and acknowledged, over all queues."""
    table = new_table("group", "topic", "behind", "in flight", "acknowledged")
    names = sorted({status.group for groups in by_master.values() for status in groups})
    for name in names:
        sums: dict[str, tuple[int, int, int]] = {}
        for progress in _progress(by_master, name):
            behind, inflight, acknowledged = sums.get(progress.topic, (0, 0, 0))
            sums[progress.topic] = (
                behind + progress.max_offset - progress.committed_offset,
                inflight + progress.inflight_count,
                acknowledged + progress.committed_offset,
            )
        if not sums:
            table.add_row(name, "-", "-", "-", "-")
        for topic, numbers in sorted(sums.items()):
            table.add_row(name, topic, *(f"{number:,}" for number in numbers))
    return table


def group_queues_table(by_master: dict[str, list[admin_pb.SubscriptionGroupStatus]], group: str) -> Table:
    """One line per queue the group has read."""
    table = new_table("topic", "broker", "queue", "committed", "next", "behind", "in flight")
    for name in sorted(by_master):
        for progress in _progress({name: by_master[name]}, group):
            offsets = (progress.committed_offset, progress.max_offset, progress.max_offset - progress.committed_offset)
            numbers = (*offsets, progress.inflight_count)
            table.add_row(progress.topic, name, str(progress.queue_id), *(f"{number:,}" for number in numbers))
    return table


def _progress(
    by_master: dict[str, list[admin_pb.SubscriptionGroupStatus]], group: str
) -> Iterator[admin_pb.GroupProgress]:
    for groups in by_master.values():
        for status in groups:
            if status.group == group:
                yield from status.progress
