"""Asks several brokers or NameServers at once; a failed call becomes a value, or the operation's failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import chain, groupby
from typing import Final, Generic, TypeVar

import grpc
import grpc.aio

from tandemmq.admin.cluster_state import BrokerState, ClusterState, NameServerState
from tandemmq.admin.operations.bodies import PAGE_BODY_BYTES_MAX
from tandemmq.admin.operations.values import MessageQuery, PageRequest, SearchOrder, Unseen
from tandemmq.admin.rpc import (
    BrokerAccessCalls,
    BrokerAdminCalls,
    BrokerOperationsCalls,
    Channels,
    FailoverCalls,
    MessageQueryCalls,
    ReplicaCalls,
    TraceCalls,
    error_text,
)
from tandemmq.core.clock import Clock
from tandemmq.core.routing.values import MASTER_ID
from tandemmq.proto.admin.v1 import message_query_service_pb2 as query_pb

NO_CHANGE: Final = "no change"
"""Said of a broker where all was so already."""


# An answer shared by all who ask within a short time, so that a hundred open pages cost what one does.

ValueT = TypeVar("ValueT")


class ShortMemory(Generic[ValueT]):
    """Remembers one value for `max_age_ms`. Those who ask at the same time wait for one question. Event loop only."""

    def __init__(self, ask: Callable[[], Awaitable[ValueT]], *, max_age_ms: int, clock: Clock) -> None:
        self._ask = ask
        self._max_age_ms = max_age_ms
        self._clock = clock
        self._turn = asyncio.Lock()
        self._kept: tuple[ValueT, int] | None = None
        self._forgotten_count = 0

    async def get(self) -> ValueT:
        """The value, at most `max_age_ms` old; raises what the question raises, which is not remembered."""
        if (value := self._fresh()) is not None:
            return value
        async with self._turn:
            if (value := self._fresh()) is not None:
                return value
            forgotten_count = self._forgotten_count
            value = await self._ask()
            # A change made meanwhile is perhaps not in it.
            if forgotten_count == self._forgotten_count:
                self._kept = (value, self._clock.monotonic_ms())
            return value

    def forget(self) -> None:
        """Something was changed: the next one asks anew."""
        self._kept = None
        self._forgotten_count += 1

    def _fresh(self) -> ValueT | None:
        if self._kept is None or self._clock.monotonic_ms() - self._kept[1] > self._max_age_ms:
            return None
        return self._kept[0]


# How an operation fails: what is wrong, why, and what to do about it. Shells turn it into an exit code or a status.


class FailureKind(StrEnum):
    """Whose turn it is."""

    # The question or the change is wrong; nothing was done.
    INVALID = "invalid"
    # There is no such thing.
    NOT_FOUND = "not found"
    # The state of the cluster forbids it; nothing was done.
    REFUSED = "refused"
    # Nobody who could answer does.
    UNAVAILABLE = "unavailable"
    # Some did it and others did not; repeating it is safe.
    PARTIAL = "partial"


# Where nothing better is known.
_REMEDIES: Final = {
    FailureKind.INVALID: "change what the cause names, and try again",
    FailureKind.NOT_FOUND: "look for it in the lists of topics, groups and messages; it may have expired",
    FailureKind.REFUSED: "remove what the cause names, and try again",
    FailureKind.UNAVAILABLE: "`tandemmq status` shows who is away; try again when they are back",
}


class OperationFailed(Exception):
    """An operation did not come to its end. What it is told as has a remedy wherever it has a cause."""

    def __init__(self, kind: FailureKind, problem: str, *, cause: str = "", remedy: str = "") -> None:
        super().__init__(problem)
        self.kind = kind
        self.problem = problem
        self.cause = cause
        self.remedy = remedy or (_REMEDIES.get(kind, "") if cause else "")


invalid: Final = partial(OperationFailed, FailureKind.INVALID)
not_found: Final = partial(OperationFailed, FailureKind.NOT_FOUND)
refused: Final = partial(OperationFailed, FailureKind.REFUSED)
unavailable: Final = partial(OperationFailed, FailureKind.UNAVAILABLE)


# As in the reading of a cluster: hundreds of brokers are asked in waves.
_ASKED_AT_ONCE: Final = 64
_TOO_OLD: Final = "cannot do this: its version is older"
_KINDS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: FailureKind.INVALID,
    grpc.StatusCode.NOT_FOUND: FailureKind.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION: FailureKind.REFUSED,
    grpc.StatusCode.OUT_OF_RANGE: FailureKind.INVALID,
    grpc.StatusCode.UNIMPLEMENTED: FailureKind.REFUSED,
}

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class CallFailure:
    kind: FailureKind
    # In one line.
    text: str

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> CallFailure:
        """What a library's error means to an operator. What is not in the table is nobody's fault who could mend it."""
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return cls(FailureKind.REFUSED, _TOO_OLD)
        kind = _KINDS.get(error.code(), FailureKind.UNAVAILABLE)
        # A refusal in the broker's own words; a failure of the transport with its code.
        details = " ".join((error.details() or "").split())
        return cls(kind, details if details and kind is not FailureKind.UNAVAILABLE else error_text(error))

    @classmethod
    def silent(cls, text: str) -> CallFailure:
        """Somebody that did not answer before and is not asked again."""
        return cls(FailureKind.UNAVAILABLE, text)

    def failed(self, subject: str, problem: str) -> OperationFailed:
        """The operation's end, when this was its only call."""
        return OperationFailed(self.kind, problem, cause=f"{subject}: {self.text}", remedy=_remedy([self]))


