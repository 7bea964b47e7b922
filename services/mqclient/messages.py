"""What users of this library send and get: values without protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ReceivedMessage", "SendReceipt"]


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
