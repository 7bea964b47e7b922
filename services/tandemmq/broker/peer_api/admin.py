"""One broker for tools: its state and configuration, its users and policies. The edge: protobuf stops here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import grpc
import structlog

from tandemmq.broker.access_changes import AccessChanges
from tandemmq.broker.departure import Departure
from tandemmq.broker.group_changes import GroupChanges, GroupProgressView, QueueStanding
from tandemmq.broker.metadata_tables import NotSpread
from tandemmq.core.access.users_and_policies import (
    Acl,
    InvalidAcl,
    InvalidUser,
    PolicyEntry,
    Resource,
    actions_of,
    decision_of,
    policy_type_of,
    source_ips_in,
    user_status_of,
    user_type_of,
)
from tandemmq.core.metadata.metadata_store import InvalidGroup, InvalidTopic
from tandemmq.core.metadata.subscription_group_table import ATTRIBUTE_PRIORITY_FACTOR, SubscriptionGroupConfig
from tandemmq.core.metadata.topic_table import ATTRIBUTE_MESSAGE_TYPE, TopicConfig
from tandemmq.proto.admin.v1 import broker_access_service_pb2 as access_pb
from tandemmq.proto.admin.v1 import broker_access_service_pb2_grpc, broker_admin_service_pb2_grpc
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as pb
from tandemmq.service.event_loop import TurnLimit
from tandemmq.service.grpc_server import Context, Invalid, Refused, by_kind, refusing
from tandemmq.service.protobuf import as_message
from tandemmq.service.service_tls import is_operator

if TYPE_CHECKING:
    from tandemmq.broker.parts import BrokerParts
    from tandemmq.broker.report import BrokerReport
    from tandemmq.broker.runtime_settings import RuntimeSettings

log = structlog.get_logger(__name__)

_STATUS_OF: Final = by_kind(
    *((kind, grpc.StatusCode.INVALID_ARGUMENT) for kind in (InvalidTopic, InvalidGroup, InvalidUser, InvalidAcl)),
    # Nobody is told of a change before it is written.
    (NotSpread, grpc.StatusCode.UNAVAILABLE),
)


def changed_group(
    config: SubscriptionGroupConfig, request: pb.UpdateSubscriptionGroupRequest
) -> SubscriptionGroupConfig:
    """The group as it is asked for; what is not named stays. Raises InvalidGroup for retry delays it may not have."""
    attributes = dict(config.attributes)
    if request.HasField("priority_factor"):
        attributes[ATTRIBUTE_PRIORITY_FACTOR] = str(request.priority_factor)
    attributes |= request.attributes
    slow_id = config.which_broker_when_consume_slowly
    config = replace(
        config,
        consume_message_orderly=request.consume_message_orderly,
        retry_max_times=request.retry_max_times if request.HasField("retry_max_times") else config.retry_max_times,
        consume_enable=request.consume_enable if request.HasField("consume_enable") else config.consume_enable,
        which_broker_when_consume_slowly=request.slow_broker_id if request.HasField("slow_broker_id") else slow_id,
        # An empty value removes one.
        attributes=MappingProxyType({name: value for name, value in attributes.items() if value}),
    )
    if request.retry_delays_seconds:
        config = config.with_retry_delays(tuple(request.retry_delays_seconds))
    return config


@refusing(_STATUS_OF)
class AdminServicer(broker_admin_service_pb2_grpc.BrokerAdminServiceServicer):
    """Answers from the broker's tables."""

    def __init__(
        self,
        parts: BrokerParts,
        *,
        report: BrokerReport,
        departure: Departure,
        changes: GroupChanges,
        settings: RuntimeSettings,
    ) -> None:
        self._parts = parts
        self._report = report
        self._departure = departure
        self._changes = changes
        self._settings = settings
        self._group_progress = GroupProgressView(
            store=parts.store,
            topics=parts.topics,
            leases=parts.leases,
            stored=parts.tables.consumer_offsets,
            sessions=parts.sessions,
            clock=parts.clock,
        )
        self._tables = parts.tables
        self._topics = parts.topics
        self._groups = parts.groups
        self._clock = parts.clock

    async def GetBrokerStatus(self, request: pb.GetBrokerStatusRequest, context: Context) -> pb.GetBrokerStatusResponse:
        return self._report.status()

    async def UpdateTopic(self, request: pb.UpdateTopicRequest, context: Context) -> pb.UpdateTopicResponse:
        self._masters_only()
        if self._parts.is_system_topic(request.topic):
            raise Invalid(f"topic: {request.topic} belongs to the system; choose another name")
        before = self._topics.get(request.topic)
        config = self._as_asked(request, before or self._new_topic(request.topic))
        changed = self._topics.put(config, now_ms=self._clock.wall_ms())
        if changed:
            self._tables.topics_edited()
            log.info(
                "topic_created" if before is None else "topic_changed",
                by="operator",
                topic=config.topic_name,
                read_queues=config.read_queue_count,
                write_queues=config.write_queue_count,
                perm=config.perm,
                message_type=config.message_type,
            )
        await self._tables.confirmed()
        return pb.UpdateTopicResponse()

    async def DeleteTopic(self, request: pb.DeleteTopicRequest, context: Context) -> pb.DeleteTopicResponse:
        self._masters_only()
        if self._parts.is_system_topic(request.topic):
            raise Invalid(f"topic: {request.topic} belongs to the system and stays")
        # First, so that whoever looks for the topic after a crash in between still finds it and deletes it again; and
        # also if it is gone: a broker that did it the other way round may have come only so far.
        self._changes.forget_topic(request.topic)
        if self._topics.remove(request.topic, now_ms=self._clock.wall_ms()):
            self._tables.topics_edited()
            log.info("topic_deleted", by="operator", topic=request.topic)
        await self._tables.confirmed()
        return pb.DeleteTopicResponse()

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Context) -> pb.ListTopicsResponse:
        names = sorted(set(request.topics)) or sorted(topic.topic_name for topic in self._topics)
        turn = TurnLimit(self._clock)
        answer = pb.ListTopicsResponse()
        for name in names:
            topic = self._topics.get(name)
            # Whoever names a system topic wants to see it.
            is_wanted = bool(request.topics) or request.include_system or not self._parts.is_system_topic(name)
            if topic is not None and is_wanted:
                answer.topics.append(self._topic_status(topic, with_queues=not request.without_queues))
            if turn.is_reached:
                await turn.pause()
        return answer

    async def UpdateSubscriptionGroup(
        self, request: pb.UpdateSubscriptionGroupRequest, context: Context
    ) -> pb.UpdateSubscriptionGroupResponse:
        self._masters_only()
        before = self._groups.get(request.group)
        config = changed_group(before or SubscriptionGroupConfig(group_name=request.group), request)
        changed = self._groups.put(config, now_ms=self._clock.wall_ms())
        if changed:
            self._tables.groups_edited()
            log.info(
                "consumer_group_created" if before is None else "consumer_group_changed",
                by="operator",
                group=config.group_name,
                orderly=config.consume_message_orderly,
                retry_max_times=config.retry_max_times,
                retry_delays_seconds=config.retry_delays_seconds,
                enabled=config.consume_enable,
            )
        await self._tables.confirmed()
        return pb.UpdateSubscriptionGroupResponse()

    async def ListSubscriptionGroups(
        self, request: pb.ListSubscriptionGroupsRequest, context: Context
    ) -> pb.ListSubscriptionGroupsResponse:
        names = sorted(set(request.groups)) or sorted(group.group_name for group in self._groups)
        standings: dict[str, list[QueueStanding]] = {}
        if not request.without_progress:
            standings = await self._group_progress.of(names, with_ages=bool(request.groups))
        member_counts = self._group_progress.member_counts()
        answer = pb.ListSubscriptionGroupsResponse()
        turn = TurnLimit(self._clock)
        for name in names:
            group = self._groups.get(name)
            if group is None:
                continue
            status = answer.groups.add(
                group=name,
                retry_max_times=group.retry_max_times,
                consume_message_orderly=group.consume_message_orderly,
                consume_enable=group.consume_enable,
                priority_factor=group.priority_factor,
                slow_broker_id=group.which_broker_when_consume_slowly,
                member_count=member_counts[name],
                retry_delays_seconds=group.retry_delays_seconds,
                attributes=group.attributes,
            )
            # A group that consumes thousands of topics has tens of thousands of queues.
            for standing in standings.get(name, ()):
                status.progress.add(
                    topic=standing.topic,
                    queue_id=standing.queue_id,
                    committed_offset=standing.committed_offset,
                    max_offset=standing.max_offset,
                    inflight_count=standing.inflight_count,
                    oldest_age_ms=standing.oldest_age_ms,
                    blocked_message_groups_count=standing.blocked_count,
                )
                if turn.is_reached:
                    await turn.pause()
            if turn.is_reached:
                await turn.pause()
        return answer

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        if request.time_limit_ms < 0:
            raise Invalid(f"time_limit_ms: {request.time_limit_ms} is negative; 0 is the broker's default")
        return as_message(pb.DrainResponse, await self._departure.drain(request.time_limit_ms))

    async def ProbePeers(self, request: pb.ProbePeersRequest, context: Context) -> pb.ProbePeersResponse:
        return await self._report.probe_peers()

    def _new_topic(self, name: str) -> TopicConfig:
        count = self._settings.current.default_topic_queue_nums
        return TopicConfig(name, count, count, attributes=MappingProxyType({ATTRIBUTE_MESSAGE_TYPE: "NORMAL"}))

    def _as_asked(self, request: pb.UpdateTopicRequest, before: TopicConfig) -> TopicConfig:
        """`before` with what the request names; what it leaves out stays."""
        attributes = dict(before.attributes)
        if request.message_type:
            attributes[ATTRIBUTE_MESSAGE_TYPE] = request.message_type
        for name, value in request.attributes.items():
            if value:
                attributes[name] = value
            else:
                attributes.pop(name, None)
        return replace(
            before,
            read_queue_count=request.read_queue_count or before.read_queue_count,
            write_queue_count=request.write_queue_count or before.write_queue_count,
            perm=request.permission or before.perm,
            attributes=MappingProxyType(attributes),
        )

    def _topic_status(self, topic: TopicConfig, *, with_queues: bool) -> pb.TopicStatus:
        extents = []
        for queue_id in range(max(topic.read_queue_count, topic.write_queue_count) if with_queues else 0):
            max_offset = self._parts.store.queue_max_offset(topic.topic_name, queue_id)
            if max_offset:
                min_offset = self._parts.store.queue_min_offset(topic.topic_name, queue_id)
                extents.append(pb.QueueExtent(queue_id=queue_id, min_offset=min_offset, max_offset=max_offset))
        return pb.TopicStatus(
            topic=topic.topic_name,
            read_queue_count=topic.read_queue_count,
            write_queue_count=topic.write_queue_count,
            permission=topic.perm,
            message_type=topic.message_type,
            queues=extents,
            attributes={name: value for name, value in topic.attributes.items() if name != ATTRIBUTE_MESSAGE_TYPE},
        )

    def _masters_only(self) -> None:
        if (refusal := self._parts.role.change_refusal) is not None:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, refusal)