def _remedy(failures: Sequence[CallFailure]) -> str:
    """Empty: that of the failure's kind."""
    is_old = any(failure.text == _TOO_OLD for failure in failures)
    return "upgrade that broker; `tandemmq broker list` shows versions" if is_old else ""


@dataclass(frozen=True, slots=True)
class Answer(Generic[AnswerT]):
    """What one broker or NameServer said; exactly one of `value` and `failure` is there."""

    # name:id, or an address.
    subject: str
    # Of the broker group; empty for a NameServer.
    broker_name: str
    value: AnswerT | None
    failure: CallFailure | None = None


class BrokerPlanes:
    """All that can be asked of one broker."""

    def __init__(self, channels: Channels, broker: BrokerState) -> None:
        self.broker = broker
        self.admin = BrokerAdminCalls(channels, broker.metadata_endpoint)
        self.operations = BrokerOperationsCalls(channels, broker.metadata_endpoint)
        self.access = BrokerAccessCalls(channels, broker.metadata_endpoint)
        self.messages = MessageQueryCalls(channels, broker.metadata_endpoint)
        self.failover = FailoverCalls(channels, broker.metadata_endpoint)
        self.replica = ReplicaCalls(channels, broker.metadata_endpoint)
        self.traces = TraceCalls(channels, broker.metadata_endpoint)


class Questions:
    """Bounds how many calls are under way at once, over all operations."""

    def __init__(self, channels: Channels) -> None:
        self.channels = channels
        self._slots = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def brokers(
        self, brokers: Iterable[BrokerState], question: Callable[[BrokerPlanes], Awaitable[AnswerT]]
    ) -> list[Answer[AnswerT]]:
        """All at once, answers in the order of `brokers`; each within the deadline of its calls. Nothing is raised."""

        async def ask(broker: BrokerState) -> Answer[AnswerT]:
            if not broker.metadata_endpoint:
                failure = CallFailure.silent("its address is not known")
                return Answer(broker.key, broker.broker_name, None, failure)
            return await self.one(
                broker.key, lambda: question(BrokerPlanes(self.channels, broker)), broker_name=broker.broker_name
            )

        return list(await asyncio.gather(*(ask(broker) for broker in brokers)))

    async def broker(
        self, broker: BrokerState, question: Callable[[BrokerPlanes], Awaitable[AnswerT]], *, problem: str
    ) -> AnswerT:
        """One broker's answer. Its refusal ends the operation, with `problem` as what is wrong."""
        [answer] = await self.brokers([broker], question)
        if answer.failure is not None:
            raise answer.failure.failed(answer.subject, problem)
        assert answer.value is not None
        return answer.value

    async def one(
        self, subject: str, question: Callable[[], Awaitable[AnswerT]], *, broker_name: str = ""
    ) -> Answer[AnswerT]:
        """Asks `subject`, whoever that is."""
        async with self._slots:
            try:
                return Answer(subject, broker_name, await question())
            except grpc.aio.AioRpcError as error:
                return Answer(subject, broker_name, None, CallFailure.of(error))


