"""What operations answer: values of our own, the same for console, REST, gRPC and command line.

REST gives them as they are, with the properties that are marked as computed fields; `service.protobuf` makes messages
of them by the names of their fields.

Times are wall-clock milliseconds since 1970, -1 where unknown. Sizes are bytes. Offsets of queues count messages, those
of the CommitLog bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, Generic, TypeVar

from pydantic import Field, computed_field

from tandemmq.core.audit.run_summary import Tier

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Unseen:
    """Who could not be asked: the answer lacks what only they know."""

    # A broker as name:id, or a NameServer's address.
    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which part of a list: `number` from 1."""

    number: int = 1
    size: int = 50


FIRST_PAGE: Final = PageRequest()


@dataclass(frozen=True, slots=True)
class Page(Generic[ItemT]):
    """Part of a list."""

    items: Sequence[ItemT]
    number: int
    size: int
    total: int
    unseen: Sequence[Unseen] = ()

    @property
    def last_number(self) -> int:
        """Number of the last page, at least 1."""
        return max(1, -(-self.total // self.size))


@dataclass(frozen=True, slots=True)
class Change:
    """What happens, or would happen, on one broker or NameServer."""

    # name:id, or an address.
    subject: str
    # In words: `created with 8 queues`, `no change`.
    what: str


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """What an operation changed, or with `dry_run` would change."""

    changes: Sequence[Change]
    dry_run: bool = False
    # What the operator should know: who could not be told.
    warnings: Sequence[str] = ()


# Topics


@dataclass(frozen=True, slots=True)
class Extent:
    """A queue of a topic on one master."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    oldest_store_ms: int = -1
    newest_store_ms: int = -1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def held(self) -> int:
        """Messages still held."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class BrokerTopic:
    """A topic's configuration on one master."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    # RocketMQ's bits: 4 read, 2 write, 1 inherit.
    permission: int
    message_type: str
    # Other attributes by name.
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """One line of a list of topics."""

    name: str
    # topic, retry, dead letter or system.
    category: str
    brokers: Sequence[BrokerTopic]
    # Messages held by all masters that answered; -1: not asked.
    held: int = -1
    # Messages ever stored, likewise.
    stored: int = -1


@dataclass(frozen=True, slots=True)
class QueueRoute:
    """What a NameServer says of a topic on one broker group."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    permission: int


@dataclass(frozen=True, slots=True)
class Route:
    """One NameServer's answer about a topic."""

    name_server: str
    # Empty: it knows no such topic.
    queues: Sequence[QueueRoute]
    # name:id -> client endpoint.
    brokers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDetail:
    """All that is known of a topic."""

    summary: TopicSummary
    extents: Sequence[Extent]
    routes: Sequence[Route]
    # False: NameServers that answered disagree.
    routes_agree: bool
    # Groups that have read it, with what they lack.
    groups: Sequence[Progress]
    unseen: Sequence[Unseen] = ()


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic to create or change. 0 queues: the brokers' default, or as it is."""

    name: str
    read_queue_count: int = 0
    write_queue_count: int = 0
    # 0: read and write, or as it is.
    permission: int = 0
    # Empty: NORMAL, or as it is.
    message_type: str = ""
    # Only on these broker groups; empty: on all.
    broker_names: Sequence[str] = ()
    # Others by name, see TOPIC_ATTRIBUTES; those that are not named stay, an empty value removes one.
    attributes: Mapping[str, str] = field(default_factory=dict)


# Groups


@dataclass(frozen=True, slots=True)
class Progress:
    """A group in one queue, or in a topic when `queue_id` is -1 (then `broker_name` is empty)."""

    group: str
    topic: str
    broker_name: str
    queue_id: int
    committed_offset: int
    max_offset: int
    inflight: int
    # Age of the oldest message not acknowledged; 0: none, or not known.
    oldest_age_ms: int = 0
    # Of an ordered group: message groups whose next message waits for an earlier one that is out.
    blocked_message_groups: int = 0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def lag(self) -> int:
        """Messages not acknowledged."""
        return max(0, self.max_offset - self.committed_offset)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One line of a list of groups."""

    name: str
    ordered: bool
    retry_max_times: int
    enabled: bool
    member_count: int
    # -1: not asked.
    lag: int = -1
    inflight: int = -1
    # Topics it has read.
    topics: Sequence[str] = ()
    # Between deliveries of a message that fails; empty: RocketMQ's list.
    retry_delays_seconds: Sequence[int] = ()
    # By name, such as lite.bind.topic.
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Client:
    """A connected client; it may be connected to several brokers."""

    client_id: str
    client_type: str
    group: str
    language: str
    version: str
    address: str
    silent_ms: int
    subscriptions: Mapping[str, str]
    # name:id of those it is connected to.
    brokers: Sequence[str]


@dataclass(frozen=True, slots=True)
class GroupDetail:
    """All that is known of a group."""

    summary: GroupSummary
    # By topic, broker and queue.
    progress: Sequence[Progress]
    members: Sequence[Client]
    # Messages in its dead letter queues; 0 without any.
    dead_letters: int
    unseen: Sequence[Unseen] = ()


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A group to create or change. None: as it is, or the default."""

    name: str
    ordered: bool | None = None
    # Redeliveries after the first delivery; None: as it is, or 16.
    retry_max_times: int | None = None
    enabled: bool | None = None
    # Of PRIORITY topics: how many of a hundred receives go by priority.
    priority_factor: int | None = None
    # The slave that reads what lies far behind; 0: the master itself.
    slow_broker_id: int | None = None
    # Between deliveries of a message that fails; the last one stays. Empty: as it is.
    retry_delays_seconds: Sequence[int] = ()
    # By name, see GROUP_ATTRIBUTES; those that are not named stay, an empty value removes one.
    attributes: Mapping[str, str] = field(default_factory=dict)


# Users and policies


@dataclass(frozen=True, slots=True)
class User:
    """A user of the client API as its masters have it."""

    # What clients call their access key.
    username: str
    # Super or Normal.
    user_type: str
    # enable or disable.
    user_status: str
    # Broker groups that do not have it, or not so; empty: all agree.
    differs_on: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class UserChange:
    """A user to make or change. Empty: as it is, or the default."""

    username: str
    # What clients call their secret key.
    password: str = field(default="", repr=False)
    user_type: str = ""
    user_status: str = ""


@dataclass(frozen=True, slots=True)
class AclEntry:
    """What a subject may do with a resource, in RocketMQ's words."""

    # Topic:NAME, Group:NAME, Cluster:NAME, NAME* for all that begin so, Topic:* or *.
    resource: str
    actions: Sequence[str]
    # Allow or Deny.
    decision: str = "Allow"
    # Addresses and networks; empty: all.
    source_ips: Sequence[str] = ()
    # Custom or Default.
    policy_type: str = "Custom"
    # When it was changed last.
    changed_ms: int = -1


@dataclass(frozen=True, slots=True)
class Acl:
    """What a subject may do, as its masters have it."""

    # User:NAME.
    subject: str
    entries: Sequence[AclEntry]
    # Broker groups that do not have it, or not so; empty: all agree.
    differs_on: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Where a group goes on: exactly one is set."""

    time_ms: int | None = None
    earliest: bool = False
    latest: bool = False
    # By broker name and queue id; queues that are not named stay.
    offsets: Mapping[tuple[str, int], int] | None = None


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """One queue's move."""

    broker_name: str
    queue_id: int
    # -1: it had not read this queue.
    from_offset: int
    to_offset: int
    max_offset: int
    inflight: int


# Messages


class SearchOrder(StrEnum):
    """In which order a time range is read."""

    NEWEST = "newest"
    OLDEST = "oldest"


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """Messages of a topic. At most one of `key` and `queue_id` is set; times narrow both key and time searches."""

    topic: str
    key: str = ""
    # -1: all queues.
    queue_id: int = -1
    # Of one queue: from here on.
    start_offset: int = 0
    # Only this broker group; needed with `queue_id`.
    broker_name: str = ""
    # -1: open.
    start_ms: int = -1
    end_ms: int = -1
    order: SearchOrder = SearchOrder.NEWEST
    tags: Sequence[str] = ()
    # Only with this in their body (of its first 64 KiB), tag or keys, upper and lower case alike; empty: all.
    text: str = ""
    limit: int = 50
    # Bytes of each body.
    body_bytes: int = 0
    # As the page before gave it.
    page_token: str = ""


@dataclass(frozen=True, slots=True)
class MessageSummary:
    """A message in a list."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    record_bytes: int
    message_id: str
    offset_message_id: str
    tag: str
    keys: Sequence[str]
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    reconsume_times: int
    body_size: int
    # As much as was asked for, unpacked. JSON has it in the two forms below.
    body: Annotated[bytes, Field(exclude=True)] = b""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def body_base64(self) -> str:
        """The body, whatever it is."""
        return base64.b64encode(self.body).decode("ascii")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def body_text(self) -> str | None:
        """The same if it is UTF-8, perhaps without the part of a character at its end; else None."""
        try:
            return self.body.decode("utf-8")
        except UnicodeDecodeError as error:
            # A body that was cut may end within a character of up to four bytes.
            if error.reason == "unexpected end of data" and error.start >= len(self.body) - 3:
                return self.body[: error.start].decode("utf-8")
            return None


@dataclass(frozen=True, slots=True)
class Message(MessageSummary):
    """A message whole."""

    properties: Mapping[str, str] = field(default_factory=dict)
    sys_flag: int = 0
    flag: int = 0
    body_crc: int = 0
    # zlib, lz4, zstd or empty.
    compression: str = ""
    # Why the body cannot be shown; empty if it can.
    body_problem: str = ""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages found."""

    messages: Sequence[MessageSummary]
    # To go on; empty: this was all.
    next_page_token: str
    scanned: int
    unseen: Sequence[Unseen] = ()


@dataclass(frozen=True, slots=True)
class ReplicaCopy:
    """One replica's copy of a message."""

    # name:id.
    broker: str
    held: bool
    # SHA-256 of the record's bytes in hex; empty if not held or not asked.
    sha256: str
    # True: the same bytes as the master's. None: not known.
    equal: bool | None
    flushed: bool
    # In words: `holds the same bytes`, `3,120 bytes behind`, `does not answer: …`.
    verdict: str
    # The group's master has it.
    master: bool = False


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """A message and its copies."""

    message: Message
    copies: Sequence[ReplicaCopy]
    # Groups that read its topic: group -> acknowledged, in flight or waiting, or not known.
    consumption: Mapping[str, str]
    unseen: Sequence[Unseen] = ()


@dataclass(frozen=True, slots=True)
class TestMessage:
    """A message to send."""

    __test__ = False

    topic: str
    body: bytes
    tag: str = ""
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    # FIFO topics need one.
    message_group: str = ""


@dataclass(frozen=True, slots=True)
class TestReceipt:
    """Where it went."""

    __test__ = False

    message_id: str
    broker_name: str
    queue_id: int
    queue_offset: int
    duration_ms: float


@dataclass(frozen=True, slots=True)
class DeadLetterResult:
    """What came of one dead letter."""

    broker_name: str
    queue_offset: int
    topic: str
    # -1: nothing was sent.
    new_queue_offset: int
    message_id: str
    # Empty: it was sent, or would be.
    problem: str


# Transactions, and clients' streams


@dataclass(frozen=True, slots=True)
class Transaction:
    """One that is neither committed nor rolled back."""

    broker_name: str
    transaction_id: str
    # Where its message goes if it commits; empty: it had ended before.
    topic: str
    message_id: str
    # When its half message was stored.
    store_ms: int
    # How often a producer was asked.
    checks: int
    # The producer's host; empty: not known.
    producer: str
    body_bytes: int


@dataclass(frozen=True, slots=True)
class LiteTopic:
    """A small queue inside a topic of the type LITE."""

    broker_name: str
    lite_topic: str
    min_offset: int
    max_offset: int
    # When its newest message was stored.
    last_store_ms: int
    # Clients that subscribe to it.
    subscribers: int
    # Messages that a group has not finished, by group.
    lags: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LiteTopicPage:
    """The first of them by name."""

    lite_topics: Sequence[LiteTopic]
    # Shown or not.
    total: int
    unseen: Sequence[Unseen]


@dataclass(frozen=True, slots=True)
class TransactionPage:
    """The oldest of them."""

    transactions: Sequence[Transaction]
    # Shown or not.
    total: int
    unseen: Sequence[Unseen]


@dataclass(frozen=True, slots=True)
class ClientReply:
    """What a client said to one broker."""

    # As name:id.
    broker: str
    # OK, TIMEOUT, SENT, or a code of the client API.
    code: str
    text: str


# Kept tails


class HoldingState(StrEnum):
    """Whether a message is there."""

    # A broker group has it where consumers can get it.
    HELD = "held"
    # None has.
    MISSING = "missing"
    # It cannot be known; nothing is done about it.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KeptTail:
    """Bytes that were cut off a broker's log and kept."""

    # As name:id; empty for a folder of this machine.
    broker: str
    name: str
    start_offset: int
    end_offset: int
    # When it was cut off.
    kept_ms: int
    # Why; empty: not written down.
    reason: str


@dataclass(frozen=True, slots=True)
class TailMessage:
    """A message of a kept tail, and what came of it."""

    # Where it lay in the log.
    offset: int
    message_id: str
    topic: str
    store_ms: int
    # Before anything was done.
    state: HoldingState
    # A broker group that holds it; empty: none does, or it is not known.
    held_by: str
    # Its new place; -1: nothing was stored.
    queue_id: int
    new_queue_offset: int
    # Why it was not stored, or is not safe, or is not known; empty: it was there, was stored, or would be.
    problem: str


@dataclass(frozen=True, slots=True)
class UnreadableRange:
    """Bytes of a kept tail that are no valid record."""

    start_offset: int
    end_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class TailResult:
    """What came of a part of a kept tail."""

    tail: KeptTail
    messages: Sequence[TailMessage]
    unreadable: Sequence[UnreadableRange]
    # Where the next part begins; empty: this was all.
    next_page_token: str
    dry_run: bool


# A master that waits


@dataclass(frozen=True, slots=True)
class MissingReplica:
    """A disk that a starting master waits for, as it was last heard of."""

    # As name:id; the master's own, when it came back with an older disk.
    broker: str
    disk_id: str
    # Starts of that disk.
    run: int
    # Greatest epoch it knew.
    epoch: int
    # It held at least so much of the log.
    end_offset: int
    # host:port; empty: not known.
    metadata_endpoint: str
    # By the clock of whoever heard it; 0: not known.
    last_seen_ms: int


@dataclass(frozen=True, slots=True)
class DamagedTable:
    """A metadata table that cannot be read, and that no replica in reach has."""

    # Its file below the store's config folder.
    file: str
    problem: str


@dataclass(frozen=True, slots=True)
class LossWitness:
    """Somebody who remembers a disk with more than the best log in reach."""

    # A NameServer, a replica, or `this disk`: the waiting master's.
    source: str
    # Whose disk it is, in its group.
    broker_id: int
    disk_id: str
    # Greatest epoch it knew.
    epoch: int
    # Where its log ended.
    end_offset: int
    # By this memory. 0: it tells of an epoch that nobody in reach has heard of, and not of an amount.
    lost_bytes: int


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """What a starting master waits for, and was told, or would be told, to give up.

    Of a master that serves: members that are away, which it forgets.
    """

    # The master, as name:id.
    broker: str
    waits_for: str
    missing: Sequence[MissingReplica]
    damaged_tables: Sequence[DamagedTable]
    # Where the best log in reach ends.
    end_offset: int
    # How much more than that anybody remembers; there may have been more.
    lost_bytes: int
    dry_run: bool
    # It serves, and waits for nothing.
    serving: bool = False
    # Who remembers how much, the most first.
    witnesses: Sequence[LossWitness] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all that is given up: ids of disks, files of tables. Whoever accepts it says them again."""
        return (*(one.disk_id for one in self.missing), *(one.file for one in self.damaged_tables))


@dataclass(frozen=True, slots=True)
class HandOver:
    """A change of master on purpose. Both brokers the same: that one is the master already, and nothing was done."""

    broker_name: str
    # As name:id.
    from_broker: str
    to_broker: str
    # Of the new master; with `dry_run` of the old one.
    epoch: int
    # From the order to the first look at which the new master took messages: it took none for at most so long.
    no_sends_ms: int
    dry_run: bool
    # Of an unclean one: members of the in-sync set that are given up, as name:id, and how much more they are known to
    # hold. They may hold more.
    given_up: Sequence[str] = ()
    lost_bytes: int = 0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def changed(self) -> bool:
        """Another broker is the master now."""
        return self.from_broker != self.to_broker and not self.dry_run


# Runs of the consistency job


class VerificationState(StrEnum):
    """How a run that was asked for stands."""

    NONE = "none"
    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"
    """It came to no verdict."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The run of the consistency job that was asked for last. What it found is in the list of runs."""

    state: VerificationState = VerificationState.NONE
    # Id of the run, or on Kubernetes name of its Job; empty: not known yet.
    name: str = ""
    tier: Tier = Tier.QUICK
    # Broker groups; empty: all.
    groups: Sequence[str] = ()
    # Wall clock; -1: not yet.
    started_ms: int = -1
    ended_ms: int = -1
    # How far it is; all 0 until it is known, and on Kubernetes, where its log says it.
    groups_done: int = 0
    groups_total: int = 0
    read_bytes: int = 0
    planned_bytes: int = 0
    seconds_left: int = 0
    findings: int = 0
    # equal, diverged or incomplete.
    outcome: str = ""
    # Why it came to no verdict, or why nothing is known of it just now.
    problem: str = ""


# Brokers


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of one broker."""

    key: str
    value: str
    default_value: str
    # default, configured or changed.
    origin: str
    changeable: bool
    description: str

    @computed_field  # type: ignore[prop-decorator]
    @property
    def differs(self) -> bool:
        """True when it is not the default."""
        return self.value != self.default_value


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """A broker's settings."""

    broker: str
    settings: Sequence[Setting]


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A setting that changed."""

    broker: str
    key: str
    from_value: str
    to_value: str


EVENT_LEVELS: Final = ("info", "warning", "error", "critical")
"""Of events, the least first."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """Something that happened: a line of a broker's log, a change of health, or what an operator did."""

    time_ms: int
    # A broker as name:id, or `admin`.
    source: str
    # One of EVENT_LEVELS.
    level: str
    event: str
    fields: Mapping[str, str]
