"""What a connection waits for, and since when."""

from __future__ import annotations

from math import inf

from mqgrpc.limits import Limits

__all__ = ["Timers"]


class Timers:
    """One connection's clock and its deadlines, in seconds on the owner's clock; inf for what nobody waits for.

    The parts of a connection set them where they begin and end to wait; `Connection.on_time` does what is due.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self.now = now
        """When the owner spoke to the connection last."""
        self.received_at = now
        """When bytes came last, or could have come again."""
        self.pinged_at = inf
        """When a silent peer was asked whether it is there."""
        self.preface_ends_at = now + limits.preface_timeout_s
        """The peer's first SETTINGS have to be here by then."""
        self.unfinished_since = inf
        """When the frame or header block began that is not whole yet."""
        self.calls_end_at = inf
        """The first deadline of a call, or somewhat before it."""
        self.stalled_at = inf
        """When output began to wait for the peer."""
        self.drain_ends_at = inf
        """When the final GOAWAY goes out, if the peer does not answer the first."""
        self._limits = limits

    def heard(self, now: float) -> None:
        """Bytes came, or reading begins again: whatever was late until now, the peer is not to blame."""
        self.now = self.received_at = now
        self.pinged_at = inf

    def next(self, part_since: float, *, is_paused: bool) -> float:
        """When something is due next. `part_since`: when the oldest unfinished request message began; `is_paused`:
        nothing is read now.
        """
        limits = self._limits
        stall = self.stalled_at + limits.write_stall_s
        if is_paused:
            # Nothing is read, so nothing can be late but the reading of what we wrote.
            return _earlier(_earlier(stall, self.calls_end_at), self.drain_ends_at)
        deadline = self.pinged_at + limits.keepalive_timeout_s
        if deadline == inf:
            deadline = self.received_at + limits.keepalive_s
        deadline = _earlier(deadline, part_since + limits.message_timeout_s)
        deadline = _earlier(deadline, _earlier(stall, self.unfinished_since + limits.frame_timeout_s))
        deadline = _earlier(deadline, _earlier(self.calls_end_at, self.preface_ends_at))
        return _earlier(deadline, self.drain_ends_at)


def _earlier(one: float, other: float) -> float:
    # `min` would make objects of them, with every read.
    if one < other:
        return one
    return other
