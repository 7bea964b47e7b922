"""Reading what callgrind wrote."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from send_instructions import inclusive_counts

DUMP = """\
version: 1
positions: line
events: Ir

fl=(1) broker.c
fn=(1) CPyDef_put
10 7
cfn=(2) memcpy
calls=3 20
+1 30
-1 2

fl=(2) string.c
fn=(2)
20 30
* 1

summary: 40
"""


def test_a_function_has_what_it_calls() -> None:
    assert inclusive_counts(DUMP) == {"CPyDef_put": 39, "memcpy": 31, "": 40}
