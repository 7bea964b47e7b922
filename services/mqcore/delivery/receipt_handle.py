"""Receipt handles: what a client shows to end a lease. Opaque to it, readable by every broker of the cluster.

    1.<queue id>.<queue offset>.<nonce>.<deadline>.<broker name>

Lower-case hex without leading zeros, the broker name in base64url without padding: only characters that need no
escaping in a URL. The nonce tells one delivery of a message from the next; the lease table compares it. The broker name
lets any node forward the call, also one that never saw the message.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

__all__ = ["HandleMaker", "ReceiptHandle", "broker_of_handle", "encode_broker_name", "read_handle"]

_VERSION: Final = "1"
_PART_COUNT: Final = 6
_MAX_LENGTH: Final = 512
"""Far above the longest we make: 5 numbers and a broker name of 127 characters."""


class ReceiptHandle(NamedTuple):
    """The parts of a handle that name one delivery on its broker."""

    queue_id: int
    queue_offset: int
    nonce: int
    deadline_ms: int
    """Wall clock at which the lease was to end when the handle was made; a renewed lease ends later."""


class HandleMaker:
    """Makes handles of one lease: all parts but the offset are the same and are put into text once."""

    __slots__ = ("_head", "_tail")

    def __init__(self, *, queue_id: int, nonce: int, deadline_ms: int, encoded_broker_name: str) -> None:
        self._head = f"{_VERSION}.{queue_id:x}."
        self._tail = f".{nonce:x}.{deadline_ms:x}.{encoded_broker_name}"

    def handle(self, queue_offset: int) -> str:
        """The handle of the message at `queue_offset`."""
        return f"{self._head}{queue_offset:x}{self._tail}"


def encode_broker_name(broker_name: str) -> str:
    """The form a broker name has in a handle."""
    return urlsafe_b64encode(broker_name.encode()).decode().rstrip("=")


def read_handle(text: str) -> ReceiptHandle | None:
    """The delivery a handle names; None for a text that is no handle of ours. Which broker made it is not looked at."""
    parts = text.split(".", _PART_COUNT)
    if len(parts) != _PART_COUNT or len(text) > _MAX_LENGTH or parts[0] != _VERSION:
        return None
    try:
        return ReceiptHandle(int(parts[1], 16), int(parts[2], 16), int(parts[3], 16), int(parts[4], 16))
    except ValueError:
        return None


def broker_of_handle(text: str) -> str | None:
    """Name of the broker group that made the handle; None for a text that is no handle of ours."""
    if read_handle(text) is None:
        return None
    encoded = text.rpartition(".")[2]
    try:
        return urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except ValueError:
        return None
