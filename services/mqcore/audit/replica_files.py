"""How a check reads one replica: its files, wherever they are, and what is known of the replica besides.

Three things offer `ReplicaFiles`: a folder (a volume, a snapshot), an object store, and a running broker over gRPC. The
checks do not know which.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, Self

from mqcore.replication.log_extent import LogRange

__all__ = ["ReplicaFacts", "ReplicaFiles", "ReplicaUnreadable", "StoreEntry"]


class ReplicaUnreadable(Exception):
    """A file or a broker does not answer. The run is incomplete for this replica; nothing is said about its bytes."""


class StoreEntry(NamedTuple):
    """A file or folder of a store."""

    name: str
    """Without its folder."""
    size: int
    """Bytes; -1 for a folder."""

    @property
    def is_folder(self) -> bool:
        """Whether it is one."""
        return self.size < 0


class ReplicaFiles(Protocol):
    """Files below one store's root, read-only, by path with slashes: commitlog/00000000000000000000. Calls block."""

    def list_folder(self, path: str) -> list[StoreEntry]:
        """What lies in it, by name; [] if there is no such folder. Raises ReplicaUnreadable."""

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        """Bytes from `offset`; fewer at the file's end, none if there is no such file. Raises ReplicaUnreadable."""


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What is known of one replica before its bytes are read."""

    group: str
    broker_id: int
    """0 for the master."""
    min_offset: int
    """First byte held."""
    end_offset: int
    """One past the last byte that was ever whole here, by the best evidence: of a folder the end of the last record
    that follows without a break, or what its own ConsumeQueues know of, if that is further."""
    segment_bytes: int
    """CommitLog file size."""
    is_running: bool
    """False: the store was ended in order and all its derived files are complete."""
    queues_offset: int
    """Every record that starts below it has its ConsumeQueue entry in the files."""
    index_offset: int
    """The same for the index."""
    lag_bytes: int = 0
    """Behind its master, as a broker says; 0 for folders."""
    holes: tuple[LogRange, ...] = ()
    """Parts of [min_offset, end_offset) without a file, or beyond the end of a short one."""

    def to_json(self) -> dict[str, Any]:
        """Plain values by field name."""
        return asdict(self) | {"holes": [list(hole) for hole in self.holes]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """What `to_json` gave."""
        return cls(**(values | {"holes": tuple(LogRange(*hole) for hole in values["holes"])}))
