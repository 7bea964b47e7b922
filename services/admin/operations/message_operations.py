"""Single messages: found by their ids, shown whole, their copies compared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import grpc
import grpc.aio
from tandemmq.admin.v1 import message_query_service_pb2 as pb

from admin.cluster_state import BrokerState
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.group_operations import GroupOperations
from admin.operations.members import Members
from admin.operations.message_limits import BODY_BYTES_MAX
from admin.operations.message_views import message_of, query_request, summary_of
from admin.operations.questions import Answer, BrokerPlanes, Questions, each_once, unseen_of
from admin.operations.replica_copies import copies_of
from admin.operations.values import Message, MessageDetail, MessageQuery, MessageSummary, Progress, Unseen
from mqcore.message.record import parse_offset_message_id

__all__ = ["MessageOperations"]

_RECORDS_MAX: Final = 16
"""As many as a broker tells of one id: after redelivery and dead-lettering there is more than one."""
_ID_CHARACTERS_MAX: Final = 255


class MessageOperations:
    """Reads from the masters, or from the slaves of those that are away."""

    def __init__(self, members: Members, questions: Questions, groups: GroupOperations) -> None:
        self._members = members
        self._questions = questions
        self._groups = groups

    async def find(self, message_id: str, *, topic: str) -> list[MessageSummary]:
        """Records with that id, newest first. UNAVAILABLE when none is found and not everybody could be asked."""
        message_id = message_id.strip()
        if not message_id or len(message_id) > _ID_CHARACTERS_MAX:
            raise OperationFailed(
                FailureKind.INVALID, "this is no message id", remedy=f"give 1 to {_ID_CHARACTERS_MAX} characters"
            )
        readers = self._members.readers()
        by_offset = await self._by_offset_id(readers.brokers, message_id, topic)
        if found := [message for answer in by_offset for message in answer.value or ()]:
            return found
        by_client = await self._by_client_id(readers.brokers, message_id, topic)
        found = [message for answer in by_client for message in answer.value or ()]
        unseen = [*readers.unseen, *unseen_of(by_client, but=FailureKind.NOT_FOUND)]
        if not found and unseen:
            raise OperationFailed(
                FailureKind.UNAVAILABLE,
                f"message {message_id} was not found, but not everybody could be asked",
                cause="\n".join(f"{each.subject}: {each.reason}" for each in unseen),
                remedy="ask again when they are back",
            )
        return sorted(found, key=lambda message: (message.store_ms, message.physical_offset), reverse=True)

    async def at_physical(self, broker_name: str, physical_offset: int, *, body_bytes: int) -> MessageDetail:
        """The message whose record begins there."""
        _check_offset(physical_offset)
        request = pb.GetMessageRequest(physical_offset=physical_offset, body_bytes=_body_limit(body_bytes))
        return await self._detail(broker_name, request, f"no message begins at {physical_offset:,} on {broker_name}")

    async def at_queue(
        self, broker_name: str, topic: str, queue_id: int, queue_offset: int, *, body_bytes: int
    ) -> MessageDetail:
        """The message at a place of a queue."""
        _check_offset(queue_offset)
        if not 0 <= queue_id < 1 << 31:
            raise OperationFailed(FailureKind.INVALID, f"{queue_id} is no queue", remedy="give a number from 0 on")
        place = pb.QueuePlace(topic=topic, queue_id=queue_id, queue_offset=queue_offset)
        request = pb.GetMessageRequest(queue=place, body_bytes=_body_limit(body_bytes))
        problem = f"queue {queue_id} of {topic} on {broker_name} has no message {queue_offset:,}"
        return await self._detail(broker_name, request, problem)

    async def _detail(self, broker_name: str, request: pb.GetMessageRequest, not_found: str) -> MessageDetail:
        readers = self._members.readers(broker_name)
        [reader] = readers.brokers
        [answer] = await self._questions.brokers([reader], lambda broker: broker.messages.message(request))
        if answer.value is None:
            assert answer.failure is not None
            is_absent = answer.failure.kind is FailureKind.NOT_FOUND
            raise answer.failure.failed(answer.subject, not_found if is_absent else "the message cannot be read")
        message = message_of(broker_name, answer.value)
        copies, (consumption, unseen) = await asyncio.gather(
            copies_of(
                self._questions, self._members.of_group(broker_name), message.physical_offset, message.record_bytes
            ),
            self._consumption(message),
        )
        return MessageDetail(message, copies, consumption, each_once(readers.unseen, unseen))

    async def _consumption(self, message: Message) -> tuple[dict[str, str], Sequence[Unseen]]:
        try:
            progress, unseen = await self._groups.progress_in(message.topic)
        except OperationFailed as failure:
            return {}, (Unseen(f"{message.broker_name}:0", failure.problem),)
        groups = sorted({one.group for one in progress})
        by_group = {
            one.group: one
            for one in progress
            if (one.broker_name, one.queue_id) == (message.broker_name, message.queue_id)
        }
        return {group: _standing(by_group.get(group), message.queue_offset) for group in groups}, unseen

    async def _by_client_id(
        self, readers: Sequence[BrokerState], message_id: str, topic: str
    ) -> list[Answer[list[MessageSummary]]]:
        async def of_topic(broker: BrokerPlanes) -> list[MessageSummary]:
            query = MessageQuery(topic, key=message_id)
            request = query_request(query, start_ms=-1, end_ms=-1, limit=_RECORDS_MAX, page_token=b"")
            answer = await broker.messages.query(request)
            views = [view for view in answer.messages if view.message_id == message_id]
            return [summary_of(broker.broker.broker_name, view) for view in views]

        async def of_all_topics(broker: BrokerPlanes) -> list[MessageSummary]:
            answer = await broker.traces.message(message_id, "")
            if not answer.indexed:
                raise OperationFailed(
                    FailureKind.REFUSED,
                    f"{broker.broker.key} cannot find messages by their ids",
                    cause="its messageIndexEnable is off",
                    remedy="look for the message by topic and time",
                )
            found = []
            for stored in answer.messages[:_RECORDS_MAX]:
                view = await _message_or_none(broker, stored.physical_offset)
                # The index mixes ids and keys: a message that merely has this text among its keys is another one.
                if view is not None and view.message_id == message_id:
                    found.append(summary_of(broker.broker.broker_name, view))
            return found

        return await self._questions.brokers(readers, of_topic if topic else of_all_topics)

    async def _by_offset_id(
        self, readers: Sequence[BrokerState], message_id: str, topic: str
    ) -> list[Answer[list[MessageSummary]]]:
        """An id of address and offset. The address is not dialled: each broker is asked for its record at the offset,
        and the record knows its id."""
        try:
            _, physical_offset = parse_offset_message_id(message_id)
        except ValueError:
            return []
        if physical_offset < 0:
            return []
        request = pb.GetMessageRequest(physical_offset=physical_offset)

        async def ask(broker: BrokerPlanes) -> list[MessageSummary]:
            view = await broker.messages.message(request)
            is_it = view.offset_message_id.upper() == message_id.upper() and topic in ("", view.topic)
            return [summary_of(broker.broker.broker_name, view)] if is_it else []

        return await self._questions.brokers(readers, ask)


async def _message_or_none(broker: BrokerPlanes, physical_offset: int) -> pb.MessageView | None:
    """None: it has expired since it was found."""
    try:
        return await broker.messages.message(pb.GetMessageRequest(physical_offset=physical_offset))
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return None
        raise


def _standing(progress: Progress | None, queue_offset: int) -> str:
    if progress is None:
        return "not known: it has not read this queue"
    return "acknowledged" if queue_offset < progress.committed_offset else "in flight or waiting"


def _body_limit(body_bytes: int) -> int:
    return min(max(0, body_bytes), BODY_BYTES_MAX)


def _check_offset(offset: int) -> None:
    if not 0 <= offset < 1 << 63:
        raise OperationFailed(FailureKind.INVALID, f"{offset} is no offset", remedy="give a number from 0 on")
