"""What connections have to say: the bytes of one for its socket, in order, and whose turn it is to write.

`Output` holds a connection's bytes, and knows whom to tell if they never got there. `PendingOutput` notes which
connections have some and writes them at the end of the turn, so that all answers of a turn go out in one write each.
`IdleBudget` bounds what a peer may ask for with frames that bring nothing; answers refill it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from tandemmq.http2.errors import ConnectionFailure, ErrorCode, Limits

if TYPE_CHECKING:
    from tandemmq.http2.stream import Stream


# An answer that the peer may not have read: it is kept in mind for as long as official clients wait for one, until the
# peer is heard so much later; and no more of them than may be on their way.
_UNREAD_S: Final = 30.0
_UNREAD_MAX: Final = 1_000


class Output:
    """Bytes that wait to be taken, and the calls that want to hear if theirs were not written.

    `on_output` is called when there is something to take and there was nothing before; for what may wait a little for
    others to go with, `on_waiting_output` instead.
    """

    def __init__(self, on_output: Callable[[], None], on_waiting_output: Callable[[], None]) -> None:
        self.pieces: list[bytes | memoryview] = []
        """In order. A caller that adds to it without `put` calls `announce`."""
        self._on_output = on_output
        self._on_waiting_output = on_waiting_output
        # Nobody but `on_waiting_output` has been told of what is in it.
        self._waits = True
        # Ended calls that confirm: not yet taken; taken, with the output's length up to their end.
        self._unconfirmed: list[Stream] = []
        self._unwritten: deque[tuple[int, list[Stream]]] = deque()
        self._taken_bytes = 0
        # What to call for the answers that ended lately, when the peer was heard before, and whether the peer passes it
        # on, by stream.
        self._unread: OrderedDict[int, tuple[float, Callable[[], None], bool]] = OrderedDict()
        # Those of them that the peer was asked about, and has not answered yet.
        self._asked: list[int] = []

    def put(self, data: bytes | memoryview) -> None:
        self.announce()
        self.pieces.append(data)

    def put_waiting(self, data: bytes) -> None:
        """The next bytes, which need not be a write of their own."""
        if not self.pieces:
            self._on_waiting_output()
        self.pieces.append(data)

    def announce(self) -> None:
        """Tells the owner, unless that was done."""
        if self._waits:
            self._waits = False
            self._on_output()

    def confirm(self, stream: Stream, heard_at: float) -> None:
        """This call's last bytes were put; it wants to hear if they are lost. `heard_at`: when the peer was last."""
        self._unconfirmed.append(stream)
        if stream.unread is not None:
            self._forget_read(heard_at)
            if len(self._unread) == _UNREAD_MAX:
                self._unread.popitem(last=False)
            self._unread[stream.stream_id] = heard_at, stream.unread, stream.is_passed_on

    def _forget_read(self, heard_at: float) -> None:
        """A peer that spoke so long after an answer has read it."""
        unread = self._unread
        while unread and unread[next(iter(unread))][0] < heard_at - _UNREAD_S:
            unread.popitem(last=False)

    def take_unread(self, stream_id: int) -> Callable[[], None] | None:
        """The peer takes an ended call back: what is to be called if it was lately."""
        found = self._unread.pop(stream_id, None)
        return None if found is None else found[1]

    def ask_if_read(self) -> bool:
        """The peer is asked now whether it has read all that was put. False: there is nothing to ask about, or only
        what it passes on: that it has this says nothing."""
        self._asked = [stream_id for stream_id, (_, _, is_passed_on) in self._unread.items() if not is_passed_on]
        return bool(self._asked)

    @property
    def is_asked(self) -> bool:
        """The peer has not answered yet."""
        return bool(self._asked)

    def take_asked(self) -> list[Callable[[], None]]:
        """What the peer was asked about is kept in mind no longer: it has read it, or the caller tells all of these."""
        asked, self._asked = self._asked, []
        return [found[1] for stream_id in asked if (found := self._unread.pop(stream_id, None)) is not None]

    def take_all_unread(self, heard_at: float) -> list[Callable[[], None]]:
        """The same for all of them: the connection broke."""
        self._forget_read(heard_at)
        callbacks = [callback for _, callback, _ in self._unread.values()]
        self._unread.clear()
        self._asked.clear()
        return callbacks

    def take(self) -> bytes:
        """All of it; b"" when there is none."""
        pieces = self.pieces
        if not pieces:
            return b""
        self.pieces = []
        self._waits = True
        data = pieces[0] if len(pieces) == 1 and isinstance(pieces[0], bytes) else b"".join(pieces)
        self._taken_bytes += len(data)
        if self._unconfirmed:
            self._unwritten.append((self._taken_bytes, self._unconfirmed))
            self._unconfirmed = []
        return data

    def written(self, unwritten_bytes: int) -> None:
        """All that was taken, but for the last `unwritten_bytes`, is written to the socket.

        Those calls are delivered as far as anybody here can know.
        """
        unwritten = self._unwritten
        if unwritten:
            written = self._taken_bytes - unwritten_bytes
            while unwritten and unwritten[0][0] <= written:
                unwritten.popleft()

    def lost(self) -> list[Stream]:
        """Nothing more will be written. Gives the calls whose end was not."""
        self.pieces.clear()
        unconfirmed = [stream for _, streams in self._unwritten for stream in streams] + self._unconfirmed
        self._unwritten.clear()
        self._unconfirmed = []
        return unconfirmed


