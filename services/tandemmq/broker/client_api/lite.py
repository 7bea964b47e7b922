"""Lite topics in the client API: their messages, who subscribes to which, and when they end.

A client of a LITE topic names the lite topics it wants with SyncLiteSubscription and repeats that every 30 s, so nobody
keeps it for them: after a restart or a change of master the set is complete again in half a minute. Where a group goes
on in a lite topic is progress like any other, under the name of its logical queue; it is fixed, and as safe as an
acknowledgement, before a subscription is answered.

A receive gives messages of the client's own lite topics in which there is something new, each in its order: while
something of one is in the hands of the group, that one gives nothing more, and keeps back no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from tandemmq.broker.client_api.sent_message import SentMessage
from tandemmq.broker.client_api.validation import (
    OK,
    Code,
    Outcome,
    admit_group,
    check_client_id,
    check_group,
    check_topic,
    status_of,
)
from tandemmq.core.delivery.lite_topics import LiteView, lite_message, lmq_name, parent_of_lmq, split_lmq_name, waits_on
from tandemmq.core.message.record import OutgoingMessage
from tandemmq.core.metadata.topic_table import lite_topic_problem
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import Call

if TYPE_CHECKING:
    from tandemmq.broker.client_api.services import BrokerServices
    from tandemmq.broker.client_api.telemetry import TelemetryHandler

log = structlog.get_logger(__name__)

SILENCE_MAX_MS: Final = 180_000
"""RocketMQ's: of a client that does not repeat its subscriptions for so long nothing is known any more."""
_NAMED_MAX: Final = 30_000
"""In one request: the loop looks at each of them."""
_EXPIRY_INTERVAL_MS: Final = 120_000
"""RocketMQ's liteTtlCheckInterval."""
_FOLLOWED_AT_ONCE: Final = 4_096


class LiteSubscriber:
    """One client of a group, and the lite topics of one parent that it wants."""

    __slots__ = (
        "client_id",
        "given",
        "given_attempt_id",
        "group",
        "last_sync_ms",
        "lmqs",
        "parent",
        "ready",
        "version",
        "waits_on",
    )

    def __init__(self, client_id: str, group: str, parent: str) -> None:
        self.client_id: Final = client_id
        self.group: Final = group
        self.parent: Final = parent
        # Its name in the poll table.
        self.waits_on: Final = waits_on(client_id, parent)
        # Logical queues.
        self.lmqs: set[str] = set()
        # Those that may have something for it, the one that waits longest first.
        self.ready: dict[str, None] = {}
        self.version = 0
        # Monotonic.
        self.last_sync_ms = 0
        # What the last receive with an attempt id was given, for one that lost its answer.
        self.given_attempt_id = ""
        self.given: list[str] = []


class LiteStanding(NamedTuple):
    """A lite topic, and how far its readers are."""

    view: LiteView
    subscriber_count: int
    # Messages not finished, by group.
    lags: dict[str, int]


