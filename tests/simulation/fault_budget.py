"""How many machines may lose power when, so that the settings still promise every acknowledged message.

With ASYNC_FLUSH an acknowledged message is in the page caches of `in_sync_replicas` machines. A machine that loses
power takes its copy of the newest ones with it; the others must have them on disk before they may lose power too. Which
message is where is left out on purpose: a fault is allowed by what the settings promise, never by what the product
happened to do, or a broken acknowledgement would protect itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["FaultBudget"]


@dataclass(slots=True)
class FaultBudget:
    """Which machines have not yet flushed what they held when another one lost power."""

    members: tuple[str, ...]
    power_losses_survived: int
    _pending: dict[str, tuple[int, set[str]]] = field(default_factory=dict)
    """Machine that lost power -> when, and who has not flushed since."""

    def may_lose_power(self, name: str) -> bool:
        """True when the settings survive it now."""
        exposed_by = sum(1 for victim, (_, others) in self._pending.items() if victim != name and name in others)
        return exposed_by + 1 <= self.power_losses_survived

    def lost_power(self, name: str, *, at_us: int) -> None:
        """A machine lost its unflushed pages."""
        self._pending[name] = (at_us, {member for member in self.members if member != name})

    def flushed(self, name: str, *, began_us: int) -> None:
        """A machine has on disk everything its log held at `began_us`."""
        for victim, (at_us, others) in list(self._pending.items()):
            if began_us >= at_us:
                others.discard(name)
                if not others:
                    del self._pending[victim]

    @property
    def settled(self) -> bool:
        """True when no earlier power loss matters any more."""
        return not self._pending
