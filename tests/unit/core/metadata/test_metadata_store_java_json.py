"""JSON as fastjson writes it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.metadata.metadata_store import JavaText, JavaValue, MetadataCorrupt, read_java_json, write_java_json

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def test_integer_keys_are_read_bare_and_quoted() -> None:
    fields = read_java_json('{"offsetTable":{"T@G":{0:12,1 : 7,"2":3}}}')
    assert fields.object("offsetTable").offsets("T@G") == {0: 12, 1: 7, 2: 3}


def test_bare_keys_inside_a_string_are_left_alone() -> None:
    fields = read_java_json(r'{"a":"{0:1,\"2:3,4:5","b":{"x,7:8":"y"}}')
    assert fields.text("a", "") == '{0:1,"2:3,4:5'
    assert fields.texts("b") == {"x,7:8": "y"}


def test_integer_keys_are_written_bare() -> None:
    assert write_java_json({"T": {0: 12, 1: 7}}) == '{\n\t"T":{\n\t\t0:12,\n\t\t1:7\n\t}\n}'


def test_empty_maps_and_lists_stay_on_their_line() -> None:
    assert write_java_json({"a": {}, "b": [], "c": [1]}) == '{\n\t"a":{},\n\t"b":[],\n\t"c":[\n\t\t1\n\t]\n}'


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"a":}', '{"a":1}x', "\0" * 40])
def test_what_is_no_object_is_corrupt(text: str) -> None:
    with pytest.raises(MetadataCorrupt):
        read_java_json(text)


@pytest.mark.parametrize("inner", ["[" * 100_000, "9" * 5_000, r'"\ud800"', '"\udcff"'])
def test_what_cannot_be_held_or_written_again_is_corrupt(inner: str) -> None:
    with pytest.raises(MetadataCorrupt):
        read_java_json(f'{{"a":{inner}}}')


def test_character_of_two_halves_is_read() -> None:
    assert read_java_json(r'{"a":"\ud83d\ude00"}').text("a", "") == "\N{GRINNING FACE}"


@pytest.mark.parametrize("text", ['{"a":"1"}', '{"a":true}', '{"a":1.5}', '{"a":null}', '{"a":9223372036854775808}'])
def test_wrong_type_names_the_field(text: str) -> None:
    with pytest.raises(MetadataCorrupt, match=r"^a is no integer"):
        read_java_json(text).integer("a", 0)


@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_what_was_printed_before_is_printed_the_same_inside_another(value: dict[str, JavaValue]) -> None:
    printed = JavaText(value, depth=2)
    assert write_java_json({"table": {"name": printed}}) == write_java_json({"table": {"name": value}})


@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_plain_json_can_read_what_has_only_text_keys(value: dict[str, JavaValue]) -> None:
    assert json.loads(write_java_json(value)) == value


@given(st.dictionaries(TEXTS, st.dictionaries(st.integers(-99, 99), st.integers(0, 2**63 - 1), max_size=5), max_size=5))
def test_offset_tables_survive_the_round_trip(table: dict[str, dict[int, int]]) -> None:
    fields = read_java_json(write_java_json({"t": table})).object("t")
    assert {name: fields.offsets(name) for name in fields} == table
