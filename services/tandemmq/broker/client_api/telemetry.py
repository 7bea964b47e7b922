"""The Telemetry stream, heartbeats and goodbyes: how clients and broker know of each other.

A stream lives as long as its client and is idle nearly all the time. Each settings message on it gets one reply, also
those that clients repeat every few minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from tandemmq.broker.client_api.sessions import GroupPolicy, group_policy, merged_settings
from tandemmq.broker.client_api.validation import (
    OK,
    Code,
    Outcome,
    check_client_id,
    check_group,
    check_settings_size,
    check_topic,
    ok_status,
    parsed_filter,
    status_of,
)
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import Call, StatusCode

if TYPE_CHECKING:
    from tandemmq.broker.client_api.services import BrokerServices


# Commands to clients that wait for their answers, each for some seconds: an operator sends one at a time.
_ASKED_MAX: Final = 256
# Kept for people, of each of up to 100,000 clients, which may say megabytes.
_VERSION_CHARACTERS_MAX: Final = 64
_FILTER_CHARACTERS_MAX: Final = 1_000
RECONNECT: Final = pb.TelemetryCommand(reconnect_endpoints_command=pb.ReconnectEndpointsCommand(nonce="reconnect"))
"""Java and Node drop their connection and make a new one, the others wait until they notice."""

Answered: TypeAlias = Callable[[pb.TelemetryCommand], object]

_CLIENT_TYPES_OFFERED: Final = frozenset(
    {
        definition.PRODUCER,
        definition.PUSH_CONSUMER,
        definition.SIMPLE_CONSUMER,
        definition.PULL_CONSUMER,
        definition.LITE_PUSH_CONSUMER,
        definition.LITE_SIMPLE_CONSUMER,
    }
)


class TelemetryHandler:
    """Serves Telemetry, Heartbeat and NotifyClientTermination."""

    def __init__(self, services: BrokerServices) -> None:
        self._services = services
        self._streams: set[TelemetryStream] = set()
        # Of producers, by the topics that they publish.
        self._publishers: dict[str, dict[TelemetryStream, None]] = {}
        # The topics of all of them.
        self._published_count = 0
        # By nonce.
        self._asked: dict[str, Answered] = {}

    def publishers(self, topic: str) -> Sequence[TelemetryStream]:
        """Streams of connected producers that publish the topic, the newest of each. Java's client (5.2.0) answers a
        check on the thread that read it, and waits there: two that come by two streams at once stop one that has two
        threads."""
        newest = {stream.client_id: stream for stream in self._publishers.get(topic, ())}
        return list(newest.values())

    def streams_of(self, client_id: str) -> Sequence[TelemetryStream]:
        """Those of one client: mostly one. Looks at all."""
        return [stream for stream in self._streams if stream.client_id == client_id]

    def ask(self, stream: TelemetryStream, command: pb.TelemetryCommand, nonce: str, done: Answered) -> bool:
        """Sends a command; `done` is told what the client answers with this nonce, if it does. `forget` when it is not
        waited for any more. False: too many are under way."""
        if len(self._asked) >= _ASKED_MAX:
            return False
        self._asked[nonce] = done
        stream.command(command)
        return True

    def forget(self, nonce: str) -> None:
        """An answer does not matter any more."""
        self._asked.pop(nonce, None)

    def telemetry(self, call: Call) -> TelemetryStream:
        stream = TelemetryStream(
            self._services,
            call,
            published=self._published,
            has_room=self._has_room,
            answered=self._answered,
            ended=self._stream_ended,
        )
        self._streams.add(stream)
        if refused := check_client_id(call):
            call.send(pb.TelemetryCommand(status=status_of(refused)))
            stream.end()
        return stream

    def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> None:
        """A sign of life. Needs no session: after a broker's restart clients beat before they introduce themselves."""
        outcome = check_client_id(call) or self._beat(request, call)
        call.send(pb.HeartbeatResponse(status=status_of(outcome or OK)))
        call.finish()

    def notify_client_termination(self, request: pb.NotifyClientTerminationRequest, call: Call) -> None:
        """The client stops. The group is not looked at: Go producers send an empty one."""
        outcome = check_client_id(call)
        if outcome is None:
            self._services.sessions.terminate(self._services.client_id_of(call))
            self._services.persist_leases()
        call.send(pb.NotifyClientTerminationResponse(status=status_of(outcome or OK)))
        call.finish()

    def end_streams(self) -> None:
        """The broker stops: clients reopen their streams elsewhere, or here when it is back."""
        for stream in tuple(self._streams):
            if not stream.fails_after_reconnect:
                stream.command(RECONNECT)
            stream.end(StatusCode.UNAVAILABLE, "the broker is stopping")

    def _answered(self, nonce: str, command: pb.TelemetryCommand) -> None:
        """A client answered; nobody may have asked."""
        done = self._asked.pop(nonce, None)
        if done is not None:
            done(command)

    def _has_room(self, stream: TelemetryStream, count: int) -> bool:
        """Whether a producer may say that it publishes so many topics: of very many producers it is much memory."""
        others = self._published_count - len(stream.topics)
        return count <= _PUBLISHED_ALWAYS or others + count <= _PUBLISHED_MAX

    def _published(self, stream: TelemetryStream, before: Collection[str], now: Collection[str]) -> None:
        """The topics that a stream's producer publishes are others."""
        self._published_count += len(now) - len(before)
        for topic in before:
            streams = self._publishers.get(topic)
            if streams is not None:
                streams.pop(stream, None)
                if not streams:
                    del self._publishers[topic]
        for topic in now:
            self._publishers.setdefault(topic, {})[stream] = None

    def _stream_ended(self, stream: TelemetryStream) -> None:
        self._streams.discard(stream)
        # It may be told twice.
        topics, stream.topics = stream.topics, {}
        self._published(stream, topics, ())

    def _beat(self, request: pb.HeartbeatRequest, call: Call) -> Outcome | None:
        if request.client_type not in _CLIENT_TYPES_OFFERED:
            return Outcome(Code.UNRECOGNIZED_CLIENT_TYPE, f"client type {request.client_type} is not offered")
        is_consumer = request.client_type != definition.PRODUCER
        if is_consumer and (refused := check_group(request.group.name)):
            return refused
        client_id = self._services.client_id_of(call)
        self._services.leases.client_seen(client_id)
        session = self._services.sessions.seen(client_id, call, now_ms=self._services.clock.monotonic_ms())
        session.client_type = definition.ClientType.Name(request.client_type)
        session.group = request.group.name if is_consumer else ""
        session.peer = call.peer
        return None


