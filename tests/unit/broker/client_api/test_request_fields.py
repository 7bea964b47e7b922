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
    assert not has_more_fields(b"\x0e" + data, 4), "of no type that there is"


@given(st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_groups_hide_nothing(before: int, behind: int, is_inside: bool) -> None:
    """Fields of a kind that protobuf passes over, and that no client writes."""
    entries = b"\x1a\x00" * behind
    data = b"\x1a\x00" * before + (b"\x7b" + entries + b"\x7c" if is_inside else b"\x7b\x7c" + entries)
    count = len(pb.AckMessageRequest.FromString(data).entries)
    assert count == before + (0 if is_inside else behind)
    assert has_more_fields(data, before + behind + 1)
    assert not has_more_fields(data, before + behind + 2)


def test_what_is_inside_counts_where_it_is_named() -> None:
    inner = b"\x12\x00" * 5
    data = b"\x0a" + bytes([len(inner)]) + inner + b"\x12\x0a" + inner
    assert has_more_fields(data, 1)
    assert not has_more_fields(data, 2)
    assert has_more_fields(data, 6, {0x0A: {}})
    assert not has_more_fields(data, 7, {0x0A: {}})
    assert not has_more_fields(data, 7, {0x0A: {0x12: {}}}), "and each of those has none"
