"""Which clients are connected: what each said of itself, and when it was last heard.

A session is a memory, not a right: after a restart clients go on heartbeating and receiving for minutes before they
send their settings again, so nothing is refused for want of one. It is kept for leases the broker renews for a client
(they end with it) and for whoever asks who is connected.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupTable
from tandemmq.core.metadata.topic_table import LITE_TOPIC_CHARACTERS_MAX
from tandemmq.core.quotas import address_of_peer
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.service.rpc import CLIENT_ID_HEADER, Call

# Rust clients beat every 30 s: four beats may be lost.
SESSION_EXPIRY_MS: Final = 120_000
# Client ids are whatever callers say: about 500 bytes each.
_SESSIONS_MAX: Final = 100_000
_HOLDERS_MAX: Final = 4_096
"""Among so many users or addresses it is found who has most; a share of more is some clients."""
# For people, and of each client what it says: so much of one, and of all.
_SHOWN_BYTES_OF_ONE: Final = 1 << 20
_SHOWN_BYTES_MAX: Final = 64 << 20
_SHOWN_ENTRY_BYTES: Final = 150


def client_id_of(call: Call) -> str:
    """The id that a client gives itself: it may be anything, and that of another client."""
    return call.header(CLIENT_ID_HEADER)


def by_address(call: Call) -> str:
    """Whose share a call takes where nobody signs in."""
    return address_of_peer(call.peer)


def client_of_user(client_id: str, username: str) -> str:
    """A client where callers sign in: two users may give theirs the same id, and have two clients."""
    return f"{client_id} ({username})"


def user_of_client(client: str) -> str:
    """No user's name has a bracket. Where nobody signs in it is a part of the id, or nobody."""
    _, bracket, user = client.rpartition(" (")
    return user.removesuffix(")") if bracket else ""


@dataclass(slots=True)
class ClientSession:
    """One client as it described itself. Times are monotonic."""

    client_id: str
    last_seen_ms: int
    # User, or address where nobody signs in, of whose share it is.
    whose: str = ""
    # Name of the ClientType; "" until the client said it.
    client_type: str = ""
    # Consumer group; "" for producers.
    group: str = ""
    language: str = ""
    version: str = ""
    # Address it connected from.
    peer: str = ""
    # Topics it sends to, or its filter expression by topic: as many as there is room for.
    subscriptions: dict[str, str] = field(default_factory=dict)
    shown_bytes: int = 0


