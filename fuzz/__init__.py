"""What strangers may send, made by inputs; `tools/fuzz.py` runs it. Parts of a broker are those of the tests."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests")]
