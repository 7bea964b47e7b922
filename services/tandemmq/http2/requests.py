"""What a peer sends to its calls: their heads, their DATA and their trailers, judged and handed to the `Stream`s."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from tandemmq.http2 import frames
from tandemmq.http2.errors import ConnectionFailure, ErrorCode, Limits, StreamFailure
from tandemmq.http2.frames import (
    END_HEADERS,
    END_STREAM,
    INTERNAL,
    PADDED,
    PRIORITY_FLAG,
    RESOURCE_EXHAUSTED,
    STREAM_ID_MAX,
    U32,
    UNIMPLEMENTED,
    RequestRefused,
    RequestShape,
    judge_values,
    shape_of,
    timeout_s,
)
from tandemmq.http2.hpack import ENTRY_OVERHEAD_BYTES, Header, HeaderDecoder
from tandemmq.http2.output import IdleBudget, Output
from tandemmq.http2.stream import MESSAGE_HEAD_BYTES, KeptBytes, MessageAssembly, Stream, StreamMaker, Timers

if TYPE_CHECKING:
    from tandemmq.http2.calls import Answers, Calls
    from tandemmq.http2.connection import Connection


# Header blocks above it count as kept bytes, at twice their size for what Huffman's code saves.
_HEADER_BLOCK_FREE_BYTES: Final = 1_024
_BUFFERS_FULL: Final = "the server keeps too many unfinished requests"


class Requests:
    """See the module's docstring. The `on_` methods take a frame whose payload is data[start:stop]; they raise
    ConnectionFailure or HeaderBlockError for what the connection cannot go on after.
    """

    def __init__(
        self,
        connection: Connection,
        maker: StreamMaker,
        *,
        limits: Limits,
        counters: Counter[str],
        kept: KeptBytes,
        budget: IdleBudget,
        timers: Timers,
        output: Output,
        calls: Calls,
        answers: Answers,
    ) -> None:
        """`connection` and `maker`: who makes the streams, and for whom."""
        self.block = HeaderBlock(limits)
        """While it is open, its CONTINUATION must be the next frame."""
        self.calls_max = limits.concurrent_streams
        """More calls are refused."""
        self.refuses_above = STREAM_ID_MAX
        """Streams of higher numbers are refused."""
        self._connection = connection
        self._maker = maker
        self._limits = limits
        self._counters = counters
        self._kept = kept
        self._budget = budget
        self._timers = timers
        self._output = output
        self._calls = calls
        self._answers = answers
        self._decoder = HeaderDecoder()
        # What the names of the last header block make, if that was asked.
        self._shape: RequestShape | None = None
        # DATA not yet given back by our WINDOW_UPDATE for the connection.
        self._unacknowledged: i64 = 0

    def on_data(self, data: bytes, start: i64, stop: i64, flags: i64, stream_id: int) -> None:
        size = stop - start
        self._unacknowledged += size
        if self._unacknowledged > self._limits.connection_window_bytes:
            raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "window_exceeded", "more DATA than the window allows")
        stream = self._calls.open.get(stream_id)
        if stream is None:
            if flags & PADDED:
                start, stop = _without_padding(data, start, stop)
            self._calls.on_stray_frame(stream_id, "DATA")
            if start == stop and not flags & END_STREAM:
                self._budget.charge("too_many_empty_data_frames", self._timers.now)
            return
        if flags & PADDED:
            start, stop = _without_padding(data, start, stop)
            stream.unacknowledged += size - (stop - start)
        if start == stop and not flags & END_STREAM:
            self._budget.charge("too_many_empty_data_frames", self._timers.now)
        if stream.remote_closed:
            self._calls.reset(stream, StreamFailure(ErrorCode.STREAM_CLOSED, "DATA behind the end of the request"))
            return
        size = stop - start
        if (
            stream.assembly is None
            and flags & END_STREAM
            and size >= MESSAGE_HEAD_BYTES
            and stream.content_length < 0
            and not stream.is_finished
        ):
            # As MESSAGE_HEAD has it.
            length: i64 = data[start + 1] << 24 | data[start + 2] << 16 | data[start + 3] << 8 | data[start + 4]
            if data[start] == 0 and length == size - MESSAGE_HEAD_BYTES and length <= self._limits.message_bytes:
                # The usual request: one message in one frame, which is also the last.
                stream.remote_closed = True
                stream.request(data[start + MESSAGE_HEAD_BYTES : stop])
                return
        try:
            self._take_data(stream, data, start, stop, bool(flags & END_STREAM))
        except StreamFailure as failure:
            self._calls.reset(stream, failure)

    def _take_data(self, stream: Stream, data: bytes, start: i64, stop: i64, is_end: bool) -> None:
        """Cuts a request's bytes into messages; keeps what is not whole yet."""
        size = stop - start
        if stream.content_length >= 0:
            stream.content_length -= size
            if stream.content_length < 0 or (is_end and stream.content_length != 0):
                raise StreamFailure(ErrorCode.PROTOCOL_ERROR, "the request is not as long as its content-length says")
        assembly = stream.assembly
        if assembly is None:
            assembly = stream.assembly = MessageAssembly()
        self._take_messages(stream, assembly, data, start, stop)
        if stream.local_closed:
            return
        if is_end:
            if assembly.kept_bytes and not stream.is_finished:
                raise StreamFailure(ErrorCode.PROTOCOL_ERROR, "the request ends inside a message")
            self._remote_end(stream)
            return
        if assembly.kept_bytes and stream.stream_id not in self._calls.incomplete:
            assembly.since = self._timers.now
            self._calls.incomplete[stream.stream_id] = stream
        stream.unacknowledged += size
        if stream.unacknowledged > self._limits.stream_window_bytes:
            raise StreamFailure(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the stream's window allows")
        if stream.unacknowledged >= self._limits.stream_window_bytes // 2:
            self._output.put(frames.window_update(stream.stream_id, stream.unacknowledged))
            stream.unacknowledged = 0

    def _take_messages(self, stream: Stream, assembly: MessageAssembly, data: bytes, at: i64, stop: i64) -> None:
        """Hands over the messages that `data` ends."""
        while at < stop and not stream.is_finished:
            if assembly.missing_bytes < 0:
                taken = assembly.take_prefix(data, at, stop)
                self._kept.add(taken)
                at += taken
                if assembly.missing_bytes < 0 or not self._may_take(stream, assembly):
                    return
            taken = assembly.take(data, at, stop)
            self._kept.add(taken)
            at += taken
            if assembly.missing_bytes:
                if self._kept.is_over:
                    self._answers.refuse(stream, RESOURCE_EXHAUSTED, _BUFFERS_FULL)
                    self._counters["buffers_full"] += 1
                return
            self._kept.add(-assembly.kept_bytes)
            message = assembly.finish()
            self._calls.incomplete.pop(stream.stream_id, None)
            stream.message(message)

    def _may_take(self, stream: Stream, assembly: MessageAssembly) -> bool:
        """Judges a message by its prefix; a refused one ends the call."""
        size = assembly.message_bytes
        limit = self._limits.message_bytes
        if size > limit:
            self._counters["message_too_large"] += 1
            detail = f"a message of {size} bytes, larger than {limit}"
            self._answers.refuse(stream, RESOURCE_EXHAUSTED, detail)
            return False
        if assembly.is_compressed:
            encoding = stream.header("grpc-encoding", "identity")
            detail = f"message compression {encoding!r} is not offered; send identity"
            self._answers.refuse(stream, UNIMPLEMENTED, detail)
            return False
        return True

    def _remote_end(self, stream: Stream) -> None:
        stream.remote_closed = True
        self._calls.give_up_part(stream)
        if not stream.is_finished:
            stream.half_closed()

    def on_headers(self, data: bytes, start: i64, stop: i64, flags: i64, stream_id: int) -> None:
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
        self.block.begin(data[start:stop], flags, stream_id)

    def on_continuation(self, data: bytes, start: i64, stop: i64, flags: i64) -> None:
        """CONTINUATION; that it belongs to the open block was checked."""
        block = self.block
        if not block.is_open:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_unexpected", "CONTINUATION without HEADERS")
        block.extend(data[start:stop])
        if flags & END_HEADERS:
            whole = block.finish()
            self._on_header_block(whole, 0, len(whole), block.flags, block.stream_id)

    def _on_header_block(self, data: bytes, start: i64, stop: i64, flags: i64, stream_id: int) -> None:
        # Decoded in any case: the table is shared by all streams.
        decoder = self._decoder
        headers = decoder.decode(data, start, stop)
        if not decoder.same_names:
            self._shape = None
        if stream_id & 1 == 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", f"HEADERS on stream {stream_id}")
        calls = self._calls
        if stream_id <= calls.last_stream_id:
            self._on_trailers(stream_id, flags, is_malformed=_are_bad_trailers(headers) or decoder.malformed)
            return
        calls.last_stream_id = stream_id
        if len(calls.open) >= self.calls_max or stream_id > self.refuses_above:
            self._counters["stream_refused"] += 1
            self._budget.charge("too_many_refused_streams", self._timers.now)
            calls.abandon(stream_id)
            self._output.put(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            return
        list_bytes_max = self._limits.header_list_bytes
        if decoder.list_bytes > list_bytes_max and len(headers) * ENTRY_OVERHEAD_BYTES > 4 * list_bytes_max:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "header_bomb", f"{len(headers)} headers in a block")
        shape = self._shape
        if shape is None:
            try:
                shape = self._shape = shape_of(headers)
            except StreamFailure as failure:
                calls.reset_unopened(stream_id, failure.code)
                return
        if decoder.malformed:
            calls.reset_unopened(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        stream = self._maker.new_stream(self._connection, stream_id, headers, shape)
        calls.open[stream_id] = stream
        if flags & END_STREAM:
            stream.remote_closed = True
        if not self._may_open(stream, headers, shape, stop - start):
            return
        stream.is_opened = True
        stream.opened()
        if stream.remote_closed and not stream.is_finished:
            stream.half_closed()

    def _may_open(self, stream: Stream, headers: list[Header], shape: RequestShape, block_bytes: i64) -> bool:
        """Judges a call by its head, and notes what that says of it; a refused one is ended."""
        list_bytes_max = self._limits.header_list_bytes
        if self._decoder.list_bytes > list_bytes_max:
            self._counters["header_list_too_large"] += 1
            self._answers.refuse(stream, RESOURCE_EXHAUSTED, f"headers of more than {list_bytes_max} bytes")
            return False
        if block_bytes > _HEADER_BLOCK_FREE_BYTES:
            stream.header_bytes = 2 * block_bytes
            self._kept.add(stream.header_bytes)
            if self._kept.is_over:
                self._counters["buffers_full"] += 1
                self._answers.refuse(stream, RESOURCE_EXHAUSTED, _BUFFERS_FULL)
                return False
        try:
            judge_values(headers, shape)
        except StreamFailure as failure:
            self._calls.reset(stream, failure)
            return False
        except RequestRefused as refusal:
            self._answers.refuse_http(stream, refusal)
            return False
        if shape.content_length >= 0:
            stream.content_length = int(headers[shape.content_length].value)
            if stream.remote_closed and stream.content_length:
                self._calls.reset(stream, StreamFailure(ErrorCode.PROTOCOL_ERROR, "a content-length without content"))
                return False
        if shape.timeout >= 0:
            seconds = timeout_s(headers[shape.timeout].value)
            if seconds is None:
                self._answers.refuse(stream, INTERNAL, "grpc-timeout is no timeout")
                return False
            timers = self._timers
            deadline = stream.deadline = timers.now + seconds
            if deadline < timers.calls_end_at:
                timers.calls_end_at = deadline
        return True

    def _on_trailers(self, stream_id: int, flags: int, *, is_malformed: bool) -> None:
        stream = self._calls.open.get(stream_id)
        if stream is None:
            self._calls.on_stray_frame(stream_id, "HEADERS")
            if is_malformed or not flags & END_STREAM:
                self._calls.reset_ended(stream_id, ErrorCode.PROTOCOL_ERROR)
        elif stream.remote_closed:
            self._calls.reset(stream, StreamFailure(ErrorCode.STREAM_CLOSED, "HEADERS behind the end of the request"))
        elif is_malformed or not flags & END_STREAM:
            self._calls.reset(stream, StreamFailure(ErrorCode.PROTOCOL_ERROR, "trailers that are none"))
        else:
            try:
                self._take_data(stream, b"", 0, 0, True)
            except StreamFailure as failure:
                self._calls.reset(stream, failure)

    def acknowledge(self) -> None:
        """Gives back what was taken of the connection's window, once it is much. Streams' windows: `_take_data`."""
        if self._unacknowledged >= self._limits.connection_window_bytes // 2:
            self._output.put(frames.window_update(0, self._unacknowledged))
            self._unacknowledged = 0


def _without_padding(data: bytes, start: i64, stop: i64) -> tuple[i64, i64]:
    if stop == start or data[start] >= stop - start:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame_malformed", "padding longer than its frame")
    return start + 1, stop - data[start]


def _are_bad_trailers(headers: list[Header]) -> bool:
    return any(header.name.startswith(":") for header in headers)


# A header block that comes in more than one frame: HEADERS and its CONTINUATIONs (RFC 9113, 6.10).


class HeaderBlock:
    """The block that is being put together, if there is one. One connection has one at a time: no other frame may come
    between its parts.

    Both `begin` and `extend` raise ConnectionFailure when the block grows beyond `Limits`, in bytes or in frames.
    """

    def __init__(self, limits: Limits) -> None:
        self.is_open = False
        """A block has begun and is not whole."""
        self.stream_id = 0
        """The stream of the block that began last. The flags are those of its HEADERS frame."""
        self.flags = 0
        self._limits = limits
        self._data = bytearray()
        self._frame_count = 0

    def begin(self, part: bytes, flags: int, stream_id: int) -> None:
        """The block's bytes in a HEADERS frame that does not end it."""
        self.is_open = True
        self.stream_id = stream_id
        self.flags = flags
        self._frame_count = 0
        self.extend(part)

    def extend(self, part: bytes) -> None:
        """Those in a CONTINUATION."""
        self._data += part
        self._frame_count += 1
        if len(self._data) > self._limits.header_block_bytes:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "header_block_too_large", "a header block too large")
        if self._frame_count > self._limits.continuation_frames:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "continuation_flood", "too many CONTINUATION frames")

    @property
    def size(self) -> int:
        """Of what there is of a block."""
        return len(self._data)

    def finish(self) -> bytes:
        block = bytes(self._data)
        self.clear()
        return block

    def clear(self) -> None:
        """Forgets what there is of a block."""
        self.is_open = False
        self._data = bytearray()
