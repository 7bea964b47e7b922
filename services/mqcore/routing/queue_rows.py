"""A topic's route as the official clients need it: one row per queue of each group that can serve it now.

Mirrors RocketMQ 5's RouteActivity, with two differences that the clients' own mistakes call for. Only the master's
rows are listed: Go and Rust choose among all rows without looking at the broker id, and a slave's row would get their
sends. And only what the topic really permits is listed, as the same clients do not look at the permission either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from mqcore.routing.address import Address, parse_address
from mqcore.routing.values import (
    MASTER_ID,
    PERMISSION_READ,
    PERMISSION_WRITE,
    BrokerData,
    QueueData,
    TopicRoute,
)

__all__ = ["QueuePermission", "QueueRow", "accepted_message_types", "external_route", "queue_rows"]

_MIXED: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
# Types of a topic that takes nothing else.
_SINGLE: Final = frozenset((*_MIXED, "LITE", "PRIORITY"))


class QueuePermission(Enum):
    """What a client may do with a queue; never none, a row without permission is not listed."""

    READ = "read"
    WRITE = "write"
    READ_WRITE = "read and write"

    @property
    def is_readable(self) -> bool:
        """True where consumers may poll."""
        return self is not QueuePermission.WRITE

    @property
    def is_writable(self) -> bool:
        """True where producers may send."""
        return self is not QueuePermission.READ


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue, and the client plane of the member that serves it."""

    topic: str
    queue_id: int
    permission: QueuePermission
    broker_name: str
    broker_id: int
    address: Address
    # Message types that may be sent to it, for example ("NORMAL",).
    accept_types: tuple[str, ...]


def queue_rows(route: TopicRoute) -> list[QueueRow]:
    """Rows of all groups whose master is live, by broker name and queue id: the same order at every call.

    Empty when no group has a live master, or none permits anything. Go compares routes by position, and a queue id 0
    exists for each broker because Node reads no other.
    """
    masters = {group.broker_name: group.endpoints.get(MASTER_ID) for group in route.brokers}
    rows = []
    for queues in route.queues:
        master = masters.get(queues.broker_name)
        address = parse_address(master.client) if master is not None else None
        if address is None:
            continue
        accept_types = accepted_message_types(queues.message_type)
        rows += [
            QueueRow(route.topic, queue_id, permission, queues.broker_name, MASTER_ID, address, accept_types)
            for queue_id, permission in enumerate(_permissions(queues))
        ]
    return rows


def external_route(route: TopicRoute) -> TopicRoute:
    """The route for clients outside the cluster's network: external client endpoints; members without one left out."""
    return replace(route, brokers=tuple(_external_group(group) for group in route.brokers))


def _external_group(group: BrokerData) -> BrokerData:
    return replace(
        group,
        endpoints={
            broker_id: replace(endpoints, client=endpoints.client_external)
            for broker_id, endpoints in group.endpoints.items()
            if endpoints.client_external
        },
    )


def accepted_message_types(message_type: str) -> tuple[str, ...]:
    """What a topic of this type takes: MIXED all four ordinary types, any other only itself.

    No type, or one that is not RocketMQ's, counts as NORMAL: a list that is empty or unknown to a client stops it.
    """
    if message_type == "MIXED":
        return _MIXED
    return (message_type,) if message_type in _SINGLE else ("NORMAL",)


def _permissions(queues: QueueData) -> Iterator[QueuePermission]:
    """One per queue, ids counted through: surplus read queues, surplus write queues, then those that are both."""
    readable = queues.read_queue_count if queues.permission & PERMISSION_READ else 0
    writable = queues.write_queue_count if queues.permission & PERMISSION_WRITE else 0
    both = min(readable, writable)
    for _ in range(readable - both):
        yield QueuePermission.READ
    for _ in range(writable - both):
        yield QueuePermission.WRITE
    for _ in range(both):
        yield QueuePermission.READ_WRITE
