from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.core.message.record import Host, offset_message_id, parse_offset_message_id

HOSTS = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.integers(0, 65535))


@settings(deadline=None)
@given(HOSTS, st.integers(0, 2**63 - 1))
def test_offset_message_id_round_trip(host: Host, physical_offset: int) -> None:
    text = offset_message_id(host, physical_offset)
    assert len(text) in (32, 56)
    assert parse_offset_message_id(text) == (host, physical_offset)
    assert parse_offset_message_id(text.lower()) == (host, physical_offset)


@pytest.mark.parametrize("text", ["", "0A00000100002A9F", "x" * 32, "0A00000100002A9F000000000000000", " " * 32])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_offset_message_id(text)


def test_hosts_read_as_people_write_them() -> None:
    assert str(Host.parse("10.0.0.1", 10911)) == "10.0.0.1:10911"
    assert str(Host.parse("2001:db8::1", 10911)) == "[2001:db8::1]:10911"
    with pytest.raises(ValueError):
        Host.parse("broker-a", 10911)
