"""All an operator can ask of a cluster and do to it. Console, REST, gRPC and command line know nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from tandemmq.admin.operations.values import (
    FIRST_PAGE,
    AcceptedLoss,
    BrokerSettings,
    ChangeResult,
    Client,
    ConfigChange,
    DeadLetterResult,
    EventLine,
    GroupChange,
    GroupDetail,
    GroupSummary,
    KeptTail,
    MessageDetail,
    MessagePage,
    MessageQuery,
    MessageSummary,
    OffsetReset,
    Page,
    PageRequest,
    ResetTarget,
    Route,
    TailMessage,
    TailResult,
    TestMessage,
    TestReceipt,
    TopicChange,
    TopicDetail,
    TopicSummary,
    Unseen,
)

__all__ = ["Operations"]


class Operations(Protocol):
    """One cluster. Every method may raise `OperationFailed`; what single members cannot say is in `unseen`.

    With `dry_run` nothing is changed and the answer says what would be. Changes reach all masters or say which not.
    """

    # Topics

    async def topics(
        self, *, search: str = "", categories: Sequence[str] = ("topic",), page: PageRequest = FIRST_PAGE
    ) -> Page[TopicSummary]:
        """Topics by name; `search` is a part of the name, case does not matter. Those shown have their counts."""

    async def topic(self, name: str) -> TopicDetail:
        """One topic. NOT_FOUND when no master that answers has it."""

    async def topic_routes(self, name: str) -> tuple[Sequence[Route], Sequence[Unseen]]:
        """What each NameServer says."""

    async def put_topic(self, change: TopicChange, *, dry_run: bool = False) -> ChangeResult:
        """Creates or changes a topic, and waits until every NameServer routes to it."""

    async def delete_topic(self, name: str, *, dry_run: bool = False) -> ChangeResult:
        """Removes a topic from all masters; its messages cannot be consumed while there is none of that name."""

    # Groups and clients

    async def groups(self, *, search: str = "", page: PageRequest = FIRST_PAGE) -> Page[GroupSummary]:
        """Groups by name; those shown have their lag."""

    async def group(self, name: str) -> GroupDetail:
        """One group. NOT_FOUND when no master that answers has it."""

    async def put_group(self, change: GroupChange, *, dry_run: bool = False) -> ChangeResult:
        """Creates or changes a group."""

    async def delete_group(self, name: str, *, even_with_members: bool = False, dry_run: bool = False) -> ChangeResult:
        """Removes a group with its progress."""

    async def reset_offsets(
        self, group: str, topic: str, target: ResetTarget, *, dry_run: bool = False
    ) -> Sequence[OffsetReset]:
        """Sets where a group goes on."""

    async def clients(self, *, group: str = "", topic: str = "", limit: int = 200) -> Page[Client]:
        """Connected clients, of all brokers together."""

    # Messages

    async def search(self, query: MessageQuery) -> MessagePage:
        """Messages of a topic, of all masters together. Without a topic there are no dead letters, and no failure."""

    async def find_message(self, message_id: str, *, topic: str = "") -> Sequence[MessageSummary]:
        """Messages by the id a client gave them, or by an id of address and offset; newest first."""

    async def message(self, broker_name: str, physical_offset: int, *, body_bytes: int = 65_536) -> MessageDetail:
        """One message whole, with its copies compared."""

    async def message_at(
        self, broker_name: str, topic: str, queue_id: int, queue_offset: int, *, body_bytes: int = 65_536
    ) -> MessageDetail:
        """The same, by its place in a queue."""

    def tail(self, topic: str, *, tags: Sequence[str] = (), body_bytes: int = 4_096) -> AsyncIterator[MessageSummary]:
        """Messages as they come in, from now on, until the caller stops."""

    async def send(self, message: TestMessage) -> TestReceipt:
        """Sends a message as a client would. REFUSED says what the broker said."""

    async def resend_dead_letters(
        self, group: str, broker_name: str, queue_offsets: Sequence[int], *, dry_run: bool = False
    ) -> Sequence[DeadLetterResult]:
        """Puts dead letters back into the topics they came from."""

    # Kept tails

    async def kept_tails(self) -> tuple[Sequence[KeptTail], Sequence[Unseen]]:
        """What was cut off the logs of all brokers, and kept."""

    async def restore_kept_tail(
        self, broker: str, name: str, *, page_token: str = "", dry_run: bool = False
    ) -> TailResult:
        """Stores again what is missing of a part of a tail that `name:id` keeps, on the master of its group, under the
        ids it had. Idempotent. NOT_FOUND: it keeps no such tail; REFUSED: a broker group does not answer."""

    async def restore_records(
        self, broker_name: str, records: Sequence[tuple[int, bytes]], *, dry_run: bool = False
    ) -> Sequence[TailMessage]:
        """The same with records that the caller read from a tail, each with its offset."""

    # Brokers

    async def broker_settings(self, broker: str) -> BrokerSettings:
        """Settings of `name:id`."""

    async def update_settings(
        self, broker: str, values: Mapping[str, str], *, dry_run: bool = False
    ) -> Sequence[ConfigChange]:
        """Changes settings of `name:id` until its next start."""

    async def set_write_permission(self, broker_name: str, *, writable: bool, dry_run: bool = False) -> ChangeResult:
        """Takes a broker group out of producers' routes at every NameServer, or puts it back."""

    async def accept_loss(self, broker_name: str, *, names: Sequence[str] = (), dry_run: bool = False) -> AcceptedLoss:
        """Has the group's master, which waits at its start, serve without what it waits for: disks with messages, or
        damaged tables. `names` are all that a dry run told; REFUSED: it waits for nothing, for others by now, or for
        something that nobody can give up."""

    async def events(self, *, limit: int = 200) -> tuple[Sequence[EventLine], Sequence[Unseen]]:
        """What happened lately on all brokers, newest first."""
