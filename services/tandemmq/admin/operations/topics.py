"""Topics over all masters: lists that cost little with ten thousand of them, one topic whole, and changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, TypeVar

from tandemmq.admin.cluster_state import NameServerState
from tandemmq.admin.operations.questions import (
    NO_CHANGE,
    Answer,
    FailureKind,
    Members,
    OperationFailed,
    Questions,
    Readers,
    ShortMemory,
    each_once,
    invalid,
    not_found,
    part_of,
    require_all,
    unavailable,
    unseen_of,
    values_of,
)
from tandemmq.admin.operations.values import (
    FIRST_PAGE,
    BrokerTopic,
    Change,
    ChangeResult,
    Extent,
    Page,
    PageRequest,
    QueueRoute,
    Route,
    TopicChange,
    TopicDetail,
    TopicSummary,
    Unseen,
)
from tandemmq.admin.rpc import NameServerCalls
from tandemmq.core.clock import Clock
from tandemmq.core.metadata.topic_table import (
    MAX_QUEUE_COUNT,
    MESSAGE_TYPES,
    RESERVED_TOPICS,
    system_topics,
    topic_name_problem,
)
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.proto.admin.v1 import message_query_service_pb2 as query_pb
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as nameserver_pb
from tandemmq.service.protobuf import as_message, as_value
from tandemmq.service.texts import counted

# What a change of a topic comes to on each broker: what it is afterwards, and in which words that is told.

TOPIC_ATTRIBUTES: Final = {
    "deduplication.window": "seconds in which a message id is stored once",
    "lite.topic.expiration": "of LITE topics: minutes that a lite topic lives without a message; -1: for ever",
    "transaction.timeout": "ms after which the producer of an undecided half message is asked",
    "transaction.check.interval": "ms between two questions",
    "transaction.check.max": "questions at most",
}
"""Attributes of a topic that may be set, beside its type."""
_WITH_MESSAGE_GROUPS: Final = ("FIFO", "MIXED")
PERMISSIONS: Final = {6: "read and write", 4: "read only", 2: "write only"}
"""RocketMQ's bits, and what they mean. Bit 1, `inherit`, is for the brokers' own topics."""
_DEFAULT: Final = "the broker's default number of"


def topic_problems(change: TopicChange) -> list[str]:
    """Why this change cannot be, whatever the cluster is like; empty if it can."""
    problems = []
    if (problem := topic_name_problem(change.name)) is not None:
        problems.append(problem)
    for what, count in (("read", change.read_queue_count), ("write", change.write_queue_count)):
        if not 0 <= count <= MAX_QUEUE_COUNT:
            problems.append(f"{count} {what} queues: from 1 to {MAX_QUEUE_COUNT:,}, or 0 for {_DEFAULT} queues")
    if change.permission and change.permission not in PERMISSIONS:
        known = ", ".join(f"{bits} ({meaning})" for bits, meaning in PERMISSIONS.items())
        problems.append(f"permission {change.permission}: choose one of {known}")
    if change.message_type and change.message_type not in MESSAGE_TYPES:
        problems.append(f"message type {change.message_type}: choose one of {', '.join(MESSAGE_TYPES)}")
    known = ", ".join(TOPIC_ATTRIBUTES)
    problems += [
        f"attribute {name!r}: choose one of {known}" for name in change.attributes if name not in TOPIC_ATTRIBUTES
    ]
    return problems


def changed_topic(change: TopicChange, broker_name: str, before: BrokerTopic | None) -> BrokerTopic:
    """The topic on a broker that has it as `before`, after the change. 0 queues: the broker's default."""
    old = before or BrokerTopic(broker_name, 0, 0, 6, "NORMAL")
    return replace(
        old,
        read_queue_count=change.read_queue_count or old.read_queue_count,
        write_queue_count=change.write_queue_count or old.write_queue_count,
        permission=change.permission or old.permission,
        message_type=change.message_type or old.message_type,
        attributes={**old.attributes, **change.attributes},
    )


