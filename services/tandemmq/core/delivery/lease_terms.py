"""The terms of a lease, for who asks for one, ends one or sets what leases are like: handles, limits, options."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

# Receipt handles: what a client shows to end a lease. A client need not understand one, and every broker of the cluster
# can read it. A handle is text that needs no escaping in a URL: 29 bytes in hex, a dot, and the name of the broker
# group in base64url without padding. Any node can forward the call by that name, even if it never saw the message.
# Big-endian:
#
#     offset  size  name
#     0       1     version        u8, 1
#     1       4     queue_id       u32
#     5       8     queue_offset   i64
#     13      8     nonce          u64, tells one delivery of a message from the next; the lease table compares it
#     21      8     deadline       i64, lease time in ms: the wall clock, unless that has jumped

_VERSION: Final = 1
_NUMBERS: Final = Struct(">BIqQq")
_BEFORE_OFFSET: Final = Struct(">BI")
_OFFSET: Final = Struct(">q")
_AFTER_OFFSET: Final = Struct(">Qq")
_unpack: Final = _NUMBERS.unpack
_from_hex: Final = bytes.fromhex
_NUMBERS_LENGTH: Final = 2 * _NUMBERS.size
HANDLE_SEPARATOR: Final = "."
_HEX: Final = tuple(f"{byte:02x}" for byte in range(256))


class ReceiptHandle(NamedTuple):
    """The numbers in a handle, in their order; they name one delivery on its broker."""

    version: int
    queue_id: int
    queue_offset: int
    nonce: int
    deadline_ms: int
    """When the lease was to end as the handle was made; a renewed lease ends later."""


def make_handles(
    queue_offsets: Iterable[int], *, queue_id: int, nonce: int, deadline_ms: int, encoded_broker_name: str
) -> list[str]:
    """Handles of the messages of one lease. All parts but the last byte of the offset are put into text once."""
    head = _BEFORE_OFFSET.pack(_VERSION, queue_id).hex()
    tail = f"{_AFTER_OFFSET.pack(nonce, deadline_ms).hex()}{HANDLE_SEPARATOR}{encoded_broker_name}"
    handles: list[str] = []
    block = -1
    head_of_block = ""
    for queue_offset in queue_offsets:
        if queue_offset >> 8 != block:
            block = queue_offset >> 8
            head_of_block = head + _OFFSET.pack(queue_offset).hex()[:-2]
        handles.append(f"{head_of_block}{_HEX[queue_offset & 0xFF]}{tail}")
    return handles


def encode_broker_name(broker_name: str) -> str:
    """The form a broker name has in a handle."""
    return urlsafe_b64encode(broker_name.encode()).decode().rstrip("=")


def read_handle(text: str) -> ReceiptHandle | None:
    """The delivery a handle names; None for a text that is no handle of ours. Which broker made it is not looked at."""
    numbers = read_numbers(text)
    return None if numbers is None else ReceiptHandle._make(numbers)


def read_numbers(text: str) -> tuple[int, ...] | None:
    """The fields of `read_handle` without their names: once per acknowledgement."""
    try:
        numbers: tuple[int, ...] = _unpack(_from_hex(text[:_NUMBERS_LENGTH]))
    except (ValueError, StructError):
        return None
    return numbers if numbers[0] == _VERSION else None


def broker_of_handle(text: str) -> str | None:
    """Name of the broker group that made the handle; None for a text that is no handle of ours."""
    if read_handle(text) is None or text[_NUMBERS_LENGTH : _NUMBERS_LENGTH + 1] != HANDLE_SEPARATOR:
        return None
    encoded = text[_NUMBERS_LENGTH + 1 :]
    try:
        return urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode() or None
    except ValueError:
        return None


# Limits of delivery.

MIN_INVISIBLE_MS: Final = 10_000
"""Shortest lease a client may ask for; the edge answers ILLEGAL_INVISIBLE_TIME below it."""
MAX_INVISIBLE_MS: Final = 12 * 3_600_000
"""Longest lease a client may ask for."""


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """What a lease table may be told."""

    consume_from_earliest: bool = False
    """Where a group begins that never consumed a topic: at the oldest message, or at the end."""
    max_inflight_per_queue: int = 100_000
    """Unacknowledged messages of one group in one queue; new ones wait beyond it. About 100 bytes each."""
    max_scanned_per_receive: int = 4_096
    """Messages one receive looks at when its filter lets few pass: about a millisecond of the event loop."""
    renew_interval_ms: int = 60_000
    """Length of a lease the server renews, and of each renewal. RocketMQ's first lease is as long."""
    renew_total_ms: int = 3 * 3_600_000
    """A message held longer than this by one client returns to its group even if the client lives."""
    client_gone_visible_ms: int = 1_000
    """Leases of a client that is gone end so much later."""
    reconnect_grace_ms: int = 120_000
    """After a restart, how long clients have to come back before they count as gone; as long as a silent session."""
    compaction_floor_bytes: int = 4 << 20
    """A shorter journal is not worth a snapshot."""
