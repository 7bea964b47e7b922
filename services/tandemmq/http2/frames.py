"""HTTP/2 frames (RFC 9113, section 6), what the headers of a request must be, and a status as fields of trailers.

A request's headers follow HTTP/2's rules (RFC 9113, section 8) and gRPC's on top. Much of that shows in the names
alone, and a client sends the same few sequences of names for ever. So each sequence is judged once, and the result is
kept as a `RequestShape`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from urllib.parse import quote

from mypy_extensions import i64

from tandemmq.http2.errors import ErrorCode, StreamFailure
from tandemmq.http2.hpack import Header, literal

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
SETTING: Final = Struct(">HI")
U32: Final = Struct(">I")
_GOAWAY_HEAD: Final = Struct(">II")


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return FRAME_HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def headers(stream_id: int, block: bytes, *, end_stream: bool) -> bytes:
    """HEADERS with the whole block."""
    return frame(HEADERS, END_HEADERS | END_STREAM if end_stream else END_HEADERS, stream_id, block)


def rst_stream(stream_id: int, code: int) -> bytes:
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


# The headers of requests.

_PSEUDO_HEADERS: Final = frozenset((":method", ":scheme", ":path", ":authority"))
_OF_ONE_CONNECTION: Final = frozenset(("connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"))
_SECONDS: Final = {"H": 3_600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT_DIGITS_MAX: Final = 8
# What a client's deadline leaves when it sends differs by some microseconds from call to call.
_timeouts: Final[dict[str, float]] = {}
_TIMEOUTS_MAX: Final = 1_024
_ZERO: Final = ord("0")
_CONTENT_TYPE: Final = "application/grpc"
# More than any length has, and few enough that the number is made in no time.
_LENGTH_DIGITS_MAX: Final = 18

_ABSENT: Final = -1


class RequestShape:
    """Where in a list of headers each name stands; of a name that came twice, the last place. -1: not there."""

    __slots__ = ("content_length", "content_type", "method", "path", "places", "te", "timeout", "traceparent")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.places: Final = {name: place for place, name in enumerate(names)}
        self.path: Final[i64] = self.places[":path"]
        self.method: Final[i64] = self.places[":method"]
        self.te: Final[i64] = self.places.get("te", _ABSENT)
        self.timeout: Final[i64] = self.places.get("grpc-timeout", _ABSENT)
        self.content_type: Final[i64] = self.places.get("content-type", _ABSENT)
        self.content_length: Final[i64] = self.places.get("content-length", _ABSENT)
        self.traceparent: Final[i64] = self.places.get("traceparent", _ABSENT)


_shapes: dict[tuple[str, ...], RequestShape] = {}
_SHAPES_MAX: Final = 256
# Longer sequences are judged each time: nobody's usual requests, and the map should stay small.
_SHAPE_NAMES_MAX: Final = 64


class RequestRefused(Exception):
    """HTTP, but not gRPC; answered with an HTTP status."""

    def __init__(self, http_status: int, *, allow: str = "") -> None:
        super().__init__(f"HTTP status {http_status}")
        self.http_status = http_status
        self._allow = allow

    def fields(self) -> list[bytes]:
        """Headers of the answer beside its status, encoded."""
        return [literal("allow", self._allow)] if self._allow else []


def shape_of(headers: list[Header]) -> RequestShape:
    """Where everything is. StreamFailure for names that make no request."""
    names = tuple([header.name for header in headers])
    shape = _shapes.get(names)
    if shape is None:
        _judge_names(names)
        if len(names) > _SHAPE_NAMES_MAX:
            return RequestShape(names)
        if len(_shapes) >= _SHAPES_MAX:
            # Whoever filled it with odd ones must not slow the usual ones down for ever.
            _shapes.clear()
        shape = _shapes[names] = RequestShape(names)
    return shape


def judge_values(headers: list[Header], shape: RequestShape) -> None:
    """StreamFailure for a malformed request, RequestRefused for one that is not gRPC's."""
    if shape.te >= 0 and headers[shape.te].value != "trailers":
        raise StreamFailure(ErrorCode.PROTOCOL_ERROR, "te is not 'trailers'")
    if not headers[shape.path].value:
        raise StreamFailure(ErrorCode.PROTOCOL_ERROR, "an empty path")
    if shape.content_length >= 0:
        length = headers[shape.content_length].value
        if not length.isdecimal() or len(length) > _LENGTH_DIGITS_MAX:
            raise StreamFailure(ErrorCode.PROTOCOL_ERROR, "a content-length that is no number")
    if headers[shape.method].value != "POST":
        raise RequestRefused(405, allow="POST")
    content_type = headers[shape.content_type].value if shape.content_type >= 0 else ""
    if content_type != _CONTENT_TYPE and not content_type.startswith((_CONTENT_TYPE + "+", _CONTENT_TYPE + ";")):
        raise RequestRefused(415)


def _judge_names(names: tuple[str, ...]) -> None:
    pseudo_count = 0
    for place, name in enumerate(names):
        if name.startswith(":"):
            if name not in _PSEUDO_HEADERS or place != pseudo_count:
                raise StreamFailure(ErrorCode.PROTOCOL_ERROR, "an unknown pseudo header, or one behind a header")
            pseudo_count += 1
        elif name in _OF_ONE_CONNECTION:
            raise StreamFailure(ErrorCode.PROTOCOL_ERROR, f"{name} has no place in HTTP/2")
    pseudo = names[:pseudo_count]
    if len(set(pseudo)) != pseudo_count or not {":method", ":scheme", ":path"} <= set(pseudo):
        raise StreamFailure(ErrorCode.PROTOCOL_ERROR, "a pseudo header is missing or there twice")


def timeout_s(text: str) -> float | None:
    """`grpc-timeout` in seconds; None if it is none."""
    seconds = _timeouts.get(text)
    if seconds is None:
        seconds = _parsed_timeout(text)
        if seconds is not None:
            if len(_timeouts) >= _TIMEOUTS_MAX:
                _timeouts.clear()
            _timeouts[text] = seconds
    return seconds


def _parsed_timeout(text: str) -> float | None:
    last: i64 = len(text) - 1
    if last < 1 or last > _TIMEOUT_DIGITS_MAX:
        return None
    number: i64 = 0
    for place in range(last):
        digit: i64 = ord(text[place]) - _ZERO
        if digit < 0 or digit > 9:
            return None
        number = number * 10 + digit
    unit_s = _SECONDS.get(text[last])
    return None if unit_s is None else float(int(number)) * unit_s


# A call's status as header fields.


# gRPC status numbers the connection itself answers with.
OK: Final = 0
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13

# grpc-message: printable ASCII stays, the rest is percent-encoded.
_MESSAGE_SAFE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_DETAIL_CHARACTERS_MAX: Final = 1_024
# The same encoded. Clients begin to refuse headers at 8 KiB.
_DETAIL_BYTES_MAX: Final = 4_096


def status_fields(status: int, detail: str) -> bytes:
    """The trailers of any status: fields of a header block that touch no table."""
    fields = literal("grpc-status", str(status))
    if detail:
        fields += literal("grpc-message", _percent_encoded(detail))
    if status == UNIMPLEMENTED:
        fields += literal("grpc-accept-encoding", "identity")
    return fields


def _percent_encoded(detail: str) -> str:
    """A status detail as `grpc-message`; cut where it is too long for a header."""
    detail = detail[:_DETAIL_CHARACTERS_MAX]
    while len(encoded := quote(detail, safe=_MESSAGE_SAFE, errors="replace")) > _DETAIL_BYTES_MAX:
        detail = detail[: len(detail) // 2]
    return encoded
