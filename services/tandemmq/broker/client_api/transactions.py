"""Transactions: half messages are stored, ended by their producers, and asked after where no end comes.

What is undecided is `HalfMessages`' to know, and it follows from the log. Here is done what it takes: SendMessage
stores a half, EndTransaction ends it, a look every second asks a connected producer over its Telemetry stream after
those that have waited too long, and an operator may list and end them.

Every end is one put: of the message and the record that ends its half, or of the record alone. It is answered when that
put is, so with the copies and flushes of a send. The same end again is answered OK without a second message; where it
is not known that the first one outlives a failure, its record is written once more and waited for, with all before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from tandemmq.broker.client_api.delivery_encoding import DeliveryEncoder
from tandemmq.broker.client_api.sent_message import SentMessage
from tandemmq.broker.client_api.validation import (
    OK,
    PUT_OUTCOMES,
    Code,
    Outcome,
    check_client_id,
    check_topic,
    common_status,
    status_of,
)
from tandemmq.broker.put import PutAnswer
from tandemmq.core.delivery.half_messages import (
    BadTransactionId,
    Half,
    HalfMessages,
    Resolution,
    TransactionId,
    check_record,
    committed_copy,
    half_of,
    half_of_record,
    op_record,
)
from tandemmq.core.message.properties import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_UNDECIDED_FROM,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
)
from tandemmq.core.message.record import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC, MessageRecord, OutgoingMessage
from tandemmq.core.message.stored_message import StoredMessage
from tandemmq.core.metadata.topic_table import (
    ATTRIBUTE_TRANSACTION_CHECK_INTERVAL,
    ATTRIBUTE_TRANSACTION_CHECK_MAX,
    ATTRIBUTE_TRANSACTION_TIMEOUT,
)
from tandemmq.core.storage.consume_queue import first_false
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.core.storage.retention import Hold
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import Call

if TYPE_CHECKING:
    from tandemmq.broker.client_api.services import BrokerServices
    from tandemmq.broker.client_api.telemetry import TelemetryStream

log = structlog.get_logger(__name__)

_QUEUE_ID: Final = 0
"""Both system topics have one queue."""
_READ_AT_ONCE: Final = 64
_LOOKS_AT_ONCE: Final = 32
"""Halves looked at in one turn of the loop: each reads a record, which may wait for the disk."""
_PAUSE_S: Final = 0.02
_ENDS_READ_MAX: Final = 4_096
"""Records of past ends that a start reads, to know what clients may repeat."""
_COPIES_READ_MAX: Final = 8
"""Newest records of a queue among which a commit without its end is: it is the very last one of a log that was cut."""

_RESOLUTIONS: Final = {definition.COMMIT: Resolution.COMMIT, definition.ROLLBACK: Resolution.ROLLBACK}

Done = Callable[[Outcome], object]


class CheckPolicy(NamedTuple):
    """When producers are asked after their halves; times in ms."""

    timeout_ms: int
    interval_ms: int
    check_max: int


class Transactions:
    """See the module's docstring. Event loop only.

    `publishers` are the Telemetry streams of producers that publish a topic. `recovery` comes before anything else,
    each time this broker becomes its group's master.
    """

    def __init__(
        self,
        services: BrokerServices,
        publishers: Callable[[str], Sequence[TelemetryStream]],
        *,
        chance: random.Random | None = None,
    ) -> None:
        self._services = services
        self._publishers = publishers
        self._chance = chance or random.Random()
        self._table = HalfMessages()
        self._missing: list[OutgoingMessage] = []
        # Places of halves whose records could not be read at the start; others mend them.
        self._unread: list[int] = []
        self._is_on = False
        self._is_looking = False
        # Since the process began.
        self.half_count = 0
        self.check_count = 0
        self.unasked_count = 0
        """Checks that came due while no producer of the topic was connected."""
        self.ended_counts: Final[dict[Resolution, int]] = dict.fromkeys(Resolution, 0)
        self.lost_count = 0
        """Halves whose records were deleted while they were undecided."""

    # For metrics, operators and retention

    @property
    def undecided_count(self) -> int:
        """Halves without an end."""
        return len(self._table)

    @property
    def doubled_count(self) -> int:
        """Halves that the log shows committed twice."""
        return self._table.doubled_count

    @property
    def oldest_age_ms(self) -> int:
        """Of the oldest undecided half; 0 without one."""
        oldest = self._table.oldest()
        return 0 if oldest is None else max(0, self._services.clock.wall_ms() - oldest.stored_wall_ms)

    def hold(self) -> Hold | None:
        """The log from the oldest undecided half on is needed."""
        oldest = self._table.oldest()
        if oldest is None:
            return None
        return Hold(
            oldest.physical_offset,
            f"an undecided transaction of topic {oldest.topic}",
            "start its producers, which are asked after it, or end it (tandemmq transaction resolve)",
        )

    def undecided(self) -> Iterator[tuple[Half, str]]:
        broker_name = self._services.identity.broker_name
        for half in self._table.undecided():
            yield half, TransactionId(broker_name, half.queue_offset, half.physical_offset, half.message_id).encode()

    def record(self, half: Half) -> MessageRecord | None:
        """What it holds; None while it cannot be read."""
        return self._record_at(HALF_TOPIC, _QUEUE_ID, half.queue_offset)

    def half(self, wanted: TransactionId) -> Half | None:
        """The half, if it is undecided and this broker group's."""
        is_ours = wanted.broker_name == self._services.identity.broker_name
        return self._table.get(wanted) if is_ours else None

    def policy(self, topic: str) -> CheckPolicy:
        """By the topic's attributes, else by the settings."""
        options, config = self._services.options, self._services.topics.get(topic)
        attributes = {} if config is None else config.attributes

        def number(name: str, default: int) -> int:
            text = attributes.get(name, "")
            return int(text) if text.isdigit() else default

        return CheckPolicy(
            number(ATTRIBUTE_TRANSACTION_TIMEOUT, options.transaction_timeout_ms),
            max(1, number(ATTRIBUTE_TRANSACTION_CHECK_INTERVAL, options.transaction_check_interval_ms)),
            number(ATTRIBUTE_TRANSACTION_CHECK_MAX, options.transaction_check_max),
        )

    # SendMessage

    @property
    def refusal(self) -> Outcome | None:
        """Why no half is taken now; None: they are."""
        if len(self._table) < self._services.options.transactions_max:
            return None
        return Outcome(
            Code.TOO_MANY_REQUESTS,
            f"{len(self._table)} transactions of this broker group are undecided; end them, or see "
            "tandemmq transaction list",
            retryable=True,
        )

    def send(
        self,
        sent: Sequence[SentMessage],
        messages: Sequence[OutgoingMessage],
        call: Call,
        traceparents: Sequence[str],
        *,
        beside: PutAnswer | None = None,
    ) -> None:
        """Stores the halves of these messages and answers the call; then `beside` is told what became of them."""
        halves = [half_of(message, immunity_s=_immunity_s(one)) for one, message in zip(sent, messages, strict=True)]
        queues, table = self._services.queues, self._table
        first = queues.max_offset(HALF_TOPIC, _QUEUE_ID)
        self._services.put(halves, _HalfAnswer(self, halves, call, beside), call, traceparents)
        if queues.max_offset(HALF_TOPIC, _QUEUE_ID) == first:
            return
        self.half_count += len(halves)
        now_ms, wall_ms = self._services.clock.monotonic_ms(), self._services.clock.wall_ms()
        policy = self.policy(messages[0].topic)
        entries = queues.entries(HALF_TOPIC, _QUEUE_ID, first, len(halves))
        for number, (message, entry) in enumerate(zip(messages, entries, strict=True)):
            immunity_ms = 1_000 * _immunity_s(sent[number])
            half = Half(
                first + number,
                entry.physical_offset,
                message.topic,
                message.queue_id,
                message.index_keys[0],
                wall_ms,
                immunity_ms,
            )
            table.learn(half, due_ms=now_ms + (immunity_ms or policy.timeout_ms))

    def transaction_id(self, message_id: str, result: AppendResult) -> str:
        """Of a half that was stored."""
        broker_name = self._services.identity.broker_name
        return TransactionId(broker_name, result.queue_offset, result.physical_offset, message_id).encode()

    def may_commit(self, queue_offset: int, message_id: str) -> bool:
        """Whether a half is undecided or was committed; False also if nobody knows."""
        entries = self._services.queues.entries(HALF_TOPIC, _QUEUE_ID, queue_offset, 1)
        if not entries:
            return False
        wanted = TransactionId("", queue_offset, entries[0].physical_offset, message_id)
        if self._table.get(wanted) is not None:
            return True
        return self.ended_as(wanted, Resolution.COMMIT) is OK

    def answer_again(self, messages: Sequence[OutgoingMessage], queue_offsets: Sequence[int], call: Call) -> None:
        """Answers a send of halves that lie at these places already."""
        results = []
        for queue_offset in queue_offsets:
            [entry] = self._services.queues.entries(HALF_TOPIC, _QUEUE_ID, queue_offset, 1)
            results.append(AppendResult(PutStatus.PUT_OK, entry.physical_offset, entry.size, queue_offset, 0))
        _HalfAnswer(self, messages, call, None).answer(results)

    def failed(self, message_id: str, result: AppendResult) -> None:
        """The sender of a stored half is told that it failed, and does not know it by any name: it ends at once."""
        if result.physical_offset < 0:
            return
        place = TransactionId("", result.queue_offset, result.physical_offset, message_id)
        # It is told to the table after its put, which may be about to return.
        self._services.timers.call_soon(partial(self.decide, place, Resolution.ROLLBACK, _ignore))

    # EndTransaction

    def end_transaction(self, request: pb.EndTransactionRequest, call: Call) -> None:
        answer = partial(_answer_end, call)
        if refused := check_client_id(call) or check_topic(request.topic.name):
            answer(refused)
            return
        wanted = self.wanted(request.transaction_id, request.message_id)
        if isinstance(wanted, Outcome):
            answer(wanted)
        elif wanted.broker_name != self._services.identity.broker_name:
            # Rust clients end transactions at the access point, whichever broker group that is of.
            self._services.group_calls.pass_on("EndTransaction", call, broker_name=wanted.broker_name, refused=answer)
        elif (reason := self._services.refusal) is not None:
            answer(Outcome(Code.FORBIDDEN, reason, retryable=True))
        elif request.resolution in _RESOLUTIONS:
            self.decide(wanted, _RESOLUTIONS[request.resolution], answer, topic=request.topic.name)
        else:
            answer(OK)  # Its producer does not know yet: it is asked again.

    def wanted(self, transaction_id: str, message_id: str = "") -> TransactionId | Outcome:
        """The half that an id names, wherever it is."""
        if not transaction_id.strip():
            return Outcome(Code.INVALID_TRANSACTION_ID, "the transaction id is blank; send the one of the half message")
        try:
            wanted = TransactionId.parse(transaction_id)
        except BadTransactionId as error:
            return Outcome(Code.INVALID_TRANSACTION_ID, str(error))
        if message_id and message_id != wanted.message_id:
            return Outcome(
                Code.INVALID_TRANSACTION_ID, f"the transaction id is of message {wanted.message_id}, not {message_id}"
            )
        return wanted

    def decide(self, wanted: TransactionId, resolution: Resolution, done: Done, *, topic: str = "") -> None:
        """Ends a half of this broker group, or finds that it has ended; `done` is told what to answer."""
        half = self._table.get(wanted)
        if half is None and wanted.queue_offset in self._unread:
            done(_UNREADABLE)
        elif half is None:
            self._decide_again(wanted, resolution, done, topic=topic)
        elif topic and topic != half.topic:
            done(Outcome(Code.INVALID_TRANSACTION_ID, f"the transaction is one of topic {half.topic}, not {topic}"))
        elif resolution is Resolution.COMMIT:
            self._commit(half, done)
        else:
            self._end(half, resolution, [], done)

    def _commit(self, half: Half, done: Done) -> None:
        config = self._services.topics.get(half.topic)
        if config is None:
            done(
                Outcome(
                    Code.TOPIC_NOT_FOUND,
                    f"topic {half.topic} does not exist any more: create it again, or roll back",
                )
            )
            return
        record = self.record(half)
        if record is None:
            done(_UNREADABLE)
            return
        copy = committed_copy(record, topic=half.topic, queue_id=half.queue_id % max(1, config.write_queue_count))
        self._end(half, Resolution.COMMIT, [copy], done)

    def _end(self, half: Half, resolution: Resolution, copies: list[OutgoingMessage], done: Done) -> None:
        services, table = self._services, self._table
        table.end(half, resolution)
        last = self._op_record(half.queue_offset, resolution)

        def answered(results: list[AppendResult]) -> None:
            outcome = PUT_OUTCOMES[results[-1].status]
            if results[-1].physical_offset < 0:
                table.take_back(half)
            else:
                self.ended_counts[resolution] += 1
                if outcome is OK:
                    table.held(half.queue_offset)
            done(outcome)

        services.put([*copies, last], answered)

    def _decide_again(self, wanted: TransactionId, resolution: Resolution, done: Done, *, topic: str) -> None:
        outcome = self.ended_as(wanted, resolution, topic=topic)
        known = self._table.resolution(wanted.queue_offset)
        if outcome is not OK or known is None or known[1]:
            done(outcome)
            return
        services, table = self._services, self._table
        again = self._op_record(wanted.queue_offset, resolution, is_again=True)

        def answered(results: list[AppendResult]) -> None:
            held = PUT_OUTCOMES[results[0].status]
            if held is OK:
                table.held(wanted.queue_offset)
            done(held)

        services.put([again], answered)

    def _op_record(self, queue_offset: int, resolution: Resolution, *, is_again: bool = False) -> OutgoingMessage:
        services = self._services
        return op_record(
            queue_offset,
            resolution,
            undecided_from=self._low_mark(),
            host=services.store_host,
            wall_ms=services.clock.wall_ms(),
            is_again=is_again,
        )

    def ended_as(self, wanted: TransactionId, resolution: Resolution, *, topic: str = "") -> Outcome:
        """OK if a half that is not undecided, one of `topic` if that is given, has ended so; else what is to be
        said."""
        known = self._table.resolution(wanted.queue_offset)
        record = None if known is None else self._record_at(HALF_TOPIC, _QUEUE_ID, wanted.queue_offset)
        if known is None or record is None or not _is_of(record, wanted, topic):
            return Outcome(
                Code.INVALID_TRANSACTION_ID,
                f"no transaction of message {wanted.message_id} is known: it ended long ago, or was never stored",
            )
        return OK if known[0] is resolution else Outcome(Code.INVALID_TRANSACTION_ID, _CONTRARY[known[0]])

    # Asking producers

    def look(self) -> None:
        """Asks after halves that have waited long enough. To be called about once a second."""
        if not self._is_looking:
            self._look()

    def _look(self) -> None:
        self._is_looking = False
        services = self._services
        if not self._is_on or services.refusal is not None:
            return
        now_ms = services.clock.monotonic_ms()
        first_kept = services.queues.min_offset(HALF_TOPIC, _QUEUE_ID)
        if self._unread:
            self._read_again(now_ms, first_kept)
        asked = []
        for half in self._table.take_due(now_ms, count_max=_LOOKS_AT_ONCE):
            if half.queue_offset < first_kept:
                self._table.forget(half)
                self.lost_count += 1
                log.error("undecided_transaction_deleted", topic=half.topic, message_id=half.message_id)
            elif self._look_at(half, now_ms):
                asked.append(half.queue_offset)
        if asked:
            self.check_count += len(asked)
            told = check_record(
                asked,
                undecided_from=self._low_mark(),
                host=services.store_host,
                wall_ms=services.clock.wall_ms(),
            )
            services.put([told], _ignore_results)
        if self._table.has_due(now_ms):
            self._is_looking = True
            services.timers.call_later(_PAUSE_S, self._look)

    def _read_again(self, now_ms: int, first_kept: int) -> None:
        """Halves that could not be read may be by now."""
        unread, self._unread = self._unread, []
        for number, place in enumerate(unread):
            record = self._record_at(HALF_TOPIC, _QUEUE_ID, place) if number < _LOOKS_AT_ONCE else None
            half = None if record is None else half_of_record(record)
            if half is not None and self._table.resolution(place) is None:
                self._table.learn(half, due_ms=now_ms + (half.immunity_ms or self.policy(half.topic).timeout_ms))
            elif half is None and place >= first_kept:
                self._unread.append(place)

    def _look_at(self, half: Half, now_ms: int) -> bool:
        """Whether its producer was asked."""
        policy = self.policy(half.topic)
        self._table.look_at(half, due_ms=now_ms + policy.interval_ms)
        if half.check_count >= policy.check_max:
            self._give_up(half)
            return False
        publishers = self._publishers(half.topic)
        if not publishers:
            self.unasked_count += 1
            return False
        record = self.record(half)
        if record is None:
            return False
        publisher = self._chance.choice(publishers)
        message = delivered_message(record, publisher.resource_of(half.topic), queue_id=half.queue_id)
        transaction_id = TransactionId(
            self._services.identity.broker_name, half.queue_offset, half.physical_offset, half.message_id
        )
        publisher.command(
            pb.TelemetryCommand(
                recover_orphaned_transaction_command=pb.RecoverOrphanedTransactionCommand(
                    message=message, transaction_id=transaction_id.encode()
                )
            )
        )
        half.check_count += 1
        return True

    def _give_up(self, half: Half) -> None:
        """Nobody knows how it ends: what it holds goes where an operator finds it."""
        if self._services.topics.get(GIVEN_UP_TOPIC) is None:
            self._services.create_topic(GIVEN_UP_TOPIC, queue_count=1, done=partial(self._give_up_now, half))
        else:
            self._give_up_now(half)

    def _give_up_now(self, half: Half) -> None:
        place = TransactionId("", half.queue_offset, half.physical_offset, half.message_id)
        record = self.record(half) if self._table.get(place) is half else None
        if record is None:
            return  # Ended meanwhile, or to be tried again.
        log.warning(
            "transaction_given_up",
            topic=half.topic,
            message_id=half.message_id,
            checks=half.check_count,
            kept_in=GIVEN_UP_TOPIC,
        )
        copy = committed_copy(record, topic=GIVEN_UP_TOPIC, queue_id=0, is_given_up=True)
        self._end(half, Resolution.GIVEN_UP, [copy], _ignore)

    # From the log

    def recovery(self, *, from_offset: int = 0) -> Iterator[None]:
        """Finds out what is undecided, a part with each step. `from_offset`: where RocketMQ went on in the half topic;
        of use in a store that was taken over. Then `take_missing`."""
        self._is_on = False
        table = self._table = HalfMessages()
        self._unread = []
        queues = self._services.queues
        half_end = queues.max_offset(HALF_TOPIC, _QUEUE_ID)
        op_end = queues.max_offset(OP_TOPIC, _QUEUE_ID)
        place = max(self._undecided_from(op_end, from_offset), queues.min_offset(HALF_TOPIC, _QUEUE_ID))
        yield
        while place < half_end:
            count = min(_READ_AT_ONCE, half_end - place)
            for half_place in range(place, place + count):
                record = self._record_at(HALF_TOPIC, _QUEUE_ID, half_place)
                half = None if record is None else half_of_record(record)
                if half is None:
                    self._unread.append(half_place)
                    log.error("half_message_unreadable", queue_offset=half_place)
                else:
                    table.learn(half, due_ms=0)
            place += count
            yield
        table.next_offset = max(half_end, table.next_offset)
        asked_wall_ms: dict[int, int] = {}
        for op_place in range(self._first_op(op_end), op_end):
            record = self._record_at(OP_TOPIC, _QUEUE_ID, op_place)
            if record is None:
                log.error("transaction_record_unreadable", queue_offset=op_place)
                continue
            properties = decode_properties(record.properties)
            for half in table.read_op(properties.get(PROPERTY_TAGS, ""), properties, record.body):
                asked_wall_ms[half.queue_offset] = record.store_timestamp_ms
            if op_place % _READ_AT_ONCE == 0:
                yield
        yield from self._end_copied()
        self._set_due(asked_wall_ms)
        self._is_on = True
        log.info("transactions_recovered", undecided=len(table), unfinished_commits=len(self._missing))

    def take_missing(self) -> list[OutgoingMessage]:
        """Records to be appended before anything else: the log was cut behind commits, in front of these."""
        missing, self._missing = self._missing, []
        return missing

    def stop(self) -> None:
        """This broker is master no more."""
        self._is_on = False

    def _undecided_from(self, op_end: int, from_offset: int) -> int:
        """The newest record tells, unless it is RocketMQ's."""
        first = self._services.queues.min_offset(OP_TOPIC, _QUEUE_ID)
        newest = self._record_at(OP_TOPIC, _QUEUE_ID, op_end - 1) if op_end > first else None
        if newest is None:
            return from_offset
        told = decode_properties(newest.properties).get(PROPERTY_TRANSACTION_UNDECIDED_FROM, "")
        return int(told) if told.isdigit() else from_offset

    def _low_mark(self) -> int:
        """Below this place every half has ended, and was read."""
        return min([self._table.undecided_from(), *self._unread])

    def _first_op(self, op_end: int) -> int:
        """Where to begin among the ends: behind the oldest half, and some before it, which clients may repeat."""
        queues, oldest = self._services.queues, self._table.oldest()
        first = queues.min_offset(OP_TOPIC, _QUEUE_ID)
        place = op_end
        if oldest is not None:
            half_offset = oldest.physical_offset

            def is_older(place: int) -> bool:
                return queues.entries(OP_TOPIC, _QUEUE_ID, place, 1)[0].physical_offset < half_offset

            place = first_false(first, op_end, is_older)
        return max(first, min(place, op_end - _ENDS_READ_MAX))

    def _end_copied(self) -> Iterator[None]:
        """A log that was cut between a message and the record that ends its half has it as one of its newest."""
        table, services = self._table, self._services
        halves = {half.physical_offset: half for half in table.undecided()}
        places = {(GIVEN_UP_TOPIC, 0): None} if halves else {}
        for waiting in halves.values():
            config = services.topics.get(waiting.topic)
            queue_count = 1 if config is None else max(1, config.write_queue_count)
            places[waiting.topic, waiting.queue_id] = None
            places[waiting.topic, waiting.queue_id % queue_count] = None
        for topic, queue_id in places:
            end = services.queues.max_offset(topic, queue_id)
            first = max(services.queues.min_offset(topic, queue_id), end - _COPIES_READ_MAX)
            for place in range(first, end):
                record = self._record_at(topic, queue_id, place)
                half = None if record is None else halves.get(record.prepared_transaction_offset)
                if record is None or half is None or _unique_key(record) != half.message_id:
                    continue
                resolution = Resolution.GIVEN_UP if topic == GIVEN_UP_TOPIC else Resolution.COMMIT
                del halves[half.physical_offset]
                table.end(half, resolution)
                self._missing.append(
                    op_record(
                        half.queue_offset,
                        resolution,
                        undecided_from=self._low_mark(),
                        host=services.store_host,
                        wall_ms=services.clock.wall_ms(),
                        is_again=True,
                    )
                )
                log.warning("commit_without_end_found", topic=topic, message_id=half.message_id)
            yield

    def _set_due(self, asked_wall_ms: dict[int, int]) -> None:
        now_ms, wall_ms = self._services.clock.monotonic_ms(), self._services.clock.wall_ms()
        for half in self._table.undecided():
            policy = self.policy(half.topic)
            wait_ms = half.immunity_ms or policy.timeout_ms
            since_ms = half.stored_wall_ms
            if half.queue_offset in asked_wall_ms:
                wait_ms, since_ms = policy.interval_ms, asked_wall_ms[half.queue_offset]
            # A clock that was set back makes nobody wait for longer.
            rest_ms = min(max(0, since_ms + wait_ms - wall_ms), wait_ms)
            self._table.look_at(half, due_ms=now_ms + rest_ms)

    def _record_at(self, topic: str, queue_id: int, place: int) -> MessageRecord | None:
        queues = self._services.queues
        entries = queues.entries(topic, queue_id, place, 1)
        return queues.record(topic, queue_id, place, entries[0]) if entries else None