# BrokerAccessService: users and policies, for operators.


@refusing(_STATUS_OF)
class BrokerAccessServicer(broker_access_service_pb2_grpc.BrokerAccessServiceServicer):
    """Answers for one broker. `refusal` says why it is not its group's master now; None: it is, and serves."""

    def __init__(self, changes: AccessChanges, *, refusal: Callable[[], str | None]) -> None:
        self._changes = changes
        self._refusal = refusal

    async def ListUsers(self, request: access_pb.ListUsersRequest, context: Context) -> access_pb.ListUsersResponse:
        if request.with_sealed_password and not is_operator(context):
            reason = (
                "with_sealed_password: sealed secrets are for a copy, which takes an administrator of level operator"
            )
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, reason)
        return access_pb.ListUsersResponse(
            users=[
                access_pb.UserView(
                    username=user.username,
                    user_type=user.user_type.value,
                    user_status=user.status.value,
                    sealed_password=user.sealed_secret if request.with_sealed_password else "",
                )
                for user in self._changes.users(request.search)
            ]
        )

    async def PutUser(self, request: access_pb.PutUserRequest, context: Context) -> access_pb.PutUserResponse:
        self._masters_only()
        is_changed = await self._carry_out(
            lambda: self._changes.put_user(
                request.username,
                secret=request.password,
                sealed_secret=request.sealed_password,
                user_type=user_type_of(request.user_type) if request.user_type else None,
                status=user_status_of(request.user_status) if request.user_status else None,
                dry_run=request.dry_run,
            ),
        )
        if is_changed and not request.dry_run:
            has_new_secret = bool(request.password or request.sealed_password)
            log.info("user_changed", by="operator", user=request.username, new_secret=has_new_secret)
        return access_pb.PutUserResponse(changed=is_changed)

    async def DeleteUser(self, request: access_pb.DeleteUserRequest, context: Context) -> access_pb.DeleteUserResponse:
        self._masters_only()
        existed = await self._carry_out(lambda: self._changes.delete_user(request.username, dry_run=request.dry_run))
        if existed and not request.dry_run:
            log.info("user_deleted", by="operator", user=request.username)
        return access_pb.DeleteUserResponse(existed=existed)

    async def ListAcls(self, request: access_pb.ListAclsRequest, context: Context) -> access_pb.ListAclsResponse:
        found = self._changes.acls(subject_part=request.subject, resource_part=request.resource)
        return access_pb.ListAclsResponse(acls=[_acl_view(acl) for acl in found])

    async def PutAcl(self, request: access_pb.PutAclRequest, context: Context) -> access_pb.PutAclResponse:
        self._masters_only()
        is_changed = await self._carry_out(
            lambda: self._changes.put_entries(
                request.subject, [_entry(one) for one in request.entries], dry_run=request.dry_run
            ),
        )
        if is_changed and not request.dry_run:
            resources = [one.resource for one in request.entries]
            log.info("acl_changed", by="operator", subject=request.subject, resources=resources)
        return access_pb.PutAclResponse(changed=is_changed)

    async def DeleteAcl(self, request: access_pb.DeleteAclRequest, context: Context) -> access_pb.DeleteAclResponse:
        self._masters_only()
        existed = await self._carry_out(
            lambda: self._changes.delete_entries(
                request.subject,
                [Resource.parse(one) for one in request.resources],
                policy_type_of(request.policy_type),
                dry_run=request.dry_run,
            ),
        )
        if existed and not request.dry_run:
            log.info("acl_deleted", by="operator", subject=request.subject, resources=list(request.resources))
        return access_pb.DeleteAclResponse(existed=existed)

    async def _carry_out(self, change: Callable[[], bool]) -> bool:
        """What it says, once it is durable."""
        is_changed = change()
        await self._changes.written()
        return is_changed

    def _masters_only(self) -> None:
        refusal = self._refusal()
        if refusal is not None:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, f"{refusal}; make the change on a serving master")


def _entry(one: access_pb.AclEntry) -> PolicyEntry:
    return PolicyEntry(
        Resource.parse(one.resource),
        actions_of(",".join(one.actions)),
        decision_of(one.decision),
        source_ips_in(one.source_ips),
        policy_type_of(one.policy_type),
    )


def _acl_view(acl: Acl) -> access_pb.AclView:
    view = access_pb.AclView(subject=acl.subject)
    for entry in acl.entries:
        fields = entry.to_fields()
        one = view.entries.add(
            resource=entry.resource.key,
            actions=str(fields["actions"]).split(","),
            source_ips=entry.source_ips,
            decision=entry.decision.value,
            policy_type=entry.policy_type.value,
        )
        one.changed_time.FromMilliseconds(entry.changed_ms)
    return view
