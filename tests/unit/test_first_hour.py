"""How docs/first-hour.md is read: its commands, its promises, and when one of them is not kept."""

from __future__ import annotations

import pytest
from tools.first_hour import DOCUMENT, commands, missing_promise


def test_the_document_has_commands_with_promises_and_one_terminal_that_the_cluster_keeps() -> None:
    found = commands(DOCUMENT.read_text(encoding="utf-8"))
    assert [each.line.split()[:2] for each in found if each.stays] == [["tandemmq", "up"]]
    assert sum(bool(each.promises) for each in found) > len(found) / 2
    assert {each.terminal for each in found} == {"first terminal", "second terminal"}


def test_a_promise_is_kept_by_a_line_with_anything_where_the_dots_are() -> None:
    output = "noise\nconsole              http://127.0.0.1:8080/\n1,000 acknowledged, 0 failed, 432/s\n"
    assert missing_promise(output, ("console ... http://127.0.0.1:8080/", "1,000 acknowledged, 0 failed, ...")) is None
    assert missing_promise(output, ("1,000 acknowledged, 1 failed, ...",)) == "1,000 acknowledged, 1 failed, ..."
    assert missing_promise(output, ("1,000 acknowledged", "console")) == "console", "in another order"
    assert missing_promise("", ("healthy",)) == "healthy"


def test_a_block_that_begins_with_output_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no command"):
        commands("```console\nhealthy\n$ true\n```")
