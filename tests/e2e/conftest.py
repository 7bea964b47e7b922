"""The option that chooses the front the official clients talk to."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--front", default=None, help="broker setting clientFront; default: the broker's own default")
    parser.addoption("--pictures", default=None, help="folder for pictures of dashboards and traces; default: none")
