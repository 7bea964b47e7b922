"""The calls that the admin makes to NameServers and brokers, with the deadline each contract names.

What they return are the protocol's messages; `cluster_reader`, `trace_messages` and `operations` turn them into values.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from tandemmq.proto.admin.v1 import broker_access_service_pb2 as access_pb
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as operations_pb
from tandemmq.proto.admin.v1 import message_query_service_pb2 as query_pb
from tandemmq.proto.admin.v1 import trace_service_pb2 as trace_pb
from tandemmq.proto.broker.v1 import failover_service_pb2 as failover_pb
from tandemmq.proto.broker.v1 import replica_reader_service_pb2 as reader_pb
from tandemmq.proto.broker.v1 import replica_repair_service_pb2 as repair_pb
from tandemmq.proto.broker.v1 import replica_service_pb2 as replica_pb
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as nameserver_pb
from tandemmq.service.rpc import cancellation_wins
from tandemmq.service.service_channels import LONG_LIVED_CHANNEL, aio_channel

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)
PartT = TypeVar("PartT")
FieldsT = ParamSpec("FieldsT")

# Deadlines in seconds, from the comments in proto/tandemmq.
_READ_TIMEOUT_S: Final = 3.0
_CHANGE_TIMEOUT_S: Final = 6.0
_SEARCH_TIMEOUT_S: Final = 10.0

_CHANNEL_OPTIONS: Final = (
    *LONG_LIVED_CHANNEL,
    # A broker that comes back within seconds should be seen within a second, not after gRPC's two minutes.
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    # ListTopics of a broker with tens of thousands of topics.
    ("grpc.max_receive_message_length", 64 << 20),
)


class Channels:
    """One gRPC channel per address, made at first use, closed together.

    `dial` tells where an address is dialled instead, for one who stands outside the network the addresses belong to.
    `plain`: to ports that take no certificates, such as an admin service's.
    """

    def __init__(self, dial: Callable[[str], str] | None = None, *, plain: bool = False) -> None:
        self._dial = dial
        self._plain = plain
        self._channels: dict[str, grpc.aio.Channel] = {}

    def to(self, address: str) -> grpc.aio.Channel:
        """The channel to `host:port`."""
        channel = self._channels.get(address)
        if channel is None:
            target = address if self._dial is None else self._dial(address)
            channel = (
                grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
                if self._plain
                else aio_channel(target, _CHANNEL_OPTIONS)
            )
            self._channels[address] = channel
        return channel

    async def close(self) -> None:
        while self._channels:
            _, channel = self._channels.popitem()
            await channel.close(grace=None)


def _path(request_type: type[Message]) -> str:
    """Of the one method that takes these requests: `/package.Service/Method`."""
    descriptor = request_type.DESCRIPTOR
    (path,) = (
        f"/{service.full_name}/{method.name}"
        for service in descriptor.file.services_by_name.values()
        for method in service.methods
        if method.input_type is descriptor
    )
    return path


async def _ask(
    channel: grpc.aio.Channel, path: str, request: Message, reply_type: type[ReplyT], timeout_s: float
) -> ReplyT:
    call = channel.unary_unary(
        path,
        request_serializer=type(request).SerializeToString,
        response_deserializer=reply_type.FromString,
    )
    with cancellation_wins():
        reply: ReplyT = await call(request, timeout=timeout_s)
    return reply


class _Calls:
    """Of one address. Every call may raise `grpc.aio.AioRpcError`."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channel = channels.to(address)


def _of_request(
    request_type: type[RequestT], reply_type: type[ReplyT], timeout_s: float = _READ_TIMEOUT_S
) -> Callable[[Any, RequestT], Awaitable[ReplyT]]:
    """The call that is given a request."""
    path = _path(request_type)
    return lambda calls, request: _ask(calls._channel, path, request, reply_type, timeout_s)


