"""Messages out of bytes that are cut anywhere."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from support.http2_peer import message
from tandemmq.http2.stream import MessageAssembly


def messages_of(chunks: list[bytes]) -> list[bytes]:
    """As a connection goes about it."""
    assembly = MessageAssembly()
    found = []
    for chunk in chunks:
        at = 0
        while at < len(chunk):
            if assembly.missing_bytes < 0:
                at += assembly.take_prefix(chunk, at, len(chunk))
                if assembly.missing_bytes < 0:
                    break
            at += assembly.take(chunk, at, len(chunk))
            if assembly.missing_bytes == 0:
                found.append(assembly.finish())
                assert assembly.kept_bytes == 0
    assert assembly.kept_bytes == 0
    return found


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 400), max_size=12))
def test_any_cutting_gives_the_same_messages(bodies: list[bytes], cuts: list[int]) -> None:
    wire = b"".join(message(body) for body in bodies)
    places = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    assert messages_of([wire[start:end] for start, end in itertools.pairwise(places)]) == bodies


def test_a_prefix_says_what_follows_once_it_is_whole() -> None:
    assembly = MessageAssembly()
    prefix = b"\x01\x00\x00\x01\x02"
    assert assembly.take_prefix(b"..." + prefix[:3], 3, 6) == 3
    assert (assembly.missing_bytes, assembly.kept_bytes) == (-1, 3)
    assert assembly.take_prefix(prefix + b"body", 3, 9) == 2
    assert assembly.is_compressed
    assert assembly.message_bytes == assembly.missing_bytes == 0x102
    assert assembly.kept_bytes == 5


def test_it_takes_no_more_than_the_message() -> None:
    assembly = MessageAssembly()
    assembly.take_prefix(message(b"abc"), 0, 5)
    assert assembly.take(b"-abcdef", 1, 7) == 3
    assert assembly.missing_bytes == 0
    assert assembly.finish() == b"abc"


def test_what_was_kept_can_be_given_up() -> None:
    assembly = MessageAssembly()
    assembly.take_prefix(message(b"abc"), 0, 5)
    assembly.take(b"ab", 0, 2)
    assert assembly.kept_bytes == 7
    assembly.clear()
    assert (assembly.kept_bytes, assembly.missing_bytes, assembly.piece_count) == (0, -1, 0)
    assert messages_of([message(b"next")]) == [b"next"]


def test_small_pieces_share_an_object_and_large_ones_do_not() -> None:
    assembly = MessageAssembly()
    body = bytes(range(256)) * 32
    assembly.take_prefix(message(body), 0, 5)
    for place in range(4_096):
        assembly.take(body, place, place + 1)
    assert assembly.piece_count == 4
    assembly.take(body, 4_096, 6_000)
    assembly.take(body, 6_000, 8_192)
    assert assembly.piece_count == 6
    assert assembly.finish() == body
