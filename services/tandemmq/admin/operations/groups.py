"""Groups and clients over all masters: how far they are, who they are, and changes of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, TypeVar

from tandemmq.admin.operations.questions import (
    NO_CHANGE,
    Answer,
    BrokerPlanes,
    FailureKind,
    Members,
    OperationFailed,
    Questions,
    ShortMemory,
    each_once,
    invalid,
    not_found,
    part_of,
    require_all,
    unseen_of,
    values_of,
)
from tandemmq.admin.operations.values import (
    FIRST_PAGE,
    Change,
    ChangeResult,
    Client,
    GroupChange,
    GroupDetail,
    GroupSummary,
    OffsetReset,
    Page,
    PageRequest,
    Progress,
    ResetTarget,
    Unseen,
)
from tandemmq.core.clock import Clock
from tandemmq.core.metadata.subscription_group_table import SYSTEM_GROUPS
from tandemmq.core.metadata.topic_table import group_name_problem
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as operations_pb
from tandemmq.service.protobuf import as_value
from tandemmq.service.texts import counted

# Protobuf messages about groups and clients as values, several brokers' together. The edge: protobuf stops here.


def group_summary(statuses: Sequence[admin_pb.SubscriptionGroupStatus]) -> GroupSummary:
    """A group as its masters have it; where they differ, as one would fear: not enabled, more retries.

    A consumer is connected to every master that serves its topics, so those of the busiest master are all members,
    unless consumers of one group use topics of different masters.
    """
    return GroupSummary(
        name=statuses[0].group,
        ordered=any(status.consume_message_orderly for status in statuses),
        retry_max_times=max(status.retry_max_times for status in statuses),
        enabled=all(status.consume_enable for status in statuses),
        member_count=max(status.member_count for status in statuses),
        retry_delays_seconds=tuple(statuses[0].retry_delays_seconds),
        attributes=dict(statuses[0].attributes),
    )


def progress_of(broker_name: str, status: admin_pb.SubscriptionGroupStatus) -> list[Progress]:
    return [as_value(Progress, queue, group=status.group, broker_name=broker_name) for queue in status.progress]


def topics_together(progress: Iterable[Progress]) -> list[Progress]:
    """A line for each group and topic: sums over the queues, the greatest age. Ordered by group and topic."""

    def key(one: Progress) -> tuple[str, str]:
        return one.group, one.topic

    sums = []
    for (group, topic), queues in groupby(sorted(progress, key=key), key=key):
        found = list(queues)
        max_offset = sum(one.max_offset for one in found)
        sums.append(
            Progress(
                group=group,
                topic=topic,
                broker_name="",
                queue_id=-1,
                # From the lags, so that the sum's lag is the sum of the lags.
                committed_offset=max_offset - sum(one.lag for one in found),
                max_offset=max_offset,
                inflight=sum(one.inflight for one in found),
                oldest_age_ms=max(one.oldest_age_ms for one in found),
                blocked_message_groups=sum(one.blocked_message_groups for one in found),
            )
        )
    return sums


def clients_together(answers: Iterable[tuple[str, operations_pb.ListClientsResponse]]) -> list[Client]:
    """Each client once, the one heard of last first; `answers` are by the broker's `name:id`."""
    found: dict[tuple[str, str], Client] = {}
    for broker, answer in answers:
        for view in answer.clients:
            client = as_value(Client, view, brokers=(broker,))
            key = client.client_id, client.group
            found[key] = _both(found[key], client) if key in found else client
    return sorted(found.values(), key=lambda client: (client.silent_ms, client.client_id))


def reset_request(
    group: str, topic: str, target: ResetTarget, *, broker_name: str, dry_run: bool
) -> operations_pb.ResetOffsetsRequest:
    """Asks one master for its part of a reset."""
    request = operations_pb.ResetOffsetsRequest(group=group, topic=topic, dry_run=dry_run)
    if target.offsets is not None:
        by_queue = {queue_id: offset for (name, queue_id), offset in target.offsets.items() if name == broker_name}
        request.offsets.by_queue.update(by_queue)
    elif target.time_ms is not None:
        request.time.FromMilliseconds(target.time_ms)
    elif target.earliest:
        request.earliest = True
    else:
        request.latest = True
    return request


