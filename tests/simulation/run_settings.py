"""What one seed stands for: roles, sizes, load and which faults may come. Printed with every failure."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Final

from mqcore.replication import MasterOptions, SlaveOptions
from mqcore.storage import FlushDiskType

__all__ = [
    "BROKER_NAME",
    "CLUSTER_NAME",
    "HA_PORT",
    "MASTER",
    "METADATA_PORT",
    "NAME_SERVER",
    "TOPIC",
    "RunSettings",
]

TOPIC: Final = "Orders"
CLUSTER_NAME: Final = "DefaultCluster"
BROKER_NAME: Final = "broker-a"
MASTER: Final = "master"
NAME_SERVER: Final = "name-server"
HA_PORT: Final = 10_912
METADATA_PORT: Final = 10_911


@dataclass(frozen=True, slots=True)
class RunSettings:
    """One master, its slaves, their producers and what will go wrong. Times are virtual."""

    seed: int
    in_sync_replicas: int = 2
    """Copies before an acknowledgement, the master's included; 1 is an ASYNC_MASTER."""
    slave_count: int = 2
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    commit_log_file_bytes: int = 16 << 10
    """Small, so that a run rolls over many files."""
    transfer_batch_bytes: int = 4 << 10
    body_bytes_max: int = 700
    equal_messages: bool = False
    """All messages alike in length: what was cut off then lies at record boundaries of what replaces it."""
    queue_count: int = 4
    producer_count: int = 3
    pause_ms_max: int = 300
    """Between two sends of one producer."""
    no_wait_share: float = 0.05
    """Share of messages that wait neither for the disk nor for a slave (WAIT=false)."""
    fault_time_ms: int = 90_000
    fault_pause_ms: int = 7_000
    """Mean time from one fault to the next."""
    master_recovery_timeout_ms: int = 600_000
    """How long a master that lost its tail waits for its slaves. Longer than any run: giving up is an operator's
    choice of availability over messages, and what is then lost is no finding."""

    @classmethod
    def draw(cls, seed: int) -> RunSettings:
        """The settings of a seed."""
        rng = random.Random(f"settings {seed}")
        return cls(
            seed=seed,
            in_sync_replicas=rng.choices((1, 2, 3), (1, 7, 2))[0],
            flush_disk_type=rng.choices((FlushDiskType.ASYNC_FLUSH, FlushDiskType.SYNC_FLUSH), (7, 3))[0],
            commit_log_file_bytes=rng.choice((4 << 10, 8 << 10, 16 << 10, 64 << 10)),
            transfer_batch_bytes=rng.choice((500, 4 << 10, 32 << 10)),
            body_bytes_max=rng.choice((60, 400, 1_200)),
            equal_messages=rng.random() < 0.25,
            queue_count=rng.choice((1, 4, 8)),
            producer_count=rng.randint(1, 3),
            pause_ms_max=rng.choice((200, 500, 1_500)),
            no_wait_share=rng.choice((0.0, 0.05, 0.3)),
            fault_time_ms=rng.randint(30_000, 90_000),
            fault_pause_ms=rng.choice((2_500, 6_000, 12_000)),
        )

    @property
    def waits_for_slaves(self) -> bool:
        """True for a SYNC_MASTER."""
        return self.in_sync_replicas > 1

    @property
    def sync_flush(self) -> bool:
        """True when an acknowledgement waits for the disk."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def power_losses_survived(self) -> int:
        """How many machines may lose unflushed pages at one time without costing an acknowledged message."""
        return 1 + self.slave_count if self.sync_flush else self.in_sync_replicas - 1

    def master_options(self) -> MasterOptions:
        """Replication of the master, with frames so small that records and files are cut in many places."""
        return MasterOptions(needed_slaves=self.in_sync_replicas - 1, transfer_batch_bytes=self.transfer_batch_bytes)

    def slave_options(self) -> SlaveOptions:
        """Replication of a slave."""
        return SlaveOptions()

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
