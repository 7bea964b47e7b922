"""The mark of where a log ended: what it tells the next run."""

from __future__ import annotations

from pathlib import Path

from tandemmq.broker.log_end import LogEndMark


def test_the_next_run_hears_what_was_noted_last(tmp_path: Path) -> None:
    mark = LogEndMark(tmp_path)
    mark.note(1)  # Before it is open: nothing.
    assert mark.open() == 0
    mark.note(4_096)
    mark.note(5_000_000_000)
    # A kill: nothing is closed.
    killed = LogEndMark(tmp_path)
    assert killed.open() == 5_000_000_000
    killed.note(0)
    killed.close()
    assert LogEndMark(tmp_path).open() == 0


def test_a_mark_that_was_cut_off_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "logEnd").write_bytes(b"")
    assert LogEndMark(tmp_path).open() == 0
