"""What the client API's handlers need of the broker. The broker implements it; unit tests do so in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tandemmq.broker.put import PutMessages
from tandemmq.broker.send_room import SendRoom
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.lite_topics import LiteTopics
from tandemmq.core.delivery.queue_reader import QueueReader
from tandemmq.core.message.record import Host
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupTable
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.core.routing.values import BrokerIdentity, TopicRoute
from tandemmq.service.rpc import Call

if TYPE_CHECKING:
    from tandemmq.broker.client_api.forwarding import GroupCalls
    from tandemmq.broker.client_api.sessions import ClientSessions
    from tandemmq.broker.client_api.validation import NewFilters
    from tandemmq.broker.delayed_messages import DelayedMessages
    from tandemmq.broker.tracing.send_tracer import SendTracer
    from tandemmq.core.delivery.lease_table import LeaseTable

READS_ONLY: Final = (
    "this broker is a slave: it gives messages while its group has no master, and takes none; send to another broker "
    "group, or start the master"
)
"""The refusal of a slave that serves reads. What puts nothing passes over it: `BrokerServices.read_refusal`."""


@dataclass(slots=True)
class ApiOptions:
    """Limits and switches of the client API. They may change while it serves."""

    # Largest body (`maxMessageSize`).
    max_message_bytes: int = 4 << 20
    # A consumer group that is not known is created at its first receive (`autoCreateSubscriptionGroup`). Off, such a
    # receive is refused with CONSUMER_GROUP_NOT_FOUND.
    auto_create_subscription_group: bool = True
    # When the producer of an undecided half message is asked first, and then each time (`transactionTimeOut`,
    # `transactionCheckInterval`), how often at most (`transactionCheckMax`), and how many may be undecided.
    transaction_timeout_ms: int = 6_000
    transaction_check_interval_ms: int = 30_000
    transaction_check_max: int = 15
    transactions_max: int = 100_000
    # Farthest delivery time of a DELAY message (the lower of `maxDelayTimeMills` and `timerMaxDelaySec`).
    max_delay_ms: int = 24 * 3_600_000
    # Queues of a topic that is made because a client asks for its route (`autoCreateTopicEnable` with
    # `defaultTopicQueueNums`); 0: none is made so.
    auto_create_topic_queues: int = 0
    # Lite topics of this broker (`maxLmqConsumeQueueNum`), and its clients' subscriptions to them
    # (`maxLiteSubscriptionCount`).
    lite_topics_max: int = 1_000_000
    lite_subscriptions_max: int = 100_000
    # Message ids in the deduplication windows of all topics (`deduplicationIdsMax`).
    deduplication_ids_max: int = 1_000_000


class Timer(Protocol):
    """A callback that is still to come."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """The part of an asyncio event loop that handlers use; `asyncio.get_running_loop()` is one, and so is
    `tandemmq.service.event_loop.LoopTurns`."""

    def call_soon(self, callback: Callable[[], object]) -> object:
        """Calls back when all that the current turn brought was handled; at the end of the next one if it is asked for
        then."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Calls back after `delay` seconds."""


class BrokerServices(Protocol):
    """One broker as its API sees it. Event loop only; nothing blocks."""

    @property
    def identity(self) -> BrokerIdentity:
        """Cluster, broker group and id."""

    @property
    def refusal(self) -> str | None:
        """Why messages are neither taken nor given now (a slave, recovering, stopping), in words for a client.

        None when this broker serves as its group's master.
        """

    @property
    def read_refusal(self) -> str | None:
        """The same of what only gives messages and has them acknowledged, as a slave may while there is no master."""

    @property
    def is_fenced(self) -> bool:
        """Another broker may serve by now: nothing is given any more, to those either who wait already."""

    @property
    def reads_only(self) -> bool:
        """This broker is such a slave: it gives messages, and makes no topic, group or dead letter."""

    @property
    def store_host(self) -> Host:
        """Address written into records."""

    @property
    def clock(self) -> Clock: ...

    @property
    def timers(self) -> Timers: ...

    @property
    def options(self) -> ApiOptions: ...

    @property
    def topics(self) -> TopicTable: ...

    @property
    def groups(self) -> SubscriptionGroupTable: ...

    @property
    def queues(self) -> QueueReader:
        """What the store holds."""

    @property
    def leases(self) -> LeaseTable:
        """What is delivered and not yet acknowledged."""

    @property
    def lite_topics(self) -> LiteTopics:
        """The logical queues in topics of the type LITE."""

    def progress_pairs(self) -> Sequence[tuple[str, str]]:
        """Each group and topic of which progress is known, perhaps twice."""

    def forget_progress(self, pairs: Sequence[tuple[str, str]], done: Callable[[bool], object]) -> None:
        """Groups start anew in topics: of each pair the group and the topic. Calls `done` with True once that outlives
        a loss of power and a change of master, with False if it may not."""

    @property
    def delayed(self) -> DelayedMessages:
        """Messages that wait for their delivery time."""

    def read_far_from(self, broker_id: int) -> None:
        """The next receive is to get what lies far behind the log's end from that slave; 0: from our own disk."""

    @property
    def sessions(self) -> ClientSessions: ...

    @property
    def new_filters(self) -> NewFilters:
        """Long filters that were read lately, and how many more may be."""

    def client_id_of(self, call: Call) -> str:
        """Which client calls: the id that it gives itself, and whose it is where callers sign in."""

    def whose(self, call: Call) -> str:
        """Of whose share a call takes: its user's, or its address's where nobody signs in."""

    @property
    def group_calls(self) -> GroupCalls:
        """Has another broker group answer a call that is for it."""

    def route(self, topic: str) -> TopicRoute | None:
        """Who serves a topic in the cluster, this broker group included; None when nobody does."""

    def home_of(self, topic: str, message_group: str) -> str:
        """The broker group in which the message group of an ordered topic of this broker lives."""

    @property
    def send_tracer(self) -> SendTracer | None:
        """Makes traces of sends; None while tracing is off."""

    @property
    def send_room(self) -> SendRoom:
        """Where sends wait while enough of them stand in the log without an acknowledgement."""

    @property
    def put(self) -> PutMessages:
        """Takes messages of producers."""

    def create_topic(self, topic: str, *, queue_count: int, done: Callable[[], object]) -> None:
        """Creates a readable and writable topic, and calls `done` when it is durable."""

    def create_group(self, group: str, call: Call) -> str | None:
        """Creates a consumer group with default settings because a client named it; or says why not, and what to do."""

    def when_group_written(self, group: str, done: Callable[[], object]) -> None:
        """Calls `done` when the group is durable; for one that was not made just now, at once."""

    def when_progress_held(self, done: Callable[[bool], object]) -> None:
        """Calls `done` with True once what was persisted outlives a change of master: at once where there is none. With
        False if that is not known in time; the change may have been made then."""

    def when_resets_spread(self, done: Callable[[bool], object]) -> None:
        """Makes progress that was set durable, and calls `done` with True once every member that may become master has
        it; with False if one does not."""

    def persist_leases(self) -> None:
        """Writes what changed in the lease table. Called before any answer that depends on the change."""
