"""What a replica knows of itself and of its group beside the log: `replica.json` in the store's folder.

A disk has an id of its own, given at its first start, and counts its starts (*runs*). So a disk that was replaced has
another id, and one that was rolled back to an older copy has a smaller run, or less log, than others remember of it.
Every replica remembers the others it ever had to do with: a master that starts must know whom to ask.

| key        | what                                                                                      |
|------------|-------------------------------------------------------------------------------------------|
| diskId     | 32 hexadecimal digits                                                                     |
| run        | starts of this disk, this one included                                                    |
| cluster, brokerName, brokerId | whose disk it is                                                       |
| promised   | epoch and diskId of the master that is promised to be followed next, if it begins         |
| replicas   | by broker id: diskId, run, epoch, endOffset, metadata (host:port), left (stopped in order) |
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from mqcore.routing.values import ReplicaMemory

__all__ = ["REPLICAS_MAX", "REPLICA_FILE", "RecordDamaged", "ReplicaRecord", "newest_memories"]

REPLICA_FILE: Final = "replica.json"
REPLICAS_MAX: Final = 64
"""Members that are remembered, each with its newest disk; those that were heard of last stay."""


class RecordDamaged(ValueError):
    """The file is no replica record. The disk gets a new id: who it was is not known any more."""


def newest_memories(memories: Iterable[ReplicaMemory]) -> dict[str, ReplicaMemory]:
    """One memory a disk: of its newest run, and there the one that knows most."""
    newest: dict[str, ReplicaMemory] = {}
    seen_ms: dict[str, int] = {}
    for memory in memories:
        known = newest.get(memory.disk_id)
        seen_ms[memory.disk_id] = max(memory.last_seen_wall_ms, seen_ms.get(memory.disk_id, 0))
        if known is None or (memory.run, memory.end_offset, memory.left) > (known.run, known.end_offset, known.left):
            endpoint = memory.metadata_endpoint or (known.metadata_endpoint if known is not None else "")
            newest[memory.disk_id] = replace(memory, metadata_endpoint=endpoint)
    return {disk_id: replace(memory, last_seen_wall_ms=seen_ms[disk_id]) for disk_id, memory in newest.items()}


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """The file's content."""

    disk_id: str
    run: int
    cluster: str
    broker_name: str
    broker_id: int
    replicas: tuple[ReplicaMemory, ...] = ()
    promised_epoch: int = 0
    """No byte of an earlier epoch is taken any more."""
    promised_to: str = ""
    """Disk id of the master that this epoch was promised to."""

    def next_run(self) -> ReplicaRecord:
        """As it is written at the next start."""
        return replace(self, run=self.run + 1)

    def remembering(self, *memories: ReplicaMemory) -> ReplicaRecord:
        """With what was just heard of other members, which counts more than what was known of them."""
        merged = {memory.broker_id: memory for memory in self.replicas}
        for memory in memories:
            if memory.disk_id and memory.disk_id != self.disk_id:
                merged.pop(memory.broker_id, None)
                merged[memory.broker_id] = memory
        return replace(self, replicas=tuple(merged.values())[-REPLICAS_MAX:])

    def forgetting(self, disk_ids: Iterable[str]) -> ReplicaRecord:
        """Without disks that are gone for good, by an operator's word."""
        gone = set(disk_ids)
        return replace(self, replicas=tuple(memory for memory in self.replicas if memory.disk_id not in gone))

    def to_json(self) -> str:
        """The file's text."""
        document = {
            "diskId": self.disk_id,
            "run": self.run,
            "cluster": self.cluster,
            "brokerName": self.broker_name,
            "brokerId": self.broker_id,
            "promised": {"epoch": self.promised_epoch, "diskId": self.promised_to},
            "replicas": {
                str(memory.broker_id): {
                    "diskId": memory.disk_id,
                    "run": memory.run,
                    "epoch": memory.epoch,
                    "endOffset": memory.end_offset,
                    "metadata": memory.metadata_endpoint,
                    "left": memory.left,
                }
                for memory in self.replicas
            },
        }
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ReplicaRecord:
        """Reads the file's text. RecordDamaged: it is empty, cut, or something else."""
        try:
            document = json.loads(text)
            record = cls(
                disk_id=str(document["diskId"]),
                run=int(document["run"]),
                cluster=str(document["cluster"]),
                broker_name=str(document["brokerName"]),
                broker_id=int(document["brokerId"]),
                replicas=tuple(
                    ReplicaMemory(
                        broker_id=int(broker_id),
                        disk_id=str(memory["diskId"]),
                        run=int(memory["run"]),
                        end_offset=int(memory["endOffset"]),
                        epoch=int(memory["epoch"]),
                        metadata_endpoint=str(memory["metadata"]),
                        left=bool(memory["left"]),
                    )
                    for broker_id, memory in document["replicas"].items()
                ),
                promised_epoch=int(document["promised"]["epoch"]),
                promised_to=str(document["promised"]["diskId"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordDamaged(f"{REPLICA_FILE} is no replica record: {error!r}") from error
        if not record.disk_id:
            raise RecordDamaged(f"{REPLICA_FILE} names no disk")
        return record
