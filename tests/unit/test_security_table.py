"""The table of methods and callers in the document is today's."""

import runpy
from pathlib import Path


def test_the_document_has_todays_table() -> None:
    tool = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "security.py"))
    document: Path = tool["DOCUMENT"]
    assert document.read_text(encoding="utf-8") == tool["document_with_table"](), "python tools/security.py --table"
