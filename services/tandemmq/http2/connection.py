"""One HTTP/2 connection of a gRPC server, without I/O: bytes and time in; calls and bytes out.

The owner feeds `receive` and `on_time`, writes what `take_output` gives, and closes the socket once `is_closed` and all
is written. `on_output` is called when there is something to take and there was nothing before, so that the answers of
many calls go out in one write. What may wait a little for others to go with calls `on_waiting_output` instead.

Requests reach the owner through the hooks of `Stream`, from inside `receive` or `on_time`; answers may come at once or
later. Nothing here waits, and everything kept is bounded by `Limits`.

A connection has these parts; each uses only those above it:

    Timers          its clock, what it waits for and since when
    KeptBytes       memory it takes for its peer
    IdleBudget      frames that bring nothing: how many the peer may send
    Output          bytes for the socket, and the calls whose last are among them
    Calls           the calls in progress, and ends without an answer
    Answers         what calls are sent, and the peer's windows for it
    Requests        what calls send: heads (HeaderBlock), messages (MessageAssembly), our windows for them
    Connection      frames out of bytes, the frames of no call, time, and the connection's own end

Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK) and gRPC's "gRPC over HTTP2" document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Final

from mypy_extensions import i64

from tandemmq.http2 import frames
from tandemmq.http2.calls import Answers, Calls
from tandemmq.http2.errors import ConnectionFailure, ErrorCode, Limits, StreamFailure, Usage
from tandemmq.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEADLINE_EXCEEDED,
    FRAME_HEAD_BYTES,
    HEADERS,
    PREFACE,
    RESOURCE_EXHAUSTED,
    U32,
    RequestShape,
)
from tandemmq.http2.hpack import Header, HeaderBlockError
from tandemmq.http2.output import IdleBudget, Output
from tandemmq.http2.requests import Requests
from tandemmq.http2.stream import KeptBytes, Stream, StreamMaker, Timers

# Settings that one SETTINGS frame may make us walk through.
_SETTINGS_PER_CHARGE: Final = 32
# So much of an unfinished frame ends no connection.
_UNFINISHED_FREE_BYTES: Final = 1_024
_KEEPALIVE_PING: Final = b"mq-alive"
_DRAIN_PING: Final = b"mq-drain"
_READ_PING: Final = b"mq-read?"
_STREAM_ID_MASK: Final = 0x7FFFFFFF


class Connection:
    """See the module's docstring. Times are seconds on any monotonic clock; all methods belong to one thread."""

    def __init__(
        self,
        new_stream: Callable[[Connection, int, list[Header], RequestShape], Stream],
        *,
        limits: Limits,
        now: float,
        peer: str = "",
        usage: Usage | None = None,
        counters: Counter[str] | None = None,
        on_output: Callable[[], None] = lambda: None,
        on_waiting_output: Callable[[], None] | None = None,
    ) -> None:
        """`new_stream` makes the owner's stream as `Stream` is made; `usage` and `counters` may be shared."""
        self.peer = peer
        self.limits = limits
        self.usage = usage if usage is not None else Usage()
        self.counters = counters if counters is not None else Counter()
        self.is_closed = False
        self.is_broken = False
        """It ends out of order, so that the peer may not have read what was written last. The owner knows it, too."""
        self.has_more = False
        """`receive` stopped before the end of what it was given; called with nothing it goes on."""
        self._timers = Timers(limits, now)
        self._kept = KeptBytes(limits, self.usage, self)
        self._budget = IdleBudget(limits, now)
        self._output = Output(on_output, on_waiting_output or on_output)
        self._calls = Calls(
            usage=self.usage,
            counters=self.counters,
            kept=self._kept,
            budget=self._budget,
            timers=self._timers,
            output=self._output,
        )
        self.answers = Answers(
            limits=limits,
            counters=self.counters,
            kept=self._kept,
            budget=self._budget,
            timers=self._timers,
            output=self._output,
            calls=self._calls,
        )
        """What streams send through."""
        self._unparsed = b""
        self._needs_preface = True
        self._needs_settings = True
        self._socket_bytes = 0  # in the socket's buffer when it was found full
        self._unfinished_bytes = 0  # of a frame and a header block that are not whole
        self._is_draining = False
        self._requests = Requests(
            self,
            new_stream if isinstance(new_stream, StreamMaker) else _OtherMaker(new_stream),
            limits=limits,
            counters=self.counters,
            kept=self._kept,
            budget=self._budget,
            timers=self._timers,
            output=self._output,
            calls=self._calls,
            answers=self.answers,
        )
        self._greet()

    def _greet(self) -> None:
        limits = self.limits
        self._output.put(
            frames.settings(
                {
                    frames.SETTINGS_MAX_CONCURRENT_STREAMS: limits.concurrent_streams,
                    frames.SETTINGS_INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                    frames.SETTINGS_MAX_FRAME_SIZE: limits.frame_bytes,
                    frames.SETTINGS_MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
                }
            )
        )
        self._output.put(frames.window_update(0, limits.connection_window_bytes - frames.DEFAULT_WINDOW_BYTES))

    @property
    def now(self) -> float:
        """When the owner spoke to the connection last."""
        return self._timers.now

    @property
    def open_streams(self) -> int:
        return len(self._calls.open)

    @property
    def buffered_bytes(self) -> int:
        """Unfinished requests and unsent responses kept now."""
        return self._kept.count + self._unfinished_bytes

    # Input

    def receive(self, data: bytes, now: float, clock: Callable[[], float] | None = None, stop_at: float = inf) -> None:
        """The next bytes of the peer, cut anywhere. With a clock, no frame is begun after `stop_at`: see `has_more`."""
        self.has_more = False
        if self.is_closed:
            return
        timers = self._timers
        timers.heard(now)
        if self._unparsed:
            data = self._unparsed + data
        calls = self._calls
        requests = self._requests
        limits = self.limits
        calls_max = len(calls.open) + limits.server_streams - self.usage.streams
        if calls_max < limits.concurrent_streams:
            calls_max = self._share_of_calls(calls_max)
        else:
            calls_max = limits.concurrent_streams
        requests.calls_max = calls_max
        try:
            rest = self._unparsed = self._parse(data, clock, stop_at)
        except ConnectionFailure as failure:
            self._fail(failure)
            return
        except HeaderBlockError as error:
            self._fail(ConnectionFailure(ErrorCode.COMPRESSION_ERROR, "header_block_undecodable", str(error)))
            return
        is_in_block = requests.block.is_open
        if rest or is_in_block:
            if (not is_in_block and len(rest) < len(data)) or timers.unfinished_since == inf:
                timers.unfinished_since = now
            self._keep_unfinished(len(rest) + (requests.block.size if is_in_block else 0))
        elif timers.unfinished_since != inf:
            timers.unfinished_since = inf
            self._keep_unfinished(0)
        calls.count()

    def _share_of_calls(self, calls_max: int) -> int:
        """How many calls this connection may have where all together may have no more than `calls_max` of them here."""
        judge = self.usage.calls_left
        if judge is not None and self.usage.streams < 2 * self.limits.server_streams:
            calls_max = max(calls_max, len(self._calls.open) + judge(self))
        return min(calls_max, self.limits.concurrent_streams)

    def _keep_unfinished(self, size: int) -> None:
        """What came of a frame or a header block that is not whole: of very many connections it is much."""
        if size == self._unfinished_bytes:
            return
        # Of this connection's own limit it is no part: how its bytes are cut on their way must not change an answer.
        usage, limit = self.usage, self.limits.server_buffer_bytes
        usage.buffered_bytes += size - self._unfinished_bytes
        usage.unfinished_bytes += size - self._unfinished_bytes
        self._unfinished_bytes = size
        # Where it is something else that fills the memory, no connection ends for it, with all of its calls; nor for
        # whole frames, which only wait for their turn.
        is_much = usage.buffered_bytes > limit and usage.unfinished_bytes > limit // 2
        if is_much and size > _UNFINISHED_FREE_BYTES and not self.has_more and self._kept.is_greedy:
            self._fail(
                ConnectionFailure(
                    ErrorCode.ENHANCE_YOUR_CALM, "buffers_full", "the server keeps too many unfinished requests"
                )
            )

    def _parse(self, data: bytes, clock: Callable[[], float] | None, stop_at: float) -> bytes:
        """Handles the whole frames in `data`, if there is time for them, and gives the rest."""
        pos: i64 = 0
        end: i64 = len(data)
        if self._needs_preface:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "preface_invalid", "no HTTP/2 connection preface")
            if end < len(PREFACE):
                return data
            self._needs_preface = False
            pos = len(PREFACE)
        requests = self._requests
        block = requests.block
        frame_bytes_max: i64 = self.limits.frame_bytes
        while end - pos >= FRAME_HEAD_BYTES:
            # As FRAME_HEAD has it; a call of Struct's would take longer.
            length: i64 = data[pos] << 16 | data[pos + 1] << 8 | data[pos + 2]
            kind: i64 = data[pos + 3]
            flags: i64 = data[pos + 4]
            stream_id: i64 = (data[pos + 5] & 0x7F) << 24 | data[pos + 6] << 16 | data[pos + 7] << 8 | data[pos + 8]
            start = pos + FRAME_HEAD_BYTES
            stop = start + length
            if length > frame_bytes_max:
                raise ConnectionFailure(
                    ErrorCode.FRAME_SIZE_ERROR,
                    "frame_too_large",
                    f"a frame above {frame_bytes_max} bytes",
                )
            if stop > end:
                break
            pos = stop
            if self._needs_settings:
                self._check_first_frame(kind, flags)
            if block.is_open and (kind != CONTINUATION or stream_id != block.stream_id):
                raise ConnectionFailure(
                    ErrorCode.PROTOCOL_ERROR, "frame_unexpected", "another frame inside a header block"
                )
            if kind == DATA:
                requests.on_data(data, start, stop, flags, stream_id)
            elif kind == HEADERS:
                requests.on_headers(data, start, stop, flags, stream_id)
            elif kind == CONTINUATION:
                requests.on_continuation(data, start, stop, flags)
            elif kind < CONTINUATION:
                self._on_small_frame(kind, flags, stream_id, data[start:stop])
            else:
                self._charge("too_many_unknown_frames")
            if self.is_closed:
                return b""
            if clock is not None and clock() >= stop_at and pos < end:
                self.has_more = True
                break
        requests.acknowledge()
        return data[pos:] if pos < end else b""

    def _check_first_frame(self, kind: int, flags: int) -> None:
        if kind != frames.SETTINGS or flags & ACK:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "preface_invalid", "the first frame is not SETTINGS")
        self._needs_settings = False
        self._timers.preface_ends_at = inf

    def keep(self, stream: Stream, size: int) -> None:
        """A stream's owner keeps so much of a request that has not ended, or, below 0, less. It may end the call."""
        stream.header_bytes += size
        self._kept.add(size)
        if size > 0 and self._kept.is_over:
            self.counters["buffers_full"] += 1
            self.answers.refuse(stream, RESOURCE_EXHAUSTED, "the server keeps too many unfinished requests")

    # Frames beside the requests' own

    def _on_small_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        match kind:
            case frames.PRIORITY:
                self._on_priority(stream_id, payload)
            case frames.RST_STREAM:
                self._on_rst_stream(stream_id, payload)
            case frames.SETTINGS:
                self._on_settings(flags, stream_id, payload)
            case frames.PUSH_PROMISE:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_unexpected", "PUSH_PROMISE from a client")
            case frames.PING:
                self._on_ping(flags, stream_id, payload)
            case frames.GOAWAY:
                self._on_goaway(stream_id, payload)
            case frames.WINDOW_UPDATE:
                self._on_window_update(stream_id, payload)

    def _on_priority(self, stream_id: int, payload: bytes) -> None:
        self._charge("too_many_priority_frames")
        if stream_id == 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", "PRIORITY on stream 0")
        failure = None
        if len(payload) != 5:
            failure = StreamFailure(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong length")
        elif U32.unpack_from(payload)[0] & _STREAM_ID_MASK == stream_id:
            failure = StreamFailure(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
        if failure is not None:
            stream = self._calls.open.get(stream_id)
            if stream is not None:
                self._calls.reset(stream, failure)
            else:
                self._output.put(frames.rst_stream(stream_id, failure.code))

    def _on_rst_stream(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame_malformed", "RST_STREAM of a wrong length")
        if stream_id == 0 or stream_id > self._calls.last_stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_unexpected", f"RST_STREAM on stream {stream_id}")
        # Charged whether or not the stream is still open: opening and resetting is the cheapest attack there is.
        self._charge("too_many_resets")
        self._calls.on_peer_reset(stream_id)
        if U32.unpack_from(payload)[0] != ErrorCode.NO_ERROR and (unread := self._output.take_unread(stream_id)):
            unread()

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", "SETTINGS on a stream")
        if (flags & ACK and payload) or len(payload) % frames.SETTING.size:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame_malformed", "SETTINGS of a wrong length")
        self._charge("too_many_settings", 1 + len(payload) // (frames.SETTING.size * _SETTINGS_PER_CHARGE))
        if not flags & ACK:
            self.answers.on_settings(payload)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame_malformed", "PING of a wrong length")
        self._charge("too_many_pings")
        if not flags & ACK:
            self._output.put_waiting(frames.frame(frames.PING, ACK, 0, payload))
        elif payload == _DRAIN_PING:
            self._final_goaway()
        elif payload == _READ_PING:
            self._output.take_asked()

    def _on_goaway(self, stream_id: int, payload: bytes) -> None:
        if stream_id != 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame_malformed", "GOAWAY of a wrong length")
        self._charge("too_many_goaways")
        # The client opens no more calls; those in progress end as usual and it closes the connection.

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame_malformed", "WINDOW_UPDATE of a wrong length")
        self._charge("too_many_window_updates")
        increment = U32.unpack_from(payload)[0] & _STREAM_ID_MASK
        calls = self._calls
        if stream_id == 0:
            self.answers.open_window(increment)
        elif stream_id > calls.last_stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_unexpected", "WINDOW_UPDATE on an idle stream")
        elif (stream := calls.open.get(stream_id)) is not None:
            self.answers.open_stream_window(stream, increment)
        elif increment == 0:
            calls.reset_ended(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _charge(self, counter: str, cost: int = 1) -> None:
        self._budget.charge(counter, self._timers.now, cost)

    # Output

    def take_output(self) -> bytes:
        """The bytes to write next; b"" when there are none now. Call until then, unless the socket is full."""
        self.answers.make_room()
        data = self._output.take()
        if data:
            self._calls.count()
        return data

    def pause_output(self, now: float, unwritten_bytes: int = 0) -> None:
        """The socket's buffer is full: no more DATA until `resume_output`, and nothing is read until then."""
        self._timers.now = now
        self._keep_in_socket(unwritten_bytes)
        self.answers.pause()

    def resume_output(self, now: float) -> None:
        """The socket takes bytes again."""
        self._was_not_read(now)
        self._keep_in_socket(0)
        self.answers.resume()

    def _was_not_read(self, now: float) -> None:
        """Whatever was late, it may have been here."""
        timers = self._timers
        timers.heard(now)
        if timers.unfinished_since != inf:
            timers.unfinished_since = now

    def output_written(self, unwritten_bytes: int = 0) -> None:
        """All that was taken, but for the last `unwritten_bytes`, is written to the socket."""
        self._output.written(unwritten_bytes)

    def lost(self) -> None:
        """The socket is closed, by whomever."""
        self.is_closed = True
        self._calls.drop_all()
        # Hooks may have ended other calls of this connection meanwhile: what they had to say is dropped here.
        unconfirmed = self._output.lost()
        self._keep_in_socket(0)
        self._keep_unfinished(0)
        self._calls.count()
        for stream in unconfirmed:
            stream.undelivered()
        if self.is_broken:
            for unread in self._output.take_all_unread(self._timers.received_at):
                unread()

    def _keep_in_socket(self, size: int) -> None:
        self._kept.add(size - self._socket_bytes)
        self._socket_bytes = size

    # Time

    def next_deadline(self) -> float:
        """When `on_time` has to be called next; it may move later without notice."""
        return self._timers.next(self._calls.oldest_part_since, is_paused=self.answers.is_paused)

    def on_time(self, now: float, *, is_read_late: bool = False) -> None:
        """Does what is due. `is_read_late`: the owner has, or may have, bytes that it did not come to yet."""
        if self.is_closed:
            return
        timers = self._timers
        timers.now = now
        try:
            self.answers.judge_stall()
            if now >= timers.stalled_at + self.limits.write_stall_s:
                self.answers.end_stall()
            if is_read_late:
                self._was_not_read(now)
            elif not self.answers.is_paused:
                self._judge_input(now)
        except ConnectionFailure as failure:
            self._fail(failure)
            return
        if now >= timers.drain_ends_at:
            self._final_goaway()
        if now >= timers.calls_end_at:
            self._expire_calls(now)

    def _judge_input(self, now: float) -> None:
        """Does what is due because bytes did not come."""
        limits = self.limits
        timers = self._timers
        if now >= timers.preface_ends_at:
            raise ConnectionFailure(ErrorCode.SETTINGS_TIMEOUT, "preface_timeout", "no SETTINGS came in time")
        if now >= timers.pinged_at + limits.keepalive_timeout_s:
            raise ConnectionFailure(ErrorCode.NO_ERROR, "keepalive_timeout", "no answer to a keepalive PING")
        if now >= timers.unfinished_since + limits.frame_timeout_s:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "frame_timeout", "a frame or block took too long")
        calls = self._calls
        while now >= calls.oldest_part_since + limits.message_timeout_s:
            self.counters["message_timeout"] += 1
            stream = next(iter(calls.incomplete.values()))
            self.answers.refuse(stream, DEADLINE_EXCEEDED, "the request's message took too long")
        if timers.pinged_at == inf and now >= timers.received_at + limits.keepalive_s:
            timers.pinged_at = now
            self._output.put(frames.frame(frames.PING, 0, 0, _KEEPALIVE_PING))

    def _expire_calls(self, now: float) -> None:
        streams = self._calls.open
        for stream in [stream for stream in streams.values() if stream.deadline <= now]:
            # A hook may have ended it.
            if not stream.local_closed:
                self.answers.refuse(stream, DEADLINE_EXCEEDED, "deadline exceeded")
        # Scanned at most every 10 ms, however the deadlines of thousands of calls lie.
        next_deadline = min((stream.deadline for stream in streams.values()), default=inf)
        self._timers.calls_end_at = max(next_deadline, now + 0.01)

    # The connection's end

    def drain(self, now: float) -> None:
        """Asks the peer to open no more calls; the connection closes when the last one has ended."""
        if self._is_draining or self.is_closed:
            return
        self._is_draining = True
        self._timers.now = now
        self._timers.drain_ends_at = now + self.limits.drain_grace_s
        # Calls already on their way are still taken: the peer's answer to the PING comes behind them.
        self._output.put(frames.goaway(frames.STREAM_ID_MAX, ErrorCode.NO_ERROR, "the server is stopping"))
        self._output.put(frames.frame(frames.PING, 0, 0, _DRAIN_PING))

    def ask_if_read(self) -> bool:
        """Asks a peer that may not have read all answers; `has_read` tells. False: there is nothing to ask about."""
        if self.is_closed:
            return False
        is_asked = self._output.ask_if_read()
        if is_asked:
            # A peer answers behind all that it read before.
            self._output.put(frames.frame(frames.PING, 0, 0, _READ_PING))
        return is_asked or not self.has_read

    @property
    def has_read(self) -> bool:
        """The peer has all that it was asked about, or the connection has ended. What waits for the peer's windows it
        has not."""
        return self.is_closed or not (
            self._output.is_asked or any(stream.unread is not None for stream in self._calls.blocked.values())
        )

    def tell_unread(self) -> None:
        """The peer did not answer in time: tells the owners of the answers that it may not have read."""
        told = self._output.take_asked()
        for stream in self._calls.blocked.values():
            if stream.unread is not None:
                told.append(stream.unread)
                stream.unread = None
        for unread in told:
            unread()

    @property
    def is_drained(self) -> bool:
        """The final GOAWAY is out and no call is left."""
        return self._is_draining and self._timers.drain_ends_at == inf and not self._calls.open

    def _final_goaway(self) -> None:
        if self._timers.drain_ends_at != inf:
            self._timers.drain_ends_at = inf
            last_stream_id = self._calls.last_stream_id
            self._requests.refuses_above = last_stream_id
            self._output.put(frames.goaway(last_stream_id, ErrorCode.NO_ERROR, "the server is stopping"))

    def _fail(self, failure: ConnectionFailure) -> None:
        """Ends the connection; what it owes is given up."""
        self.counters[failure.counter] += 1
        self._calls.drop_all()
        self._unparsed = b""
        self._requests.block.clear()
        self._keep_unfinished(0)
        self._output.put(frames.goaway(self._calls.last_stream_id, failure.code, failure.detail))
        self.is_closed = self.is_broken = True


class _OtherMaker(StreamMaker):
    """A `StreamMaker` of what only is called like one."""

    def __init__(self, new_stream: Callable[[Connection, int, list[Header], RequestShape], Stream]) -> None:
        self._new_stream = new_stream

    def new_stream(self, connection: Connection, stream_id: int, headers: list[Header], shape: RequestShape) -> Stream:
        return self._new_stream(connection, stream_id, headers, shape)
