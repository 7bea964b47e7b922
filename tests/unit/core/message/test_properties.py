from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.core.message.properties import (
    InvalidProperty,
    decode_properties,
    encode_properties,
    index_terms,
    java_map_order,
)

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1)


@settings(deadline=None)
@given(st.dictionaries(WORDS, WORDS))
def test_properties_survive_the_stored_form_in_order(properties: dict[str, str]) -> None:
    decoded = decode_properties(encode_properties(properties.items()))
    assert list(decoded.items()) == list(properties.items())


@pytest.mark.parametrize("raw", [b"a\x01b\x02c\x01d\x02", b"a\x01b\x02c\x01d"])
def test_last_separator_may_be_missing(raw: bytes) -> None:
    assert decode_properties(raw) == {"a": "b", "c": "d"}


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x02", b"a\x01\x02", b"\x01b\x02", b"ab\x02", b"abc\x02", b"\x01bc\x02", b"abc\x01\x02"],
)
def test_pairs_without_name_or_value_are_dropped(raw: bytes) -> None:
    assert decode_properties(raw) == {}


def test_value_may_hold_the_name_separator_when_read() -> None:
    assert decode_properties(b"a\x01b\x01c\x02") == {"a": "b\x01c"}


@pytest.mark.parametrize("pair", [("a\x01b", "c"), ("a", "b\x02REAL_TOPIC\x01c"), ("a", "\x01")])
def test_separators_in_names_and_values_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(InvalidProperty):
        encode_properties([pair])


def test_index_terms_are_the_unique_key_and_each_word_with_duplicates() -> None:
    properties = {"KEYS": "k1 k2  k1", "UNIQ_KEY": "u", "TAGS": "TagA"}
    assert index_terms(properties) == ("TagA", ("u", "k1", "k2", "k1"))
    assert index_terms({}) == (None, ())


def test_java_map_order_is_by_bucket_and_then_by_insertion() -> None:
    stored_by_java = ["MSG_REGION", "UNIQ_KEY", "CLUSTER", "TAGS", "KEYS", "WAIT", "TRACE_ON"]
    assert java_map_order(sorted(stored_by_java, reverse=True), capacity=128) == stored_by_java
    assert java_map_order(["b", "a"], capacity=1) == ["b", "a"]