def values_of(answers: Iterable[Answer[AnswerT]]) -> list[tuple[str, AnswerT]]:
    """Broker name and value of those that answered."""
    return [(answer.broker_name, answer.value) for answer in answers if answer.value is not None]


def unseen_of(answers: Iterable[Answer[AnswerT]], *, but: FailureKind | None = None) -> list[Unseen]:
    """Those that did not answer; `but` is a failure that is an answer, such as NOT_FOUND."""
    return [
        Unseen(answer.subject, answer.failure.text)
        for answer in answers
        if answer.failure is not None and answer.failure.kind is not but
    ]


def each_once(*unseen: Iterable[Unseen]) -> tuple[Unseen, ...]:
    """Several answers' together; of each subject the first thing that was said."""
    found: dict[str, Unseen] = {}
    for each in chain.from_iterable(unseen):
        found.setdefault(each.subject, each)
    return tuple(found.values())


def require_all(answers: Sequence[Answer[AnswerT]], *, problem: str) -> list[AnswerT]:
    """Values in order, when all of a change's steps were taken; else its failure says who has it and who has not."""
    refused = [answer for answer in answers if answer.failure is not None]
    done = [answer for answer in answers if answer.failure is None]
    if not refused:
        return [answer.value for answer in done if answer.value is not None]
    lines = [f"{answer.subject}: {answer.failure.text}" for answer in refused if answer.failure is not None]
    if done:
        raise OperationFailed(
            FailureKind.PARTIAL,
            f"{problem}: done on {len(done)} of {len(answers)}",
            cause="\n".join([*lines, *(f"{answer.subject}: done" for answer in done)]),
            remedy="remove the cause and repeat it; those that have the change do not mind",
        )
    kinds = {answer.failure.kind for answer in refused if answer.failure is not None}
    kind = kinds.pop() if len(kinds) == 1 else FailureKind.REFUSED
    failures = [answer.failure for answer in refused if answer.failure is not None]
    raise OperationFailed(kind, problem, cause="\n".join(lines), remedy=_remedy(failures))


# Who can be asked and who must be, out of the newest reading of a cluster.


@dataclass(frozen=True, slots=True)
class Readers:
    """One broker of each group that can be read from."""

    brokers: Sequence[BrokerState]
    # Groups that cannot, and those where a slave stands in for its master.
    unseen: Sequence[Unseen]


