"""The part of a list that one page shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.values import PageRequest

__all__ = ["PAGE_SIZE_MAX", "part_of"]

ItemT = TypeVar("ItemT")

PAGE_SIZE_MAX: Final = 1_000
"""Of each thing on a page something more is asked for."""


def part_of(found: Sequence[ItemT], page: PageRequest) -> Sequence[ItemT]:
    """Empty beyond the end. INVALID: there can be no such page."""
    if page.number < 1 or not 1 <= page.size <= PAGE_SIZE_MAX:
        raise OperationFailed(
            FailureKind.INVALID,
            f"there is no page {page.number:,} of {page.size:,}",
            remedy=f"pages are counted from 1 and hold from 1 to {PAGE_SIZE_MAX:,}",
        )
    return found[(page.number - 1) * page.size : page.number * page.size]