def difference_text(before: BrokerTopic | None, after: BrokerTopic) -> str:
    """What happens, in words; `no change` if nothing does."""
    if before is None:
        return _creation(after)
    words = []
    if before.read_queue_count != after.read_queue_count:
        words.append(f"read queues {before.read_queue_count} → {after.read_queue_count}")
    if before.write_queue_count != after.write_queue_count:
        words.append(f"write queues {before.write_queue_count} → {after.write_queue_count}")
    if before.permission != after.permission:
        words.append(f"{permission_text(before.permission)} → {permission_text(after.permission)}")
    if before.message_type != after.message_type:
        words.append(f"type {before.message_type} → {after.message_type}")
    for name, value in sorted(after.attributes.items()):
        if (known := before.attributes.get(name, "")) != value:
            words.append(f"{name} {known or 'not set'} → {value or 'not set'}")
    return ", ".join(words) or NO_CHANGE


def unread_queues(change: TopicChange, extents: Sequence[Extent]) -> list[str]:
    """What nobody could read any more: messages in queues beyond the new number, a line per broker."""
    if not change.read_queue_count:
        return []
    lost: dict[str, int] = {}
    for extent in extents:
        if extent.queue_id >= change.read_queue_count and extent.held:
            lost[extent.broker_name] = lost.get(extent.broker_name, 0) + extent.held
    return [
        f"{broker_name}: {counted(held, 'message')} in queues from {change.read_queue_count} on, "
        "which consumers no longer read; there again when the number of read queues is raised"
        for broker_name, held in lost.items()
    ]


def moved_message_groups(
    before: Mapping[str, tuple[BrokerTopic, Sequence[Extent]]], after: Mapping[str, BrokerTopic]
) -> list[str]:
    """What loses its order for a while: a message group has its queue by the number of queues to write, and its home
    by the broker groups."""
    moving = [
        name
        for name, topic in after.items()
        if name not in before or before[name][0].write_queue_count != topic.write_queue_count
    ]
    is_ordered = any(topic.message_type in _WITH_MESSAGE_GROUPS for topic, _ in before.values())
    holds_any = any(extent.held for _, extents in before.values() for extent in extents)
    if not (moving and is_ordered and holds_any):
        return []
    warning = (
        f"message groups move to other queues on {', '.join(moving)}: what waits in their old ones may be overtaken by "
        "what is sent from now on; let all groups read the topic empty first, while nothing is sent"
    )
    return [warning]


def attributes_text(attributes: Mapping[str, str]) -> str:
    """`name=value` pairs, as `read_attributes` takes them."""
    return ", ".join(f"{name}={value}" for name, value in sorted(attributes.items()) if value)


def read_attributes(pairs: Iterable[str]) -> dict[str, str]:
    """Of `name=value` texts; `name=` removes it. ValueError, in words, for any other."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.strip().partition("=")
        if not equals:
            raise ValueError(f"attribute {pair!r}: write NAME=VALUE, or NAME= to remove it")
        found[name.strip()] = value.strip()
    return found


def permission_text(bits: int) -> str:
    """`read and write`; with the bits if they are unusual."""
    return PERMISSIONS.get(bits, f"permission {bits}")


def _creation(topic: BrokerTopic) -> str:
    read, write = topic.read_queue_count, topic.write_queue_count
    queues = (
        f"{read or _DEFAULT} queues"
        if read == write
        else f"{read or _DEFAULT} read and {write or _DEFAULT} write queues"
    )
    words = [queues, topic.message_type, permission_text(topic.permission)]
    words += [f"{name} {value}" for name, value in sorted(topic.attributes.items()) if value]
    return f"created with {', '.join(words)}"


# What a topic's name tells of it, and the topics that belong to a group.

ORDINARY: Final = "topic"
RETRY: Final = "retry"
DEAD_LETTER: Final = "dead letter"
SYSTEM: Final = "system"
CATEGORIES: Final = (ORDINARY, RETRY, DEAD_LETTER, SYSTEM)
"""What `TopicSummary.category` may be, and what a list of topics can be asked for."""

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_")


def system_names(*, clusters: Iterable[str], broker_names: Iterable[str]) -> frozenset[str]:
    """Topics that brokers have for themselves, some of them named after the cluster or the broker group."""
    names = list(broker_names)
    return RESERVED_TOPICS.union(
        topic.topic_name
        for cluster in clusters
        for name in names
        for topic in system_topics(cluster=cluster, broker_name=name, auto_create_topic=True)
    )


def category_of(topic: str, own: frozenset[str]) -> str:
    """One of `CATEGORIES`. `own` are the `system_names`. Takes less than a microsecond: lists ask it of all topics."""
    if topic.startswith("%"):
        if topic.startswith(RETRY_PREFIX):
            return RETRY
        if topic.startswith(DEAD_LETTER_PREFIX):
            return DEAD_LETTER
    return SYSTEM if topic in own or topic.startswith(_SYSTEM_PREFIXES) else ORDINARY


def dead_letter_topic(group: str) -> str:
    """Where lies what a group could not consume."""
    return DEAD_LETTER_PREFIX + group


# Protobuf messages about topics and routes as values. The edge: protobuf stops here.


def broker_topic(broker_name: str, topic: admin_pb.TopicStatus) -> BrokerTopic:
    """A topic's configuration on one broker."""
    return as_value(BrokerTopic, topic, broker_name=broker_name, message_type=topic.message_type or "NORMAL")


