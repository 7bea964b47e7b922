"""Every test here runs with the broker's shell on simulated sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulation.shell_seams import in_simulation


@pytest.fixture(autouse=True)
def _simulated_shell() -> Iterator[None]:
    with in_simulation():
        yield
