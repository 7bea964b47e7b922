"""One gRPC call as the server sees it, with its message under way; and a connection's memory and timers.

The owner subclasses `Stream` and overrides its hooks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from struct import Struct
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from tandemmq.http2.errors import Limits, Usage

if TYPE_CHECKING:
    from tandemmq.http2.connection import Connection
    from tandemmq.http2.frames import RequestShape
    from tandemmq.http2.hpack import Header

# gRPC's prefix of a message: compressed or not, length.
MESSAGE_HEAD: Final = Struct(">BI")
MESSAGE_HEAD_BYTES: Final = 5


@mypyc_attr(allow_interpreted_subclasses=True)  # `tools/compile.py` may have made this an extension type
class Stream:
    """One call of one connection.

    Hooks, each called on the connection's thread, in this order: `opened`, `message` for each request message,
    `half_closed` (or `request` for both), and at most one of `cancelled` and `undelivered`. After `end` only
    `undelivered` may follow.
    """

    # What a short unary call never changes stays in the class: such a call is made and dropped 30,000 times a second.

    # Read by the owner.
    deadline = inf
    """When the caller gives up, on the connection's clock in s."""
    is_finished = False
    """`end` was called, or the call is over."""
    confirms = False
    """Set by the owner: `undelivered` is wanted for what was handed to the socket's buffer and not written."""
    unread: Callable[[], None] | None = None
    """Set by the owner of one that `confirms`: called if the peer may not have read the answer, though it was written:
    soon after it the connection broke, or the peer took the call back, or did not say in time that it has read it. Does
    nothing to this connection."""
    is_passed_on = False
    """Set by the owner beside `unread`: the peer passes the answer on, so that it has read it says nothing."""

    # Kept by the connection.
    is_crowded_out = False
    """Its answer had no room beside what is kept for other calls, and would have had some alone; read by the owner when
    he hears that it is gone."""
    is_opened = False
    remote_closed = False
    local_closed = False
    headers_sent = False
    window_used = 0  # sent minus what the peer's WINDOW_UPDATEs for this stream gave
    unacknowledged = 0  # received and not yet given back by our WINDOW_UPDATE
    header_bytes = 0  # memory of unusually large headers, and of what the owner keeps
    assembly: MessageAssembly | None = None  # request messages that do not come in one frame; None: none did yet
    content_length = -1  # what is still to come of it; -1: it was not given
    queue: deque[memoryview] | None = None  # encoded messages that wait for the peer's windows
    queued_bytes = 0
    end_status: tuple[int, str] | None = None  # status to send behind the queue

    def __init__(self, connection: Connection, stream_id: int, headers: list[Header], shape: RequestShape) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self._headers = headers
        self._shape = shape

    # Hooks

    def opened(self) -> None:
        """The call's headers are here."""

    def message(self, data: bytes, /) -> None:
        """The next request message, without gRPC's prefix."""

    def half_closed(self) -> None:
        """The caller sends no more."""

    def request(self, data: bytes, /) -> None:
        """The only message and the end of the caller's side at once, the usual request; else the two hooks above."""
        self.message(data)
        if not self.is_finished:
            self.half_closed()

    def cancelled(self) -> None:
        """The caller is gone, cancelled, broke the protocol or ran into its deadline, before all was handed over."""

    def undelivered(self) -> None:
        """The connection broke before the last of this call, which was handed over, was written to the socket."""

    # What the owner does

    @property
    def headers(self) -> dict[str, str]:
        """Names in lower case, pseudo headers included; of a name that came twice the last value."""
        return {header.name: header.value for header in self._headers}

    @property
    def path(self) -> str:
        """`/package.Service/Method`."""
        return self._headers[self._shape.path].value

    def header(self, name: str, default: str = "") -> str:
        """One of the headers, without making a map of them."""
        place = self._shape.places.get(name)
        return default if place is None else self._headers[place].value

    @property
    def traceparent(self) -> str:
        """The header of that name; "" for none. Who traces asks for it in every call, nearly always in vain."""
        shape = self._shape
        return "" if shape.traceparent < 0 else self._headers[shape.traceparent].value

    @property
    def peer(self) -> str:
        """Address of the caller, for example `ipv4:10.0.0.7:51234`."""
        return self.connection.peer

    def send_bytes(self, data: bytes) -> None:
        if not self.is_finished:
            self.connection.answers.send_message(self, data)

    def send_all_bytes(self, messages: list[bytes]) -> None:
        """Response messages, in their order."""
        if not self.is_finished:
            self.connection.answers.send_messages(self, messages)

    def end(self, status: int = 0, detail: str = "") -> None:
        """Ends the call behind what was sent. `status` is gRPC's number."""
        if not self.is_finished:
            self.is_finished = True
            self.connection.answers.send_end(self, status, detail)

    def respond(self, data: bytes) -> None:
        """`send_bytes` and `end` with OK in one step, for the one response of a unary call."""
        if not self.is_finished:
            self.is_finished = True
            self.connection.answers.send_response(self, data)


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamMaker:
    """Makes an owner's streams. A function serves as well, and takes longer to call."""

    def new_stream(self, connection: Connection, stream_id: int, headers: list[Header], shape: RequestShape) -> Stream:
        """A call of this connection; the arguments are those of `Stream`."""
        raise NotImplementedError

    def __call__(self, connection: Connection, stream_id: int, headers: list[Header], shape: RequestShape) -> Stream:
        return self.new_stream(connection, stream_id, headers, shape)


# What one connection keeps in memory for its peer.


