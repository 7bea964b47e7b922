"""Protobuf messages about topics and routes as values. The edge: protobuf stops here."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.timestamp_pb2 import Timestamp
from tandemmq.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.admin.v1 import message_query_service_pb2 as query_pb
from tandemmq.nameserver.v1 import name_server_service_pb2 as nameserver_pb

from admin.operations.values import BrokerTopic, Extent, QueueRoute, Route

__all__ = ["broker_topic", "extents_of", "moment_ms", "plain_extents", "route_of", "topic_request"]


def broker_topic(broker_name: str, topic: admin_pb.TopicStatus) -> BrokerTopic:
    """A topic's configuration on one broker."""
    return BrokerTopic(
        broker_name=broker_name,
        read_queue_count=topic.read_queue_count,
        write_queue_count=topic.write_queue_count,
        permission=topic.permission,
        message_type=topic.message_type or "NORMAL",
    )


def topic_request(name: str, topic: BrokerTopic) -> admin_pb.UpdateTopicRequest:
    """Makes a broker's topic be as `topic` says."""
    return admin_pb.UpdateTopicRequest(
        topic=name,
        read_queue_count=topic.read_queue_count,
        write_queue_count=topic.write_queue_count,
        permission=topic.permission,
        message_type=topic.message_type,
    )


def extents_of(broker_name: str, queues: Iterable[query_pb.QueueStatus]) -> list[Extent]:
    """Queues with their times."""
    return [
        Extent(
            broker_name=broker_name,
            queue_id=queue.queue_id,
            min_offset=queue.min_offset,
            max_offset=queue.max_offset,
            oldest_store_ms=moment_ms(queue.oldest_store_time) if queue.HasField("oldest_store_time") else -1,
            newest_store_ms=moment_ms(queue.newest_store_time) if queue.HasField("newest_store_time") else -1,
        )
        for queue in queues
    ]


def plain_extents(broker_name: str, topic: admin_pb.TopicStatus) -> list[Extent]:
    """The same from a broker that tells no times; queues that never held anything are left out by it."""
    return [Extent(broker_name, queue.queue_id, queue.min_offset, queue.max_offset) for queue in topic.queues]


def route_of(name_server: str, route: nameserver_pb.TopicRoute | None) -> Route:
    """One NameServer's answer; None: it knows no such topic."""
    if route is None:
        return Route(name_server, ())
    queues = tuple(
        QueueRoute(row.broker_name, row.read_queue_count, row.write_queue_count, row.permission) for row in route.queues
    )
    brokers = {
        f"{group.broker_name}:{broker_id}": group.endpoints[broker_id].client
        for group in route.brokers
        for broker_id in sorted(group.endpoints)
    }
    return Route(name_server, queues, brokers)


def moment_ms(moment: Timestamp) -> int:
    """Milliseconds since 1970."""
    return int(moment.ToMilliseconds())
