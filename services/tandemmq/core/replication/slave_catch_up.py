"""What a slave does next, once it has heard from its master over the metadata plane.

Theory of operation. A slave that cannot reach its master waits, and asks again; everything else follows from the two
extents, the two histories, and from whether the master serves:

    WAIT, REFUSE     nothing is touched; ask again
    CONNECT          open the replication connection
    VERIFY           state our tail: equal -> CONNECT, different -> RESYNCHRONISE
    RESYNCHRONISE    CommonPrefixSearch, then `may_cut` says whether to cut back to its result; ask again
    START_OVER       keep all we hold aside; ask again, with an empty log -> CONNECT

What is cut off is kept as a file first. Nothing is ever cut against a master that does not serve yet: it may be about
to fetch ours. And nothing is cut because a master holds less: it has to show a *newer history*, an epoch that began
after all that we know of. Whoever begins an epoch has asked every replica before, or an operator gave up what could not
be asked. Up to where the histories agree, both logs were written by the same masters: a difference there is damage, and
the only bytes of ours that may go are a record that is none any more.
"""

from __future__ import annotations

from enum import Enum, auto

from tandemmq.core.replication.log_history import LogExtent, LogHistory


class CatchUpStep(Enum):
    """A slave's next step towards following."""

    WAIT = auto()
    """The master recovers still: nothing of ours may be cut against it, it may be about to fetch our tail."""
    REFUSE = auto()
    """CommitLog files of different size can never be equal: the operator has to set mappedFileSizeCommitLog."""
    STALE = auto()
    """The master shows an older history than ours, or less of the same one: following it would give up what we hold."""
    CONNECT = auto()
    """Nothing is held, so nothing is to be proven."""
    VERIFY = auto()
    """State our tail; connect if the master holds the same, resynchronise if not."""
    RESYNCHRONISE = auto()
    """We hold bytes the master does not: find the last common record, keep the rest aside, cut."""
    START_OVER = auto()
    """The master's log begins at our end or behind it: nothing can be compared or continued. Keep ours aside."""


def catch_up_step(
    *,
    ours: LogExtent,
    theirs: LogExtent,
    our_segment_bytes: int,
    their_segment_bytes: int,
    serving: bool,
    our_epoch: int,
    followed_epoch: int,
    their_history: LogHistory,
    is_other_owner: bool = False,
) -> CatchUpStep:
    """The step for a slave that holds `ours` under a master that holds `theirs`.

    `our_epoch` is the greatest that was followed, or promised to a master that starts; `is_other_owner`: to a master on
    another disk than this one's. `followed_epoch` is the greatest of which we may hold bytes.
    """
    if our_segment_bytes != their_segment_bytes:
        return CatchUpStep.REFUSE
    if not serving:
        return CatchUpStep.WAIT
    if stale_reason(
        ours=ours,
        theirs=theirs,
        our_epoch=our_epoch,
        followed_epoch=followed_epoch,
        their_history=their_history,
        is_other_owner=is_other_owner,
    ):
        return CatchUpStep.STALE
    if ours.is_empty:
        return CatchUpStep.CONNECT
    if ours.end_offset <= theirs.min_offset:
        return CatchUpStep.START_OVER
    return CatchUpStep.VERIFY if ours.end_offset <= theirs.end_offset else CatchUpStep.RESYNCHRONISE


def stale_reason(
    *,
    ours: LogExtent,
    theirs: LogExtent,
    our_epoch: int,
    followed_epoch: int,
    their_history: LogHistory,
    is_other_owner: bool = False,
) -> str:
    """Why the master must not be followed, in words; empty: nothing speaks against it.

    A master without any history (an older version) is believed as long as it does not hold less than we do. One that
    holds less in the epoch that we promised it has heard how far we are, and knows better.
    """
    their_epoch = their_history.last_epoch
    if their_epoch < our_epoch:
        return f"its last epoch is {their_epoch}, and we have followed epoch {our_epoch} or promised to"
    if their_epoch == our_epoch > 0 and is_other_owner:
        return f"epoch {our_epoch} is that of a master on another disk, which we have followed or promised to"
    if their_epoch == followed_epoch and theirs.end_offset < ours.end_offset and not ours.is_empty:
        return f"it ends at {theirs.end_offset}, we hold {ours.end_offset}, and no newer epoch says why"
    return ""


def cut_refusal(common_end: int, *, our_history: LogHistory, their_history: LogHistory, record_is_damaged: bool) -> str:
    """Why our log may not be cut back to `common_end`, the end of what both hold; empty: it may.

    `record_is_damaged`: what stands there in our log is no record, and theirs is one.
    """
    if record_is_damaged:
        return ""
    if their_history.last_epoch <= our_history.last_epoch:
        return (
            f"both logs are of epoch {our_history.last_epoch} and differ from {common_end} on: one of them is damaged"
        )
    shared_end = our_history.shared_end(their_history)
    if common_end < shared_end:
        return (
            f"the logs differ from {common_end} on, although both were written by the same masters up to {shared_end}: "
            "one of them is damaged"
        )
    return ""
