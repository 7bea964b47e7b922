"""What one seed stands for: roles, sizes, load and which faults may come. Printed with every failure."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from typing import Final

from tandemmq.core.replication.frames import MasterOptions, SlaveOptions
from tandemmq.core.replication.mastership import FailoverOptions
from tandemmq.core.storage.options import FlushDiskType

TOPIC: Final = "Orders"
CLUSTER_NAME: Final = "DefaultCluster"
BROKER_NAME: Final = "broker-a"
MASTER: Final = "master"
NAME_SERVER: Final = "name-server"
HA_PORT: Final = 10_912
METADATA_PORT: Final = 10_911
FAILOVER_SEEDS: Final = (2, 4)
"""Of five seeds those whose group fails over."""
_ALONE: Final = (("put_back_slave_disk_alone", 6),)
_AGED: Final = (("age_authority", 8),)
_CHANGED: Final = (("change_settings", 6), ("exchange_member", 4), ("put_back_authority_in_hand_over", 6))


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
    send_timeout_ms: int = 4_000
    pause_ms_max: int = 300
    """Between two sends of one producer."""
    no_wait_share: float = 0.05
    """Share of messages that wait neither for the disk nor for a slave (WAIT=false)."""
    fault_time_ms: int = 90_000
    fault_pause_ms: int = 7_000
    """Mean time from one fault to the next."""
    consume_from_earliest: bool = True
    """Where a group starts that nobody knows the progress of: at the first message, or at the newest."""
    name_server_remembers: bool = True
    """Whether the NameServer has a folder, or forgets the group when it is started again."""
    name_server_late_ms: int = 0
    slaves_late_ms: int = 0
    """How long after the master they are started for the first time."""
    fault_weights: tuple[tuple[str, int], ...] = ()
    """Kinds of faults that come more often than they do otherwise, or at all: their names and weights."""
    master_recovery_timeout_ms: int = 60_000
    """The product's own: how long a master looks for NameServers that are silent."""
    few_faults: bool = False
    """Only some kinds of faults are played, and often: what two of them do together is hidden by all the others."""
    failover: bool = False
    """The group's record says who is master, and an authority keeps it."""
    is_sync_master: bool = True
    """Of a group that fails over: a send waits for the in-sync set, and for `in_sync_replicas` at least."""
    clock_rate_spread: float = 0.0
    """Of a group that fails over: how far a machine's clock may run fast or slow."""
    authority_late_share: float = 0.0
    """Of swaps of the record: those that are applied late."""

    @classmethod
    def draw(cls, seed: int) -> RunSettings:
        settings = cls._draw_fixed(seed)
        if seed % 5 in FAILOVER_SEEDS:
            settings = settings.with_failover()
        # Stories that came later, for some seeds only: all others are kept as they were.
        rest = seed % 40
        weights = _ALONE if rest % 20 in (12, 14) else _AGED if rest == 17 else _CHANGED if rest in (29, 39) else ()
        return replace(settings, fault_weights=weights)

    def with_failover(self) -> RunSettings:
        """The same in a group that fails over."""
        rng = random.Random(f"failover {self.seed}")
        slave_count = rng.choice((1, 2))
        return replace(
            self,
            failover=True,
            slave_count=slave_count,
            in_sync_replicas=rng.choices((1, 2, 3)[: 1 + slave_count], (6, 3, 1)[: 1 + slave_count])[0],
            is_sync_master=rng.random() < 0.9,
            clock_rate_spread=rng.choice((0.0, 0.02, 0.1)),
            authority_late_share=rng.choice((0.0, 0.0, 0.03, 0.2)),
            name_server_late_ms=0,
            slaves_late_ms=rng.choice((0, 0, 0, 6_000)),
        )

    def with_few_faults(self) -> RunSettings:
        """The same with few kinds of faults, which come sooner."""
        share = random.Random(f"few faults {self.seed}").choice((0.15, 0.3, 0.6, 1.0))
        return replace(self, few_faults=True, fault_pause_ms=max(500, round(share * self.fault_pause_ms)))

    def without_failover(self) -> RunSettings:
        """The same with fixed roles."""
        return self._draw_fixed(self.seed)

    @classmethod
    def _draw_fixed(cls, seed: int) -> RunSettings:
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
            consume_from_earliest=rng.random() < 0.5,
            name_server_late_ms=rng.choices((0, 5_000, 40_000), (18, 1, 1))[0],
            slaves_late_ms=rng.choices((0, 6_000, 40_000), (8, 1, 1))[0],
            name_server_remembers=rng.random() < 0.7,
        )

    @property
    def waits_for_slaves(self) -> bool:
        """True for a SYNC_MASTER."""
        return self.is_sync_master if self.failover else self.in_sync_replicas > 1

    @property
    def sync_flush(self) -> bool:
        """True when an acknowledgement waits for the disk."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH

    def master_options(self) -> MasterOptions:
        """Replication of the master, with frames so small that records and files are cut in many places."""
        return MasterOptions(needed_slaves=self.in_sync_replicas - 1, transfer_batch_bytes=self.transfer_batch_bytes)

    def failover_options(self) -> FailoverOptions:
        """The product's own."""
        return FailoverOptions(min_in_sync=self.in_sync_replicas)

    def slave_options(self) -> SlaveOptions:
        return SlaveOptions()

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
