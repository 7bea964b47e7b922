"""Offset message ids: a broker's address and a position in its CommitLog, in upper-case hexadecimal.

| size   | field          |
|--------|----------------|
| 4 / 16 | store address  |
| 4      | port, i32      |
| 8      | physicalOffset |

32 characters for IPv4, 56 for IPv6 (RocketMQ's MessageDecoder.createMessageId). A client's unique id may be as long:
only the context tells them apart.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from mqcore.message.host import Host
from mqcore.offsets import PhysicalOffset

__all__ = ["offset_message_id", "parse_offset_message_id"]

_PORT_AND_OFFSET: Final = Struct(">iq")
_ID_BYTES: Final = (16, 28)


def offset_message_id(store_host: Host, physical_offset: int) -> str:
    """The id of the record at `physical_offset` of the broker at `store_host`."""
    return (store_host.address + _PORT_AND_OFFSET.pack(store_host.port, physical_offset)).hex().upper()


def parse_offset_message_id(text: str) -> tuple[Host, PhysicalOffset]:
    """Broker and position an id names. Raises ValueError if it is none; the position may still hold no record."""
    raw = bytes.fromhex(text)
    if len(raw) not in _ID_BYTES:
        raise ValueError(f"an offset message id has 32 or 56 hexadecimal digits, not {2 * len(raw)}")
    address_bytes = len(raw) - _PORT_AND_OFFSET.size
    port, physical_offset = _PORT_AND_OFFSET.unpack_from(raw, address_bytes)
    return Host(raw[:address_bytes], port), PhysicalOffset(physical_offset)
