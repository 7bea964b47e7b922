"""Tools are got before any test's limit of time runs."""

from __future__ import annotations

import pytest

from chart.rendering import conform, helm


def pytest_sessionstart(session: pytest.Session) -> None:
    """helm and kubeconform; on a new machine this builds them."""
    helm()
    conform("")
