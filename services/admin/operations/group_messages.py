"""Protobuf messages about groups and clients as values, several brokers' together. The edge: protobuf stops here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from tandemmq.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.admin.v1 import broker_operations_service_pb2 as operations_pb

from admin.operations.values import Client, GroupSummary, OffsetReset, Progress, ResetTarget

__all__ = ["clients_together", "group_summary", "moves_of", "progress_of", "reset_request", "topics_together"]


def group_summary(statuses: Sequence[admin_pb.SubscriptionGroupStatus]) -> GroupSummary:
    """A group as its masters have it; where they differ, as one would fear: not enabled, more retries.

    A consumer is connected to every master that serves its topics, so those of the busiest master are all members,
    unless consumers of one group use topics of different masters.
    """
    return GroupSummary(
        name=statuses[0].group,
        ordered=any(status.consume_message_orderly for status in statuses),
        retry_max_times=max(status.retry_max_times for status in statuses),
        enabled=all(status.consume_enable for status in statuses),
        member_count=max(status.member_count for status in statuses),
    )


def progress_of(broker_name: str, status: admin_pb.SubscriptionGroupStatus) -> list[Progress]:
    """A group in each queue of one broker."""
    return [
        Progress(
            group=status.group,
            topic=queue.topic,
            broker_name=broker_name,
            queue_id=queue.queue_id,
            committed_offset=queue.committed_offset,
            max_offset=queue.max_offset,
            inflight=queue.inflight_count,
            oldest_age_ms=queue.oldest_age_ms,
        )
        for queue in status.progress
    ]


def topics_together(progress: Iterable[Progress]) -> list[Progress]:
    """A line for each group and topic: sums over the queues, the greatest age. Ordered by group and topic."""

    def key(one: Progress) -> tuple[str, str]:
        return one.group, one.topic

    sums = []
    for (group, topic), queues in groupby(sorted(progress, key=key), key=key):
        found = list(queues)
        max_offset = sum(one.max_offset for one in found)
        sums.append(
            Progress(
                group=group,
                topic=topic,
                broker_name="",
                queue_id=-1,
                # From the lags, so that the sum's lag is the sum of the lags.
                committed_offset=max_offset - sum(one.lag for one in found),
                max_offset=max_offset,
                inflight=sum(one.inflight for one in found),
                oldest_age_ms=max(one.oldest_age_ms for one in found),
            )
        )
    return sums


def clients_together(answers: Iterable[tuple[str, operations_pb.ListClientsResponse]]) -> list[Client]:
    """Each client once, the one heard of last first; `answers` are by the broker's `name:id`."""
    found: dict[tuple[str, str], Client] = {}
    for broker, answer in answers:
        for view in answer.clients:
            client = Client(
                client_id=view.client_id,
                client_type=view.client_type,
                group=view.group,
                language=view.language,
                version=view.version,
                address=view.address,
                silent_ms=view.silent_for.ToMilliseconds(),
                subscriptions=dict(view.subscriptions),
                brokers=(broker,),
            )
            key = client.client_id, client.group
            found[key] = _both(found[key], client) if key in found else client
    return sorted(found.values(), key=lambda client: (client.silent_ms, client.client_id))


def reset_request(
    group: str, topic: str, target: ResetTarget, *, broker_name: str, dry_run: bool
) -> operations_pb.ResetOffsetsRequest:
    """Asks one master for its part of a reset."""
    request = operations_pb.ResetOffsetsRequest(group=group, topic=topic, dry_run=dry_run)
    if target.offsets is not None:
        by_queue = {queue_id: offset for (name, queue_id), offset in target.offsets.items() if name == broker_name}
        request.offsets.by_queue.update(by_queue)
    elif target.time_ms is not None:
        request.time.FromMilliseconds(target.time_ms)
    elif target.earliest:
        request.earliest = True
    else:
        request.latest = True
    return request


def moves_of(broker_name: str, answer: operations_pb.ResetOffsetsResponse) -> list[OffsetReset]:
    """What a reset comes to on one master."""
    return [
        OffsetReset(
            broker_name=broker_name,
            queue_id=move.queue_id,
            from_offset=move.from_offset,
            to_offset=move.to_offset,
            max_offset=move.max_offset,
            inflight=move.inflight_count,
        )
        for move in answer.moves
    ]


def _both(one: Client, other: Client) -> Client:
    # The broker that heard of it last knows best what it is; one that has just been connected to may know nothing yet.
    newer, older = (other, one) if other.silent_ms < one.silent_ms else (one, other)
    known = newer if newer.client_type else replace(older, silent_ms=newer.silent_ms)
    return replace(
        known,
        subscriptions={**older.subscriptions, **newer.subscriptions},
        brokers=tuple(sorted({*one.brokers, *other.brokers})),
    )
