"""Topics over all masters: lists that cost little with ten thousand of them, one topic whole, and changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tandemmq.admin.v1 import broker_admin_service_pb2 as admin_pb

from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.members import Members
from admin.operations.paging import part_of
from admin.operations.questions import Answer, Questions, each_once, require_all, unseen_of, values_of
from admin.operations.route_operations import RouteOperations
from admin.operations.topic_changes import NO_CHANGE, changed_topic, difference_text, topic_problems, unread_queues
from admin.operations.topic_messages import broker_topic, extents_of, plain_extents, topic_request
from admin.operations.topic_names import SYSTEM, category_of, system_names
from admin.operations.topic_table import TopicTables
from admin.operations.values import (
    BrokerTopic,
    Change,
    ChangeResult,
    Extent,
    Page,
    PageRequest,
    Route,
    TopicChange,
    TopicSummary,
    Unseen,
)
from admin.quantities import counted
from mqcore.clock import Clock

__all__ = ["TopicFacts", "TopicOperations"]


_WRITE: Final = 2


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as brokers and NameServers tell it."""

    summary: TopicSummary
    extents: Sequence[Extent]
    routes: Sequence[Route]
    unseen: Sequence[Unseen]


class TopicOperations:
    """Reads from the masters, or from the slaves of those that are away; changes are the masters'."""

    def __init__(self, members: Members, questions: Questions, routes: RouteOperations, *, clock: Clock) -> None:
        self._members = members
        self._questions = questions
        self._routes = routes
        self._table = TopicTables(members, questions, routes, clock=clock)

    async def topics(self, *, search: str, categories: Sequence[str], page: PageRequest) -> Page[TopicSummary]:
        """Those whose name contains `search`; the ones of the page with their counts."""
        table = await self._table.get()
        part, wanted = search.lower(), frozenset(categories)
        found = [(name, category) for name, lower, category in table.names if category in wanted and part in lower]
        shown = part_of(found, page)
        held, stored, uncounted = await self._counts([name for name, _ in shown])
        items = [
            replace(table.summary(name, category), held=held.get(name, -1), stored=stored.get(name, -1))
            for name, category in shown
        ]
        return Page(items, page.number, page.size, len(found), each_once(table.unseen, uncounted))

    async def topic(self, name: str) -> TopicFacts:
        """One topic with its queues and routes."""
        readers = self._members.readers()
        answers = await self._questions.brokers(
            readers.brokers, lambda broker: broker.admin.topics(include_system=True, names=[name])
        )
        configurations = _of_topic(answers, name)
        unseen = [*readers.unseen, *unseen_of(answers)]
        if not configurations:
            raise _no_topic(name, unseen)
        (routes, unrouted), extents = await asyncio.gather(
            self._routes.routes(name), self._extents(name, configurations)
        )
        category = self._category(name)
        brokers = tuple(broker_topic(*pair) for pair in configurations.items())
        summary = TopicSummary(
            name,
            category,
            brokers,
            held=sum(extent.held for extent in extents),
            stored=sum(extent.max_offset for extent in extents),
        )
        return TopicFacts(summary, extents, routes, each_once(unseen, unrouted))

    async def put_topic(self, change: TopicChange, *, dry_run: bool) -> ChangeResult:
        """Creates or changes a topic on masters, and waits for its routes."""
        if problems := topic_problems(change):
            raise OperationFailed(
                FailureKind.INVALID,
                f"topic {change.name!r} cannot be so",
                cause="\n".join(problems),
                remedy="correct what is named here",
            )
        masters = self._members.masters_to_change(change.broker_names)
        self._not_the_systems(change.name)
        before = await self._on_masters(change.name, change.broker_names)
        after = {
            master.broker_name: changed_topic(change, master.broker_name, before.get(master.broker_name, (None, []))[0])
            for master in masters
        }
        changes = []
        for master in masters:
            old, _ = before.get(master.broker_name, (None, []))
            changes.append(Change(master.key, difference_text(old, after[master.broker_name])))
        warnings = unread_queues(change, [extent for _, extents in before.values() for extent in extents])
        if not dry_run:
            answers = await self._questions.brokers(
                masters,
                lambda broker: broker.admin.update_topic(topic_request(change.name, after[broker.broker.broker_name])),
            )
            self._table.forget()
            require_all(answers, problem=f"topic {change.name} could not be changed")
            warnings += await self._routes.until_routed(change.name, [master.broker_name for master in masters])
        return ChangeResult(changes, dry_run, tuple(warnings))

    async def delete_topic(self, name: str, *, dry_run: bool) -> ChangeResult:
        """Removes a topic from all masters. Its readers are the caller's to warn of."""
        masters = self._members.masters_to_change()
        self._not_the_systems(name)
        before = await self._on_masters(name, ())
        if not before:
            raise _no_topic(name, ())
        changes = [
            Change(master.key, _removal(before[master.broker_name][1]) if master.broker_name in before else NO_CHANGE)
            for master in masters
        ]
        warnings: list[str] = []
        if not dry_run:
            answers = await self._questions.brokers(masters, lambda broker: broker.admin.delete_topic(name))
            self._table.forget()
            require_all(answers, problem=f"topic {name} could not be removed")
            warnings += await self._routes.until_gone(name, list(before))
        return ChangeResult(changes, dry_run, tuple(warnings))

    async def held(self, name: str) -> int:
        """Messages of a topic that are still held; 0 if there is no such topic."""
        held, _, _ = await self._counts([name])
        return held.get(name, 0)

    async def writable_on(self, broker_name: str) -> list[str]:
        """Topics that a broker group's own configuration lets producers write; none if nobody of it answers."""
        table = await self._table.get()
        return [
            name
            for name, pairs in table.by_name.items()
            if any(broker == broker_name and topic.permission & _WRITE for broker, topic in pairs)
        ]

    async def _counts(self, names: Sequence[str]) -> tuple[dict[str, int], dict[str, int], list[Unseen]]:
        """Messages held and ever stored by name, of those that some broker tells of; and who does not tell."""
        held: dict[str, int] = {}
        stored: dict[str, int] = {}
        if not names:
            return held, stored, []
        answers = await self._questions.brokers(
            self._members.readers().brokers, lambda broker: broker.admin.topics(include_system=True, names=names)
        )
        for _, topics in values_of(answers):
            for topic in topics:
                ends = sum(queue.max_offset for queue in topic.queues)
                expired = sum(queue.min_offset for queue in topic.queues)
                stored[topic.topic] = stored.get(topic.topic, 0) + ends
                held[topic.topic] = held.get(topic.topic, 0) + ends - expired
        return held, stored, unseen_of(answers)

    async def _extents(self, name: str, configurations: dict[str, admin_pb.TopicStatus]) -> list[Extent]:
        """Each queue with its times; from a broker that tells no times, without them."""
        readers = [broker for broker in self._members.readers().brokers if broker.broker_name in configurations]
        answers = await self._questions.brokers(readers, lambda broker: broker.messages.queues(name))
        found = {broker_name: extents_of(broker_name, reply.queues) for broker_name, reply in values_of(answers)}
        for broker_name, status in configurations.items():
            found.setdefault(broker_name, plain_extents(broker_name, status))
        return [extent for _, extents in sorted(found.items()) for extent in extents]

    async def _on_masters(self, name: str, broker_names: Sequence[str]) -> dict[str, tuple[BrokerTopic, list[Extent]]]:
        """The topic's configuration and extents on each master that has it. All must answer: a change follows."""
        masters = self._members.masters_to_change(broker_names)
        answers = await self._questions.brokers(
            masters, lambda broker: broker.admin.topics(include_system=True, names=[name])
        )
        require_all(answers, problem=f"topic {name} cannot be looked up; nothing was changed")
        return {
            broker_name: (broker_topic(broker_name, topic), plain_extents(broker_name, topic))
            for broker_name, topic in _of_topic(answers, name).items()
        }

    def _category(self, name: str) -> str:
        own = system_names(clusters=self._members.clusters, broker_names=self._members.group_names)
        return category_of(name, own)

    def _not_the_systems(self, name: str) -> None:
        if self._category(name) == SYSTEM:
            raise OperationFailed(
                FailureKind.INVALID,
                f"topic {name} belongs to the brokers and stays as it is",
                remedy="choose another name",
            )


def _of_topic(answers: Sequence[Answer[list[admin_pb.TopicStatus]]], name: str) -> dict[str, admin_pb.TopicStatus]:
    # A broker of an older version answers with all its topics.
    return {broker_name: topic for broker_name, topics in values_of(answers) for topic in topics if topic.topic == name}


def _no_topic(name: str, unseen: Sequence[Unseen]) -> OperationFailed:
    return OperationFailed(
        FailureKind.NOT_FOUND,
        f"there is no topic {name}" + (" on the brokers that answer" if unseen else ""),
        cause="\n".join(f"{each.subject}: {each.reason}" for each in unseen),
        remedy="look for its name in the list of topics; upper and lower case matter",
    )


def _removal(extents: Sequence[Extent]) -> str:
    held = sum(extent.held for extent in extents)
    if not held:
        return "removed; it holds no messages"
    return f"removed; {counted(held, 'message')} cannot be consumed while there is no topic of that name"
