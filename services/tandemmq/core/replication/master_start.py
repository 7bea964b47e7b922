"""Whether a starting master may serve with the log it has, must fetch more first, or has to wait (ADR 28).

Theory of operation. The shell tells what NameServers remember of the group and what each replica answers; `next_step`
says what follows. Nothing is decided by a clock but how long to look for members that nobody ever heard of.

    Wait     for a replica that may hold more, or for an operator who gives it up
    Fetch    a replica's log and metadata, and then ask again
    Serve    in a new epoch

Which log is better. Each byte was written in one epoch, by one master. The better log is the one whose last byte is of
the later epoch; of two that end in the same epoch, the longer one. (Raft compares logs so.) An empty log is the worst
of all: a disk that is new, or came back with less, never wins.

Who must be heard. Every member that anybody remembers: our own disk, a NameServer, or a replica that answers. A member
need not be heard when our log is *whole* and *witnessed*. Whole: this very disk stopped in order, or was killed and the
machine ran on, and recovery cut nothing but a torn record. Then it has all that it ever sent, and no slave can have
more. Witnessed: somebody else remembers this disk in our last epoch with no more log than it has, so it is no older
copy of itself; and no other disk is remembered with a better log than ours, so no damage at our log's end looks like
the end. What is remembered is as old as the last heartbeat, about a second. Our own words since this start witness
nothing (`ReplicaMemory.unproven`). And ours must be the log of the last epoch's master: who followed another one has
all that was sent to it, and that one may have gone on alone, as in a group that failed over before its roles were
fixed.

In the in-sync set. Where an authority keeps a record of the group (`mastership.py`) that names our disk as a member of
the in-sync set, all that was ever acknowledged was on this disk: an epoch that was only promised counts for nothing.
That holds for a record as new as the newest log: whoever remembers a log of a later epoch has seen that the authority
was put back. And for a disk that knows the record's epoch: it came into the set by following that epoch's master, so
one that never heard of the epoch is an older copy. What others have beyond our end was acknowledged to nobody, or this
is an older copy: only a process that has reached its master's end, or has served, knows which, and needs no witness.

What groups have consumed does not follow the log. A master that was replaced, and has not heard of it, goes on writing
to a log that nobody is promised; it may be the longer one, and its leases are older than those of who was master since.
So they come with the log only from a replica that has heard of our last epoch.

What is lost. Whoever is asked to give disks up is told how much more than the best log in reach anybody remembers, and
who remembers it: also of disks that answer with less than they are remembered with, since a whole group may have been
rolled back at once. A number is a lower bound, and 0 with a later epoch means that the amount is not known.

Disks that are gone. A member that answers from another disk than the one remembered has lost that one; and so have we,
when another disk is remembered in our place. Nobody waits for such a disk, unless it held more than the best log.

A new group is one that nobody ever heard of. Members that the settings announce, and nobody heard of, get a while to
come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

from tandemmq.core.replication.log_history import LogExtent, LogHistory, newest_memories
from tandemmq.core.routing.values import ReplicaMemory

NEW_GROUP_GRACE_MS: Final = 10_000
"""How long members that nobody ever heard of are looked for. Slaves that run register within a few seconds."""

_Rank: TypeAlias = tuple[int, int]
"""Epoch of the last byte, and the end: the greater one is the better log."""


class Relation(Enum):
    """A replica's log beside ours."""

    WITHIN = auto()
    """Theirs ends where ours does or before, and ours begins with it."""
    EXTENDS = auto()
    """Theirs begins with ours and goes on."""
    PARTED = auto()
    """They differ below both ends, or theirs begins behind our end."""


@dataclass(frozen=True, slots=True)
class OwnReplica:
    """This broker as its disk has it."""

    broker_id: int
    disk_id: str
    extent: LogExtent
    history: LogHistory
    is_whole: bool
    """Stopped in order, or killed on a machine that ran on; and recovery cut nothing but a torn record."""
    is_proven: bool = False
    """This process has served before, or reached its master's end: its disk is no older copy."""
    is_follower: bool = False
    """Its last epoch was another disk's, as which it may have gone on without ours."""
    promised_epoch: int = 0
    """The greatest that it followed, or promised to a master that starts."""

    @property
    def rank(self) -> _Rank:
        return _rank(self.extent, self.history)


