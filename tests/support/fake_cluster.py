"""What `FakeOperations` stands in front of: the samples, and what tests have changed of them."""

from __future__ import annotations

from dataclasses import replace

from support.operations_samples import (
    BROKERS,
    GROUPS,
    MASTERS,
    READ_TOPICS,
    TOPICS,
    bulk_topics,
    clients,
    events,
    messages,
    progress,
    settings,
)
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import (
    AcceptedLoss,
    Client,
    DeadLetterResult,
    EventLine,
    Extent,
    GroupSummary,
    KeptTail,
    LossWitness,
    Message,
    MissingReplica,
    OffsetReset,
    Progress,
    Setting,
    TestMessage,
    TopicSummary,
    Transaction,
)

KEPT_TAIL = KeptTail(
    "broker-a:1",
    "00000000000000004096-1700000000000.log",
    4_096,
    8_192,
    1_700_000_000_000,
    "it differs from the master's",
)
"""Three messages: one is held, one is missing, one's topic is gone."""

WAITS = AcceptedLoss(
    "broker-b:0",
    "a replica may hold more than the 4096 bytes in reach",
    (MissingReplica("broker-b:1", "d1", 3, 2, 8_192, "10.0.0.7:10911", 1_700_000_000_000),),
    (),
    4_096,
    4_096,
    True,
    witnesses=(LossWitness("NameServer 10.0.0.2:9876", 1, "d1", 2, 8_192, 4_096),),
)
"""Of a master whose slave is away."""


def _undecided(now_ms: int) -> list[Transaction]:
    return [
        Transaction("broker-a", "djE=", "orders", "PAY-1", now_ms - 90_000, 2, "shop-1", 120),
        Transaction("broker-b", "djI=", "refunds", "PAY-2", now_ms - 7_000, 0, "", 4_096),
    ]


class FakeCluster:
    """Content of a cluster. Tests may read and replace all of it.

    `sent` and `resent` are what was sent, `resets` the last reset by group and topic.
    """

    def __init__(self, *, bulk_topic_count: int, now_ms: int, empty: bool) -> None:
        self.now_ms = now_ms
        self.topics: dict[str, TopicSummary] = {} if empty else TOPICS | bulk_topics(bulk_topic_count)
        self.groups: dict[str, GroupSummary] = {} if empty else dict(GROUPS)
        self.messages: list[Message] = [] if empty else messages(now_ms)
        self.clients: list[Client] = [] if empty else clients()
        self.events: list[EventLine] = [] if empty else events(now_ms)
        self.settings = {broker: {each.key: each for each in settings(broker)} for broker in BROKERS}
        self.writable = dict.fromkeys(MASTERS, True)
        self.resets: dict[tuple[str, str], list[OffsetReset]] = {}
        self.sent: list[TestMessage] = []
        self.resent: list[DeadLetterResult] = []
        self.transactions: dict[str, Transaction] = (
            {} if empty else {one.transaction_id: one for one in _undecided(now_ms)}
        )
        """By id; those that were ended are gone."""
        self.ended: dict[str, str] = {}
        self.kept_tails: list[KeptTail] = [] if empty else [KEPT_TAIL]
        self.waits: dict[str, AcceptedLoss] = {}
        self.masters: dict[str, tuple[int, int]] = dict.fromkeys(MASTERS, (0, 1))
        """Number and epoch of each group's."""
        self.restored: set[str] = set()
        self.restored_from_files: list[int] = []

    def topic(self, name: str) -> TopicSummary:
        """One of them, or NOT_FOUND."""
        if (topic := self.topics.get(name)) is None:
            raise OperationFailed(
                FailureKind.NOT_FOUND, f"there is no topic {name}", remedy="see the list of topics for its name"
            )
        return topic

    def group(self, name: str) -> GroupSummary:
        """One of them, or NOT_FOUND."""
        if (group := self.groups.get(name)) is None:
            raise OperationFailed(FailureKind.NOT_FOUND, f"there is no group {name}")
        return group

    def settings_of(self, broker: str) -> dict[str, Setting]:
        """Settings of `name:id`, or NOT_FOUND."""
        if (table := self.settings.get(broker)) is None:
            raise OperationFailed(FailureKind.NOT_FOUND, f"there is no broker {broker}")
        return table

    def extents(self, topic: str) -> list[Extent]:
        """Queues of a topic, from the messages in them."""
        extents = []
        for each in self.topics[topic].brokers:
            for queue_id in range(max(each.read_queue_count, each.write_queue_count)):
                held = [
                    message
                    for message in self.messages
                    if (message.topic, message.broker_name, message.queue_id) == (topic, each.broker_name, queue_id)
                ]
                times = [message.store_ms for message in held] or [-1]
                extents.append(Extent(each.broker_name, queue_id, 0, len(held), min(times), max(times)))
        return extents

    def offset_at(self, topic: str, extent: Extent, time_ms: int) -> int:
        """First message of a queue at that time or later."""
        return sum(
            message.store_ms < time_ms
            for message in self.messages
            if (message.topic, message.broker_name, message.queue_id) == (topic, extent.broker_name, extent.queue_id)
        )

    def counted(self, topic: TopicSummary) -> TopicSummary:
        extents = self.extents(topic.name)
        return replace(topic, held=sum(one.held for one in extents), stored=sum(one.max_offset for one in extents))

    def progress(self, topic: str) -> list[Progress]:
        """How far groups are in a topic, after resets."""
        found = []
        for one in progress(self.extents(topic), topic):
            moves = {(move.broker_name, move.queue_id): move for move in self.resets.get((one.group, topic), ())}
            move = moves.get((one.broker_name, one.queue_id))
            found.append(replace(one, committed_offset=move.to_offset, inflight=0) if move else one)
        return [one for one in found if one.group in self.groups]

    def progress_of(self, group: str) -> list[Progress]:
        """How far a group is everywhere."""
        return [
            one for topic in READ_TOPICS if topic in self.topics for one in self.progress(topic) if one.group == group
        ]

    def measured(self, group: GroupSummary) -> GroupSummary:
        found = self.progress_of(group.name)
        return replace(
            group,
            lag=sum(one.lag for one in found),
            inflight=sum(one.inflight for one in found),
            topics=tuple(sorted({one.topic for one in found})),
        )
