"""The calls that the admin makes to NameServers and brokers, with the deadline each contract names.

What they return are the protocol's messages; `cluster_reader`, `trace_messages` and `operations` turn them into values.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Sequence
from typing import Final, TypeVar

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

ReplyT = TypeVar("ReplyT", bound=Message)

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


class NameServerCalls:
    """NameServerService of one address. Every call may raise `grpc.aio.AioRpcError`."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channel = channels.to(address)

    async def snapshot(self) -> nameserver_pb.WatchRoutesResponse:
        """All routes, all live brokers and the revision: the first message of WatchRoutes."""
        call = self._channel.unary_stream(
            "/tandemmq.nameserver.v1.NameServerService/WatchRoutes",
            request_serializer=nameserver_pb.WatchRoutesRequest.SerializeToString,
            response_deserializer=nameserver_pb.WatchRoutesResponse.FromString,
        )(nameserver_pb.WatchRoutesRequest(), timeout=_READ_TIMEOUT_S)
        try:
            return await _first(call)
        finally:
            call.cancel()

    async def group_memory(self, cluster: str, broker_name: str) -> nameserver_pb.GetGroupMemoryResponse:
        """What it remembers of a broker group's replicas."""
        request = nameserver_pb.GetGroupMemoryRequest(cluster=cluster, broker_name=broker_name)
        path = "/tandemmq.nameserver.v1.NameServerService/GetGroupMemory"
        return await _unary(self._channel, path, request, nameserver_pb.GetGroupMemoryResponse, _READ_TIMEOUT_S)

    async def brokers(self) -> list[nameserver_pb.RegisteredBroker]:
        """All live brokers, without routes."""
        request = nameserver_pb.ListBrokersRequest()
        path = "/tandemmq.nameserver.v1.NameServerService/ListBrokers"
        reply = await _unary(self._channel, path, request, nameserver_pb.ListBrokersResponse, _READ_TIMEOUT_S)
        return list(reply.brokers)

    async def topic_route(self, topic: str) -> nameserver_pb.TopicRoute | None:
        """The route of a topic, or None when no live broker serves it."""
        request = nameserver_pb.GetTopicRouteRequest(topic=topic)
        path = "/tandemmq.nameserver.v1.NameServerService/GetTopicRoute"
        try:
            reply = await _unary(self._channel, path, request, nameserver_pb.GetTopicRouteResponse, _READ_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        return reply.route

    async def wipe_write_permission(self, broker_name: str) -> int:
        """Takes a broker group out of producers' routes. Number of topics that changed."""
        path = "/tandemmq.nameserver.v1.NameServerService/WipeWritePermission"
        request = nameserver_pb.WipeWritePermissionRequest(broker_name=broker_name)
        reply_type = nameserver_pb.WipeWritePermissionResponse
        return (await _unary(self._channel, path, request, reply_type, _READ_TIMEOUT_S)).topic_count

    async def add_write_permission(self, broker_name: str) -> int:
        """Puts it back. Number of topics that changed."""
        path = "/tandemmq.nameserver.v1.NameServerService/AddWritePermission"
        request = nameserver_pb.AddWritePermissionRequest(broker_name=broker_name)
        reply_type = nameserver_pb.AddWritePermissionResponse
        return (await _unary(self._channel, path, request, reply_type, _READ_TIMEOUT_S)).topic_count


class BrokerAdminCalls:
    """BrokerAdminService of one address. Every call may raise `grpc.aio.AioRpcError`."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channel = channels.to(address)

    async def status(self) -> admin_pb.GetBrokerStatusResponse:
        request = admin_pb.GetBrokerStatusRequest()
        return await self._call("GetBrokerStatus", request, admin_pb.GetBrokerStatusResponse, _READ_TIMEOUT_S)

    async def probe_peers(self) -> admin_pb.ProbePeersResponse:
        """What the broker reaches, its clock and its disk."""
        request = admin_pb.ProbePeersRequest()
        return await self._call("ProbePeers", request, admin_pb.ProbePeersResponse, _CHANGE_TIMEOUT_S)

    async def update_topic(self, request: admin_pb.UpdateTopicRequest) -> None:
        """Creates or changes a topic; masters only."""
        await self._call("UpdateTopic", request, admin_pb.UpdateTopicResponse, _CHANGE_TIMEOUT_S)

    async def delete_topic(self, topic: str) -> None:
        """Removes a topic; masters only."""
        request = admin_pb.DeleteTopicRequest(topic=topic)
        await self._call("DeleteTopic", request, admin_pb.DeleteTopicResponse, _CHANGE_TIMEOUT_S)

    async def topics(
        self, *, include_system: bool, names: Sequence[str] = (), without_queues: bool = False
    ) -> list[admin_pb.TopicStatus]:
        """Topics ordered by name; only those of `names`, if there are any."""
        request = admin_pb.ListTopicsRequest(include_system=include_system, topics=names, without_queues=without_queues)
        reply = await self._call("ListTopics", request, admin_pb.ListTopicsResponse, _CHANGE_TIMEOUT_S)
        return list(reply.topics)

    async def update_group(self, request: admin_pb.UpdateSubscriptionGroupRequest) -> None:
        """Creates or changes a subscription group; masters only."""
        await self._call(
            "UpdateSubscriptionGroup", request, admin_pb.UpdateSubscriptionGroupResponse, _CHANGE_TIMEOUT_S
        )

    async def groups(
        self, *, names: Sequence[str] = (), topic: str = "", without_progress: bool = False
    ) -> list[admin_pb.SubscriptionGroupStatus]:
        """Subscription groups ordered by name; only those of `names`, if there are any, or that have read `topic`."""
        request = admin_pb.ListSubscriptionGroupsRequest(groups=names, topic=topic, without_progress=without_progress)
        reply = await self._call(
            "ListSubscriptionGroups", request, admin_pb.ListSubscriptionGroupsResponse, _CHANGE_TIMEOUT_S
        )
        return list(reply.groups)

    async def _call(self, method: str, request: Message, reply_type: type[ReplyT], timeout_s: float) -> ReplyT:
        path = f"/tandemmq.admin.v1.BrokerAdminService/{method}"
        return await _unary(self._channel, path, request, reply_type, timeout_s)


class BrokerOperationsCalls:
    """BrokerOperationsService of one address. Every call may raise `grpc.aio.AioRpcError`."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channel = channels.to(address)

    async def clients(self, request: operations_pb.ListClientsRequest) -> operations_pb.ListClientsResponse:
        return await self._call("ListClients", request, operations_pb.ListClientsResponse, _CHANGE_TIMEOUT_S)

    async def delete_group(
        self, request: operations_pb.DeleteSubscriptionGroupRequest
    ) -> operations_pb.DeleteSubscriptionGroupResponse:
        """Removes a group with its progress; masters only."""
        reply_type = operations_pb.DeleteSubscriptionGroupResponse
        return await self._call("DeleteSubscriptionGroup", request, reply_type, _CHANGE_TIMEOUT_S)

    async def reset_offsets(self, request: operations_pb.ResetOffsetsRequest) -> operations_pb.ResetOffsetsResponse:
        """Sets where a group goes on; masters only."""
        return await self._call("ResetOffsets", request, operations_pb.ResetOffsetsResponse, _CHANGE_TIMEOUT_S)

    async def resend_dead_letters(
        self, request: operations_pb.ResendDeadLettersRequest
    ) -> operations_pb.ResendDeadLettersResponse:
        """Sends dead letters again; masters only."""
        reply_type = operations_pb.ResendDeadLettersResponse
        return await self._call("ResendDeadLetters", request, reply_type, _SEARCH_TIMEOUT_S)

    async def lite_topics(self, request: operations_pb.ListLiteTopicsRequest) -> operations_pb.ListLiteTopicsResponse:
        """Lite topics of a topic; masters only."""
        return await self._call("ListLiteTopics", request, operations_pb.ListLiteTopicsResponse, _READ_TIMEOUT_S)

    async def transactions(
        self, request: operations_pb.ListTransactionsRequest
    ) -> operations_pb.ListTransactionsResponse:
        """Undecided transactions; masters only."""
        return await self._call("ListTransactions", request, operations_pb.ListTransactionsResponse, _READ_TIMEOUT_S)

    async def resolve_transaction(
        self, request: operations_pb.ResolveTransactionRequest
    ) -> operations_pb.ResolveTransactionResponse:
        """Ends one; masters only."""
        reply_type = operations_pb.ResolveTransactionResponse
        return await self._call("ResolveTransaction", request, reply_type, _SEARCH_TIMEOUT_S)

    async def command_client(self, request: operations_pb.CommandClientRequest) -> operations_pb.CommandClientResponse:
        """Tells a client something over its stream."""
        return await self._call("CommandClient", request, operations_pb.CommandClientResponse, _SEARCH_TIMEOUT_S)

    async def config(self) -> operations_pb.GetConfigResponse:
        request = operations_pb.GetConfigRequest()
        return await self._call("GetConfig", request, operations_pb.GetConfigResponse, _READ_TIMEOUT_S)

    async def update_config(self, request: operations_pb.UpdateConfigRequest) -> operations_pb.UpdateConfigResponse:
        """Changes settings until the next start."""
        return await self._call("UpdateConfig", request, operations_pb.UpdateConfigResponse, _READ_TIMEOUT_S)

    async def events(self, *, limit: int) -> operations_pb.ListEventsResponse:
        request = operations_pb.ListEventsRequest(limit=limit)
        return await self._call("ListEvents", request, operations_pb.ListEventsResponse, _READ_TIMEOUT_S)

    async def kept_tails(self, request: operations_pb.ListKeptTailsRequest) -> operations_pb.ListKeptTailsResponse:
        """Tails that were cut off its log."""
        return await self._call("ListKeptTails", request, operations_pb.ListKeptTailsResponse, _READ_TIMEOUT_S)

    async def read_kept_tail(self, request: operations_pb.ReadKeptTailRequest) -> operations_pb.ReadKeptTailResponse:
        return await self._call("ReadKeptTail", request, operations_pb.ReadKeptTailResponse, _READ_TIMEOUT_S)

    async def check_messages(self, request: operations_pb.CheckMessagesRequest) -> operations_pb.CheckMessagesResponse:
        """Which of these messages it holds."""
        return await self._call("CheckMessages", request, operations_pb.CheckMessagesResponse, _SEARCH_TIMEOUT_S)

    async def restore_messages(
        self, request: operations_pb.RestoreMessagesRequest
    ) -> operations_pb.RestoreMessagesResponse:
        """Stores those that it does not hold; masters only."""
        return await self._call("RestoreMessages", request, operations_pb.RestoreMessagesResponse, _SEARCH_TIMEOUT_S)

    async def _call(self, method: str, request: Message, reply_type: type[ReplyT], timeout_s: float) -> ReplyT:
        path = f"/tandemmq.admin.v1.BrokerOperationsService/{method}"
        return await _unary(self._channel, path, request, reply_type, timeout_s)


class BrokerAccessCalls:
    """BrokerAccessService of one address. Every call may raise `grpc.aio.AioRpcError`."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channel = channels.to(address)

    async def users(self, *, search: str = "", with_sealed_password: bool = False) -> list[access_pb.UserView]:
        request = access_pb.ListUsersRequest(search=search, with_sealed_password=with_sealed_password)
        return list((await self._call("ListUsers", request, access_pb.ListUsersResponse, _READ_TIMEOUT_S)).users)

    async def put_user(self, request: access_pb.PutUserRequest) -> bool:
        """Makes or changes one; False: it is just so. Masters only."""
        return (await self._call("PutUser", request, access_pb.PutUserResponse, _CHANGE_TIMEOUT_S)).changed

    async def delete_user(self, request: access_pb.DeleteUserRequest) -> bool:
        """Removes one; False: there is none. Masters only."""
        return (await self._call("DeleteUser", request, access_pb.DeleteUserResponse, _CHANGE_TIMEOUT_S)).existed

    async def acls(self, *, subject: str = "", resource: str = "") -> list[access_pb.AclView]:
        request = access_pb.ListAclsRequest(subject=subject, resource=resource)
        return list((await self._call("ListAcls", request, access_pb.ListAclsResponse, _READ_TIMEOUT_S)).acls)

    async def put_acl(self, request: access_pb.PutAclRequest) -> bool:
        """Adds or replaces entries; False: they are just so. Masters only."""
        return (await self._call("PutAcl", request, access_pb.PutAclResponse, _CHANGE_TIMEOUT_S)).changed

    async def delete_acl(self, request: access_pb.DeleteAclRequest) -> bool:
        """Removes entries; False: there are none. Masters only."""
        return (await self._call("DeleteAcl", request, access_pb.DeleteAclResponse, _CHANGE_TIMEOUT_S)).existed

    async def _call(self, method: str, request: Message, reply_type: type[ReplyT], timeout_s: float) -> ReplyT:
        path = f"/tandemmq.admin.v1.BrokerAccessService/{method}"
        return await _unary(self._channel, path, request, reply_type, timeout_s)


class MessageQueryCalls:
    """MessageQueryService of one address. Every call may raise `grpc.aio.AioRpcError`."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channel = channels.to(address)

    async def queues(self, topic: str) -> query_pb.ListQueuesResponse:
        """Queues of a topic with their extents."""
        request = query_pb.ListQueuesRequest(topic=topic)
        return await self._call("ListQueues", request, query_pb.ListQueuesResponse, _CHANGE_TIMEOUT_S)

    async def query(self, request: query_pb.QueryMessagesRequest) -> query_pb.QueryMessagesResponse:
        return await self._call("QueryMessages", request, query_pb.QueryMessagesResponse, _SEARCH_TIMEOUT_S)

    async def message(self, request: query_pb.GetMessageRequest) -> query_pb.MessageView:
        return (await self._call("GetMessage", request, query_pb.GetMessageResponse, _READ_TIMEOUT_S)).message

    async def digest(self, physical_offset: int, size: int) -> query_pb.DigestRecordResponse:
        """Checksum of a range of the log."""
        request = query_pb.DigestRecordRequest(physical_offset=physical_offset, size=size)
        return await self._call("DigestRecord", request, query_pb.DigestRecordResponse, _READ_TIMEOUT_S)

    async def _call(self, method: str, request: Message, reply_type: type[ReplyT], timeout_s: float) -> ReplyT:
        path = f"/tandemmq.admin.v1.MessageQueryService/{method}"
        return await _unary(self._channel, path, request, reply_type, timeout_s)


class ReplicaCalls:
    """ReplicaService of one address. Every call may raise `grpc.aio.AioRpcError`."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channel = channels.to(address)

    async def accept_loss(self, request: replica_pb.AcceptLossRequest) -> replica_pb.AcceptLossResponse:
        """What a starting master waits for, and an operator's word that it need not."""
        path = "/tandemmq.broker.v1.ReplicaService/AcceptLoss"
        return await _unary(self._channel, path, request, replica_pb.AcceptLossResponse, _SEARCH_TIMEOUT_S)


class FailoverCalls:
    """FailoverService of one address, as operators use it. Every call may raise `grpc.aio.AioRpcError`."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channel = channels.to(address)

    async def state(self) -> failover_pb.GetFailoverStateResponse:
        """What the member knows of its group's record."""
        path = "/tandemmq.broker.v1.FailoverService/GetFailoverState"
        request = failover_pb.GetFailoverStateRequest()
        return await _unary(self._channel, path, request, failover_pb.GetFailoverStateResponse, _READ_TIMEOUT_S)

    async def hand_over(self, request: failover_pb.HandOverRequest) -> failover_pb.HandOverResponse:
        """The master makes another member master."""
        path = "/tandemmq.broker.v1.FailoverService/HandOver"
        return await _unary(self._channel, path, request, failover_pb.HandOverResponse, _SEARCH_TIMEOUT_S)

    async def claim_unclean(self, request: failover_pb.ClaimUncleanRequest) -> failover_pb.ClaimUncleanResponse:
        """This member becomes master although it may lack what was acknowledged."""
        path = "/tandemmq.broker.v1.FailoverService/ClaimUnclean"
        return await _unary(self._channel, path, request, failover_pb.ClaimUncleanResponse, _SEARCH_TIMEOUT_S)


class ReplicaRepairCalls:
    """ReplicaRepairService of one address. Every call may raise `grpc.aio.AioRpcError`."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channel = channels.to(address)

    async def describe(self) -> reader_pb.DescribeReplicaResponse:
        """What the replica holds, and how fast it reads for others."""
        path = "/tandemmq.broker.v1.ReplicaReaderService/DescribeReplica"
        request = reader_pb.DescribeReplicaRequest()
        return await _unary(self._channel, path, request, reader_pb.DescribeReplicaResponse, _READ_TIMEOUT_S)

    async def repair_range(
        self, request: repair_pb.RepairRangeRequest, *, timeout_s: float
    ) -> repair_pb.RepairRangeResponse:
        """Replaces a range by what another member holds."""
        path = "/tandemmq.broker.v1.ReplicaRepairService/RepairRange"
        return await _unary(self._channel, path, request, repair_pb.RepairRangeResponse, timeout_s)

    async def rewrite_queue_entries(
        self, request: repair_pb.RewriteQueueEntriesRequest, *, timeout_s: float
    ) -> repair_pb.RewriteQueueEntriesResponse:
        """Writes ConsumeQueue entries again from the broker's own log."""
        path = "/tandemmq.broker.v1.ReplicaRepairService/RewriteQueueEntries"
        return await _unary(self._channel, path, request, repair_pb.RewriteQueueEntriesResponse, timeout_s)

    async def rewrite_table(
        self, request: repair_pb.RewriteTableRequest, *, timeout_s: float
    ) -> repair_pb.RewriteTableResponse:
        """Writes a metadata table again."""
        path = "/tandemmq.broker.v1.ReplicaRepairService/RewriteTable"
        return await _unary(self._channel, path, request, repair_pb.RewriteTableResponse, timeout_s)


class TraceCalls:
    """TraceService of one address. Every call may raise `grpc.aio.AioRpcError`."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channel = channels.to(address)

    async def by_message(self, message_id: str) -> trace_pb.FindTracesResponse:
        request = trace_pb.FindTracesRequest(message_id=message_id)
        return await self._call("FindTraces", request, trace_pb.FindTracesResponse, _READ_TIMEOUT_S)

    async def by_trace(self, trace_id: int) -> trace_pb.FindTracesResponse:
        """The broker's part of one trace."""
        request = trace_pb.FindTracesRequest(trace_id=trace_id.to_bytes(16))
        return await self._call("FindTraces", request, trace_pb.FindTracesResponse, _READ_TIMEOUT_S)

    async def newest(self, *, count: int, notable_only: bool) -> trace_pb.ListTracesResponse:
        request = trace_pb.ListTracesRequest(page_size=count, notable_only=notable_only)
        return await self._call("ListTraces", request, trace_pb.ListTracesResponse, _READ_TIMEOUT_S)

    async def message(self, message_id: str, topic: str) -> trace_pb.FindMessageResponse:
        """Where a message lies."""
        request = trace_pb.FindMessageRequest(message_id=message_id, topic=topic)
        return await self._call("FindMessage", request, trace_pb.FindMessageResponse, _CHANGE_TIMEOUT_S)

    async def _call(self, method: str, request: Message, reply_type: type[ReplyT], timeout_s: float) -> ReplyT:
        path = f"/tandemmq.admin.v1.TraceService/{method}"
        return await _unary(self._channel, path, request, reply_type, timeout_s)


async def serving(channels: Channels, address: str, *, timeout_s: float = 1.0) -> bool:
    """True when the process at `address` answers grpc.health.v1 with SERVING."""
    request = health_pb2.HealthCheckRequest()
    try:
        reply = await _unary(
            channels.to(address), "/grpc.health.v1.Health/Check", request, health_pb2.HealthCheckResponse, timeout_s
        )
    except grpc.aio.AioRpcError:
        return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def error_text(error: grpc.aio.AioRpcError) -> str:
    """A failed call in one line, code first."""
    details = " ".join((error.details() or "").split())
    return f"{error.code().name}: {details}" if details else error.code().name


async def _unary(
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


async def _first(messages: AsyncIterable[ReplyT]) -> ReplyT:
    with cancellation_wins():
        async for message in messages:
            return message
    raise EOFError("the stream ended without a message")
