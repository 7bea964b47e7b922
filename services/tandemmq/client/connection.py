"""One gRPC channel to one broker, and the calls of RocketMQ's client API over it.

The edge to gRPC. Its errors become `EndpointUnreachable` here, and RocketMQ's status codes become `BrokerRefused`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message
from opentelemetry.trace import TracerProvider

from tandemmq.client.messages import AccessPointInvalid, BrokerRefused, EndpointUnreachable, TopicNotFound
from tandemmq.client.spans import call_headers
from tandemmq.core.access.signature import ALGORITHM, sign
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import cancellation_wins

_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A broker that returns may have another address: see it within seconds instead of half a minute.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Brokers are addressed directly; a proxy of the environment would break leases and long polls.
    ("grpc.enable_http_proxy", 0),
)

# Another try, here or at another broker, may succeed. HA_NOT_AVAILABLE and the persistence timeouts mean "stored, but
# not as safely as asked": a retry stores a second copy under the same message id, which is what all clients do.
_RETRYABLE: Final = frozenset(
    {
        definition.FORBIDDEN,
        definition.TOO_MANY_REQUESTS,
        definition.INTERNAL_ERROR,
        definition.INTERNAL_SERVER_ERROR,
        definition.HA_NOT_AVAILABLE,
        definition.PROXY_TIMEOUT,
        definition.MASTER_PERSISTENCE_TIMEOUT,
        definition.SLAVE_PERSISTENCE_TIMEOUT,
    }
)

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


def check_status(endpoint: str, call: str, status: definition.Status) -> None:
    """Raises BrokerRefused unless `status` is OK."""
    if status.code == definition.OK:
        return
    name = definition.Code.Name(status.code) if status.code in definition.Code.values() else "unknown code"
    kind = TopicNotFound if status.code == definition.TOPIC_NOT_FOUND else BrokerRefused
    raise kind(endpoint, call, status.code, name, status.message, retryable=status.code in _RETRYABLE)


TelemetryStream = grpc.aio.StreamStreamCall[pb.TelemetryCommand, pb.TelemetryCommand]


class Connection:
    """A lazily connected channel; made for the life of the client. `endpoint` is a gRPC target.

    `target` is dialled in its place, if it is given.
    """

    def __init__(
        self, endpoint: str, metadata: Callable[[], tuple[tuple[str, str], ...]], timeout_ms: int, *, target: str = ""
    ) -> None:
        self.endpoint = endpoint
        self._metadata = metadata
        self._timeout_s = timeout_ms / 1_000
        self._channel = grpc.aio.insecure_channel(target or endpoint, options=_CHANNEL_OPTIONS)
        self._query_route = self._unary("QueryRoute", pb.QueryRouteResponse)
        self._send_message = self._unary("SendMessage", pb.SendMessageResponse)
        self._ack_message = self._unary("AckMessage", pb.AckMessageResponse)
        self._change_invisible = self._unary("ChangeInvisibleDuration", pb.ChangeInvisibleDurationResponse)
        self._heartbeat = self._unary("Heartbeat", pb.HeartbeatResponse)
        self._terminate = self._unary("NotifyClientTermination", pb.NotifyClientTerminationResponse)
        self._receive = self._channel.unary_stream(
            _SERVICE + "ReceiveMessage",
            request_serializer=pb.ReceiveMessageRequest.SerializeToString,
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )
        self._telemetry = self._channel.stream_stream(
            _SERVICE + "Telemetry",
            request_serializer=pb.TelemetryCommand.SerializeToString,
            response_deserializer=pb.TelemetryCommand.FromString,
        )

    async def query_route(self, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
        """The topic's queues; TopicNotFound when there is none."""
        answer = await self._call("QueryRoute", self._query_route, request)
        check_status(self.endpoint, "QueryRoute", answer.status)
        return answer

    async def send_message(self, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        answer = await self._call("SendMessage", self._send_message, request)
        check_status(self.endpoint, "SendMessage", answer.status)
        return answer

    async def ack_message(self, request: pb.AckMessageRequest) -> None:
        answer = await self._call("AckMessage", self._ack_message, request, *call_headers())
        check_status(self.endpoint, "AckMessage", answer.status)

    async def change_invisible(self, request: pb.ChangeInvisibleDurationRequest) -> pb.ChangeInvisibleDurationResponse:
        answer = await self._call("ChangeInvisibleDuration", self._change_invisible, request, *call_headers())
        check_status(self.endpoint, "ChangeInvisibleDuration", answer.status)
        return answer

    async def heartbeat(self, request: pb.HeartbeatRequest) -> None:
        """Keeps the client registered."""
        answer = await self._call("Heartbeat", self._heartbeat, request)
        check_status(self.endpoint, "Heartbeat", answer.status)

    async def terminate(self, request: pb.NotifyClientTerminationRequest) -> None:
        """An orderly goodbye."""
        answer = await self._call("NotifyClientTermination", self._terminate, request)
        check_status(self.endpoint, "NotifyClientTermination", answer.status)

    async def receive(
        self, request: pb.ReceiveMessageRequest, *, timeout_ms: int
    ) -> AsyncIterator[pb.ReceiveMessageResponse]:
        """The elements of one receive, in order."""
        try:
            with cancellation_wins():
                async for element in self._receive(request, metadata=self._metadata(), timeout=timeout_ms / 1_000):
                    yield element
        except grpc.aio.AioRpcError as error:
            raise self._unreachable("ReceiveMessage", error) from error

    def telemetry(self) -> TelemetryStream:
        """Opens the settings stream; grpc.aio.AioRpcError leaves its methods."""
        return self._telemetry(None, metadata=self._metadata())

    async def close(self) -> None:
        """Ends running calls."""
        await self._channel.close(None)

    def _unary(self, method: str, response: type[ResponseT]) -> grpc.aio.UnaryUnaryMultiCallable[Message, ResponseT]:
        callable_: grpc.aio.UnaryUnaryMultiCallable[Message, ResponseT] = self._channel.unary_unary(
            _SERVICE + method,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return callable_

    async def _call(
        self,
        method: str,
        callable_: grpc.aio.UnaryUnaryMultiCallable[Message, ResponseT],
        request: Message,
        *headers: tuple[str, str],
    ) -> ResponseT:
        try:
            with cancellation_wins():
                return await callable_(request, metadata=(*self._metadata(), *headers), timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise self._unreachable(method, error) from error

    def _unreachable(self, method: str, error: grpc.aio.AioRpcError) -> EndpointUnreachable:
        return EndpointUnreachable(self.endpoint, method, f"{error.code().name} {error.details() or ''}".rstrip())


class ConnectionPool:
    """One connection per target, made at first use and kept until `close`."""

    def __init__(
        self,
        metadata: Callable[[], tuple[tuple[str, str], ...]],
        timeout_ms: int,
        dial: Callable[[str], str] | None = None,
    ) -> None:
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        self._dial = dial
        self._connections: dict[str, Connection] = {}

    def get(self, endpoint: str) -> Connection:
        connection = self._connections.get(endpoint)
        if connection is None:
            target = self._dial(endpoint) if self._dial is not None else endpoint
            connection = Connection(endpoint, self._metadata, self._timeout_ms, target=target)
            self._connections[endpoint] = connection
        return connection

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()


# How a client behaves; plain values, the same for producers and consumers.


ACCESS_KEY_VARIABLE: Final = "TANDEMMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "TANDEMMQ_SECRET_KEY"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user of the cluster's, and what it signs its calls with."""

    access_key: str
    secret_key: str = field(repr=False)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Credentials | None:
        """Those of TANDEMMQ_ACCESS_KEY and TANDEMMQ_SECRET_KEY; None when neither is set. AccessPointInvalid if one is
        missing."""
        access_key, secret_key = environ.get(ACCESS_KEY_VARIABLE, ""), environ.get(SECRET_KEY_VARIABLE, "")
        if not access_key and not secret_key:
            return None
        if not access_key or not secret_key:
            missing = SECRET_KEY_VARIABLE if access_key else ACCESS_KEY_VARIABLE
            raise AccessPointInvalid(f"{missing} is not set, and the other of the two is; set both or neither")
        return cls(access_key, secret_key)

    def headers(self, *, wall_ms: int) -> tuple[tuple[str, str], ...]:
        """What signs a call that is made now."""
        date = datetime.fromtimestamp(wall_ms // 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")
        signature = sign(self.secret_key.encode(), date).hex()
        return (
            ("x-mq-date-time", date),
            (
                "authorization",
                f"{ALGORITHM} Credential={self.access_key}, SignedHeaders=x-mq-date-time, Signature={signature}",
            ),
        )


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Times and limits of one client. The defaults are those of the official clients."""

    # Addresses asked for routes, as host:port; any one that answers is enough.
    access_points: tuple[str, ...]
    request_timeout_ms: int = 3_000
    heartbeat_interval_ms: int = 10_000
    route_refresh_interval_ms: int = 30_000
    # Tries of one send, the first included.
    send_attempts_max: int = 3
    send_backoff_initial_ms: int = 10
    send_backoff_max_ms: int = 1_000
    # Sends in flight at once; a further one waits. Bounds memory and the queue at the broker.
    sends_in_flight_max: int = 1_024
    # A broker that failed is asked again only when no other is left, or after this time.
    isolation_ms: int = 5_000
    # Where spans go. None: to the provider of the process, which does nothing unless the application has set one.
    tracer_provider: TracerProvider | None = None
    # Where a host:port is dialled instead, for one who stands outside the network the brokers' addresses belong to.
    dial: Callable[[str], str] | None = None
    # Who signs the calls; None: nobody, which clusters without sign-in take.
    credentials: Credentials | None = None


def parse_access_points(text: str) -> tuple[str, ...]:
    """Splits `host:port;host:port`. AccessPointInvalid names the part that is no address."""
    parts = tuple(part.strip() for part in text.split(";") if part.strip())
    if not parts:
        raise AccessPointInvalid("name at least one address as host:port")
    for part in parts:
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise AccessPointInvalid(f"'{part}' is no host:port")
    return parts
