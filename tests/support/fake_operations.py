"""A cluster in memory that does all `Operations`, for tests of pages, API and command line."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from typing import TypeVar

from support.fake_cluster import FakeCluster
from support.manual_time import ManualTime
from support.operations_samples import (
    BROKERS,
    MASTERS,
    NOW_MS,
)
from tandemmq.admin.operations.messages import SendClient
from tandemmq.admin.operations.operations import Operations
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.topics import DEAD_LETTER_PREFIX
from tandemmq.admin.operations.values import (
    FIRST_PAGE,
    AcceptedLoss,
    Acl,
    AclEntry,
    BrokerSettings,
    BrokerTopic,
    Change,
    ChangeResult,
    Client,
    ClientReply,
    ConfigChange,
    DeadLetterResult,
    EventLine,
    GroupChange,
    GroupDetail,
    GroupSummary,
    HandOver,
    HoldingState,
    KeptTail,
    LiteTopic,
    LiteTopicPage,
    Message,
    MessageDetail,
    MessagePage,
    MessageQuery,
    MessageSummary,
    OffsetReset,
    Page,
    PageRequest,
    Progress,
    QueueRoute,
    ReplicaCopy,
    ResetTarget,
    Route,
    SearchOrder,
    TailMessage,
    TailResult,
    TestMessage,
    TestReceipt,
    TopicChange,
    TopicDetail,
    TopicSummary,
    Transaction,
    TransactionPage,
    UnreadableRange,
    Unseen,
    User,
    UserChange,
    Verification,
    VerificationState,
)
from tandemmq.admin.rpc import Channels
from tandemmq.core.audit.run_summary import Tier

_ItemT = TypeVar("_ItemT")

_MASTERS = tuple(broker for broker in BROKERS if broker.endswith(":0"))
_NAME_SERVERS = ("10.0.0.1:9876", "10.0.0.2:9876")


def operations_of_nothing() -> Operations:
    """The true ones, of a cluster that was never read: to look at what they take."""
    return Operations(Channels(), members=lambda: None, send_client=_no_client, clock=ManualTime())


@asynccontextmanager
async def _no_client(_access_points: object) -> AsyncIterator[SendClient]:
    raise AssertionError("nobody sends here")
    yield


class FakeOperations(Operations):
    """Changes take effect in memory, so a page can be asked for their result.

    `unseen` is added to what answers can carry it. `failures` maps a method's name to what it raises; `down` is raised
    by every method. `tail` gives what `arrive` is given, and ends after `tail_ends()`.
    """

    def __init__(self, *, bulk_topic_count: int = 0, now_ms: int = NOW_MS, empty: bool = False) -> None:
        """`empty`: a cluster without topics, groups, messages, clients and events."""
        self.cluster = FakeCluster(bulk_topic_count=bulk_topic_count, now_ms=now_ms, empty=empty)
        self.unseen: tuple[Unseen, ...] = ()
        self.failures: dict[str, OperationFailed] = {}
        self.down: OperationFailed | None = None
        self.started = Verification()
        self.users_by_name = {} if empty else {name: User(name, "Normal", "enable") for name in ("billing", "shop")}
        entry = AclEntry("Topic:orders", ("Sub",), changed_ms=now_ms)
        self.acls_by_subject = {} if empty else {"User:billing": Acl("User:billing", [entry])}
        self._arriving: asyncio.Queue[MessageSummary | None] = asyncio.Queue()

    # Topics

    async def topics(
        self, *, search: str = "", categories: Sequence[str] = ("topic",), page: PageRequest = FIRST_PAGE
    ) -> Page[TopicSummary]:
        self._check("topics")
        found = [
            topic
            for name, topic in sorted(self.cluster.topics.items())
            if search.lower() in name.lower() and topic.category in categories
        ]
        shown = [self.cluster.counted(topic) for topic in _part(found, page)]
        return Page(shown, page.number, page.size, len(found), self.unseen)

    async def topic(self, name: str) -> TopicDetail:
        self._check("topic")
        summary = self.cluster.counted(self.cluster.topic(name))
        routes, _ = await self.topic_routes(name)
        by_group = [
            _together(group, name, [one for one in self.cluster.progress(name) if one.group == group])
            for group in sorted({one.group for one in self.cluster.progress(name)})
        ]
        agree = all(route.queues == routes[0].queues for route in routes)
        return TopicDetail(summary, self.cluster.extents(name), routes, agree, by_group, self.unseen)

    async def topic_routes(self, topic: str) -> tuple[Sequence[Route], Sequence[Unseen]]:
        self._check("topic_routes")
        held = self.cluster.topics.get(topic)
        queues = [
            QueueRoute(
                each.broker_name,
                each.read_queue_count,
                each.write_queue_count,
                each.permission if self.cluster.writable[each.broker_name] else each.permission & ~2,
            )
            for each in (held.brokers if held else ())
        ]
        addresses = {broker: f"10.0.1.{number}:8081" for number, broker in enumerate(BROKERS)} if queues else {}
        routes = [Route(server, queues, addresses) for server in _NAME_SERVERS]
        if topic == "half-changed":
            # The second NameServer lags behind on the topic whose masters disagree.
            routes[1] = replace(routes[1], queues=queues[:1])
        return routes, self.unseen

    async def put_topic(self, change: TopicChange, *, dry_run: bool = False) -> ChangeResult:
        self._check("put_topic")
        if not change.name or " " in change.name or change.name.startswith("rmq_sys_"):
            raise OperationFailed(
                FailureKind.INVALID, f"topic {change.name!r} cannot be made", cause="the name is not allowed"
            )
        before = self.cluster.topics.get(change.name)
        names = tuple(change.broker_names) or MASTERS
        old = {each.broker_name: each for each in before.brokers} if before else {}
        new = {name: _changed(old.get(name, BrokerTopic(name, 8, 8, 6, "NORMAL")), change) for name in names}
        changes = [Change(f"{name}:0", _what(old.get(name), topic)) for name, topic in new.items()]
        if not dry_run:
            brokers = tuple((old | new)[name] for name in sorted(old | new))
            self.cluster.topics[change.name] = TopicSummary(
                change.name, before.category if before else "topic", brokers
            )
        return self._result(changes, dry_run)

    async def delete_topic(self, name: str, *, dry_run: bool = False) -> ChangeResult:
        self._check("delete_topic")
        topic = self.cluster.topic(name)
        if topic.category == "system":
            raise OperationFailed(FailureKind.INVALID, f"topic {name} belongs to the system", remedy="leave it alone")
        if not dry_run:
            del self.cluster.topics[name]
            self.cluster.messages = [message for message in self.cluster.messages if message.topic != name]
        return self._result([Change(f"{each.broker_name}:0", "removed") for each in topic.brokers], dry_run)

    # Groups and clients

    async def groups(self, *, search: str = "", page: PageRequest = FIRST_PAGE) -> Page[GroupSummary]:
        self._check("groups")
        found = [group for name, group in sorted(self.cluster.groups.items()) if search.lower() in name.lower()]
        shown = [self.cluster.measured(group) for group in _part(found, page)]
        return Page(shown, page.number, page.size, len(found), self.unseen)

    async def group(self, name: str) -> GroupDetail:
        self._check("group")
        summary = self.cluster.measured(self.cluster.group(name))
        found = self.cluster.progress_of(name)
        letters = sum(message.topic == f"%DLQ%{name}" for message in self.cluster.messages)
        members = [client for client in self.cluster.clients if client.group == name]
        return GroupDetail(summary, found, members, letters, self.unseen)

    async def put_group(self, change: GroupChange, *, dry_run: bool = False) -> ChangeResult:
        self._check("put_group")
        if not change.name or " " in change.name:
            raise OperationFailed(FailureKind.INVALID, f"group {change.name!r} cannot be made")
        before = self.cluster.groups.get(change.name)
        group = before or GroupSummary(change.name, False, 16, True, 0)
        group = replace(
            group,
            ordered=group.ordered if change.ordered is None else change.ordered,
            retry_max_times=group.retry_max_times if change.retry_max_times is None else change.retry_max_times,
            enabled=group.enabled if change.enabled is None else change.enabled,
            attributes={name: value for name, value in {**group.attributes, **change.attributes}.items() if value},
        )
        what = "no change" if group == before else "changed" if before else "created"
        if not dry_run:
            self.cluster.groups[change.name] = group
        return self._result([Change(f"{name}:0", what) for name in MASTERS], dry_run)

    async def delete_group(self, name: str, *, even_with_members: bool = False, dry_run: bool = False) -> ChangeResult:
        self._check("delete_group")
        group = self.cluster.group(name)
        if group.member_count and not even_with_members:
            raise OperationFailed(
                FailureKind.REFUSED,
                f"group {name} has {group.member_count} members; nothing was changed",
                remedy="stop its consumers first, or remove it although they are connected",
            )
        if not dry_run:
            del self.cluster.groups[name]
        return self._result([Change(f"{broker}:0", "removed with its progress") for broker in MASTERS], dry_run)

    async def reset_offsets(
        self, group: str, topic: str, target: ResetTarget, *, dry_run: bool = False
    ) -> Sequence[OffsetReset]:
        self._check("reset_offsets")
        self.cluster.group(group)
        self.cluster.topic(topic)
        known = {(one.broker_name, one.queue_id): one for one in self.cluster.progress(topic) if one.group == group}
        moves = []
        for extent in self.cluster.extents(topic):
            was = known.get((extent.broker_name, extent.queue_id))
            goes_to = extent.min_offset if target.earliest else extent.max_offset
            if target.offsets is not None:
                if (extent.broker_name, extent.queue_id) not in target.offsets:
                    continue
                goes_to = target.offsets[extent.broker_name, extent.queue_id]
            elif target.time_ms is not None:
                goes_to = self.cluster.offset_at(topic, extent, target.time_ms)
            from_offset, inflight = (was.committed_offset, was.inflight) if was else (-1, 0)
            moves.append(
                OffsetReset(extent.broker_name, extent.queue_id, from_offset, goes_to, extent.max_offset, inflight)
            )
        if not dry_run:
            self.cluster.resets[group, topic] = moves
        return moves

    async def clients(self, *, group: str = "", topic: str = "", limit: int = 200) -> Page[Client]:
        self._check("clients")
        found = [
            client
            for client in self.cluster.clients
            if (not group or client.group == group) and (not topic or topic in client.subscriptions)
        ]
        if not found:
            await self._refuse_unknown(group=group, topic=topic)
        return Page(found[:limit], 1, limit, len(found), self.unseen)

    async def _refuse_unknown(self, *, group: str = "", topic: str = "") -> None:
        if group:
            self.cluster.group(group)
        if topic:
            self.cluster.topic(topic)

    # Messages

    async def search(self, query: MessageQuery) -> MessagePage:
        self._check("search")
        if query.topic.startswith(DEAD_LETTER_PREFIX) and query.topic not in self.cluster.topics:
            return MessagePage((), "", 0, self.unseen)
        self.cluster.topic(query.topic)
        if query.page_token and not query.page_token.isdecimal():
            raise OperationFailed(FailureKind.INVALID, "the page token is none", remedy="begin again without it")
        found = [message for message in self.cluster.messages if _matches(message, query)]
        if query.queue_id < 0 and (query.key or query.order is SearchOrder.NEWEST):
            found.reverse()
        start = int(query.page_token or 0)
        end = start + query.limit
        return MessagePage(
            [_summary(message, query.body_bytes) for message in found[start:end]],
            str(end) if end < len(found) else "",
            len(found),
            self.unseen,
        )

    async def find_message(self, message_id: str, *, topic: str = "") -> Sequence[MessageSummary]:
        self._check("find_message")
        found = [
            message
            for message in self.cluster.messages
            if message_id in (message.message_id, message.offset_message_id) and topic in ("", message.topic)
        ]
        return [_summary(message, 0) for message in reversed(found)]

    async def message(self, broker_name: str, physical_offset: int, *, body_bytes: int = 65_536) -> MessageDetail:
        self._check("message")
        for message in self.cluster.messages:
            if (message.broker_name, message.physical_offset) == (broker_name, physical_offset):
                return self._detail(message, body_bytes)
        raise OperationFailed(
            FailureKind.NOT_FOUND,
            f"no message begins at {physical_offset:,} on {broker_name}",
            cause="it has expired, or never was there",
        )

    async def message_at(
        self, broker_name: str, topic: str, queue_id: int, queue_offset: int, *, body_bytes: int = 65_536
    ) -> MessageDetail:
        self._check("message_at")
        for message in self.cluster.messages:
            place = message.broker_name, message.topic, message.queue_id, message.queue_offset
            if place == (broker_name, topic, queue_id, queue_offset):
                return self._detail(message, body_bytes)
        raise OperationFailed(FailureKind.NOT_FOUND, f"queue {queue_id} of {topic} has no message {queue_offset}")

    async def tail(
        self, topic: str, *, tags: Sequence[str] = (), body_bytes: int = 4_096
    ) -> AsyncIterator[MessageSummary]:
        self._check("tail")
        self.cluster.topic(topic)
        while (message := await self._arriving.get()) is not None:
            if message.topic == topic and (not tags or message.tag in tags):
                yield replace(message, body=message.body[:body_bytes])

    def arrive(self, message: MessageSummary) -> None:
        """A tail is given this message."""
        self._arriving.put_nowait(message)

    def tail_ends(self) -> None:
        self._arriving.put_nowait(None)

    async def send(self, message: TestMessage) -> TestReceipt:
        self._check("send")
        topic = self.cluster.topic(message.topic)
        kind = topic.brokers[0].message_type
        if kind in ("DELAY", "TRANSACTION") or (kind == "FIFO") != bool(message.message_group):
            raise OperationFailed(
                FailureKind.REFUSED, f"topic {message.topic} takes no such message", cause=f"it is of type {kind}"
            )
        self.cluster.sent.append(message)
        number = len(self.cluster.sent)
        return TestReceipt(f"01SENT{number:028}", topic.brokers[0].broker_name, 0, 1_000 + number, 2.5)

    async def resend_dead_letters(
        self, group: str, broker_name: str, queue_offsets: Sequence[int], *, dry_run: bool = False
    ) -> Sequence[DeadLetterResult]:
        self._check("resend_dead_letters")
        self.cluster.group(group)
        held = {
            message.queue_offset: message
            for message in self.cluster.messages
            if message.topic == f"%DLQ%{group}" and message.broker_name == broker_name
        }
        results = []
        for offset in queue_offsets:
            if (letter := held.get(offset)) is None:
                results.append(DeadLetterResult(broker_name, offset, "", -1, "", "there is no such dead letter"))
            else:
                new_offset = -1 if dry_run else 2_000 + offset
                results.append(DeadLetterResult(broker_name, offset, "orders", new_offset, letter.message_id, ""))
        if not dry_run:
            self.cluster.resent += results
        return results

    # Lite topics

    async def lite_topics(self, topic: str, *, search: str = "", limit: int = 200) -> LiteTopicPage:
        self._check("lite_topics")
        found = [
            LiteTopic("broker-a", name, 1, 4, NOW_MS - 60_000, 2, {"workers": 3})
            for name in ("session-1", "session-2")
            if search in name
        ]
        return LiteTopicPage(tuple(found[:limit]), len(found), self.unseen)

    # Transactions, and clients' streams

    async def transactions(self, *, topic: str = "", limit: int = 200) -> TransactionPage:
        self._check("transactions")
        found = [one for one in self.cluster.transactions.values() if topic in ("", one.topic)]
        if not found:
            await self._refuse_unknown(topic=topic)
        return TransactionPage(tuple(found[:limit]), len(found), self.unseen)

    async def resolve_transaction(self, transaction_id: str, end: str, *, dry_run: bool = False) -> Transaction:
        self._check("resolve_transaction")
        before = self.cluster.ended.get(transaction_id)
        if before not in (None, end):
            raise OperationFailed(FailureKind.REFUSED, "the transaction was not ended", cause=f"it ended by {before}")
        found = self.cluster.transactions.get(transaction_id)
        if found is None:
            if before is None:
                raise OperationFailed(FailureKind.INVALID, f"transaction id {transaction_id!r} is none")
            return Transaction("broker-a", transaction_id, "", "PAY-1", -1, 0, "", 0)
        if not dry_run:
            self.cluster.ended[transaction_id] = end
            del self.cluster.transactions[transaction_id]
        return found

    async def command_client(
        self,
        client_id: str,
        command: str,
        *,
        broker_name: str = "",
        topic: str = "",
        queue_id: int = 0,
        queue_offset: int = 0,
    ) -> Sequence[ClientReply]:
        self._check("command_client")
        known = [client for client in self.cluster.clients if client.client_id == client_id]
        if not known:
            raise OperationFailed(FailureKind.NOT_FOUND, f"client {client_id} was not told")
        return [ClientReply(broker, "OK", f"{command} {topic} {queue_offset}") for broker in known[0].brokers]

    # Kept tails

    async def users(self, *, search: str = "") -> tuple[Sequence[User], Sequence[Unseen]]:
        self._check("users")
        return [user for name, user in sorted(self.users_by_name.items()) if search in name], self.unseen

    async def create_user(self, change: UserChange, *, dry_run: bool = False) -> ChangeResult:
        self._check("create_user")
        if change.username in self.users_by_name:
            raise OperationFailed(FailureKind.REFUSED, f"there is a user {change.username}")
        return self._put_user(change, "created", dry_run=dry_run)

    async def update_user(self, change: UserChange, *, dry_run: bool = False) -> ChangeResult:
        self._check("update_user")
        self._user(change.username)
        return self._put_user(change, "changed", dry_run=dry_run)

    async def delete_user(self, username: str, *, dry_run: bool = False) -> ChangeResult:
        self._check("delete_user")
        self._user(username)
        if not dry_run:
            del self.users_by_name[username]
            self.acls_by_subject.pop(f"User:{username}", None)
        return self._result([Change(broker, "deleted") for broker in _MASTERS], dry_run)

    async def acls(self, *, subject: str = "", resource: str = "") -> tuple[Sequence[Acl], Sequence[Unseen]]:
        self._check("acls")
        found = [
            replace(acl, entries=[entry for entry in acl.entries if resource in entry.resource])
            for name, acl in sorted(self.acls_by_subject.items())
            if subject in name
        ]
        return [acl for acl in found if acl.entries], self.unseen

    async def put_acl(self, subject: str, entries: Sequence[AclEntry], *, dry_run: bool = False) -> ChangeResult:
        self._check("put_acl")
        self._user(subject.removeprefix("User:"))
        if not dry_run:
            held = {one.resource: one for one in self.acls_by_subject.get(subject, Acl(subject, ())).entries}
            held.update({one.resource: replace(one, changed_ms=NOW_MS) for one in entries})
            self.acls_by_subject[subject] = Acl(subject, list(held.values()))
        return self._result([Change(broker, "changed") for broker in _MASTERS], dry_run)

    async def delete_acl(
        self, subject: str, resources: Sequence[str] = (), *, policy_type: str = "", dry_run: bool = False
    ) -> ChangeResult:
        self._check("delete_acl")
        acl = self.acls_by_subject.get(subject)
        if acl is None:
            raise OperationFailed(FailureKind.NOT_FOUND, f"{subject} has no such policy")
        if not dry_run:
            left = [one for one in acl.entries if resources and one.resource not in resources]
            self.acls_by_subject[subject] = Acl(subject, left)
        return self._result([Change(broker, "deleted") for broker in _MASTERS], dry_run)

    async def copy_users(
        self,
        from_broker_name: str,
        to_broker_name: str,
        usernames: Sequence[str] = (),
        *,
        only_users: bool = False,
        only_acls: bool = False,
        dry_run: bool = False,
    ) -> ChangeResult:
        self._check("copy_users")
        names = usernames or sorted(self.users_by_name)
        return self._result(
            [Change(f"{self._user(name).username} on {to_broker_name}:0", "copied") for name in names], dry_run
        )

    def _user(self, username: str) -> User:
        user = self.users_by_name.get(username)
        if user is None:
            raise OperationFailed(FailureKind.NOT_FOUND, f"there is no user {username}")
        return user

    def _put_user(self, change: UserChange, what: str, *, dry_run: bool) -> ChangeResult:
        if not dry_run:
            before = self.users_by_name.get(change.username, User(change.username, "Normal", "enable"))
            self.users_by_name[change.username] = replace(
                before,
                user_type=change.user_type or before.user_type,
                user_status=change.user_status or before.user_status,
            )
        return self._result([Change(broker, what) for broker in _MASTERS], dry_run)

    async def kept_tails(self) -> tuple[Sequence[KeptTail], Sequence[Unseen]]:
        self._check("kept_tails")
        return self.cluster.kept_tails, ()

    async def restore_kept_tail(
        self, broker: str, name: str, *, page_token: str = "", dry_run: bool = False
    ) -> TailResult:
        """Two parts: a message each, and a third that cannot be restored."""
        self._check("restore_kept_tail")
        tail = next((one for one in self.cluster.kept_tails if (one.broker, one.name) == (broker, name)), None)
        if tail is None:
            raise OperationFailed(FailureKind.NOT_FOUND, f"{broker} keeps no tail {name}")
        if not page_token:
            held = TailMessage(tail.start_offset, "HELD", "orders", NOW_MS, HoldingState.HELD, "broker-b", -1, -1, "")
            lost = UnreadableRange(5_000, 6_000, "CRC of the body: message LOST of topic orders")
            return TailResult(tail, (held,), (lost,), "second", dry_run)
        return TailResult(tail, self._restored(dry_run=dry_run), (), "", dry_run)

    async def restore_records(
        self, broker_name: str, records: Sequence[tuple[int, bytes]], *, dry_run: bool = False
    ) -> Sequence[TailMessage]:
        self._check("restore_records")
        self.cluster.restored_from_files += [offset for offset, _ in records if not dry_run]
        return self._restored(dry_run=dry_run)

    def _restored(self, *, dry_run: bool) -> tuple[TailMessage, ...]:
        is_held = "MISSING" in self.cluster.restored
        new_offset = -1 if dry_run or is_held else 7
        if not dry_run:
            self.cluster.restored.add("MISSING")
        state = HoldingState.HELD if is_held else HoldingState.MISSING
        held_by = "broker-a" if is_held else ""
        return (
            TailMessage(6_000, "MISSING", "orders", NOW_MS, state, held_by, min(0, new_offset), new_offset, ""),
            TailMessage(
                7_000, "NOWHERE", "gone", NOW_MS, HoldingState.MISSING, "", -1, -1, "topic gone does not exist"
            ),
        )

    # Brokers

    async def broker_settings(self, broker: str) -> BrokerSettings:
        self._check("broker_settings")
        return BrokerSettings(broker, list(self.cluster.settings_of(broker).values()))

    async def update_settings(
        self, broker: str, values: Mapping[str, str], *, dry_run: bool = False
    ) -> Sequence[ConfigChange]:
        self._check("update_settings")
        table = self.cluster.settings_of(broker)
        for key in values:
            if key not in table or not table[key].changeable:
                raise OperationFailed(
                    FailureKind.INVALID,
                    f"{key} cannot be changed while the broker runs; nothing was changed",
                    remedy="change its configuration file and restart it" if key in table else "see the list of keys",
                )
        changes = [
            ConfigChange(broker, key, table[key].value, value)
            for key, value in sorted(values.items())
            if table[key].value != value
        ]
        if not dry_run:
            for change in changes:
                table[change.key] = replace(table[change.key], value=change.to_value, origin="changed")
        return changes

    async def set_write_permission(self, broker_name: str, *, writable: bool, dry_run: bool = False) -> ChangeResult:
        self._check("set_write_permission")
        if broker_name not in self.cluster.writable:
            raise OperationFailed(FailureKind.NOT_FOUND, f"there is no broker group {broker_name}")
        same = self.cluster.writable[broker_name] == writable
        if not dry_run:
            self.cluster.writable[broker_name] = writable
        what = "no change" if same else f"{len(self.cluster.topics)} topics {'writable' if writable else 'read only'}"
        return self._result([Change(server, what) for server in _NAME_SERVERS], dry_run)

    async def accept_loss(self, broker_name: str, *, names: Sequence[str] = (), dry_run: bool = False) -> AcceptedLoss:
        self._check("accept_loss")
        if broker_name not in self.cluster.writable:
            raise OperationFailed(FailureKind.NOT_FOUND, f"there is no broker group {broker_name}")
        loss = self.cluster.waits.get(broker_name)
        if loss is None:
            raise OperationFailed(
                FailureKind.REFUSED, f"{broker_name}:0 serves and waits for nothing; nothing was given up"
            )
        if dry_run:
            return loss
        if set(names) != set(loss.names):
            raise OperationFailed(FailureKind.REFUSED, f"it waits for {', '.join(loss.names)}")
        del self.cluster.waits[broker_name]
        return replace(loss, dry_run=False)

    async def verify(
        self, *, tier: Tier = Tier.QUICK, groups: Sequence[str] = (), dry_run: bool = False
    ) -> Verification:
        self._check("verify")
        if self.started.state is VerificationState.RUNNING:
            raise OperationFailed(FailureKind.REFUSED, "a run is in progress", remedy="wait until it has ended")
        started = Verification(VerificationState.RUNNING, "", tier, tuple(groups), NOW_MS)
        if not dry_run:
            self.started = started
        return started

    async def verification(self) -> Verification:
        self._check("verification")
        return self.started

    async def failover(
        self, broker_name: str, *, to: int | None = None, unclean: bool = False, dry_run: bool = False
    ) -> HandOver:
        self._check("failover")
        if broker_name not in self.cluster.masters:
            raise OperationFailed(FailureKind.NOT_FOUND, f"there is no broker group {broker_name}")
        master, epoch = self.cluster.masters[broker_name]
        successor = 1 - master if to is None else to
        if successor not in (0, 1):
            raise OperationFailed(
                FailureKind.NOT_FOUND, f"{broker_name} has no broker {to}", remedy="choose one of 0, 1"
            )
        names = (broker_name, f"{broker_name}:{master}", f"{broker_name}:{successor}")
        if dry_run or successor == master:
            return HandOver(*names, epoch, 0, dry_run)
        self.cluster.masters[broker_name] = (successor, epoch + 1)
        return HandOver(*names, epoch + 1, 90, dry_run)

    async def events(self, *, limit: int = 200) -> tuple[Sequence[EventLine], Sequence[Unseen]]:
        self._check("events")
        return self.cluster.events[:limit], self.unseen

    # What is behind it

    def _check(self, method: str) -> None:
        problem = self.down or self.failures.get(method)
        if problem is not None:
            raise problem

    def _detail(self, message: Message, body_bytes: int) -> MessageDetail:
        digest = hashlib.sha256(message.body).hexdigest()
        copies = [
            ReplicaCopy(f"{message.broker_name}:0", True, digest, None, True, "holds it, on disk", master=True),
            ReplicaCopy(f"{message.broker_name}:1", True, digest, True, False, "holds the same bytes"),
        ]
        consumption = {one.group: "acknowledged" for one in self.cluster.progress(message.topic)}
        return MessageDetail(replace(message, body=message.body[:body_bytes]), copies, consumption, self.unseen)

    def _result(self, changes: Sequence[Change], dry_run: bool) -> ChangeResult:
        return ChangeResult(changes, dry_run, [f"{one.subject} does not answer" for one in self.unseen])


def _part(found: Sequence[_ItemT], page: PageRequest) -> Sequence[_ItemT]:
    return found[(page.number - 1) * page.size : page.number * page.size]


def _changed(topic: BrokerTopic, change: TopicChange) -> BrokerTopic:
    return replace(
        topic,
        read_queue_count=change.read_queue_count or topic.read_queue_count,
        write_queue_count=change.write_queue_count or topic.write_queue_count,
        permission=change.permission or topic.permission,
        message_type=change.message_type or topic.message_type,
    )


def _what(before: BrokerTopic | None, after: BrokerTopic) -> str:
    if before is None:
        return f"created with {after.read_queue_count} queues to read and {after.write_queue_count} to write"
    return "no change" if before == after else "changed"


def _together(group: str, topic: str, found: Sequence[Progress]) -> Progress:
    return Progress(
        group,
        topic,
        "",
        -1,
        sum(one.committed_offset for one in found),
        sum(one.max_offset for one in found),
        sum(one.inflight for one in found),
        max((one.oldest_age_ms for one in found), default=0),
    )


def _matches(message: Message, query: MessageQuery) -> bool:
    return (
        message.topic == query.topic
        and query.broker_name in ("", message.broker_name)
        and (
            query.queue_id < 0
            or (message.queue_id, True) == (query.queue_id, message.queue_offset >= query.start_offset)
        )
        and (not query.key or query.key in (message.message_id, *message.keys))
        and (query.start_ms < 0 or message.store_ms >= query.start_ms)
        and (query.end_ms < 0 or message.store_ms < query.end_ms)
        and (not query.tags or message.tag in query.tags)
        and (query.text.lower() in f"{message.body.decode(errors='replace')} {message.tag} {message.keys}".lower())
    )


def _summary(message: Message, body_bytes: int) -> MessageSummary:
    values = {field.name: getattr(message, field.name) for field in fields(MessageSummary)}
    return MessageSummary(**values | {"body": message.body[:body_bytes]})
