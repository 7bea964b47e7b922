"""No test sees the contexts and the environment of whoever runs it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TANDEMMQ_CONTEXT", "TANDEMMQ_NAMESRV_ADDR", "NAMESRV_ADDR"):
        monkeypatch.delenv(name, raising=False)
