"""Tools are got before any test's limit of time runs."""

from __future__ import annotations

import pytest

from chart.promtool import promtool
from chart.rendering import conform, helm


def pytest_sessionstart(session: pytest.Session) -> None:
    """helm, kubeconform and promtool; on a new machine this builds and fetches them."""
    helm()
    conform("")
    promtool()
