"""Feeds AckMessage requests to the broker's own decoder: it must read, and refuse, what protobuf reads and refuses.

    make fuzz ONLY=ack_request      # coverage-guided, by atheris: build/fuzz.json
    python -m fuzz.ack_request      # a few thousand cases of one seed, without atheris

Input whose first byte is odd is a request as it is, other input is a program that one is made by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

from fuzz.encoded_message import encoded_message
from fuzz.source import Source, any_bytes, run_all
from tandemmq.broker.client_api.settle import AckRequest
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

INPUT_BYTES_MAX: Final = 300
ENTRIES_MAX: Final = 1_024
"""Of a request with more, or with more fields, the decoder says so and reads no further: it is refused."""


def run_one(data: bytes) -> None:
    """One input. AssertionError, or whatever escapes, is a finding."""
    source = Source(data)
    request = source.rest() if source.byte() & 1 else encoded_message(source, pb.AckMessageRequest)
    found, expected = here(request), by_protobuf(request)
    if found is not None and len(found[2]) > ENTRIES_MAX:
        return
    assert found == expected, (request.hex(), found, expected)


def here(request: bytes) -> tuple[str, str, list[tuple[str, str]]] | None:
    """Group, topic, and message id and handle of each entry; None if the request is refused."""
    try:
        decoded = AckRequest.FromString(request)
    except DecodeError:
        return None
    # An entry goes into the answer as it is, and a client reads it there.
    entries = [pb.AckMessageResultEntry.FromString(entry) for entry in decoded.entries]
    assert [entry.receipt_handle for entry in entries] == decoded.handles, request.hex()
    return decoded.group, decoded.topic, [(entry.message_id, entry.receipt_handle) for entry in entries]


def by_protobuf(request: bytes) -> tuple[str, str, list[tuple[str, str]]] | None:
    """The same, by protobuf alone."""
    try:
        decoded = pb.AckMessageRequest.FromString(request)
    except DecodeError:
        return None
    entries = [(entry.message_id, entry.receipt_handle) for entry in decoded.entries]
    return decoded.group.name, decoded.topic.name, entries


def seeds(count: int, *, seed: int = 4) -> Iterator[bytes]:
    """Inputs to begin with."""
    request = pb.AckMessageRequest()
    request.group.name = "readers"
    request.topic.name = "orders"
    for number in range(2):
        request.entries.add(message_id=f"01F5C3A8B2D4E60001A2B3C40000000{number}", receipt_handle=f"handle-{number}")
    yield b"\x01" + request.SerializeToString()
    yield from any_bytes(count, seed=seed, bytes_max=INPUT_BYTES_MAX)


if __name__ == "__main__":
    run_all(run_one, seeds(5_000))
