"""ReceiveMessage: lease what is there, or wait for it.

A receive either answers in place or is put into the poll table in the same turn, so no arrival falls between looking
and waiting. Arrivals of one turn of the event loop are folded: waiting receives look once at its end and get whole
batches.

Leases are given at the moment the answer is queued and never before, so a receive that is cancelled while it waits
holds nothing. One whose answer could not be written gives its messages back at once. If it was written and its caller
may not have read it, what would be renewed for a push consumer, as long as that lives, runs out.

Whatever makes messages deliverable again (a lease that ended or was given up, room in a queue that was held back) is
noted by the lease table and looked up with `wake_visible`: after each call that may have done it, and by a timer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from mypy_extensions import mypyc_attr

from tandemmq.broker.client_api.delivery_encoding import DeliveryEncoder, encoded_end
from tandemmq.broker.client_api.sessions import RECEIVE_BATCH_MAX, group_policy
from tandemmq.broker.client_api.validation import (
    OK,
    Code,
    Outcome,
    admit_group,
    admitted_still,
    check_client_id,
    check_group,
    check_lease,
    check_namespace,
    check_topic,
    ok_status,
    parsed_filter,
    status_of,
)
from tandemmq.broker.put import DeliveryMeter
from tandemmq.broker.tracing.receive_tracer import Failure, ReceiveTrace, ReceiveTracer
from tandemmq.core.delivery.lite_topics import LMQ_PREFIX, waits_on
from tandemmq.core.delivery.poll_table import PollTable
from tandemmq.core.delivery.queue_progress import Lease, LeasedRecord, Received
from tandemmq.core.delivery.subscription import NO_PRIORITIES, MessageFilter
from tandemmq.core.metadata.topic_table import TopicConfig
from tandemmq.core.quotas import Share, address_of_peer
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.logging import traced_lines
from tandemmq.service.rpc import FORWARDED_HEADER, RECEIVE_HEADER, UNREAD, Call, passed_on_nonce

if TYPE_CHECKING:
    from tandemmq.broker.client_api.lite import LiteHandler
    from tandemmq.broker.client_api.quotas import ClientQuotas
    from tandemmq.broker.client_api.services import BrokerServices, Timer
    from tandemmq.broker.dead_letters import DeadLetterQueues


# How long a receive may wait for messages.

# Limits of a long poll (RocketMQ's grpcClientConsumerMinLongPollingTimeoutMillis and its maximum). A consumer that says
# how long it waits may say less than RocketMQ's 5 s: it polls one broker group after the other, and until this one
# answers it gets nothing of the others. A second keeps one that does not want to wait at all from asking in a loop.
_POLL_MIN_MS: Final = 5_000
_SAID_MIN_MS: Final = 1_000
_POLL_MAX_MS: Final = 20_000
# What a deadline loses on its way here: a call that was given 5 s arrives with a little less.
_TRANSIT_MS: Final = 500
# The empty answer must reach the client before its deadline does.
_ANSWER_MARGIN_MS: Final = 100
# Java's simple consumer: half of its request timeout of 3 s, when it does not say how long to wait.
_UNSAID_MARGIN_MS: Final = 1_500


def poll_end_ms(request: pb.ReceiveMessageRequest | pb.PullMessageRequest, call: Call, now_ms: int) -> int | Outcome:
    """When an empty receive is answered, monotonic (RocketMQ's ReceiveMessageActivity).

    The wait asked for is brought within its limits; a call that ends sooner waits shorter, but not below the least,
    unless it was on its way for long: another broker passed it on, perhaps after it had waited for a master there.
    """
    deadline_ms = call.deadline_ms
    remaining_ms = _POLL_MAX_MS + _UNSAID_MARGIN_MS if deadline_ms is None else deadline_ms - now_ms
    if request.HasField("long_polling_timeout"):
        wanted_ms, least_ms = request.long_polling_timeout.ToMilliseconds(), _SAID_MIN_MS
    else:
        wanted_ms, least_ms = remaining_ms - _UNSAID_MARGIN_MS, _POLL_MIN_MS
    poll_ms = min(max(wanted_ms, least_ms), _POLL_MAX_MS)
    if poll_ms > remaining_ms:
        if remaining_ms < _POLL_MIN_MS - _TRANSIT_MS and not call.header(FORWARDED_HEADER):
            return Outcome(
                Code.ILLEGAL_POLLING_TIME,
                f"the call ends in {remaining_ms} ms, a receive may wait {_POLL_MIN_MS} ms: give it a later deadline",
            )
        poll_ms = remaining_ms
    return now_ms + min(poll_ms, remaining_ms - _ANSWER_MARGIN_MS)


# Length of a lease that the broker renews; the lease table knows it too, here it is only told to the client.
_AUTO_RENEWED_MS: Final = 60_000
_POLLS_MAX: Final = 20_000
_POLL_SHARES_FOR_MS: Final = 1_000
"""For so long shares of places are not counted anew: it takes some milliseconds."""
# What looks with filters may cost in one turn of the event loop, in the unit of `max_scanned_per_receive`: two to four
# milliseconds. Those that come later look in the next turn, and first; receives without a filter never wait for them.
_SCANNED_PER_TURN: Final = 4_096
_UNLIMITED: Final = 1 << 31
_ATTEMPT_ID_CHARACTERS_MAX: Final = 256
"""Kept with what was given; clients send 36."""
_CROWDED_OUT_MS: Final = 1_000
"""After which a message for which there was no room is given again."""

_OK_ELEMENT: Final = pb.ReceiveMessageResponse(status=ok_status()).SerializeToString()
_NOT_FOUND: Final = Outcome(Code.MESSAGE_NOT_FOUND, "no new message")
_NOT_GIVEN_HERE: Final = Outcome(
    Code.FORBIDDEN, "this broker keeps no leases now; tell the group's master", retryable=True
)
_TOO_MANY: Final = Outcome(
    Code.TOO_MANY_REQUESTS, "too many receives wait already", retryable=True, pause_ms=_POLL_SHARES_FOR_MS
)


@dataclass(slots=True, eq=False)
class _Receive:
    """One accepted request. Compared by identity: it is its own token in the poll table."""

    call: Call
    client_id: str
    group: str
    topic: str
    # As the client wrote it; echoed in each message.
    topic_resource: definition.Resource
    tag_filter: MessageFilter
    batch_size: int
    invisible_ms: int
    auto_renew: bool
    attempt_id: str
    # Monotonic.
    poll_until_ms: int
    fifo: bool
    max_attempts: int
    # Who is to read what lies far behind; see `read_far_from`.
    slow_broker_id: int
    # Where it waits: its topic; of a LITE topic each client waits by itself.
    waits_on: str
    is_lite: bool = False
    # What it was given, by the names under which it is leased; of any other topic one.
    given: list[tuple[str, list[str]]] = field(default_factory=list)
    cancelled: bool = False
    # Grows with time; since when it waits for its turn behind filters that let few pass. 0: it does not.
    put_off_at: int = 0
    # None while tracing is off.
    trace: ReceiveTrace | None = None
    # Whose quotas it is charged to; None: nobody has one.
    share: Share | None = None
    # It is counted among the polls of its share.
    is_counted: bool = False


@mypyc_attr(allow_interpreted_subclasses=True)  # `offsets` is not compiled
class WaitingPull:
    """A pull that waits among the receives; see `offsets`. It takes nothing from others, so each arrival wakes it."""

    def __init__(self, call: Call, *, topic: str, name: str, until_ms: int) -> None:
        self.call = call
        self.topic = topic
        # In the place of a group's; no two pulls have the same.
        self.name = name
        # Monotonic.
        self.until_ms = until_ms

    def look(self) -> None:
        """Answers with what is there, or waits on."""
        raise NotImplementedError

    def end(self, outcome: Outcome) -> None:
        """Answers that there is nothing."""
        raise NotImplementedError


_Waiting: TypeAlias = _Receive | WaitingPull


def _turn(receive: _Waiting) -> int:
    """Who was put off longest looks first."""
    return (0 if isinstance(receive, WaitingPull) else receive.put_off_at) or _UNLIMITED


class ReceiveHandler:
    """Serves ReceiveMessage and wakes waiting receives."""

    def __init__(
        self,
        services: BrokerServices,
        dead_letters: DeadLetterQueues,
        meter: DeliveryMeter,
        tracer: ReceiveTracer | None,
        quotas: ClientQuotas,
    ) -> None:
        """`lite` is given before the first call."""
        self._services = services
        self.quotas: Final = quotas
        self.is_limited: bool = False
        """Somebody has a quota of what is received."""
        self.lite: LiteHandler
        self._dead_letters = dead_letters
        self._meter = meter
        self._tracer = tracer
        self._polls: PollTable[_Waiting] = PollTable(max_waiting=_POLLS_MAX)
        # When all places were taken, until when that counts: how many each address had of them, what an equal share is,
        # and those beyond the shares of theirs.
        self._shares_until_ms = 0
        self._waiting_of: Counter[str] = Counter()
        self._poll_share = 0
        self._beyond_shares: list[_Waiting] = []
        self._arrived: set[str] = set()
        # Topics with messages that somebody may wait for, and that no slave has confirmed yet.
        self._held_back: set[str] = set()
        # What looks with filters cost in this turn.
        self._scanned = 0
        self._is_burying = False
        self._put_offs = 0
        self._timer: Timer | None = None
        # Monotonic; when `_timer` fires.
        self._timer_at_ms = 0

    @property
    def waiting_count(self) -> int:
        return len(self._polls)

    def receive_message(self, request: pb.ReceiveMessageRequest, call: Call) -> None:
        """Leases messages to the caller, now or when they come."""
        trace = self._tracer.receive_began(call) if self._tracer is not None else None
        refuse = partial(self._refuse, call, request.group.name, request.message_queue.topic.name, trace=trace)
        if (name := call.header(RECEIVE_HEADER)).startswith(UNREAD):
            is_told = self.passed_on_unread(call, name.removeprefix(UNREAD))
            self._end(call, _NOT_FOUND if is_told else _NOT_GIVEN_HERE)
            return
        receive = self._accepted(request, call)
        if isinstance(receive, Outcome):
            refuse(receive)
            return
        if isinstance(receive, str):
            self._services.group_calls.pass_on("ReceiveMessage", call, broker_name=receive, refused=refuse)
            return
        receive.trace = trace
        call.on_cancel(partial(self._cancelled, receive))
        self._services.when_group_written(receive.group, partial(self._begin, receive))

    def _begin(self, receive: _Receive) -> None:
        """Its group is durable."""
        if receive.cancelled:
            return
        if (reason := self._services.read_refusal) is not None:
            self._end_each([receive], Outcome(Code.FORBIDDEN, reason, retryable=True))
            return
        if receive.is_lite:
            # Leases that ended since the last look: it is looked for in lite topics that have something.
            self._services.leases.expire(self._services.clock.monotonic_ms())
            self.wake_visible()
        self._serve([receive])
        self.wake_visible()

    def message_arrived(self, topic: str) -> None:
        """Something was put into a queue of the topic and may be delivered. Cheap: called for every put."""
        if topic not in self._arrived and len(self._polls):
            if not self._arrived:
                self._services.timers.call_soon(self._look_at_arrived)
            self._arrived.add(topic)

    def message_held_back(self, topic: str) -> None:
        """Something was put that may be delivered once the in-sync set holds it: `confirmed` tells. As cheap."""
        if len(self._polls):
            self._held_back.add(topic)

    def confirmed(self) -> None:
        """The in-sync set holds more, or is another: who waits for a message that was held back looks again."""
        if self._held_back:
            topics, self._held_back = self._held_back, set()
            for topic in topics:
                self.message_arrived(topic)

    def wake_visible(self) -> None:
        """Lets waiting receives look where messages became deliverable again."""
        for group, topic in self._services.leases.take_visible():
            if topic.startswith(LMQ_PREFIX):
                for place in self.lite.visible(group, topic):
                    self._serve(self._polls.message_visible(place, group))
            else:
                self._serve(self._polls.message_visible(topic, group))
        self._arm()
        if self._services.leases.has_used_up and not self._is_burying:
            self._bury_used_up()

    def wait_for(self, pull: WaitingPull, *, look_again: bool) -> None:
        """Lets a pull wait for messages of its topic; `look_again`: until the next turn."""
        if not self._polls.add(pull.topic, pull.name, pull.until_ms, pull) and not self._takes_place(
            pull, pull.topic, pull.name, pull.until_ms
        ):
            self.quotas.hold(pull.call, _TOO_MANY, partial(pull.end, _TOO_MANY))
            return
        if look_again:
            self.message_arrived(pull.topic)
        # What lies there and is not confirmed is told when it is.
        self.message_held_back(pull.topic)
        self._arm()

    def wait_no_longer(self, pull: WaitingPull) -> None:
        self._polls.cancel(pull)

    def refused_topic(self, topic: str) -> Outcome | None:
        """Why nothing is read of it here."""
        if (reason := self._services.read_refusal) is not None:
            return Outcome(Code.FORBIDDEN, reason, retryable=True)
        return self._check_topic_readable(topic)

    def other_owner(self, name: str, topic: str) -> str | None:
        """The broker group whose messages are asked for, if that is another one. Only its name selects; an unknown one
        means whoever is asked. The queue id is ignored."""
        services = self._services
        if not name or name == services.identity.broker_name:
            return None
        route = services.route(topic)
        return name if route is not None and any(group.broker_name == name for group in route.brokers) else None

    def passed_on_unread(self, call: Call, name: str) -> bool:
        """The client of `call` may not have read the answer to a receive that another broker passed on under that name,
        whoever was the master then. False: this broker keeps no leases now."""
        if self._services.read_refusal is not None:
            return False
        if (nonce := passed_on_nonce(name)) is not None:
            self._services.leases.doubt_receive(self._services.client_id_of(call), nonce)
            self._services.persist_leases()
        return True

    def end_polls(self, outcome: Outcome) -> None:
        """Answers everyone who waits."""
        while (deadline_ms := self._polls.next_deadline_ms()) is not None:
            self._end_each(self._polls.expire(deadline_ms), outcome)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # One request

    def _accepted(self, request: pb.ReceiveMessageRequest, call: Call) -> _Receive | str | Outcome:
        """The request as it will be served, or the broker group that it is for, or why not."""
        services = self._services
        group, topic = request.group.name, request.message_queue.topic.name
        if refused := check_client_id(call) or check_topic(topic) or check_group(group):
            return refused
        if (reason := services.read_refusal) is not None:
            return Outcome(Code.FORBIDDEN, reason, retryable=True)
        if owner := self.other_owner(request.message_queue.broker.name, topic):
            return owner
        if len(request.attempt_id) > _ATTEMPT_ID_CHARACTERS_MAX:
            return Outcome(
                Code.BAD_REQUEST,
                f"attempt_id: {len(request.attempt_id)} characters; use {_ATTEMPT_ID_CHARACTERS_MAX} at most",
            )
        tag_filter = parsed_filter(services, request.filter_expression, call)
        if isinstance(tag_filter, Outcome):
            return tag_filter
        invisible_ms = _AUTO_RENEWED_MS if request.auto_renew else request.invisible_duration.ToMilliseconds()
        if refused := check_lease(invisible_ms):
            return refused
        now_ms = services.clock.monotonic_ms()
        poll_until_ms = poll_end_ms(request, call, now_ms)
        if isinstance(poll_until_ms, Outcome):
            return poll_until_ms
        client_id = services.client_id_of(call)
        config = services.topics.get(topic)
        is_lite = config is not None and config.message_type == "LITE"
        problem = self.lite.receive_problem(group, topic) if is_lite else self._check_known(group, topic)
        if refused := self._check_topic_readable(topic) or problem:
            return refused
        share = self.quotas.share_of(call, topic) if self.is_limited else None
        if share is not None and (refused := self.quotas.refused_receive(share)):
            return refused
        if refused := admit_group(services, group, call):
            return refused
        session = services.sessions.seen(client_id, call, now_ms=now_ms)
        if not session.group:
            # After a restart of the broker clients go on for minutes before they introduce themselves again.
            session.group, session.peer = group, call.peer
        policy = group_policy(services.groups, group)
        return _Receive(
            call=call,
            client_id=client_id,
            group=group,
            topic=topic,
            topic_resource=request.message_queue.topic,
            tag_filter=tag_filter,
            batch_size=request.batch_size if 0 < request.batch_size < RECEIVE_BATCH_MAX else RECEIVE_BATCH_MAX,
            invisible_ms=invisible_ms,
            auto_renew=request.auto_renew,
            attempt_id=request.attempt_id,
            poll_until_ms=poll_until_ms,
            fifo=policy.fifo,
            waits_on=waits_on(client_id, topic) if is_lite else topic,
            is_lite=is_lite,
            # A dead letter cannot be written: the message comes again until there is a master.
            max_attempts=policy.max_attempts if not services.reads_only else _UNLIMITED,
            slow_broker_id=policy.slow_broker_id,
            share=share,
        )

    def _check_known(self, group: str, topic: str) -> Outcome | None:
        """On a slave: where a group begins of which it knows nothing only a master can say. Begun here at the newest
        message, it would never get what its master knows it to lack."""
        services = self._services
        config = services.topics.get(topic)
        if not services.reads_only or config is None:
            return None
        if services.groups.get(group) and services.leases.knows(group, topic, range(config.read_queue_count)):
            return None
        return Outcome(
            Code.FORBIDDEN,
            f"this slave does not know how far consumer group {group} is in topic {topic}, and its group has no master "
            "to ask; start the master",
            retryable=True,
        )

    def _check_topic_readable(self, topic: str) -> Outcome | None:
        config = self._services.topics.get(topic)
        if config is None:
            return Outcome(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist in this broker group")
        if not config.readable:
            return Outcome(Code.FORBIDDEN, f"topic {topic} has no readable queue in this broker group")
        return None

    def _refused_meanwhile(self, receive: _Receive) -> Outcome | None:
        """While it waited, an operator may have deleted its topic or its group, or disabled them."""
        return self._check_topic_readable(receive.topic) or admitted_still(self._services.groups, receive.group)

    def _lease(self, receive: _Receive) -> Received:
        """What is there for the receive, leased. Dead letters among it are taken care of."""
        services = self._services
        if receive.is_lite:
            received = self._lease_lite(receive)
            services.persist_leases()
            return received
        config = services.topics.get(receive.topic)
        services.read_far_from(receive.slow_broker_id)
        received = services.leases.receive(
            group=receive.group,
            topic=receive.topic,
            queue_ids=range(config.read_queue_count) if config is not None else (),
            tag_filter=receive.tag_filter,
            batch_size=receive.batch_size,
            invisible_ms=receive.invisible_ms,
            now_ms=services.clock.monotonic_ms(),
            max_attempts=receive.max_attempts,
            auto_renew=receive.auto_renew,
            client_id=receive.client_id,
            ordered=receive.fifo,
            attempt_id=receive.attempt_id,
            priority_factor=self._priority_factor(config, receive.group),
            nonce=passed_on_nonce(receive.call.header(RECEIVE_HEADER)),
        )
        services.persist_leases()
        self._bury(receive, receive.topic, received)
        return received

    def _bury(self, receive: _Receive, topic: str, received: Received) -> None:
        """Has dead letters written. `topic`: the name under which they are leased."""
        for dead in received.dead_letters:
            self._bury_one(receive.group, topic, dead)

    def _bury_one(self, group: str, topic: str, dead: LeasedRecord) -> None:
        self._dead_letters.move(
            dead.record,
            group=group,
            attempts=dead.attempt - 1,
            done=partial(self._buried, group, topic, dead.handle),
        )

    def _bury_used_up(self) -> None:
        """Has dead letters written of groups that nobody receives for."""
        services = self._services
        if services.refusal is not None:
            return  # Nothing is written now.
        self._is_burying = True
        try:
            dead_letters = services.leases.take_used_up(
                services.clock.monotonic_ms(), lambda group: group_policy(services.groups, group).max_attempts
            )
            services.persist_leases()
            for group, topic, dead in dead_letters:
                self._bury_one(group, topic, dead)
        finally:
            self._is_burying = False

    def _lease_lite(self, receive: _Receive) -> Received:
        """What the client's lite topics have for it, each at most once: those that wait longest first."""
        whole = Received([], [])
        subscriber = self.lite.subscriber(receive.client_id, receive.group, receive.topic)
        if subscriber is None:
            return whole
        leases, ready = self._services.leases, subscriber.ready
        again = bool(receive.attempt_id) and subscriber.given_attempt_id == receive.attempt_id
        given: list[str] = []
        for lmq in subscriber.given if again else list(ready):
            missing = receive.batch_size - len(whole.deliveries)
            if (missing <= 0 and not again) or whole.scan_cost >= _SCANNED_PER_TURN:
                break
            ready.pop(lmq, None)
            if not again and leases.backlog_of(receive.group, lmq).inflight_count:
                continue  # Somebody has something of it; it is ready again when that is settled.
            found = leases.receive(
                group=receive.group,
                topic=lmq,
                queue_ids=(0,),
                tag_filter=receive.tag_filter,
                batch_size=missing,
                invisible_ms=receive.invisible_ms,
                now_ms=self._services.clock.monotonic_ms(),
                max_attempts=receive.max_attempts,
                auto_renew=receive.auto_renew,
                client_id=receive.client_id,
                ordered=True,
                attempt_id=receive.attempt_id,
                nonce=passed_on_nonce(receive.call.header(RECEIVE_HEADER)),
            )
            self._bury(receive, lmq, found)
            if found.deliveries:
                given.append(lmq)
                receive.given.append((lmq, [delivery.handle for delivery in found.deliveries]))
            is_stuck = (
                not found.deliveries and not found.dead_letters and leases.has_more(group=receive.group, topic=lmq)
            )
            if found.more or found.held_back or is_stuck:
                # What is stuck has a damaged entry before it, which is mended meanwhile.
                ready[lmq] = None
            whole.deliveries += found.deliveries
            whole.leases += found.leases
            whole.dead_letters += found.dead_letters
            whole.more = whole.more or found.more
            whole.held_back = whole.held_back or found.held_back
            whole.scan_cost += found.scan_cost
        if given and receive.attempt_id:
            subscriber.given_attempt_id, subscriber.given = receive.attempt_id, given
        elif again:
            # All of it is settled: an ordinary receive.
            subscriber.given_attempt_id, subscriber.given = "", []
            return self._lease_lite(receive)
        return whole

    def _priority_factor(self, config: TopicConfig | None, group: str) -> int:
        if config is None or config.message_type != "PRIORITY":
            return NO_PRIORITIES
        group_config = self._services.groups.get(group)
        return 100 if group_config is None else group_config.priority_factor

    def _look(self, receive: _Receive) -> Received:
        """`_lease`, traced."""
        trace = receive.trace
        if self._tracer is None or trace is None:
            return self._lease(receive)
        trace.looking_ns = self._tracer.now_ns()
        if trace.context is None:
            received = self._lease(receive)
        else:
            with traced_lines(trace.context):
                received = self._lease(receive)
        trace.leased_ns = self._tracer.now_ns()
        return received

    def _answer(self, receive: _Receive, received: Received) -> None:
        """One status, the messages, the time of delivery: clients collect the whole stream before they act."""
        call, deliveries = receive.call, received.deliveries
        trace_contexts: dict[int, list[bytes]] | None = None if receive.trace is None else {}
        given = receive.given or [(receive.topic, [delivery.handle for delivery in deliveries])]
        call.on_undelivered(partial(self._give_back, call, receive.group, given))
        if receive.auto_renew:
            if passed_on_nonce(name := call.header(RECEIVE_HEADER)) is None:
                call.on_unread(partial(self._let_run_out, received.leases))
            else:
                call.on_unread(partial(self._passed_on_lost, call, name))
        encoder = DeliveryEncoder(
            topic=receive.topic_resource, invisible_ms=receive.invisible_ms, trace_contexts=trace_contexts
        )
        counts = self._meter.of(receive.topic, receive.group)
        counts.messages += len(deliveries)
        elements = [_OK_ELEMENT]
        encoded_bytes = 0
        for delivery in deliveries:
            encoded = encoder.encode(delivery.record, handle=delivery.handle, attempt=delivery.attempt)
            encoded_bytes += len(encoded)
            if delivery.attempt > 1:
                counts.redelivered_messages += 1
                counts.redelivered_bytes += len(encoded)
            elements.append(encoded)
        counts.bytes += encoded_bytes
        elements.append(encoded_end(self._services.clock.wall_ms()))
        call.send_all_encoded(elements)
        call.finish()
        if receive.share is not None:
            self._poll_over(receive)
            handles = [handle for _, some in given for handle in some]
            self.quotas.received(receive.share, receive.group, handles, encoded_bytes)
        if self._tracer is not None and receive.trace is not None:
            self._tracer.delivered(
                receive.trace,
                call,
                topic=receive.topic,
                group=receive.group,
                deliveries=deliveries,
                own_contexts=trace_contexts or {},
            )

    def _refuse(self, call: Call, group: str, topic: str, outcome: Outcome, trace: ReceiveTrace | None) -> None:
        if outcome.pause_ms:
            self.quotas.hold(call, outcome, partial(self._end, call, outcome))
        else:
            self._end(call, outcome)
        if self._tracer is not None and trace is not None:
            failure = Failure(Code.Name(outcome.code), outcome.text)
            self._tracer.receive_refused(trace, call, topic=topic, group=group, failure=failure)

    def _end(self, call: Call, outcome: Outcome) -> None:
        call.send(pb.ReceiveMessageResponse(status=status_of(outcome)))
        call.send_encoded(encoded_end(self._services.clock.wall_ms()))
        call.finish()

    def _buried(self, group: str, topic: str, handle: str, outcome: Outcome) -> None:
        """A message with too many deliveries was written to the dead letter queue; if not, it comes up again."""
        if outcome is OK:
            self._services.leases.acknowledge(
                group=group, topic=topic, handle=handle, now_ms=self._services.clock.monotonic_ms()
            )
            self._services.persist_leases()
            if topic.startswith(LMQ_PREFIX):
                self.lite.settled(group, topic)
            self.wake_visible()

    def _give_back(self, call: Call, group: str, given: Sequence[tuple[str, list[str]]]) -> None:
        """The caller is gone before it got the answer: the next receive may have the messages at once.

        What it did get is delivered twice then, which is what at-least-once delivery means.
        """
        now_ms = self._services.clock.monotonic_ms()
        # It counts as an attempt: what is too long for its client would come again for ever. Where this broker has no
        # room for the answer, the next receive would have none either: their attempts would be used up within a moment,
        # and nobody had seen the messages.
        is_crowded_out = call.is_crowded_out
        for topic, handles in given:
            for handle in handles:
                self._services.leases.change_invisible(
                    group=group,
                    topic=topic,
                    handle=handle,
                    invisible_ms=_CROWDED_OUT_MS if is_crowded_out else 0,
                    now_ms=now_ms,
                    counts=not is_crowded_out,
                )
        self._services.persist_leases()
        self.wake_visible()

    def _let_run_out(self, leases: Sequence[Lease]) -> None:
        """The caller may not have read the answer. If it did, it has what is left of the lease."""
        self._services.leases.doubt(leases)
        self._services.persist_leases()

    def _passed_on_lost(self, call: Call, name: str) -> None:
        self.passed_on_unread(call, name)

    # Waiting

    def _serve(self, looking: list[_Waiting]) -> None:
        """Lets receives look, and after them those that are needed for what they leave behind."""
        while looking:
            receive = looking.pop()
            if isinstance(receive, WaitingPull):
                receive.look()
                continue
            reads_all = receive.tag_filter.reads_all
            if self._scanned >= _SCANNED_PER_TURN and not reads_all and not receive.cancelled:
                self._put_offs += 1
                receive.put_off_at = receive.put_off_at or self._put_offs
                self._wait(receive, look_again=True)
                continue
            receive.put_off_at = 0
            if receive.cancelled:
                looking += self._polls.message_visible(receive.waits_on, receive.group)
                continue
            if refused := self._refused_meanwhile(receive):
                self._poll_over(receive)
                self._refuse(receive.call, receive.group, receive.topic, refused, receive.trace)
                looking += self._polls.message_visible(receive.waits_on, receive.group)
                continue
            if self._services.is_fenced:
                # It was woken by what arrived while this process stood still: the next master has given that.
                self._wait(receive, look_again=False)
                self.message_held_back(receive.waits_on)
                continue
            received = self._look(receive)
            if not reads_all:
                self._scanned += received.scan_cost
            if received.deliveries:
                self._answer(receive, received)
                taken = len(received.deliveries) + len(received.dead_letters)
                if taken >= receive.batch_size or received.more:
                    looking += self._next_needed(receive)
            else:
                # It took all there was, unless dead letters filled its batch or it may not look at more in one turn.
                self._wait(receive, look_again=received.more or bool(received.dead_letters))
            if received.held_back:
                self.message_held_back(receive.waits_on)

    def _next_needed(self, receive: _Receive) -> list[_Waiting]:
        """Who waits for what a full batch left behind, if it left anything."""
        topic, group = receive.waits_on, receive.group
        if receive.is_lite:
            subscriber = self.lite.subscriber(receive.client_id, group, receive.topic)
            return self._polls.message_visible(topic, group) if subscriber is not None and subscriber.ready else []
        if self._polls.is_waited_for(topic, group) and self._services.leases.has_more(group=group, topic=topic):
            return self._polls.message_visible(topic, group)
        return []

    def _wait(self, receive: _Receive, *, look_again: bool) -> None:
        refused: Outcome | None = None
        # A copy: a part of a request keeps all of it, up to 2 MiB.
        namespace = receive.topic_resource.resource_namespace
        receive.topic_resource = definition.Resource(name=receive.topic, resource_namespace=namespace)
        if (long := check_namespace(namespace)) is not None:
            refused = long
        elif receive.share is not None and not receive.is_counted:
            refused = self.quotas.refused_poll(receive.share)
            receive.is_counted = refused is None
        place, until_ms = receive.waits_on, receive.poll_until_ms
        if refused is None and not self._polls.add(place, receive.group, until_ms, receive):
            refused = None if self._takes_place(receive, place, receive.group, until_ms) else _TOO_MANY
        if refused is not None:
            self._poll_over(receive)
            self._refuse(receive.call, receive.group, receive.topic, refused, receive.trace)
            return
        if self._services.leases.take_begun_at_newest():
            # At once, as no answer waits for it.
            self._services.when_progress_held(lambda _is_held: None)
        if receive.trace is not None and receive.trace.waiting_ns is None:
            receive.trace.waiting_ns = receive.trace.leased_ns
        if look_again:
            self.message_arrived(receive.waits_on)

    def _takes_place(self, newcomer: _Waiting, topic: str, group: str, until_ms: int) -> bool:
        """All places are taken: one that waits for an address with more than its share gives way to one of an address
        with less. So whoever waits very often keeps out himself."""
        now_ms = self._services.clock.monotonic_ms()
        if now_ms >= self._shares_until_ms:
            self._shares_until_ms = now_ms + _POLL_SHARES_FOR_MS
            waiting_of: dict[str, list[_Waiting]] = {}
            for waiting in self._polls.waiting():
                waiting_of.setdefault(address_of_peer(waiting.call.peer), []).append(waiting)
            share = self._poll_share = self._polls.max_waiting // (len(waiting_of) + 1)
            self._waiting_of = Counter({address: len(its) for address, its in waiting_of.items()})
            self._beyond_shares = [waiting for its in waiting_of.values() for waiting in its[share:]]
        address = address_of_peer(newcomer.call.peer)
        if self._waiting_of[address] >= self._poll_share:
            return False
        while self._beyond_shares:
            waiting = self._beyond_shares.pop()
            if self._polls.cancel(waiting):
                self._waiting_of[address] += 1
                self._end_each([waiting], _TOO_MANY)
                return self._polls.add(topic, group, until_ms, newcomer)
        return False

    def forget_shares(self) -> None:
        """About once a second: they keep what waited and may be over."""
        if self._beyond_shares and self._services.clock.monotonic_ms() >= self._shares_until_ms:
            self._beyond_shares.clear()

    def _poll_over(self, receive: _Receive) -> None:
        if receive.is_counted and receive.share is not None:
            receive.is_counted = False
            self.quotas.poll_ended(receive.share)

    def _cancelled(self, receive: _Receive) -> None:
        receive.cancelled = True
        self._poll_over(receive)
        if not self._polls.cancel(receive):
            # It had been woken and cannot look any more: somebody else should.
            self._serve(self._polls.message_visible(receive.waits_on, receive.group))

    def _look_at_arrived(self) -> None:
        """After the turn in which messages arrived."""
        arrived, self._arrived = self._arrived, set()
        self._scanned = 0
        looking = [receive for topic in arrived for receive in self._polls.message_arrived(topic)]
        looking.sort(key=_turn, reverse=True)  # The last one looks first.
        self._serve(looking)
        self.wake_visible()

    def _time_passed(self) -> None:
        self._timer = None
        services = self._services
        now_ms = services.clock.monotonic_ms()
        services.leases.expire(now_ms)
        services.persist_leases()
        self._end_each(self._polls.expire(now_ms), _NOT_FOUND)
        self.wake_visible()

    def _end_each(self, receives: Iterable[_Waiting], outcome: Outcome) -> None:
        for receive in receives:
            if isinstance(receive, WaitingPull):
                receive.end(outcome)
            else:
                self._poll_over(receive)
                self._end(receive.call, self._refused_meanwhile(receive) or outcome)

    def _arm(self) -> None:
        """Keeps one timer at or before the next moment at which something changes for those who wait."""
        poll_ms = self._polls.next_deadline_ms()
        if poll_ms is None:
            return
        now_ms = self._services.clock.monotonic_ms()
        lease_ms = self._services.leases.next_deadline_ms()
        next_ms = poll_ms if lease_ms is None else min(poll_ms, lease_ms)
        if self._timer is not None:
            if self._timer_at_ms <= next_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = next_ms
        self._timer = self._services.timers.call_later(max(1, next_ms - now_ms) / 1_000, self._time_passed)