def extents_of(broker_name: str, queues: Iterable[query_pb.QueueStatus | admin_pb.QueueExtent]) -> list[Extent]:
    """Queues, of a `QueueExtent` without times; those that never held anything are left out by brokers there."""
    return [as_value(Extent, queue, broker_name=broker_name) for queue in queues]


def route_of(name_server: str, route: nameserver_pb.TopicRoute | None) -> Route:
    """One NameServer's answer; None: it knows no such topic."""
    if route is None:
        return Route(name_server, ())
    queues = tuple(as_value(QueueRoute, row) for row in route.queues)
    brokers = {
        f"{group.broker_name}:{broker_id}": group.endpoints[broker_id].client
        for group in route.brokers
        for broker_id in sorted(group.endpoints)
    }
    return Route(name_server, queues, brokers)


# What NameServers say of topics, and which broker groups they give producers.

_AnswerT = TypeVar("_AnswerT")

# A master registers a changed topic table at once; a NameServer that is away is found out by its own deadline.
_ROUTE_LIMIT_S: Final = 15.0
_GONE_LIMIT_S: Final = 5.0
_POLL_S: Final = 0.1
_WRITE: Final = 2


class RouteOperations:
    """Asks and tells every NameServer. They do not talk to each other, so each is told."""

    def __init__(self, members: Members, questions: Questions) -> None:
        self._members = members
        self._questions = questions

    async def routes(self, topic: str) -> tuple[Sequence[Route], Sequence[Unseen]]:
        """Each NameServer's route of a topic, in their configured order; none if none answers."""
        servers = self._members.name_servers
        silent = [Unseen(one.address, f"does not answer ({one.error})") for one in servers if one.error is not None]
        answering = [server.address for server in servers if server.error is None]
        answers = await self._ask(answering, lambda calls: calls.topic_route(topic))
        routes = [route_of(answer.subject, answer.value) for answer in answers if answer.failure is None]
        return routes, [*silent, *unseen_of(answers)]

    async def brokers(self) -> list[Answer[list[nameserver_pb.RegisteredBroker]]]:
        """Live brokers as each NameServer that answered lately knows them."""
        answering = [server.address for server in self._members.name_servers if server.error is None]
        return await self._ask(answering, lambda calls: calls.brokers())

    async def until_routed(self, topic: str, broker_names: Sequence[str]) -> list[str]:
        """Returns when every NameServer that answers routes the topic to these groups; warnings about the others.

        PARTIAL after 15 s: the topic is there, but not everybody is told of it.
        """
        wanted = set(broker_names)

        def lacks(route: Route) -> str:
            missing = wanted.difference(row.broker_name for row in route.queues)
            return f"no route to {', '.join(sorted(missing))}" if missing else ""

        waiting, warnings = await self._until(topic, lacks, limit_s=_ROUTE_LIMIT_S)
        if waiting:
            raise OperationFailed(
                FailureKind.PARTIAL,
                f"topic {topic} exists, but not every NameServer routes to it after {_ROUTE_LIMIT_S:.0f} s",
                cause="\n".join(waiting),
                remedy="see `tandemmq status`: a broker may not reach that NameServer",
            )
        return warnings

    async def until_gone(self, topic: str, broker_names: Sequence[str]) -> list[str]:
        """Waits, for 5 s at most, until no NameServer routes the topic to these groups; warnings about the rest."""
        gone = set(broker_names)

        def has(route: Route) -> str:
            left = gone.intersection(row.broker_name for row in route.queues)
            return f"still routes to {', '.join(sorted(left))}" if left else ""

        waiting, warnings = await self._until(topic, has, limit_s=_GONE_LIMIT_S)
        return [*waiting, *warnings]

    async def set_write_permission(
        self, broker_name: str, *, writable: bool, dry_run: bool, topics: Sequence[str]
    ) -> ChangeResult:
        """Takes a broker group out of producers' routes at every NameServer that answers, or puts it back.

        `topics` are those that the group's own configuration lets producers write; only a dry run needs them.
        """
        self._members.of_group(broker_name)
        silent = [server for server in self._members.name_servers if server.error is not None]
        warnings = [
            f"NameServer {server.address} does not answer ({server.error}) and was not told"
            + ("" if writable else "; when it is back it routes producers to this group: repeat it then")
            for server in silent
        ]
        if not writable:
            warnings.append(
                "NameServers hold this in memory: it ends when one restarts, and when a topic of this group is changed"
            )
        if dry_run:
            changes = await self._permission_changes(broker_name, topics, writable=writable)
        else:
            changes = await self._permit(broker_name, writable=writable)
        return ChangeResult(changes, dry_run, tuple(warnings))

    async def _permit(self, broker_name: str, *, writable: bool) -> list[Change]:
        answers = await self._ask_all(
            lambda calls: (
                calls.add_write_permission(broker_name=broker_name)
                if writable
                else calls.wipe_write_permission(broker_name=broker_name)
            )
        )
        verb = "given back" if writable else "taken away"
        require_all(answers, problem=f"write permission of {broker_name} could not be {verb}")
        counts = [(answer.subject, answer.value or 0) for answer in answers]
        return [
            Change(address, f"write permission {verb} for {counted(count, 'topic')}" if count else NO_CHANGE)
            for address, count in counts
        ]

    async def _permission_changes(self, broker_name: str, topics: Sequence[str], *, writable: bool) -> list[Change]:
        # NameServers have no dry run. What one does with a group it does with all its topics: a single route shows how
        # things are, where the snapshot of ten thousand would keep it busy for seconds.
        verb = "given back" if writable else "taken away"
        sample = topics[0] if topics else ""
        answers = await self._ask_all(lambda calls: calls.topic_route(sample))
        changes = []
        for answer in answers:
            if answer.failure is not None:
                changes.append(Change(answer.subject, f"does not say: {answer.failure.text}"))
                continue
            rows = [row for row in route_of(answer.subject, answer.value).queues if row.broker_name == broker_name]
            is_writable = any(row.permission & _WRITE for row in rows)
            is_change = rows and is_writable != writable
            changes.append(
                Change(
                    answer.subject,
                    f"write permission {verb} for {counted(len(topics), 'topic')}" if is_change else NO_CHANGE,
                )
            )
        return changes

    async def _until(
        self, topic: str, problem: Callable[[Route], str], *, limit_s: float
    ) -> tuple[list[str], list[str]]:
        """Asks until no route has a problem. What is left of them, and who could not be asked."""
        unasked = {
            server.address: f"NameServer {server.address} does not answer ({server.error})"
            for server in self._members.name_servers
            if server.error is not None
        }
        waiting: dict[str, str] = {
            server.address: "not asked yet" for server in self._members.name_servers if server.address not in unasked
        }
        try:
            async with asyncio.timeout(limit_s):
                while waiting:
                    for answer in await self._ask(list(waiting), lambda calls: calls.topic_route(topic)):
                        if answer.failure is not None:
                            # It learns of the topic from the brokers when it is back; waiting would help nobody.
                            unasked[answer.subject] = f"NameServer {answer.subject}: {answer.failure.text}"
                            del waiting[answer.subject]
                        elif what := problem(route_of(answer.subject, answer.value)):
                            waiting[answer.subject] = what
                        else:
                            del waiting[answer.subject]
                    await asyncio.sleep(_POLL_S if waiting else 0)
        except TimeoutError:
            pass
        return [f"{address}: {what}" for address, what in waiting.items()], list(unasked.values())

    async def _ask_all(self, question: Callable[[NameServerCalls], Awaitable[_AnswerT]]) -> list[Answer[_AnswerT]]:
        """All that answered lately. UNAVAILABLE when none did."""
        servers: Sequence[NameServerState] = self._members.name_servers
        answering = [server.address for server in servers if server.error is None]
        if not answering:
            raise unavailable(
                "no NameServer answers",
                cause="\n".join(f"{server.address}: {server.error}" for server in servers),
                remedy="start one; brokers register with it within seconds",
            )
        return await self._ask(answering, question)

    async def _ask(
        self, addresses: Sequence[str], question: Callable[[NameServerCalls], Awaitable[_AnswerT]]
    ) -> list[Answer[_AnswerT]]:
        async def ask(address: str) -> Answer[_AnswerT]:
            calls = NameServerCalls(self._questions.channels, address)
            return await self._questions.one(address, lambda: question(calls))

        return list(await asyncio.gather(*(ask(address) for address in addresses)))


