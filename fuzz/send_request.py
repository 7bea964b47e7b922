"""Feeds SendMessage requests to the broker's own decoder: it must read what protobuf reads, or leave it to protobuf.

    make fuzz ONLY=send_request      # coverage-guided, by atheris: build/fuzz.json
    python -m fuzz.send_request      # a few thousand cases of one seed, without atheris

Input whose first byte is odd is a request as it is, other input is a program that one is made by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

from fuzz.encoded_message import encoded_message
from fuzz.source import Source, any_bytes, run_all
from tandemmq.broker.client_api.sent_message import MESSAGES_MAX, SendRequest, SentMessage, decode_messages
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

INPUT_BYTES_MAX: Final = 600
FIELDS: Final = tuple(
    name for name in dir(SentMessage) if not name.startswith("_") and not callable(getattr(SentMessage, name))
)


def run_one(data: bytes) -> None:
    """One input. AssertionError, or whatever escapes, is a finding."""
    source = Source(data)
    request = source.rest() if source.byte() & 1 else encoded_message(source, pb.SendMessageRequest)
    expected = by_protobuf(request)
    decoded = decode_messages(request)
    assert decoded is None or _is_refused(decoded) or all_fields(decoded) == expected, (request.hex(), expected)
    try:
        messages = SendRequest.FromString(request)
    except DecodeError:
        assert expected is None, request.hex()
    else:
        assert _is_refused(messages) or all_fields(messages) == expected, (request.hex(), expected)


def _is_refused(messages: list[SentMessage]) -> bool:
    """Of a request with more, or with more fields, the decoder says so and reads no further."""
    return len(messages) > MESSAGES_MAX


def by_protobuf(request: bytes) -> list[dict[str, object]] | None:
    """What protobuf reads; None if it refuses the request."""
    try:
        messages = pb.SendMessageRequest.FromString(request).messages
    except DecodeError:
        return None
    return all_fields([SentMessage.of(message) for message in messages])


def all_fields(messages: list[SentMessage]) -> list[dict[str, object]]:
    """What can be compared."""
    return [{name: getattr(message, name) for name in FIELDS} for message in messages]


def seeds(count: int, *, seed: int = 4) -> Iterator[bytes]:
    """Inputs to begin with."""
    yield b"\x01" + _usual_request().SerializeToString()
    yield from any_bytes(count, seed=seed, bytes_max=INPUT_BYTES_MAX)


def _usual_request() -> pb.SendMessageRequest:
    request = pb.SendMessageRequest()
    message = request.messages.add(body=b"body", user_properties={"color": "blue"})
    message.topic.name = "orders"
    system = message.system_properties
    system.tag = "red"
    system.keys.append("key")
    system.message_id = "01F5C3A8B2D4E60001A2B3C400000001"
    system.body_digest.type = definition.CRC32
    system.body_digest.checksum = "0A"
    system.message_type = definition.NORMAL
    system.born_timestamp.seconds = 1_700_000_000
    system.born_timestamp.nanos = 5_000_000
    system.born_host = "host"
    system.queue_id = 3
    system.message_group = "group"
    system.trace_context = "00-trace"
    return request


if __name__ == "__main__":
    run_all(run_one, seeds(5_000))
