"""No test sees the contexts and the environment of whoever runs it; the commands are built once for all tests."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TANDEMMQ_CONTEXT", "TANDEMMQ_NAMESRV_ADDR", "NAMESRV_ADDR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def _commands_are_built_once() -> Iterator[None]:
    """Typer's runner builds all of them at each call otherwise: a tenth of a second, hundreds of times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", functools.cache(get_command))
        yield
