"""Asks several brokers or NameServers at once; a failed call becomes a value, or the operation's failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Generic, TypeVar

import grpc
import grpc.aio

from admin.cluster_state import BrokerState
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.values import Unseen
from admin.rpc import (
    BrokerAdminCalls,
    BrokerOperationsCalls,
    Channels,
    MessageQueryCalls,
    ReplicaCalls,
    TraceCalls,
    error_text,
)

__all__ = ["Answer", "BrokerPlanes", "CallFailure", "Questions", "each_once", "require_all", "unseen_of", "values_of"]

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
    """A call that failed."""

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
        return OperationFailed(self.kind, problem, cause=f"{subject}: {self.text}")


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
        self.messages = MessageQueryCalls(channels, broker.metadata_endpoint)
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
    raise OperationFailed(kind, problem, cause="\n".join(lines))