class LiteHandler:
    """Serves SyncLiteSubscription, and knows what receives and sends of LITE topics need. Event loop only."""

    def __init__(
        self, services: BrokerServices, telemetry: TelemetryHandler, *, arrived: Callable[[str], object]
    ) -> None:
        """`arrived` is told where receives wait for which there may be something now."""
        self._services = services
        self._telemetry = telemetry
        self._arrived = arrived
        self._lites = services.lite_topics
        # By client, group and parent.
        self._subscribers: dict[tuple[str, str, str], LiteSubscriber] = {}
        self._by_lmq: dict[str, list[LiteSubscriber]] = {}
        # All their lite topics.
        self.subscription_count = 0
        # Groups that ever had progress in lite topics, by parent; None: nobody asked yet.
        self._groups: dict[str, set[str]] | None = None
        self._expiring: Iterator[list[str]] | None = None
        self._next_expiry_ms = 0
        self.expired_count = 0
        # Logical queues that are about to be removed: nothing comes to them.
        self._ending: set[str] = set()
        self._lites.arrived = self._message_arrived

    # Sends

    def refused(self, sent: SentMessage) -> Outcome | None:
        """Why a message of a LITE topic is not taken. Its topic exists."""
        if (problem := lite_topic_problem(sent.lite_topic)) is not None:
            return Outcome(Code.ILLEGAL_LITE_TOPIC, problem)
        if sent.delivery_timestamp is not None or sent.message_group:
            return Outcome(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "a message of a lite topic has neither a delivery time nor a message group",
            )
        if not self._lites.follow(sent.topic):
            return Outcome(
                Code.INTERNAL_SERVER_ERROR,
                f"a queue of topic {sent.topic} has a damaged entry, which is being mended: send again",
                retryable=True,
            )
        if lmq_name(sent.topic, sent.lite_topic) in self._ending:
            return _ENDING
        quota = self._services.options.lite_topics_max
        if self._lites.count >= quota and not self._lites.has(sent.topic, sent.lite_topic):
            return Outcome(
                Code.LITE_TOPIC_QUOTA_EXCEEDED,
                f"this broker has {self._lites.count} lite topics, maxLmqConsumeQueueNum is {quota}: let some expire "
                "(lite.topic.expiration of their topics), or raise it",
            )
        return None

    def outgoing(self, sent: SentMessage, messages: list[OutgoingMessage]) -> list[OutgoingMessage]:
        """The messages of one request as those of their lite topic. To be put at once, then `appended`."""
        config = self._services.topics.get(sent.topic)
        if config is None or config.message_type != "LITE":
            return messages
        first = self._lites.next_offset(sent.topic, sent.lite_topic)
        return [lite_message(message, sent.lite_topic, first + index) for index, message in enumerate(messages)]

    def appended(self, parent: str) -> None:
        """Messages that name a lite topic were put."""
        config = self._services.topics.get(parent)
        if config is not None and config.message_type == "LITE":
            self._lites.follow(parent)

    def _message_arrived(self, parent: str, lite_topic: str) -> None:
        """Called for each message that is found, also at a start."""
        if self._by_lmq:
            self._wake(lmq_name(parent, lite_topic))

    # Receives

    def receive_problem(self, group: str, parent: str) -> Outcome | None:
        """Why a group gets nothing of a LITE topic."""
        if self._services.reads_only:
            return Outcome(
                Code.FORBIDDEN, "a slave gives no lite topics; its group has no master: start it", retryable=True
            )
        config = self._services.groups.get(group)
        if config is not None and config.lite_bind_topic not in ("", parent):
            return Outcome(
                Code.ILLEGAL_CONSUMER_GROUP,
                f"consumer group {group} is bound to topic {config.lite_bind_topic} (lite.bind.topic), not to {parent}",
            )
        return None

    def subscriber(self, client_id: str, group: str, parent: str) -> LiteSubscriber | None:
        """The client's subscriptions; None: it has none."""
        return self._subscribers.get((client_id, group, parent))

    def visible(self, group: str, lmq: str) -> list[str]:
        """Something of a logical queue may be given again to the group: where those wait who may look."""
        found = []
        for subscriber in self._by_lmq.get(lmq, ()):
            if subscriber.group == group:
                subscriber.ready[lmq] = None
                found.append(subscriber.waits_on)
        return found

    def settled(self, group: str, lmq: str) -> None:
        """Something of a logical queue was acknowledged: what waited behind it may be given."""
        if self._services.leases.has_more(group=group, topic=lmq):
            for place in self.visible(group, lmq):
                self._arrived(place)

    def _wake(self, lmq: str) -> None:
        for subscriber in self._by_lmq.get(lmq, ()):
            subscriber.ready[lmq] = None
            self._arrived(subscriber.waits_on)

    # SyncLiteSubscription

    def sync_lite_subscription(self, request: pb.SyncLiteSubscriptionRequest, call: Call) -> None:
        """Adds to, takes from or replaces the client's set. Answered when where its group begins is safe."""
        outcome = self._sync_problem(request, call)
        if outcome is not None:
            _answer(call, outcome)
            return
        group = request.group.name
        if refused := admit_group(self._services, group, call):
            _answer(call, refused)
            return
        self._services.when_group_written(group, partial(self._sync, request, call))

    def _sync_problem(self, request: pb.SyncLiteSubscriptionRequest, call: Call) -> Outcome | None:
        group, parent = request.group.name, request.topic.name
        if refused := check_client_id(call) or check_topic(parent) or check_group(group):
            return refused
        if (reason := self._services.refusal) is not None:
            return Outcome(Code.FORBIDDEN, reason, retryable=True)
        config = self._services.topics.get(parent)
        if config is None:
            return Outcome(Code.TOPIC_NOT_FOUND, f"topic {parent} does not exist in this broker group")
        if config.message_type != "LITE":
            return Outcome(
                Code.ILLEGAL_TOPIC,
                f"topic {parent} takes {config.message_type} messages and has no lite topics; use one of type LITE",
            )
        if (count := len(request.lite_topic_set)) > _NAMED_MAX:
            return Outcome(Code.BAD_REQUEST, f"lite_topic_set: {count} lite topics, the limit is {_NAMED_MAX}")
        for lite_topic in request.lite_topic_set:
            if (problem := lite_topic_problem(lite_topic)) is not None:
                return Outcome(Code.ILLEGAL_LITE_TOPIC, problem)
        return self.receive_problem(group, parent)

    def _sync(self, request: pb.SyncLiteSubscriptionRequest, call: Call) -> None:
        client_id, group, parent = self._services.client_id_of(call), request.group.name, request.topic.name
        now_ms = self._services.clock.monotonic_ms()
        self._services.sessions.seen(client_id, call, now_ms=now_ms)
        key = (client_id, group, parent)
        known = self._subscribers.get(key)
        held = known.lmqs if known is not None else set()
        named = {lmq_name(parent, lite_topic) for lite_topic in request.lite_topic_set}
        action = request.action
        if action == definition.COMPLETE_ADD and known is not None and request.version < known.version:
            # An older set, overtaken on its way. Or the client began anew, and counts from the start: it is heard once
            # what it said before is forgotten.
            _answer(call, OK)
            return
        if action == definition.PARTIAL_ADD:
            wanted = held | named
        elif action == definition.PARTIAL_REMOVE:
            wanted = held - named
        elif action == definition.COMPLETE_ADD:
            wanted = named
        elif action == definition.COMPLETE_REMOVE:
            wanted = set()
        else:
            _answer(call, Outcome(Code.BAD_REQUEST, f"action: {action}; use one of LiteSubscriptionAction"))
            return
        if refused := (_ENDING if wanted & self._ending else self._quota_problem(group, held, wanted)):
            _answer(call, refused)
            return
        subscriber = known
        if subscriber is None:
            subscriber = self._subscribers[key] = LiteSubscriber(client_id, group, parent)
        subscriber.last_sync_ms = now_ms
        subscriber.version = max(subscriber.version, request.version)
        for lmq in held - wanted:
            self._unsubscribe(subscriber, lmq)
        is_reset = False
        option = request.offset_option if request.HasField("offset_option") else None
        for lmq in sorted(wanted - held):
            is_reset = self._subscribe(subscriber, lmq, option) or is_reset
        if not subscriber.lmqs:
            del self._subscribers[key]
        self._services.persist_leases()
        when_safe = self._services.when_resets_spread if is_reset else self._services.when_progress_held
        when_safe(partial(_answer_held, call))

    def _quota_problem(self, group: str, held: set[str], wanted: set[str]) -> Outcome | None:
        added = len(wanted) - len(held)
        if added <= 0:
            return None
        config = self._services.groups.get(group)
        quota = config.lite_client_quota if config is not None else 0
        if config is not None and len(wanted) > quota:
            return Outcome(
                Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"lite_topic_set: the client would have {len(wanted)} lite topics; {quota} are allowed in consumer "
                f"group {group} (lite.sub.client.quota)",
            )
        most = self._services.options.lite_subscriptions_max
        if self.subscription_count + added > most:
            return Outcome(
                Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"this broker has {self.subscription_count} subscriptions to lite topics, maxLiteSubscriptionCount is "
                f"{most}",
            )
        return None

    def _subscribe(self, subscriber: LiteSubscriber, lmq: str, option: definition.OffsetOption | None) -> bool:
        """Adds one; True: the group's progress was set by `option`."""
        group = subscriber.group
        config = self._services.groups.get(group)
        if config is not None and config.lite_exclusive:
            for other in [one for one in self._by_lmq.get(lmq, ()) if one.group == group]:
                self._evict(other, lmq)
        subscriber.lmqs.add(lmq)
        self._by_lmq.setdefault(lmq, []).append(subscriber)
        self.subscription_count += 1
        self._groups_of(subscriber.parent).add(group)
        is_reset = self._begin(group, lmq, option)
        if self._services.leases.has_more(group=group, topic=lmq):
            subscriber.ready[lmq] = None
            self._arrived(subscriber.waits_on)
        return is_reset

    def _begin(self, group: str, lmq: str, option: definition.OffsetOption | None) -> bool:
        """Fixes where the group goes on. Without an option, and with LAST, where it was; a new one at the end."""
        services, leases = self._services, self._services.leases
        kind = None if option is None else option.WhichOneof("offset_type")
        if option is None or kind is None or (kind == "policy" and option.policy == definition.OffsetOption.LAST):
            leases.open(group, lmq, (0,))
            return False
        begin, end = services.queues.min_offset(lmq, 0), services.queues.max_offset(lmq, 0)
        if kind == "offset":
            offset = option.offset
        elif kind == "tail_n":
            known = leases.progress_offset(group, lmq, 0)
            offset = (end if known is None else known) - option.tail_n
        elif kind == "timestamp":
            offset = leases.offset_at(lmq, 0, option.timestamp)
        else:
            offset = begin if option.policy == definition.OffsetOption.MIN else end
        leases.reset(group=group, topic=lmq, queue_id=0, offset=min(max(offset, begin), end))
        return True

    def _unsubscribe(self, subscriber: LiteSubscriber, lmq: str) -> None:
        subscriber.lmqs.discard(lmq)
        subscriber.ready.pop(lmq, None)
        self.subscription_count -= 1
        others = self._by_lmq[lmq]
        others.remove(subscriber)
        if not others:
            del self._by_lmq[lmq]

    def _evict(self, subscriber: LiteSubscriber, lmq: str) -> None:
        """Takes a lite topic from a client, and tells it."""
        self._unsubscribe(subscriber, lmq)
        _, lite_topic = split_lmq_name(lmq)
        command = pb.TelemetryCommand(
            notify_unsubscribe_lite_command=pb.NotifyUnsubscribeLiteCommand(lite_topic=lite_topic)
        )
        for stream in self._telemetry.streams_of(subscriber.client_id):
            stream.command(command)

    def client_gone(self, client_id: str) -> None:
        """It left, or fell silent."""
        for key in [key for key in self._subscribers if key[0] == client_id]:
            self._drop(key)

    def _drop(self, key: tuple[str, str, str]) -> None:
        subscriber = self._subscribers.pop(key)
        for lmq in list(subscriber.lmqs):
            self._unsubscribe(subscriber, lmq)

    # Time

    def housekeep(self) -> None:
        """Once a second: forgets silent clients, ends lite topics that nobody used for as long as their topic says."""
        now_ms = self._services.clock.monotonic_ms()
        for key, subscriber in list(self._subscribers.items()):
            if now_ms - subscriber.last_sync_ms >= SILENCE_MAX_MS:
                self._drop(key)
        if self._services.refusal is not None:
            return
        for parent in self._lites.parents():
            # What operators put again, for instance from dead letters.
            self._lites.follow(parent, _FOLLOWED_AT_ONCE)
        if self._expiring is None and now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + _EXPIRY_INTERVAL_MS
            self._expiring = self._lites.expired(self._services.clock.wall_ms())
        if self._expiring is not None:
            names = next(self._expiring, None)
            if names is None:
                self._expiring = None
            elif names:
                self._end(names)

    def _end(self, lmqs: Sequence[str]) -> None:
        """Removes logical queues, apart from those in which a group has something to do."""
        leases = self._services.leases
        ended: list[str] = []
        progress: list[tuple[str, str]] = []
        for lmq in lmqs:
            parent, _ = split_lmq_name(lmq)
            end = self._services.queues.max_offset(lmq, 0)
            offsets = [(group, leases.progress_offset(group, lmq, 0)) for group in self._groups_of(parent)]
            if any(offset is not None and offset < end for _, offset in offsets):
                continue
            ended.append(lmq)
            progress += [(group, lmq) for group, offset in offsets if offset is not None]
            for subscriber in list(self._by_lmq.get(lmq, ())):
                self._evict(subscriber, lmq)
        if ended:
            # First: a later lite topic of the name begins at 0, where groups that remember more would miss something.
            self._ending.update(ended)
            self._services.forget_progress(progress, partial(self._ended, ended))

    def _ended(self, lmqs: list[str], is_forgotten: bool) -> None:
        self._ending.difference_update(lmqs)
        if not is_forgotten:
            return  # They are looked at again.
        for lmq in lmqs:
            self._lites.remove(lmq)
        self.expired_count += len(lmqs)
        log.info("lite_topics_expired", count=len(lmqs), first=lmqs[0])

    def _groups_of(self, parent: str) -> set[str]:
        if self._groups is None:
            self._groups = {}
            for group, topic in self._services.progress_pairs():
                if (of := parent_of_lmq(topic)) is not None:
                    self._groups.setdefault(of, set()).add(group)
        return self._groups.setdefault(parent, set())

    def role_changed(self) -> None:
        """Another master's progress is read: who has some is asked anew. Clients told that master of their lite topics,
        and it knows what they got: they tell this one as well."""
        self._groups = None
        for key in list(self._subscribers):
            self._drop(key)

    # For operators

    def names(self, parent: str, search: str) -> list[str] | None:
        """Lite topics with a text in their names; None: it is no topic of the type LITE."""
        config = self._services.topics.get(parent)
        if config is None or config.message_type != "LITE":
            return None
        return [name for name in self._lites.names(parent) if search in name]

    def standing(self, parent: str, lite_topic: str) -> LiteStanding | None:
        """What is told of one; None: there is none."""
        view = self._lites.view(parent, lite_topic)
        if view is None:
            return None
        lmq = lmq_name(parent, lite_topic)
        lags: dict[str, int] = {}
        for group in sorted(self._groups_of(parent)):
            offset = self._services.leases.progress_offset(group, lmq, 0)
            if offset is not None:
                lags[group] = max(0, view.max_offset - max(offset, view.min_offset))
        return LiteStanding(view, len(self._by_lmq.get(lmq, ())), lags)


_ENDING: Final = Outcome(Code.TOO_MANY_REQUESTS, "the lite topic expires at this moment; call again", retryable=True)


def _answer(call: Call, outcome: Outcome) -> None:
    call.send(pb.SyncLiteSubscriptionResponse(status=status_of(outcome)))
    call.finish()


def _answer_held(call: Call, is_held: bool) -> None:
    if is_held:
        _answer(call, OK)
        return
    text = "subscribed here, but not known in time to outlive a change of master; repeat the call"
    _answer(call, Outcome(Code.INTERNAL_SERVER_ERROR, text, retryable=True))
