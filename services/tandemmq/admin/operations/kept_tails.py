"""Tails that brokers cut off their logs, and bringing back what is missing of them.

A part of a tail is read, its records are found, every broker group is asked which of the messages it holds, and those
that none holds are stored again by the master of the group the tail is of. That master asks itself once more before it
stores, so a repetition, at any point, stores nothing twice.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from tandemmq.admin.operations.questions import (
    BrokerPlanes,
    Members,
    Questions,
    invalid,
    not_found,
    unavailable,
    unseen_of,
)
from tandemmq.admin.operations.values import HoldingState, KeptTail, TailMessage, TailResult, UnreadableRange, Unseen
from tandemmq.admin.rpc import BrokerOperationsCalls
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import decode_record, message_id_of
from tandemmq.core.message.record_layout import MalformedRecord
from tandemmq.core.storage.kept_tail import TailPart, TailWalk
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb
from tandemmq.service.protobuf import as_value

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

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
