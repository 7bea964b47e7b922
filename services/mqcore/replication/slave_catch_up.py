"""What a slave does next, once it has heard from its master over the metadata plane."""

from __future__ import annotations

from enum import Enum, auto

from mqcore.replication.log_extent import LogExtent

__all__ = ["CatchUpStep", "catch_up_step"]


class CatchUpStep(Enum):
    """A slave's next step towards following."""

    WAIT = auto()
    """The master recovers still: nothing of ours may be cut against it, it may be about to fetch our tail."""
    REFUSE = auto()
    """CommitLog files of different size can never be equal: the operator has to set mappedFileSizeCommitLog."""
    CONNECT = auto()
    """Nothing is held, so nothing is to be proven."""
    VERIFY = auto()
    """State our tail; connect if the master holds the same, resynchronise if not."""
    RESYNCHRONISE = auto()
    """We hold bytes the master does not: find the last common record, keep the rest aside, cut."""
    START_OVER = auto()
    """The master's log begins behind our end: keep ours aside and take the master's from its start."""


def catch_up_step(
    *, ours: LogExtent, theirs: LogExtent, our_segment_bytes: int, their_segment_bytes: int, serving: bool
) -> CatchUpStep:
    """The step for a slave that holds `ours` under a master that holds `theirs`."""
    if our_segment_bytes != their_segment_bytes:
        return CatchUpStep.REFUSE
    if not serving:
        return CatchUpStep.WAIT
    if ours.is_empty:
        return CatchUpStep.CONNECT
    if ours.end_offset < theirs.min_offset:
        return CatchUpStep.START_OVER
    if ours.end_offset > theirs.end_offset:
        return CatchUpStep.RESYNCHRONISE
    return CatchUpStep.VERIFY
