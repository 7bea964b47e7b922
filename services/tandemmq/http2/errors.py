"""HTTP/2's error codes (RFC 9113, section 7), the exceptions that carry them, the limits of a front, and who
it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandemmq.http2.connection import Connection


class ErrorCode(IntEnum):
    """What RST_STREAM and GOAWAY say."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB


class ConnectionFailure(Exception):
    """The peer broke the protocol, or a limit, in a way that ends the connection."""

    def __init__(self, code: ErrorCode, counter: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        # Name under which it is counted.
        self.counter = counter
        self.detail = detail


class StreamFailure(Exception):
    """The same, for one stream."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


# Every bound of the front, and what all connections of a server use together. The defaults leave the official clients
# alone and stop each known attack. A violation raises the counter named behind its limit, in `Connection.counters`.


class TlsMode(StrEnum):
    """Which clients a port takes; RocketMQ's `tls.server.mode`."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds."""

    # One message of a request. Larger: the call ends with RESOURCE_EXHAUSTED before its bytes are kept.
    message_bytes: int = 130 << 20
    # Open calls of one connection. More: REFUSED_STREAM, which gRPC clients retry ("stream_refused").
    concurrent_streams: int = 4_000
    # Open calls of all connections together; more are refused the same way, but for those of an address that has less
    # than its share, with which there may be twice as many.
    server_streams: int = 200_000
    # Connections of one server. More are closed at once ("connection_refused"), but for those of an address that has
    # less than its share: one of an address that has more ends for it ("connection_gave_way").
    connections: int = 20_000
    # Decoded names and values of one request, 32 more for each. More: RESOURCE_EXHAUSTED ("header_list_too_large").
    # More headers than four times as much could hold: the connection ends ("header_bomb").
    header_list_bytes: int = 16 << 10
    # Encoded header block, and the frames it may come in ("header_block_too_large", "continuation_flood").
    header_block_bytes: int = 64 << 10
    continuation_frames: int = 16
    # Largest frame taken ("frame_too_large").
    frame_bytes: int = 64 << 10
    # What a peer may send ahead of our WINDOW_UPDATEs: large, so that few of them are needed.
    stream_window_bytes: int = 4 << 20
    connection_window_bytes: int = 16 << 20
    # Unfinished request messages and frames, large headers and unsent responses, of one connection and of all together.
    # Over it, the stream that asks for more ends with RESOURCE_EXHAUSTED ("buffers_full"), or, if half of that is
    # unfinished frames, their connection; of all together, one of an address that has more than its share, and beyond
    # twice as much any.
    connection_buffer_bytes: int = 192 << 20
    server_buffer_bytes: int = 1 << 30
    # Frames that ask for work and bring nothing: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, RST_STREAM, empty DATA, and
    # whatever makes us send RST_STREAM. A peer may send `idle_burst` of them at once, `idle_per_s` in the long run and
    # `idle_per_answer` for every DATA frame it is sent ("too_many_<frame>").
    idle_burst: int = 2_000
    idle_per_s: int = 500
    idle_per_answer: int = 4
    # The preface and first SETTINGS must be here by then ("preface_timeout").
    preface_timeout_s: float = 10.0
    tls_handshake_timeout_s: float = 10.0
    # A frame or header block that has begun must be whole by then, or the connection ends ("frame_timeout"); a request
    # message, or its call ends ("message_timeout").
    frame_timeout_s: float = 60.0
    message_timeout_s: float = 120.0
    # A silent peer is pinged, and given up when no byte comes ("keepalive_timeout").
    keepalive_s: float = 10.0
    keepalive_timeout_s: float = 5.0
    # A peer that takes less than `write_stall_bytes` of the answers waiting for it, at its socket or by its windows, in
    # `write_stall_s` ("slow_reader"). Its connection ends, or if other answers still pass, the calls that wait.
    write_stall_s: float = 60.0
    write_stall_bytes: int = 16 << 10
    # Grace between the first and the final GOAWAY of a drain, for requests that are on their way.
    drain_grace_s: float = 1.0


@dataclass(slots=True)
class Usage:
    """What is kept for all connections of one server."""

    buffered_bytes: int = 0
    unfinished_bytes: int = 0
    """Of these, in frames and header blocks that are not whole."""
    streams: int = 0
    calls_left: Callable[[Connection], int] | None = None
    """When there is no room for more calls: how many more this connection may have of its address's share."""
    is_greedy: Callable[[Connection], bool] | None = None
    """When too much is kept: its address has more than its share. None: nobody has a share."""
