"""HTTP/2 frames (RFC 9113, section 6): numbers, and the frames a server sends."""

from __future__ import annotations

from struct import Struct
from typing import Final

__all__ = [
    "ACK",
    "CONTINUATION",
    "DATA",
    "DEFAULT_FRAME_BYTES",
    "DEFAULT_WINDOW_BYTES",
    "END_HEADERS",
    "END_STREAM",
    "FRAME_HEAD",
    "FRAME_HEAD_BYTES",
    "GOAWAY",
    "HEADERS",
    "MESSAGE_HEAD",
    "MESSAGE_HEAD_BYTES",
    "PADDED",
    "PING",
    "PREFACE",
    "PRIORITY",
    "PRIORITY_FLAG",
    "PUSH_PROMISE",
    "RST_STREAM",
    "SETTING",
    "SETTINGS",
    "SETTINGS_ENABLE_PUSH",
    "SETTINGS_HEADER_TABLE_SIZE",
    "SETTINGS_INITIAL_WINDOW_SIZE",
    "SETTINGS_MAX_CONCURRENT_STREAMS",
    "SETTINGS_MAX_FRAME_SIZE",
    "SETTINGS_MAX_HEADER_LIST_SIZE",
    "STREAM_ID_BYTES",
    "STREAM_ID_MAX",
    "U32",
    "WINDOW_MAX",
    "WINDOW_UPDATE",
    "frame",
    "goaway",
    "headers",
    "rst_stream",
    "settings",
    "window_update",
]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

END_STREAM: Final = 0x01
ACK: Final = 0x01
END_HEADERS: Final = 0x04
PADDED: Final = 0x08
PRIORITY_FLAG: Final = 0x20

SETTINGS_HEADER_TABLE_SIZE: Final = 0x1
SETTINGS_ENABLE_PUSH: Final = 0x2
SETTINGS_MAX_CONCURRENT_STREAMS: Final = 0x3
SETTINGS_INITIAL_WINDOW_SIZE: Final = 0x4
SETTINGS_MAX_FRAME_SIZE: Final = 0x5
SETTINGS_MAX_HEADER_LIST_SIZE: Final = 0x6

DEFAULT_FRAME_BYTES: Final = 16_384
DEFAULT_WINDOW_BYTES: Final = 65_535
WINDOW_MAX: Final = 2**31 - 1
STREAM_ID_MAX: Final = 2**31 - 1

# Length (24 bits) and type (8) as one number, flags, stream id with its reserved bit.
FRAME_HEAD: Final = Struct(">IBI")
FRAME_HEAD_BYTES: Final = 9
STREAM_ID_BYTES: Final = 4
# gRPC's prefix of a message: compressed or not, length.
MESSAGE_HEAD: Final = Struct(">BI")
MESSAGE_HEAD_BYTES: Final = 5
SETTING: Final = Struct(">HI")
U32: Final = Struct(">I")
_GOAWAY_HEAD: Final = Struct(">II")


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """One frame."""
    return FRAME_HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def headers(stream_id: int, block: bytes, *, end_stream: bool) -> bytes:
    """HEADERS with the whole block."""
    return frame(HEADERS, END_HEADERS | END_STREAM if end_stream else END_HEADERS, stream_id, block)


def rst_stream(stream_id: int, code: int) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, 0, stream_id, U32.pack(code))


def window_update(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE; stream id 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, U32.pack(increment))


def settings(values: dict[int, int]) -> bytes:
    """SETTINGS, not an acknowledgement."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(name, value) for name, value in values.items()))


def goaway(last_stream_id: int, code: int, detail: str = "") -> bytes:
    """GOAWAY with its reason in words."""
    return frame(GOAWAY, 0, 0, _GOAWAY_HEAD.pack(last_stream_id, code) + detail.encode("utf-8"))
