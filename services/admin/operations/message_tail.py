"""Messages of a topic as they come in, to those who look.

Brokers are asked for the ends of their queues; what lies beyond the ends of before is fetched. So nothing is missed for
a clock that jumps, and a topic in which nothing happens costs one small question a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeAlias

from tandemmq.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.admin.v1 import message_query_service_pb2 as query_pb

from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.members import Members
from admin.operations.message_limits import PAGE_BODY_BYTES_MAX
from admin.operations.message_views import summary_of
from admin.operations.questions import Answer, BrokerPlanes, Questions, values_of
from admin.operations.values import MessageSummary

__all__ = ["MessageTail"]

_TAILS_MAX: Final = 16
_POLL_S: Final = 1.0
_SHOWN_PER_POLL_MAX: Final = 200
"""Nobody reads faster. Of more than that the newest of each queue are shown."""

# Broker group and queue id.
_Queue: TypeAlias = tuple[str, int]
_KNOWN: Final = -1


class MessageTail:
    """Bounds how many look at once. Brokers that do not answer are left out until they are back."""

    def __init__(self, members: Members, questions: Questions, *, poll_s: float = _POLL_S) -> None:
        self._members = members
        self._questions = questions
        self._poll_s = poll_s
        self._count = 0

    async def messages(self, topic: str, *, tags: Sequence[str], body_bytes: int) -> AsyncIterator[MessageSummary]:
        """From now on, ordered within a second's; ends when the caller stops. REFUSED: too many look already."""
        if self._count >= _TAILS_MAX:
            raise OperationFailed(
                FailureKind.REFUSED,
                f"{_TAILS_MAX} look at incoming messages already",
                remedy="close one of them, or ask again later",
            )
        self._count += 1
        try:
            ends = await self._first_ends(topic)
            while True:
                await asyncio.sleep(self._poll_s)
                for message in await self._newer(topic, ends, tags, min(body_bytes, PAGE_BODY_BYTES_MAX)):
                    yield message
        finally:
            self._count -= 1

    async def _first_ends(self, topic: str) -> dict[_Queue, int]:
        """Where each queue ends now. NOT_FOUND: nobody who answers has the topic."""
        answers = await self._topics(topic)
        found = _ends(answers)
        if found is None:
            reasons = [f"{one.subject}: {one.failure.text}" for one in answers if one.failure is not None]
            raise OperationFailed(
                FailureKind.NOT_FOUND,
                f"there is no topic {topic}" + (" on the brokers that answer" if reasons else ""),
                cause="\n".join(reasons),
            )
        return found

    async def _newer(
        self, topic: str, ends: dict[_Queue, int], tags: Sequence[str], body_bytes: int
    ) -> list[MessageSummary]:
        """What has come since `ends`, which moves on; oldest first."""
        try:
            grown = _grown(ends, await self._topics(topic))
            brokers = [broker for broker in self._members.readers().brokers if broker.broker_name in grown]
        except OperationFailed:
            # Nobody answers now.
            return []
        share = max(1, _SHOWN_PER_POLL_MAX // max(1, sum(len(stretches) for stretches in grown.values())))

        async def fetch(broker: BrokerPlanes) -> list[MessageSummary]:
            name = broker.broker.broker_name
            found = []
            for stretch in grown[name]:
                stretch.start_offset = max(stretch.start_offset, stretch.end_offset - share)
                request = query_pb.QueryMessagesRequest(
                    topic=topic, queue=stretch, limit=share, body_bytes=body_bytes, tags=tags
                )
                answer = await broker.messages.query(request)
                # Large bodies may have ended the page early: the rest comes with the next poll.
                is_cut = bool(answer.next_page_token and answer.messages)
                end = answer.messages[-1].queue_offset + 1 if is_cut else stretch.end_offset
                ends[name, stretch.queue_id] = end
                found += [summary_of(name, view) for view in answer.messages]
            return found

        fetched = await self._questions.brokers(brokers, fetch)
        messages = [message for _, found in values_of(fetched) for message in found]
        return sorted(messages, key=lambda message: (message.store_ms, message.broker_name, message.physical_offset))

    async def _topics(self, topic: str) -> list[Answer[list[admin_pb.TopicStatus]]]:
        async def ask(broker: BrokerPlanes) -> list[admin_pb.TopicStatus]:
            topics = await broker.admin.topics(include_system=True, names=[topic])
            # A broker of an older version answers with all its topics.
            return [status for status in topics if status.topic == topic]

        return await self._questions.brokers(self._members.readers().brokers, ask)


def _ends(answers: Sequence[Answer[list[admin_pb.TopicStatus]]]) -> dict[_Queue, int] | None:
    """None: no broker has the topic. One that has it is known by its queue -1, whether or not it holds anything."""
    ends: dict[_Queue, int] = {}
    for broker_name, topics in values_of(answers):
        for topic in topics:
            ends[broker_name, _KNOWN] = 0
            ends |= {(broker_name, queue.queue_id): queue.max_offset for queue in topic.queues}
    return ends or None


def _grown(
    ends: dict[_Queue, int], answers: Sequence[Answer[list[admin_pb.TopicStatus]]]
) -> dict[str, list[query_pb.QueueRange]]:
    """What lies beyond `ends`, by broker group. What is met for the first time is added to them."""
    grown: dict[str, list[query_pb.QueueRange]] = {}
    for broker_name, topics in values_of(answers):
        is_known = (broker_name, _KNOWN) in ends
        for topic in topics:
            ends[broker_name, _KNOWN] = 0
            for queue in topic.queues:
                # A queue that a known broker tells of for the first time was empty before.
                begin = ends.setdefault(
                    (broker_name, queue.queue_id), queue.min_offset if is_known else queue.max_offset
                )
                if queue.max_offset > begin:
                    stretch = query_pb.QueueRange(
                        queue_id=queue.queue_id, start_offset=begin, end_offset=queue.max_offset
                    )
                    grown.setdefault(broker_name, []).append(stretch)
                elif queue.max_offset < begin:
                    # The topic was removed and made anew.
                    ends[broker_name, queue.queue_id] = queue.max_offset
    return grown
