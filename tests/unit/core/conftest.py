"""All of it runs in the broker's image."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.image_packages import without_what_the_image_leaves_out


@pytest.fixture(scope="package", autouse=True)
def packages_of_the_image() -> Iterator[None]:
    """What the image lacks is missed here first."""
    with without_what_the_image_leaves_out():
        yield
