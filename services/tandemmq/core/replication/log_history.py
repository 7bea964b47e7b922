"""Which master wrote which part of a CommitLog, and what a replica knows of itself and its group beside the log.

Theory of operation. An epoch counts the masters of a group. Each master that begins to serve raises it and writes down
where its own bytes start. An epoch has one writer, so two logs hold the same bytes as far as their histories agree. A
history therefore tells what bytes alone cannot: whether a log that differs is newer, or a shorter one only lost
something.

A disk has an id of its own, given at its first start, and counts its starts (*runs*). So a replaced disk has another
id. A disk that was rolled back to an older copy has a smaller run, or less log, than others remember of it. Every
replica remembers the others it ever had to do with, because a master that starts must know whom to ask.

Two files. `epochFileCheckpoint` is text that RocketMQ's controller mode reads: the number of entries, the CRC-32 of the
entry lines without its highest bit (0: not to be checked), then `epoch-startOffset` lines, ascending in both.
`replica.json` in the store's folder is ours.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from tandemmq.core.routing.values import ReplicaMemory

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
            history = cls.of((int(epoch), int(start)) for epoch, _, start in (line.partition("-") for line in lines))
            if any(max(entry) >= _LONG_END for entry in history.epochs):
                raise HistoryCorrupt("no epoch file: a number has more than 64 bits")
            return history
        except HistoryCorrupt:
            raise
        except ValueError as error:
            raise HistoryCorrupt(f"no epoch file: {error}") from error


_NO_END: Final = 1 << 62
_LONG_END: Final = 1 << 63


def _crc_of(lines: list[str]) -> int:
    return zlib.crc32("".join(f"{line}\n" for line in lines).encode()) & _CRC_MASK


# Which part of a CommitLog a replica holds.


class LogRange(NamedTuple):
    """Half-open range of CommitLog bytes."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LogExtent:
    """[min_offset, end_offset) of one replica."""

    min_offset: int
    end_offset: int

    @property
    def is_empty(self) -> bool:
        """True when the replica holds nothing."""
        return self.min_offset == self.end_offset


class ReplicatedLog(Protocol):
    """The log a master serves from; offsets only, the shell moves the bytes."""

    @property
    def min_offset(self) -> int:
        """First byte still held."""

    @property
    def end_offset(self) -> int:
        """One past the last byte."""

    @property
    def segment_bytes(self) -> int:
        """CommitLog file size."""


# `replica.json`:
#
# | key        | what                                                                                      |
# |------------|-------------------------------------------------------------------------------------------|
# | diskId     | 32 hexadecimal digits                                                                     |
# | run        | starts of this disk, this one included                                                    |
# | cluster, brokerName, brokerId | whose disk it is                                                       |
# | promised   | epoch and diskId of the master that is promised to be followed next, if it begins         |
# | recordEpoch | greatest epoch of the group's record that this disk has seen; absent: never one          |
# | replicas   | by broker id: diskId, run, epoch, endOffset, metadata (host:port), left (stopped in       |
# |            | order), masterEpoch (the greatest in which it was master; 0: never)                       |

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
    promised_nonce: str = ""
    """Of that master's process; empty: not known."""
    record_epoch: int = 0
    """Greatest epoch that the group's record had; 0: none was ever seen."""
    record_renewals: int = 0
    """Of that epoch, the write that made the in-sync set what it is. An authority that has less was put back."""
    record_in_sync: tuple[str, ...] = ()
    """Disk ids of that set, in order."""

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
        document = {
            "diskId": self.disk_id,
            "run": self.run,
            "cluster": self.cluster,
            "brokerName": self.broker_name,
            "brokerId": self.broker_id,
            "promised": {"epoch": self.promised_epoch, "diskId": self.promised_to, "nonce": self.promised_nonce},
            "recordEpoch": self.record_epoch,
            "recordRenewals": self.record_renewals,
            "recordInSync": list(self.record_in_sync),
            "replicas": {
                str(memory.broker_id): {
                    "diskId": memory.disk_id,
                    "run": memory.run,
                    "epoch": memory.epoch,
                    "endOffset": memory.end_offset,
                    "metadata": memory.metadata_endpoint,
                    "left": memory.left,
                    "masterEpoch": memory.master_epoch,
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
                        # An earlier version knew roles by their ids.
                        master_epoch=int(memory.get("masterEpoch", -1)),
                    )
                    for broker_id, memory in document["replicas"].items()
                ),
                promised_epoch=int(document["promised"]["epoch"]),
                promised_to=str(document["promised"]["diskId"]),
                promised_nonce=str(document["promised"].get("nonce", "")),
                record_epoch=int(document.get("recordEpoch", 0)),
                record_renewals=int(document.get("recordRenewals", 0)),
                record_in_sync=tuple(map(str, document.get("recordInSync", ()))),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise RecordDamaged(f"{REPLICA_FILE} is no replica record: {error!r}") from error
        if not record.disk_id:
            raise RecordDamaged(f"{REPLICA_FILE} names no disk")
        numbers = [record.run, record.broker_id, record.promised_epoch, record.record_epoch, record.record_renewals]
        for own in record.replicas:
            numbers += [own.broker_id, own.run, own.epoch, own.end_offset, own.master_epoch]
        if not all(-_LONG_END <= number < _LONG_END for number in numbers):
            raise RecordDamaged(f"{REPLICA_FILE} is no replica record: a number has more than 64 bits")
        return record
