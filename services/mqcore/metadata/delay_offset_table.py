"""How far each delay level has been delivered (`delayOffset.json`)."""

from __future__ import annotations

from mqcore.metadata.data_version import DataVersion
from mqcore.metadata.java_json import read_java_json, write_java_json
from mqcore.offsets import QueueOffset

__all__ = ["DelayOffsetTable"]


class DelayOffsetTable:
    """Next offset of each level's queue in the schedule topic; level n, from 1, is queue n - 1."""

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}
        self._version = DataVersion()

    @property
    def version(self) -> DataVersion:
        """Compared by slaves."""
        return self._version

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

    def load_json(self, text: str) -> None:
        """Replaces everything, version included, by the text. MetadataCorrupt leaves the table as it was."""
        fields = read_java_json(text)
        version = DataVersion.from_object(fields.object("dataVersion"))
        self._offsets = fields.offsets("offsetTable")
        self._version = version

    def apply_from_master(self, text: str, version: DataVersion) -> list[str]:
        """Replaces everything by the master's table, as RocketMQ's SlaveSynchronize does. Nothing to notice."""
        self.load_json(text)
        self._version = version
        return []
