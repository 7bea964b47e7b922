"""A call's status as header fields."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from tandemmq.http2.hpack import literal

__all__ = ["DEADLINE_EXCEEDED", "INTERNAL", "OK", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "status_fields"]

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
