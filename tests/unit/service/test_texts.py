"""What people write for a moment."""

from __future__ import annotations

import pytest

from tandemmq.service.texts import MomentUnreadable, read_moment

_NOW_MS = 1_795_321_211_123
"""2026-11-22 04:20:11.123 UTC."""


@pytest.mark.parametrize(
    ("written", "expected_ms"),
    [
        ("now", _NOW_MS),
        ("10m", _NOW_MS - 600_000),
        ("10 min ago", _NOW_MS - 600_000),
        ("2h", _NOW_MS - 7_200_000),
        ("1.5h ago", _NOW_MS - 5_400_000),
        ("90S", _NOW_MS - 90_000),
        ("3d", _NOW_MS - 3 * 86_400_000),
        ("2026-11-22T04:20", 1_795_321_200_000),
        ("2026-11-22 04:20:11.123 UTC", _NOW_MS),
        ("2026-11-22T04:20:11.123Z", _NOW_MS),
        ("2026-11-22T05:20:11.123+01:00", _NOW_MS),
        ("2026-11-22", 1_795_305_600_000),
        ("1795321211123", _NOW_MS),
        ("0", 0),
    ],
)
def test_moment_is_read(written: str, expected_ms: int) -> None:
    assert read_moment(written, now_ms=_NOW_MS) == expected_ms


@pytest.mark.parametrize(
    "written", ["", "yesterday", "10", "10 weeks", "2026-13-01", "-1h", "99999d", "0001-01-01", "1795321211"]
)
def test_what_is_no_moment_is_refused_with_what_is(written: str) -> None:
    with pytest.raises(MomentUnreadable, match=r"write 2026|outside the years"):
        read_moment(written, now_ms=_NOW_MS)
