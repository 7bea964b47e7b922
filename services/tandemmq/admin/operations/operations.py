"""All an operator can ask of a cluster and do to it. Console, REST, gRPC and command line know nothing else.

NameServers and brokers are asked and told each by its own address. Who they are comes from the newest reading of the
cluster, so that no operation is given an address and a broker that hung a moment ago is not waited for again. One event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from tandemmq.admin.audit_log import Actor, AuditLog
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.operations.access import AccessOperations
from tandemmq.admin.operations.brokers import BrokerOperations, FailoverOperations
from tandemmq.admin.operations.groups import GroupOperations, topics_together
from tandemmq.admin.operations.kept_tails import KeptTailOperations
from tandemmq.admin.operations.message_search import MessageSearch, MessageTail
from tandemmq.admin.operations.messages import MakeSendClient, MessageOperations, MessageSending, TransactionOperations
from tandemmq.admin.operations.questions import FailureKind, Members, OperationFailed, Questions, each_once
from tandemmq.admin.operations.topics import RouteOperations, TopicOperations, attributes_text, dead_letter_topic
from tandemmq.admin.operations.values import (
    FIRST_PAGE,
    AcceptedLoss,
    Acl,
    AclEntry,
    BrokerSettings,
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
    KeptTail,
    LiteTopicPage,
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
    Transaction,
    TransactionPage,
    Unseen,
    User,
    UserChange,
    Verification,
)
from tandemmq.admin.rpc import Channels
from tandemmq.core.audit.run_summary import Tier
from tandemmq.core.clock import Clock

ResultT = TypeVar("ResultT")
MethodT = TypeVar("MethodT", bound=Callable[..., Awaitable[object]])

# What a change is of, and what else the audit log says about it.
_Line: TypeAlias = tuple[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class _Change:
    """How the audit log describes an operation that changes something."""

    action: str
    # Of the operation's arguments.
    line: Callable[..., _Line]


CHANGES: Final[dict[str, _Change]] = {}
"""By method of `Operations`: those that need an operator, and leave a line in the audit log."""


def _changes(line: Callable[..., _Line], *, action: str = "") -> Callable[[MethodT], MethodT]:
    """Marks a method that changes something. `line` is given its arguments, but for `dry_run`."""

    def mark(method: MethodT) -> MethodT:
        CHANGES[method.__name__] = _Change(action or method.__name__, line)
        return method

    return mark


def _given(**fields: str | int | bool | None) -> dict[str, str]:
    """Those that were given, as text. What is not given is None, empty or 0, as in the values."""
    return {key: "true" if value is True else str(value) for key, value in fields.items() if value}


def _word(value: bool | None) -> str:
    return "" if value is None else str(value).lower()


class Verifier(Protocol):
    """What starts runs of the consistency job."""

    def state(self) -> Verification:
        """The run that was asked for last."""

    async def start(self, tier: Tier, groups: Sequence[str], *, dry_run: bool) -> Verification:
        """Starts one. Raises OperationFailed."""


class Operations:
    """One cluster. Has no task of its own and nothing to close: `channels` are the caller's.

    Every method may raise `OperationFailed`; what single members cannot say is in `unseen`. With `dry_run` nothing is
    changed and the answer says what would be. Changes reach all masters or say which not.
    """

    def __init__(
        self,
        channels: Channels,
        *,
        members: Callable[[], ClusterState | None],
        send_client: MakeSendClient,
        clock: Clock,
        verifier: Verifier | None = None,
    ) -> None:
        """`members` gives the newest reading, None before the first; `send_client` makes what a test message is sent
        with; `verifier` starts runs of the consistency job, None: nothing does."""
        known, questions = Members(members), Questions(channels)
        self._known = known
        self._routes = RouteOperations(known, questions)
        self._topics = TopicOperations(known, questions, self._routes, clock=clock)
        self._groups = GroupOperations(known, questions, clock=clock)
        self._messages = MessageOperations(known, questions, self._groups)
        self._search = MessageSearch(known, questions)
        self._tail = MessageTail(known, questions)
        self._sending = MessageSending(known, questions, send_client, clock=clock)
        self._brokers = BrokerOperations(known, questions)
        self._failovers = FailoverOperations(known, questions, clock=clock)
        self._kept_tails = KeptTailOperations(known, questions)
        self._transactions = TransactionOperations(known, questions)
        self._access = AccessOperations(known, questions)
        self._verifier = verifier

    # Topics

    async def topics(
        self, *, search: str = "", categories: Sequence[str] = ("topic",), page: PageRequest = FIRST_PAGE
    ) -> Page[TopicSummary]:
        """Topics by name; `search` is a part of the name, case does not matter. The list itself may be 2 s old; those
        shown have their counts, which are new."""
        return await self._topics.topics(search=search, categories=categories, page=page)

    async def topic(self, name: str) -> TopicDetail:
        """One topic. NOT_FOUND when no master that answers has it."""
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
        """What each NameServer says."""
        return await self._routes.routes(name)

    @_changes(
        lambda change: (
            change.name,
            _given(
                read_queue_count=change.read_queue_count,
                write_queue_count=change.write_queue_count,
                permission=change.permission,
                message_type=change.message_type,
                broker_names=",".join(change.broker_names),
                attributes=attributes_text(change.attributes),
            ),
        )
    )
    async def put_topic(self, change: TopicChange, *, dry_run: bool = False) -> ChangeResult:
        """Creates or changes a topic, and waits until every NameServer routes to it."""
        return await self._topics.put_topic(change, dry_run=dry_run)

    @_changes(lambda name: (name, {}))
    async def delete_topic(self, name: str, *, dry_run: bool = False) -> ChangeResult:
        """Removes a topic from all masters; its messages cannot be consumed while there is none of that name. Warns of
        the groups that read it."""
        progress, _ = await self._progress_in(name)
        result = await self._topics.delete_topic(name, dry_run=dry_run)
        readers = [f"group {one.group} reads it and lacks {one.lag:,} messages" for one in topics_together(progress)]
        return ChangeResult(result.changes, result.dry_run, (*readers, *result.warnings))

    # Groups and clients

    async def groups(self, *, search: str = "", page: PageRequest = FIRST_PAGE) -> Page[GroupSummary]:
        """Groups by name, without the system's. The list may be 2 s old; those shown have their lag, which is new."""
        return await self._groups.groups(search=search, page=page)

    async def group(self, name: str) -> GroupDetail:
        """One group. NOT_FOUND when no master that answers has it."""
        facts = await self._groups.group(name)
        dead_letters = await self._topics.held(dead_letter_topic(name))
        return GroupDetail(facts.summary, facts.progress, facts.members, dead_letters, facts.unseen)

    @_changes(
        lambda change: (
            change.name,
            _given(
                ordered=_word(change.ordered),
                retry_max_times="" if change.retry_max_times is None else str(change.retry_max_times),
                enabled=_word(change.enabled),
                priority_factor="" if change.priority_factor is None else str(change.priority_factor),
                slow_broker_id="" if change.slow_broker_id is None else str(change.slow_broker_id),
                retry_delays_seconds=",".join(map(str, change.retry_delays_seconds)),
                attributes=attributes_text(change.attributes),
            ),
        )
    )
    async def put_group(self, change: GroupChange, *, dry_run: bool = False) -> ChangeResult:
        return await self._groups.put_group(change, dry_run=dry_run)

    @_changes(lambda name, *, even_with_members=False: (name, _given(even_with_members=even_with_members)))
    async def delete_group(self, name: str, *, even_with_members: bool = False, dry_run: bool = False) -> ChangeResult:
        """Removes a group with its progress."""
        return await self._groups.delete_group(name, even_with_members=even_with_members, dry_run=dry_run)

    @_changes(
        lambda group, topic, target: (
            group,
            {"topic": topic} | _given(time_ms=target.time_ms, earliest=target.earliest, latest=target.latest),
        )
    )
    async def reset_offsets(
        self, group: str, topic: str, target: ResetTarget, *, dry_run: bool = False
    ) -> Sequence[OffsetReset]:
        """Sets where a group goes on."""
        return await self._groups.reset_offsets(group, topic, target, dry_run=dry_run)

    async def clients(self, *, group: str = "", topic: str = "", limit: int = 200) -> Page[Client]:
        """Connected clients, of all brokers together; at most 1,000."""
        return await self._groups.clients(group=group, topic=topic, limit=limit)

    # Messages

    async def search(self, query: MessageQuery) -> MessagePage:
        """Messages of a topic, of all masters together. Without a topic there are no dead letters, and no failure."""
        return await self._search.search(query)

    async def find_message(self, message_id: str, *, topic: str = "") -> Sequence[MessageSummary]:
        """Messages by the id a client gave them, or by an id of address and offset; newest first."""
        return await self._messages.find(message_id, topic=topic)

    async def message(self, broker_name: str, physical_offset: int, *, body_bytes: int = 65_536) -> MessageDetail:
        """One message whole, with its copies compared; at most 4 MiB of its body."""
        return await self._messages.at_physical(broker_name, physical_offset, body_bytes=body_bytes)

    async def message_at(
        self, broker_name: str, topic: str, queue_id: int, queue_offset: int, *, body_bytes: int = 65_536
    ) -> MessageDetail:
        """The same, by its place in a queue."""
        return await self._messages.at_queue(broker_name, topic, queue_id, queue_offset, body_bytes=body_bytes)

    def tail(self, topic: str, *, tags: Sequence[str] = (), body_bytes: int = 4_096) -> AsyncIterator[MessageSummary]:
        """Messages as they come in, from now on, until the caller stops.

        For 16 who look at once; of more than 200 messages a second the newest are shown.
        """
        return self._tail.messages(topic, tags=tags, body_bytes=body_bytes)

    # Of the body the log has the size only.
    @_changes(
        lambda message: (
            message.topic,
            {"body_bytes": str(len(message.body))}
            | _given(tag=message.tag, keys=",".join(message.keys), message_group=message.message_group),
        ),
        action="send_message",
    )
    async def send(self, message: TestMessage) -> TestReceipt:
        """Sends a message, of 4 MiB at most, as a client would. REFUSED says what the broker said."""
        return await self._sending.send(message)

    @_changes(
        lambda group, broker_name, queue_offsets: (
            group,
            {"broker_name": broker_name, "queue_offsets": ",".join(map(str, queue_offsets))},
        )
    )
    async def resend_dead_letters(
        self, group: str, broker_name: str, queue_offsets: Sequence[int], *, dry_run: bool = False
    ) -> Sequence[DeadLetterResult]:
        """Puts dead letters, at most 1,000 at a time, back into the topics they came from."""
        return await self._brokers.resend_dead_letters(group, broker_name, queue_offsets, dry_run=dry_run)

    # Lite topics

    async def lite_topics(self, topic: str, *, search: str = "", limit: int = 200) -> LiteTopicPage:
        """Lite topics of a topic of the type LITE on all masters, by name; at most 1,000."""
        return await self._transactions.lite_topics(topic, search=search, limit=limit)

    # Transactions, and clients' streams

    async def transactions(self, *, topic: str = "", limit: int = 200) -> TransactionPage:
        """Transactions that are neither committed nor rolled back, the oldest first; at most 1,000."""
        return await self._transactions.transactions(topic=topic, limit=limit)

    @_changes(lambda transaction_id, end: (transaction_id, {"end": end}))
    async def resolve_transaction(self, transaction_id: str, end: str, *, dry_run: bool = False) -> Transaction:
        """Ends one in its producer's place: `commit` or `rollback`. Idempotent. REFUSED: it ended in the other way, or
        is not known."""
        return await self._transactions.resolve(transaction_id, end, dry_run=dry_run)

    @_changes(
        lambda client_id, command, *, broker_name="", topic="", queue_id=0, queue_offset=0: (
            client_id,
            {"command": command}
            | _given(broker_name=broker_name, topic=topic, queue_id=queue_id, queue_offset=queue_offset),
        )
    )
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
        """Tells a client to `print-stack`, to `reconnect`, or to `verify-message` with a stored one. NOT_FOUND: no
        broker has a stream of it."""
        return await self._transactions.command_client(
            client_id, command, broker_name=broker_name, topic=topic, queue_id=queue_id, queue_offset=queue_offset
        )

    # Users and policies

    async def users(self, *, search: str = "") -> tuple[Sequence[User], Sequence[Unseen]]:
        """Users of the client API by name, without their secrets; `search` is a part of the name."""
        return await self._access.users(search=search)

    @_changes(
        lambda change: (
            change.username,
            _given(user_type=change.user_type, user_status=change.user_status),
        )
    )
    async def create_user(self, change: UserChange, *, dry_run: bool = False) -> ChangeResult:
        """Makes a user on all masters. REFUSED: there is one of that name."""
        return await self._access.put_user(change, creates=True, dry_run=dry_run)

    @_changes(
        lambda change: (
            change.username,
            _given(
                user_type=change.user_type, user_status=change.user_status, new_password=bool(change.password) or None
            ),
        )
    )
    async def update_user(self, change: UserChange, *, dry_run: bool = False) -> ChangeResult:
        """Changes what is given of a user; clients notice within a second."""
        return await self._access.put_user(change, creates=False, dry_run=dry_run)

    @_changes(lambda username: (username, {}))
    async def delete_user(self, username: str, *, dry_run: bool = False) -> ChangeResult:
        """Removes a user with its policies from all masters."""
        return await self._access.delete_user(username, dry_run=dry_run)

    async def acls(self, *, subject: str = "", resource: str = "") -> tuple[Sequence[Acl], Sequence[Unseen]]:
        """What users may do, by subject; both are parts of names."""
        return await self._access.acls(subject=subject, resource=resource)

    @_changes(
        lambda subject, entries: (
            subject,
            _given(
                entries="; ".join(
                    f"{one.decision} {','.join(one.actions)} {one.resource} {','.join(one.source_ips)}".strip()
                    for one in entries
                ),
            ),
        )
    )
    async def put_acl(self, subject: str, entries: Sequence[AclEntry], *, dry_run: bool = False) -> ChangeResult:
        """Adds entries to a subject's policies, in place of those of the same type and resource."""
        return await self._access.put_acl(subject, entries, dry_run=dry_run)

    @_changes(
        lambda subject, resources=(), *, policy_type="": (
            subject,
            _given(resources=",".join(resources), policy_type=policy_type),
        )
    )
    async def delete_acl(
        self, subject: str, resources: Sequence[str] = (), *, policy_type: str = "", dry_run: bool = False
    ) -> ChangeResult:
        """Removes a subject's entries of some resources, or without any all of them."""
        return await self._access.delete_acl(subject, resources, policy_type=policy_type, dry_run=dry_run)

    @_changes(
        lambda from_broker_name, to_broker_name, usernames=(), *, only_users=False, only_acls=False: (
            f"{from_broker_name} to {to_broker_name}",
            _given(usernames=",".join(usernames), only_users=only_users, only_acls=only_acls),
        )
    )
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
        """Copies users with their secrets and policies to another broker group, which has the same key file."""
        return await self._access.copy(
            from_broker_name,
            to_broker_name,
            usernames,
            only_users=only_users,
            only_acls=only_acls,
            dry_run=dry_run,
        )

    # Kept tails

    async def kept_tails(self) -> tuple[Sequence[KeptTail], Sequence[Unseen]]:
        """What was cut off the logs of all brokers, and kept; of each broker at most 500."""
        return await self._kept_tails.tails()

    @_changes(lambda broker, name, *, page_token="": (f"{broker} {name}", {}))
    async def restore_kept_tail(
        self, broker: str, name: str, *, page_token: str = "", dry_run: bool = False
    ) -> TailResult:
        """Stores again what is missing of a part, some 4 MiB, of a tail that `name:id` keeps, on the master of its
        group, under the ids it had. Idempotent. NOT_FOUND: it keeps no such tail; REFUSED: a broker group does not
        answer."""
        return await self._kept_tails.restore(broker, name, page_token=page_token, dry_run=dry_run)

    @_changes(lambda broker_name, records: (broker_name, {"records": str(len(records))}))
    async def restore_records(
        self, broker_name: str, records: Sequence[tuple[int, bytes]], *, dry_run: bool = False
    ) -> Sequence[TailMessage]:
        """The same with records that the caller read from a tail, each with its offset."""
        return await self._kept_tails.restore_records(broker_name, records, dry_run=dry_run)

    # Brokers

    async def broker_settings(self, broker: str) -> BrokerSettings:
        """Settings of `name:id`."""
        return await self._brokers.settings(broker)

    @_changes(
        lambda broker, values: (
            broker,
            {"settings": ",".join(f"{key}={value}" for key, value in sorted(values.items()))},
        )
    )
    async def update_settings(
        self, broker: str, values: Mapping[str, str], *, dry_run: bool = False
    ) -> Sequence[ConfigChange]:
        """Changes settings of `name:id` until its next start."""
        return await self._brokers.update_settings(broker, values, dry_run=dry_run)

    @_changes(lambda broker_name, *, writable: (broker_name, {"writable": _word(writable)}))
    async def set_write_permission(self, broker_name: str, *, writable: bool, dry_run: bool = False) -> ChangeResult:
        """Takes a broker group out of producers' routes at every NameServer, or puts it back."""
        topics = await self._topics.writable_on(broker_name) if dry_run else ()
        return await self._routes.set_write_permission(broker_name, writable=writable, dry_run=dry_run, topics=topics)

    @_changes(lambda broker_name, *, names=(): (broker_name, {"names": ",".join(names)}))
    async def accept_loss(self, broker_name: str, *, names: Sequence[str] = (), dry_run: bool = False) -> AcceptedLoss:
        """Has the group's master, which waits at its start, serve without what it waits for: disks with messages, or
        damaged tables. `names` are all that a dry run told; REFUSED: it waits for nothing, for others by now, or for
        something that nobody can give up."""
        return await self._brokers.accept_loss(broker_name, names=names, dry_run=dry_run)

    @_changes(
        lambda broker_name, *, to=None, unclean=False: (
            broker_name,
            ({} if to is None else {"to": str(to)}) | ({"unclean": "true"} if unclean else {}),
        )
    )
    async def failover(
        self, broker_name: str, *, to: int | None = None, unclean: bool = False, dry_run: bool = False
    ) -> HandOver:
        """Has the group's master hand over to broker `to`, or to the member of the in-sync set that is nearest, and
        waits until that serves. REFUSED: the group does not fail over, has no master, or nobody may take over;
        UNAVAILABLE: the successor does not serve in time. With `unclean` broker `to` becomes master although it may
        lack what was acknowledged, and the rest of the in-sync set is given up; REFUSED while there is a master."""
        if unclean:
            return await self._failovers.claim_unclean(broker_name, to=to, dry_run=dry_run)
        return await self._failovers.hand_over(broker_name, to=to, dry_run=dry_run)

    @_changes(lambda *, tier=Tier.QUICK, groups=(): (str(tier), _given(groups=",".join(groups))))
    async def verify(
        self, *, tier: Tier = Tier.QUICK, groups: Sequence[str] = (), dry_run: bool = False
    ) -> Verification:
        """Starts a run of the consistency job over all broker groups, or over some. REFUSED: one is running, or none
        can be started from here; NOT_FOUND: there is no such broker group."""
        if self._verifier is None:
            raise OperationFailed(
                FailureKind.REFUSED,
                "no run of the consistency job can be started from here",
                cause="neither a folder in consistencyResults nor consistencyCronJobs is set",
                remedy="run tandemmq verify, or kubectl create job --from=cronjob/RELEASE-consistency-quick NAME",
            )
        for group in groups:
            self._known.of_group(group)
        return await self._verifier.start(tier, groups, dry_run=dry_run)

    async def verification(self) -> Verification:
        """The run that was asked for last, and how far it is."""
        return self._verifier.state() if self._verifier is not None else Verification()

    async def events(self, *, limit: int = 200) -> tuple[Sequence[EventLine], Sequence[Unseen]]:
        """What happened lately on all brokers, newest first; at most 500."""
        return await self._brokers.events(limit=limit)

    async def _progress_in(self, topic: str) -> tuple[Sequence[Progress], Sequence[Unseen]]:
        """Groups that read a topic; none, and why, when no master answers."""
        try:
            return await self._groups.progress_in(topic)
        except OperationFailed as failure:
            return (), (Unseen("groups that read it", failure.problem),)


