"""HTTP/2's error codes (RFC 9113, section 7) and the exceptions that carry them inside this package."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ConnectionFailure", "ErrorCode", "HeaderBlockError", "StreamFailure"]


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


class HeaderBlockError(Exception):
    """A header block that cannot be decoded; the shared table is out of step, so the connection is lost."""
