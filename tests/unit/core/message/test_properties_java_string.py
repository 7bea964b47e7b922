from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tandemmq.core.message.properties import extend_hash, java_hash

TEXTS = st.text(max_size=400) | st.text("azAZ09_#\x7f", max_size=400)


def loop_hash(text: str) -> int:
    """Java's own loop."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(encoded[::2], encoded[1::2]):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2_598_919),
        ("TopicTest#k1", 2_746_024),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1_772_899),
        ("\ud83d", 0xD83D),
    ],
)
def test_known_hashes(text: str, value: int) -> None:
    assert java_hash(text) == value


@settings(deadline=None)
@given(TEXTS)
@example("\x7f" * 128)
@example("\uffff" * 32)
@example("\uffff" * 200)
def test_hash_is_that_of_javas_loop(text: str) -> None:
    assert java_hash(text) == loop_hash(text)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_extended_hash_is_that_of_the_whole_text(prefix: str, text: str) -> None:
    assert extend_hash(java_hash(prefix), text) == loop_hash(prefix + text)
