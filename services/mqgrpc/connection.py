"""One HTTP/2 connection of a gRPC server, without I/O: bytes and time in; calls and bytes out.

The owner feeds `receive` and `on_time`, writes what `take_output` gives, and closes the socket once `is_closed` and all
is written. `on_output` is called when there is something to take and there was nothing before, so that the answers of
many calls go out in one write. What may wait a little for others to go with calls `on_waiting_output` instead.

Requests reach the owner through the hooks of `Stream`, from inside `receive` or `on_time`; answers may come at once or
later. Nothing here waits, and everything kept is bounded by `Limits`.

Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK) and gRPC's "gRPC over HTTP2" document.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from math import inf
from struct import Struct
from typing import Final
from urllib.parse import quote

from mypy_extensions import i64

from mqgrpc import frames
from mqgrpc.errors import ConnectionFailure, ErrorCode, HeaderBlockError, StreamFailure
from mqgrpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    FRAME_HEAD_BYTES,
    HEADERS,
    MESSAGE_HEAD,
    MESSAGE_HEAD_BYTES,
    PADDED,
    PREFACE,
    PRIORITY_FLAG,
    STREAM_ID_BYTES,
    U32,
    WINDOW_MAX,
)
from mqgrpc.hpack import ENTRY_OVERHEAD_BYTES, Header, HeaderDecoder, HeaderEncoder, literal
from mqgrpc.limits import Limits, Usage
from mqgrpc.request_head import RequestRefused, RequestShape, judge_values, shape_of, timeout_s
from mqgrpc.stream import Stream, StreamMaker

__all__ = ["Connection"]

# gRPC status numbers the connection itself answers with.
_DEADLINE_EXCEEDED: Final = 4
_RESOURCE_EXHAUSTED: Final = 8
_UNIMPLEMENTED: Final = 12
_INTERNAL: Final = 13

# One `take_output`: what a socket takes at once, and what other streams have to wait for.
_OUTPUT_BYTES: Final = 1 << 20
# Streams the peer may still be writing to although we ended them; more are forgotten, oldest first.
_ABANDONED_MAX: Final = 4_000
# Header blocks above it count as kept bytes, at twice their size for what Huffman's code saves.
_HEADER_BLOCK_FREE_BYTES: Final = 1_024
# Of an unfinished message a piece smaller than this takes in the next one.
_PIECE_BYTES_MIN: Final = 1_024
# A part of a message smaller than this is no answer that would pay for the frames that asked for it.
_ANSWER_BYTES_MIN: Final = 512
# What one frame that brings nothing may make us walk through: settings in it, or answers waiting for a window.
_SETTINGS_PER_CHARGE: Final = 32
_STREAMS_PER_CHARGE: Final = 64
# grpc-message: printable ASCII stays, the rest is percent-encoded.
_MESSAGE_SAFE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_DETAIL_CHARACTERS_MAX: Final = 1_024
# The same encoded. Clients begin to refuse headers at 8 KiB.
_DETAIL_BYTES_MAX: Final = 4_096
_KEEPALIVE_PING: Final = b"mq-alive"
_DRAIN_PING: Final = b"mq-drain"

_DATA_HEAD: Final = Struct(">IBIBI")  # a DATA frame's head and the message's prefix
# What is before the stream's id in HEADERS with a block of two bytes, and in trailers of one.
_HEADERS_HEAD: Final = FRAME_HEAD.pack(2 << 8 | HEADERS, END_HEADERS, 0)[:-STREAM_ID_BYTES]
_TRAILERS_HEAD: Final = FRAME_HEAD.pack(1 << 8 | HEADERS, END_HEADERS | END_STREAM, 0)[:-STREAM_ID_BYTES]


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
        # Clock of the last `receive` or `on_time`.
        self.now = now
        self._maker = new_stream if isinstance(new_stream, StreamMaker) else _OtherMaker(new_stream)
        self._on_output = on_output
        self._on_waiting_output = on_waiting_output or on_output
        self._streams: dict[int, Stream] = {}
        # As many of them are in `usage`; brought up to date once per `receive` and `take_output`.
        self._counted_streams = 0
        self._streams_max = limits.concurrent_streams
        self._last_stream_id = 0
        # Streams that ended before their request did; True: the peer itself reset it.
        self._abandoned: dict[int, bool] = {}

        self._unparsed = b""
        self._needs_preface = True
        self._needs_settings = True
        self._decoder = HeaderDecoder()
        # What the names of the last header block make, if that was asked.
        self._shape: RequestShape | None = None
        self._block: bytearray | None = None  # a header block that goes on in CONTINUATION frames
        self._block_stream_id = 0
        self._block_flags = 0
        self._block_frames = 0
        self._unacknowledged = 0
        self._buffered_bytes = 0
        # When the frame or header block began that is not whole yet; inf: there is none.
        self._unfinished_since = inf
        # Streams with an unfinished request message, oldest first.
        self._incomplete: dict[int, Stream] = {}

        self._out: list[bytes | memoryview] = []
        # Nobody but `on_waiting_output` has been told of what is in it.
        self._out_waits = True
        self._encoder = HeaderEncoder()
        # Heads of a response of that size, prefix included: those of a method are often of the same.
        self._response_size = -1
        self._response_data_head = b""
        self._response_message_head = b""
        self._peer_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._peer_stream_window = frames.DEFAULT_WINDOW_BYTES
        self._send_window = frames.DEFAULT_WINDOW_BYTES
        # Streams with a queue, and those of them whose own window may be open, next in turn first.
        self._blocked: dict[int, Stream] = {}
        self._sendable: OrderedDict[int, Stream] = OrderedDict()
        # Ended streams that confirm: not yet taken; taken, with the output's length up to their end.
        self._unconfirmed: list[Stream] = []
        self._unwritten: deque[tuple[int, list[Stream]]] = deque()
        self._taken_bytes = 0
        self._write_paused = False
        self._socket_bytes = 0  # in the socket's buffer when it was found full
        # When output began to wait for the peer; inf: it does not. Bytes and answers sent until then.
        self._stalled_at = inf
        self._stalled_at_bytes = 0
        self._stalled_at_answers = 0
        self._drained_bytes = 0
        # Queued DATA that still fits into this `take_output`.
        self._output_room = _OUTPUT_BYTES

        self._idle_budget = limits.idle_burst
        self._idle_refilled_at = now
        self._answers = 0  # DATA frames sent, and messages that share one with others
        self._refilled_at_answers = 0
        self._received_at = now
        self._pinged_at = inf
        self._next_stream_deadline = inf
        self._preface_deadline = now + limits.preface_timeout_s
        self._is_draining = False
        self._drain_ends_at = inf
        self._refuses_above = frames.STREAM_ID_MAX

        handlers: list[Callable[[bytes, int, int, int, int], None]] = [
            self._on_data,
            self._on_headers,
            self._on_priority,
            self._on_rst_stream,
            self._on_settings,
            self._on_push_promise,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
            self._on_continuation,
        ]
        self._handlers: Final = handlers
        self._greet()

    # Input

    @property
    def open_streams(self) -> int:
        """Calls in progress."""
        return len(self._streams)

    @property
    def buffered_bytes(self) -> int:
        """Unfinished requests and unsent responses kept now."""
        return self._buffered_bytes

    def receive(self, data: bytes, now: float) -> None:
        """The next bytes of the peer, cut anywhere."""
        if self.is_closed:
            return
        self.now = self._received_at = now
        self._pinged_at = inf
        if self._unparsed:
            data = self._unparsed + data
        streams = self._streams
        usage = self.usage
        self._streams_max = min(
            self.limits.concurrent_streams, len(streams) + self.limits.server_streams - usage.streams
        )
        try:
            rest = self._unparsed = self._parse(data)
        except ConnectionFailure as failure:
            self._fail(failure)
            return
        except HeaderBlockError as error:
            self._fail(ConnectionFailure(ErrorCode.COMPRESSION_ERROR, "header_block_undecodable", str(error)))
            return
        if rest or self._block is not None:
            if (self._block is None and len(rest) < len(data)) or self._unfinished_since == inf:
                self._unfinished_since = now
        else:
            self._unfinished_since = inf
        if len(streams) != self._counted_streams:
            self._count_streams()

    def _parse(self, data: bytes) -> bytes:
        """Handles the whole frames in `data` and gives the rest."""
        pos: i64 = 0
        end: i64 = len(data)
        if self._needs_preface:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "preface_invalid", "no HTTP/2 connection preface")
            if end < len(PREFACE):
                return data
            self._needs_preface = False
            pos = len(PREFACE)
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
            if self._block is not None and (kind != CONTINUATION or stream_id != self._block_stream_id):
                raise ConnectionFailure(
                    ErrorCode.PROTOCOL_ERROR, "frame_unexpected", "another frame inside a header block"
                )
            if kind == DATA:
                self._on_data(data, start, stop, flags, stream_id)
            elif kind == HEADERS:
                self._on_headers(data, start, stop, flags, stream_id)
            elif kind <= CONTINUATION:
                self._handlers[kind](data, start, stop, flags, stream_id)
            else:
                self._charge("too_many_unknown_frames")
                continue
            if self.is_closed:
                return b""
        if self._unacknowledged >= self.limits.connection_window_bytes // 2:
            self._put(frames.window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        return data[pos:] if pos < end else b""

    def _check_first_frame(self, kind: int, flags: int) -> None:
        if kind != frames.SETTINGS or flags & ACK:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "preface_invalid", "the first frame is not SETTINGS")
        self._needs_settings = False
        self._preface_deadline = inf

    # Requests

    def _on_data(self, data: bytes, start: i64, stop: i64, flags: i64, stream_id: int) -> None:
        size = stop - start
        self._unacknowledged += size
        if self._unacknowledged > self.limits.connection_window_bytes:
            raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "window_exceeded", "more DATA than the window allows")
        stream = self._streams.get(stream_id)
        if stream is None:
            if flags & PADDED:
                start, stop = _without_padding(data, start, stop)
            self._on_stray_frame(stream_id, "DATA")
            if start == stop and not flags & END_STREAM:
                self._charge("too_many_empty_data_frames")
            return
        if flags & PADDED:
            start, stop = _without_padding(data, start, stop)
            stream.unacknowledged += size - (stop - start)
        if start == stop and not flags & END_STREAM:
            self._charge("too_many_empty_data_frames")
        if stream.remote_closed:
            self._reset(stream, StreamFailure(ErrorCode.STREAM_CLOSED, "DATA behind the end of the request"))
            return
        size = stop - start
        if (
            stream.pieces is None
            and flags & END_STREAM
            and size >= MESSAGE_HEAD_BYTES
            and stream.content_length < 0
            and not stream.is_finished
        ):
            # As MESSAGE_HEAD has it.
            length: i64 = data[start + 1] << 24 | data[start + 2] << 16 | data[start + 3] << 8 | data[start + 4]
            if data[start] == 0 and length == size - MESSAGE_HEAD_BYTES and length <= self.limits.message_bytes:
                # The usual request: one message in one frame, which is also the last.
                stream.remote_closed = True
                stream.request(data[start + MESSAGE_HEAD_BYTES : stop])
                return
        try:
            self._take_data(stream, data, start, stop, bool(flags & END_STREAM))
        except StreamFailure as failure:
            self._reset(stream, failure)

    def _take_data(self, stream: Stream, data: bytes, start: i64, stop: i64, is_end: bool) -> None:
        """Cuts a request's bytes into messages; keeps what is not whole yet."""
        size = stop - start
        if stream.content_length >= 0:
            stream.content_length -= size
            if stream.content_length < 0 or (is_end and stream.content_length != 0):
                raise StreamFailure(ErrorCode.PROTOCOL_ERROR, "the request is not as long as its content-length says")
        self._take_messages(stream, data, start, stop)
        if stream.stream_id not in self._streams:
            return
        if is_end:
            if stream.partial_bytes and not stream.is_finished:
                raise StreamFailure(ErrorCode.PROTOCOL_ERROR, "the request ends inside a message")
            self._remote_end(stream)
            return
        if stream.partial_bytes and stream.stream_id not in self._incomplete:
            stream.partial_since = self.now
            self._incomplete[stream.stream_id] = stream
        stream.unacknowledged += size
        if stream.unacknowledged > self.limits.stream_window_bytes:
            raise StreamFailure(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the stream's window allows")
        if stream.unacknowledged >= self.limits.stream_window_bytes // 2:
            self._put(frames.window_update(stream.stream_id, stream.unacknowledged))
            stream.unacknowledged = 0

    def _take_messages(self, stream: Stream, data: bytes, at: i64, stop: i64) -> None:
        """Hands over the messages that `data` ends. Copied twice at most: out of their reads, and together."""
        pieces = stream.pieces
        if pieces is None:
            pieces = stream.pieces = []
        while at < stop and not stream.is_finished:
            if stream.missing_bytes < 0:
                end = min(stop, at + MESSAGE_HEAD_BYTES - len(stream.prefix))
                stream.prefix += data[at:end]
                self._keep_part(stream, end - at)
                at = end
                if len(stream.prefix) < MESSAGE_HEAD_BYTES:
                    return
                compressed, length = MESSAGE_HEAD.unpack(stream.prefix)
                if not self._may_take(stream, compressed, length):
                    return
                stream.missing_bytes = length
            end = min(stop, at + stream.missing_bytes)
            if end > at:
                piece = data[at:end]
                if pieces and len(pieces[-1]) < _PIECE_BYTES_MIN:
                    # As one: as an object each, small ones would take many times the memory that they are counted with.
                    pieces[-1] += piece
                else:
                    pieces.append(piece)
                stream.missing_bytes -= end - at
                self._keep_part(stream, end - at)
                at = end
            if stream.missing_bytes:
                if self._is_over_buffers():
                    self._refuse(stream, _RESOURCE_EXHAUSTED, "the server keeps too many unfinished requests")
                    self.counters["buffers_full"] += 1
                return
            message = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            stream.prefix = b""
            stream.missing_bytes = -1
            self._keep_part(stream, -stream.partial_bytes)
            self._incomplete.pop(stream.stream_id, None)
            stream.message(message)

    def _keep_part(self, stream: Stream, size: i64) -> None:
        """So many bytes more, or less, of an unfinished message are kept."""
        stream.partial_bytes += size
        self._keep(size)

    def _give_up_part(self, stream: Stream) -> None:
        """What is not whole of a message never will be."""
        if stream.partial_bytes:
            self._keep_part(stream, -stream.partial_bytes)
            stream.pieces = []
            self._incomplete.pop(stream.stream_id, None)

    def _may_take(self, stream: Stream, compressed: int, length: int) -> bool:
        """Judges a message by its prefix; a refused one ends the call."""
        if length > self.limits.message_bytes:
            self.counters["message_too_large"] += 1
            limit = self.limits.message_bytes
            self._refuse(stream, _RESOURCE_EXHAUSTED, f"a message of {length} bytes, larger than {limit}")
        elif compressed:
            encoding = stream.header("grpc-encoding", "identity")
            self._refuse(stream, _UNIMPLEMENTED, f"message compression {encoding!r} is not offered; send identity")
        else:
            return True
        return False

    def _remote_end(self, stream: Stream) -> None:
        stream.remote_closed = True
        self._give_up_part(stream)
        if not stream.is_finished:
            stream.half_closed()

    def _on_headers(self, data: bytes, start: i64, stop: i64, flags: i64, stream_id: int) -> None:
        if flags & PADDED:
            start, stop = _without_padding(data, start, stop)
        if flags & PRIORITY_FLAG:
            if stop - start < 5:
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame_malformed", "HEADERS without its priority")
            if U32.unpack_from(data, start)[0] & 0x7FFFFFFF == stream_id:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", "a stream that depends on itself")
            start += 5
        if flags & END_HEADERS:
            self._on_header_block(data, start, stop, flags, stream_id)
            return
        self._block = bytearray(data[start:stop])
        self._block_stream_id = stream_id
        self._block_flags = flags
        self._block_frames = 1
        self._check_block_size()

    def _on_continuation(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        if self._block is None:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_unexpected", "CONTINUATION without HEADERS")
        self._block += data[start:stop]
        self._block_frames += 1
        self._check_block_size()
        if flags & END_HEADERS:
            block, self._block = bytes(self._block), None
            self._on_header_block(block, 0, len(block), self._block_flags, stream_id)

    def _check_block_size(self) -> None:
        assert self._block is not None
        if len(self._block) > self.limits.header_block_bytes:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "header_block_too_large", "a header block too large")
        if self._block_frames > self.limits.continuation_frames:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "continuation_flood", "too many CONTINUATION frames")

    def _on_header_block(self, data: bytes, start: i64, stop: i64, flags: i64, stream_id: int) -> None:
        # Decoded in any case: the table is shared by all streams.
        decoder = self._decoder
        headers = decoder.decode(data, start, stop)
        if not decoder.same_names:
            self._shape = None
        if stream_id & 1 == 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", f"HEADERS on stream {stream_id}")
        if stream_id <= self._last_stream_id:
            self._on_trailers(stream_id, flags, is_malformed=_are_bad_trailers(headers) or decoder.malformed)
            return
        self._last_stream_id = stream_id
        if len(self._streams) >= self._streams_max or stream_id > self._refuses_above:
            self.counters["stream_refused"] += 1
            self._charge("too_many_refused_streams")
            self._abandon(stream_id)
            self._put(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            return
        is_small = decoder.list_bytes <= self.limits.header_list_bytes
        if not is_small and len(headers) * ENTRY_OVERHEAD_BYTES > 4 * self.limits.header_list_bytes:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "header_bomb", f"{len(headers)} headers in a block")
        shape = self._shape
        if shape is None:
            try:
                shape = self._shape = shape_of(headers)
            except StreamFailure as failure:
                self._refuse_malformed(stream_id, failure)
                return
        if decoder.malformed:
            self._refuse_malformed(stream_id, StreamFailure(ErrorCode.PROTOCOL_ERROR, "a character no header may have"))
            return
        stream = self._maker.new_stream(self, stream_id, headers, shape)
        self._streams[stream_id] = stream
        if flags & END_STREAM:
            stream.remote_closed = True
        if not is_small:
            self.counters["header_list_too_large"] += 1
            self._refuse(stream, _RESOURCE_EXHAUSTED, f"headers of more than {self.limits.header_list_bytes} bytes")
            return
        if stop - start > _HEADER_BLOCK_FREE_BYTES:
            stream.header_bytes = 2 * (stop - start)
            self._keep(stream.header_bytes)
            if self._is_over_buffers():
                self.counters["buffers_full"] += 1
                self._refuse(stream, _RESOURCE_EXHAUSTED, "the server keeps too many unfinished requests")
                return
        try:
            judge_values(headers, shape)
        except StreamFailure as failure:
            self._reset(stream, failure)
            return
        except RequestRefused as refusal:
            self._refuse_http(stream, refusal)
            return
        if shape.content_length >= 0:
            stream.content_length = int(headers[shape.content_length].value)
            if stream.remote_closed and stream.content_length:
                self._reset(stream, StreamFailure(ErrorCode.PROTOCOL_ERROR, "a content-length without content"))
                return
        if shape.timeout >= 0:
            seconds = timeout_s(headers[shape.timeout].value)
            if seconds is None:
                self._refuse(stream, _INTERNAL, "grpc-timeout is no timeout")
                return
            deadline = stream.deadline = self.now + seconds
            if deadline < self._next_stream_deadline:
                self._next_stream_deadline = deadline
        stream.is_opened = True
        stream.opened()
        if stream.remote_closed and not stream.is_finished:
            stream.half_closed()

    def _refuse_malformed(self, stream_id: int, failure: StreamFailure) -> None:
        """Refuses what is not even a call."""
        self.counters["stream_reset"] += 1
        self._charge("too_many_resets")
        self._abandon(stream_id)
        self._put(frames.rst_stream(stream_id, failure.code))

    def _on_trailers(self, stream_id: int, flags: int, *, is_malformed: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            self._on_stray_frame(stream_id, "HEADERS")
            if is_malformed or not flags & END_STREAM:
                self._reset_ended(stream_id, ErrorCode.PROTOCOL_ERROR)
        elif stream.remote_closed:
            self._reset(stream, StreamFailure(ErrorCode.STREAM_CLOSED, "HEADERS behind the end of the request"))
        elif is_malformed or not flags & END_STREAM:
            self._reset(stream, StreamFailure(ErrorCode.PROTOCOL_ERROR, "trailers that are none"))
        else:
            try:
                self._take_data(stream, b"", 0, 0, True)
            except StreamFailure as failure:
                self._reset(stream, failure)

    def _on_stray_frame(self, stream_id: int, kind: str) -> None:
        """A frame of a request we know nothing of (any more)."""
        if stream_id > self._last_stream_id or stream_id & 1 == 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_unexpected", f"{kind} on idle stream {stream_id}")
        if stream_id not in self._abandoned:
            raise ConnectionFailure(ErrorCode.STREAM_CLOSED, "frame_unexpected", f"{kind} on closed stream {stream_id}")
        # The peer had not heard yet that we ended it; unless it ended it itself.
        if self._abandoned[stream_id]:
            self._reset_ended(stream_id, ErrorCode.STREAM_CLOSED)

    # Other frames

    def _on_priority(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        self._charge("too_many_priority_frames")
        if stream_id == 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", "PRIORITY on stream 0")
        failure = None
        if stop - start != 5:
            failure = StreamFailure(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong length")
        elif U32.unpack_from(data, start)[0] & 0x7FFFFFFF == stream_id:
            failure = StreamFailure(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
        if failure is not None:
            stream = self._streams.get(stream_id)
            if stream is not None:
                self._reset(stream, failure)
            else:
                self._put(frames.rst_stream(stream_id, failure.code))

    def _on_rst_stream(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        if stop - start != 4:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame_malformed", "RST_STREAM of a wrong length")
        if stream_id == 0 or stream_id > self._last_stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_unexpected", f"RST_STREAM on stream {stream_id}")
        # Charged whether or not the stream is still open: opening and resetting is the cheapest attack there is.
        self._charge("too_many_resets")
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._drop(stream)
        if stream_id in self._abandoned:
            self._abandoned[stream_id] = True

    def _on_settings(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        if stream_id != 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", "SETTINGS on a stream")
        if (flags & ACK and stop != start) or (stop - start) % frames.SETTING.size:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame_malformed", "SETTINGS of a wrong length")
        self._charge("too_many_settings", 1 + (stop - start) // (frames.SETTING.size * _SETTINGS_PER_CHARGE))
        if flags & ACK:
            return
        window = self._peer_stream_window
        for name, value in frames.SETTING.iter_unpack(data[start:stop]):
            self._apply_setting(name, value)
        self._put(frames.frame(frames.SETTINGS, ACK, 0, b""))
        if self._peer_stream_window > window and self._blocked:
            self._charge("too_many_settings", len(self._blocked) // _STREAMS_PER_CHARGE)
            self._sendable.update(self._blocked)
            self._pump()

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

    def _on_push_promise(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_unexpected", "PUSH_PROMISE from a client")

    def _on_ping(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        if stream_id != 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", "PING on a stream")
        if stop - start != 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame_malformed", "PING of a wrong length")
        self._charge("too_many_pings")
        if not flags & ACK:
            self._put_waiting(frames.frame(frames.PING, ACK, 0, data[start:stop]))
        elif data[start:stop] == _DRAIN_PING:
            self._final_goaway()

    def _on_goaway(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        if stream_id != 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", "GOAWAY on a stream")
        if stop - start < 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame_malformed", "GOAWAY of a wrong length")
        self._charge("too_many_goaways")
        # The client opens no more calls; those in progress end as usual and it closes the connection.

    def _on_window_update(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        if stop - start != 4:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame_malformed", "WINDOW_UPDATE of a wrong length")
        self._charge("too_many_window_updates")
        increment = U32.unpack_from(data, start)[0] & 0x7FFFFFFF
        if stream_id == 0:
            if increment == 0:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", "WINDOW_UPDATE by nothing")
            was_closed = self._send_window <= 0
            self._send_window += increment
            if self._send_window > WINDOW_MAX:
                raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "window_overflow", "a window above 2^31 - 1")
            if was_closed and self._sendable:
                self._pump()
            return
        if stream_id > self._last_stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_unexpected", "WINDOW_UPDATE on an idle stream")
        stream = self._streams.get(stream_id)
        if stream is None:
            if increment == 0:
                self._reset_ended(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        stream.window_used -= increment
        if increment == 0:
            self._reset(stream, StreamFailure(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing"))
        elif self._peer_stream_window - stream.window_used > WINDOW_MAX:
            self._reset(stream, StreamFailure(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31 - 1"))
        elif stream.queue is not None:
            self._sendable[stream_id] = stream
            self._pump_stream(stream)

    def _charge(self, counter: str, cost: int = 1) -> None:
        """Takes one frame that brings nothing from the peer's budget; ends the connection when it is used up."""
        self._idle_budget -= cost
        if self._idle_budget >= 0:
            return
        limits = self.limits
        earned = int((self.now - self._idle_refilled_at) * limits.idle_per_s)
        earned += (self._answers - self._refilled_at_answers) * limits.idle_per_answer
        self._idle_budget = min(limits.idle_burst, self._idle_budget + earned)
        self._idle_refilled_at = self.now
        self._refilled_at_answers = self._answers
        if self._idle_budget < 0:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, counter, counter.replace("_", " "))

    # Answers

    def send_response(self, stream: Stream, data: bytes) -> None:
        """The one message of a unary call and its OK; in one piece when the peer's windows allow."""
        size = len(data) + MESSAGE_HEAD_BYTES
        if (
            size > self._send_window
            or size > self._peer_stream_window - stream.window_used
            or size > self._peer_frame_bytes
            or self._write_paused
            or stream.queue is not None
            or stream.headers_sent
            or stream.local_closed
        ):
            self.send_message(stream, data)
            self.send_end(stream, 0, "")
            return
        self._send_window -= size
        self._answers += 1
        if self._out_waits:
            self._out_waits = False
            self._on_output()
        if size != self._response_size:
            self._response_size = size
            self._response_data_head = FRAME_HEAD.pack(size << 8 | DATA, 0, 0)[:-STREAM_ID_BYTES]
            self._response_message_head = MESSAGE_HEAD.pack(0, len(data))
        stream_id = stream.stream_id.to_bytes(STREAM_ID_BYTES, "big")
        encoder = self._encoder
        if encoder.is_short:
            self._out += (
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
            self._out += (
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
        if stream.stream_id not in self._streams or stream.local_closed:
            return
        size = len(data) + MESSAGE_HEAD_BYTES
        self._send_head(stream)
        if (
            size <= self._send_window
            and size <= self._peer_stream_window - stream.window_used
            and size <= self._peer_frame_bytes
            and not self._write_paused
            and stream.queue is None
        ):
            self._send_window -= size
            stream.window_used += size
            self._answers += 1
            self._put(_DATA_HEAD.pack(size << 8, 0, stream.stream_id, 0, size - MESSAGE_HEAD_BYTES))
            self._put(data)
            return
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(memoryview(MESSAGE_HEAD.pack(0, len(data)) + data))
        stream.queued_bytes += size
        self._keep(size)
        self._blocked[stream.stream_id] = stream
        self._sendable[stream.stream_id] = stream
        self._pump_stream(stream)
        # The only message that a connection waits with always passes: what piles up behind a slow reader is refused.
        if stream.queue is not None and self._buffered_bytes > size and self._is_over_buffers():
            self.counters["buffers_full"] += 1
            self._refuse(stream, _RESOURCE_EXHAUSTED, "the caller reads more slowly than messages arrive")

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
            or self._write_paused
            or stream.queue is not None
            or stream.local_closed
            or stream.stream_id not in self._streams
        ):
            for data in messages:
                self.send_message(stream, data)
            return
        self._send_head(stream)
        self._send_window -= size
        stream.window_used += size
        self._answers += len(messages)
        self._put(FRAME_HEAD.pack(size << 8 | DATA, 0, stream.stream_id))
        out = self._out
        for data in messages:
            out.append(MESSAGE_HEAD.pack(0, len(data)))
            out.append(data)

    def send_end(self, stream: Stream, status: int, detail: str) -> None:
        """Ends a call behind what was sent."""
        if stream.stream_id not in self._streams or stream.local_closed:
            return
        stream.is_finished = True
        if stream.queue is not None:
            stream.end_status = (status, detail)
            return
        self._send_trailers(stream, status, detail)

    def _send_head(self, stream: Stream) -> None:
        if not stream.headers_sent:
            stream.headers_sent = True
            self._put(frames.headers(stream.stream_id, self._encoder.response(), end_stream=False))

    def _send_trailers(self, stream: Stream, status: int, detail: str) -> None:
        if status == 0 and stream.headers_sent:
            block = self._encoder.ok()
        else:
            fields = [literal("grpc-status", str(status))]
            if detail:
                fields.append(literal("grpc-message", _percent_encoded(detail)))
            if status == _UNIMPLEMENTED:
                fields.append(literal("grpc-accept-encoding", "identity"))
            # Without a message before it: "Trailers-Only".
            block = self._encoder.block(*fields) if stream.headers_sent else self._encoder.response() + b"".join(fields)
        self._put(frames.headers(stream.stream_id, block, end_stream=True))
        self._local_end(stream)

    def _local_end(self, stream: Stream) -> None:
        """Our last frame of the call is in the output."""
        stream.local_closed = True
        if stream.confirms:
            self._unconfirmed.append(stream)
        if stream.remote_closed:
            del self._streams[stream.stream_id]
            if stream.header_bytes:
                self._keep(-stream.header_bytes)
        else:
            # The peer need not send the rest of a request that is answered.
            self._put(frames.rst_stream(stream.stream_id, ErrorCode.NO_ERROR))
            self._forget(stream)

    def _pump(self) -> None:
        """Sends what waits for windows, a frame of each stream in turn, until windows or the output are full."""
        while self._sendable and self._may_send():
            self._send_queued(next(iter(self._sendable.values())))
        self._judge_stall()

    def _pump_stream(self, stream: Stream) -> None:
        """The same for one stream."""
        while stream.queue is not None and self._may_send() and self._send_queued(stream):
            pass
        self._judge_stall()

    def _may_send(self) -> bool:
        return self._output_room > 0 and self._send_window > 0 and not self._write_paused

    def _send_queued(self, stream: Stream) -> int:
        """One frame of a blocked stream's queue; gives its length, 0 when the stream's window is full."""
        queue = stream.queue
        assert queue is not None
        chunk = queue[0]
        size = min(len(chunk), self._send_window, self._peer_stream_window - stream.window_used, self._peer_frame_bytes)
        if size <= 0:
            del self._sendable[stream.stream_id]
            return 0
        self._sendable.move_to_end(stream.stream_id)
        self._put(FRAME_HEAD.pack(size << 8 | DATA, 0, stream.stream_id))
        self._put(chunk[:size])
        self._send_window -= size
        self._output_room -= size
        self._drained_bytes += size
        stream.window_used += size
        stream.queued_bytes -= size
        if size == len(chunk) or size >= _ANSWER_BYTES_MIN:
            self._answers += 1
        self._keep(-size)
        if size < len(chunk):
            queue[0] = chunk[size:]
        else:
            queue.popleft()
            if not queue:
                stream.queue = None
                del self._blocked[stream.stream_id]
                del self._sendable[stream.stream_id]
                if stream.end_status is not None:
                    self._send_trailers(stream, *stream.end_status)
        return size

    def _judge_stall(self) -> None:
        """Notes since when output has waited for the peer with too little of it being taken."""
        if not self._blocked and not self._write_paused:
            self._stalled_at = inf
        elif self._stalled_at == inf or self._drained_bytes - self._stalled_at_bytes >= self.limits.write_stall_bytes:
            self._stalled_at = self.now
            self._stalled_at_bytes = self._drained_bytes
            self._stalled_at_answers = self._answers

    # Output

    def take_output(self) -> bytes:
        """The bytes to write next; b"" when there are none now. Call until then, unless the socket is full."""
        self._output_room = _OUTPUT_BYTES
        if not self._out and self._sendable:
            self._pump()
        out = self._out
        if not out:
            return b""
        self._out = []
        self._out_waits = True
        data = out[0] if len(out) == 1 and isinstance(out[0], bytes) else b"".join(out)
        self._taken_bytes += len(data)
        if self._unconfirmed:
            self._unwritten.append((self._taken_bytes, self._unconfirmed))
            self._unconfirmed = []
        if len(self._streams) != self._counted_streams:
            self._count_streams()
        return data

    def pause_output(self, now: float, unwritten_bytes: int = 0) -> None:
        """The socket's buffer is full: no more DATA until `resume_output`, and nothing is read until then."""
        self.now = now
        self._write_paused = True
        self._keep(unwritten_bytes - self._socket_bytes)
        self._socket_bytes = unwritten_bytes
        self._judge_stall()

    def resume_output(self, now: float) -> None:
        """The socket takes bytes again."""
        # Whatever was late, we were not reading.
        self.now = self._received_at = now
        self._pinged_at = inf
        if self._unfinished_since != inf:
            self._unfinished_since = now
        self._write_paused = False
        self._keep(-self._socket_bytes)
        self._socket_bytes = 0
        self._pump()

    def output_written(self, unwritten_bytes: int = 0) -> None:
        """All that was taken, but for the last `unwritten_bytes`, is written to the socket.

        Those calls are delivered as far as anybody here can know.
        """
        unwritten = self._unwritten
        if unwritten:
            written = self._taken_bytes - unwritten_bytes
            while unwritten and unwritten[0][0] <= written:
                unwritten.popleft()

    def lost(self) -> None:
        """The socket is closed, by whomever."""
        self.is_closed = True
        self._drop_all()
        # Hooks may have ended other calls of this connection meanwhile.
        self._out.clear()
        self._keep(-self._socket_bytes)
        self._socket_bytes = 0
        self._count_streams()
        unconfirmed = [stream for _, streams in self._unwritten for stream in streams] + self._unconfirmed
        self._unwritten.clear()
        self._unconfirmed = []
        for stream in unconfirmed:
            stream.undelivered()

    def _put(self, data: bytes | memoryview) -> None:
        if self._out_waits:
            self._out_waits = False
            self._on_output()
        self._out.append(data)

    def _put_waiting(self, data: bytes) -> None:
        """Output that need not be a write of its own."""
        if not self._out:
            self._on_waiting_output()
        self._out.append(data)

    # Time

    def next_deadline(self) -> float:
        """When `on_time` has to be called next; it may move later without notice."""
        limits = self.limits
        stall = self._stalled_at + limits.write_stall_s
        if self._write_paused:
            # Nothing is read, so nothing can be late but the reading of what we wrote.
            return _earlier(_earlier(stall, self._next_stream_deadline), self._drain_ends_at)
        deadline = self._pinged_at + limits.keepalive_timeout_s
        if deadline == inf:
            deadline = self._received_at + limits.keepalive_s
        if self._incomplete:
            oldest = next(iter(self._incomplete.values()))
            deadline = _earlier(deadline, oldest.partial_since + limits.message_timeout_s)
        deadline = _earlier(deadline, _earlier(stall, self._unfinished_since + limits.frame_timeout_s))
        deadline = _earlier(deadline, _earlier(self._next_stream_deadline, self._preface_deadline))
        return _earlier(deadline, self._drain_ends_at)

    def on_time(self, now: float) -> None:
        """Does what is due."""
        if self.is_closed:
            return
        self.now = now
        limits = self.limits
        try:
            self._judge_stall()
            if now >= self._stalled_at + limits.write_stall_s:
                self._end_stall()
            if not self._write_paused:
                self._judge_input(now)
        except ConnectionFailure as failure:
            self._fail(failure)
            return
        if now >= self._drain_ends_at:
            self._final_goaway()
        if now >= self._next_stream_deadline:
            self._expire_streams(now)

    def _end_stall(self) -> None:
        """Ends the connection of a peer that takes no answers; or only the calls whose answers it does not take."""
        if self._write_paused or self._answers == self._stalled_at_answers:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "slow_reader", "the peer does not read")
        self.counters["slow_reader"] += 1
        for stream in list(self._blocked.values()):
            if stream.queue is not None:
                self._refuse(stream, _RESOURCE_EXHAUSTED, "the caller reads more slowly than messages arrive")
        self._judge_stall()

    def _judge_input(self, now: float) -> None:
        """Does what is due because bytes did not come."""
        limits = self.limits
        if now >= self._preface_deadline:
            raise ConnectionFailure(ErrorCode.SETTINGS_TIMEOUT, "preface_timeout", "no SETTINGS came in time")
        if now >= self._pinged_at + limits.keepalive_timeout_s:
            raise ConnectionFailure(ErrorCode.NO_ERROR, "keepalive_timeout", "no answer to a keepalive PING")
        if now >= self._unfinished_since + limits.frame_timeout_s:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "frame_timeout", "a frame or block took too long")
        while self._incomplete:
            stream = next(iter(self._incomplete.values()))
            if now < stream.partial_since + limits.message_timeout_s:
                break
            self.counters["message_timeout"] += 1
            self._refuse(stream, _DEADLINE_EXCEEDED, "the request's message took too long")
        if self._pinged_at == inf and now >= self._received_at + limits.keepalive_s:
            self._pinged_at = now
            self._put(frames.frame(frames.PING, 0, 0, _KEEPALIVE_PING))

    def _expire_streams(self, now: float) -> None:
        expired = [stream for stream in self._streams.values() if stream.deadline <= now]
        for stream in expired:
            if stream.stream_id not in self._streams:
                continue
            self._refuse(stream, _DEADLINE_EXCEEDED, "deadline exceeded")
        # Scanned at most every 10 ms, however the deadlines of thousands of calls lie.
        next_deadline = min((stream.deadline for stream in self._streams.values()), default=inf)
        self._next_stream_deadline = max(next_deadline, now + 0.01)

    # Ends

    def drain(self, now: float) -> None:
        """Asks the peer to open no more calls; the connection closes when the last one has ended."""
        if self._is_draining or self.is_closed:
            return
        self.now = now
        self._is_draining = True
        self._drain_ends_at = now + self.limits.drain_grace_s
        # Calls already on their way are still taken: the peer's answer to the PING comes behind them.
        self._put(frames.goaway(frames.STREAM_ID_MAX, ErrorCode.NO_ERROR, "the server is stopping"))
        self._put(frames.frame(frames.PING, 0, 0, _DRAIN_PING))

    @property
    def is_drained(self) -> bool:
        """The final GOAWAY is out and no call is left."""
        return self._is_draining and self._drain_ends_at == inf and not self._streams

    def _final_goaway(self) -> None:
        if self._drain_ends_at != inf:
            self._drain_ends_at = inf
            self._refuses_above = self._last_stream_id
            self._put(frames.goaway(self._last_stream_id, ErrorCode.NO_ERROR, "the server is stopping"))

    def _fail(self, failure: ConnectionFailure) -> None:
        """Ends the connection; what it owes is given up."""
        self.counters[failure.counter] += 1
        self._drop_all()
        self._unparsed = b""
        self._block = None
        self._put(frames.goaway(self._last_stream_id, failure.code, failure.detail))
        self.is_closed = True

    def _reset(self, stream: Stream, failure: StreamFailure) -> None:
        """Ends one call by RST_STREAM. Charged like the peer's own: it, too, makes room for the next call at once."""
        self.counters["stream_reset"] += 1
        self._charge("too_many_resets")
        self._put(frames.rst_stream(stream.stream_id, failure.code))
        self._abandon(stream.stream_id)
        self._drop(stream)

    def _reset_ended(self, stream_id: int, code: ErrorCode) -> None:
        """Tells the peer of a mistake on a stream that has ended already."""
        self._charge("too_many_resets")
        self._put(frames.rst_stream(stream_id, code))

    def _refuse(self, stream: Stream, status: int, detail: str) -> None:
        """Ends one call with a status of the front itself."""
        self._tell_gone(stream)
        if stream.stream_id not in self._streams:
            return
        # It has heard that it is gone; how the trailers fare is of no interest.
        stream.confirms = False
        self._give_up_queue(stream)
        self._send_trailers(stream, status, detail)

    def _refuse_http(self, stream: Stream, refusal: RequestRefused) -> None:
        """Answers what is no gRPC request the way HTTP does."""
        stream.is_finished = True
        block = self._encoder.block(b"\x08\x03" + str(refusal.http_status).encode("ascii"), *refusal.fields())
        self._put(frames.headers(stream.stream_id, block, end_stream=True))
        self._local_end(stream)

    def _drop(self, stream: Stream) -> None:
        """Forgets a call that can get no answer any more, and tells its handler."""
        stream.local_closed = True
        self._forget(stream)
        self._tell_gone(stream)

    def _tell_gone(self, stream: Stream) -> None:
        """Calls the hook that fits: before or after the handler was done with the call."""
        was_finished, stream.is_finished = stream.is_finished, True
        if not stream.is_opened:
            return
        if was_finished:
            stream.undelivered()
        else:
            stream.cancelled()

    def _drop_all(self) -> None:
        for stream in list(self._streams.values()):
            # A hook may have ended it.
            if stream.stream_id in self._streams:
                self._drop(stream)

    def _forget(self, stream: Stream) -> None:
        self._streams.pop(stream.stream_id, None)
        if not stream.remote_closed:
            self._abandon(stream.stream_id)
        self._give_up_part(stream)
        if stream.header_bytes:
            self._keep(-stream.header_bytes)
            stream.header_bytes = 0
        self._give_up_queue(stream)

    def _give_up_queue(self, stream: Stream) -> None:
        if stream.queue is not None:
            stream.queue = None
            stream.end_status = None
            self._keep(-stream.queued_bytes)
            stream.queued_bytes = 0
            self._blocked.pop(stream.stream_id, None)
            self._sendable.pop(stream.stream_id, None)

    def _abandon(self, stream_id: int) -> None:
        self._abandoned[stream_id] = False
        if len(self._abandoned) > _ABANDONED_MAX:
            del self._abandoned[next(iter(self._abandoned))]

    # Small things

    def _greet(self) -> None:
        limits = self.limits
        self._put(
            frames.settings(
                {
                    frames.SETTINGS_MAX_CONCURRENT_STREAMS: limits.concurrent_streams,
                    frames.SETTINGS_INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                    frames.SETTINGS_MAX_FRAME_SIZE: limits.frame_bytes,
                    frames.SETTINGS_MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
                }
            )
        )
        self._put(frames.window_update(0, limits.connection_window_bytes - frames.DEFAULT_WINDOW_BYTES))

    def _count_streams(self) -> None:
        count = len(self._streams)
        self.usage.streams += count - self._counted_streams
        self._counted_streams = count

    def _keep(self, size: int) -> None:
        self._buffered_bytes += size
        self.usage.buffered_bytes += size

    def _is_over_buffers(self) -> bool:
        limits = self.limits
        return (
            self._buffered_bytes > limits.connection_buffer_bytes
            or self.usage.buffered_bytes > limits.server_buffer_bytes
        )


def _earlier(one: float, other: float) -> float:
    # `min` would make objects of them, with every read.
    if one < other:
        return one
    return other


def _without_padding(data: bytes, start: int, stop: int) -> tuple[int, int]:
    if stop == start or data[start] >= stop - start:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", "padding longer than its frame")
    return start + 1, stop - data[start]


def _percent_encoded(detail: str) -> str:
    """A status detail as `grpc-message`; cut where it is too long for a header."""
    detail = detail[:_DETAIL_CHARACTERS_MAX]
    while len(encoded := quote(detail, safe=_MESSAGE_SAFE, errors="replace")) > _DETAIL_BYTES_MAX:
        detail = detail[: len(detail) // 2]
    return encoded


def _are_bad_trailers(headers: list[Header]) -> bool:
    return any(header.name.startswith(":") for header in headers)


class _OtherMaker(StreamMaker):
    """A `StreamMaker` of what only is called like one."""

    def __init__(self, new_stream: Callable[[Connection, int, list[Header], RequestShape], Stream]) -> None:
        self._new_stream = new_stream

    def new_stream(self, connection: Connection, stream_id: int, headers: list[Header], shape: RequestShape) -> Stream:
        return self._new_stream(connection, stream_id, headers, shape)
