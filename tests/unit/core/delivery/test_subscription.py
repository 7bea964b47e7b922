"""Filters by tag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.delivery import sql_filter
from tandemmq.core.delivery.sql_filter import BadSql, parse_sql
from tandemmq.core.delivery.subscription import EVERY_TAG, TagFilter
from tandemmq.core.message import properties
from tandemmq.core.message.properties import encode_properties, tags_code

TAGS = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="| "), min_size=1, max_size=8)


@pytest.mark.parametrize("expression", ["", "*", "  ", " * "])
def test_everything_passes(expression: str) -> None:
    assert TagFilter.parse(expression) is EVERY_TAG
    assert EVERY_TAG.matches(b"")


@pytest.mark.parametrize("expression", ["a", " a ", "a||", "|| a ||", "a || a"])
def test_blanks_and_repetitions_mean_nothing(expression: str) -> None:
    assert TagFilter.parse(expression) == TagFilter(frozenset([b"a"]), frozenset([tags_code("a")]))


@pytest.mark.parametrize("expression", ["||", "a|b", "a ||| b", "a || b\x02c"])
def test_what_is_no_filter_is_refused(expression: str) -> None:
    assert TagFilter.parse(expression) is None


@given(st.lists(TAGS, min_size=1, max_size=4), TAGS)
def test_exactly_the_named_tags_pass(tags: list[str], other: str) -> None:
    tag_filter = TagFilter.parse(" || ".join(tags))
    if tags == ["*"]:
        return
    assert tag_filter is not None
    assert tag_filter.codes is not None
    for tag in (*tags, other):
        for pairs in ([("TAGS", tag)], [("KEYS", "TAGS"), ("TAGS", tag), ("x", "y")]):
            assert tag_filter.matches(encode_properties(pairs)) == (tag in tags)
        if tag in tags:
            assert tags_code(tag) in tag_filter.codes


def test_equal_hash_is_not_equal_tag() -> None:
    tag_filter = TagFilter.parse("Aa")
    assert tag_filter is not None
    assert tag_filter.codes == frozenset([tags_code("BB")])
    assert not tag_filter.matches(encode_properties([("TAGS", "BB")]))


@pytest.mark.parametrize("properties", [b"", b"KEYS\x01TAGS\x01a\x02", b"MYTAGS\x01a\x02", b"x\x01TAGS\x02"])
def test_a_message_without_tag_matches_no_tag(properties: bytes) -> None:
    tag_filter = TagFilter.parse("a")
    assert tag_filter is not None
    assert not tag_filter.matches(properties)


def test_a_property_string_of_older_brokers_has_no_last_separator() -> None:
    tag_filter = TagFilter.parse("a")
    assert tag_filter is not None
    assert tag_filter.matches(b"KEYS\x01k\x02TAGS\x01a")


def test_a_long_filter_is_not_remembered() -> None:
    """A receive may bring megabytes, and nobody has looked at them when its filter is read."""

    def remembered() -> int:
        return properties._known_tags_code.cache_info().currsize + len(sql_filter._known)

    before = remembered()
    for number in range(50):
        tag = f"{number}" + "x" * 100_000
        found = TagFilter.parse(tag)
        assert found is not None
        assert found.matches(f"TAGS\x01{tag}\x02".encode())
        assert isinstance(parse_sql(f"a = '{tag}'"), BadSql)
    assert remembered() == before
