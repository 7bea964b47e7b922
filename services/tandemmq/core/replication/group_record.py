"""The record of a broker group: who is its master, in which epoch, and which replicas hold all that is acknowledged.

An authority outside the group keeps it (`tandemmq.broker.failover.authority`) and changes it by compare-and-swap only.
Whoever swaps has read the version that is replaced, so of two that want to be master one loses. The rules of who may
write what are in `mastership.py`; here is only what is written.

As text, JSON:

| key          | what                                                                                  |
|--------------|---------------------------------------------------------------------------------------|
| epoch        | counts the masters of the group, from 1                                               |
| master       | {brokerId, diskId} of the epoch's master                                              |
| nonce        | of the master's process: an epoch has one incarnation                                 |
| inSync       | [{brokerId, diskId}, ...]: the in-sync set, the master included                       |
| leaseMs      | how long the record stands still before another may claim                             |
| renewals     | grows with each renewal of the lease                                                  |
| successor    | broker id that may claim at once; -1: nobody is named                                 |
| reason       | why this epoch began, for people                                                      |
| changedMs    | when, by the wall clock of who wrote it, for people                                   |
| past         | [[epoch, start offset], ...]: earlier epochs and this one, newest last                |
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

__all__ = ["NO_SUCCESSOR", "GroupRecord", "RecordUnreadable", "Replica"]

NO_SUCCESSOR: Final = -1
PAST_MAX: Final = 32
"""Epochs that the record remembers; replicas remember all of theirs."""


class RecordUnreadable(ValueError):
    """The text is no record of a group."""


class Replica(NamedTuple):
    """A member of the group and the disk it has. With another disk it is another replica."""

    broker_id: int
    disk_id: str


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One version of the record; see the head."""

    epoch: int
    master: Replica
    nonce: str
    in_sync: frozenset[Replica]
    lease_ms: int
    renewals: int = 0
    successor: int = NO_SUCCESSOR
    reason: str = ""
    changed_wall_ms: int = 0
    past: tuple[tuple[int, int], ...] = ()

    def with_past(self, epoch: int, start_offset: int) -> GroupRecord:
        """With the place where an epoch's bytes begin."""
        known = tuple(item for item in self.past if item[0] != epoch)
        return replace(self, past=(*known, (epoch, start_offset))[-PAST_MAX:])

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(
            {
                "epoch": self.epoch,
                "master": _document(self.master),
                "nonce": self.nonce,
                "inSync": [_document(replica) for replica in sorted(self.in_sync)],
                "leaseMs": self.lease_ms,
                "renewals": self.renewals,
                "successor": self.successor,
                "reason": self.reason,
                "changedMs": self.changed_wall_ms,
                "past": [list(item) for item in self.past],
            }
        )

    @classmethod
    def from_text(cls, text: str) -> GroupRecord:
        """Reads the JSON. RecordUnreadable: a key is missing, or it is something else."""
        try:
            document = json.loads(text)
            record = cls(
                epoch=int(document["epoch"]),
                master=_replica(document["master"]),
                nonce=str(document["nonce"]),
                in_sync=frozenset(_replica(each) for each in document["inSync"]),
                lease_ms=int(document["leaseMs"]),
                renewals=int(document["renewals"]),
                successor=int(document["successor"]),
                reason=str(document["reason"]),
                changed_wall_ms=int(document["changedMs"]),
                past=tuple((int(epoch), int(start)) for epoch, start in document["past"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordUnreadable(f"no record of a broker group: {error!r}") from error
        if record.epoch < 1 or record.lease_ms < 1 or record.master not in record.in_sync:
            raise RecordUnreadable("the record names no epoch, no lease, or a master outside its in-sync set")
        return record


def _document(replica: Replica) -> dict[str, Any]:
    return {"brokerId": replica.broker_id, "diskId": replica.disk_id}


def _replica(document: dict[str, Any]) -> Replica:
    return Replica(int(document["brokerId"]), str(document["diskId"]))
