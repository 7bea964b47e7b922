"""By what a slave sees that its copy of a metadata table is not its master's any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqcore.metadata.java_json import JavaObject, JavaValue

__all__ = ["DataVersion"]


@dataclass(frozen=True, slots=True)
class DataVersion:
    """RocketMQ's DataVersion.

    A slave compares for equality only: another version is looked at, even an older one. A starting master asks which
    of two copies is newer.
    """

    state_version: int = 0
    """Epoch of the master that wrote it; 0 outside controller mode, and absent in files of RocketMQ 4."""
    timestamp_ms: int = 0
    """Wall clock of the last change."""
    counter: int = 0
    """Changes since the table was made."""

    def next(self, now_ms: int) -> DataVersion:
        """The version after one more change at wall time `now_ms`; newer than this one, whatever the clock does."""
        return DataVersion(self.state_version, max(now_ms, self.timestamp_ms), self.counter + 1)

    def is_newer_than(self, other: DataVersion) -> bool:
        """Within the history of one table: which of two copies was made later."""
        return (self.state_version, self.timestamp_ms, self.counter) > (
            other.state_version,
            other.timestamp_ms,
            other.counter,
        )

    def after(self, other: DataVersion) -> DataVersion:
        """A version that is newer than either: what came of two copies."""
        return DataVersion(
            max(self.state_version, other.state_version),
            max(self.timestamp_ms, other.timestamp_ms),
            max(self.counter, other.counter) + 1,
        )

    def to_fields(self) -> dict[str, JavaValue]:
        """RocketMQ's JSON object, fields in its order."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}

    @classmethod
    def from_object(cls, fields: JavaObject) -> DataVersion:
        """Reads the `dataVersion` object; MetadataCorrupt when a field is no integer."""
        return cls(fields.integer("stateVersion", 0), fields.integer("timestamp", 0), fields.integer("counter", 0))
