"""The calls of one connection, and their ends."""

from __future__ import annotations

from collections import Counter, OrderedDict
from math import inf
from typing import Final

from tandemmq.http2 import frames
from tandemmq.http2.errors import ConnectionFailure, ErrorCode, StreamFailure, Usage
from tandemmq.http2.output import IdleBudget, Output
from tandemmq.http2.stream import KeptBytes, Stream, Timers

__all__ = ["Calls"]

# Streams the peer may still be writing to although we ended them; more are forgotten, oldest first.
_ABANDONED_MAX: Final = 4_000


class Calls:
    """Which calls are in progress, which of them wait and for what, and how a call ends without an answer.

    A call is in `open` from its head on, until `Stream.local_closed` is set. Its hooks may end it, or any other call of
    the connection, so whoever calls a hook checks that again afterwards.
    """

    def __init__(
        self,
        *,
        usage: Usage,
        counters: Counter[str],
        kept: KeptBytes,
        budget: IdleBudget,
        timers: Timers,
        output: Output,
    ) -> None:
        self.open: dict[int, Stream] = {}
        self.last_stream_id = 0
        """The highest the peer used."""
        self.incomplete: dict[int, Stream] = {}
        """Those with an unfinished request message, oldest first."""
        self.blocked: dict[int, Stream] = {}
        """Those with a queue."""
        self.sendable: OrderedDict[int, Stream] = OrderedDict()
        """Those of them whose own window may be open, next in turn first."""
        # As many of them are in `usage`; brought up to date once per read and write.
        self._counted = 0
        # Streams that ended before their request did; True: the peer itself reset it.
        self._abandoned: dict[int, bool] = {}
        self._usage = usage
        self._counters = counters
        self._kept = kept
        self._budget = budget
        self._timers = timers
        self._output = output

    def count(self) -> None:
        """Brings the calls of all connections up to date."""
        count = len(self.open)
        if count != self._counted:
            self._usage.streams += count - self._counted
            self._counted = count

    @property
    def oldest_part_since(self) -> float:
        """When the oldest unfinished request message began; inf if there is none."""
        for stream in self.incomplete.values():
            assert stream.assembly is not None, "an unfinished message is somewhere"
            return stream.assembly.since
        return inf

    # Ends

    def reset(self, stream: Stream, failure: StreamFailure) -> None:
        """Ends one call by RST_STREAM. Charged like the peer's own: it, too, makes room for the next call at once."""
        self.reset_unopened(stream.stream_id, failure.code)
        self.drop(stream)

    def reset_unopened(self, stream_id: int, code: ErrorCode) -> None:
        """The same for what is not even a call."""
        self._counters["stream_reset"] += 1
        self.reset_ended(stream_id, code)
        self.abandon(stream_id)

    def reset_ended(self, stream_id: int, code: ErrorCode) -> None:
        """Tells the peer of a mistake on a stream that has ended already."""
        self._budget.charge("too_many_resets", self._timers.now)
        self._output.put(frames.rst_stream(stream_id, code))

    def drop(self, stream: Stream) -> None:
        """Forgets a call that can get no answer any more, and tells its handler."""
        stream.local_closed = True
        self.forget(stream)
        self.tell_gone(stream)

    def drop_all(self) -> None:
        """The same for all of them."""
        for stream in list(self.open.values()):
            # A hook may have ended it.
            if not stream.local_closed:
                self.drop(stream)

    def tell_gone(self, stream: Stream) -> None:
        """Calls the hook that fits: before or after the handler was done with the call."""
        was_finished, stream.is_finished = stream.is_finished, True
        if not stream.is_opened:
            return
        if was_finished:
            stream.undelivered()
        else:
            stream.cancelled()

    def forget(self, stream: Stream) -> None:
        """Keeps nothing of a call any more."""
        self.open.pop(stream.stream_id, None)
        if not stream.remote_closed:
            self.abandon(stream.stream_id)
        self.give_up_part(stream)
        self.give_up_header(stream)
        self.give_up_queue(stream)

    def give_up_part(self, stream: Stream) -> None:
        """What is not whole of a message never will be."""
        assembly = stream.assembly
        if assembly is not None and assembly.kept_bytes:
            self._kept.add(-assembly.kept_bytes)
            assembly.clear()
            self.incomplete.pop(stream.stream_id, None)

    def give_up_header(self, stream: Stream) -> None:
        """Large headers are counted no longer."""
        if stream.header_bytes:
            self._kept.add(-stream.header_bytes)
            stream.header_bytes = 0

    def give_up_queue(self, stream: Stream) -> None:
        """What was not sent of an answer never will be."""
        if stream.queue is not None:
            stream.queue = None
            stream.end_status = None
            self._kept.add(-stream.queued_bytes)
            stream.queued_bytes = 0
            self.blocked.pop(stream.stream_id, None)
            self.sendable.pop(stream.stream_id, None)

    # Streams that ended before their request did

    def abandon(self, stream_id: int) -> None:
        """Frames of it may still be on their way."""
        self._abandoned[stream_id] = False
        if len(self._abandoned) > _ABANDONED_MAX:
            del self._abandoned[next(iter(self._abandoned))]

    def on_peer_reset(self, stream_id: int) -> None:
        """The peer's RST_STREAM: nothing of it is on its way any more."""
        stream = self.open.get(stream_id)
        if stream is not None:
            self.drop(stream)
        if stream_id in self._abandoned:
            self._abandoned[stream_id] = True

    def on_stray_frame(self, stream_id: int, kind: str) -> None:
        """A frame of a request we know nothing of (any more). ConnectionFailure unless it may just have been late."""
        if stream_id > self.last_stream_id or stream_id & 1 == 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_unexpected", f"{kind} on idle stream {stream_id}")
        if stream_id not in self._abandoned:
            raise ConnectionFailure(ErrorCode.STREAM_CLOSED, "frame_unexpected", f"{kind} on closed stream {stream_id}")
        # The peer had not heard yet that we ended it; unless it ended it itself.
        if self._abandoned[stream_id]:
            self.reset_ended(stream_id, ErrorCode.STREAM_CLOSED)