class Members:
    """A cluster's brokers and NameServers. Each call looks at the newest reading; a reading is some seconds old."""

    def __init__(self, newest: Callable[[], ClusterState | None]) -> None:
        self._newest = newest

    @property
    def name_servers(self) -> tuple[NameServerState, ...]:
        return self._state().name_servers

    @property
    def clusters(self) -> frozenset[str]:
        """Names of the clusters brokers belong to: one, if nobody mixed them up."""
        return frozenset(broker.cluster for broker in self._state().brokers)

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the broker groups, ordered."""
        return tuple(dict.fromkeys(broker.broker_name for broker in self._state().brokers))

    def all(self) -> tuple[BrokerState, ...]:
        """Every broker that is known, ordered by name and id. UNAVAILABLE when none answered."""
        brokers = self._state().brokers
        if any(broker.status is not None for broker in brokers):
            return brokers
        raise _nobody(self._state())

    def answering(self) -> tuple[list[BrokerState], list[Unseen]]:
        """Those that answered lately, and the others."""
        brokers = self.all()
        silent = [_silent(broker) for broker in brokers if broker.status is None]
        return [broker for broker in brokers if broker.status is not None], silent

    def of_group(self, broker_name: str) -> list[BrokerState]:
        """Members of one broker group, its master first. NOT_FOUND: there is none of that name."""
        members = next((group for group in self._groups() if group[0].broker_name == broker_name), None)
        if members is None:
            raise _no_group(broker_name, self.group_names)
        return members

    def broker(self, key: str) -> BrokerState:
        """One broker by `name:id`. NOT_FOUND: there is none; UNAVAILABLE: it does not answer."""
        found = next((broker for broker in self._state().brokers if broker.key == key), None)
        if found is None:
            keys = ", ".join(broker.key for broker in self._state().brokers)
            raise not_found(f"there is no broker {key}", remedy=f"choose one of {keys or '(none is known)'}")
        if found.status is None:
            raise unavailable(
                f"{key} does not answer",
                cause=found.error or "",
                remedy="see whether its process runs and what the end of its log says",
            )
        return found

    def readers(self, broker_name: str = "") -> Readers:
        """Of each group, or of one, whoever can be read from: the master, or else a slave.

        A slave holds what its master held, but for what it had not copied. UNAVAILABLE when nobody answers.
        """
        groups = [self.of_group(broker_name)] if broker_name else self._groups()
        brokers: list[BrokerState] = []
        unseen: list[Unseen] = []
        for members in groups:
            reader = next((broker for broker in members if broker.status is not None), None)
            if reader is None:
                unseen += [_silent(broker) for broker in members]
                continue
            brokers.append(reader)
            if not reader.is_master:
                first = members[0]
                reason = _silent(first).reason if first.is_master else "is not known to any NameServer"
                unseen.append(Unseen(_master_key(members), f"{reason}; its slave {reader.key} was asked instead"))
        if not brokers:
            raise _nobody(self._state(), broker_name)
        return Readers(brokers, unseen)

    def masters(self) -> Readers:
        """Masters that answered, and what is known of the others. UNAVAILABLE when there is none."""
        readers = self.readers()
        masters = [broker for broker in readers.brokers if broker.is_master]
        stood_in = {broker.broker_name for broker in readers.brokers if not broker.is_master}
        if not masters:
            raise unavailable(
                "no master answers",
                cause="\n".join(f"{each.subject}: {each.reason}" for each in readers.unseen),
                remedy="restart a master; `tandemmq status` shows what is there",
            )
        keys = {_master_key(members) for members in self._groups() if members[0].broker_name in stood_in}
        unseen = [
            Unseen(each.subject, each.reason.partition("; its slave")[0]) if each.subject in keys else each
            for each in readers.unseen
        ]
        return Readers(masters, unseen)

    def masters_to_change(self, broker_names: Sequence[str] = ()) -> list[BrokerState]:
        """Every master, or those of the groups named, ordered by name.

        A change that reaches only some masters would leave a topic on part of the cluster, so it is not begun: REFUSED
        when one that is known does not answer, or a group has none.
        """
        wanted = set(broker_names) or set(self.group_names)
        for name in sorted(wanted.difference(self.group_names)):
            raise _no_group(name, self.group_names)
        members = [group for group in self._groups() if group[0].broker_name in wanted]
        if not members:
            raise _nobody(self._state())
        away = [group for group in members if not group[0].is_master or group[0].status is None]
        if away:
            raise refused(
                f"{', '.join(_master_key(group) for group in away)} does not answer; nothing was changed",
                cause="\n".join(
                    f"{group[0].key} at {group[0].metadata_endpoint}: {group[0].error}"
                    if group[0].is_master
                    else f"{_master_key(group)}: is not known to any NameServer"
                    for group in away
                ),
                remedy="wait until it is back; `tandemmq status` shows when",
            )
        return [group[0] for group in members]

    def _groups(self) -> list[list[BrokerState]]:
        """Ordered by name; of each its master first."""
        groups = groupby(self._state().brokers, key=lambda broker: broker.broker_name)
        return [sorted(members, key=lambda broker: not broker.is_master) for _, members in groups]

    def _state(self) -> ClusterState:
        state = self._newest()
        if state is None:
            raise unavailable("the cluster has not been read yet", remedy="ask again in a second")
        return state


def _master_key(members: Sequence[BrokerState]) -> str:
    """`name:id`; of a master whom nobody knows `name:0`, unless that is somebody else."""
    first = members[0]
    if first.is_master:
        return first.key
    is_taken = any(broker.broker_id == MASTER_ID for broker in members)
    return f"the master of {first.broker_name}" if is_taken else f"{first.broker_name}:{MASTER_ID}"


def _silent(broker: BrokerState) -> Unseen:
    return Unseen(broker.key, f"does not answer at {broker.metadata_endpoint} ({broker.error})")


def check_offset(offset: int) -> None:
    """INVALID: no file has such a place."""
    if not 0 <= offset < 1 << 63:
        raise invalid(f"{offset} is no offset", remedy="give a number from 0 on")


def check_queue(queue_id: int) -> None:
    """INVALID: no topic has such a queue."""
    if not 0 <= queue_id < 1 << 31:
        raise invalid(f"{queue_id} is no queue", remedy="give a number from 0 on")


def _no_group(name: str, known: Sequence[str]) -> OperationFailed:
    return not_found(
        f"there is no broker group {name}", remedy=f"choose one of {', '.join(known) or '(none is known)'}"
    )


def _nobody(state: ClusterState, broker_name: str = "") -> OperationFailed:
    servers = [f"{server.address}: {server.error}" for server in state.name_servers if server.error is not None]
    brokers = [f"{broker.key}: {broker.error}" for broker in state.brokers if broker_name in ("", broker.broker_name)]
    if broker_name:
        return unavailable(
            f"no broker of {broker_name} answers",
            cause="\n".join(brokers),
            remedy="see whether their processes run and what the ends of their logs say",
        )
    if len(servers) == len(state.name_servers):
        return unavailable(
            "no NameServer answers",
            cause="\n".join([*servers, *brokers]),
            remedy="start the cluster, or name another one's NameServers",
        )
    return unavailable(
        "no broker answers" if brokers else "no broker is registered",
        cause="\n".join([*brokers, *servers]),
        remedy="start the brokers, and check their namesrvAddr",
    )


# The part of a list that one page shows.

ItemT = TypeVar("ItemT")

PAGE_SIZE_MAX: Final = 1_000
"""Of each thing on a page something more is asked for."""


def part_of(found: Sequence[ItemT], page: PageRequest) -> Sequence[ItemT]:
    """Empty beyond the end. INVALID: there can be no such page."""
    if page.number < 1 or not 1 <= page.size <= PAGE_SIZE_MAX:
        raise invalid(
            f"there is no page {page.number:,} of {page.size:,}",
            remedy=f"pages are counted from 1 and hold from 1 to {PAGE_SIZE_MAX:,}",
        )
    return found[(page.number - 1) * page.size : page.number * page.size]


# Queries as requests. The edge: protobuf stops here.


def query_request(
    query: MessageQuery, *, start_ms: int, end_ms: int, limit: int, page_token: bytes
) -> query_pb.QueryMessagesRequest:
    """What one broker is asked. Times are [start_ms, end_ms), -1: open; they stand in for those of `query`."""
    request = query_pb.QueryMessagesRequest(
        topic=query.topic,
        limit=limit,
        body_bytes=min(max(0, query.body_bytes), PAGE_BODY_BYTES_MAX),
        tags=query.tags,
        page_token=page_token,
    )
    if query.queue_id >= 0:
        request.queue.queue_id = query.queue_id
        request.queue.start_offset = query.start_offset
        return request
    part: query_pb.KeyQuery | query_pb.TimeRange
    if query.key:
        part = request.key
        part.key = query.key
    else:
        part = request.time
        part.newest_first = query.order is SearchOrder.NEWEST
        part.SetInParent()
    if start_ms >= 0:
        part.start_time.FromMilliseconds(start_ms)
    if end_ms >= 0:
        part.end_time.FromMilliseconds(end_ms)
    return request