def _both(one: Client, other: Client) -> Client:
    # The broker that heard of it last knows best what it is; one that has just been connected to may know nothing yet.
    newer, older = (other, one) if other.silent_ms < one.silent_ms else (one, other)
    known = newer if newer.client_type else replace(older, silent_ms=newer.silent_ms)
    return replace(
        known,
        subscriptions={**older.subscriptions, **newer.subscriptions},
        brokers=tuple(sorted({*one.brokers, *other.brokers})),
    )


_AnswerT = TypeVar("_AnswerT")

_TABLE_AGE_MS: Final = 2_000
_CLIENTS_MAX: Final = 1_000
_RETRIES: Final = 16
_PRIORITY_FACTOR_MAX: Final = 100
GROUP_ATTRIBUTES: Final = {
    "lite.bind.topic": "the one LITE topic that the group may consume",
    "lite.sub.model": "Shared, or Exclusive: a lite topic is the client's that subscribed last",
    "lite.sub.client.quota": "lite topics that one client may subscribe to",
}
"""Attributes of a group that may be set by name; the others have options of their own."""
_RETRIES_MAX: Final = 10_000
_DELAYS_MAX: Final = 100
_DELAY_SECONDS_MAX: Final = 86_400


@dataclass(frozen=True, slots=True)
class _GroupTable:
    """All groups without their progress."""

    # Ordered by name.
    by_name: dict[str, GroupSummary]
    unseen: Sequence[Unseen]


