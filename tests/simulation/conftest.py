"""Every test here runs with the broker's shell on simulated sockets."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest

from simulation.pool import seed_processes
from simulation.shell_seams import in_simulation


@pytest.fixture(autouse=True)
def _simulated_shell() -> Iterator[None]:
    with in_simulation():
        yield


@pytest.fixture(scope="session")
def processes() -> Iterator[Executor]:
    """One start of Python and its imports for all seeds of all tests."""
    with seed_processes() as processes:
        yield processes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A process that is killed leaves its coroutines where they are, and the collector ends them in whichever test it
    runs: what they await in their clean-up then is nobody's fault."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