_UNREADABLE: Final = Outcome(
    Code.INTERNAL_SERVER_ERROR, "the half message cannot be read now; try again", retryable=True
)
_CONTRARY: Final = {
    Resolution.COMMIT: "the transaction was committed before; its message cannot be taken back",
    Resolution.ROLLBACK: "the transaction was rolled back before; send the message again if it should be there",
    Resolution.GIVEN_UP: "the transaction was given up, after its producer was asked in vain as often as the settings "
    f"say; what it held is in {GIVEN_UP_TOPIC}",
}


def transaction_problem(sent: SentMessage) -> Outcome | None:
    """Why a message of type TRANSACTION cannot be one."""
    if sent.message_group:
        what = "a message group"
    elif sent.delivery_timestamp is not None:
        what = "a delivery time"
    else:
        return None
    return Outcome(
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"a TRANSACTION message has {what}: it becomes visible when its transaction commits; leave the other out",
    )


def delivered_message(record: MessageRecord, topic: definition.Resource, *, queue_id: int) -> definition.Message:
    """A record as a client is shown it that does not get it delivered."""
    stored = StoredMessage(
        queue_id,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp_ms,
        record.born_host.address,
        record.store_timestamp_ms,
        record.store_host.address,
        record.store_host.port,
        record.body,
        record.properties,
    )
    element = DeliveryEncoder(topic=topic, invisible_ms=0).encode(stored, handle="", attempt=1)
    message = pb.ReceiveMessageResponse.FromString(element).message
    for field in ("receipt_handle", "invisible_duration", "queue_offset"):
        message.system_properties.ClearField(field)
    return message


