"""Groups of real replicas, made once: tests copy what they change."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.audit_stores import make_group


@pytest.fixture(scope="session")
def equal_group(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three equal replicas, ended in order; not to be written to."""
    return make_group(tmp_path_factory.mktemp("equal"))


@pytest.fixture(scope="session")
def small_group(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two of half as much, for what is drawn many times."""
    return make_group(tmp_path_factory.mktemp("small"), replicas=2, messages=420)
