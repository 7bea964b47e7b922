from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.core.storage.consume_queue import first_false


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(-5, 2005))
def test_first_false_is_found_with_few_looks(start: int, length: int, border: int) -> None:
    looked_at: list[int] = []

    def holds(index: int) -> bool:
        assert start <= index < start + length
        looked_at.append(index)
        return index < border

    end = start + length
    found = first_false(start, end, holds)
    assert found == min(max(border, start), end)
    assert len(looked_at) <= 2 * max(1, found - start).bit_length() + 2
