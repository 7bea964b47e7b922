"""What users of this library send and get: values without protobuf."""

from __future__ import annotations

import itertools
import os
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from tandemmq.core.clock import Clock

__all__ = ["MessageIdSource", "ReceivedMessage", "SendReceipt"]


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Where an acknowledged message was stored."""

    message_id: str
    broker_name: str
    queue_offset: int
    # Tries it took; above 1 the message may be stored more than once.
    attempts: int


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """One delivery. Its lease runs from the receive; `receipt_handle` is what ends or changes it."""

    topic: str
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    message_id: str
    message_group: str | None
    born_timestamp_ms: int
    store_timestamp_ms: int
    queue_id: int
    queue_offset: int
    # 1 for the first delivery.
    delivery_attempt: int
    receipt_handle: str
    # Whoever gave the lease must be asked to end it.
    endpoint: str
    # False when the body does not match the digest the broker sent with it.
    intact: bool


# Message ids as the official clients make them (MessageIdCodec, version 1).

# 2021-01-01T00:00:00Z in seconds.
_EPOCH_S = 1_609_459_200

# | offset | size | name    | meaning                                            |
# |      0 |    1 | version | 1                                                  |
# |      1 |    6 | mac     | hardware address, or a random one per process      |
# |      7 |    2 | pid     | low 16 bits of the process id                      |
# |      9 |    4 | seconds | since 2021-01-01 UTC when the source was made      |
# |     13 |    4 | counter | of this source, wraps                              |
_LAYOUT = struct.Struct(">B6sHII")


class MessageIdSource:
    """Makes ids of 34 upper-case hex digits, unique among processes and within this one. Event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._mac = uuid.getnode().to_bytes(6, "big")
        self._pid = os.getpid() & 0xFFFF
        self._seconds = (clock.wall_ms() // 1_000 - _EPOCH_S) & 0xFFFFFFFF
        # The counter starts at a random place: two sources of one process may be made within one second.
        self._counter = itertools.count(int.from_bytes(os.urandom(3), "big"))

    def next_id(self) -> str:
        counter = next(self._counter) & 0xFFFFFFFF
        return _LAYOUT.pack(1, self._mac, self._pid, self._seconds, counter).hex().upper()
