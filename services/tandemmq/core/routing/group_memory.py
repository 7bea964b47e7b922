"""Which replicas each broker group ever had, and how far each of them was: one NameServer's memory.

A master that starts must know whom to ask for a longer log, and whether its own disk is the one it had. Its own disk
may be new or an old copy, so it asks who cannot have been replaced with it. Hence the rules:

- An entry is a disk. A replaced disk stays beside its successor: that there was one is what a later start must learn.
- What is known of a disk comes from its own words; others' words fill in what was not heard. Epochs and runs never go
  back. Nor does the end of the log within an epoch, unless a process says so that is proven: since it started it has
  served, or reached its master's end. Any other may run on an older copy of the disk.
- An older copy must not become its own witness. So an end that is heard of an unproven process first, or of others, is
  marked: whoever starts must ask about it, and does not count it as evidence of his own log. So is, in the memory of an
  earlier process, what was live when that ended.
- A slave's epoch is that of a master it followed. So each disk has a second one: in which it was master itself. Who
  asks for a later master is told of those only.
- A goodbye changes an entry and never removes it. Only an operator does (`forget`), or a bound: the entry that is
  dropped first is the one that left longest ago, then the one that was not heard of for the longest time, and a live
  one never before a dead one. "Longest ago" is the order in which news came, so no clock decides.

Pure: no I/O and no clock.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from tandemmq.core.routing.values import BrokerIdentity, ReplicaMemory

# (cluster, broker name)
GroupName = tuple[str, str]

# The largest clusters have some hundred groups of two or three replicas, and a disk is replaced once in years. With
# every bound met the memory takes about 50 MB.
GROUPS_MAX: Final = 1_024
BROKER_IDS_MAX: Final = 16
DISKS_MAX: Final = 8

_VERSION: Final = 1

_Key = TypeVar("_Key")


class GroupMemoryDamaged(Exception):
    """The text is no memory that we wrote. Whoever reads it keeps it aside and starts with an empty one."""


@dataclass(frozen=True, slots=True)
class GroupMemoryImage:
    """The memory at one moment. Making it is cheap; `text` may be made anywhere."""

    # Wall clock of when the memory began.
    made_wall_ms: int
    replicas: tuple[tuple[GroupName, ReplicaMemory], ...]

    def text(self) -> str:
        """A line of JSON with a checksum, for `GroupMemory.restored`."""
        content = {
            "version": _VERSION,
            "madeTime": self.made_wall_ms,
            "replicas": [
                {
                    "cluster": cluster,
                    "brokerName": broker_name,
                    "brokerId": replica.broker_id,
                    "diskId": replica.disk_id,
                    "run": replica.run,
                    "epoch": replica.epoch,
                    "endOffset": replica.end_offset,
                    "metadata": replica.metadata_endpoint,
                    "lastSeenTime": replica.last_seen_wall_ms,
                    "left": replica.left,
                    "live": replica.live,
                    "masterEpoch": replica.master_epoch,
                    "unproven": replica.unproven,
                    "recordVersion": replica.record_version,
                }
                for (cluster, broker_name), replica in self.replicas
            ],
        }
        return json.dumps({"crc32": _checksum(content), "content": content}) + "\n"


class GroupMemory:
    """The memory of one NameServer. Every method takes a few dictionary steps."""

    def __init__(self, *, made_wall_ms: int = 0) -> None:
        self.made_wall_ms: Final = made_wall_ms
        # Each level from the entry heard of least recently to the newest.
        self._groups: dict[GroupName, dict[int, dict[str, ReplicaMemory]]] = {}
        self.changes = 0
        """Grows with everything but the ends of logs that merely grow."""
        self.progress = 0
        """Grows when the end of a log moves."""

    @classmethod
    def restored(cls, text: str) -> GroupMemory:
        """The memory of an earlier process; nobody in it is live. `GroupMemoryDamaged` if it is not one."""
        try:
            document = json.loads(text)
            content = document["content"]
            if document["crc32"] != _checksum(content):
                raise GroupMemoryDamaged("its checksum is wrong")
            if content["version"] != _VERSION:
                raise GroupMemoryDamaged(f"it is of version {content['version']}; this NameServer knows {_VERSION}")
            memory = cls(made_wall_ms=content["madeTime"])
            for entry in content["replicas"]:
                replica = ReplicaMemory(
                    broker_id=entry["brokerId"],
                    disk_id=entry["diskId"],
                    run=entry["run"],
                    epoch=entry["epoch"],
                    end_offset=entry["endOffset"],
                    metadata_endpoint=entry["metadata"],
                    last_seen_wall_ms=entry["lastSeenTime"],
                    left=entry["left"],
                    # An earlier version knew roles by their ids.
                    master_epoch=entry.get("masterEpoch", -1),
                    # It may have gone on while no NameServer heard it.
                    unproven=entry.get("unproven", False) or entry.get("live", False),
                    record_version=_version_of(entry.get("recordVersion", (0, 0))),
                )
                memory._put((entry["cluster"], entry["brokerName"]), replica)
        except (ValueError, KeyError, TypeError) as error:
            raise GroupMemoryDamaged(f"{type(error).__name__}: {error}") from error
        memory.changes = memory.progress = 0
        return memory

    # What is known

    def replicas(self, group: GroupName) -> tuple[ReplicaMemory, ...]:
        """By broker id, each id's disks from the one heard of least recently to the newest."""
        by_id = self._groups.get(group, {})
        return tuple(replica for broker_id in sorted(by_id) for replica in by_id[broker_id].values())

    def replica(self, identity: BrokerIdentity, disk_id: str) -> ReplicaMemory | None:
        by_id = self._groups.get((identity.cluster, identity.broker_name), {})
        return by_id.get(identity.broker_id, {}).get(disk_id)

    def later_master(self, identity: BrokerIdentity, disk_id: str, epoch: int) -> ReplicaMemory | None:
        """The disk that was the group's master in the greatest epoch above `epoch`, under any id; never `disk_id`."""
        others = (each for each in self.replicas((identity.cluster, identity.broker_name)) if each.disk_id != disk_id)
        later = [each for each in others if each.master_epoch > epoch]
        return max(later, key=lambda each: each.master_epoch, default=None)

    def image(self) -> GroupMemoryImage:
        return GroupMemoryImage(self.made_wall_ms, tuple(self._all()))

    # News

    def told_of_itself(self, group: GroupName, told: ReplicaMemory) -> None:
        """A broker that is registered now speaks of its own disk; `told.unproven`: so is its process."""
        known = self._known(group, told)
        now = replace(told, live=True, left=False)
        if known is not None:
            now = replace(
                self._unless_older(known, now) if told.unproven or told.run < known.run else now,
                run=max(told.run, known.run),
                epoch=max(told.epoch, known.epoch),
                master_epoch=max(told.master_epoch, known.master_epoch),
                record_version=max(told.record_version, known.record_version),
                metadata_endpoint=told.metadata_endpoint or known.metadata_endpoint,
            )
        self._put(group, now)

    def told_of_another(self, group: GroupName, told: ReplicaMemory) -> None:
        """A broker speaks of another replica that it knows: of where that one's log ended when they met."""
        told = replace(told, live=False, unproven=True)
        known = self._known(group, told)
        if known is None:
            self._put(group, told)
            return
        is_news = not known.live and _progress(told) > _progress(known)
        base = self._unless_older(known, told) if is_news else known
        now = replace(
            base,
            epoch=max(told.epoch, known.epoch),
            master_epoch=max(told.master_epoch, known.master_epoch),
            record_version=max(told.record_version, known.record_version),
            metadata_endpoint=base.metadata_endpoint or known.metadata_endpoint or told.metadata_endpoint,
            last_seen_wall_ms=max(told.last_seen_wall_ms, known.last_seen_wall_ms),
        )
        # Not heard here: its place in the order stays.
        self._put(group, now, keeps_place=True)

    def gone(self, identity: BrokerIdentity, disk_id: str) -> None:
        """It is no longer registered, for whatever reason."""
        known = self.replica(identity, disk_id)
        if known is not None and known.live:
            self._put((identity.cluster, identity.broker_name), replace(known, live=False), keeps_place=True)

    def left(self, identity: BrokerIdentity, disk_id: str, *, run: int, end_offset: int) -> None:
        """Its process, a proven one, said goodbye, and where its log ends. A later one of the disk makes that old
        news."""
        known = self.replica(identity, disk_id)
        if known is not None and known.run == run and not known.live:
            goodbye = replace(known, end_offset=end_offset, left=True, unproven=False)
            self._put((identity.cluster, identity.broker_name), goodbye, keeps_place=True)

    def forget(self, group: GroupName, *, broker_id: int | None = None, disk_id: str = "") -> tuple[ReplicaMemory, ...]:
        """An operator gives replicas up, all or those named; returns them. Live ones are kept."""
        forgotten = tuple(
            replica
            for replica in self.replicas(group)
            if not replica.live and broker_id in (None, replica.broker_id) and disk_id in ("", replica.disk_id)
        )
        for replica in forgotten:
            self._drop(group, replica)
        return forgotten

    # Inside

    def _all(self) -> Iterator[tuple[GroupName, ReplicaMemory]]:
        for group, by_id in self._groups.items():
            for disks in by_id.values():
                for replica in disks.values():
                    yield group, replica

    @staticmethod
    def _unless_older(known: ReplicaMemory, told: ReplicaMemory) -> ReplicaMemory:
        """Words that prove nothing: they only add to the end of one epoch; a later epoch may have cut the log."""
        if told.epoch > known.epoch:
            return replace(told, unproven=True)
        ends = (known.end_offset, told.end_offset if told.epoch == known.epoch else 0)
        return replace(told, end_offset=max(ends), unproven=known.unproven)

    def _known(self, group: GroupName, told: ReplicaMemory) -> ReplicaMemory | None:
        return self._groups.get(group, {}).get(told.broker_id, {}).get(told.disk_id)

    def _put(self, group: GroupName, replica: ReplicaMemory, *, keeps_place: bool = False) -> None:
        known = self._known(group, replica)
        self._count(known, replica)
        if known is not None and keeps_place:
            self._groups[group][replica.broker_id][replica.disk_id] = replica
            return
        # Taken out and put in again at the end.
        by_id = self._groups.pop(group, {})
        disks = by_id.pop(replica.broker_id, {})
        disks.pop(replica.disk_id, None)
        if len(self._groups) >= GROUPS_MAX:
            del self._groups[_least_missed((name, _disks_of(each)) for name, each in self._groups.items())]
        if len(by_id) >= BROKER_IDS_MAX:
            del by_id[_least_missed((broker_id, each.values()) for broker_id, each in by_id.items())]
        if len(disks) >= DISKS_MAX:
            del disks[_least_missed((disk_id, (each,)) for disk_id, each in disks.items())]
        disks[replica.disk_id] = replica
        by_id[replica.broker_id] = disks
        self._groups[group] = by_id

    def _count(self, known: ReplicaMemory | None, now: ReplicaMemory) -> None:
        if known is None or _structure(known) != _structure(now):
            self.changes += 1
        elif known.end_offset != now.end_offset:
            self.progress += 1

    def _drop(self, group: GroupName, replica: ReplicaMemory) -> None:
        by_id = self._groups[group]
        del by_id[replica.broker_id][replica.disk_id]
        if not by_id[replica.broker_id]:
            del by_id[replica.broker_id]
        if not by_id:
            del self._groups[group]
        self.changes += 1


def _disks_of(by_id: dict[int, dict[str, ReplicaMemory]]) -> list[ReplicaMemory]:
    return [replica for disks in by_id.values() for replica in disks.values()]


def _least_missed(entries: Iterable[tuple[_Key, Iterable[ReplicaMemory]]]) -> _Key:
    """What makes room for news; of equals the first, which is the one heard of least recently."""

    def loss(entry: tuple[_Key, Iterable[ReplicaMemory]]) -> tuple[bool, bool]:
        replicas = list(entry[1])
        return any(replica.live for replica in replicas), not all(replica.left for replica in replicas)

    return min(entries, key=loss)[0]


def _progress(replica: ReplicaMemory) -> tuple[int, int, bool]:
    """Orders two reports of one disk: the greater one is the later one."""
    return replica.run, replica.end_offset, replica.left


def _structure(replica: ReplicaMemory) -> ReplicaMemory:
    """What changes seldom."""
    return replace(replica, end_offset=0, last_seen_wall_ms=0)


def _version_of(values: Any) -> tuple[int, int]:
    epoch, renewals = values
    return int(epoch), int(renewals)


def _checksum(content: Any) -> int:  # as JSON has it
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
