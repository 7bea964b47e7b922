"""How far each delay level has been delivered (`delayOffset.json`)."""

from __future__ import annotations

from typing import Self

from mqcore.metadata.data_version import DataVersion
from mqcore.metadata.java_json import read_java_json, write_java_json
from mqcore.metadata.replica_merge import merged_version
from mqcore.offsets import QueueOffset

__all__ = ["DelayOffsetTable"]


class DelayOffsetTable:
    """Next offset of each level's queue in the schedule topic; level n, from 1, is queue n - 1.

    A log that lost its tail may end below it: who delivers goes on at the end of the queue then, or what is put there
    from now on would never come.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}
        self._version = DataVersion()

    @property
    def version(self) -> DataVersion:
        """Compared by slaves."""
        return self._version

    def __len__(self) -> int:
        return len(self._offsets)

    def offset(self, level: int) -> QueueOffset:
        """First offset not delivered yet; 0 for a level never used."""
        return QueueOffset(self._offsets.get(level, 0))

    def advance(self, level: int, offset: int, *, now_ms: int) -> None:
        """Everything below `offset` was delivered. Persisted late it is only delivered again: at least once."""
        if offset > self._offsets.get(level, -1):
            self._offsets[level] = offset
            self._version = self._version.next(now_ms)

    def to_json(self) -> str:
        """The text of `delayOffset.json`."""
        return write_java_json({"dataVersion": self._version.to_fields(), "offsetTable": self._offsets})

    def copied(self) -> Self:
        """The table as it is now, to be printed in a thread."""
        copy = type(self)()
        copy._offsets, copy._version = dict(self._offsets), self._version
        return copy

    def load_json(self, text: str) -> None:
        """Replaces everything, version included, by the text. MetadataCorrupt leaves the table as it was."""
        self._version, self._offsets = _read(text)

    def apply_from_master(self, text: str, version: DataVersion) -> list[str]:
        """Takes the master's levels as they are; one line for each that it lacks, which stays as it was."""
        _, levels = _read(text)
        kept = [
            f"delay level {level}: kept {offset}, the master has none"
            for level, offset in self._offsets.items()
            if level not in levels
        ]
        self._offsets = {**self._offsets, **levels}
        self._version = version
        return kept

    def merge_replica(self, text: str) -> list[str]:
        """Takes what a replica holds beside ours, before a master serves; one line for each level that came further."""
        their_version, theirs = _read(text)
        before = self._offsets
        merged = {level: max(before.get(level, 0), theirs.get(level, 0)) for level in {**before, **theirs}}
        self._version = merged_version((self._version, before), (their_version, theirs), merged)
        self._offsets = merged
        return [f"delay level {level}" for level, offset in merged.items() if offset != before.get(level)]


def _read(text: str) -> tuple[DataVersion, dict[int, int]]:
    fields = read_java_json(text)
    return DataVersion.from_object(fields.object("dataVersion")), fields.offsets("offsetTable")
