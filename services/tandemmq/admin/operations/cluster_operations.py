"""The `Operations` of a real cluster: its NameServers and brokers are asked and told, each by its own address.

Who they are comes from the newest reading of the cluster, so that no operation is given an address and a broker that
hung a moment ago is not waited for again. One event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.operations.brokers import BrokerOperations
from tandemmq.admin.operations.groups import GroupOperations, topics_together
from tandemmq.admin.operations.kept_tails import KeptTailOperations
from tandemmq.admin.operations.message_search import MessageSearch, MessageTail
from tandemmq.admin.operations.messages import MakeSendClient, MessageOperations, MessageSending
from tandemmq.admin.operations.questions import Members, OperationFailed, Questions, each_once
from tandemmq.admin.operations.topics import RouteOperations, TopicOperations, dead_letter_topic
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
    Progress,
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
from tandemmq.admin.rpc import Channels
from tandemmq.core.clock import Clock

__all__ = ["ClusterOperations"]


class ClusterOperations:
    """`Operations` over gRPC. Has no task of its own and nothing to close: `channels` are the caller's."""

    def __init__(
        self,
        channels: Channels,
        *,
        members: Callable[[], ClusterState | None],
        send_client: MakeSendClient,
        clock: Clock,
    ) -> None:
        """`members` gives the newest reading, None before the first; `send_client` makes what a test message is sent
        with."""
        known, questions = Members(members), Questions(channels)
        self._routes = RouteOperations(known, questions)
        self._topics = TopicOperations(known, questions, self._routes, clock=clock)
        self._groups = GroupOperations(known, questions, clock=clock)
        self._messages = MessageOperations(known, questions, self._groups)
        self._search = MessageSearch(known, questions)
        self._tail = MessageTail(known, questions)
        self._sending = MessageSending(known, questions, send_client, clock=clock)
        self._brokers = BrokerOperations(known, questions)
        self._kept_tails = KeptTailOperations(known, questions)

    # Topics

    async def topics(
        self, *, search: str = "", categories: Sequence[str] = ("topic",), page: PageRequest = FIRST_PAGE
    ) -> Page[TopicSummary]:
        """See `Operations`. The list itself may be 2 s old, the counts are new."""
        return await self._topics.topics(search=search, categories=categories, page=page)

    async def topic(self, name: str) -> TopicDetail:
        """See `Operations`."""
        facts, (progress, unseen) = await asyncio.gather(self._topics.topic(name), self._progress_in(name))
        return TopicDetail(
            summary=facts.summary,
            extents=facts.extents,
            routes=facts.routes,
            routes_agree=len({frozenset(route.queues) for route in facts.routes}) <= 1,
            groups=topics_together(progress),
            unseen=each_once(facts.unseen, unseen),
        )

    async def topic_routes(self, name: str) -> tuple[Sequence[Route], Sequence[Unseen]]:
        """See `Operations`."""
        return await self._routes.routes(name)

    async def put_topic(self, change: TopicChange, *, dry_run: bool = False) -> ChangeResult:
        """See `Operations`."""
        return await self._topics.put_topic(change, dry_run=dry_run)

    async def delete_topic(self, name: str, *, dry_run: bool = False) -> ChangeResult:
        """See `Operations`. Warns of the groups that read it."""
        progress, _ = await self._progress_in(name)
        result = await self._topics.delete_topic(name, dry_run=dry_run)
        readers = [f"group {one.group} reads it and lacks {one.lag:,} messages" for one in topics_together(progress)]
        return ChangeResult(result.changes, result.dry_run, (*readers, *result.warnings))

    # Groups and clients

    async def groups(self, *, search: str = "", page: PageRequest = FIRST_PAGE) -> Page[GroupSummary]:
        """See `Operations`. The system's groups are left out; the list may be 2 s old, the lags are new."""
        return await self._groups.groups(search=search, page=page)

    async def group(self, name: str) -> GroupDetail:
        """See `Operations`."""
        facts = await self._groups.group(name)
        dead_letters = await self._topics.held(dead_letter_topic(name))
        return GroupDetail(facts.summary, facts.progress, facts.members, dead_letters, facts.unseen)

    async def put_group(self, change: GroupChange, *, dry_run: bool = False) -> ChangeResult:
        """See `Operations`."""
        return await self._groups.put_group(change, dry_run=dry_run)

    async def delete_group(self, name: str, *, even_with_members: bool = False, dry_run: bool = False) -> ChangeResult:
        """See `Operations`."""
        return await self._groups.delete_group(name, even_with_members=even_with_members, dry_run=dry_run)

    async def reset_offsets(
        self, group: str, topic: str, target: ResetTarget, *, dry_run: bool = False
    ) -> Sequence[OffsetReset]:
        """See `Operations`."""
        return await self._groups.reset_offsets(group, topic, target, dry_run=dry_run)

    async def clients(self, *, group: str = "", topic: str = "", limit: int = 200) -> Page[Client]:
        """See `Operations`. At most 1,000."""
        return await self._groups.clients(group=group, topic=topic, limit=limit)

    # Messages

    async def search(self, query: MessageQuery) -> MessagePage:
        """See `Operations`."""
        return await self._search.search(query)

    async def find_message(self, message_id: str, *, topic: str = "") -> Sequence[MessageSummary]:
        """See `Operations`."""
        return await self._messages.find(message_id, topic=topic)

    async def message(self, broker_name: str, physical_offset: int, *, body_bytes: int = 65_536) -> MessageDetail:
        """See `Operations`. At most 4 MiB of the body."""
        return await self._messages.at_physical(broker_name, physical_offset, body_bytes=body_bytes)

    async def message_at(
        self, broker_name: str, topic: str, queue_id: int, queue_offset: int, *, body_bytes: int = 65_536
    ) -> MessageDetail:
        """See `Operations`. At most 4 MiB of the body."""
        return await self._messages.at_queue(broker_name, topic, queue_id, queue_offset, body_bytes=body_bytes)

    def tail(self, topic: str, *, tags: Sequence[str] = (), body_bytes: int = 4_096) -> AsyncIterator[MessageSummary]:
        """See `Operations`. For 16 who look at once; of more than 200 messages a second the newest are shown."""
        return self._tail.messages(topic, tags=tags, body_bytes=body_bytes)

    async def send(self, message: TestMessage) -> TestReceipt:
        """See `Operations`. A body of 4 MiB at most."""
        return await self._sending.send(message)

    async def resend_dead_letters(
        self, group: str, broker_name: str, queue_offsets: Sequence[int], *, dry_run: bool = False
    ) -> Sequence[DeadLetterResult]:
        """See `Operations`. At most 1,000 at a time."""
        return await self._brokers.resend_dead_letters(group, broker_name, queue_offsets, dry_run=dry_run)

    # Kept tails

    async def kept_tails(self) -> tuple[Sequence[KeptTail], Sequence[Unseen]]:
        """See `Operations`. Of each broker at most 500."""
        return await self._kept_tails.tails()

    async def restore_kept_tail(
        self, broker: str, name: str, *, page_token: str = "", dry_run: bool = False
    ) -> TailResult:
        """See `Operations`. Some 4 MiB at a time."""
        return await self._kept_tails.restore(broker, name, page_token=page_token, dry_run=dry_run)

    async def restore_records(
        self, broker_name: str, records: Sequence[tuple[int, bytes]], *, dry_run: bool = False
    ) -> Sequence[TailMessage]:
        """See `Operations`."""
        return await self._kept_tails.restore_records(broker_name, records, dry_run=dry_run)

    # Brokers

    async def broker_settings(self, broker: str) -> BrokerSettings:
        """See `Operations`."""
        return await self._brokers.settings(broker)

    async def update_settings(
        self, broker: str, values: Mapping[str, str], *, dry_run: bool = False
    ) -> Sequence[ConfigChange]:
        """See `Operations`."""
        return await self._brokers.update_settings(broker, values, dry_run=dry_run)

    async def set_write_permission(self, broker_name: str, *, writable: bool, dry_run: bool = False) -> ChangeResult:
        """See `Operations`."""
        topics = await self._topics.writable_on(broker_name) if dry_run else ()
        return await self._routes.set_write_permission(broker_name, writable=writable, dry_run=dry_run, topics=topics)

    async def accept_loss(self, broker_name: str, *, names: Sequence[str] = (), dry_run: bool = False) -> AcceptedLoss:
        """See `Operations`."""
        return await self._brokers.accept_loss(broker_name, names=names, dry_run=dry_run)

    async def events(self, *, limit: int = 200) -> tuple[Sequence[EventLine], Sequence[Unseen]]:
        """See `Operations`. At most 500."""
        return await self._brokers.events(limit=limit)

    async def _progress_in(self, topic: str) -> tuple[Sequence[Progress], Sequence[Unseen]]:
        """Groups that read a topic; none, and why, when no master answers."""
        try:
            return await self._groups.progress_in(topic)
        except OperationFailed as failure:
            return (), (Unseen("groups that read it", failure.problem),)
