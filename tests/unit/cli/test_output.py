"""Tables on terminals of any width."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tandemmq.cli.commands.local_cluster import down
from tandemmq.cli.output import new_table, plain_row, show

_ID = "0102FC0000000167560B19A60900537CAF"
_MOMENT = "2026-11-26T12:33:01.123Z"
_TEXT = "no slave holds it: it is lost with this disk"


@pytest.mark.parametrize("columns", [20, 40, 80, 100, 140, 400])
@pytest.mark.parametrize("color", ["", "1"])
def test_words_are_never_broken_and_texts_are_whole(
    columns: int, color: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    if color:
        monkeypatch.setenv("FORCE_COLOR", color)
    else:
        monkeypatch.delenv("FORCE_COLOR", raising=False)
    table = new_table("message", "stored", "what became of it")
    for _ in range(2):
        plain_row(table, _ID, _MOMENT, _TEXT)
    show(table)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert shown.count(_ID) == shown.count(_MOMENT) == 2
    told = " ".join(line.replace(_ID, "").replace(_MOMENT, "").strip() for line in shown.splitlines()[1:])
    assert " ".join(told.split()).endswith(f"{_TEXT} {_TEXT}")
    if color and columns == 100:
        assert max(map(len, shown.splitlines())) <= columns


@pytest.mark.parametrize("name", ["x[/b]", "[bold]x", "x:100:y", "[link=http://x]y"])
def test_a_path_is_printed_as_it_is(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In rich's markup the first is an error, the second and the last are gone, and the third is an emoji."""
    down(tmp_path / name)
    assert capsys.readouterr().out == f"nothing runs in {tmp_path / name}\n"
    table = new_table("folder")
    table.add_row(name)
    show(table)
    assert name in capsys.readouterr().out
