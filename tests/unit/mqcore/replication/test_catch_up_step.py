"""What a slave does next under a master, by what both hold."""

from __future__ import annotations

import pytest

from mqcore.replication import CatchUpStep, LogExtent, catch_up_step

EMPTY = LogExtent(0, 0)


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
def test_step_under_a_serving_master(ours: LogExtent, theirs: LogExtent, expected: CatchUpStep) -> None:
    step = catch_up_step(ours=ours, theirs=theirs, our_segment_bytes=100, their_segment_bytes=100, serving=True)

    assert step is expected


@pytest.mark.parametrize("ours", [EMPTY, LogExtent(0, 400), LogExtent(0, 600)])
def test_nothing_is_cut_against_a_master_that_does_not_serve_yet(ours: LogExtent) -> None:
    step = catch_up_step(
        ours=ours, theirs=LogExtent(0, 500), our_segment_bytes=100, their_segment_bytes=100, serving=False
    )

    assert step is CatchUpStep.WAIT


@pytest.mark.parametrize("serving", [True, False])
def test_files_of_another_size_are_refused(serving: bool) -> None:
    step = catch_up_step(
        ours=EMPTY, theirs=LogExtent(0, 500), our_segment_bytes=100, their_segment_bytes=200, serving=serving
    )

    assert step is CatchUpStep.REFUSE