def _of_fields(
    request_type: Callable[FieldsT, Message], reply_type: type[ReplyT], timeout_s: float = _READ_TIMEOUT_S
) -> Callable[Concatenate[Any, FieldsT], Awaitable[ReplyT]]:
    """The call that is given the fields of its request, by name."""
    path = _path(cast("type[Message]", request_type))

    def call(calls: Any, /, *fields: FieldsT.args, **named: FieldsT.kwargs) -> Awaitable[ReplyT]:
        return _ask(calls._channel, path, request_type(*fields, **named), reply_type, timeout_s)

    return call


def _part(
    call: Callable[FieldsT, Awaitable[ReplyT]], part: Callable[[ReplyT], PartT]
) -> Callable[FieldsT, Awaitable[PartT]]:
    """The same call, of whose answer only a part matters."""

    async def ask(*fields: FieldsT.args, **named: FieldsT.kwargs) -> PartT:
        return part(await call(*fields, **named))

    return ask


class NameServerCalls(_Calls):
    group_memory = _of_fields(nameserver_pb.GetGroupMemoryRequest, nameserver_pb.GetGroupMemoryResponse)
    # All live brokers, without routes.
    brokers = _part(
        _of_fields(nameserver_pb.ListBrokersRequest, nameserver_pb.ListBrokersResponse),
        lambda reply: list(reply.brokers),
    )
    _topic_route = _of_fields(nameserver_pb.GetTopicRouteRequest, nameserver_pb.GetTopicRouteResponse)
    # Take a broker group out of producers' routes, and put it back. Number of topics that changed.
    wipe_write_permission = _part(
        _of_fields(nameserver_pb.WipeWritePermissionRequest, nameserver_pb.WipeWritePermissionResponse),
        lambda reply: reply.topic_count,
    )
    add_write_permission = _part(
        _of_fields(nameserver_pb.AddWritePermissionRequest, nameserver_pb.AddWritePermissionResponse),
        lambda reply: reply.topic_count,
    )

    async def snapshot(self) -> nameserver_pb.WatchRoutesResponse:
        """All routes, all live brokers and the revision: the first message of WatchRoutes."""
        call = self._channel.unary_stream(
            _path(nameserver_pb.WatchRoutesRequest),
            request_serializer=nameserver_pb.WatchRoutesRequest.SerializeToString,
            response_deserializer=nameserver_pb.WatchRoutesResponse.FromString,
        )(nameserver_pb.WatchRoutesRequest(), timeout=_READ_TIMEOUT_S)
        try:
            with cancellation_wins():
                message: nameserver_pb.WatchRoutesResponse
                async for message in call:
                    return message
            raise EOFError("the stream ended without a message")
        finally:
            call.cancel()

    async def topic_route(self, topic: str) -> nameserver_pb.TopicRoute | None:
        """The route of a topic, or None when no live broker serves it."""
        try:
            return (await self._topic_route(topic=topic)).route
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise


class BrokerAdminCalls(_Calls):
    status = _of_fields(admin_pb.GetBrokerStatusRequest, admin_pb.GetBrokerStatusResponse)
    # What the broker reaches, its clock and its disk.
    probe_peers = _of_fields(admin_pb.ProbePeersRequest, admin_pb.ProbePeersResponse, _CHANGE_TIMEOUT_S)
    # Changes: masters only.
    update_topic = _of_request(admin_pb.UpdateTopicRequest, admin_pb.UpdateTopicResponse, _CHANGE_TIMEOUT_S)
    delete_topic = _of_fields(admin_pb.DeleteTopicRequest, admin_pb.DeleteTopicResponse, _CHANGE_TIMEOUT_S)
    update_group = _of_request(
        admin_pb.UpdateSubscriptionGroupRequest, admin_pb.UpdateSubscriptionGroupResponse, _CHANGE_TIMEOUT_S
    )
    _list_topics = _of_fields(admin_pb.ListTopicsRequest, admin_pb.ListTopicsResponse, _CHANGE_TIMEOUT_S)
    _list_groups = _of_fields(
        admin_pb.ListSubscriptionGroupsRequest, admin_pb.ListSubscriptionGroupsResponse, _CHANGE_TIMEOUT_S
    )

    async def topics(
        self, *, include_system: bool, names: Sequence[str] = (), without_queues: bool = False
    ) -> list[admin_pb.TopicStatus]:
        """Topics ordered by name; only those of `names`, if there are any."""
        reply = await self._list_topics(include_system=include_system, topics=names, without_queues=without_queues)
        return list(reply.topics)

    async def groups(
        self, *, names: Sequence[str] = (), topic: str = "", without_progress: bool = False
    ) -> list[admin_pb.SubscriptionGroupStatus]:
        """Subscription groups ordered by name; only those of `names`, if there are any, or that have read `topic`."""
        return list((await self._list_groups(groups=names, topic=topic, without_progress=without_progress)).groups)


