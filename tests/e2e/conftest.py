"""The option that says where pictures go."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", default=None, help="folder for pictures of dashboards and traces; default: none")