# Names and configurations of all topics of a cluster, read again only when they changed.
#
# Ten thousand topics take brokers and us some hundred milliseconds to tell; a page that renews itself would ask all
# the time. NameServers know the version of each broker's topic table and are asked that instead, which costs next to
# nothing.

_AGE_MS: Final = 2_000
_UNCHANGED_AGE_MS: Final = 60_000
"""Then it is read again in any case."""
_NAMES_PER_TURN: Final = 500
"""Handled before the event loop gets a turn: 2 ms."""

# By NameServer and broker, its incarnation and the version of its topic table.
_Versions: TypeAlias = frozenset[tuple[str, str, bytes]]


@dataclass(frozen=True, slots=True)
class TopicTable:
    """All topics, without anything that has to be looked up for each of them."""

    # Ordered; with the name in lower case and the category.
    names: Sequence[tuple[str, str, str]]
    # Broker group and its configuration.
    by_name: dict[str, list[tuple[str, admin_pb.TopicStatus]]]
    unseen: Sequence[Unseen]

    def summary(self, name: str, category: str) -> TopicSummary:
        """One line of the list, nothing counted."""
        return TopicSummary(name, category, tuple(broker_topic(*pair) for pair in self.by_name[name]))


@dataclass(frozen=True, slots=True)
class _Reading:
    table: TopicTable
    # Who was read from.
    keys: tuple[str, ...]
    versions: _Versions
    read_at_ms: int