class GroupOperations:
    """Reads from masters alone: what a slave knows of progress is some seconds old."""

    def __init__(self, members: Members, questions: Questions, *, clock: Clock) -> None:
        self._members = members
        self._questions = questions
        self._table = ShortMemory(self._read_table, max_age_ms=_TABLE_AGE_MS, clock=clock)

    async def groups(self, *, search: str = "", page: PageRequest = FIRST_PAGE) -> Page[GroupSummary]:
        """Groups whose name contains `search`, without the system's. The list may be 2 s old; those of the page have
        their lag, which is new."""
        table = await self._table.get()
        part = search.lower()
        found = [name for name in table.by_name if part in name.lower()]
        shown = part_of(found, page)
        progress, unmeasured = await self._progress_by_group(shown)
        items = [_measured(table.by_name[name], progress.get(name)) for name in shown]
        return Page(items, page.number, page.size, len(found), each_once(table.unseen, unmeasured))

    async def group(self, name: str) -> GroupDetail:
        """One group with its progress and members; its dead letters are not counted. NOT_FOUND when no master that
        answers has it."""
        masters = self._members.masters()
        answers = await self._questions.brokers(masters.brokers, lambda broker: broker.admin.groups(names=[name]))
        found = _of_group(answers, name)
        unseen = [*masters.unseen, *unseen_of(answers)]
        if not found:
            raise _no_group(name, unseen)
        progress = [one for broker_name, status in found.items() for one in progress_of(broker_name, status)]
        progress.sort(key=lambda one: (one.topic, one.broker_name, one.queue_id))
        members = await self.clients(group=name, topic="", limit=_CLIENTS_MAX)
        summary = replace(group_summary(list(found.values())), member_count=members.total)
        return GroupDetail(_measured(summary, progress), progress, members.items, 0, each_once(unseen, members.unseen))

    async def progress_in(self, topic: str) -> tuple[list[Progress], Sequence[Unseen]]:
        """All groups that have read a topic, queue by queue."""
        masters = self._members.masters()
        answers = await self._questions.brokers(masters.brokers, lambda broker: broker.admin.groups(topic=topic))
        found = [
            one
            for broker_name, groups in values_of(answers)
            for group in groups
            for one in progress_of(broker_name, group)
            # A broker of an older version answers with all it has.
            if one.topic == topic
        ]
        return found, (*masters.unseen, *unseen_of(answers))

    async def put_group(self, change: GroupChange, *, dry_run: bool = False) -> ChangeResult:
        """Creates or changes a group on all masters."""
        problem = group_name_problem(change.name)
        if problem is None and not 0 <= (change.retry_max_times or 0) <= _RETRIES_MAX:
            problem = f"{change.retry_max_times} retries: from 0 to {_RETRIES_MAX:,}"
        if problem is None and not 0 <= (change.priority_factor or 0) <= _PRIORITY_FACTOR_MAX:
            problem = f"priority factor {change.priority_factor}: from 0 to {_PRIORITY_FACTOR_MAX}"
        if problem is None and not 0 <= (change.slow_broker_id or 0) < 1 << 31:
            problem = f"slow broker id {change.slow_broker_id}: 0 is the master itself, others are slaves"
        unknown = sorted(change.attributes.keys() - GROUP_ATTRIBUTES.keys())
        if problem is None and unknown:
            problem = f"attribute {unknown[0]!r}: choose one of {', '.join(GROUP_ATTRIBUTES)}"
        delays = change.retry_delays_seconds
        if problem is None and (len(delays) > _DELAYS_MAX or not all(1 <= one <= _DELAY_SECONDS_MAX for one in delays)):
            problem = f"retry delays: up to {_DELAYS_MAX}, each of 1 to {_DELAY_SECONDS_MAX:,} seconds"
        if problem is not None:
            raise invalid(f"group {change.name!r} is refused", cause=problem)
        masters = self._members.masters_to_change()
        answers = await self._questions.brokers(
            masters, lambda broker: broker.admin.groups(names=[change.name], without_progress=True)
        )
        require_all(answers, problem=f"group {change.name} cannot be looked up; nothing was changed")
        before = _of_group(answers, change.name)
        requests = {master.broker_name: _group_request(change, before.get(master.broker_name)) for master in masters}
        changes = [
            Change(master.key, _difference(before.get(master.broker_name), requests[master.broker_name]))
            for master in masters
        ]
        if not dry_run:
            done = await self._questions.brokers(
                masters, lambda broker: broker.admin.update_group(requests[broker.broker.broker_name])
            )
            self._table.forget()
            require_all(done, problem=f"group {change.name} could not be changed")
        return ChangeResult(changes, dry_run)

    async def delete_group(self, name: str, *, even_with_members: bool = False, dry_run: bool = False) -> ChangeResult:
        """Removes a group with its progress from all masters. Asks all of them first whether they would."""
        masters = self._members.masters_to_change()

        def request(*, dry: bool) -> operations_pb.DeleteSubscriptionGroupRequest:
            return operations_pb.DeleteSubscriptionGroupRequest(
                group=name, even_with_members=even_with_members, dry_run=dry
            )

        would = await self._questions.brokers(masters, lambda broker: broker.operations.delete_group(request(dry=True)))
        problem = f"group {name} cannot be removed; nothing was changed"
        _none_refuses(would, problem)
        found = require_all(would, problem=problem)
        if not any(answer.existed for answer in found):
            raise _no_group(name, ())
        changes = [
            Change(master.key, _removal(answer) if answer.existed else NO_CHANGE)
            for master, answer in zip(masters, found, strict=True)
        ]
        if not dry_run:
            done = await self._questions.brokers(
                masters, lambda broker: broker.operations.delete_group(request(dry=False))
            )
            self._table.forget()
            require_all(done, problem=f"group {name} could not be removed")
        return ChangeResult(changes, dry_run)

    async def reset_offsets(
        self, group: str, topic: str, target: ResetTarget, *, dry_run: bool = False
    ) -> Sequence[OffsetReset]:
        """Sets where a group goes on, on every master that has both. Asks all of them first what it would mean."""
        _check_target(target)
        masters = self._members.masters_to_change(sorted({name for name, _ in target.offsets or ()}))

        async def reset(broker: BrokerPlanes, *, dry: bool) -> operations_pb.ResetOffsetsResponse:
            request = reset_request(group, topic, target, broker_name=broker.broker.broker_name, dry_run=dry)
            return await broker.operations.reset_offsets(request)

        answers = await self._questions.brokers(masters, lambda broker: reset(broker, dry=True))
        problem = f"group {group} cannot be reset in {topic}; nothing was changed"
        # A topic or a group may be on some masters only; a queue that is named must be there.
        _none_refuses(answers, problem, but=None if target.offsets else FailureKind.NOT_FOUND)
        having = [master for master, answer in zip(masters, answers, strict=True) if answer.failure is None]
        if answers and not having:
            lines = [f"{answer.subject}: {answer.failure.text}" for answer in answers if answer.failure is not None]
            remedy = "look for both names in the lists of groups and topics; upper and lower case matter"
            raise not_found(problem, cause="\n".join(lines), remedy=remedy)
        if not dry_run:
            answers = await self._questions.brokers(having, lambda broker: reset(broker, dry=False))
            self._table.forget()
            require_all(answers, problem=f"group {group} could not be reset in {topic}")
        return [
            as_value(OffsetReset, move, broker_name=broker_name)
            for broker_name, answer in values_of(answers)
            for move in answer.moves
        ]

    async def clients(self, *, group: str = "", topic: str = "", limit: int = 200) -> Page[Client]:
        """Clients of all brokers together, the one heard of last first."""
        limit = max(1, min(limit, _CLIENTS_MAX))
        brokers, silent = self._members.answering()
        request = operations_pb.ListClientsRequest(group=group, topic=topic, limit=limit)
        answers = await self._questions.brokers(brokers, lambda broker: broker.operations.clients(request))
        said = [(answer.subject, answer.value) for answer in answers if answer.value is not None]
        found = clients_together(said)
        # A broker that has more than it tells may have told of the same ones as another: then it is at least so many.
        total = max([len(found), *(answer.total_count for _, answer in said)])
        mastered = {broker.broker_name for broker in brokers if broker.is_master}
        # Messages and progress are the master's: nobody is to doubt those for the sake of a member that is away.
        away = [
            replace(each, reason=f"{each.reason}; only clients that were connected to it are missing")
            if each.subject.rpartition(":")[0] in mastered
            else each
            for each in silent
        ]
        return Page(found[:limit], 1, limit, total, (*away, *unseen_of(answers)))

    async def _read_table(self) -> _GroupTable:
        masters = self._members.masters()
        answers = await self._questions.brokers(
            masters.brokers, lambda broker: broker.admin.groups(without_progress=True)
        )
        found: dict[str, list[admin_pb.SubscriptionGroupStatus]] = {}
        for _, groups in values_of(answers):
            for group in groups:
                if group.group not in SYSTEM_GROUPS:
                    found.setdefault(group.group, []).append(group)
        by_name = {name: group_summary(found[name]) for name in sorted(found)}
        return _GroupTable(by_name, (*masters.unseen, *unseen_of(answers)))

    async def _progress_by_group(self, names: Sequence[str]) -> tuple[dict[str, list[Progress]], list[Unseen]]:
        """Of those that some master tells of; and who does not tell."""
        found: dict[str, list[Progress]] = {}
        if not names:
            return found, []
        masters = self._members.masters().brokers
        answers = await self._questions.brokers(masters, lambda broker: broker.admin.groups(names=names))
        for broker_name, groups in values_of(answers):
            for group in groups:
                found.setdefault(group.group, []).extend(progress_of(broker_name, group))
        return found, unseen_of(answers)


