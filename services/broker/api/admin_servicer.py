"""BrokerAdminService: one broker's state and configuration for tools. The edge: protobuf stops here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc
import structlog
from tandemmq.admin.v1 import broker_admin_service_pb2 as pb
from tandemmq.admin.v1 import broker_admin_service_pb2_grpc

from broker.departure import Departure
from mqcore.clock import Clock
from mqcore.metadata import (
    ATTRIBUTE_MESSAGE_TYPE,
    PERM_READ_WRITE,
    InvalidGroup,
    InvalidTopic,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicTable,
)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

__all__ = ["AdminServicer", "QueueExtents"]

log = structlog.get_logger(__name__)


class QueueExtents(Protocol):
    """What the service asks of the store."""

    def queue_min_offset(self, topic: str, queue_id: int) -> int:
        """First message still held."""

    def queue_max_offset(self, topic: str, queue_id: int) -> int:
        """One past the last message."""


class AdminServicer(broker_admin_service_pb2_grpc.BrokerAdminServiceServicer):
    """Answers from the broker's tables; `topics_changed` and `groups_changed` persist what was changed."""

    def __init__(
        self,
        *,
        status: Callable[[], pb.GetBrokerStatusResponse],
        topics: TopicTable,
        groups: SubscriptionGroupTable,
        queues: QueueExtents,
        progress: Callable[[str], Iterable[pb.GroupProgress]],
        departure: Departure,
        probe_peers: Callable[[], Awaitable[pb.ProbePeersResponse]],
        is_system_topic: Callable[[str], bool],
        topics_changed: Callable[[], None],
        groups_changed: Callable[[], None],
        is_master: bool,
        default_queue_count: int,
        clock: Clock,
    ) -> None:
        self._status = status
        self._topics = topics
        self._groups = groups
        self._queues = queues
        self._progress = progress
        self._departure = departure
        self._probe_peers = probe_peers
        self._is_system_topic = is_system_topic
        self._topics_changed = topics_changed
        self._groups_changed = groups_changed
        self._is_master = is_master
        self._default_queue_count = default_queue_count
        self._clock = clock

    async def GetBrokerStatus(  # noqa: N802
        self,
        request: pb.GetBrokerStatusRequest,
        context: _Context,
    ) -> pb.GetBrokerStatusResponse:
        return self._status()

    async def UpdateTopic(  # noqa: N802
        self,
        request: pb.UpdateTopicRequest,
        context: _Context,
    ) -> pb.UpdateTopicResponse:
        await self._masters_only(context)
        if self._is_system_topic(request.topic):
            await _refuse(context, f"topic: {request.topic} belongs to the system; choose another name")
        config = TopicConfig(
            topic_name=request.topic,
            read_queue_count=request.read_queue_count or self._default_queue_count,
            write_queue_count=request.write_queue_count or self._default_queue_count,
            perm=request.permission or PERM_READ_WRITE,
            attributes=MappingProxyType({ATTRIBUTE_MESSAGE_TYPE: request.message_type or "NORMAL"}),
        )
        before = self._topics.get(request.topic)
        try:
            changed = self._topics.put(config, now_ms=self._clock.wall_ms())
        except InvalidTopic as error:
            await _refuse(context, str(error))
        if changed:
            self._topics_changed()
            log.info(
                "topic_created" if before is None else "topic_changed",
                by="operator",
                topic=config.topic_name,
                read_queues=config.read_queue_count,
                write_queues=config.write_queue_count,
                perm=config.perm,
                message_type=config.message_type,
            )
        return pb.UpdateTopicResponse()

    async def DeleteTopic(  # noqa: N802
        self,
        request: pb.DeleteTopicRequest,
        context: _Context,
    ) -> pb.DeleteTopicResponse:
        await self._masters_only(context)
        if self._is_system_topic(request.topic):
            await _refuse(context, f"topic: {request.topic} belongs to the system and stays")
        if self._topics.remove(request.topic, now_ms=self._clock.wall_ms()):
            self._topics_changed()
            log.info("topic_deleted", by="operator", topic=request.topic)
        return pb.DeleteTopicResponse()

    async def ListTopics(  # noqa: N802
        self,
        request: pb.ListTopicsRequest,
        context: _Context,
    ) -> pb.ListTopicsResponse:
        wanted = (
            topic for topic in self._topics if request.include_system or not self._is_system_topic(topic.topic_name)
        )
        return pb.ListTopicsResponse(
            topics=[self._topic_status(topic) for topic in sorted(wanted, key=lambda topic: topic.topic_name)]
        )

    async def UpdateSubscriptionGroup(  # noqa: N802
        self,
        request: pb.UpdateSubscriptionGroupRequest,
        context: _Context,
    ) -> pb.UpdateSubscriptionGroupResponse:
        await self._masters_only(context)
        before = self._groups.get(request.group)
        config = before or SubscriptionGroupConfig(group_name=request.group)
        config = replace(
            config,
            consume_message_orderly=request.consume_message_orderly,
            retry_max_times=request.retry_max_times or config.retry_max_times,
            consume_enable=request.consume_enable if request.HasField("consume_enable") else config.consume_enable,
        )
        try:
            changed = self._groups.put(config, now_ms=self._clock.wall_ms())
        except InvalidGroup as error:
            await _refuse(context, str(error))
        if changed:
            self._groups_changed()
            log.info(
                "consumer_group_created" if before is None else "consumer_group_changed",
                by="operator",
                group=config.group_name,
                orderly=config.consume_message_orderly,
                retry_max_times=config.retry_max_times,
                enabled=config.consume_enable,
            )
        return pb.UpdateSubscriptionGroupResponse()

    async def ListSubscriptionGroups(  # noqa: N802
        self,
        request: pb.ListSubscriptionGroupsRequest,
        context: _Context,
    ) -> pb.ListSubscriptionGroupsResponse:
        return pb.ListSubscriptionGroupsResponse(
            groups=[
                pb.SubscriptionGroupStatus(
                    group=group.group_name,
                    retry_max_times=group.retry_max_times,
                    consume_message_orderly=group.consume_message_orderly,
                    progress=self._progress(group.group_name),
                )
                for group in sorted(self._groups, key=lambda group: group.group_name)
            ]
        )

    async def Drain(self, request: pb.DrainRequest, context: _Context) -> pb.DrainResponse:  # noqa: N802
        if request.time_limit_ms < 0:
            await _refuse(context, f"time_limit_ms: {request.time_limit_ms} is negative; 0 is the broker's default")
        drained = await self._departure.drain(request.time_limit_ms)
        return pb.DrainResponse(
            slaves_hold_everything=drained.slaves_hold_everything,
            end_offset=drained.end_offset,
            waited_ms=drained.waited_ms,
        )

    async def ProbePeers(  # noqa: N802
        self, request: pb.ProbePeersRequest, context: _Context
    ) -> pb.ProbePeersResponse:
        return await self._probe_peers()

    def _topic_status(self, topic: TopicConfig) -> pb.TopicStatus:
        extents = []
        for queue_id in range(max(topic.read_queue_count, topic.write_queue_count)):
            max_offset = self._queues.queue_max_offset(topic.topic_name, queue_id)
            if max_offset:
                min_offset = self._queues.queue_min_offset(topic.topic_name, queue_id)
                extents.append(pb.QueueExtent(queue_id=queue_id, min_offset=min_offset, max_offset=max_offset))
        return pb.TopicStatus(
            topic=topic.topic_name,
            read_queue_count=topic.read_queue_count,
            write_queue_count=topic.write_queue_count,
            permission=topic.perm,
            message_type=topic.message_type,
            queues=extents,
        )

    async def _masters_only(self, context: _Context) -> None:
        if not self._is_master:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "this broker is a slave; make the change on its master"
            )


async def _refuse(context: _Context, detail: str) -> NoReturn:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, detail)
    raise AssertionError("abort raises")
