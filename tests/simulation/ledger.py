"""What producers were promised: every acknowledged message with the place the broker gave it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Acknowledgement", "Ledger", "LossWindow"]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One PUT_OK as the producer saw it."""

    message_id: str
    body: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    waited: bool
    """False when the sender asked to wait neither for the disk nor for a slave."""
    sent_us: int
    at_us: int


@dataclass(frozen=True, slots=True)
class LossWindow:
    """A fault that may cost messages although they were acknowledged: the settings promise no more.

    What was sent before `at_us` and ends beyond `durable_end` may be gone, everything else may not.
    """

    at_us: int
    durable_end: int
    only_unwaited: bool
    cause: str


@dataclass(slots=True)
class Ledger:
    """The oracle of a run. Producers write it, checkers read it."""

    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    loss_windows: list[LossWindow] = field(default_factory=list)
    status_counts: Counter[str] = field(default_factory=Counter)

    def acknowledged(self, acknowledgement: Acknowledgement) -> None:
        """A producer got PUT_OK."""
        self.acknowledgements.append(acknowledgement)

    def may_be_lost(self, acknowledgement: Acknowledgement) -> LossWindow | None:
        """The fault that excuses the loss of a message, if there was one."""
        for window in self.loss_windows:
            if window.only_unwaited and acknowledgement.waited:
                continue
            if acknowledgement.sent_us <= window.at_us and acknowledgement.physical_offset >= window.durable_end:
                return window
        return None
