"""Which master wrote which part of a CommitLog: its epochs, in the file that RocketMQ's controller mode keeps.

An epoch counts the masters of a group: each that begins to serve raises it, and writes down where its own bytes start.
Two logs hold the same bytes as far as their histories agree, because an epoch has one writer. So a history tells what
bytes alone cannot: whether a log that differs is newer, or a shorter one only lost something.

`epochFileCheckpoint` is text: the number of entries, the CRC-32 of the entry lines without its highest bit (0: not to
be checked), then `epoch-startOffset` lines, ascending in both.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["EPOCHS_MAX", "EPOCH_FILE", "Epoch", "HistoryCorrupt", "LogHistory"]

EPOCH_FILE: Final = "epochFileCheckpoint"
EPOCHS_MAX: Final = 1_000
"""As many as RocketMQ's handshake carries; the oldest go first."""

_CRC_MASK: Final = 0x7FFF_FFFF


class HistoryCorrupt(ValueError):
    """The text is no epoch file: it was damaged. The log's own bytes are not in doubt."""


class Epoch(NamedTuple):
    """From `start_offset` on, up to the next epoch's start, one master wrote the log."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class LogHistory:
    """The epochs that a replica knows of, also of bytes that it does not hold yet. Empty: nobody wrote any down."""

    epochs: tuple[Epoch, ...] = ()

    def __post_init__(self) -> None:
        for before, after in zip(self.epochs, self.epochs[1:]):
            if after.epoch <= before.epoch or after.start_offset < before.start_offset:
                raise HistoryCorrupt(f"epoch {after} does not follow {before}")
        if self.epochs and (self.epochs[0].epoch < 1 or self.epochs[0].start_offset < 0):
            raise HistoryCorrupt(f"{self.epochs[0]} is no epoch")

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> LogHistory:
        """From (epoch, start offset) pairs. HistoryCorrupt: they do not ascend."""
        return cls(tuple(Epoch(*pair) for pair in pairs))

    @property
    def last_epoch(self) -> int:
        """The greatest epoch known; 0 for an empty history."""
        return self.epochs[-1].epoch if self.epochs else 0

    def epoch_of_last_byte(self, end_offset: int) -> int:
        """Which epoch wrote the last byte of a log that ends at `end_offset`; 0: before any epoch."""
        return max((epoch for epoch, start_offset in self.epochs if start_offset < end_offset), default=0)

    def up_to(self, end_offset: int) -> LogHistory:
        """Without the epochs that begin at `end_offset` or behind it: they have no byte in a log that ends there."""
        return LogHistory(tuple(epoch for epoch in self.epochs if epoch.start_offset < end_offset))

    def begun(self, epoch: int, start_offset: int) -> LogHistory:
        """With one more epoch, which starts at the end of the log. Epochs without a byte are dropped."""
        kept = [*self.up_to(start_offset).epochs, Epoch(epoch, start_offset)]
        return LogHistory(tuple(kept[-EPOCHS_MAX:]))

    def shared_end(self, theirs: LogHistory) -> int:
        """Up to where two replicas of these histories must hold the same bytes, as far as both hold any.

        Behind the last epoch that both know, one of them may have what the other never got. A replica that wrote no
        history down has nothing to compare: 0.
        """
        common = set(self.epochs) & set(theirs.epochs)
        last = max(common, default=None)
        starts = [
            epoch.start_offset for history in (self, theirs) for epoch in history.epochs if last is None or epoch > last
        ]
        if last is None and not (self.epochs and theirs.epochs):
            return 0
        return min(starts, default=_NO_END)

    def to_text(self) -> str:
        """The file's content."""
        lines = [f"{epoch}-{start_offset}" for epoch, start_offset in self.epochs]
        return "\n".join([str(len(lines)), str(_crc_of(lines)), *lines, ""])

    @classmethod
    def from_text(cls, text: str) -> LogHistory:
        """Reads the file's content. HistoryCorrupt: a line is missing, or damaged."""
        try:
            count, crc, *lines = text.splitlines()
            if len(lines) != int(count):
                raise HistoryCorrupt(f"{len(lines)} epochs where {count} are announced")
            if int(crc) and int(crc) != _crc_of(lines):
                raise HistoryCorrupt("the checksum of the epochs is wrong")
            return cls.of((int(epoch), int(start)) for epoch, _, start in (line.partition("-") for line in lines))
        except HistoryCorrupt:
            raise
        except ValueError as error:
            raise HistoryCorrupt(f"no epoch file: {error}") from error


_NO_END: Final = 1 << 62


def _crc_of(lines: list[str]) -> int:
    return zlib.crc32("".join(f"{line}\n" for line in lines).encode()) & _CRC_MASK
