"""What the demo says at its end."""

from __future__ import annotations

import ast
from pathlib import Path

from demo.report import compared, verdict

_DEMO = Path(__file__).parents[2] / "tools" / "demo.py"


def test_verdict_names_what_does_not_hold_and_where_to_look() -> None:
    rows = [compared("lines_received", 9, "lines", "== 10"), compared("lines_acknowledged", 10, "lines", "== 10")]
    lines = verdict(rows, Path("build/demo"))
    assert lines[:2] == ["1 of 2 rows do not hold:", "  lines received: 9 lines, wanted == 10"]
    assert "build/demo" in lines[2]


def test_verdict_of_rows_that_hold_says_what_to_do_next() -> None:
    lines = verdict([compared("lines_acknowledged", 10, "lines", "== 10")], Path("build/demo"))
    assert "nothing that was acknowledged is lost" in lines[0]
    assert "make up" in lines[1]


def test_every_row_of_the_demo_can_fail() -> None:
    """A count is never below 0: such a target is none."""
    calls = [node for node in ast.walk(ast.parse(_DEMO.read_text())) if isinstance(node, ast.Call)]
    targets = [ast.unparse(call.args[3]) for call in calls if ast.unparse(call.func) == "compared"]
    assert len(targets) > 10
    assert not [target for target in targets if ">= 0" in target]
