"""A run starts without pandas."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

# Pyarrow asks once in a process; the one of the tests may have asked before.
_PROGRAM: Final = """
import sys
from importlib.util import find_spec
import pyarrow as pa
from tandemmq.consistency.pandas_avoidance import keep_pandas_out

keep_pandas_out()
table = pa.Table.from_pylist([{"number": 1, "text": "one"}])
assert table.to_pylist() == [{"number": 1, "text": "one"}]
assert "pandas" not in sys.modules
assert find_spec("pandas") is not None
"""


def test_arrays_are_made_without_pandas_which_can_be_had_later() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True)
