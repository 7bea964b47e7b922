"""Protocol behaviour as transcripts: what was done, and the exact bytes and events that followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from .transcript import MasterStage, SlaveStage, replay

SCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_transcript(script: Path) -> None:
    stage = MasterStage() if script.stem.startswith("master") else SlaveStage()

    expected = script.read_text(encoding="utf-8")

    assert replay(expected, stage) == expected
