"""Settings and events of brokers, dead letters of their groups, changes of master on purpose, and kept tails."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import itemgetter
from typing import Final, TypeVar

from tandemmq.admin.cluster_state import BrokerState, FailoverState
from tandemmq.admin.operations.questions import (
    Answer,
    BrokerPlanes,
    FailureKind,
    Members,
    OperationFailed,
    Questions,
    check_offset,
    invalid,
    not_found,
    refused,
    unavailable,
    unseen_of,
)
from tandemmq.admin.operations.values import (
    AcceptedLoss,
    BrokerSettings,
    ConfigChange,
    DeadLetterResult,
    EventLine,
    HandOver,
    HoldingState,
    KeptTail,
    MissingReplica,
    TailMessage,
    TailResult,
    UnreadableRange,
    Unseen,
)
from tandemmq.admin.rpc import BrokerOperationsCalls
from tandemmq.core.clock import Clock
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import decode_record, message_id_of
from tandemmq.core.message.record_layout import MalformedRecord
from tandemmq.core.storage.kept_tail import TailPart, TailWalk
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb
from tandemmq.proto.broker.v1 import failover_service_pb2 as failover_pb
from tandemmq.proto.broker.v1 import replica_service_pb2 as replica_pb
from tandemmq.service.protobuf import as_value

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

_EVENTS_MAX: Final = 500
_LETTERS_AT_ONCE: Final = 100
"""As many as a broker takes in one call."""
_LETTERS_MAX: Final = 1_000


class BrokerOperations:
    """Asks single brokers, named `name:id`."""

    def __init__(self, members: Members, questions: Questions) -> None:
        self._members = members
        self._questions = questions

    async def settings(self, broker: str) -> BrokerSettings:
        """Settings of `name:id` as they work now; secrets are masked by the broker."""
        problem = f"the settings of {broker} cannot be read"
        answer = await self._questions.broker(
            self._members.broker(broker), lambda planes: planes.operations.config(), problem=problem
        )
        return as_value(BrokerSettings, answer, broker=broker)

    async def update_settings(
        self, broker: str, values: Mapping[str, str], *, dry_run: bool = False
    ) -> Sequence[ConfigChange]:
        """Changes settings of `name:id`, all or none, until its next start."""
        if not values:
            raise invalid("no setting is named", remedy="name a key and its new value")
        request = pb.UpdateConfigRequest(values=values, dry_run=dry_run)
        answer = await self._questions.broker(
            self._members.broker(broker),
            lambda planes: planes.operations.update_config(request),
            problem=f"the settings of {broker} were not changed",
        )
        return tuple(as_value(ConfigChange, one, broker=broker) for one in answer.changes)

    async def accept_loss(self, broker_name: str, *, names: Sequence[str] = (), dry_run: bool = False) -> AcceptedLoss:
        """Has the group's master, which waits at its start, serve without what it waits for: disks with messages, or
        damaged tables. `names` are all that a dry run told; REFUSED: it waits for nothing, for others by now, or for
        something that nobody can give up."""
        members = self._members.of_group(broker_name)
        master = self._members.broker(max(members, key=_may_have_lost).key)
        problem = f"what {master.key} waits for cannot be given up"
        waits = await self._questions.broker(
            master,
            lambda planes: planes.replica.accept_loss(replica_pb.AcceptLossRequest(dry_run=True)),
            problem=f"{master.key} does not say what it waits for",
        )
        if not waits.waits_for and not waits.missing:
            raise refused(
                f"{master.key} {'serves and ' if waits.serving else ''}waits for nothing; nothing was given up",
                remedy="`tandemmq status` shows how it is",
            )
        loss = _loss(master, waits, dry_run=dry_run)
        if not loss.names:
            raise refused(problem, cause=loss.waits_for, remedy="nobody can give that up; wait, or remove the cause")
        if dry_run:
            return loss
        whom = f"it waits for {', '.join(loss.names)}"
        if loss.serving:
            problem, whom = f"{master.key} serves, and forgot nobody", f"away are {', '.join(loss.names)}"
        if set(names) != set(loss.names):
            raise refused(
                problem,
                cause=f"{whom}; named was {', '.join(names) or 'nothing'}",
                remedy="look again with a dry run, and name what it tells",
            )
        request = replica_pb.AcceptLossRequest(
            disk_ids=[one.disk_id for one in loss.missing], damaged_tables=[one.file for one in loss.damaged_tables]
        )
        await self._questions.broker(master, lambda planes: planes.replica.accept_loss(request), problem=problem)
        return loss

    async def events(self, *, limit: int = 200) -> tuple[Sequence[EventLine], Sequence[Unseen]]:
        """What happened lately on all brokers, newest first; at most 500."""
        limit = max(1, min(limit, _EVENTS_MAX))
        brokers, silent = self._members.answering()
        answers = await self._questions.brokers(brokers, lambda planes: planes.operations.events(limit=limit))
        lines = newest_first(
            [as_value(EventLine, event, source=answer.subject) for event in reversed(answer.value.events)]
            for answer in answers
            if answer.value is not None
        )
        return lines[:limit], [*silent, *unseen_of(answers)]

    async def resend_dead_letters(
        self, group: str, broker_name: str, queue_offsets: Sequence[int], *, dry_run: bool = False
    ) -> Sequence[DeadLetterResult]:
        """Puts dead letters, at most 1,000, back into the topics they came from, a hundred at a time. PARTIAL names the
        first offset of those not tried."""
        if not 0 < len(queue_offsets) <= _LETTERS_MAX:
            raise invalid(
                f"{len(queue_offsets):,} dead letters are named", remedy=f"name from 1 to {_LETTERS_MAX:,} at a time"
            )
        for offset in queue_offsets:
            check_offset(offset)
        [master] = self._members.masters_to_change([broker_name])
        results: list[DeadLetterResult] = []
        for start in range(0, len(queue_offsets), _LETTERS_AT_ONCE):
            part = queue_offsets[start : start + _LETTERS_AT_ONCE]
            request = pb.ResendDeadLettersRequest(group=group, queue_offsets=part, dry_run=dry_run)
            answer = await self._resent(master, request)
            if answer.value is None:
                assert answer.failure is not None
                if not results or dry_run:
                    raise answer.failure.failed(answer.subject, f"dead letters of {group} were not sent again")
                raise OperationFailed(
                    FailureKind.PARTIAL,
                    f"{len(results):,} of {len(queue_offsets):,} dead letters of {group} were tried",
                    cause=f"{answer.subject}: {answer.failure.text}",
                    remedy=f"go on with offset {part[0]:,}; of the hundred from there on some may have been sent",
                )
            results += [as_value(DeadLetterResult, one, broker_name=broker_name) for one in answer.value.letters]
        return results

    async def _resent(
        self, master: BrokerState, request: pb.ResendDeadLettersRequest
    ) -> Answer[pb.ResendDeadLettersResponse]:
        [answer] = await self._questions.brokers(
            [master], lambda planes: planes.operations.resend_dead_letters(request)
        )
        return answer


def newest_first(sources: Iterable[Sequence[EventLine]]) -> list[EventLine]:
    """Lines of several sources together, each source's newest first and in its own order.

    By time, but what a source told later is never behind what it told earlier: a clock that was set back would hide it
    for as long as it was ahead.
    """
    placed: list[tuple[int, EventLine]] = []
    for lines in sources:
        times_ms = accumulate((line.time_ms for line in lines), min)
        placed += zip(times_ms, lines, strict=True)
    return [line for _, line in sorted(placed, key=itemgetter(0), reverse=True)]


def _loss(master: BrokerState, waits: replica_pb.AcceptLossResponse, *, dry_run: bool) -> AcceptedLoss:
    missing = tuple(
        as_value(
            MissingReplica,
            one,
            broker=f"{master.broker_name}:{one.broker_id}",
            last_seen_ms=one.last_seen_time.ToMilliseconds() if one.HasField("last_seen_time") else 0,
        )
        for one in waits.missing
    )
    return as_value(AcceptedLoss, waits, broker=master.key, missing=missing, dry_run=dry_run)


# Changes of master on purpose: a group's master hands over to a member of its in-sync set.

_SERVES_LIMIT_MS: Final = 15_000
"""More than two leases of the default: the successor is named, and claims at once."""
_POLL_S: Final = 0.05
_STATUS: Final = "`tandemmq ha status` shows what the group waits for"


class FailoverOperations:
    """Asks the members of one group, each for itself: the reading of the cluster may be older than the last change."""

    def __init__(self, members: Members, questions: Questions, *, clock: Clock) -> None:
        self._members = members
        self._questions = questions
        self._clock = clock

    async def hand_over(self, broker_name: str, *, to: int | None, dry_run: bool) -> HandOver:
        """See `Operations.failover`."""
        members = self._members.of_group(broker_name)
        by_id = {broker.broker_id: broker for broker in members}
        if to is not None and to not in by_id:
            raise not_found(
                f"{broker_name} has no broker {to}", remedy=f"choose one of {', '.join(map(str, sorted(by_id)))}"
            )
        master, epoch = await self._master(broker_name, members)
        if to == master.broker_id:
            return HandOver(broker_name, master.key, master.key, epoch, 0, dry_run)
        successor = await self._ask(master, to, dry_run=True)
        planned = HandOver(broker_name, master.key, f"{broker_name}:{successor}", epoch, 0, dry_run)
        if dry_run:
            return planned
        if successor not in by_id:
            raise unavailable(f"{planned.to_broker} is not known yet", remedy="ask again in some seconds")
        begun_ms = self._clock.monotonic_ms()
        await self._ask(master, successor, dry_run=False)
        new_epoch = await self._until_serving(by_id[successor], after_epoch=epoch, begun_ms=begun_ms)
        took_ms = self._clock.monotonic_ms() - begun_ms
        return HandOver(broker_name, master.key, planned.to_broker, new_epoch, took_ms, dry_run)

    async def claim_unclean(self, broker_name: str, *, to: int | None, dry_run: bool) -> HandOver:
        """See `Operations.failover`."""
        members = self._members.of_group(broker_name)
        candidate = next((broker for broker in members if broker.broker_id == to), None)
        if candidate is None:
            raise OperationFailed(
                FailureKind.NOT_FOUND if to is not None else FailureKind.INVALID,
                f"{broker_name} has no broker {to}"
                if to is not None
                else "an unclean change needs the new master named",
                remedy=f"choose one of {', '.join(str(broker.broker_id) for broker in members)}",
            )
        told = await self._questions.broker(
            candidate, lambda planes: planes.failover.state(), problem=f"{candidate.key} does not become master"
        )
        state = as_value(FailoverState, told)
        before = f"{broker_name}:{state.master.broker_id}" if state.master is not None else "nobody"
        begun_ms = self._clock.monotonic_ms()
        claim = await self._questions.broker(
            candidate,
            lambda planes: planes.failover.claim_unclean(failover_pb.ClaimUncleanRequest(dry_run=dry_run)),
            problem=f"{candidate.key} does not become master",
        )
        given_up = tuple(f"{broker_name}:{replica.broker_id}" for replica in claim.missing)
        epoch = state.epoch
        if not dry_run:
            epoch = await self._until_serving(candidate, after_epoch=state.epoch, begun_ms=begun_ms)
        return HandOver(
            broker_name,
            before,
            candidate.key,
            epoch,
            self._clock.monotonic_ms() - begun_ms,
            dry_run,
            given_up=given_up,
            lost_bytes=claim.lost_bytes,
        )

    async def _ask(self, master: BrokerState, to: int | None, *, dry_run: bool) -> int:
        request = failover_pb.HandOverRequest(to_broker_id=to, dry_run=dry_run)
        answer = await self._questions.broker(
            master,
            lambda planes: planes.failover.hand_over(request),
            problem=f"{master.key} stays the master" if dry_run else f"{master.key} did not hand over",
        )
        return answer.to_broker_id

    async def _master(self, broker_name: str, members: Sequence[BrokerState]) -> tuple[BrokerState, int]:
        """Who acts as the master, and its epoch."""
        answers = await self._questions.brokers(members, lambda planes: planes.failover.state())
        states = [
            (broker, as_value(FailoverState, one.value))
            for broker, one in zip(members, answers, strict=True)
            if one.value
        ]
        if not states:
            raise _nobody_answers(broker_name, answers)
        acting = [(broker, state.epoch) for broker, state in states if state.acts]
        if not acting:
            raise refused(
                f"{broker_name} has no master that could hand over",
                cause="\n".join(f"{broker.key}: {_stands(state)}" for broker, state in states),
                remedy=f"{_STATUS}; it elects one by itself when a member of its in-sync set is up",
            )
        return max(acting, key=lambda one: one[1])

    async def _until_serving(self, successor: BrokerState, *, after_epoch: int, begun_ms: int) -> int:
        """The new epoch, once the successor takes messages."""
        while self._clock.monotonic_ms() - begun_ms < _SERVES_LIMIT_MS:
            [answer] = await self._questions.brokers([successor], lambda planes: planes.admin.status())
            status = answer.value
            if status is not None and not status.write_refusal:
                state = status.failover
                if state.acts and state.epoch > after_epoch:
                    return state.epoch
            await asyncio.sleep(_POLL_S)
        raise unavailable(
            f"{successor.key} was named the master, and does not serve after {_SERVES_LIMIT_MS // 1_000} s",
            remedy=_STATUS,
        )


def _may_have_lost(broker: BrokerState) -> tuple[bool, bool]:
    """Who waits at its start goes before who serves as the master, which need not be broker 0."""
    status = broker.status
    return status is not None and status.start_wait is not None, status is not None and broker.is_master


def _stands(state: FailoverState) -> str:
    return state.problem or ("may be elected" if state.is_electable else "may not be elected, or waits for the lease")


def _nobody_answers(
    broker_name: str, answers: Sequence[Answer[failover_pb.GetFailoverStateResponse]]
) -> OperationFailed:
    refusals = [answer for answer in answers if answer.failure and answer.failure.kind is FailureKind.REFUSED]
    cause = "\n".join(f"{one.subject}: {one.failure.text}" for one in refusals or answers if one.failure is not None)
    if not refusals:
        return unavailable(f"nobody of {broker_name} answers", cause=cause)
    return refused(
        f"{broker_name} does not fail over",
        cause=cause,
        remedy="set failoverAuthority to the same on all its members, and restart them",
    )


# Tails that brokers cut off their logs, and bringing back what is missing of them.
#
# A part of a tail is read, its records are found, every broker group is asked which of the messages it holds, and those
# that none holds are stored again by the master of the group the tail is of. That master asks itself once more before
# it stores, so a repetition, at any point, stores nothing twice.

_TAILS_MAX: Final = 500
"""Of one broker that are listed."""
_READ_BYTES: Final = 1 << 20
"""As much as a broker gives in one call."""
_PART_BYTES: Final = 4 << 20
"""Of a tail that is done in one go, or what is unreadable in a row with it."""
_PART_BYTES_MAX: Final = 64 << 20
_CHECKED_AT_ONCE: Final = 200
_STORED_AT_ONCE: Final = 64
_STORED_BYTES_AT_ONCE: Final = 4 << 20
_RECORDS_MAX: Final = 20_000
"""Of one call. The smallest record has 91 bytes: a part holds some 45,000 at most, so it ends earlier then."""
_STATES: Final = {
    pb.HOLDING_STATE_HELD: HoldingState.HELD,
    pb.HOLDING_STATE_MISSING: HoldingState.MISSING,
    pb.HOLDING_STATE_UNKNOWN: HoldingState.UNKNOWN,
}


class KeptTailOperations:
    """Asks single brokers, named `name:id`, and all masters."""

    def __init__(self, members: Members, questions: Questions) -> None:
        self._members = members
        self._questions = questions

    async def tails(self) -> tuple[Sequence[KeptTail], Sequence[Unseen]]:
        """What was cut off the logs of all brokers, and kept, by name, id and place; of each broker at most 500."""
        brokers, silent = self._members.answering()
        request = pb.ListKeptTailsRequest(page_size=_TAILS_MAX)
        answers = await self._questions.brokers(brokers, lambda planes: planes.operations.kept_tails(request))
        found = [
            as_value(KeptTail, view, broker=answer.subject)
            for answer in answers
            if answer.value is not None
            for view in answer.value.tails
        ]
        return found, [*silent, *unseen_of(answers)]

    async def restore(self, broker: str, name: str, *, page_token: str = "", dry_run: bool = False) -> TailResult:
        """Stores again what is missing of a part, some 4 MiB, of a tail that `name:id` keeps, on the master of its
        group, under the ids it had. Idempotent. NOT_FOUND: it keeps no such tail; REFUSED: a broker group does not
        answer."""
        member = self._members.broker(broker)
        tail = await self._tail(broker, name)
        walk = _walk_from(tail, page_token)
        records: list[tuple[int, bytes]] = []
        unreadable: list[UnreadableRange] = []
        read_bytes = 0
        while (wanted := walk.wanted) is not None and read_bytes < _PART_BYTES_MAX:
            is_enough = read_bytes >= _PART_BYTES or len(records) >= _RECORDS_MAX
            if is_enough and walk.state[1] is None:
                break
            data = await self._read(member.key, name, *wanted)
            read_bytes += len(data)
            _add(walk.take(data), records, unreadable)
        messages = await self.restore_records(member.broker_name, records, dry_run=dry_run)
        return TailResult(tail, tuple(messages), tuple(unreadable), _token(walk), dry_run)

    async def restore_records(
        self, broker_name: str, records: Sequence[tuple[int, bytes]], *, dry_run: bool = False
    ) -> Sequence[TailMessage]:
        """Stores what no broker group holds; the records of any tail, with their offsets."""
        results: list[TailMessage] = []
        for start in range(0, len(records), _CHECKED_AT_ONCE):
            part = records[start : start + _CHECKED_AT_ONCE]
            checked = await self._checked(part)
            missing = [index for index, message in enumerate(checked) if message.state is HoldingState.MISSING]
            for batch in _batches(missing, [len(part[index][1]) for index in missing]):
                outcome = await self._stored(
                    broker_name, [checked[i] for i in batch], [part[i][1] for i in batch], dry_run
                )
                for index, message in zip(batch, outcome, strict=True):
                    checked[index] = message
            results += checked
        return results

    async def _checked(self, records: Sequence[tuple[int, bytes]]) -> list[TailMessage]:
        """Each with what is known of it anywhere. REFUSED: a group does not answer, which may have it."""
        messages, fingerprints = [], []
        for offset, data in records:
            message, fingerprint = _fingerprint(offset, data)
            messages.append(message)
            fingerprints.append(fingerprint)
        request = pb.CheckMessagesRequest(messages=fingerprints)
        answers = await self._questions.brokers(
            self._members.masters_to_change(), lambda planes: planes.operations.check_messages(request)
        )
        for answer in answers:
            if answer.value is None:
                assert answer.failure is not None
                raise answer.failure.failed(answer.subject, "whether it holds the messages cannot be known")
            for index, holding in enumerate(answer.value.holdings):
                state = _STATES.get(holding.state, HoldingState.UNKNOWN)
                before = messages[index]
                if before.state is HoldingState.HELD or state is HoldingState.MISSING:
                    continue
                if state is HoldingState.HELD:
                    messages[index] = replace(before, state=state, held_by=answer.broker_name, problem="")
                elif before.state is HoldingState.MISSING:
                    messages[index] = replace(before, state=state, problem=f"{answer.subject}: {holding.problem}")
        return messages

    async def _stored(
        self, broker_name: str, messages: Sequence[TailMessage], records: Sequence[bytes], dry_run: bool
    ) -> list[TailMessage]:
        request = pb.RestoreMessagesRequest(records=records, dry_run=dry_run)
        [answer] = await self._questions.brokers(
            self._members.masters_to_change([broker_name]), lambda planes: planes.operations.restore_messages(request)
        )
        if answer.value is None:
            assert answer.failure is not None
            if dry_run:
                raise answer.failure.failed(answer.subject, "nothing can be restored there")
            # Some of them may be stored: the next time tells.
            problem = f"whether it was stored is not known ({answer.subject}: {answer.failure.text}): repeat it"
            return [replace(message, problem=problem) for message in messages]
        return [
            replace(
                message,
                state=_STATES.get(one.state, HoldingState.UNKNOWN),
                queue_id=one.queue_id if one.new_queue_offset >= 0 else -1,
                new_queue_offset=one.new_queue_offset,
                held_by=broker_name if one.state == pb.HOLDING_STATE_HELD else "",
                problem=one.problem,
            )
            for message, one in zip(messages, answer.value.messages, strict=True)
        ]

    async def _tail(self, broker: str, name: str) -> KeptTail:
        problem = f"the kept tails of {broker} cannot be listed"
        token = ""
        while True:
            request = pb.ListKeptTailsRequest(page_size=_TAILS_MAX, page_token=token)
            answer = await self._questions.broker(
                self._members.broker(broker), _asking(BrokerOperationsCalls.kept_tails, request), problem=problem
            )
            for view in answer.tails:
                if view.name == name:
                    return as_value(KeptTail, view, broker=broker)
            token = answer.next_page_token
            if not token:
                break
        raise not_found(
            f"{broker} keeps no tail {name}", remedy="`tandemmq restore-kept-tail` without a name lists those there are"
        )

    async def _read(self, broker: str, name: str, offset: int, length: int) -> bytes:
        pieces: list[bytes] = []
        end = offset + length
        while offset < end:
            request = pb.ReadKeptTailRequest(name=name, offset=offset, length_bytes=min(_READ_BYTES, end - offset))
            answer = await self._questions.broker(
                self._members.broker(broker),
                _asking(BrokerOperationsCalls.read_kept_tail, request),
                problem=f"the tail {name} cannot be read",
            )
            if not answer.data:
                raise unavailable(f"the tail {name} ends at {offset:,} all at once")
            pieces.append(answer.data)
            offset += len(answer.data)
        return b"".join(pieces)


def _asking(
    call: Callable[[BrokerOperationsCalls, RequestT], Awaitable[AnswerT]], request: RequestT
) -> Callable[[BrokerPlanes], Awaitable[AnswerT]]:
    """The question that makes a call with this request, whatever the name means later."""
    return lambda planes: call(planes.operations, request)


def _add(part: TailPart, records: list[tuple[int, bytes]], unreadable: list[UnreadableRange]) -> None:
    records += part.records
    unreadable += [UnreadableRange(one.start_offset, one.end_offset, one.reason) for one in part.unreadable]


def _fingerprint(offset: int, data: bytes) -> tuple[TailMessage, pb.MessageFingerprint]:
    try:
        record = decode_record(data)
        properties = decode_properties(record.properties)
    except MalformedRecord as error:
        raise invalid(f"what lies at {offset:,} is no record: {error.reason}") from error
    message_id = message_id_of(record, properties)
    fingerprint = pb.MessageFingerprint(
        message_id=message_id,
        topic=record.topic,
        body_sha256=hashlib.sha256(record.body).digest(),
        physical_offset=record.physical_offset,
    )
    fingerprint.store_time.FromMilliseconds(max(0, record.store_timestamp_ms))
    message = TailMessage(
        offset, message_id, record.topic, record.store_timestamp_ms, HoldingState.MISSING, "", -1, -1, ""
    )
    return message, fingerprint


def _batches(indexes: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """As a broker takes them in one call."""
    batches: list[list[int]] = []
    batch_bytes = 0
    for index, size in zip(indexes, sizes, strict=True):
        if not batches or len(batches[-1]) >= _STORED_AT_ONCE or batch_bytes + size > _STORED_BYTES_AT_ONCE:
            batches.append([])
            batch_bytes = 0
        batches[-1].append(index)
        batch_bytes += size
    return batches


def _token(walk: TailWalk) -> str:
    """Where the next part begins; empty: this was all."""
    if walk.wanted is None:
        return ""
    return base64.urlsafe_b64encode(json.dumps(walk.state).encode()).decode()


def _walk_from(tail: KeptTail, page_token: str) -> TailWalk:
    if not page_token:
        return TailWalk(tail.start_offset, tail.end_offset)
    try:
        position, lost_from, reason = json.loads(base64.urlsafe_b64decode(page_token))
        is_ours = isinstance(position, int) and isinstance(lost_from, int | None) and isinstance(reason, str)
        if (
            not is_ours
            or not tail.start_offset <= (position if lost_from is None else lost_from) <= position <= tail.end_offset
        ):
            raise ValueError(page_token)
    except (ValueError, TypeError) as error:
        raise invalid("page_token: it is none of this tail's", remedy="begin again without one") from error
    return TailWalk(position, tail.end_offset, lost_from=lost_from, lost_reason=reason)
