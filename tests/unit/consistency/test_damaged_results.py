"""Whatever happens to what earlier runs left behind, the next run reads all that it needs, and its verdict is right."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from support.audit_stores import copy_group
from support.inline_audit import run_inline
from tandemmq.consistency.results_store import ResultsStore
from tandemmq.consistency.settings import ResultsUnusable
from tandemmq.core.audit.run_summary import ExitCode


@pytest.mark.parametrize("content", ["", "half", "other bytes", "too deep", "other types"])
def test_run_goes_on_with_a_damaged_file_of_results(equal_group: list[Path], tmp_path: Path, content: str) -> None:
    copy_group(equal_group[:2], tmp_path / "groups" / "broker-a")
    settings = (f"path={tmp_path / 'groups'}", "tier=deep")
    run_inline(tmp_path / "sound", *settings, with_files=True)

    for path in sorted(own for own in (tmp_path / "sound").rglob("*") if own.is_file()):
        results = tmp_path / "results"
        shutil.copytree(tmp_path / "sound", results)
        data = path.read_bytes()
        (results / path.relative_to(tmp_path / "sound")).write_bytes(
            {
                "": b"",
                "half": data[: len(data) // 2],
                "other bytes": random.Random(1).randbytes(len(data)),
                "too deep": b"[" * 100_000,
                "other types": data.replace(b": {", b": [{").replace(b"},", b"}],"),
            }[content]
        )

        report = run_inline(results, *settings, with_files=True)

        assert report.summary.exit_code is ExitCode.EQUAL, path
        shutil.rmtree(results)


def test_results_that_cannot_be_written_say_what_helps_and_leave_no_half_of_a_file(tmp_path: Path) -> None:
    results, unfinished = ResultsStore(str(tmp_path)), tmp_path / "latest.json.new"
    unfinished.symlink_to("/dev/full")
    with pytest.raises(ResultsUnusable) as full:
        results.write("latest.json", b"x" * 100_000)
    assert str(full.value) == (
        f"results: {tmp_path}/latest.json cannot be read or written: No space left on device; make room on its disk"
    )
    assert not unfinished.is_symlink()
    (tmp_path / "runs").touch()
    with pytest.raises(ResultsUnusable, match=r"Not a directory; choose another folder$"):
        results.write("runs/1/summary.json", b"")
    with pytest.raises(ResultsUnusable, match=r"; name another place, or mend this one$"):
        ResultsStore("nowhere://bucket/folder")
