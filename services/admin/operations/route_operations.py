"""What NameServers say of topics, and which broker groups they give producers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from tandemmq.nameserver.v1 import name_server_service_pb2 as nameserver_pb

from admin.cluster_state import NameServerState
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.members import Members
from admin.operations.questions import Answer, Questions, require_all, unseen_of
from admin.operations.topic_changes import NO_CHANGE
from admin.operations.topic_messages import route_of
from admin.operations.values import Change, ChangeResult, Route, Unseen
from admin.quantities import counted
from admin.rpc import NameServerCalls

__all__ = ["RouteOperations"]

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

    async def routes(self, topic: str) -> tuple[list[Route], list[Unseen]]:
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
                calls.add_write_permission(broker_name) if writable else calls.wipe_write_permission(broker_name)
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
            raise OperationFailed(
                FailureKind.UNAVAILABLE,
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