class ClientSessions:
    """The table of sessions. Event loop only. `gone` is told the id of each client that left or fell silent."""

    def __init__(
        self,
        gone: Callable[[str], None],
        *,
        whose: Callable[[Call], str] = by_address,
        max_sessions: int = _SESSIONS_MAX,
    ) -> None:
        """Beyond `max_sessions` one is forgotten: of whoever has more than an equal share, the one heard of longest ago
        if it is theirs, else the first one of whoever has most."""
        self._gone = gone
        self._whose = whose
        self._max_sessions = max_sessions
        # A broker forgets clients beyond a number: who invents many must not have it forget those of others.
        self._max_of_one = max_sessions - max_sessions // 4
        # Ids by whose share they are of, in the order in which they came to be known.
        self._ids_of: dict[str, dict[str, None]] = {}
        self._shown_bytes = 0
        # The one heard of longest ago first, so that `expire` looks at no more than the silent ones.
        self._sessions: OrderedDict[str, ClientSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[ClientSession]:
        """Every session, the one heard of longest ago first."""
        return list(self._sessions.values())

    def get(self, client_id: str) -> ClientSession | None:
        """The client's session, None when it is not known."""
        return self._sessions.get(client_id)

    def has_room(self, client_id: str) -> bool:
        """Whether its user may have that client, too: three quarters of all that a broker remembers, at a time."""
        return len(self._ids_of.get(user_of_client(client_id), ())) < self._max_of_one or client_id in self._sessions

    def seen(self, client_id: str, call: Call, *, now_ms: int) -> ClientSession:
        """Notes a sign of life; the session is made if there was none."""
        session = self._sessions.get(client_id)
        if session is None:
            session = ClientSession(client_id=client_id, last_seen_ms=now_ms, whose=self._whose(call))
            self._sessions[client_id] = session
            self._ids_of.setdefault(session.whose, {})[client_id] = None
            if len(self._sessions) > self._max_sessions:
                self._forget_one()
        else:
            self._sessions.move_to_end(client_id)
        session.last_seen_ms = now_ms
        return session

    def describe(self, session: ClientSession, subscriptions: Iterable[tuple[str, str]]) -> None:
        """Notes what a client says that it sends to, or wants, for people."""
        self._shown_bytes -= session.shown_bytes
        room = min(_SHOWN_BYTES_OF_ONE, _SHOWN_BYTES_MAX - self._shown_bytes)
        session.subscriptions, session.shown_bytes = {}, 0
        for topic, expression in subscriptions:
            taken = session.shown_bytes + len(topic) + len(expression) + _SHOWN_ENTRY_BYTES
            if taken > room:
                break
            session.subscriptions[topic] = expression
            session.shown_bytes = taken
        self._shown_bytes += session.shown_bytes

    def terminate(self, client_id: str) -> None:
        """The client said goodbye. Unknown ids are fine: a goodbye may come twice."""
        session = self._sessions.pop(client_id, None)
        if session is not None:
            ids = self._ids_of[session.whose]
            del ids[client_id]
            if not ids:
                del self._ids_of[session.whose]
            self._shown_bytes -= session.shown_bytes
            self._gone(client_id)

    def clear(self) -> None:
        """Another broker has heard of them since: nobody is known, and nobody is gone."""
        self._sessions.clear()
        self._ids_of.clear()
        self._shown_bytes = 0

    def expire(self, *, now_ms: int) -> None:
        """Forgets those silent for 120 s."""
        while self._sessions:
            session = next(iter(self._sessions.values()))
            if now_ms - session.last_seen_ms < SESSION_EXPIRY_MS:
                return
            self.terminate(session.client_id)

    def _forget_one(self) -> None:
        oldest = next(iter(self._sessions.values()))
        share = self._max_sessions // len(self._ids_of)
        if len(self._ids_of) > _HOLDERS_MAX or len(self._ids_of[oldest.whose]) > share:
            self.terminate(oldest.client_id)
        else:
            most = max(self._ids_of.values(), key=len)
            self.terminate(next(iter(most)))


# The server's half of a client's Settings, laid over what the client sent.
#
# The reply starts as a copy: C++ clients adopt the resource namespace of the echoed topics. What is laid over it
# follows RocketMQ's GrpcClientSettingsManager; several clients refuse to start, or busy-loop, when such a field is
# missing.

RECEIVE_BATCH_MAX: Final = 32

_LITE_CONSUMERS: Final = (definition.LITE_PUSH_CONSUMER, definition.LITE_SIMPLE_CONSUMER)
_PUSH_POLLING_MS: Final = 20_000
_PRODUCER_ATTEMPTS: Final = 3
_PRODUCER_BACKOFF_INITIAL_MS: Final = 10
_PRODUCER_BACKOFF_MAX_MS: Final = 1_000
_BACKOFF_MULTIPLIER: Final = 2.0

# RocketMQ's delay levels; whole seconds, because Python and Node clients read nothing finer.
_CONSUMER_BACKOFF_S: Final = (
    *(1, 5, 10, 30),
    *(minutes * 60 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(3_600, 7_200),
)


class GroupPolicy(NamedTuple):
    """What the broker's configuration says of a consumer group."""

    # Ordered delivery.
    fifo: bool
    # Deliveries of one message, the first included.
    max_attempts: int
    # Waits before the second, the third; the last one stays. Empty: RocketMQ's.
    retry_delays_seconds: tuple[int, ...] = ()
    # The slave that reads what lies far behind the log's end; 0: the master itself.
    slow_broker_id: int = 1
    # Lite topics of one client.
    lite_client_quota: int = 2_000


# RocketMQ's default of 16 retries (`retryMaxTimes`) after the first delivery.
_DEFAULT_POLICY: Final = GroupPolicy(fifo=False, max_attempts=17)


def group_policy(groups: SubscriptionGroupTable, group: str) -> GroupPolicy:
    """The group's configuration, or the one it will be created with."""
    config = groups.get(group)
    if config is None:
        return _DEFAULT_POLICY
    return GroupPolicy(
        fifo=config.consume_message_orderly,
        max_attempts=config.max_attempts,
        retry_delays_seconds=config.retry_delays_seconds,
        slow_broker_id=config.which_broker_when_consume_slowly,
        lite_client_quota=config.lite_client_quota,
    )


def merged_settings(
    settings: definition.Settings, *, max_body_bytes: int, group_policy: GroupPolicy | None
) -> definition.Settings:
    """The reply to `settings`. `group_policy` is that of the subscription's group; None for a producer."""
    merged = definition.Settings()
    merged.CopyFrom(settings)
    merged.metric.on = False
    if settings.WhichOneof("pub_sub") == "publishing":
        merged.publishing.max_body_size = max_body_bytes
        merged.publishing.validate_message_type = True
        _exponential_backoff(merged.backoff_policy, _PRODUCER_ATTEMPTS)
        return merged
    assert group_policy is not None, "a subscription belongs to a group"
    is_lite = settings.client_type in _LITE_CONSUMERS
    # Each lite topic is given in its order, whatever the group.
    merged.subscription.fifo = group_policy.fifo or is_lite
    if is_lite:
        merged.subscription.lite_subscription_quota = group_policy.lite_client_quota
        merged.subscription.max_lite_topic_size = LITE_TOPIC_CHARACTERS_MAX
    if settings.client_type in (definition.PUSH_CONSUMER, definition.LITE_PUSH_CONSUMER):
        merged.subscription.receive_batch_size = RECEIVE_BATCH_MAX
        merged.subscription.long_polling_timeout.FromMilliseconds(_PUSH_POLLING_MS)
    if settings.user_agent.language == definition.NODE_JS:
        # Node implements no customized policy for push consumers.
        _exponential_backoff(merged.backoff_policy, group_policy.max_attempts)
    else:
        _customized_backoff(merged.backoff_policy, group_policy)
    return merged


def _exponential_backoff(policy: definition.RetryPolicy, max_attempts: int) -> None:
    policy.max_attempts = max_attempts
    policy.exponential_backoff.initial.FromMilliseconds(_PRODUCER_BACKOFF_INITIAL_MS)
    policy.exponential_backoff.max.FromMilliseconds(_PRODUCER_BACKOFF_MAX_MS)
    policy.exponential_backoff.multiplier = _BACKOFF_MULTIPLIER


def _customized_backoff(policy: definition.RetryPolicy, group_policy: GroupPolicy) -> None:
    policy.max_attempts = group_policy.max_attempts
    # Cleared first: the list must be identical in every reply, since C++ clients append what they read.
    del policy.customized_backoff.next[:]
    for seconds in group_policy.retry_delays_seconds or _CONSUMER_BACKOFF_S:
        policy.customized_backoff.next.add().seconds = seconds
