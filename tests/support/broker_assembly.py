"""A broker in one process without sockets: a real store on a simulated disk, real tables, the real client API.

Puts are acknowledged from memory at once, as by an ASYNC_MASTER without slaves; a test may hold them back or give them
another outcome.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from types import MappingProxyType

from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from tandemmq.broker.client_api.client_api import ClientApi
from tandemmq.broker.client_api.forwarding import GroupCalls
from tandemmq.broker.client_api.services import ApiOptions, Timers
from tandemmq.broker.client_api.sessions import ClientSessions, by_address, client_id_of
from tandemmq.broker.client_api.validation import NewFilters
from tandemmq.broker.delayed_messages import DelayedMessages
from tandemmq.broker.message_timers import MessageTimers
from tandemmq.broker.put import PutAnswer, PutDone, answer_of
from tandemmq.broker.queries.stored_records import LogRange
from tandemmq.broker.queue_reader import StoreQueueReader
from tandemmq.broker.send_room import SendRoom
from tandemmq.broker.tracing.send_tracer import BrokerTracing, SendTracer
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.lite_topics import LiteTopics
from tandemmq.core.message.record import Host, OutgoingMessage
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig, SubscriptionGroupTable
from tandemmq.core.metadata.topic_table import ATTRIBUTE_MESSAGE_TYPE, TopicConfig, TopicTable
from tandemmq.core.routing.values import BrokerData, BrokerEndpoints, BrokerIdentity, QueueData, TopicRoute
from tandemmq.core.storage.disk import Disk
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.service.rpc import Call

_STORE_OPTIONS = StoreOptions(
    commit_log_file_bytes=16 << 20,
    consume_queue_file_bytes=20_000,
    index_slot_count=1_000,
    index_entry_count=4_000,
)


class _WarmPages:
    """Everything is in memory."""

    async def fetch(self, ranges: Sequence[LogRange]) -> None:
        pass


def message_timers(store: MessageStore, *, disk: Disk, clock: Clock) -> MessageTimers:
    return MessageTimers(
        store=store,
        reader=StoreQueueReader(store),
        disk=disk,
        pages=_WarmPages(),
        clock=clock,
        store_host=Host.parse("127.0.0.1", 10_911),
    )


class BrokerAssembly:
    """Satisfies `tandemmq.broker.client_api.services.BrokerServices`. Event loop only."""

    def __init__(
        self,
        *,
        clock: Clock,
        timers: Timers,
        broker_name: str = "broker-a",
        options: ApiOptions | None = None,
        delivery: DeliveryOptions | None = None,
        disk: Disk | None = None,
        store_options: StoreOptions = _STORE_OPTIONS,
        tracing: BrokerTracing | None = None,
    ) -> None:
        self.identity = BrokerIdentity("DefaultCluster", broker_name, 0)
        self.refusal: str | None = None
        # A slave that serves reads: it puts and makes nothing.
        self.reads_only = False
        self.store_host = Host.parse("127.0.0.1", 10_911)
        self.clock = clock
        self.timers = timers
        self.send_room = SendRoom(timers.call_later)
        self.options = options or ApiOptions()
        self.topics = TopicTable()
        self.groups = SubscriptionGroupTable()
        store_disk = disk or SimulatedDisk(random.Random(1), wall_ms=clock.wall_ms)
        self.store = MessageStore(
            store_disk,
            clock,
            store_options,
            store_host=self.store_host,
        )
        self.store.load()
        nonces = itertools.count(1)
        self.queues = StoreQueueReader(self.store, confirmed_offset=lambda: self.confirmed_offset)
        self.lite_topics = LiteTopics(self.queues, self.topics, log_cuts=lambda: self.store.log_cuts)
        self.queues.lite = self.lite_topics
        self.leases = LeaseTable(
            self.queues,
            options=delivery or DeliveryOptions(consume_from_earliest=True),
            broker_name=broker_name,
            nonce=lambda: next(nonces),
        )
        now_ms = clock.monotonic_ms()
        self.leases.restore(b"", b"", now_ms=now_ms, clock_offset_ms=clock.wall_ms() - now_ms)
        self.sessions = ClientSessions(self._client_gone, whose=lambda call: self.whose(call))
        self.new_filters = NewFilters()
        self.client_id_of = client_id_of
        self.whose = by_address
        # Clients that said goodbye or fell silent, in their order.
        self.gone_client_ids: list[str] = []
        self.client_endpoint = "127.0.0.1:8081"
        # What NameServers would tell of any topic; None for this broker's own topics alone.
        self.cluster_route: TopicRoute | None = None
        # Status of every put; None for the store's own. Set before the put.
        self.put_status: PutStatus | None = None
        self.puts_held = False
        # What lies below it in the log may be given; a test that lowers it tells the API when it has raised it.
        self.confirmed_offset = 1 << 62
        # Why no group is created, and who waits for one to be durable; None: nobody has to.
        self.group_refusal: str | None = None
        self.group_writes: list[Callable[[], object]] | None = None
        # Who waits until the slaves have what was finished; None: nobody has to.
        self.progress_waits: list[Callable[[bool], object]] | None = None
        self._held: list[tuple[list[AppendResult], PutAnswer]] = []
        self.tracing = tracing
        self.send_tracer: SendTracer | None = None
        # Client planes of other broker groups, by name.
        self.group_endpoints: dict[str, str] = {}
        # Where each message group lives; None: here.
        self.message_group_home: str | None = None
        self.group_calls = GroupCalls(self.group_endpoints.get, now_ms=clock.monotonic_ms)
        self.message_timers = message_timers(self.store, disk=store_disk, clock=clock)
        self.delayed = DelayedMessages(
            self.message_timers,
            clock=clock,
            topics=self.topics,
            put=lambda messages, done, call=None, traceparents=(): self.put(messages, done, call, traceparents),
            roll_after_ms=72 * 3_600_000,
        )
        self.api = ClientApi(self, tracing)
        for _ in self.api.transactions.recovery():
            pass
        for record in self.api.transactions.take_missing():
            self.store.put(record)

    @property
    def is_fenced(self) -> bool:
        return False

    @property
    def read_refusal(self) -> str | None:
        """As `BrokerParts` has it."""
        return None if self.reads_only else self.refusal

    def become_reads_only(self) -> None:
        """It is a slave that serves reads from now on."""
        self.refusal, self.reads_only = "there is no master", True

    def route(self, topic: str) -> TopicRoute | None:
        """Of this broker's own topics, unless the test says more."""
        if self.cluster_route is not None:
            return self.cluster_route
        config = self.topics.get(topic)
        if config is None:
            return None
        queues = QueueData(
            self.identity.broker_name,
            config.read_queue_count,
            config.write_queue_count,
            config.perm,
            message_type=config.message_type,
        )
        endpoints = {0: BrokerEndpoints(client=self.client_endpoint)}
        return TopicRoute(topic, (queues,), (BrokerData(self.identity.cluster, self.identity.broker_name, endpoints),))

    def home_of(self, topic: str, message_group: str) -> str:
        """Here, unless the test says more."""
        return self.message_group_home or self.identity.broker_name

    def read_far_from(self, broker_id: int) -> None:
        """All is in memory."""

    def put(
        self,
        messages: Sequence[OutgoingMessage],
        done: PutAnswer | PutDone,
        call: Call | None = None,
        traceparents: Sequence[str] = (),
    ) -> None:
        """Appends and answers at once, unless the test holds puts."""
        results = [self.store.put(messages[0])] if len(messages) == 1 else self.store.put_batch(messages)
        for message, result in zip(messages, results, strict=True):
            if result.status.stored and result.end_offset <= self.confirmed_offset:
                self.api.message_arrived(message.topic)
            elif result.status.stored:
                self.api.message_held_back(message.topic)
            if self.put_status is not None:
                result.status = self.put_status
        if self.puts_held:
            self._held.append((results, answer_of(done)))
        else:
            answer_of(done).answer(results)

    def release_puts(self) -> None:
        """Answers the puts held back, in their order."""
        held, self._held = self._held, []
        for results, answer in held:
            answer.answer(results)

    def create_topic(self, topic: str, *, queue_count: int, done: Callable[[], object]) -> None:
        self.add_topic(topic, queue_count=queue_count)
        done()

    def create_group(self, group: str, call: Call) -> str | None:
        """In memory; with `group_refusal` not at all."""
        if self.group_refusal is None:
            self.add_group(group)
        return self.group_refusal

    def when_group_written(self, group: str, done: Callable[[], object]) -> None:
        """At once, unless the test holds writes."""
        if self.group_writes is None:
            done()
        else:
            self.group_writes.append(done)

    def when_progress_held(self, done: Callable[[bool], object]) -> None:
        """At once, unless the test holds it."""
        if self.progress_waits is None:
            done(True)
        else:
            self.progress_waits.append(done)

    def when_resets_spread(self, done: Callable[[bool], object]) -> None:
        self.leases.take_reset_offsets()
        done(True)

    def progress_pairs(self) -> Sequence[tuple[str, str]]:
        """Of the lease table."""
        return self.leases.pairs()

    def forget_progress(self, pairs: Sequence[tuple[str, str]], done: Callable[[bool], object]) -> None:
        """As `when_progress_held`."""
        for group, topic in pairs:
            self.leases.forget_pair(group, topic)
        self.when_progress_held(done)

    def persist_leases(self) -> None:
        """Nothing survives the test."""
        self.leases.take_journal()

    def add_topic(self, topic: str, *, queue_count: int = 4, message_type: str = "NORMAL", perm: int = 6) -> None:
        """A topic as an operator creates it."""
        attributes = MappingProxyType({ATTRIBUTE_MESSAGE_TYPE: message_type})
        config = TopicConfig(topic, queue_count, queue_count, perm=perm, attributes=attributes)
        self.topics.put(config, now_ms=self.clock.wall_ms())

    def add_group(self, group: str, *, fifo: bool = False, retry_max_times: int = 16, enabled: bool = True) -> None:
        """A consumer group as an operator creates it."""
        config = SubscriptionGroupConfig(
            group, consume_enable=enabled, consume_message_orderly=fifo, retry_max_times=retry_max_times
        )
        self.groups.put(config, now_ms=self.clock.wall_ms())

    def end_turn(self) -> None:
        """Ends the turn of the event loop, where the test is its time: what was put off to its end is done."""
        assert isinstance(self.timers, ManualTime), "the event loop ends its turns itself"
        self.timers.end_turn()

    def _client_gone(self, client_id: str) -> None:
        self.leases.client_gone(client_id, self.clock.monotonic_ms())
        self.api.lite.client_gone(client_id)
        self.gone_client_ids.append(client_id)

    def close(self) -> None:
        """Ends waiting calls and closes the store."""
        self.api.drain()
        self.store.close()
