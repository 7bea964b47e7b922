"""Which losses the settings survive, so that they still promise every acknowledged message.

An acknowledged message is on `copies` machines: in their page caches with ASYNC_FLUSH, on their disks with SYNC_FLUSH.
A machine that loses power or its disk takes its copy with it; others must have made up for that before they may lose
theirs. Which message is where is left out on purpose: what must survive is told by what the settings promise, never by
what the product happened to do, or a broken acknowledgement would excuse itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Exposure:
    """A machine has lost copies, and not all is as it was."""

    at_us: int
    disk_lost: bool
    unflushed: set[str]
    """Who may hold the lost copies' twins in its page cache only."""


@dataclass(slots=True)
class FaultBudget:
    """Counts losses from one convergence of the group to the next."""

    members: tuple[str, ...]
    copies: int
    sync_flush: bool
    _exposures: dict[str, _Exposure] = field(default_factory=dict)

    def survives(self, name: str, *, disk_lost: bool) -> bool:
        """True when the settings promise that a loss at this machine now costs no acknowledged message."""
        if self.sync_flush and not disk_lost:
            return True
        exposed_by = sum(
            victim != name and (disk_lost or exposure.disk_lost or name in exposure.unflushed)
            for victim, exposure in self._exposures.items()
        )
        return exposed_by + 1 < self.copies

    def lost(self, name: str, *, at_us: int, disk_lost: bool) -> None:
        """A machine lost its unflushed pages, or what was on its disk."""
        if self.sync_flush and not disk_lost:
            return
        before = self._exposures.get(name)
        self._exposures[name] = _Exposure(
            at_us,
            disk_lost or (before is not None and before.disk_lost),
            {member for member in self.members if member != name},
        )

    def flushed(self, name: str, *, began_us: int) -> None:
        """A machine has on disk everything its log held at `began_us`."""
        for exposure in self._exposures.values():
            if began_us >= exposure.at_us:
                exposure.unflushed.discard(name)

    def promises_less(self, *, copies: int, sync_flush: bool) -> None:
        """From now on a member may acknowledge by these settings."""
        self.copies = min(self.copies, copies)
        self.sync_flush = self.sync_flush and sync_flush

    def converged(self) -> None:
        """All machines hold the same log: every copy has been made up for."""
        self._exposures.clear()

    @property
    def settled(self) -> bool:
        """True when no earlier loss matters any more."""
        return not self._exposures