class BrokerOperationsCalls(_Calls):
    clients = _of_request(operations_pb.ListClientsRequest, operations_pb.ListClientsResponse, _CHANGE_TIMEOUT_S)
    config = _of_fields(operations_pb.GetConfigRequest, operations_pb.GetConfigResponse)
    update_config = _of_request(operations_pb.UpdateConfigRequest, operations_pb.UpdateConfigResponse)
    events = _of_fields(operations_pb.ListEventsRequest, operations_pb.ListEventsResponse)
    command_client = _of_request(
        operations_pb.CommandClientRequest, operations_pb.CommandClientResponse, _SEARCH_TIMEOUT_S
    )
    # Tails that were cut off its log, and which messages of them it holds.
    kept_tails = _of_request(operations_pb.ListKeptTailsRequest, operations_pb.ListKeptTailsResponse)
    read_kept_tail = _of_request(operations_pb.ReadKeptTailRequest, operations_pb.ReadKeptTailResponse)
    check_messages = _of_request(
        operations_pb.CheckMessagesRequest, operations_pb.CheckMessagesResponse, _SEARCH_TIMEOUT_S
    )
    # Masters only.
    delete_group = _of_request(
        operations_pb.DeleteSubscriptionGroupRequest,
        operations_pb.DeleteSubscriptionGroupResponse,
        _CHANGE_TIMEOUT_S,
    )
    reset_offsets = _of_request(
        operations_pb.ResetOffsetsRequest, operations_pb.ResetOffsetsResponse, _CHANGE_TIMEOUT_S
    )
    resend_dead_letters = _of_request(
        operations_pb.ResendDeadLettersRequest, operations_pb.ResendDeadLettersResponse, _SEARCH_TIMEOUT_S
    )
    lite_topics = _of_request(operations_pb.ListLiteTopicsRequest, operations_pb.ListLiteTopicsResponse)
    transactions = _of_request(operations_pb.ListTransactionsRequest, operations_pb.ListTransactionsResponse)
    resolve_transaction = _of_request(
        operations_pb.ResolveTransactionRequest, operations_pb.ResolveTransactionResponse, _SEARCH_TIMEOUT_S
    )
    restore_messages = _of_request(
        operations_pb.RestoreMessagesRequest, operations_pb.RestoreMessagesResponse, _SEARCH_TIMEOUT_S
    )


class BrokerAccessCalls(_Calls):
    """BrokerAccessService. Changes: masters only; False: there was nothing to change."""

    users = _part(_of_fields(access_pb.ListUsersRequest, access_pb.ListUsersResponse), lambda reply: list(reply.users))
    put_user = _part(
        _of_request(access_pb.PutUserRequest, access_pb.PutUserResponse, _CHANGE_TIMEOUT_S), lambda reply: reply.changed
    )
    delete_user = _part(
        _of_request(access_pb.DeleteUserRequest, access_pb.DeleteUserResponse, _CHANGE_TIMEOUT_S),
        lambda reply: reply.existed,
    )
    acls = _part(_of_fields(access_pb.ListAclsRequest, access_pb.ListAclsResponse), lambda reply: list(reply.acls))
    put_acl = _part(
        _of_request(access_pb.PutAclRequest, access_pb.PutAclResponse, _CHANGE_TIMEOUT_S), lambda reply: reply.changed
    )
    delete_acl = _part(
        _of_request(access_pb.DeleteAclRequest, access_pb.DeleteAclResponse, _CHANGE_TIMEOUT_S),
        lambda reply: reply.existed,
    )


