"""What a slave does next, once it has heard from its master over the metadata plane.

Theory of operation. A slave that cannot reach its master waits, and asks again; everything else follows from the two
extents and from whether the master serves:

    WAIT, REFUSE     nothing is touched; ask again
    CONNECT          open the replication connection
    VERIFY           state our tail: equal -> CONNECT, different -> RESYNCHRONISE
    RESYNCHRONISE    CommonPrefixSearch: a result -> cut to it, None -> START_OVER; ask again
    START_OVER       keep all we hold aside; ask again, with an empty log -> CONNECT

What is cut off is kept as a file first. Nothing is ever cut against a master that does not serve yet: it may have lost
its unflushed tail and be about to fetch ours.
"""

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
    """The master's log begins at our end or behind it: nothing can be compared or continued. Keep ours aside."""


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
    if ours.end_offset <= theirs.min_offset:
        return CatchUpStep.START_OVER
    return CatchUpStep.VERIFY if ours.end_offset <= theirs.end_offset else CatchUpStep.RESYNCHRONISE