class KeptBytes:
    """Bytes of unfinished requests, large headers and unsent answers; counted among all connections' as well.

    Nothing is refused here. The caller asks `is_over` when it keeps more, and ends the call that asked for too much.
    """

    def __init__(self, limits: Limits, usage: Usage, connection: Connection | None = None) -> None:
        self.count = 0
        self._limits = limits
        self._usage = usage
        self._connection = connection

    def add(self, size: int) -> None:
        """So many more, or, below 0, fewer."""
        self.count += size
        self._usage.buffered_bytes += size

    @property
    def is_over(self) -> bool:
        """This connection, or all together, keep more than they may."""
        return self.count > self._limits.connection_buffer_bytes or self.are_all_over

    @property
    def are_all_over(self) -> bool:
        """All connections together keep more than they may, and this one's address more than its share of that."""
        total = self._usage.buffered_bytes
        limit = self._limits.server_buffer_bytes
        return total > limit and (total > 2 * limit or self.is_greedy)

    @property
    def is_greedy(self) -> bool:
        """Of all that keep something this one's address has more than its share."""
        connection, judge = self._connection, self._usage.is_greedy
        return connection is None or judge is None or judge(connection)


# Request messages out of DATA that is cut anywhere.

# A piece of an unfinished message that is smaller than this takes in the next one.
_PIECE_BYTES_MIN: Final = 1_024


class MessageAssembly:
    """The message of one call that is not whole yet; its owner takes each prefix, judges it, and takes what is behind.

    Before each message there is gRPC's prefix: compressed or not (u8), and the length of what follows (u32). A
    message is copied twice at most: out of its reads, and together.
    """

    def __init__(self) -> None:
        self.kept_bytes: i64 = 0
        """Bytes of the unfinished message and its prefix."""
        self.since = 0.0
        """When its first byte came; set by the owner, who has the clock."""
        self.is_compressed = False
        """With `message_bytes`, what the prefix says."""
        self.message_bytes = 0
        self.missing_bytes: i64 = -1
        """So many are still to come; -1: the prefix is not whole."""
        self._prefix = b""
        self._pieces: list[bytes] = []

    @property
    def piece_count(self) -> int:
        """The objects that the unfinished message is kept in."""
        return len(self._pieces)

    def take_prefix(self, data: bytes, at: i64, stop: i64) -> i64:
        """Takes the prefix, as far as it is in data[at:stop]; gives how many bytes that were."""
        end = at + MESSAGE_HEAD_BYTES - len(self._prefix)
        if end > stop:
            end = stop
        self._prefix += data[at:end]
        self.kept_bytes += end - at
        if len(self._prefix) == MESSAGE_HEAD_BYTES:
            compressed, length = MESSAGE_HEAD.unpack(self._prefix)
            self.is_compressed = compressed != 0
            self.message_bytes = length
            self.missing_bytes = length
        return end - at

    def take(self, data: bytes, at: i64, stop: i64) -> i64:
        """Takes the message behind a whole prefix, as far as it is in data[at:stop]; gives how many bytes that were."""
        end = at + self.missing_bytes
        if end > stop:
            end = stop
        if end > at:
            piece = data[at:end]
            pieces = self._pieces
            if pieces and len(pieces[-1]) < _PIECE_BYTES_MIN:
                # As one: as an object each, small ones would take many times the memory that they are counted with.
                pieces[-1] += piece
            else:
                pieces.append(piece)
            self.missing_bytes -= end - at
            self.kept_bytes += end - at
        return end - at

    def finish(self) -> bytes:
        """The message, which is complete; the next one may begin."""
        pieces = self._pieces
        message = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.clear()
        return message

    def clear(self) -> None:
        """Forgets what there is of a message."""
        self._pieces = []
        self._prefix = b""
        self.missing_bytes = -1
        self.kept_bytes = 0


# What a connection waits for, and since when.


class Timers:
    """One connection's clock and its deadlines, in seconds on the owner's clock; inf for what nobody waits for.

    The parts of a connection set them where they begin and end to wait; `Connection.on_time` does what is due.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self.now = now
        """When the owner spoke to the connection last."""
        self.received_at = now
        """When bytes came last, or could have come again."""
        self.pinged_at = inf
        """When a silent peer was asked whether it is there."""
        self.preface_ends_at = now + limits.preface_timeout_s
        """The peer's first SETTINGS have to be here by then."""
        self.unfinished_since = inf
        """When the frame or header block began that is not whole yet."""
        self.calls_end_at = inf
        """The first deadline of a call, or somewhat before it."""
        self.stalled_at = inf
        """When output began to wait for the peer."""
        self.drain_ends_at = inf
        """When the final GOAWAY goes out, if the peer does not answer the first."""
        self._limits = limits

    def heard(self, now: float) -> None:
        """Bytes came, or reading begins again: whatever was late until now, the peer is not to blame."""
        self.now = self.received_at = now
        self.pinged_at = inf

    def next(self, part_since: float, *, is_paused: bool) -> float:
        """When something is due next. `part_since`: when the oldest unfinished request message began; `is_paused`:
        nothing is read now.
        """
        limits = self._limits
        stall = self.stalled_at + limits.write_stall_s
        if is_paused:
            # Nothing is read, so nothing can be late but the reading of what we wrote.
            return _earlier(_earlier(stall, self.calls_end_at), self.drain_ends_at)
        deadline = self.pinged_at + limits.keepalive_timeout_s
        if deadline == inf:
            deadline = self.received_at + limits.keepalive_s
        deadline = _earlier(deadline, part_since + limits.message_timeout_s)
        deadline = _earlier(deadline, _earlier(stall, self.unfinished_since + limits.frame_timeout_s))
        deadline = _earlier(deadline, _earlier(self.calls_end_at, self.preface_ends_at))
        return _earlier(deadline, self.drain_ends_at)


def _earlier(one: float, other: float) -> float:
    # `min` would make objects of them, with every read.
    if one < other:
        return one
    return other
