"""Our SQL92 filters against what RocketMQ's own made of the same expressions and properties."""

from __future__ import annotations

from itertools import zip_longest

import pytest

from contract.sql_filter.questions import DRAWN, EXPRESSIONS, HAND_WRITTEN, PROPERTIES, RESULTS
from tandemmq.core.delivery.sql_filter import SqlFilter, parse_sql
from tandemmq.core.message.properties import encode_properties

STORED = tuple(encode_properties(properties.items()) for properties in PROPERTIES)
ORIGINAL = dict(zip_longest(EXPRESSIONS, RESULTS.read_text().split("\n")[:-1]))


def results(expression: str) -> str:
    """What ours makes of it, in the original's letters."""
    parsed = parse_sql(expression)
    return "".join(map(parsed.result, STORED)) if isinstance(parsed, SqlFilter) else "X"


def test_the_results_are_of_these_expressions() -> None:
    assert len(HAND_WRITTEN) >= 150
    assert len(DRAWN) >= 1_000
    lines = RESULTS.read_text().split("\n")[:-1]
    assert len(lines) == len(EXPRESSIONS)
    assert all(line == "X" or len(line) == len(PROPERTIES) for line in lines)
    assert set("".join(lines)) == set("TFNEX")


@pytest.mark.parametrize("expression", HAND_WRITTEN)
def test_a_hand_written_expression_means_what_it_means_in_the_original(expression: str) -> None:
    assert results(expression) == ORIGINAL[expression]


def test_drawn_expressions_mean_what_they_mean_in_the_original() -> None:
    differing = [(one, results(one), ORIGINAL[one]) for one in DRAWN if results(one) != ORIGINAL[one]]
    assert not differing


def test_only_true_is_delivered() -> None:
    for expression in HAND_WRITTEN:
        parsed = parse_sql(expression)
        if isinstance(parsed, SqlFilter):
            letters = "".join("T" if parsed.matches(stored) else "-" for stored in STORED)
            assert letters == "".join("T" if letter == "T" else "-" for letter in ORIGINAL[expression])
