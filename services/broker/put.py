"""A put on its way: who is answered, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from broker.put_answer import PutAnswer
from mqcore.message.record import OutgoingMessage
from mqcore.replication.put_gate import WaitingPut
from mqcore.storage.put_result import AppendResult
from mqcore.tracing.trace_context import TraceContext
from mqservice.rpc import Call

__all__ = ["Place", "Put"]

# The server's span, its parent, and the contexts it is linked with.
Place: TypeAlias = tuple[TraceContext, TraceContext | None, tuple[TraceContext, ...]]


class Put(WaitingPut):
    """One for every put, from its append to its answer; hence no keywords and no class that is made by another's
    code. Times are monotonic ns.

    `received_ns`: when its request was read; 0: there was none. `begun_ns`: when its append began, exact for a put that
    is traced from the start. Of the others only the latest moment is known that was before: when they were read, or
    when the put before them was appended. `appended_ns`: 0 if nothing was stored.
    """

    __slots__ = (
        "answer",
        "appended_ns",
        "begun_ns",
        "call",
        "messages",
        "place",
        "received_ns",
        "results",
        "traceparents",
    )

    def __init__(
        self,
        results: list[AppendResult],
        needs_flush: bool,
        needs_slaves: bool,
        answer: PutAnswer,
        messages: Sequence[OutgoingMessage],
        call: Call | None,
        traceparents: Sequence[str],
        received_ns: int,
        begun_ns: int,
        appended_ns: int,
    ) -> None:
        super().__init__(results[0].physical_offset, results[-1].end_offset, needs_flush, needs_slaves)
        self.results = results
        self.answer = answer
        self.messages = messages
        self.call = call
        self.traceparents = traceparents
        self.received_ns = received_ns
        self.begun_ns = begun_ns
        self.appended_ns = appended_ns
        # Of a put that is traced.
        self.place: Place | None = None
