"""Header blocks in more than one frame."""

from __future__ import annotations

import pytest

from tandemmq.http2 import frames
from tandemmq.http2.errors import ConnectionFailure, Limits
from tandemmq.http2.requests import HeaderBlock

LIMITS = Limits(header_block_bytes=100, continuation_frames=4)


def test_a_block_is_its_parts_with_the_first_frame_s_flags_and_stream() -> None:
    block = HeaderBlock(LIMITS)
    assert not block.is_open
    for stream_id in (7, 9):
        block.begin(b"one", frames.END_STREAM, stream_id)
        block.extend(b"")
        block.extend(b"two")
        assert block.is_open
        assert (block.stream_id, block.flags) == (stream_id, frames.END_STREAM)
        assert block.finish() == b"onetwo"
        assert not block.is_open


def test_a_block_of_too_many_bytes_ends_the_connection() -> None:
    block = HeaderBlock(LIMITS)
    block.begin(bytes(60), 0, 1)
    block.extend(bytes(40))
    with pytest.raises(ConnectionFailure) as raised:
        block.extend(b"x")
    assert raised.value.counter == "header_block_too_large"
    with pytest.raises(ConnectionFailure):
        HeaderBlock(LIMITS).begin(bytes(101), 0, 1)


def test_a_block_of_too_many_frames_ends_the_connection() -> None:
    block = HeaderBlock(LIMITS)
    block.begin(b"", 0, 1)
    for _ in range(3):
        block.extend(b"")
    with pytest.raises(ConnectionFailure) as raised:
        block.extend(b"")
    assert raised.value.counter == "continuation_flood"


def test_nothing_of_a_block_that_was_given_up_is_in_the_next() -> None:
    block = HeaderBlock(LIMITS)
    block.begin(bytes(90), 0, 1)
    block.clear()
    assert not block.is_open
    block.begin(b"new", 0, 3)
    assert block.finish() == b"new"
