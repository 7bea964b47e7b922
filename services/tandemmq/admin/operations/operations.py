"""All an operator can ask of a cluster and do to it. Console, REST, gRPC and command line know nothing else.

NameServers and brokers are asked and told each by its own address. Who they are comes from the newest reading of the
cluster, so that no operation is given an address and a broker that hung a moment ago is not waited for again. One event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from tandemmq.admin.audit_log import Actor, AuditLog
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.operations.access import AccessOperations
from tandemmq.admin.operations.brokers import BrokerOperations, FailoverOperations, KeptTailOperations, newest_first
from tandemmq.admin.operations.groups import GroupOperations, topics_together
from tandemmq.admin.operations.message_search import MessageSearch, MessageTail
from tandemmq.admin.operations.messages import MakeSendClient, MessageOperations, MessageSending, TransactionOperations
from tandemmq.admin.operations.questions import (
    FailureKind,
    Members,
    OperationFailed,
    Questions,
    each_once,
    not_found,
    refused,
)
from tandemmq.admin.operations.topics import RouteOperations, TopicOperations, attributes_text, dead_letter_topic
from tandemmq.admin.operations.values import (
    ChangeResult,
    Client,
    EventLine,
    GroupDetail,
    HandOver,
    MessagePage,
    MessageQuery,
    MessageSummary,
    Page,
    Progress,
    TopicDetail,
    TransactionPage,
    Unseen,
    Verification,
)
from tandemmq.admin.rpc import Channels
from tandemmq.core.audit.run_summary import Tier
from tandemmq.core.clock import Clock

if TYPE_CHECKING:
    from tandemmq.admin.consistency_runs import Starter

ResultT = TypeVar("ResultT")

# What a change is of, and what else the audit log says about it.
_Line: TypeAlias = tuple[str, Mapping[str, str]]


def _given(**fields: str | int | bool | None) -> dict[str, str]:
    """Those that were given, as text. What is not given is None, empty or 0, as in the values."""
    return {key: "true" if value is True else str(value) for key, value in fields.items() if value}


def _word(value: bool | None) -> str:
    return "" if value is None else str(value).lower()


CHANGES: Final[Mapping[str, Callable[..., _Line]]] = {
    "put_topic": lambda change: (
        change.name,
        _given(
            read_queue_count=change.read_queue_count,
            write_queue_count=change.write_queue_count,
            permission=change.permission,
            message_type=change.message_type,
            broker_names=",".join(change.broker_names),
            attributes=attributes_text(change.attributes),
        ),
    ),
    "delete_topic": lambda name: (name, {}),
    "put_group": lambda change: (
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
    ),
    "delete_group": lambda name, *, even_with_members=False: (name, _given(even_with_members=even_with_members)),
    "reset_offsets": lambda group, topic, target: (
        group,
        {"topic": topic} | _given(time_ms=target.time_ms, earliest=target.earliest, latest=target.latest),
    ),
    # Of the body the log has the size only.
    "send": lambda message: (
        message.topic,
        {"body_bytes": str(len(message.body))}
        | _given(tag=message.tag, keys=",".join(message.keys), message_group=message.message_group),
    ),
    "resend_dead_letters": lambda group, broker_name, queue_offsets: (
        group,
        {"broker_name": broker_name, "queue_offsets": ",".join(map(str, queue_offsets))},
    ),
    "resolve_transaction": lambda transaction_id, end: (transaction_id, {"end": end}),
    "command_client": lambda client_id, command, *, broker_name="", topic="", queue_id=0, queue_offset=0: (
        client_id,
        {"command": command}
        | _given(broker_name=broker_name, topic=topic, queue_id=queue_id, queue_offset=queue_offset),
    ),
    "create_user": lambda change: (
        change.username,
        _given(user_type=change.user_type, user_status=change.user_status),
    ),
    "update_user": lambda change: (
        change.username,
        _given(user_type=change.user_type, user_status=change.user_status, new_password=bool(change.password) or None),
    ),
    "delete_user": lambda username: (username, {}),
    "put_acl": lambda subject, entries: (
        subject,
        _given(
            entries="; ".join(
                f"{one.decision} {','.join(one.actions)} {one.resource} {','.join(one.source_ips)}".strip()
                for one in entries
            ),
        ),
    ),
    "delete_acl": lambda subject, resources=(), *, policy_type="": (
        subject,
        _given(resources=",".join(resources), policy_type=policy_type),
    ),
    "copy_users": lambda from_broker_name, to_broker_name, usernames=(), *, only_users=False, only_acls=False: (
        f"{from_broker_name} to {to_broker_name}",
        _given(usernames=",".join(usernames), only_users=only_users, only_acls=only_acls),
    ),
    "restore_kept_tail": lambda broker, name, *, page_token="": (f"{broker} {name}", {}),
    "restore_records": lambda broker_name, records: (broker_name, {"records": str(len(records))}),
    "update_settings": lambda broker, values: (
        broker,
        {"settings": ",".join(f"{key}={value}" for key, value in sorted(values.items()))},
    ),
    "set_write_permission": lambda broker_name, *, writable: (broker_name, {"writable": _word(writable)}),
    "accept_loss": lambda broker_name, *, names=(): (broker_name, {"names": ",".join(names)}),
    "failover": lambda broker_name, *, to=None, unclean=False: (
        broker_name,
        ({} if to is None else {"to": str(to)}) | ({"unclean": "true"} if unclean else {}),
    ),
    "verify": lambda *, tier=Tier.QUICK, groups=(): (str(tier), _given(groups=",".join(groups))),
}
"""Operations that need an operator and leave a line in the audit log, each with what makes the line of its arguments
(but for `dry_run`)."""
_ACTIONS: Final = {"send": "send_message"}
"""Those that the audit log calls otherwise."""


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
        verifier: Starter | None = None,
    ) -> None:
        """`members` gives the newest reading, None before the first; `send_client` makes what a test message is sent
        with; `verifier` starts runs of the consistency job, None: nothing does."""
        known, questions = Members(members), Questions(channels)
        routes = RouteOperations(known, questions)
        topics = TopicOperations(known, questions, routes, clock=clock)
        groups = GroupOperations(known, questions, clock=clock)
        messages = MessageOperations(known, questions, groups)
        brokers = BrokerOperations(known, questions)
        kept_tails = KeptTailOperations(known, questions)
        transactions = TransactionOperations(known, questions)
        access = AccessOperations(known, questions)
        self._known = known
        self._routes = routes
        self._topics = topics
        self._groups = groups
        self._messages = messages
        self._transactions = transactions
        self._failovers = FailoverOperations(known, questions, clock=clock)
        self._verifier = verifier

        # What one of these does alone; what takes several is below.
        self.topics = topics.topics
        self.topic_routes = routes.routes
        self.put_topic = topics.put_topic
        self.lite_topics = transactions.lite_topics
        self.groups = groups.groups
        self.put_group = groups.put_group
        self.delete_group = groups.delete_group
        self.reset_offsets = groups.reset_offsets
        self.command_client = transactions.command_client
        self._search = MessageSearch(known, questions).search
        self.message = messages.at_physical
        self.message_at = messages.at_queue
        self.tail = MessageTail(known, questions).messages
        self.send = MessageSending(known, questions, send_client, clock=clock).send
        self.resend_dead_letters = brokers.resend_dead_letters
        self.resolve_transaction = transactions.resolve
        self.users = access.users
        self.create_user = access.create_user
        self.update_user = access.update_user
        self.delete_user = access.delete_user
        self.acls = access.acls
        self.put_acl = access.put_acl
        self.delete_acl = access.delete_acl
        self.copy_users = access.copy
        self.kept_tails = kept_tails.tails
        self.restore_kept_tail = kept_tails.restore
        self.restore_records = kept_tails.restore_records
        self.broker_settings = brokers.settings
        self.update_settings = brokers.update_settings
        self.accept_loss = brokers.accept_loss
        self.events = brokers.events

    async def topic(self, name: str) -> TopicDetail:
        """One topic. NOT_FOUND when no master that answers has it."""
        found, (progress, unseen) = await asyncio.gather(self._topics.topic(name), self._progress_in(name))
        return replace(found, groups=topics_together(progress), unseen=each_once(found.unseen, unseen))

    async def delete_topic(self, name: str, *, dry_run: bool = False) -> ChangeResult:
        """Removes a topic from all masters; its messages cannot be consumed while there is none of that name. Warns of
        the groups that read it."""
        progress, _ = await self._progress_in(name)
        result = await self._topics.delete_topic(name, dry_run=dry_run)
        readers = [f"group {one.group} reads it and lacks {one.lag:,} messages" for one in topics_together(progress)]
        return ChangeResult(result.changes, result.dry_run, (*readers, *result.warnings))

    async def group(self, name: str) -> GroupDetail:
        """One group. NOT_FOUND when no master that answers has it."""
        found = await self._groups.group(name)
        return replace(found, dead_letters=await self._topics.held(dead_letter_topic(name)))

    async def clients(self, *, group: str = "", topic: str = "", limit: int = 200) -> Page[Client]:
        """Clients of all brokers together, the one heard of last first. NOT_FOUND when there are none, and no
        master that answers has such a group or topic."""
        found = await self._groups.clients(group=group, topic=topic, limit=limit)
        if not found.items:
            await self._refuse_unknown(group=group, topic=topic)
        return found

    async def find_message(self, message_id: str, *, topic: str = "") -> Sequence[MessageSummary]:
        """Messages by the id a client gave them, or by an id of address and offset; newest first. NOT_FOUND when there
        is none, and no broker that answers has such a topic."""
        found = await self._messages.find(message_id, topic=topic)
        if not found:
            await self._refuse_unknown(topic=topic)
        return found

    async def search(self, query: MessageQuery) -> MessagePage:
        """One page. NOT_FOUND: none of those that answer has the topic, or it has no such queue there.

        A text is looked for in 2,000 messages of each broker a page at most: a page may be empty, and not the last.
        """
        page = await self._search(query)
        if query.queue_id >= 0 and not (page.messages or page.next_page_token or page.unseen):
            queues = [
                one
                for one in (await self._topics.topic(query.topic)).extents
                if query.broker_name in ("", one.broker_name)
            ]
            if queues and query.queue_id not in {one.queue_id for one in queues}:
                raise not_found(
                    f"topic {query.topic} has no queue {query.queue_id} there",
                    remedy=f"its queues are 0 to {max(one.queue_id for one in queues)}",
                )
        return page

    async def transactions(self, *, topic: str = "", limit: int = 200) -> TransactionPage:
        """Transactions that are neither committed nor rolled back, of all masters, the oldest first; at most 1,000.
        NOT_FOUND when there are none, and no broker that answers has such a topic."""
        found = await self._transactions.transactions(topic=topic, limit=limit)
        if not found.transactions:
            await self._refuse_unknown(topic=topic)
        return found

    async def _refuse_unknown(self, *, group: str = "", topic: str = "") -> None:
        for name, look in ((group, self._groups.group), (topic, self._topics.topic)):
            try:
                if name:
                    await look(name)
            except OperationFailed as failure:
                if failure.kind is FailureKind.NOT_FOUND:
                    raise

    async def set_write_permission(self, broker_name: str, *, writable: bool, dry_run: bool = False) -> ChangeResult:
        """Takes a broker group out of producers' routes at every NameServer, or puts it back."""
        topics = await self._topics.writable_on(broker_name) if dry_run else ()
        return await self._routes.set_write_permission(broker_name, writable=writable, dry_run=dry_run, topics=topics)

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

    async def verify(
        self, *, tier: Tier = Tier.QUICK, groups: Sequence[str] = (), dry_run: bool = False
    ) -> Verification:
        """Starts a run of the consistency job over all broker groups, or over some. REFUSED: one is running, or none
        can be started from here; NOT_FOUND: there is no such broker group."""
        if self._verifier is None:
            raise refused(
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
        return partial(self._changing, name, method) if name in CHANGES else method

    async def events(self, *, limit: int = 200) -> tuple[Sequence[EventLine], Sequence[Unseen]]:
        """`Operations`', and what operators did here."""
        lines, unseen = await self._operations.events(limit=limit)
        return tuple(newest_first((lines, self._audit_log.lines(limit=limit)))[:limit]), unseen

    async def _changing(
        self, name: str, method: Callable[..., Awaitable[ResultT]], *arguments: Any, **options: Any
    ) -> ResultT:
        """Does it if the actor may, and records what came of it. A change that was cut off is recorded as that."""
        outcome = "cut off"
        level = "warning"
        subject, fields = CHANGES[name](*arguments, **{key: options[key] for key in options if key != "dry_run"})
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
            said = {
                "who": self._actor.name,
                "role": self._actor.role.value,
                "address": self._actor.address,
                "action": _ACTIONS.get(name, name),
                "subject": subject,
                **fields,
                "dry_run": str(options.get("dry_run", False)).lower(),
                "outcome": outcome,
            }
            if self._actor.may_change:
                self._audit_log.record("operator_change", level=level, fields=said)
            else:
                self._audit_log.refused("operator_change", fields=said)