def _check_target(target: ResetTarget) -> None:
    named = (target.time_ms is not None, target.earliest, target.latest, target.offsets is not None)
    if sum(named) != 1:
        raise invalid(
            "it is not clear where the group is to go on",
            remedy="name a time, or the earliest, or the latest message, or offsets: one of them",
        )
    for (broker_name, queue_id), offset in (target.offsets or {}).items():
        if not 0 <= queue_id < 1 << 31 or not 0 <= offset < 1 << 63:
            raise invalid(
                f"queue {queue_id} of {broker_name} cannot go on at {offset}", remedy="give numbers from 0 on"
            )
    if target.offsets is not None and not target.offsets:
        raise invalid("no queue is named", remedy="name a queue and its offset")


def _of_group(
    answers: Sequence[Answer[list[admin_pb.SubscriptionGroupStatus]]], name: str
) -> dict[str, admin_pb.SubscriptionGroupStatus]:
    return {broker_name: group for broker_name, groups in values_of(answers) for group in groups if group.group == name}


def _measured(group: GroupSummary, progress: Sequence[Progress] | None) -> GroupSummary:
    if progress is None:
        return group
    return replace(
        group,
        lag=sum(one.lag for one in progress),
        inflight=sum(one.inflight for one in progress),
        topics=tuple(one.topic for one in topics_together(progress)),
    )


