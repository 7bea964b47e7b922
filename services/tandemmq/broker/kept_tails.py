"""Tails that were cut off this broker's log, and messages of such tails stored again. The edge: protobuf stops here.

A message is *held* when a record with its id, its topic and its body lies where consumers get it from. What is held is
not stored again, and this is asked anew right before each is stored, by one caller at a time: so it does not matter how
often, from where, or after which crash messages are restored.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from tandemmq.broker.client_api.services import BrokerServices
from tandemmq.broker.dead_letters import PUT_LIMIT_S, put_again, topic_problem, wait_for_puts
from tandemmq.broker.queries.values import Fingerprint, HoldingUnknown
from tandemmq.core.message.properties import (
    PROPERTY_CRC32,
    PROPERTY_SHARDING_KEY,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
)
from tandemmq.core.message.record import (
    SCHEDULE_TOPIC,
    MessageRecord,
    OutgoingMessage,
    copy_of_record,
    decode_record,
    message_id_of,
)
from tandemmq.core.message.record_layout import MalformedRecord
from tandemmq.core.routing.queue_choice import QueueRotation, queue_of_message_group
from tandemmq.core.storage.disk import Disk
from tandemmq.core.storage.kept_tail import KeptTail, kept_tail_named, kept_tails
from tandemmq.core.storage.put_result import AppendResult
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb

if TYPE_CHECKING:
    from tandemmq.broker.queries.message_queries import MessageQueries

log = structlog.get_logger(__name__)

_AT_ONCE: Final = 8
"""Put before their outcomes are waited for."""
_LEFT_BEHIND: Final = frozenset({PROPERTY_CRC32})
"""It is of the record that the property stood in."""
_STATES: Final = {True: pb.HOLDING_STATE_HELD, False: pb.HOLDING_STATE_MISSING}


class TailUnknown(Exception):
    """There is no kept tail of that name, or it does not reach so far."""


class KeptTails:
    """Event loop only; files are read by threads. Of `restore` the caller has made sure that this is a master that
    takes messages."""

    def __init__(
        self,
        *,
        disk: Disk,
        services: BrokerServices,
        queries: MessageQueries,
        is_system_topic: Callable[[str], bool],
    ) -> None:
        self._disk = disk
        self._services = services
        self._queries = queries
        self._is_system_topic = is_system_topic
        self._rotation = QueueRotation()
        self._restoring = asyncio.Lock()

    async def tails(self, *, after: str, limit: int) -> tuple[list[KeptTail], str]:
        """Those behind the one named `after`, and the name to go on with; empty: these were the last."""
        found = [tail for tail in await asyncio.to_thread(kept_tails, self._disk) if tail.name > after]
        return found[:limit], found[limit - 1].name if len(found) > limit else ""

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of one, as many as there are. TailUnknown."""
        return await asyncio.to_thread(self._read, name, offset, length)

    def _read(self, name: str, offset: int, length: int) -> bytes:
        tail = kept_tail_named(self._disk, name)
        if tail is None:
            raise TailUnknown(f"name: this broker keeps no tail {name[:100]!r}; ListKeptTails names those it has")
        if not tail.start_offset <= offset < tail.end_offset:
            raise TailUnknown(f"offset: {offset} is outside of it, it is [{tail.start_offset}, {tail.end_offset})")
        file = self._disk.open_block_file(tail.path, tail.end_offset - tail.start_offset, create=False)
        try:
            return file.read(offset - tail.start_offset, min(length, tail.end_offset - offset))
        finally:
            file.close()

    async def check(self, messages: Sequence[pb.MessageFingerprint]) -> list[pb.MessageHolding]:
        """What is known of each, in their order. QueriesBusy."""
        holdings = []
        for message in messages:
            wanted = Fingerprint(
                message_id=message.message_id,
                topic=message.topic,
                body_sha256=message.body_sha256,
                physical_offset=message.physical_offset,
                store_ms=message.store_time.ToMilliseconds(),
            )
            state, problem = await self._holding(wanted)
            holdings.append(pb.MessageHolding(state=state, problem=problem))
        return holdings

    async def restore(self, records: Sequence[bytes], *, dry_run: bool) -> list[pb.RestoredMessage]:
        """What came of each, in their order. QueriesBusy, before anything was stored."""
        deadline_s = asyncio.get_running_loop().time() + PUT_LIMIT_S
        async with asyncio.timeout_at(deadline_s):
            await self._restoring.acquire()
        try:
            return await self._restore(records, deadline_s, dry_run=dry_run)
        finally:
            self._restoring.release()

    async def _restore(self, records: Sequence[bytes], deadline_s: float, *, dry_run: bool) -> list[pb.RestoredMessage]:
        restored: list[pb.RestoredMessage] = []
        planned: set[Fingerprint] = set()
        for start in range(0, len(records), _AT_ONCE):
            puts: list[tuple[pb.RestoredMessage, asyncio.Future[AppendResult]]] = []
            for data in records[start : start + _AT_ONCE]:
                answer = pb.RestoredMessage(new_queue_offset=-1)
                restored.append(answer)
                message = await self._missing(data, answer, planned)
                if message is None or dry_run:
                    continue
                if asyncio.get_running_loop().time() >= deadline_s:
                    answer.problem = "not stored: those before it took all the time there was"
                else:
                    answer.queue_id = message.queue_id
                    puts.append((answer, put_again(self._services, message)))
            await wait_for_puts(puts, deadline_s)
        if not dry_run:
            stored = sum(answer.new_queue_offset >= 0 for answer in restored)
            held = sum(answer.state == pb.HOLDING_STATE_HELD for answer in restored)
            log.info(
                "messages_restored", by="operator", stored=stored, held_before=held, others=len(records) - stored - held
            )
        return restored

    async def _missing(
        self, data: bytes, answer: pb.RestoredMessage, planned: set[Fingerprint]
    ) -> OutgoingMessage | None:
        """What is to be put; None: nothing, and the answer says why."""
        try:
            record = decode_record(data)
        except MalformedRecord as error:
            answer.state, answer.problem = pb.HOLDING_STATE_UNKNOWN, f"this is no record: {error.reason}"
            return None
        properties = decode_properties(record.properties)
        answer.topic = record.topic
        answer.message_id = message_id_of(record, properties)
        wanted = Fingerprint(
            message_id=answer.message_id,
            topic=record.topic,
            body_sha256=hashlib.sha256(record.body).digest(),
            physical_offset=0,
            store_ms=record.store_timestamp_ms,
        )
        if wanted in planned:
            # A client that sent it twice: with the first copy this one is held.
            answer.state = pb.HOLDING_STATE_HELD
            return None
        answer.state, answer.problem = await self._holding(wanted.at(record.physical_offset))
        if answer.state != pb.HOLDING_STATE_MISSING:
            return None
        answer.problem = self._problem(record)
        if answer.problem:
            return None
        planned.add(wanted)
        return self._outgoing(record, properties, answer.message_id)

    async def _holding(self, wanted: Fingerprint) -> tuple[pb.HoldingState, str]:
        try:
            return _STATES[await self._queries.holds(wanted)], ""
        except HoldingUnknown as error:
            return pb.HOLDING_STATE_UNKNOWN, str(error)

    def _problem(self, record: MessageRecord) -> str:
        if record.topic == SCHEDULE_TOPIC or self._is_system_topic(record.topic):
            return f"{record.topic} is a topic of the broker's own: what waited there is not stored again"
        return topic_problem(self._services, record.topic)

    def _outgoing(self, record: MessageRecord, properties: dict[str, str], message_id: str) -> OutgoingMessage:
        kept = {name: value for name, value in properties.items() if name not in _LEFT_BEHIND}
        kept.setdefault(PROPERTY_UNIQUE_KEY, message_id)
        queue_id = self._queue(record, kept.get(PROPERTY_SHARDING_KEY, ""))
        return copy_of_record(record, record.topic, queue_id, kept, reconsume_times=record.reconsume_times)

    def _queue(self, record: MessageRecord, message_group: str) -> int:
        """The one it was in, if there is one of that number now."""
        config = self._services.topics.get(record.topic)
        assert config is not None, f"{record.topic} was there a moment ago"
        if record.queue_id < config.write_queue_count:
            return record.queue_id
        if message_group:
            return queue_of_message_group(message_group, config.write_queue_count)
        return self._rotation.next_queue(record.topic, config.write_queue_count)