@dataclass(frozen=True, slots=True)
class ReplicaAnswer:
    """Another member as it answered. `disk_id` is empty, and the history too, for a version that has none."""

    broker_id: int
    endpoint: str
    disk_id: str
    extent: LogExtent
    history: LogHistory
    relation: Relation
    serving: bool = False
    remembers: tuple[ReplicaMemory, ...] = ()
    promised_epoch: int = 0
    """The greatest that it knows of, or promised to a master that starts."""
    record_version: tuple[int, int] = (0, 0)
    """Epoch and renewals of the newest record of the group that its disk has seen."""

    @property
    def rank(self) -> _Rank:
        return _rank(self.extent, self.history)


@dataclass(frozen=True, slots=True)
class LossWitness:
    """Somebody who remembers a disk with more than the best log in reach; the disk may be in reach, rolled back."""

    source: str
    """Who: `NameServer host:port`, `replica host:port`, or `this disk`."""
    memory: ReplicaMemory
    lost_bytes: int
    """By this memory. 0: it tells of an epoch that nobody in reach has heard of, and not how much was written in it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """`reason` is for people. `missing` are the disks that are waited for, `damaged_tables` the metadata (file and what
    is wrong) that no replica in reach has; without either no operator can end the wait."""

    reason: str
    missing: tuple[ReplicaMemory, ...] = ()
    lost_bytes: int = 0
    """How much more than the best log in reach anybody remembers; there may have been more."""
    witnesses: tuple[LossWitness, ...] = ()
    """Who remembers how much, the most first."""
    end_offset: int = 0
    """The end of the best log in reach."""
    damaged_tables: tuple[tuple[str, str], ...] = ()
    needs_operator: bool = False
    """It does not end by itself, unless what is missing comes back."""

    @property
    def is_acceptable(self) -> bool:
        """An operator may give up what is waited for."""
        return bool(self.missing or self.damaged_tables)


@dataclass(frozen=True, slots=True)
class Fetch:
    """The answer to fetch from: its log extends ours, or is better than ours from where they part."""

    answer: ReplicaAnswer
    is_newer: bool = True
    """What it knows of groups is newer than ours, too. Not if it has not heard of our last epoch: we were master then,
    and it may hold more log only because it went on as a master that had been replaced."""


@dataclass(frozen=True, slots=True)
class Serve:
    """`reason` is for people; `given_up` are disks that an operator gave up."""

    epoch: int
    reason: str
    given_up: tuple[ReplicaMemory, ...] = ()
    lost_bytes: int = 0


StartStep: TypeAlias = "Wait | Fetch | Serve"


@dataclass(slots=True)
class MasterStart:
    """One start of a master. Times are monotonic ms."""

    own: OwnReplica
    total_replicas: int
    name_servers: frozenset[str]
    """All that are configured."""
    recovery_timeout_ms: int
    started_ms: int
    remembered: tuple[ReplicaMemory, ...] = ()
    """What our own disk remembers of the others."""
    accepts_loss: bool = False
    """An operator gave up whatever cannot be reached."""
    in_sync_epoch: int = 0
    """Of the group's record, if it has our disk in the in-sync set; 0: it has not."""
    given_up: frozenset[str] = frozenset()
    """Disks that an operator gave up by their names."""
    _told: dict[str, tuple[ReplicaMemory, ...]] = field(default_factory=dict)
    _last_name_server_ms: int = 0
    _answers: dict[str, ReplicaAnswer] = field(default_factory=dict)
    _rivals: dict[str, str] = field(default_factory=dict)
    _copies: tuple[str, ...] = ()
    _unusable: dict[str, str] = field(default_factory=dict)
    _heard_epoch: int = 0

    # What the shell hears

    def name_server_told(self, address: str, memories: Iterable[ReplicaMemory], *, now_ms: int) -> None:
        """What a NameServer remembers of our group; nothing is an answer as well."""
        if address not in self._told:
            self._last_name_server_ms = now_ms
        self._told[address] = tuple(memories)

    def rivals_are(self, rivals: Mapping[str, str], *, copies: Iterable[str] = ()) -> None:
        """Live brokers registered under our id with another disk: disk id -> metadata endpoint. And `copies`: metadata
        endpoints of those registered with our very disk. Only one of them can have the disk itself.

        A registration of our own last disk may be alive for a while, at an address that is ours by now: it is left out
        by whoever asked there and heard himself.
        """
        self._copies = tuple(sorted(copies))
        self._rivals = {disk_id: endpoint for disk_id, endpoint in rivals.items() if disk_id != self.own.disk_id}
        for disk_id in [disk_id for disk_id, answer in self._answers.items() if self._is_rival(answer)]:
            if disk_id not in self._rivals:
                del self._answers[disk_id]

    def hear_anew(self) -> None:
        """All members are asked again: what they said before may be less than they hold by now."""
        self._answers.clear()

    def replica_answered(self, answer: ReplicaAnswer) -> None:
        """A member answered. The newest answer of a disk counts."""
        if answer.disk_id == self.own.disk_id and answer.disk_id:
            return
        self._answers[_key(answer)] = answer

    def log_changed(self, own: OwnReplica) -> None:
        """Our log is another one now: what was said of it is void."""
        self._heard_epoch = max(self._heard_epoch, self.own.history.last_epoch)
        self.own = own
        self._answers.clear()
        self._unusable.clear()

    def promise_refused(self, answer: ReplicaAnswer, epoch: int) -> None:
        """The member knows of `epoch`: a later one has to be begun. What it said of its log may be old news."""
        self._answers.pop(_key(answer), None)
        self._heard_epoch = max(self._heard_epoch, epoch)

    def cannot_fetch(self, answer: ReplicaAnswer, reason: str) -> None:
        """The answer's log is better, and cannot be taken over: somebody has to look."""
        self._unusable[answer.disk_id] = f"{_who(answer.broker_id, answer.disk_id)} at {answer.endpoint} {reason}"

    @property
    def answers(self) -> list[ReplicaAnswer]:
        """Best first."""
        return sorted(self._answers.values(), key=lambda answer: answer.rank, reverse=True)

    @property
    def record_version(self) -> tuple[int, int]:
        """The newest record of the group that anybody who answered has seen, or a NameServer has heard of."""
        seen = [answer.record_version for answer in self._answers.values()]
        return max((*seen, *(memory.record_version for told in self._told.values() for memory in told)), default=(0, 0))

    def endpoints_remembered(self) -> list[str]:
        """Metadata endpoints at which members of the group were, for those who are not registered now."""
        return sorted({memory.metadata_endpoint for memory in self._memories().values() if memory.metadata_endpoint})

    @property
    def run_of_us(self) -> int:
        """The greatest number of starts that others remember of our disk. More than it counts: it was rolled back."""
        return max((memory.run for memory in self._memories_of_us()), default=0)

    # What follows

    def next_step(self, *, now_ms: int) -> StartStep:
        if (rival := self._rival_reason()) is not None:
            return Wait(rival, needs_operator=True)
        best = max((answer for answer in self._answers.values()), key=lambda answer: answer.rank, default=None)
        best_rank = self.own.rank if best is None else max(self.own.rank, best.rank)
        is_proven = self._is_proven()
        missing = [] if is_proven else self._missing(best_rank)
        waits_for = [] if self.accepts_loss else [one for one in missing if one.disk_id not in self.given_up]
        if waits_for:
            return self._wait_for(waits_for, missing, best_rank)
        unusable = {disk_id for disk_id in self._unusable if disk_id not in self.given_up and not self.accepts_loss}
        if unusable:
            usable = [answer.rank for answer in self._answers.values() if answer.disk_id not in unusable]
            usable_rank = max([self.own.rank, *usable])
            refused = tuple(memory_of(answer) for answer in self.answers if answer.disk_id in unusable)
            witnesses = self._witnesses(usable_rank, refused)
            return Wait(
                "; ".join(sorted(self._unusable[disk_id] for disk_id in unusable)),
                missing=refused,
                lost_bytes=_most_lost(witnesses),
                witnesses=witnesses,
                end_offset=usable_rank[1],
                needs_operator=True,
            )
        if best is not None and best.rank > self.own.rank and best.disk_id not in self._unusable:
            knows_epochs = bool(best.history.epochs)
            return Fetch(best, not knows_epochs or best.history.last_epoch >= self.own.history.last_epoch)
        is_accepted = self.accepts_loss or bool(self.given_up)
        if not is_proven and not is_accepted and (unheard := self._unheard_reason(now_ms)) is not None:
            return Wait(unheard)
        given_up = tuple(missing)
        return Serve(
            epoch=1 + self._greatest_epoch(),
            reason=self._why(is_proven, given_up),
            given_up=given_up,
            lost_bytes=_most_lost(self._witnesses(best_rank, given_up)),
        )

    # Inside

    def _witnesses(self, best_rank: _Rank, missing: Iterable[ReplicaMemory]) -> tuple[LossWitness, ...]:
        """Who remembers more than `best_rank`, the most first, and each disk once of each.

        Not of missing disks alone: all of a group may have been rolled back at once, and then the disks that held more
        are in reach, with less. Of an earlier epoch more is nothing lost, unless it is a disk that is waited for.
        """
        waited_for = {memory.disk_id for memory in missing}
        told: list[tuple[str, ReplicaMemory]] = [("this disk", memory) for memory in self.remembered]
        told += [(f"NameServer {address}", memory) for address, each in self._told.items() for memory in each]
        in_reach = {self.own.disk_id: (self.own.history.last_epoch, self.own.extent.end_offset)}
        for answer in self._answers.values():
            told += [(f"replica {answer.endpoint}", memory) for memory in answer.remembers]
            if answer.disk_id in waited_for:
                told.append((f"replica {answer.endpoint}", memory_of(answer)))
            else:
                in_reach[answer.disk_id] = (answer.history.last_epoch, answer.extent.end_offset)
        found: dict[tuple[str, str], LossWitness] = {}
        for source, memory in told:
            epoch, end_offset = in_reach.get(memory.disk_id, (-1, -1))
            if memory.epoch <= epoch and memory.end_offset <= end_offset:
                continue
            beyond = max(0, memory.end_offset - best_rank[1])
            is_lost = self._knew_more(memory, best_rank) or (beyond and memory.disk_id in waited_for)
            known = found.get((source, memory.disk_id))
            if is_lost and (known is None or known.lost_bytes < beyond):
                found[source, memory.disk_id] = LossWitness(source, memory, beyond)
        return tuple(sorted(found.values(), key=lambda one: (-one.lost_bytes, -one.memory.epoch, one.source)))

    def _memories(self) -> dict[str, ReplicaMemory]:
        """What is remembered of every disk but ours."""
        memories = newest_memories(
            [
                *self.remembered,
                *(memory for told in self._told.values() for memory in told),
                *(memory for answer in self._answers.values() for memory in answer.remembers),
            ]
        )
        return {disk_id: memory for disk_id, memory in memories.items() if disk_id not in ("", self.own.disk_id)}

    def _missing(self, best_rank: _Rank) -> list[ReplicaMemory]:
        """Disks that may hold more than the best log in reach."""
        answered_ids = {answer.broker_id for answer in self._answers.values()}
        missing = []
        for disk_id, memory in sorted(self._memories().items()):
            if disk_id in self._answers:
                continue
            is_gone = memory.broker_id == self.own.broker_id or memory.broker_id in answered_ids
            if not (is_gone or memory.left) or self._knew_more(memory, best_rank):
                missing.append(memory)
        # Then this disk was rolled back: the newer copy of it is not here. After a loss of power less of the log is
        # expected; of an epoch that was begun, or followed, that is known.
        last_epoch = self.own.history.last_epoch
        of_us = [memory for memory in self._memories_of_us() if self.own.is_whole or memory.epoch > last_epoch]
        return missing + [memory for memory in of_us if self._knew_more(memory, best_rank)][:1]

    def _knew_more(self, memory: ReplicaMemory, best_rank: _Rank) -> bool:
        """The disk held more than the best log in reach, or some of an epoch that nobody in reach has heard of."""
        if not memory.end_offset:
            return False
        histories = [self.own.history, *(answer.history for answer in self._answers.values())]
        if memory.epoch > max(history.last_epoch for history in histories):
            return True
        return memory.epoch >= best_rank[0] and memory.end_offset > best_rank[1]

    def _memories_of_us(self) -> list[ReplicaMemory]:
        """What others remember of our own disk."""
        memories = [memory for told in self._told.values() for memory in told]
        memories += [memory for answer in self._answers.values() for memory in answer.remembers]
        return [memory for memory in memories if memory.disk_id == self.own.disk_id]

    def _is_proven(self) -> bool:
        """Nobody can have more than we do: our log is whole, and witnessed."""
        if not self.own.is_whole or self.own.extent.is_empty:
            return False
        last_epoch, end_offset = self.own.history.last_epoch, self.own.extent.end_offset
        of_us = self._memories_of_us()
        if any(memory.epoch > last_epoch or memory.end_offset > end_offset for memory in of_us):
            return False
        if last_epoch < self.in_sync_epoch:
            return False
        is_in_sync = self.in_sync_epoch >= self._logged_epoch()
        if self.own.is_proven and is_in_sync:
            return True
        if self.own.is_follower and not is_in_sync:
            return False
        is_witnessed = any(memory.epoch == last_epoch and memory.end_offset and not memory.unproven for memory in of_us)
        if not is_witnessed or any(self._knew_more(memory, self.own.rank) for memory in self._memories().values()):
            # Of a master's log others have what came from here: this is an older copy, or recovery took a gap for the
            # end of the log. Of a slave's log others may have what was acknowledged to nobody, or it is an older copy.
            return False
        return is_in_sync or self._greatest_epoch() <= last_epoch

    def _greatest_epoch(self) -> int:
        promised = [answer.promised_epoch for answer in self._answers.values()]
        return max(self._logged_epoch(), self._heard_epoch, self.own.promised_epoch, *promised)

    def _logged_epoch(self) -> int:
        """The greatest in which anybody is known to have had a log. It had a master, so a record named one."""
        return max(
            self.own.history.last_epoch,
            *(answer.history.last_epoch for answer in self._answers.values()),
            *(memory.epoch for memory in self._memories().values()),
            *(memory.epoch for told in self._told.values() for memory in told),
            0,
        )

    def _is_rival(self, answer: ReplicaAnswer) -> bool:
        return answer.broker_id == self.own.broker_id

    def _rival_reason(self) -> str | None:
        """Another process has our broker id: of two that start, the one with the worse log waits.

        Of two on copies of one disk both wait, unless one serves: nobody can tell which is the disk.
        """
        if self._copies:
            return (
                f"another process runs on a copy of this very disk, at {', '.join(self._copies)}; stop one of the two, "
                "and keep the disk that was used last"
            )
        for disk_id, endpoint in sorted(self._rivals.items()):
            answer = self._answers.get(disk_id)
            if answer is None or answer.serving or (answer.rank, answer.disk_id) > (self.own.rank, self.own.disk_id):
                return (
                    f"another process is broker {self.own.broker_id} of this group, at {endpoint} with disk {disk_id}; "
                    "stop one of the two, or give it a brokerId of its own"
                )
        return None

    def _wait_for(self, waits_for: list[ReplicaMemory], missing: list[ReplicaMemory], best_rank: _Rank) -> Wait:
        whom = ", ".join(
            f"{_who(memory.broker_id, memory.disk_id)}, last known to hold {memory.end_offset} bytes"
            + (f", at {memory.metadata_endpoint}" if memory.metadata_endpoint else "")
            for memory in waits_for
        )
        witnesses = self._witnesses(best_rank, missing)
        return Wait(
            f"a replica may hold more than the {best_rank[1]} bytes in reach: {whom}",
            missing=tuple(waits_for),
            lost_bytes=_most_lost(witnesses),
            witnesses=witnesses,
            end_offset=best_rank[1],
            needs_operator=True,
        )

    def _unheard_reason(self, now_ms: int) -> str | None:
        """Members that the settings announce, and nobody has heard of; None: they were looked for long enough."""
        heard = len({answer.broker_id for answer in self._answers.values()} - {self.own.broker_id})
        heard_all = heard >= self.total_replicas - 1
        grace_ms = min(NEW_GROUP_GRACE_MS, self.recovery_timeout_ms)
        silent = sorted(self.name_servers - self._told.keys())
        if silent:
            limit_ms = grace_ms if heard and heard_all else self.recovery_timeout_ms
            has_source = self._told or heard or (self.own.is_whole and not self.own.extent.is_empty)
            if now_ms - self.started_ms < limit_ms or not has_source:
                return f"these NameServers have not said yet whether they know this group: {', '.join(silent)}"
        if heard_all:
            return None
        if now_ms - max(self.started_ms, self._last_name_server_ms) >= grace_ms:
            return None
        return f"totalReplicas={self.total_replicas}, and {heard} other member(s) have been heard so far"

    def _why(self, is_proven: bool, given_up: tuple[ReplicaMemory, ...]) -> str:
        if given_up:
            return "an operator accepted the loss"
        if is_proven:
            return "the log is whole, and others remember it so"
        if self._answers:
            return "every member that anybody remembers was heard"
        return "nobody ever heard of another member of this group"


def memory_of(answer: ReplicaAnswer) -> ReplicaMemory:
    """What is worth remembering of an answer."""
    return ReplicaMemory(
        broker_id=answer.broker_id,
        disk_id=answer.disk_id,
        epoch=answer.history.last_epoch,
        end_offset=answer.extent.end_offset,
        metadata_endpoint=answer.endpoint,
    )


def _key(answer: ReplicaAnswer) -> str:
    return answer.disk_id or f"broker {answer.broker_id}"


def _rank(extent: LogExtent, history: LogHistory) -> _Rank:
    return (0, 0) if extent.is_empty else (history.epoch_of_last_byte(extent.end_offset), extent.end_offset)


def _most_lost(witnesses: Iterable[LossWitness]) -> int:
    return max((one.lost_bytes for one in witnesses), default=0)


def _who(broker_id: int, disk_id: str) -> str:
    return f"broker {broker_id} with disk {disk_id}" if disk_id else f"broker {broker_id}"