class _HalfAnswer(PutAnswer):
    """Answers a request whose halves were put."""

    __slots__ = ("_beside", "_call", "_halves", "_transactions")

    def __init__(
        self, transactions: Transactions, halves: Sequence[OutgoingMessage], call: Call, beside: PutAnswer | None
    ) -> None:
        self._transactions = transactions
        self._halves = halves
        self._call = call
        self._beside = beside

    def answer(self, results: list[AppendResult]) -> None:
        outcomes = [PUT_OUTCOMES[result.status] for result in results]
        response = pb.SendMessageResponse(status=common_status(outcomes))
        for half, result, outcome in zip(self._halves, results, outcomes, strict=True):
            message_id = half.index_keys[0]
            entry = response.entries.add(status=status_of(outcome), message_id=message_id)
            if outcome is OK:
                entry.offset = result.queue_offset
                entry.transaction_id = self._transactions.transaction_id(message_id, result)
            else:
                self._transactions.failed(message_id, result)
        self._call.send(response)
        self._call.finish()
        if self._beside is not None:
            self._beside.answer(results)


def _answer_end(call: Call, outcome: Outcome) -> None:
    call.send(pb.EndTransactionResponse(status=status_of(outcome)))
    call.finish()


def _ignore(_outcome: Outcome) -> None:
    """Whoever needs the half to end sees that it has not."""


def _ignore_results(_results: list[AppendResult]) -> None:
    """A check that is not told of is made once more after a restart."""


def _immunity_s(sent: SentMessage) -> int:
    """In whole seconds, as the property has it; up, as a shorter time would ask too early."""
    recovery = sent.recovery_duration
    return 0 if recovery is None else max(0, -(-recovery.ToMilliseconds() // 1_000))


def _unique_key(record: MessageRecord) -> str:
    return decode_properties(record.properties).get(PROPERTY_UNIQUE_KEY, "")


def _is_of(record: MessageRecord, wanted: TransactionId, topic: str) -> bool:
    if record.physical_offset != wanted.physical_offset:
        return False
    properties = decode_properties(record.properties)
    is_of_topic = not topic or properties.get(PROPERTY_REAL_TOPIC) == topic
    return is_of_topic and properties.get(PROPERTY_UNIQUE_KEY) == wanted.message_id
