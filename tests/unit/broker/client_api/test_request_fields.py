"""Requests are counted as protobuf reads them."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.client_api.request_fields import has_more_fields
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

_ENTRIES = st.lists(st.builds(pb.AckMessageEntry, message_id=st.text(max_size=200)), max_size=6)


@given(_ENTRIES)
def test_entries_are_counted(entries: list[pb.AckMessageEntry]) -> None:
    data = pb.AckMessageRequest(entries=entries).SerializeToString()
    assert not has_more_fields(data, len(entries))
    assert has_more_fields(data, len(entries) - 1) or not entries


@given(st.binary(max_size=60))
def test_what_protobuf_reads_has_no_more_entries_than_fields(data: bytes) -> None:
    try:
        count = len(pb.AckMessageRequest.FromString(data).entries)
    except DecodeError:
        return
    assert not count or has_more_fields(data, count - 1)


def test_fields_of_any_number_and_type_count() -> None:
    data = b"\x08\x01" + b"\x11" + bytes(8) + b"\x1d" + bytes(4) + b"\xa2\x06\x01x"
    assert has_more_fields(data, 3)
    assert not has_more_fields(data, 4)
    assert not has_more_fields(b"\x0b" + data, 4)