class MessageQueryCalls(_Calls):
    # Queues of a topic with their extents.
    queues = _of_fields(query_pb.ListQueuesRequest, query_pb.ListQueuesResponse, _CHANGE_TIMEOUT_S)
    query = _of_request(query_pb.QueryMessagesRequest, query_pb.QueryMessagesResponse, _SEARCH_TIMEOUT_S)
    message = _part(_of_request(query_pb.GetMessageRequest, query_pb.GetMessageResponse), lambda reply: reply.message)
    # Checksum of a range of the log.
    digest = _of_fields(query_pb.DigestRecordRequest, query_pb.DigestRecordResponse)


class ReplicaCalls(_Calls):
    # What a starting master waits for, and an operator's word that it need not.
    accept_loss = _of_request(replica_pb.AcceptLossRequest, replica_pb.AcceptLossResponse, _SEARCH_TIMEOUT_S)


class FailoverCalls(_Calls):
    """FailoverService, as operators use it."""

    # What the member knows of its group's record.
    state = _of_fields(failover_pb.GetFailoverStateRequest, failover_pb.GetFailoverStateResponse)
    # The master makes another member master.
    hand_over = _of_request(failover_pb.HandOverRequest, failover_pb.HandOverResponse, _SEARCH_TIMEOUT_S)
    # This member becomes master although it may lack what was acknowledged.
    claim_unclean = _of_request(failover_pb.ClaimUncleanRequest, failover_pb.ClaimUncleanResponse, _SEARCH_TIMEOUT_S)


class ReplicaRepairCalls(_Calls):
    """ReplicaRepairService; how long a repair may take is known to who asks for it."""

    # What the replica holds, and how fast it reads for others.
    describe = _of_fields(reader_pb.DescribeReplicaRequest, reader_pb.DescribeReplicaResponse)

    async def repair_range(
        self, request: repair_pb.RepairRangeRequest, *, timeout_s: float
    ) -> repair_pb.RepairRangeResponse:
        """Replaces a range by what another member holds."""
        return await _ask(self._channel, _path(type(request)), request, repair_pb.RepairRangeResponse, timeout_s)

    async def rewrite_queue_entries(
        self, request: repair_pb.RewriteQueueEntriesRequest, *, timeout_s: float
    ) -> repair_pb.RewriteQueueEntriesResponse:
        """Writes ConsumeQueue entries again from the broker's own log."""
        reply_type = repair_pb.RewriteQueueEntriesResponse
        return await _ask(self._channel, _path(type(request)), request, reply_type, timeout_s)

    async def rewrite_table(
        self, request: repair_pb.RewriteTableRequest, *, timeout_s: float
    ) -> repair_pb.RewriteTableResponse:
        """Writes a metadata table again."""
        return await _ask(self._channel, _path(type(request)), request, repair_pb.RewriteTableResponse, timeout_s)


class TraceCalls(_Calls):
    # By `message_id` or `trace_id`, which has 16 bytes: the broker's part.
    find = _of_fields(trace_pb.FindTracesRequest, trace_pb.FindTracesResponse)
    newest = _of_fields(trace_pb.ListTracesRequest, trace_pb.ListTracesResponse)
    # Where a message lies.
    message = _of_fields(trace_pb.FindMessageRequest, trace_pb.FindMessageResponse, _CHANGE_TIMEOUT_S)


async def serving(channels: Channels, address: str, *, timeout_s: float = 1.0) -> bool:
    """True when the process at `address` answers grpc.health.v1 with SERVING."""
    request, path = health_pb2.HealthCheckRequest(), "/grpc.health.v1.Health/Check"
    try:
        reply = await _ask(channels.to(address), path, request, health_pb2.HealthCheckResponse, timeout_s)
    except grpc.aio.AioRpcError:
        return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def error_text(error: grpc.aio.AioRpcError) -> str:
    """A failed call in one line, code first."""
    details = " ".join((error.details() or "").split())
    return f"{error.code().name}: {details}" if details else error.code().name
