"""The simulated disk of a cluster member: its process dies in the very operation that was chosen."""

from __future__ import annotations

import random
from collections.abc import Callable

from support.simulated_disk import SimulatedCrash, SimulatedDisk
from tandemmq.core.storage.kept_tail import KEPT_TAILS_FOLDER


class FaultyDisk(SimulatedDisk):
    """Tells `crashed` before SimulatedCrash is raised, so that nothing else of the process runs on half-done state."""

    def __init__(
        self,
        chance: random.Random,
        *,
        wall_ms: Callable[[], int],
        boot_id: Callable[[], str],
        crashed: Callable[[], None],
        tail_kept: Callable[[], None],
    ) -> None:
        """`boot_id` is the machine's: a disk may come into another one. `tail_kept` tells of a cut that is to come."""
        super().__init__(chance, wall_ms=wall_ms)
        self._boot_id = boot_id
        self._crashed = crashed
        self._tail_kept = tail_kept

    def boot_id(self) -> str:
        return self._boot_id()

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        if new.startswith(f"{KEPT_TAILS_FOLDER}/"):
            self._tail_kept()

    def _step(self) -> None:
        try:
            super()._step()
        except SimulatedCrash:
            self._crashed()
            raise
