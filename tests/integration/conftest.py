"""What holds for every integration test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.process_template import share_imports


@pytest.fixture(scope="session", autouse=True)
def _services_share_their_imports() -> Iterator[None]:
    with share_imports():
        yield