async def refuse_unknown_group(operations: Operations, group: str) -> None:
    """OperationFailed when all masters say that there is no such group: that it has no dead letters is no news then."""
    try:
        await operations.group(group)
    except OperationFailed as failure:
        if failure.kind is FailureKind.NOT_FOUND:
            raise


# Operations as one actor may do them. Console, REST and gRPC reach the cluster through this alone, so that none of them
# can forget who may change something, or the line in the audit log.


class NotPermitted(OperationFailed):
    """The actor may look and not change. Nothing was done."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(
            FailureKind.REFUSED,
            f"{actor.name} may look and not change",
            cause=f"the role is {actor.role.value}",
            remedy="ask an operator, or come with the admin token",
        )


class OperationsDesk:
    """Gives each actor its own operations. One for the process."""

    def __init__(self, operations: Operations, audit_log: AuditLog) -> None:
        self.operations = operations
        self.audit_log = audit_log

    def acting_as(self, actor: Actor) -> Operations:
        """The operations, done in the name of `actor`: those of `CHANGES` only by operators, and recorded."""
        return cast("Operations", _ActingOperations(self.operations, self.audit_log, actor))


class _ActingOperations:
    def __init__(self, operations: Operations, audit_log: AuditLog, actor: Actor) -> None:
        self._operations = operations
        self._audit_log = audit_log
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._operations, name)
        change = CHANGES.get(name)
        return method if change is None else partial(self._changing, change, method)

    async def events(self, *, limit: int = 200) -> tuple[Sequence[EventLine], Sequence[Unseen]]:
        """`Operations`', and what operators did here."""
        lines, unseen = await self._operations.events(limit=limit)
        merged = sorted((*lines, *self._audit_log.lines(limit=limit)), key=lambda line: -line.time_ms)
        return tuple(merged[:limit]), unseen

    async def _changing(
        self, change: _Change, method: Callable[..., Awaitable[ResultT]], *arguments: Any, **options: Any
    ) -> ResultT:
        """Does it if the actor may, and records what came of it. A change that was cut off is recorded as that."""
        outcome = "cut off"
        level = "warning"
        subject, fields = change.line(*arguments, **{key: options[key] for key in options if key != "dry_run"})
        try:
            if not self._actor.may_change:
                raise NotPermitted(self._actor)
            result = await method(*arguments, **options)
            outcome, level = "done", "info"
            return result
        except OperationFailed as failure:
            outcome = f"{failure.kind.value}: {failure.problem}"
            raise
        except Exception as defect:
            outcome = f"failed unexpectedly: {type(defect).__name__}"
            raise
        finally:
            self._audit_log.record(
                "operator_change",
                level=level,
                fields={
                    "who": self._actor.name,
                    "role": self._actor.role.value,
                    "address": self._actor.address,
                    "action": change.action,
                    "subject": subject,
                    **fields,
                    "dry_run": str(options.get("dry_run", False)).lower(),
                    "outcome": outcome,
                },
            )