_PUBLISHED_MAX: Final = 1 << 18
"""Topics that all producers say that they publish; some 500 bytes each."""
_PUBLISHED_ALWAYS: Final = 64
"""So many a producer may have in any case."""
_TOO_MUCH_PUBLISHED: Final = Outcome(
    Code.TOO_MANY_REQUESTS,
    f"producers here publish {_PUBLISHED_MAX} topics already; name {_PUBLISHED_ALWAYS} at most, or use fewer clients",
)


class TelemetryStream:
    """One client's stream, a `tandemmq.service.rpc.StreamHandler`. `published` is told of the topics of a producer,
    those before and those now."""

    def __init__(
        self,
        services: BrokerServices,
        call: Call,
        *,
        published: Callable[[TelemetryStream, Collection[str], Collection[str]], None],
        has_room: Callable[[TelemetryStream, int], bool],
        answered: Callable[[str, pb.TelemetryCommand], None],
        ended: Callable[[TelemetryStream], None],
    ) -> None:
        self._services = services
        self._call = call
        self._published = published
        self._has_room = has_room
        self._answered = answered
        self._ended = ended
        self.client_id: Final = services.client_id_of(call)
        self.topics: dict[str, definition.Resource] = {}
        """What its producer publishes, as it names them."""
        self.is_over = False
        self.when_over: Callable[[], object] | None = None
        """Told when it ends, whoever ends it; a handler that ends a call hears no more of it."""
        self.fails_after_reconnect = False
        """Node's client, told to reconnect, listens to this stream no more, and its process dies of an end that is an
        error. Without the command it takes the end as a reason to reconnect."""

    def resource_of(self, topic: str) -> definition.Resource:
        return self.topics.get(topic) or definition.Resource(name=topic)

    def command(self, command: pb.TelemetryCommand, /) -> None:
        self._call.send(command)

    def message(self, command: pb.TelemetryCommand, /) -> None:
        """Settings are answered. Whatever else clients send are answers themselves."""
        kind = command.WhichOneof("command")
        if kind == "settings":
            self._settings(command.settings, remembers=True)
        elif kind == "thread_stack_trace":
            self._answered(command.thread_stack_trace.nonce, command)
        elif kind == "verify_message_result":
            self._answered(command.verify_message_result.nonce, command)
        elif kind == "verify_message_command":
            # Node sends back what it got.
            self._answered(command.verify_message_command.nonce, command)

    def answer(self, command: pb.TelemetryCommand, /) -> None:
        """Answers settings, and remembers nothing of them. For a client that may not do what it says: Python's and
        Java's wait for these answers when they start, and hear why from the first call that is refused."""
        self._settings(command.settings, remembers=False)

    def half_closed(self) -> None:
        self.end()

    def cancelled(self) -> None:
        """The connection broke. The session outlives it: the client may be back in a moment."""
        self._is_over()

    def end(self, code: StatusCode = StatusCode.OK, detail: str = "") -> None:
        self._is_over()
        self._call.finish(code, detail)

    def _is_over(self) -> None:
        self.is_over = True
        self._ended(self)
        if self.when_over is not None:
            self.when_over()

    def _settings(self, settings: definition.Settings, *, remembers: bool) -> None:
        kind = settings.WhichOneof("pub_sub")
        if kind is None:
            self.end(StatusCode.INVALID_ARGUMENT, "settings: neither publishing nor subscription is set")
            return
        is_producer = kind == "publishing"
        refused = check_settings_size(settings) or (
            _check_publishing(settings.publishing) if is_producer else _check_names(settings.subscription)
        )
        if refused is None and not is_producer and not _hears_of_filters_later(settings):
            refused = self._check_filters(settings.subscription)
        if refused is None and remembers and not self._has_room(self, len(settings.publishing.topics)):
            refused = _TOO_MUCH_PUBLISHED
        if refused:
            # Node reads no end of a stream, only a command that says what is wrong; others pass over such a one.
            self._call.send(pb.TelemetryCommand(status=status_of(refused)))
            self.end(StatusCode.INVALID_ARGUMENT, f"settings: {refused.text}")
            return
        if remembers:
            self._remember(settings, is_producer=is_producer)
        policy: GroupPolicy | None = None
        if not is_producer:
            policy = group_policy(self._services.groups, settings.subscription.group.name)
        merged = merged_settings(settings, max_body_bytes=self._services.options.max_message_bytes, group_policy=policy)
        # Both parts are needed: the Python client ignores settings without an OK status.
        self._call.send(pb.TelemetryCommand(status=ok_status(), settings=merged))

    def _check_filters(self, subscription: definition.Subscription) -> Outcome | None:
        for entry in subscription.subscriptions:
            parsed = parsed_filter(self._services, entry.expression, self._call)
            if isinstance(parsed, Outcome):
                return parsed
        return None

    def _remember(self, settings: definition.Settings, *, is_producer: bool) -> None:
        now_ms = self._services.clock.monotonic_ms()
        session = self._services.sessions.seen(self.client_id, self._call, now_ms=now_ms)
        if settings.client_type in definition.ClientType.values():
            session.client_type = definition.ClientType.Name(settings.client_type)
        if settings.user_agent.language in definition.Language.values():
            session.language = definition.Language.Name(settings.user_agent.language)
        self.fails_after_reconnect = settings.user_agent.language == definition.NODE_JS
        session.version = settings.user_agent.version[:_VERSION_CHARACTERS_MAX]
        session.peer = self._call.peer
        # Copies: a part of a request keeps all of it, up to 2 MiB.
        topics = {topic.name: _copied(topic) for topic in settings.publishing.topics} if is_producer else {}
        if topics or self.topics:
            # Who says now that it consumes publishes nothing any more, and is shown no half messages.
            self._published(self, self.topics, topics)
            self.topics = topics
        if is_producer:
            said = ((topic.name, "") for topic in settings.publishing.topics)
        else:
            session.group = settings.subscription.group.name
            said = (
                (entry.topic.name, _shown_filter(entry.expression)) for entry in settings.subscription.subscriptions
            )
        self._services.sessions.describe(session, said)


