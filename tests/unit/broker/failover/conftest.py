"""Authorities have time on a busy machine, but where a test is about their limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.authority_places import patient


@pytest.fixture(autouse=True)
def _patient_authorities() -> Iterator[None]:
    with patient(60):
        yield
