"""The calls of one connection: their ends, and what is sent to them."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from math import inf
from struct import Struct
from typing import TYPE_CHECKING, Final

from tandemmq.http2 import frames
from tandemmq.http2.errors import ConnectionFailure, ErrorCode, Limits, StreamFailure, Usage
from tandemmq.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    OK,
    RESOURCE_EXHAUSTED,
    STREAM_ID_BYTES,
    WINDOW_MAX,
    RequestRefused,
    status_fields,
)
from tandemmq.http2.hpack import HeaderEncoder
from tandemmq.http2.stream import MESSAGE_HEAD, MESSAGE_HEAD_BYTES

if TYPE_CHECKING:
    from tandemmq.http2.output import IdleBudget, Output
    from tandemmq.http2.stream import KeptBytes, Stream, Timers


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


# What a connection sends to its calls: messages and statuses, as far and as fast as the peer's windows allow.
#
# A sender has two windows in HTTP/2, one of each stream and one of the connection (RFC 9113, 5.2): DATA uses them up,
# the peer's WINDOW_UPDATEs open them again. What finds no room waits in its call's queue. No peer has to open them, nor
# to read: what waits is counted, bounded by `Limits`, and given up when too little of it passes for too long.

# Between two times of `take`: what a socket takes at once, and what other streams have to wait for.
_ROOM_BYTES: Final = 1 << 20
# A part of a message smaller than this is no answer that would pay for the frames that asked for it.
_ANSWER_BYTES_MIN: Final = 512
# Answers waiting for a window that one SETTINGS may make us walk through.
_STREAMS_PER_CHARGE: Final = 64
_SLOW_READER: Final = "the caller reads more slowly than messages arrive"

_DATA_HEAD: Final = Struct(">IBIBI")  # a DATA frame's head and the message's prefix
# What is before the stream's id in HEADERS with a block of two bytes, and in trailers of one.
_HEADERS_HEAD: Final = FRAME_HEAD.pack(2 << 8 | HEADERS, END_HEADERS, 0)[:-STREAM_ID_BYTES]
_TRAILERS_HEAD: Final = FRAME_HEAD.pack(1 << 8 | HEADERS, END_HEADERS | END_STREAM, 0)[:-STREAM_ID_BYTES]


class Answers:
    """See the module's docstring. Streams call the `send_` methods; the rest is the connection's."""

    def __init__(
        self,
        *,
        limits: Limits,
        counters: Counter[str],
        kept: KeptBytes,
        budget: IdleBudget,
        timers: Timers,
        output: Output,
        calls: Calls,
    ) -> None:
        self.is_paused = False
        """The socket takes nothing now; set by `pause` and `resume`."""
        self._limits = limits
        self._counters = counters
        self._kept = kept
        self._budget = budget
        self._timers = timers
        self._output = output
        self._calls = calls
        self._encoder = HeaderEncoder()
        # Heads of a response of that size, prefix included: those of a method are often of the same.
        self._response_size = -1
        self._response_data_head = b""
        self._response_message_head = b""
        self._peer_frame_bytes = frames.DEFAULT_FRAME_BYTES
        # What each stream's window is at first; `Stream.window_used` is to be taken from it.
        self._peer_stream_window = frames.DEFAULT_WINDOW_BYTES
        self._send_window = frames.DEFAULT_WINDOW_BYTES
        # Queued DATA that still fits into this `take`.
        self._room = _ROOM_BYTES
        self._drained_bytes = 0
        # Queued bytes and answers sent when output began to wait for the peer.
        self._stalled_at_bytes = 0
        self._stalled_at_answers = 0

    # The usual ways

    def send_response(self, stream: Stream, data: bytes) -> None:
        """The one message of a unary call and its OK; in one piece when the peer's windows allow."""
        size = len(data) + MESSAGE_HEAD_BYTES
        if (
            size > self._send_window
            or size > self._peer_stream_window - stream.window_used
            or size > self._peer_frame_bytes
            or self.is_paused
            or stream.queue is not None
            or stream.headers_sent
            or stream.local_closed
        ):
            self.send_message(stream, data)
            self.send_end(stream, 0, "")
            return
        self._send_window -= size
        self._budget.answers += 1
        output = self._output
        output.announce()
        if size != self._response_size:
            self._response_size = size
            self._response_data_head = FRAME_HEAD.pack(size << 8 | DATA, 0, 0)[:-STREAM_ID_BYTES]
            self._response_message_head = MESSAGE_HEAD.pack(0, len(data))
        stream_id = stream.stream_id.to_bytes(STREAM_ID_BYTES, "big")
        encoder = self._encoder
        if encoder.is_short:
            output.pieces += (
                _HEADERS_HEAD,
                stream_id,
                encoder.response_block,
                self._response_data_head,
                stream_id,
                self._response_message_head,
                data,
                _TRAILERS_HEAD,
                stream_id,
                encoder.ok_block,
            )
        else:
            output.pieces += (
                frames.headers(stream.stream_id, encoder.response(), end_stream=False),
                self._response_data_head,
                stream_id,
                self._response_message_head,
                data,
                frames.headers(stream.stream_id, encoder.ok(), end_stream=True),
            )
        self._local_end(stream)

    def send_message(self, stream: Stream, data: bytes) -> None:
        """One message of a call's answer; kept when the peer's windows are full."""
        if stream.local_closed:
            return
        size = len(data) + MESSAGE_HEAD_BYTES
        self._send_head(stream)
        if (
            size <= self._send_window
            and size <= self._peer_stream_window - stream.window_used
            and size <= self._peer_frame_bytes
            and not self.is_paused
            and stream.queue is None
        ):
            self._send_window -= size
            stream.window_used += size
            self._budget.answers += 1
            self._output.put(_DATA_HEAD.pack(size << 8, 0, stream.stream_id, 0, size - MESSAGE_HEAD_BYTES))
            self._output.put(data)
            return
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(memoryview(MESSAGE_HEAD.pack(0, len(data)) + data))
        stream.queued_bytes += size
        self._kept.add(size)
        self._calls.blocked[stream.stream_id] = stream
        self._calls.sendable[stream.stream_id] = stream
        self._pump_stream(stream)
        # The only message that a connection waits with passes: what piles up behind a slow reader is refused. Of an
        # address with many connections it is not the only one.
        kept = self._kept
        if stream.queue is not None and (kept.is_over if kept.count > size else kept.are_all_over):
            self._counters["buffers_full"] += 1
            stream.is_crowded_out = stream.queued_bytes <= self._limits.connection_buffer_bytes
            self.refuse(stream, RESOURCE_EXHAUSTED, _SLOW_READER)

    def send_messages(self, stream: Stream, messages: list[bytes]) -> None:
        """Like `send_message` for each; neighbours share a DATA frame as far as they fit into one.

        A frame costs the peer more than a message of it: of 32 messages of 1 KiB only each 13th needs one.
        """
        first = 0
        size = 0
        for place, data in enumerate(messages):
            message_bytes = len(data) + MESSAGE_HEAD_BYTES
            if size + message_bytes > self._peer_frame_bytes:
                self._send_together(stream, messages[first:place], size)
                first = place
                size = 0
            size += message_bytes
        self._send_together(stream, messages[first:], size)

    def _send_together(self, stream: Stream, messages: list[bytes], size: int) -> None:
        """Messages of `size` bytes with their prefixes, in one frame if the peer's windows have room for all."""
        if (
            len(messages) < 2
            or size > self._send_window
            or size > self._peer_stream_window - stream.window_used
            or self.is_paused
            or stream.queue is not None
            or stream.local_closed
        ):
            for data in messages:
                self.send_message(stream, data)
            return
        self._send_head(stream)
        self._send_window -= size
        stream.window_used += size
        self._budget.answers += len(messages)
        self._output.put(FRAME_HEAD.pack(size << 8 | DATA, 0, stream.stream_id))
        pieces = self._output.pieces
        for data in messages:
            pieces.append(MESSAGE_HEAD.pack(0, len(data)))
            pieces.append(data)

    def send_end(self, stream: Stream, code: int, detail: str) -> None:
        """Ends a call behind what was sent."""
        if stream.local_closed:
            return
        stream.is_finished = True
        if stream.queue is not None:
            stream.end_status = (code, detail)
            return
        self._send_trailers(stream, code, detail)

    def _send_head(self, stream: Stream) -> None:
        if not stream.headers_sent:
            stream.headers_sent = True
            self._output.put(frames.headers(stream.stream_id, self._encoder.response(), end_stream=False))

    def _send_trailers(self, stream: Stream, code: int, detail: str) -> None:
        encoder = self._encoder
        if code == OK and stream.headers_sent:
            block = encoder.ok()
        else:
            fields = status_fields(code, detail)
            # Without a message before it: "Trailers-Only".
            block = encoder.block(fields) if stream.headers_sent else encoder.response() + fields
        self._output.put(frames.headers(stream.stream_id, block, end_stream=True))
        self._local_end(stream)

    def _local_end(self, stream: Stream) -> None:
        """Our last frame of the call is in the output."""
        stream.local_closed = True
        if stream.confirms:
            self._output.confirm(stream, self._timers.received_at)
        if stream.remote_closed:
            del self._calls.open[stream.stream_id]
            self._calls.give_up_header(stream)
        else:
            # The peer need not send the rest of a request that is answered.
            self._output.put(frames.rst_stream(stream.stream_id, ErrorCode.NO_ERROR))
            self._calls.forget(stream)

    # Other ends

    def refuse(self, stream: Stream, code: int, detail: str) -> None:
        """Ends one call with a status of the front itself."""
        self._calls.tell_gone(stream)
        if stream.local_closed:
            return
        # It has heard that it is gone; how the trailers fare is of no interest.
        stream.confirms = False
        self._calls.give_up_queue(stream)
        self._send_trailers(stream, code, detail)

    def refuse_http(self, stream: Stream, refusal: RequestRefused) -> None:
        """Answers what is no gRPC request the way HTTP does."""
        stream.is_finished = True
        block = self._encoder.block(b"\x08\x03" + str(refusal.http_status).encode("ascii"), *refusal.fields())
        self._output.put(frames.headers(stream.stream_id, block, end_stream=True))
        self._local_end(stream)

    # The peer's windows

    def on_settings(self, payload: bytes) -> None:
        """The peer's settings, which are acknowledged. ConnectionFailure for a value that may not be."""
        window = self._peer_stream_window
        for name, value in frames.SETTING.iter_unpack(payload):
            self._apply_setting(name, value)
        self._output.put(frames.frame(frames.SETTINGS, ACK, 0, b""))
        calls = self._calls
        if self._peer_stream_window > window and calls.blocked:
            self._budget.charge("too_many_settings", self._timers.now, len(calls.blocked) // _STREAMS_PER_CHARGE)
            calls.sendable.update(calls.blocked)
            self.pump()

    def _apply_setting(self, name: int, value: int) -> None:
        code, refused = ErrorCode.PROTOCOL_ERROR, False
        match name:
            case frames.SETTINGS_HEADER_TABLE_SIZE:
                self._encoder.peer_table_bytes(value)
            case frames.SETTINGS_ENABLE_PUSH:
                refused = value > 1
            case frames.SETTINGS_INITIAL_WINDOW_SIZE:
                code, refused = ErrorCode.FLOW_CONTROL_ERROR, value > WINDOW_MAX
                self._peer_stream_window = value
            case frames.SETTINGS_MAX_FRAME_SIZE:
                refused = not frames.DEFAULT_FRAME_BYTES <= value < 1 << 24
                self._peer_frame_bytes = value
        if refused:
            raise ConnectionFailure(code, "settings_invalid", f"setting {name} cannot be {value}")

    def open_window(self, increment: int) -> None:
        """The peer takes so many bytes more of all streams together. ConnectionFailure for too many, or none."""
        if increment == 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", "WINDOW_UPDATE by nothing")
        was_closed = self._send_window <= 0
        self._send_window += increment
        if self._send_window > WINDOW_MAX:
            raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "window_overflow", "a window above 2^31 - 1")
        if was_closed and self._calls.sendable:
            self.pump()

    def open_stream_window(self, stream: Stream, increment: int) -> None:
        """The peer takes so many bytes more of this stream. Too many, or none, end the call."""
        stream.window_used -= increment
        if increment == 0:
            self._calls.reset(stream, StreamFailure(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing"))
        elif self._peer_stream_window - stream.window_used > WINDOW_MAX:
            self._calls.reset(stream, StreamFailure(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31 - 1"))
        elif stream.queue is not None:
            self._calls.sendable[stream.stream_id] = stream
            self._pump_stream(stream)

    # What waits

    def pump(self) -> None:
        """Sends what waits for windows, a frame of each stream in turn, until windows or the output are full."""
        while self._calls.sendable and self._may_send():
            self._send_queued(next(iter(self._calls.sendable.values())))
        self.judge_stall()

    def _pump_stream(self, stream: Stream) -> None:
        """The same for one stream."""
        while stream.queue is not None and self._may_send() and self._send_queued(stream):
            pass
        self.judge_stall()

    def _may_send(self) -> bool:
        return self._room > 0 and self._send_window > 0 and not self.is_paused

    def _send_queued(self, stream: Stream) -> int:
        """One frame of a blocked stream's queue; gives its length, 0 when the stream's window is full."""
        queue = stream.queue
        assert queue is not None
        chunk = queue[0]
        size = min(len(chunk), self._send_window, self._peer_stream_window - stream.window_used, self._peer_frame_bytes)
        if size <= 0:
            del self._calls.sendable[stream.stream_id]
            return 0
        self._calls.sendable.move_to_end(stream.stream_id)
        self._output.put(FRAME_HEAD.pack(size << 8 | DATA, 0, stream.stream_id))
        self._output.put(chunk[:size])
        self._send_window -= size
        self._room -= size
        self._drained_bytes += size
        stream.window_used += size
        stream.queued_bytes -= size
        if size == len(chunk) or size >= _ANSWER_BYTES_MIN:
            self._budget.answers += 1
        self._kept.add(-size)
        if size < len(chunk):
            queue[0] = chunk[size:]
        else:
            queue.popleft()
            if not queue:
                stream.queue = None
                del self._calls.blocked[stream.stream_id]
                del self._calls.sendable[stream.stream_id]
                if stream.end_status is not None:
                    self._send_trailers(stream, *stream.end_status)
        return size

    def judge_stall(self) -> None:
        """Notes since when output has waited for the peer with too little of it being taken."""
        if not self._calls.blocked and not self.is_paused:
            self._timers.stalled_at = inf
        elif (
            self._timers.stalled_at == inf
            or self._drained_bytes - self._stalled_at_bytes >= self._limits.write_stall_bytes
        ):
            self._timers.stalled_at = self._timers.now
            self._stalled_at_bytes = self._drained_bytes
            self._stalled_at_answers = self._budget.answers

    def end_stall(self) -> None:
        """Ends the connection of a peer that takes no answers; or only the calls whose answers it does not take."""
        if self.is_paused or self._budget.answers == self._stalled_at_answers:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "slow_reader", "the peer does not read")
        self._counters["slow_reader"] += 1
        for stream in list(self._calls.blocked.values()):
            if stream.queue is not None:
                self.refuse(stream, RESOURCE_EXHAUSTED, _SLOW_READER)
        self.judge_stall()

    def make_room(self) -> None:
        """The owner takes output: what waits may go on when there is nothing else."""
        self._room = _ROOM_BYTES
        if not self._output.pieces and self._calls.sendable:
            self.pump()

    def pause(self) -> None:
        """The socket is full: no more DATA until `resume`."""
        self.is_paused = True
        self.judge_stall()

    def resume(self) -> None:
        """The socket takes bytes again."""
        self.is_paused = False
        self.pump()