def _copied(topic: definition.Resource) -> definition.Resource:
    return definition.Resource(name=topic.name, resource_namespace=topic.resource_namespace)


def _shown_filter(expression: definition.FilterExpression) -> str:
    """As operators see it: tags as they are, SQL92 with its name."""
    shown = f"SQL92: {expression.expression}" if expression.type == definition.SQL else expression.expression
    return shown if len(shown) <= _FILTER_CHARACTERS_MAX else f"{shown[:_FILTER_CHARACTERS_MAX]}…"


def _check_publishing(publishing: definition.Publishing) -> Outcome | None:
    return next(filter(None, (check_topic(topic.name) for topic in publishing.topics)), None)


def _hears_of_filters_later(settings: definition.Settings) -> bool:
    """Whether its receives say what is wrong with a filter, and its start does not.

    A simple consumer's user sees each receive's code, while Java's start fails without a reason; Node's start tells it.
    A push consumer's user sees no receive, so its start should fail; but Python's would wait for its settings for ever.
    """
    language = settings.user_agent.language
    if language == definition.PYTHON:
        return True
    return settings.client_type == definition.SIMPLE_CONSUMER and language != definition.NODE_JS


def _check_names(subscription: definition.Subscription) -> Outcome | None:
    topics = (check_topic(entry.topic.name) for entry in subscription.subscriptions)
    return check_group(subscription.group.name) or next(filter(None, topics), None)