class TopicTables:
    """The table as it was at most 2 s ago. Event loop only."""

    def __init__(self, members: Members, questions: Questions, routes: RouteOperations, *, clock: Clock) -> None:
        self._members = members
        self._questions = questions
        self._routes = routes
        self._clock = clock
        self._newest = ShortMemory(self._current, max_age_ms=_AGE_MS, clock=clock)
        self._reading: _Reading | None = None

    async def get(self) -> TopicTable:
        """All topics. UNAVAILABLE when no broker answers."""
        return await self._newest.get()

    def forget(self) -> None:
        """A topic was changed from here."""
        self._newest.forget()
        self._reading = None

    async def _current(self) -> TopicTable:
        readers = self._members.readers()
        keys = tuple(broker.key for broker in readers.brokers)
        versions = await self._versions(keys)
        reading = self._reading
        if reading is not None and self._still_holds(reading, keys, versions):
            return replace(reading.table, unseen=tuple(readers.unseen))
        self._reading = None
        now_ms = self._clock.monotonic_ms()
        table = await self._read(readers)
        # What some did not tell is to be asked for again. The versions are older than the table, never newer.
        if versions and len(table.unseen) == len(readers.unseen):
            self._reading = _Reading(table, keys, versions, now_ms)
        return table

    def _still_holds(self, reading: _Reading, keys: tuple[str, ...], versions: _Versions) -> bool:
        age_ms = self._clock.monotonic_ms() - reading.read_at_ms
        return (reading.keys, reading.versions) == (keys, versions) and age_ms <= _UNCHANGED_AGE_MS

    async def _versions(self, keys: Sequence[str]) -> _Versions:
        """Empty when the NameServers do not know all of these brokers."""
        answers = await self._routes.brokers()
        versions = frozenset(
            (answer.subject, f"{broker.identity.broker_name}:{broker.identity.broker_id}", _version(broker))
            for answer in answers
            for broker in answer.value or ()
        )
        return versions if {key for _, key, _ in versions}.issuperset(keys) else frozenset()

    async def _read(self, readers: Readers) -> TopicTable:
        answers = await self._questions.brokers(
            readers.brokers, lambda broker: broker.admin.topics(include_system=True, without_queues=True)
        )
        by_name: dict[str, list[tuple[str, admin_pb.TopicStatus]]] = {}
        for broker_name, topics in values_of(answers):
            for number, topic in enumerate(topics):
                by_name.setdefault(topic.topic, []).append((broker_name, topic))
                if number % _NAMES_PER_TURN == 0:
                    await asyncio.sleep(0)
        own = system_names(clusters=self._members.clusters, broker_names=self._members.group_names)
        names = []
        for number, name in enumerate(sorted(by_name)):
            names.append((name, name.lower(), category_of(name, own)))
            if number % _NAMES_PER_TURN == 0:
                await asyncio.sleep(0)
        return TopicTable(names, by_name, (*readers.unseen, *unseen_of(answers)))