def _group_request(
    change: GroupChange, before: admin_pb.SubscriptionGroupStatus | None
) -> admin_pb.UpdateSubscriptionGroupRequest:
    ordered = before.consume_message_orderly if before is not None else False
    enabled = before.consume_enable if before is not None else True
    retries = before.retry_max_times if before is not None else _RETRIES
    return admin_pb.UpdateSubscriptionGroupRequest(
        group=change.name,
        consume_message_orderly=ordered if change.ordered is None else change.ordered,
        retry_max_times=retries if change.retry_max_times is None else change.retry_max_times,
        consume_enable=enabled if change.enabled is None else change.enabled,
        priority_factor=change.priority_factor,
        slow_broker_id=change.slow_broker_id,
        retry_delays_seconds=change.retry_delays_seconds,
        attributes=change.attributes,
    )


def _difference(before: admin_pb.SubscriptionGroupStatus | None, after: admin_pb.UpdateSubscriptionGroupRequest) -> str:
    order = {True: "ordered", False: "not ordered"}
    state = {True: "enabled", False: "disabled: it is given no messages"}
    if before is None:
        words = [order[after.consume_message_orderly], f"{after.retry_max_times} retries"]
        if after.retry_delays_seconds:
            words.append(f"after {', '.join(map(str, after.retry_delays_seconds))} s")
        words += [f"{name} {value}" for name, value in sorted(after.attributes.items()) if value]
        return f"created, {', '.join(words)}, {state[after.consume_enable]}"
    words = []
    if before.consume_message_orderly != after.consume_message_orderly:
        words.append(order[after.consume_message_orderly])
    if before.retry_max_times != after.retry_max_times:
        words.append(f"retries {before.retry_max_times} → {after.retry_max_times}")
    delays = list(after.retry_delays_seconds)
    if delays and list(before.retry_delays_seconds) != delays:
        words.append(f"retry delays {', '.join(map(str, delays))} s")
    if before.consume_enable != after.consume_enable:
        words.append(state[after.consume_enable])
    if after.HasField("priority_factor") and before.priority_factor != after.priority_factor:
        words.append(f"priority factor {before.priority_factor} → {after.priority_factor}")
    if after.HasField("slow_broker_id") and before.slow_broker_id != after.slow_broker_id:
        words.append(f"far reads by broker {before.slow_broker_id} → {after.slow_broker_id}")
    for name, value in sorted(after.attributes.items()):
        if (known := before.attributes.get(name, "")) != value:
            words.append(f"{name} {known or 'not set'} → {value or 'not set'}")
    return ", ".join(words) or NO_CHANGE


def _removal(answer: operations_pb.DeleteSubscriptionGroupResponse) -> str:
    topics = f", progress in {', '.join(answer.topics)} forgotten" if answer.topics else ""
    inflight = f", {counted(answer.inflight_count, 'message')} in clients' hands" if answer.inflight_count else ""
    return f"removed{topics}{inflight}"


def _none_refuses(answers: Sequence[Answer[_AnswerT]], problem: str, *, but: FailureKind | None = None) -> None:
    """Ends the operation before its first step if a broker would not take part in it."""
    refused = [answer for answer in answers if answer.failure is not None and answer.failure.kind is not but]
    if refused:
        require_all(refused, problem=problem)


def _no_group(name: str, unseen: Sequence[Unseen]) -> OperationFailed:
    return not_found(
        f"there is no group {name}" + (" on the masters that answer" if unseen else ""),
        cause="\n".join(f"{each.subject}: {each.reason}" for each in unseen),
        remedy="look for its name in the list of groups; upper and lower case matter",
    )
