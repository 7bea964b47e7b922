"""What a request's headers must be: HTTP/2's rules (RFC 9113, section 8) and gRPC's on top."""

from __future__ import annotations

from typing import Final

from mqgrpc.errors import ErrorCode, StreamFailure
from mqgrpc.hpack import Header, literal

__all__ = ["RequestRefused", "judge_request", "timeout_s"]

_PSEUDO_HEADERS: Final = frozenset((":method", ":scheme", ":path", ":authority"))
_OF_ONE_CONNECTION: Final = frozenset(("connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"))
_SECONDS: Final = {"H": 3_600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT_DIGITS_MAX: Final = 8
_CONTENT_TYPE: Final = "application/grpc"

# Sequences of names that passed once: a client sends the same few for ever. Bounded, since anybody can send new ones.
_good_sequences: set[tuple[str, ...]] = set()
_GOOD_SEQUENCES_MAX: Final = 256


class RequestRefused(Exception):
    """HTTP, but not gRPC; answered with an HTTP status."""

    def __init__(self, http_status: int, *, allow: str = "") -> None:
        super().__init__(f"HTTP status {http_status}")
        self.http_status = http_status
        self._allow = allow

    def fields(self) -> list[bytes]:
        """Headers of the answer beside its status, encoded."""
        return [literal("allow", self._allow)] if self._allow else []


def judge_request(headers: list[Header], fields: dict[str, str]) -> None:
    """StreamFailure for a malformed request, RequestRefused for one that is not gRPC's. `fields`: the same as a map."""
    names = tuple([name for name, _ in headers])
    if names not in _good_sequences:
        _judge_names(names)
        if len(_good_sequences) < _GOOD_SEQUENCES_MAX:
            _good_sequences.add(names)
    if fields.get("te", "trailers") != "trailers":
        raise StreamFailure(ErrorCode.PROTOCOL_ERROR, "te is not 'trailers'")
    if not fields[":path"] or not fields.get("content-length", "0").isdecimal():
        raise StreamFailure(ErrorCode.PROTOCOL_ERROR, "an empty path, or a content-length that is no number")
    if fields[":method"] != "POST":
        raise RequestRefused(405, allow="POST")
    content_type = fields.get("content-type", "")
    if content_type != _CONTENT_TYPE and not content_type.startswith((_CONTENT_TYPE + "+", _CONTENT_TYPE + ";")):
        raise RequestRefused(415)


def _judge_names(names: tuple[str, ...]) -> None:
    """What can be told from the names alone."""
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
    digits, unit = text[:-1], text[-1:]
    if unit not in _SECONDS or not digits.isdecimal() or len(digits) > _TIMEOUT_DIGITS_MAX:
        return None
    return int(digits) * _SECONDS[unit]
