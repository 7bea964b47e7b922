from __future__ import annotations

import pytest

from tandemmq.core.storage.disk import FolderEntry
from tandemmq.core.storage.retention import BelievedTime, SavedTime

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 20_000 * DAY_MS
UP_MS = 5 * HOUR_MS


def started(
    *, saved: SavedTime | None = None, newest_ms: int = NOW_MS, wall_ms: int = NOW_MS, up_ms: int = UP_MS
) -> BelievedTime:
    return BelievedTime(
        boot_id="this", saved=saved, newest_ms=newest_ms, wall_ms=wall_ms, monotonic_ms=up_ms, jump_max_ms=DAY_MS
    )


def files(*modified_ms: int) -> list[FolderEntry]:
    return [FolderEntry(f"{number:020d}", 10, False, told_ms) for number, told_ms in enumerate(modified_ms)]


def test_the_wall_clock_is_followed_while_it_is_near() -> None:
    time = started()
    time.look(wall_ms=NOW_MS + HOUR_MS, monotonic_ms=UP_MS + 1_000, jump_max_ms=DAY_MS)
    assert (time.now_ms, time.problem) == (NOW_MS + HOUR_MS, None)
    time.look(wall_ms=NOW_MS, monotonic_ms=UP_MS + 2_000, jump_max_ms=DAY_MS)
    assert (time.now_ms, time.problem) == (NOW_MS, None)


@pytest.mark.parametrize(("days", "words"), [(4, "96.0 h ahead of"), (-4, "96.0 h behind")])
def test_a_jump_is_not_believed_and_told_until_the_clock_agrees_or_an_operator_says_so(days: int, words: str) -> None:
    time = started()
    time.look(wall_ms=NOW_MS + days * DAY_MS + 1_000, monotonic_ms=UP_MS + 1_000, jump_max_ms=DAY_MS)
    assert time.now_ms == NOW_MS + 1_000
    assert words in (time.problem or "")
    assert "clockJumpMax=97" in (time.problem or "")
    time.look(wall_ms=NOW_MS + 2_000, monotonic_ms=UP_MS + 2_000, jump_max_ms=DAY_MS)
    assert (time.now_ms, time.problem) == (NOW_MS + 2_000, None)
    time.look(wall_ms=NOW_MS + days * DAY_MS, monotonic_ms=UP_MS + 3_000, jump_max_ms=DAY_MS)
    time.look(wall_ms=NOW_MS + days * DAY_MS, monotonic_ms=UP_MS + 3_000, jump_max_ms=97 * HOUR_MS)
    assert (time.now_ms, time.jumped_ms, time.problem) == (NOW_MS + days * DAY_MS, 0, None)


@pytest.mark.parametrize(
    ("saved", "newest_ms", "believed_ms"),
    [
        (None, NOW_MS - HOUR_MS, NOW_MS + 4 * DAY_MS),
        (None, 0, NOW_MS + 4 * DAY_MS),  # An empty store has nothing to lose.
        (None, NOW_MS, NOW_MS),
        (SavedTime("this", NOW_MS - HOUR_MS, UP_MS - HOUR_MS), 0, NOW_MS),  # Meanwhile the machine ran on.
        (SavedTime("other", NOW_MS - HOUR_MS, 77 * DAY_MS), NOW_MS + 4 * DAY_MS, NOW_MS - HOUR_MS),
        (SavedTime("this", NOW_MS, UP_MS + HOUR_MS), 0, NOW_MS),  # No such clock: what was saved stands.
    ],
)
def test_the_time_of_the_last_run_is_what_a_start_is_held_against(
    saved: SavedTime | None, newest_ms: int, believed_ms: int
) -> None:
    wall_ms = NOW_MS + 4 * DAY_MS
    if believed_ms == wall_ms and newest_ms:
        newest_ms = wall_ms - HOUR_MS
    assert started(saved=saved, newest_ms=newest_ms, wall_ms=wall_ms).now_ms == believed_ms


def test_a_machine_that_was_off_for_some_hours_is_believed() -> None:
    saved = SavedTime("other", NOW_MS - 20 * HOUR_MS, 1)
    assert started(saved=saved).now_ms == NOW_MS


def test_ages_of_files_that_an_earlier_run_left() -> None:
    told_ms = [NOW_MS - 9 * HOUR_MS, NOW_MS - 5 * HOUR_MS, NOW_MS - 99 * HOUR_MS, NOW_MS + 9 * DAY_MS]
    # Files are in order: the third cannot be older than the second; and the fourth is not of the future.
    assert started().ages_ms(files(*told_ms)) == [9 * HOUR_MS, 5 * HOUR_MS, 5 * HOUR_MS, 0]


def test_a_file_completed_or_changed_in_this_run_is_of_now_whatever_the_file_system_says() -> None:
    time = started()
    first = NOW_MS - 9 * HOUR_MS
    assert time.ages_ms(files(first)) == [9 * HOUR_MS]
    assert time.ages_ms(files(first, first - DAY_MS)) == [9 * HOUR_MS, 0]
    assert time.ages_ms(files(first + 1, first - DAY_MS)) == [0, 0]
    time.look(wall_ms=NOW_MS + HOUR_MS, monotonic_ms=UP_MS + HOUR_MS, jump_max_ms=DAY_MS)
    assert time.ages_ms(files(first + 1, first - DAY_MS)) == [HOUR_MS, HOUR_MS]


def test_what_is_saved_is_read_again_and_tells_of_files_with_a_wrong_time() -> None:
    time = started()
    time.ages_ms(files(NOW_MS - 9 * HOUR_MS))
    time.ages_ms(files(NOW_MS - 9 * HOUR_MS, NOW_MS - 4 * DAY_MS))
    saved = SavedTime.from_json(time.to_save().to_json())
    assert saved == time.to_save()
    assert saved is not None
    assert list(saved.misdated) == [f"{1:020d}"]
    again = started(saved=saved)
    assert again.ages_ms(files(NOW_MS - 9 * HOUR_MS, NOW_MS - 4 * DAY_MS)) == [9 * HOUR_MS, 0]


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"bootId": 1}', b'{"misdated": []}', b"\xff"])
def test_a_text_that_is_none_of_these_saves_nothing(text: bytes) -> None:
    assert SavedTime.from_json(text) is None
