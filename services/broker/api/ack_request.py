"""The request of AckMessage, the call that comes most often: most clients make one for each message.

What they all send - group, topic, then entries of a message id and a handle - is read from its bytes in place, and an
entry's bytes go into the answer as they are. Whatever looks otherwise is left to protobuf.

    0A length   group: Resource
    12 length   topic: Resource
    1A length   entry, any number:  0A length  message id,  12 length  receipt handle
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from apache.rocketmq.v2 import service_pb2 as pb

from broker.api.wire_format import encoded_length, tag_of

__all__ = ["AckRequest"]

# Pairs of a group and a topic whose encoded names are remembered; each costs about 300 bytes.
_NAMES_MAX: Final = 4_096

_GROUP: Final = tag_of(pb.AckMessageRequest, "group")[0]
_TOPIC: Final = tag_of(pb.AckMessageRequest, "topic")[0]
_ENTRY: Final = tag_of(pb.AckMessageRequest, "entries")[0]
# The fields of a request's entry have the same numbers in an answer's.
_MESSAGE_ID: Final = tag_of(pb.AckMessageResultEntry, "message_id")
_RECEIPT_HANDLE: Final = tag_of(pb.AckMessageResultEntry, "receipt_handle")
_MESSAGE_ID_BYTE: Final = _MESSAGE_ID[0]
_RECEIPT_HANDLE_BYTE: Final = _RECEIPT_HANDLE[0]


class AckRequest:
    """One request. `entries` has message id and handle of each as they are encoded, in a request and in an answer."""

    __slots__ = ("entries", "group", "handles", "topic")

    def __init__(self, group: str, topic: str, handles: list[str], entries: list[bytes]) -> None:
        self.group: Final = group
        self.topic: Final = topic
        self.handles: Final = handles
        self.entries: Final = entries

    @staticmethod
    def FromString(data: bytes, /) -> AckRequest:  # noqa: N802  # as messages of protobuf have it
        """Reads a request; raises protobuf's DecodeError."""
        try:
            request = _plain(data)
        except IndexError:  # ends inside a field
            request = None
        return _any(data) if request is None else request


def _plain(data: bytes) -> AckRequest | None:
    """The usual request; None for any other."""
    size = len(data)
    if size < 2 or data[0] != _GROUP:
        return None
    topic_at = 2 + data[1]
    if data[topic_at] != _TOPIC:
        return None
    entry_at = topic_at + 2 + data[topic_at + 1]
    if data[1] > 0x7F or data[topic_at + 1] > 0x7F or entry_at > size:
        return None
    group, topic = _names(data[:entry_at])
    handles: list[str] = []
    entries: list[bytes] = []
    while entry_at < size:
        start = entry_at + 2
        end = start + data[entry_at + 1]
        entry = data[start:end]
        # In ASCII: no length of two bytes, and no text that is none.
        if data[entry_at] != _ENTRY or data[entry_at + 1] > 0x7F or end > size or not entry.isascii():
            return None
        handle_at = 2 + entry[1]
        if entry[0] != _MESSAGE_ID_BYTE or entry[handle_at] != _RECEIPT_HANDLE_BYTE:
            return None
        if handle_at + 2 + entry[handle_at + 1] != len(entry):
            return None
        handles.append(entry[handle_at + 2 :].decode())
        entries.append(entry)
        entry_at = end
    return AckRequest(group, topic, handles, entries)


@lru_cache(maxsize=_NAMES_MAX)
def _names(data: bytes) -> tuple[str, str]:
    """Group and topic of a request without entries."""
    request = pb.AckMessageRequest.FromString(data)
    return request.group.name, request.topic.name


def _any(data: bytes) -> AckRequest:
    request = pb.AckMessageRequest.FromString(data)
    # A list: protobuf's own container ends each iteration with an exception and its text.
    entries = request.entries[:]
    handles = [entry.receipt_handle for entry in entries]
    encoded = [_encoded(entry.message_id.encode(), handle.encode()) for entry, handle in zip(entries, handles)]
    return AckRequest(request.group.name, request.topic.name, handles, encoded)


def _encoded(message_id: bytes, handle: bytes) -> bytes:
    return b"".join(
        (_MESSAGE_ID, encoded_length(message_id), message_id, _RECEIPT_HANDLE, encoded_length(handle), handle)
    )
