"""Stands before the client API's handlers where the settings ask who calls: signs callers in, and asks the policies.

    signed in?   authorization and x-mq-date-time of the call, the user's secret      once for each text of the two
    allowed?     what the method does to which topic and group, the user's policies    once for each of these

Both answers are remembered until users or policies change, so that a call that is known costs some look-ups. Every
broker asks for itself. A call that another broker passes on has its caller's own signature; the address it came from is
believed only with the mark of a broker that holds the same key file (`SecretKeys.link_mark`), which quotas ask for
where nobody signs in, too. Without these settings nothing of this stands in a call's way.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias, cast

import structlog

from tandemmq.broker.client_api.held_answers import HeldAnswers
from tandemmq.broker.client_api.send import refused_send
from tandemmq.broker.client_api.sent_message import SentMessage
from tandemmq.broker.client_api.services import Timers
from tandemmq.broker.client_api.sessions import client_id_of, client_of_user
from tandemmq.broker.client_api.settle import AckRequest, encoded_ack
from tandemmq.broker.client_api.telemetry import TelemetryStream
from tandemmq.broker.client_api.validation import (
    Code,
    Outcome,
    check_settings_size,
    status_of,
)
from tandemmq.core.access.sealed_secrets import CannotOpen, SecretKeys
from tandemmq.core.access.signature import DATE_WINDOW_MS, SignInLimit, date_problem, is_signed, parse_authorization
from tandemmq.core.access.users_and_policies import (
    RESOURCE_CHARACTERS_MAX,
    AclTable,
    Action,
    ResourceKind,
    Ruling,
    UserStatus,
    UserTable,
    UserType,
    decide,
    parse_address,
    topic_or_group,
)
from tandemmq.core.clock import Clock
from tandemmq.core.quotas import counted_host
from tandemmq.core.routing.values import peer_host
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.logging import LineRoom
from tandemmq.service.rpc import (
    CALLER_HEADER,
    CLIENT_ID_HEADER,
    BidiMethod,
    Call,
    MethodTable,
    ServerStreamMethod,
    StatusCode,
    StreamHandler,
    UnaryMethod,
)

log = structlog.get_logger(__name__)

_AUTHORIZATION: Final = "authorization"
_DATE: Final = "x-mq-date-time"
_REMEMBERED_MAX: Final = 20_000
_ADDRESSES_MAX: Final = 20_000
_FORGET_EVERY_MS: Final = 60_000
_NAME_CHARACTERS_MAX: Final = 127
_PRODUCER: Final[int] = definition.PRODUCER
_OPENS_CLIENT: Final = frozenset({"Telemetry", "Heartbeat", "ReceiveMessage", "SyncLiteSubscription"})
"""Methods by which a client comes to be known, with all that belongs to it: leases that are renewed for it, its
subscriptions, and commands to it."""

Need: TypeAlias = tuple[ResourceKind, str, tuple[Action, ...]]
"""A resource, and the actions of which its caller needs one."""
Needs: TypeAlias = Callable[[Any], Sequence[Need]]
OpensTelemetry: TypeAlias = Callable[[Call], TelemetryStream]
Refusal: TypeAlias = Callable[[Any, Outcome], bytes]
"""The encoded answer to a request."""

_PUB: Final = (Action.PUB,)
_SUB: Final = (Action.SUB,)
_ROUTE: Final = (Action.PUB, Action.SUB, Action.GET)
_READ: Final = (Action.SUB, Action.GET)
_CHANGE: Final = (Action.SUB, Action.UPDATE)


class SignatureZones(NamedTuple):
    """Time zones in which clients may write their dates: minutes east of UTC, and this machine's own."""

    minutes: tuple[int, ...]
    with_local: bool

    def at(self, wall_ms: int) -> Collection[int]:
        """Their offsets at a moment."""
        if not self.with_local:
            return self.minutes
        return (*self.minutes, time.localtime(wall_ms // 1_000).tm_gmtoff // 60)


class Refused(StrEnum):
    """Why a call of a client was refused, for those who count."""

    UNSIGNED = "unsigned"
    DATE = "date"
    UNKNOWN_USER = "unknown_user"
    DISABLED_USER = "disabled_user"
    WRONG_KEY = "wrong_key"
    TOO_MANY_FAILURES = "too_many_failures"
    NOT_ALLOWED = "not_allowed"
    TOO_MANY_CLIENTS = "too_many_clients"


class _Failure(NamedTuple):
    """Why it is not known who calls."""

    kind: Refused
    text: str
    """What the caller is told; not who is a user."""
    delay_ms: int = 0
    """For how long that is held back."""
    reason: str = ""
    """What the log says, if it says more."""


class _SignedIn(NamedTuple):
    """A signature that was found good."""

    date: str
    username: str


# What a method needs


def _of_topic(topic: str, actions: tuple[Action, ...]) -> Need:
    kind, name = topic_or_group(topic)
    # Compared, not told by identity: compiled, a tuple has none.
    return kind, name, (_SUB if kind is ResourceKind.GROUP and actions == _PUB else actions)


def _of_group(group: str, actions: tuple[Action, ...] = _SUB) -> Need:
    return ResourceKind.GROUP, group, actions


def _heartbeat(request: pb.HeartbeatRequest) -> Sequence[Need]:
    return () if request.client_type == _PRODUCER else (_of_group(request.group.name),)


def _goodbye(request: pb.NotifyClientTerminationRequest) -> Sequence[Need]:
    # Go producers send an empty one.
    return (_of_group(request.group.name),) if request.group.name else ()


def _published(messages: list[SentMessage]) -> Sequence[Need]:
    if len(messages) == 1:
        return (_publishes(messages[0].topic),)
    return [_publishes(topic) for topic in {sent.topic for sent in messages}]


def _publishes(topic: str) -> Need:
    """Remembered: making it anew would be half of what a known caller costs."""
    need = _published_to.get(topic)
    if need is None:
        need = _of_topic(topic, _PUB)
        if len(topic) <= RESOURCE_CHARACTERS_MAX:  # What is longer is no name, and may be megabytes.
            if len(_published_to) >= _REMEMBERED_MAX:
                _published_to.clear()
            _published_to[topic] = need
    return need


_published_to: Final[dict[str, Need]] = {}


def _consumed(request: Any) -> Sequence[Need]:
    return _of_topic(request.topic.name, _SUB), _of_group(request.group.name)


def _queue(actions: tuple[Action, ...], *, with_group: bool = True) -> Needs:
    def needs(request: Any) -> Sequence[Need]:
        topic = _of_topic(request.message_queue.topic.name, actions)
        return (topic, _of_group(request.group.name, actions)) if with_group else (topic,)

    return needs


def _settings(command: pb.TelemetryCommand) -> Sequence[Need] | None:
    """None: no settings. Answers of clients to what they were asked need nothing, nor does what the stream refuses."""
    if command.WhichOneof("command") != "settings":
        return None
    settings = command.settings
    if check_settings_size(settings) is not None:
        return ()
    if settings.WhichOneof("pub_sub") == "publishing":
        return [_of_topic(topic.name, _PUB) for topic in settings.publishing.topics]
    subscription = settings.subscription
    return [_of_group(subscription.group.name)] + [
        _of_topic(entry.topic.name, _SUB) for entry in subscription.subscriptions
    ]


# How a method says no


def _refused_send(messages: list[SentMessage], outcome: Outcome) -> bytes:
    return refused_send(messages, outcome).SerializeToString()


def _refused_ack(request: AckRequest, outcome: Outcome) -> bytes:
    return encoded_ack(request.entries, [outcome] * max(1, len(request.entries)))


def _refused_change(request: pb.ChangeInvisibleDurationRequest, outcome: Outcome) -> bytes:
    # Clients adopt the handle even with an error.
    status = status_of(outcome)
    return pb.ChangeInvisibleDurationResponse(status=status, receipt_handle=request.receipt_handle).SerializeToString()


def _refused_with(response_type: Any) -> Refusal:
    def refused(request: Any, outcome: Outcome) -> bytes:
        encoded: bytes = response_type(status=status_of(outcome)).SerializeToString()
        return encoded

    return refused


_METHODS: Final[dict[str, tuple[Needs, Refusal]]] = {
    "QueryRoute": (lambda asked: (_of_topic(asked.topic.name, _ROUTE),), _refused_with(pb.QueryRouteResponse)),
    "Heartbeat": (_heartbeat, _refused_with(pb.HeartbeatResponse)),
    "SendMessage": (_published, _refused_send),
    "RecallMessage": (lambda asked: (_of_topic(asked.topic.name, _PUB),), _refused_with(pb.RecallMessageResponse)),
    "QueryAssignment": (_consumed, _refused_with(pb.QueryAssignmentResponse)),
    "ReceiveMessage": (_queue(_SUB), _refused_with(pb.ReceiveMessageResponse)),
    "AckMessage": (lambda asked: (_of_topic(asked.topic, _SUB), _of_group(asked.group)), _refused_ack),
    "ChangeInvisibleDuration": (_consumed, _refused_change),
    "ForwardMessageToDeadLetterQueue": (_consumed, _refused_with(pb.ForwardMessageToDeadLetterQueueResponse)),
    "EndTransaction": (lambda asked: (_of_topic(asked.topic.name, _PUB),), _refused_with(pb.EndTransactionResponse)),
    "PullMessage": (_queue(_SUB), _refused_with(pb.PullMessageResponse)),
    "GetOffset": (_queue(_READ), _refused_with(pb.GetOffsetResponse)),
    "UpdateOffset": (_queue(_CHANGE), _refused_with(pb.UpdateOffsetResponse)),
    "QueryOffset": (_queue(_READ, with_group=False), _refused_with(pb.QueryOffsetResponse)),
    "SyncLiteSubscription": (_consumed, _refused_with(pb.SyncLiteSubscriptionResponse)),
    "NotifyClientTermination": (_goodbye, _refused_with(pb.NotifyClientTerminationResponse)),
}
"""By method, after RocketMQ's DefaultAuthorizationContextBuilder. A method that is not here is not offered."""


class CallSources:
    """Where calls came from, also those that another broker passed on, if it holds the same keys. Event loop only.

    A mark is good for the caller's signature. Where nobody signs in it is good for an address, a quarter of an hour:
    for whoever reads what brokers send each other, who then counts as another address, no more.
    """

    def __init__(self, keys: SecretKeys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._addresses: dict[str, str] = {}

    def source(self, call: Call) -> str:
        """Address a call came from, in numbers: that of its first caller if a broker passed it on."""
        passed_on = call.header(CALLER_HEADER)
        if passed_on:
            return self._vouched(passed_on, call) or _address_of(call.peer)
        peer = call.peer
        address = self._addresses.get(peer)
        if address is None:
            if len(self._addresses) >= _ADDRESSES_MAX:
                self._addresses.clear()
            address = self._addresses[peer] = _address_of(peer)
        return address

    def vouch(self, call: Call) -> str:
        """What tells another broker where a call, which is passed on to it, came from."""
        head = f"{self.source(call)} {self._clock.wall_ms()}"
        return f"{head} {self._keys.link_mark(_marked(head, call))}"

    def _vouched(self, text: str, call: Call) -> str | None:
        head, _, mark = text.rpartition(" ")
        address, _, at_text = head.partition(" ")
        if not (at_text.isascii() and at_text.isdigit()) or len(at_text) > 15:  # int() takes no other digits
            return None
        if abs(self._clock.wall_ms() - int(at_text)) > DATE_WINDOW_MS:
            return None
        return address if self._keys.is_link_mark(_marked(head, call), mark) else None


class ClientAccess:
    """The guard of one broker. Event loop only. `revoked` is called after users or policies changed, so that what waits
    for long is asked anew."""

    def __init__(
        self,
        *,
        users: UserTable,
        acls: AclTable,
        keys: SecretKeys,
        authorizes: bool,
        zones: SignatureZones,
        clock: Clock,
        timers: Timers,
        revoked: Callable[[], None],
        has_room: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Without `authorizes` whoever signs in may do everything. `has_room`: whether its user may have that client,
        too."""
        self._users = users
        self._acls = acls
        self._keys = keys
        self._authorizes = authorizes
        self._zones = zones
        self._clock = clock
        self._timers = timers
        self._revoked = revoked
        self._has_room = has_room
        self.sources: Final = CallSources(keys, clock)
        self._limit = SignInLimit()
        # A signature of nobody's is checked as long as one of somebody's.
        self._nobody: Final = secrets.token_bytes(32)
        # By the text of `authorization`.
        self._signed_in: dict[str, _SignedIn] = {}
        self._rulings: dict[tuple[str, ResourceKind, str, tuple[Action, ...], str], Ruling] = {}
        self._secrets: dict[str, tuple[str, bytes]] = {}
        self._forget_at_ms = 0
        self._streams: set[_GuardedStream] = set()
        self._is_recheck_due = False
        self._held: Final = HeldAnswers(clock=clock, timers=timers)
        self._audit = _AuditLines(clock)
        self.refused: Counter[str] = Counter()
        """Calls since the start, by `Refused`."""

    # Tables

    def guard(self, table: MethodTable) -> MethodTable:
        """The same methods, each behind the guard."""
        methods: dict[str, Any] = {}
        for name, method in table.methods.items():
            if isinstance(method, BidiMethod):
                methods[name] = BidiMethod(
                    _GuardedOpening(self, name, cast("OpensTelemetry", method.handler)), method.request_type
                )
                continue
            guarded = _Guarded(self, name, method.handler, *_METHODS[name])
            kind = UnaryMethod if isinstance(method, UnaryMethod) else ServerStreamMethod
            methods[name] = kind(guarded, method.request_type)
        return MethodTable(table.service_name, methods, otherwise=table.otherwise)

    def changed(self) -> None:
        """Users or policies are others than before: nothing is remembered, and what is open is asked again."""
        self._signed_in.clear()
        self._rulings.clear()
        if not self._is_recheck_due:
            self._is_recheck_due = True
            self._timers.call_soon(self._recheck)

    def _recheck(self) -> None:
        self._is_recheck_due = False
        for stream in tuple(self._streams):
            stream.ask_again()
        self._revoked()

    # One call

    def refusal(self, call: Call, method: str, needs: Sequence[Need]) -> tuple[Outcome, int] | None:
        """Why a call may not go on, and for how long its answer is held back, in ms; None: it may."""
        authorization = call.header(_AUTHORIZATION)
        known = self._signed_in.get(authorization)
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._forget_at_ms:
            # A date counts for a quarter of an hour, and not for as long as the process lives.
            self._forget_at_ms = now_ms + _FORGET_EVERY_MS
            self._signed_in.clear()
            known = None
        source = self.sources.source(call)
        if known is not None and known.date == call.header(_DATE):
            username = known.username
        else:
            found = self._sign_in(call, authorization, source)
            if isinstance(found, _Failure):
                reason, user = found.reason or found.text, _claimed(authorization)
                self._audit.refused(method, reason, user=user, source=source, is_known=False)
                self.refused[found.kind] += 1
                return Outcome(Code.UNAUTHORIZED, found.text), found.delay_ms
            username = found
        if self._authorizes:
            for kind, name, actions in needs:
                ruling = self._rulings.get((username, kind, name, actions, source))
                if ruling is None:
                    ruling = self._ruling(username, kind, name, actions, source)
                if not ruling.is_allowed:
                    return self._forbidden(method, username, kind, name, actions, source, ruling), 0
        if method in _OPENS_CLIENT and not self._has_room(client_of_user(client_id_of(call), username)):
            return self._no_room(method, username, source), 0
        return None

    def _no_room(self, method: str, username: str, source: str) -> Outcome:
        self.refused[Refused.TOO_MANY_CLIENTS] += 1
        self._audit.refused(method, "too many clients of one user", user=username, source=source)
        return Outcome(
            Code.TOO_MANY_REQUESTS,
            f"{CLIENT_ID_HEADER}: user {username} has too many clients here; end some, or try again in two minutes",
            retryable=True,
        )

    def may_still(self, username: str, needs: Sequence[Need], source: str, *, secret: bytes | None) -> Outcome | None:
        """The same of a user that signed in before, with `secret`, for what stays open."""
        user = self._users.get(username)
        if user is None:
            return self._no_more(username, source, "no such user any more")
        if user.status is UserStatus.DISABLE:
            return self._no_more(username, source, "the user is disabled")
        if self.secret_of(username) != secret:
            return self._no_more(username, source, "the user has another secret key now")
        for kind, name, actions in needs if self._authorizes else ():
            ruling = self._ruling(username, kind, name, actions, source)
            if not ruling.is_allowed:
                return self._forbidden("Telemetry", username, kind, name, actions, source, ruling)
        return None

    def known_user(self, call: Call) -> str:
        """The user of this broker's that the caller signs as, at little cost and with nothing counted: not yet that it
        is let in. Empty: it does not."""
        credential = parse_authorization(call.header(_AUTHORIZATION))
        if isinstance(credential, str):
            return ""
        secret = self.secret_of(credential.username)
        is_its = secret is not None and is_signed(secret, call.header(_DATE), credential.signature)
        return credential.username if is_its else ""

    def client_id_of(self, call: Call) -> str:
        """The client that made a call which was let in: the same id of another user is another client."""
        return client_of_user(client_id_of(call), self.user_of(call))

    def user_of(self, call: Call) -> str:
        """Who made a call that was let in."""
        known = self._signed_in.get(call.header(_AUTHORIZATION))
        return known.username if known is not None else _claimed(call.header(_AUTHORIZATION))

    def refuse_later(self, refuse: Callable[[], None], delay_ms: int, *, kept_bytes: int = 0) -> None:
        """As `HeldAnswers` does; without a delay at once. A deadline shortens none: who guesses would set one."""
        if delay_ms > 0:
            self._held.hold(delay_ms, refuse, kept_bytes=kept_bytes)
        else:
            refuse()

    # Inside

    def _sign_in(self, call: Call, authorization: str, source: str) -> str | _Failure:
        """The user, or why it is not known who calls."""
        credential = parse_authorization(authorization)
        if isinstance(credential, str):
            return _Failure(Refused.UNSIGNED, credential)
        username, now_ms = credential.username, self._clock.monotonic_ms()
        if self._limit.is_blocked(source, username, now_ms=now_ms):
            text = "too many sign-ins from this address failed; try again in a minute"
            return _Failure(Refused.TOO_MANY_FAILURES, text, 2_000)
        date = call.header(_DATE)
        secret = self.secret_of(username)
        is_good = is_signed(self._nobody if secret is None else secret, date, credential.signature)
        user = self._users.get(username)
        if user is None or secret is None or not is_good or user.status is UserStatus.DISABLE:
            delay_ms = self._limit.failed(source, now_ms=now_ms)
            kind, reason = Refused.WRONG_KEY, "another secret key"
            if user is None:
                kind, reason = Refused.UNKNOWN_USER, "no such user"
            elif is_good:
                kind, reason = Refused.DISABLED_USER, "the user is disabled"
            text = "no such user, or another secret key; check the client's access key"
            return _Failure(kind, text, delay_ms, reason)
        wall_ms = self._clock.wall_ms()
        if problem := date_problem(date, now_ms=wall_ms, zones=self._zones.at(wall_ms)):
            return _Failure(Refused.DATE, problem)
        self._limit.succeeded(source, username, now_ms=now_ms)
        if len(self._signed_in) >= _REMEMBERED_MAX:
            self._signed_in.clear()
        self._signed_in[authorization] = _SignedIn(date, username)
        return username

    def secret_of(self, username: str) -> bytes | None:
        """What the user signs in with; None: it cannot sign in."""
        user = self._users.get(username)
        if user is None:
            return None
        known = self._secrets.get(username)
        if known is not None and known[0] == user.sealed_secret:
            return known[1]
        try:
            secret = self._keys.open(username, user.sealed_secret)
        except CannotOpen as error:
            self._audit.not_opened(username, str(error))
            return None
        if len(self._secrets) >= _REMEMBERED_MAX:
            self._secrets.clear()
        self._secrets[username] = user.sealed_secret, secret
        return secret

    def _no_more(self, username: str, source: str, reason: str) -> Outcome:
        # Not counted: it is no failed sign-in, and of a user with many clients it comes all at once.
        self._audit.refused("Telemetry", reason, user=username, source=source)
        return Outcome(Code.UNAUTHORIZED, f"user {username} may not sign in any more, or has another secret key now")

    def _ruling(self, username: str, kind: ResourceKind, name: str, actions: tuple[Action, ...], source: str) -> Ruling:
        user = self._users.get(username)
        if user is not None and user.user_type is UserType.SUPER:
            ruling = Ruling(True, "super user")
        else:
            ruling = decide(self._acls.get(f"User:{username}"), kind, name, actions, parse_address(source))
        if len(name) > RESOURCE_CHARACTERS_MAX:
            return ruling  # No name; nobody has looked at it yet, and it may be megabytes long.
        if len(self._rulings) >= _REMEMBERED_MAX:
            self._rulings.clear()
        self._rulings[username, kind, name, actions, source] = ruling
        return ruling

    def _forbidden(
        self,
        method: str,
        username: str,
        kind: ResourceKind,
        name: str,
        actions: tuple[Action, ...],
        source: str,
        ruling: Ruling,
    ) -> Outcome:
        self.refused[Refused.NOT_ALLOWED] += 1
        wanted = " or ".join(action.value for action in actions)
        resource = f"{kind.value}:{name[:_NAME_CHARACTERS_MAX]}"
        self._audit.refused(method, ruling.reason, user=username, source=source, resource=resource, actions=wanted)
        # RocketMQ's code for both: clients know it.
        return Outcome(
            Code.UNAUTHORIZED,
            f"user {username} has no permission for {wanted} on {resource} from {source}: {ruling.reason}",
        )


class _Guarded:
    """A method of one request behind the guard."""

    def __init__(
        self, access: ClientAccess, method: str, handler: Callable[[Any, Call], None], needs: Needs, refusal: Refusal
    ) -> None:
        self._access = access
        self._method = method
        self._handler = handler
        self._needs = needs
        self._refusal = refusal

    def __call__(self, request: Any, call: Call) -> None:
        refused = self._access.refusal(call, self._method, self._needs(request))
        if refused is None:
            self._handler(request, call)
            return
        outcome, delay_ms = refused
        answer = self._refusal(request, outcome)
        self._access.refuse_later(lambda: _answer(call, answer), delay_ms, kept_bytes=len(answer))


def _answer(call: Call, answer: bytes) -> None:
    call.send_encoded(answer)
    call.finish()


class _GuardedOpening:
    """The opening of Telemetry streams behind the guard."""

    def __init__(self, access: ClientAccess, method: str, handler: OpensTelemetry) -> None:
        self._access = access
        self._method = method
        self._handler = handler

    def __call__(self, call: Call) -> StreamHandler[Any]:
        refused = self._access.refusal(call, self._method, ())
        if refused is None:
            return _GuardedStream(self._access, self._method, call, self._handler(call))
        outcome, delay_ms = refused
        self._access.refuse_later(lambda: _end_stream(call, outcome), delay_ms)
        return _RefusedStream()


class _RefusedStream:
    """A stream that will be ended."""

    def message(self, message: Any, /) -> None:
        """Not read."""

    def half_closed(self) -> None:
        """Its end is on the way."""

    def cancelled(self) -> None: ...


class _GuardedStream:
    """A Telemetry stream of a user that signed in. What it may not do is answered and not taken; what was taken is
    judged anew when policies change."""

    def __init__(self, access: ClientAccess, method: str, call: Call, inner: TelemetryStream) -> None:
        self._access = access
        self._method = method
        self._call = call
        self._inner = inner
        self._username = access.user_of(call)
        # Not as it is sealed: that changes when it is only written with another key.
        self._secret = access.secret_of(self._username)
        self._source = access.sources.source(call)
        self._needs: Sequence[Need] = ()
        if not inner.is_over:
            access._streams.add(self)
            inner.when_over = self._forget

    def message(self, message: Any, /) -> None:
        """Settings are judged; what else clients send are answers."""
        needs = _settings(message)
        if needs is not None:
            if self._refusal(()) is not None:
                self.ask_again()
                return
            if self._refusal(needs) is not None:
                self._inner.answer(message)
                return
            self._needs = needs
        self._inner.message(message)

    def half_closed(self) -> None:
        self._inner.half_closed()

    def cancelled(self) -> None:
        """The connection broke."""
        self._inner.cancelled()

    def ask_again(self) -> None:
        """Policies changed."""
        refused = self._refusal(self._needs)
        if refused is not None:
            self._end(refused)

    def _refusal(self, needs: Sequence[Need]) -> Outcome | None:
        """Why whoever opened the stream may not keep it; None: that user may, with the secret it was signed with."""
        return self._access.may_still(self._username, needs, self._source, secret=self._secret)

    def _forget(self) -> None:
        self._access._streams.discard(self)

    def _end(self, outcome: Outcome) -> None:
        _end_stream(self._call, outcome)
        self._inner.cancelled()


def _end_stream(call: Call, outcome: Outcome) -> None:
    # Node reads no end of a stream, only a command that says what is wrong; others pass over such a one.
    call.send(pb.TelemetryCommand(status=status_of(outcome)))
    call.finish(StatusCode.UNAUTHENTICATED, outcome.text)


class _AuditLines:
    """One line for each kind of refusal, and how many came since the last one: a stranger must not fill the disk.

    Nor may it keep the lines of others out. So what users that signed in are refused has room of its own beside what
    strangers are, and of either each user or address has a share. What there is no room for is counted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of_users = LineRoom()
        self._of_strangers = LineRoom()
        self._of_secrets = LineRoom()

    def refused(
        self,
        method: str,
        reason: str,
        *,
        user: str,
        source: str,
        resource: str = "",
        actions: str = "",
        is_known: bool = True,
    ) -> None:
        """Who wanted what, from where, and why not. `is_known`: the user signed in; else anybody says so."""
        room = self._of_users if is_known else self._of_strangers
        whose = user if is_known else counted_host(source)
        not_told = room.take((user, source, method, resource), whose, self._clock.monotonic_ms())
        if not_told is not None:
            log.warning(
                "access_refused",
                user=user,
                source=source,
                method=method,
                resource=resource,
                actions=actions,
                decision="Deny",
                reason=reason,
                not_told=not_told.of_this_kind,
                **({"others_not_told": not_told.others} if not_told.others else {}),
            )

    def not_opened(self, username: str, reason: str) -> None:
        """The secret of a user is of no use."""
        if self._of_secrets.take((username,), username, self._clock.monotonic_ms()) is not None:
            log.error("secret_not_opened", user=username, reason=reason, remedy="put its key into authKeyPath")


def _claimed(authorization: str) -> str:
    """The name a caller gives itself, which may be anything."""
    credential = parse_authorization(authorization)
    return "" if isinstance(credential, str) else credential.username[:_NAME_CHARACTERS_MAX]


def _marked(head: str, call: Call) -> str:
    return f"{head} {call.header(_AUTHORIZATION)} {call.header(_DATE)}"


def _address_of(peer: str) -> str:
    """`ipv4:10.0.0.7:51234` and `ipv6:[::1]:51234`, as gRPC writes them, without scheme and port."""
    host = peer_host(peer)
    address = parse_address(host)
    return (host or peer.partition(":")[0])[:_NAME_CHARACTERS_MAX] if address is None else str(address)
