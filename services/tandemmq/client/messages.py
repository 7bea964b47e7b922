"""What users of this library send and get: values without protobuf. And what can go wrong."""

from __future__ import annotations

import itertools
import os
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandemmq.core.clock import Clock


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


# What can go wrong for a user of this library. Every message says which address was asked and what it answered.


class ClientError(Exception):
    """Root of this library's errors. `endpoint` is the address at fault, None when none was asked."""

    endpoint: str | None = None


class AccessPointInvalid(ClientError):
    """The configured address is no `host:port`; the user's fault, nothing was sent."""


class EndpointUnreachable(ClientError):
    """No answer from `endpoint` within the time limit. Whether the request took effect is unknown."""

    def __init__(self, endpoint: str, call: str, reason: str) -> None:
        super().__init__(f"{call} at {endpoint}: {reason}")
        self.endpoint = endpoint


class BrokerRefused(ClientError):
    """`endpoint` answered with RocketMQ's `code`. `retryable` tells whether another try may succeed."""

    def __init__(self, endpoint: str, call: str, code: int, code_name: str, text: str, *, retryable: bool) -> None:
        super().__init__(f"{call} at {endpoint}: {code_name} ({code}) {text}".rstrip())
        self.endpoint = endpoint
        self.code = code
        self.code_name = code_name
        self.retryable = retryable


class TopicNotFound(BrokerRefused):
    """The topic has no route: it does not exist, or no broker that serves it is alive."""


class SendFailed(ClientError):
    """All attempts of one send failed. The message may be stored, possibly more than once, under `message_id`."""

    def __init__(self, topic: str, message_id: str, failures: list[ClientError]) -> None:
        # What every attempt met alike is said once.
        tried = "; ".join(dict.fromkeys(str(failure) for failure in failures))
        super().__init__(f"topic {topic}, message {message_id}: {len(failures)} attempts failed: {tried}")
        self.message_id = message_id
        self.failures = failures
