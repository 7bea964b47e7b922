"""What a slave does next under a master, by what both hold and by their histories."""

from __future__ import annotations

import pytest

from tandemmq.core.replication.log_history import LogExtent, LogHistory
from tandemmq.core.replication.slave_catch_up import CatchUpStep, catch_up_step, cut_refusal

EMPTY = LogExtent(0, 0)
NEWER = LogHistory.of([(1, 0), (2, 400)])
OURS = LogHistory.of([(1, 0)])


def _step(
    ours: LogExtent,
    theirs: LogExtent,
    *,
    our_history: LogHistory = OURS,
    their_history: LogHistory = NEWER,
    serving: bool = True,
    segment_bytes: int = 100,
) -> CatchUpStep:
    return catch_up_step(
        ours=ours,
        theirs=theirs,
        our_segment_bytes=100,
        their_segment_bytes=segment_bytes,
        serving=serving,
        our_epoch=our_history.last_epoch,
        followed_epoch=our_history.last_epoch,
        their_history=their_history,
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (EMPTY, LogExtent(0, 500), CatchUpStep.CONNECT),
        (LogExtent(300, 300), LogExtent(0, 500), CatchUpStep.CONNECT),
        (EMPTY, EMPTY, CatchUpStep.CONNECT),
        (LogExtent(0, 400), LogExtent(0, 500), CatchUpStep.VERIFY),
        (LogExtent(0, 500), LogExtent(0, 500), CatchUpStep.VERIFY),
        (LogExtent(0, 400), LogExtent(399, 500), CatchUpStep.VERIFY),
        (LogExtent(0, 501), LogExtent(0, 500), CatchUpStep.RESYNCHRONISE),
        (LogExtent(0, 400), EMPTY, CatchUpStep.RESYNCHRONISE),
        (LogExtent(0, 400), LogExtent(400, 500), CatchUpStep.START_OVER),
        (LogExtent(0, 300), LogExtent(400, 500), CatchUpStep.START_OVER),
    ],
)
def test_step_under_a_serving_master_of_a_newer_epoch(
    ours: LogExtent, theirs: LogExtent, expected: CatchUpStep
) -> None:
    assert _step(ours, theirs) is expected


@pytest.mark.parametrize("ours", [EMPTY, LogExtent(0, 400), LogExtent(0, 600)])
def test_nothing_is_cut_against_a_master_that_does_not_serve_yet(ours: LogExtent) -> None:
    assert _step(ours, LogExtent(0, 500), serving=False) is CatchUpStep.WAIT


@pytest.mark.parametrize("serving", [True, False])
def test_files_of_another_size_are_never_followed(serving: bool) -> None:
    assert _step(LogExtent(0, 400), LogExtent(0, 500), serving=serving, segment_bytes=200) is CatchUpStep.REFUSE


@pytest.mark.parametrize("ours", [EMPTY, LogExtent(0, 400), LogExtent(0, 600)])
@pytest.mark.parametrize("theirs", [EMPTY, LogExtent(0, 500), LogExtent(700, 900)])
@pytest.mark.parametrize("their_history", [LogHistory(), OURS])
def test_a_master_of_an_older_epoch_is_not_followed(
    ours: LogExtent, theirs: LogExtent, their_history: LogHistory
) -> None:
    assert _step(ours, theirs, our_history=NEWER, their_history=their_history) is CatchUpStep.STALE


@pytest.mark.parametrize("history", [LogHistory(), OURS, NEWER])
@pytest.mark.parametrize("theirs", [EMPTY, LogExtent(0, 399)])
def test_less_of_the_same_history_is_no_newer_one(history: LogHistory, theirs: LogExtent) -> None:
    step = _step(LogExtent(0, 400), theirs, our_history=history, their_history=history)

    assert step is CatchUpStep.STALE


@pytest.mark.parametrize(
    ("followed_epoch", "is_other_owner", "expected"),
    [(1, False, CatchUpStep.RESYNCHRONISE), (2, False, CatchUpStep.STALE), (1, True, CatchUpStep.STALE)],
)
def test_a_master_that_was_promised_its_epoch_may_hold_less(
    followed_epoch: int, is_other_owner: bool, expected: CatchUpStep
) -> None:
    """It has heard how far we are: it left out a part of a record, or its last byte is of a later epoch."""
    step = catch_up_step(
        ours=LogExtent(0, 450),
        theirs=LogExtent(0, 400),
        our_segment_bytes=100,
        their_segment_bytes=100,
        serving=True,
        our_epoch=2,
        followed_epoch=followed_epoch,
        their_history=NEWER,
        is_other_owner=is_other_owner,
    )

    assert step is expected


def test_a_cut_needs_a_newer_history_and_spares_what_both_share() -> None:
    def refusal(common_end: int, ours: LogHistory, theirs: LogHistory, *, damaged: bool = False) -> str:
        return cut_refusal(common_end, our_history=ours, their_history=theirs, record_is_damaged=damaged)

    assert not refusal(400, OURS, NEWER)
    assert not refusal(450, OURS, NEWER)
    assert "damaged" in refusal(399, OURS, NEWER)
    assert not refusal(399, OURS, NEWER, damaged=True)
    assert refusal(400, NEWER, NEWER)
    assert refusal(400, LogHistory(), LogHistory())
    assert not refusal(0, LogHistory(), NEWER), "a store from before the first epoch has nothing to compare"


def test_two_masters_of_one_epoch_are_not_both_followed() -> None:
    def step(*, is_other_owner: bool, their_history: LogHistory) -> CatchUpStep:
        return catch_up_step(
            ours=LogExtent(0, 400),
            theirs=LogExtent(0, 500),
            our_segment_bytes=100,
            their_segment_bytes=100,
            serving=True,
            our_epoch=2,
            followed_epoch=2,
            their_history=their_history,
            is_other_owner=is_other_owner,
        )

    assert step(is_other_owner=True, their_history=NEWER) is CatchUpStep.STALE
    assert step(is_other_owner=False, their_history=NEWER) is CatchUpStep.VERIFY
    assert step(is_other_owner=True, their_history=NEWER.begun(3, 500)) is CatchUpStep.VERIFY