def _version(broker: nameserver_pb.RegisteredBroker) -> bytes:
    version: bytes = broker.data_version.SerializeToString(deterministic=True)
    return broker.incarnation.to_bytes(8, "big") + version


class TopicOperations:
    """Reads from the masters, or from the slaves of those that are away; changes are the masters'."""

    def __init__(self, members: Members, questions: Questions, routes: RouteOperations, *, clock: Clock) -> None:
        self._members = members
        self._questions = questions
        self._routes = routes
        self._table = TopicTables(members, questions, routes, clock=clock)

    async def topics(
        self, *, search: str = "", categories: Sequence[str] = (ORDINARY,), page: PageRequest = FIRST_PAGE
    ) -> Page[TopicSummary]:
        """Topics by name; `search` is a part of the name, case does not matter. The list itself may be 2 s old; those
        of the page have their counts, which are new."""
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

    async def topic(self, name: str) -> TopicDetail:
        """One topic with its queues and routes, without its groups. NOT_FOUND when no master that answers has it."""
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
        agree = len({frozenset(route.queues) for route in routes}) <= 1
        return TopicDetail(summary, extents, routes, agree, (), each_once(unseen, unrouted))

    async def put_topic(self, change: TopicChange, *, dry_run: bool = False) -> ChangeResult:
        """Creates or changes a topic on masters, and waits until every NameServer routes to it."""
        if problems := topic_problems(change):
            raise invalid(f"topic {change.name!r} is refused", cause="\n".join(problems))
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
        warnings += moved_message_groups(before, after)
        if not dry_run:
            answers = await self._questions.brokers(
                masters,
                lambda broker: broker.admin.update_topic(
                    as_message(admin_pb.UpdateTopicRequest, after[broker.broker.broker_name], topic=change.name)
                ),
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
            answers = await self._questions.brokers(masters, lambda broker: broker.admin.delete_topic(topic=name))
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
        answers = await self._questions.brokers(readers, lambda broker: broker.messages.queues(topic=name))
        found = {broker_name: extents_of(broker_name, reply.queues) for broker_name, reply in values_of(answers)}
        for broker_name, status in configurations.items():
            found.setdefault(broker_name, extents_of(broker_name, status.queues))
        return [extent for _, extents in sorted(found.items()) for extent in extents]

    async def _on_masters(self, name: str, broker_names: Sequence[str]) -> dict[str, tuple[BrokerTopic, list[Extent]]]:
        """The topic's configuration and extents on each master that has it. All must answer: a change follows."""
        masters = self._members.masters_to_change(broker_names)
        answers = await self._questions.brokers(
            masters, lambda broker: broker.admin.topics(include_system=True, names=[name])
        )
        require_all(answers, problem=f"topic {name} cannot be looked up; nothing was changed")
        return {
            broker_name: (broker_topic(broker_name, topic), extents_of(broker_name, topic.queues))
            for broker_name, topic in _of_topic(answers, name).items()
        }

    def _category(self, name: str) -> str:
        own = system_names(clusters=self._members.clusters, broker_names=self._members.group_names)
        return category_of(name, own)

    def _not_the_systems(self, name: str) -> None:
        if self._category(name) == SYSTEM:
            raise invalid(f"topic {name} belongs to the brokers and stays as it is", remedy="choose another name")


def _of_topic(answers: Sequence[Answer[list[admin_pb.TopicStatus]]], name: str) -> dict[str, admin_pb.TopicStatus]:
    # A broker of an older version answers with all its topics.
    return {broker_name: topic for broker_name, topics in values_of(answers) for topic in topics if topic.topic == name}


def _no_topic(name: str, unseen: Sequence[Unseen]) -> OperationFailed:
    return not_found(
        f"there is no topic {name}" + (" on the brokers that answer" if unseen else ""),
        cause="\n".join(f"{each.subject}: {each.reason}" for each in unseen),
        remedy="look for its name in the list of topics; upper and lower case matter",
    )


def _removal(extents: Sequence[Extent]) -> str:
    held = sum(extent.held for extent in extents)
    if not held:
        return "removed; it holds no messages"
    return f"removed; {counted(held, 'message')} cannot be consumed while there is no topic of that name"
