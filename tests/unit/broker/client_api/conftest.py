"""The guarded broker, and the lines of the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from support.guarded_api import GuardedBroker


@pytest.fixture
def guarded() -> GuardedBroker:
    return GuardedBroker()


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    with structlog.testing.capture_logs() as captured:
        yield captured  # type: ignore[misc]