# Connections that have something to write. Each writes once, at the end of a turn of the loop.

# What may wait for an answer to go with, waits no longer. A client that estimates its bandwidth asks by PING with every
# request, and its round trip is mostly over by then.
_WAITING_OUTPUT_S: Final = 0.005


class Writer(Protocol):
    def write_out(self) -> None:
        """Writes the connection's output as far as the socket takes it; closes behind the last words."""

    def fail(self, error: Exception, /) -> None:
        """Ends the connection, and nobody else's, for what went wrong in it."""


class PendingOutput:
    """See the module's docstring. Event loop only."""

    def __init__(self, write_soon: Callable[[Callable[[], None]], object] | None) -> None:
        """`write_soon` calls back at the end of a turn of the loop; `call_soon` of the loop where there is none."""
        self._write_soon = write_soon
        self._dirty: list[Writer] = []
        self._is_scheduled = False
        # Those whose output may wait; empty: no timer is set for them.
        self._waiting: set[Writer] = set()

    @property
    def is_waiting(self) -> bool:
        """Somebody has output that waits for an answer to go with."""
        return bool(self._waiting)

    def add(self, writer: Writer) -> None:
        """A connection has output; it is written at the end of this turn of the loop."""
        self._dirty.append(writer)
        if not self._is_scheduled:
            self._is_scheduled = True
            (self._write_soon or asyncio.get_running_loop().call_soon)(self._end_of_turn)

    def add_waiting(self, writer: Writer) -> None:
        """A connection has output that is not worth a write: it goes with the next answer, or soon if there is none."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(_WAITING_OUTPUT_S, self._write_waiting)
        self._waiting.add(writer)

    def flush(self) -> None:
        """Writes what every connection has to say, now rather than at the end of this turn of the loop."""
        dirty, self._dirty = self._dirty, []
        for writer in dirty:
            try:
                writer.write_out()
            except Exception as error:
                writer.fail(error)

    def _end_of_turn(self) -> None:
        self._is_scheduled = False
        self.flush()

    def _write_waiting(self) -> None:
        self._dirty += self._waiting
        self._waiting.clear()
        self.flush()


# How many frames that bring nothing a peer may send: the bound on floods of every kind, and on rapid resets.


class IdleBudget:
    """A budget of idle frames: full at first, earned back by time and by answers, never above `Limits.idle_burst`.

    It is only reckoned up when it is used up, so that a charge is a subtraction.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        """`now`, as everywhere here, in seconds on any monotonic clock."""
        self.answers = 0
        """DATA frames sent, and messages that share one with others."""
        self._limits = limits
        self._left = limits.idle_burst
        self._refilled_at = now
        self._refilled_at_answers = 0

    def charge(self, counter: str, now: float, cost: int = 1) -> None:
        """Takes one frame, or as much work as `cost` of them. ConnectionFailure, by that name, if nothing is left."""
        self._left -= cost
        if self._left >= 0:
            return
        limits = self._limits
        earned = int((now - self._refilled_at) * limits.idle_per_s)
        earned += (self.answers - self._refilled_at_answers) * limits.idle_per_answer
        self._left = min(limits.idle_burst, self._left + earned)
        self._refilled_at = now
        self._refilled_at_answers = self.answers
        if self._left < 0:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, counter, counter.replace("_", " "))
