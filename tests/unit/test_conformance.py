"""The table of scenarios is that of the tests, and what has not been shown never holds."""

from __future__ import annotations

import pytest
from tools.conformance import (
    CLIENTS,
    FEATURE_PAGE,
    FEATURES,
    LIST,
    PAGE,
    RAW,
    Case,
    _with_section,
    cases,
    feature_table,
    page_with,
    result_table,
    rows,
    table,
)


def test_the_page_is_in_step_with_the_tests() -> None:
    text = PAGE.read_text()
    assert text == page_with(text, table()), "run: python tools/conformance.py --docs"


def test_the_page_for_users_is_in_step_with_the_tests() -> None:
    text = FEATURE_PAGE.read_text()
    assert text == page_with(text, feature_table()), "run: python tools/conformance.py --docs"
    assert {number for numbers in FEATURES.values() for number in numbers} <= set(LIST)


def test_tests_are_found_by_number_and_client() -> None:
    found = cases()
    assert Case(60, RAW, "test_60_pull_and_progress_go_round") in found
    assert Case(27, "java", "test[fifo_order]") in found
    assert Case(55, "go", "test_55_clients_live_through_a_killed_and_restarted_master") in found
    assert {case.client for case in found} <= set(CLIENTS)
    assert {case.number for case in found} <= set(LIST)


def test_without_a_run_nothing_holds() -> None:
    assert {row["value"] for row in rows({})} == {"not covered", "not run"}
    assert not any(row["holds"] for row in rows({}))


@pytest.mark.parametrize(("outcomes", "holds"), [([True, True], True), ([True, False], False), ([], False)])
def test_a_row_holds_if_every_test_of_it_passed(outcomes: list[bool], holds: bool) -> None:
    tests = [case.test for case in cases() if (case.number, case.client) == (33, RAW)]
    assert len(tests) > 1
    told = {(RAW, test): [True] for test in tests} | {(RAW, tests[-1]): outcomes}
    (row,) = [row for row in rows(told) if (row["number"], row["client"]) == (33, RAW)]
    assert row["holds"] is holds


def test_a_client_that_does_not_hold_is_told_with_its_numbers() -> None:
    told = {(RAW, case.test): [True] for case in cases() if case.client == RAW}
    lines = {line.split("|")[1].strip(): line for line in result_table(rows(told)).splitlines()[2:]}
    assert lines.keys() == set(CLIENTS)
    assert lines[RAW].endswith("|  |")
    assert "57 (not covered)" in lines["cpp"]
    assert "10 (not run)" in lines["go"]


def test_the_readme_gets_a_section_once() -> None:
    text = _with_section("# A\n\n## Read on\nmore\n")
    assert text.index("## What was shown") < text.index("## Read on")
    assert _with_section(text) == text
    assert "| raw |" in page_with(text, "| raw |\n")


def test_what_the_list_asks_for_and_nothing_covers_is_told() -> None:
    covered = {(case.number, case.client) for case in cases()}
    told = {(row["number"], row["client"]): row for row in rows({})}
    assert (57, "cpp") not in covered
    assert told[57, "cpp"]["value"] == "not covered"
    assert told[57, "cpp"]["holds"] is False


def test_a_test_may_be_of_two_numbers() -> None:
    found = cases()
    for number in (23, 24):
        assert Case(number, "python", "test_23_24_a_producer_is_asked_until_it_knows") in found
        assert Case(number, "java", "test[transaction_asked_after]") in found
