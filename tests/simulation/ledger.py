"""What producers and operators were promised, and what no disk holds any more: the oracle of a run.

A message is promised from the moment the broker answers, with the bytes it has in the log. After each fault that takes
something from a disk, every promise that no disk of the group can give back is *lost*, with the fault as its cause. If
the settings survive the fault, that is a violation at once. At the end everything promised is there but for what was
lost, message by message: whatever a disk still held, the product has to find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


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
    at_us: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One PUT_OK as it left the broker. `record`: its bytes in the CommitLog."""

    message_id: str
    physical_offset: int
    record: bytes
    waited: bool
    at_us: int
    epoch: int = 0
    incarnation: str = ""
    """Of a group that fails over: the master's, and the process that it was."""


@dataclass(slots=True)
class Ledger:
    """Brokers, producers and operators write it, checkers read it."""

    answers: dict[tuple[str, int], Answer] = field(default_factory=dict)
    """By message id and physical offset: every answer of which some disk holds the message."""
    lost: dict[tuple[str, int], str] = field(default_factory=dict)
    """The others, with the fault that took the last copy."""
    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    tables: dict[str, set[str]] = field(default_factory=dict)
    """Names that operators were told are created, by metadata file, and that some disk holds."""
    tables_lost: Counter[str] = field(default_factory=Counter)
    status_counts: Counter[str] = field(default_factory=Counter)

    def answered(self, answer: Answer) -> None:
        """A broker answers with PUT_OK."""
        self.answers[answer.message_id, answer.physical_offset] = answer

    def acknowledged(self, acknowledgement: Acknowledgement) -> None:
        """A producer got PUT_OK."""
        self.acknowledgements.append(acknowledgement)

    def created(self, file: str, name: str) -> None:
        """A master answered an operator that a topic or group is there."""
        self.tables.setdefault(file, set()).add(name)

    def take_stock(self, held: Callable[[Answer], bool], *, cause: str) -> list[Answer]:
        """Looks for every promise on the disks; returns those that were there before and are not now."""
        gone = [answer for answer in self.answers.values() if not held(answer)]
        for answer in gone:
            key = (answer.message_id, answer.physical_offset)
            del self.answers[key]
            self.lost[key] = cause
        return gone

    def take_stock_of_tables(self, held: Callable[[str, str], bool]) -> None:
        """The same for names: `held` is asked for file and name."""
        for file, names in self.tables.items():
            gone = {name for name in names if not held(file, name)}
            names -= gone
            self.tables_lost[file] += len(gone)
