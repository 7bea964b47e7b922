"""Who may be master: what one member of a group does about the group's record.

Theory of operation. An authority keeps one `GroupRecord` a group and changes it by compare-and-swap. The shell
(`tandemmq.broker.failover.controller`) reads it, asks what to do, and does it:

    Follow   somebody else is master
    Claim    swap the record: we are in the in-sync set and never left it, so we hold all that is acknowledged
    Recover  hear the whole group first, fetch what another replica has more (ADR 28), and swap then
    Write    we are master: renew the lease, shrink or grow the in-sync set
    StepDown we are master no more
    Hold     do nothing, and say why

Safety is not a matter of time. A master acknowledges what every member of the in-sync set holds (`required`): of the
old set and of the new one, from the moment a change is sent until no outcome of it is open any more. Only a member of
the set in the version that the swap replaces may become master, and whoever claims has stopped reporting to the master
before. So once the swap is through, the new master's log has every acknowledged byte, and the old one gets no report
any more: one that slept for an hour finds that its slave is gone and that its own swap is lost.

What time is for. A candidate waits until it has seen one version of the record for a whole lease. A master stops to act
a margin before that, counted from when it *sent* its last good renewal. Wrong clocks cost double deliveries, not
messages.

When the connection between a master and a member of the set ends, both see it, and the lease between those two is
shorter from then on: the master renews each 1/12 of it, and acts 1/4 of it after its last good renewal. A member to
whom the master's kernel says that nobody listens where the master did (`master_left`) claims when the record has stood
still for 1/3 of it (ADR 57). A master that lives renews, so that the record does not stand still.

The set shrinks by members that have not reached, for a while, where the log ended at the beginning of that while; never
below `min_in_sync`. It grows in two steps: a slave that is near joins `required`, and once it has what the log held at
that moment, it is written into the record. So nothing that was acknowledged before or between is missing on it.

Who may claim without asking anybody: a member that has reached its master's end, in the record's epoch, since its
process started. No disk is taken back to less under a process that runs. After a start (a kill, a loss of power, an
older copy of the disk) the whole group is heard first, and the record still has to name this disk.

While the authority is away a master goes on as long as every other member of the set promises not to claim (`promise`).
The set stands still meanwhile, since it cannot be written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

PUT_BACK: Final = "it was put back to an older state"
"""How a `Hold` ends that lasts until an operator has given the authority its record again, or has named a master."""
UNREADABLE: Final = "the group's record cannot be read"
"""How the problem of a member begins whose authority answers with something that is no record."""
_STAGGER_MS: Final = 500
"""So much later claims each further member of the set: two that claim at once cost a round."""
_LEFT_CLAIM: Final = 3
"""This part of the lease the record has to stand still when its master has left."""
_LEFT_ACTS: Final = 4
"""A master acts for this part of the lease after a renewal, when a member of the set has left."""
_LEFT_RENEW: Final = 12
_LEFT_LEASES: Final = 2
"""For so many leases a master counts a member as one that has left. For a candidate it is one."""


@dataclass(frozen=True, slots=True)
class FailoverOptions:
    """Times in ms."""

    lease_ms: int = 6_000
    renew_ms: int = 1_500
    margin_ms: int = 1_000
    behind_ms: int = 1_500
    """How long a member of the set may be without what the log held; RocketMQ's haMaxTimeSlaveNotCatchup."""
    min_in_sync: int = 1
    """The set is never smaller by a member's absence; RocketMQ's minInSyncReplicas."""


@dataclass(frozen=True, slots=True)
class Follow:
    """`master` is who it is."""

    master: Replica


@dataclass(frozen=True, slots=True)
class Claim:
    """To be swapped for the version that was heard; no byte may come from the old master any more by then."""

    record: GroupRecord


@dataclass(frozen=True, slots=True)
class Recover:
    """`reason` is for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Write:
    """To be swapped for the version that was heard."""

    record: GroupRecord


@dataclass(frozen=True, slots=True)
class StepDown:
    """`reason` is for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """`reason` is for people; `is_alarm`: an operator has to look."""

    reason: str
    is_alarm: bool = False


FailoverStep: TypeAlias = "Follow | Claim | Recover | Write | StepDown | Hold"


class Mastership:
    """One process of one member. Times are ms of a clock that runs while the machine sleeps (CLOCK_BOOTTIME).

    `nonce` is the process': the same member started again is another incarnation.
    """

    def __init__(
        self,
        me: Replica,
        *,
        nonce: str,
        is_home_master: bool,
        options: FailoverOptions,
        known: tuple[int, int] = (0, 0),
    ) -> None:
        """`known` is the newest record, by epoch and renewals, that this disk remembers to have seen; (0, 0): none."""
        self.me: Final = me
        self.options: Final = options
        self._nonce: Final = nonce
        self._is_home_master: Final = is_home_master
        self.record: GroupRecord | None = None
        """As it was heard last."""
        self._believed: frozenset[Replica] = frozenset()
        """The in-sync set of the newest record that was heard."""
        self._version: str | None = None
        self._is_heard = False
        self._known_epoch, self._known_renewals = known
        """Each write within an epoch raises the renewals. -1: of that epoch no record was seen."""
        self._seen_ms = 0
        """When this version was heard first."""
        self.epoch = 0
        """The epoch in which we are master; 0: we are not."""
        self._renewed_ms: int | None = None
        """When the last good renewal was sent."""
        self._promised_until_ms = 0
        self._left: dict[Replica, int] = {}
        """Members of the set whose connection to this master has ended, and when."""
        self._master_left: tuple[int, int] | None = None
        """The epoch whose master is gone, as its kernel said, and when that was."""
        self._open: list[tuple[GroupRecord, int]] = []
        """Swaps of this version that were sent, and when. One that nobody answered may still be applied, until the
        version is another."""
        self._sent_ms = 0
        self._reached: dict[Replica, tuple[int, int]] = {}
        """Of each member of the set: an end of the log that it has to reach, and since when it was to."""
        self._joining: dict[Replica, tuple[int, int]] = {}
        """Slaves that `required` holds before the record does: the end they have to reach, and since when."""
        self._claims_after_ms = 0
        """Until then this member has promised its master not to claim."""
        self._resigned_ms: int | None = None

    # What is heard

    def heard(self, record: GroupRecord | None, version: str | None, *, now_ms: int) -> None:
        """The record as the authority has it now; None: there is none."""
        if not self._is_heard or version != self._version:
            self._seen_ms = now_ms
            applied_ms = [sent_ms for sent, sent_ms in self._open if sent == record]
            if applied_ms and self.epoch:
                # It was sent again and again. Whichever was applied, others may have counted from the first on.
                self._renewed(min(applied_ms))
            self._open = []
        self._is_heard, self.record, self._version = True, record, version
        if record is not None and not self._went_back(record):
            self._known_epoch, self._known_renewals = record.epoch, record.renewals
            self._believed = record.in_sync

    def heard_of(self, epoch: int) -> None:
        """Somebody has followed a master of `epoch`: an earlier record is an old one."""
        if epoch > self._known_epoch:
            self._known_epoch, self._known_renewals = epoch, -1

    def others_saw(self, version: tuple[int, int]) -> None:
        """Other members remember a record of this epoch and these renewals."""
        if version > (self._known_epoch, self._known_renewals):
            self._known_epoch, self._known_renewals = version

    @property
    def put_back_behind(self) -> tuple[int, int] | None:
        """Epoch and renewals that were seen, if the authority has less now: it was put back. To be remembered durably:
        the next process of this disk may not believe the older record either."""
        if not self._is_heard or self._known_renewals < 0 or not self._went_back(self.record):
            return None
        return self._known_epoch, self._known_renewals

    def _went_back(self, record: GroupRecord | None) -> bool:
        """The authority was put back to an older state: it has less than was seen there."""
        if record is None:
            return self._known_epoch > 0
        return (record.epoch, record.renewals) < (self._known_epoch, self._known_renewals)

    def sent(self, record: GroupRecord, *, now_ms: int) -> None:
        """A swap of the version that was heard last leaves now."""
        self._open.append((record, now_ms))
        self._sent_ms = now_ms

    def claimed(self, record: GroupRecord, version: str, *, sent_ms: int, now_ms: int) -> None:
        """Our claim was applied: we are the master of its epoch."""
        self.heard(record, version, now_ms=now_ms)
        self.epoch = record.epoch
        self._reached, self._joining, self._left, self._resigned_ms = {}, {}, {}, None
        self._renewed(sent_ms)

    def written(self, record: GroupRecord, version: str, *, sent_ms: int, now_ms: int) -> None:
        """Our `Write` was applied."""
        self.heard(record, version, now_ms=now_ms)
        self._renewed(sent_ms)
        self._joining = {replica: end for replica, end in self._joining.items() if replica not in record.in_sync}

    def _renewed(self, sent_ms: int) -> None:
        self._renewed_ms = sent_ms if self._renewed_ms is None else max(self._renewed_ms, sent_ms)

    def stepped_down(self, *, now_ms: int, has_resigned: bool = False) -> None:
        """Our role has ended. With `has_resigned` on purpose: whoever is named has a lease's time to come."""
        self.epoch, self._renewed_ms, self._promised_until_ms = 0, None, 0
        self._reached, self._joining, self._left = {}, {}, {}
        self._resigned_ms = now_ms if has_resigned else None

    # One end of a connection between a master and a member is gone

    def slave_left(self, replica: Replica, *, now_ms: int) -> None:
        """The connection to a slave of this master has ended: it may claim sooner than by the lease."""
        if self.epoch and replica in self.others:
            self._left.setdefault(replica, now_ms)

    def master_left(self, epoch: int, *, now_ms: int) -> None:
        """The connection to the master of `epoch` has ended, and then its machine said that nobody listens there."""
        if not self.epoch:
            self._master_left = (epoch, now_ms)

    def has_master_left(self, now_ms: int) -> bool:
        """What `master_left` told is of this epoch, and not older than a lease: afterwards the lease counts."""
        if self.record is None or self._master_left is None:
            return False
        epoch, left_ms = self._master_left
        return epoch == self.record.epoch and now_ms - left_ms < self.record.lease_ms

    def master_is_back(self) -> None:
        """Somebody listens there again."""
        self._master_left = None

    def _acts_no_more(self, now_ms: int, *, rank_ms: int = 0) -> bool:
        """The master has left, and has not renewed since then."""
        if self.record is None or self._master_left is None or not self.has_master_left(now_ms):
            return False
        still_ms = now_ms - max(self._master_left[1], self._seen_ms)
        return still_ms >= self.record.lease_ms // _LEFT_CLAIM + rank_ms

    # The authority is away

    def promise(self, epoch: int, duration_ms: int, *, now_ms: int) -> bool:
        """The master of `epoch` asks that we do not claim for `duration_ms`. False: we know of a later epoch, it asks
        for too much, or a claim of ours may be on its way. If we heard of an older one last, it binds us as well.
        """
        if self.epoch or self._open or epoch < self._known_epoch or duration_ms > self.options.lease_ms:
            return False
        self._claims_after_ms = max(self._claims_after_ms, now_ms + duration_ms)
        return True

    def promised_by_all(self, *, sent_ms: int) -> None:
        """Every member that could claim has promised a lease, asked at `sent_ms`."""
        if self.epoch:
            until_ms = sent_ms + self.options.lease_ms - self.options.margin_ms
            self._promised_until_ms = max(self._promised_until_ms, until_ms)

    # What a master may do

    @property
    def acts_until_ms(self) -> int:
        """From then on this master takes and gives nothing."""
        if self._renewed_ms is None:
            return 0
        until_ms = self._renewed_ms + self.options.lease_ms - self.options.margin_ms
        if self._left:
            # Who has left counts from the end of the connection, or from the renewal that it read after that.
            since_ms = max(self._renewed_ms, min(self._left.values()))
            until_ms = min(until_ms, since_ms + self.options.lease_ms // _LEFT_ACTS)
        # Who has promised does not claim, whatever it saw.
        return max(until_ms, self._promised_until_ms)

    @property
    def required(self) -> frozenset[Replica]:
        """The slaves that must hold a message before it is acknowledged."""
        return self.others | self._joining.keys()

    @property
    def others(self) -> frozenset[Replica]:
        """The members that could claim. While the authority is away all of them have to promise not to."""
        members = set(self.record.in_sync) if self.record is not None else set()
        if self._went_back(self.record):
            # Whoever was in the later set may still claim: nothing is acknowledged without them.
            members |= self._believed
        for sent, _ in self._open:
            members |= sent.in_sync
        return frozenset(members - {self.me})

    def may_act(self, now_ms: int) -> bool:
        """It is the master, and nobody else can be."""
        return bool(self.epoch) and now_ms < self.acts_until_ms

    # What follows

    def next_step(self, *, now_ms: int, is_electable: bool) -> FailoverStep:
        """Of a member that is not master. `is_electable`: since it started it has reached its master's end in the
        record's epoch."""
        assert not self.epoch, "a master asks for next_write"
        record = self.record
        if not self._is_heard:
            return Hold("the authority has not said yet who is master")
        if self._went_back(record):
            has = "no record" if record is None else f"renewal {record.renewals} of epoch {record.epoch}"
            return Hold(
                f"the authority has {has}, and this broker knows of renewal {max(0, self._known_renewals)} of epoch "
                f"{self._known_epoch}: {PUT_BACK}",
                is_alarm=True,
            )
        is_named = record is not None and record.successor == self.me.broker_id and self.me in record.in_sync
        if now_ms < self._claims_after_ms and not is_named:
            return Hold("it has promised its master not to claim, while that cannot reach the authority")
        if record is None:
            if self._is_home_master:
                return Recover("the group has no record yet")
            return Hold("the group has no record yet: its home master writes the first")
        waited_ms = now_ms - self._seen_ms
        is_over = waited_ms >= record.lease_ms
        if record.master == self.me:
            if self._resigned_ms is not None and not is_over:
                return Hold("it has resigned, and the successor has not claimed yet")
            return Recover("it was the master, and was started again")
        if self.me not in record.in_sync:
            return Follow(record.master)
        rank_ms = _STAGGER_MS * self._rank(record)
        has_left = is_electable and self._acts_no_more(now_ms, rank_ms=rank_ms)
        if not is_named and not has_left and waited_ms < record.lease_ms + rank_ms:
            return Follow(record.master)
        if not is_electable:
            return Recover("its master's lease is over, and this process has not followed it to its end")
        why = "the master's lease is over" if is_over else "the master's process has ended"
        why = "the master handed over" if is_named else why
        return Claim(self.claim(why, epoch=record.epoch + 1))

    def claim(self, reason: str, *, epoch: int) -> GroupRecord:
        """The record of an epoch of ours, `epoch` or later, and later than all that were ever heard of. Of whoever may
        claim: see `may_claim`."""
        before = self.record
        return GroupRecord(
            epoch=max(epoch, 1 if before is None else before.epoch + 1, self._known_epoch + 1),
            master=self.me,
            nonce=self._nonce,
            in_sync=frozenset({self.me}),
            lease_ms=self.options.lease_ms,
            reason=reason,
            past=() if before is None else before.past,
        )

    def is_lease_over(self, now_ms: int) -> bool:
        """This version of the record was seen for a whole lease: its master may be gone."""
        return self.record is not None and now_ms - self._seen_ms >= self.record.lease_ms

    def is_master_overdue(self, now_ms: int) -> bool:
        """This version of the record was seen for half a lease, in which it is renewed twice."""
        return self.record is not None and now_ms - self._seen_ms >= self.record.lease_ms // 2

    def may_be_named(self, now_ms: int) -> bool:
        """An operator may make this member master, whatever the in-sync set says: nobody acts, and nobody will. A
        record that was put back, or is lost, is no obstacle: no member believes it, so that nobody else ever claims."""
        record = self.record
        if self.epoch or not self._is_heard or (record is None and not self._went_back(record)):
            return False
        lease_ms = self.options.lease_ms if record is None else record.lease_ms
        return now_ms - self._seen_ms >= lease_ms and now_ms >= self._claims_after_ms

    @property
    def is_set_known(self) -> bool:
        """The record's in-sync set is the newest one."""
        return self.record is not None and not self._went_back(self.record)

    def may_claim(self) -> bool:
        """The record lets this member become master: it is in the in-sync set, or there never was a record."""
        if not self._is_heard or self._went_back(self.record):
            return False
        return self.record is None or self.me in self.record.in_sync

    def is_vacant(self, now_ms: int) -> bool:
        """Nobody else can act as master: the record names us, or it stood still for a whole lease and we have promised
        nothing. Whoever was to claim asks again right before the swap: a master that was cut off may be back."""
        record = self.record
        if record is not None and self.me.broker_id == record.successor:
            return True
        if now_ms < self._claims_after_ms:
            return False
        return record is None or self.me == record.master or self.is_lease_over(now_ms) or self._acts_no_more(now_ms)

    def next_write(self, *, now_ms: int, end_offset: int, acked: Mapping[Replica, int]) -> FailoverStep | None:
        """Of a master; None: nothing is to be done now. `acked` is what each connected, proven slave holds."""
        record = self.record
        if record is None or (record.epoch, record.nonce) != (self.epoch, self._nonce):
            who = "nobody" if record is None else f"broker {record.master.broker_id} in epoch {record.epoch}"
            return StepDown(f"the record names {who} as the master")
        if self._went_back(record):
            return StepDown("the authority was put back to an older state, or a later master is known")
        self._note_left(record, acked, now_ms=now_ms)
        self._note_reached(record, acked, end_offset=end_offset, now_ms=now_ms)
        in_sync = self._next_set(record, acked, now_ms=now_ms)
        renew_ms = self.options.lease_ms // _LEFT_RENEW if self._left else self.options.renew_ms
        if in_sync == record.in_sync and now_ms - self._sent_ms < renew_ms:
            return None
        return Write(replace(record, in_sync=in_sync, renewals=record.renewals + 1, successor=NO_SUCCESSOR))

    def resignation(self, to: int) -> GroupRecord:
        """What a master writes that hands over to broker `to` of the in-sync set; it acts no more by then."""
        assert self.record is not None, "a master has a record"
        return replace(self.record, successor=to, renewals=self.record.renewals + 1)

    # Inside

    def _rank(self, record: GroupRecord) -> int:
        return sorted(record.in_sync - {record.master}).index(self.me)

    def _note_left(self, record: GroupRecord, acked: Mapping[Replica, int], *, now_ms: int) -> None:
        for replica, since_ms in list(self._left.items()):
            is_over = now_ms - since_ms >= _LEFT_LEASES * self.options.lease_ms
            if replica in acked or replica not in self.others or is_over:
                del self._left[replica]

    def _note_reached(self, record: GroupRecord, acked: Mapping[Replica, int], *, end_offset: int, now_ms: int) -> None:
        """Notes of each slave where it is, and lets those near the end join what acknowledgements wait for."""
        members = record.in_sync - {self.me}
        known = members | acked.keys()
        self._reached = {replica: reached for replica, reached in self._reached.items() if replica in known}
        for replica in known:
            due_end, _ = self._reached.setdefault(replica, (end_offset, now_ms))
            if acked.get(replica, -1) >= due_end:
                if replica not in members and replica not in self._joining:
                    # Near enough: no acknowledgement from now on without it.
                    self._joining[replica] = (end_offset, now_ms)
                self._reached[replica] = (end_offset, now_ms)
        for replica, (_, since_ms) in list(self._joining.items()):
            is_slow = now_ms - since_ms >= self.options.behind_ms and replica not in members
            if replica not in acked or is_slow:
                del self._joining[replica]

    def _next_set(self, record: GroupRecord, acked: Mapping[Replica, int], *, now_ms: int) -> frozenset[Replica]:
        joined = {replica for replica, (end, _) in self._joining.items() if acked.get(replica, -1) >= end}
        in_sync = set(record.in_sync | joined)
        behind = [
            replica
            for replica in record.in_sync - {self.me}
            if now_ms - self._reached[replica][1] >= self.options.behind_ms
        ]
        for replica in sorted(behind, key=lambda each: acked.get(each, -1)):
            if len(in_sync) > max(1, self.options.min_in_sync):
                in_sync.discard(replica)
        return frozenset(in_sync)


# When a slave serves consumers by itself: while its group has no master, and nobody else does.
#
#     follows --no master for `grace_ms`--> serves --a master serves, or starts and has our promise--> follows
#
# Two that hand out deliver twice at worst, since each keeps its leases and the master takes the slave's when it starts.
# So this may err, and a slave that does not know says no: without a NameServer nobody tells it that its master is gone.

STAGGER_MS: Final = 1_000
"""So much later each time for a slave that others go before."""


class Sight(Enum):
    """What a slave sees of its group."""

    UNKNOWN = "no NameServer says anything"
    MASTER = "a master serves, or its log flows to us"
    STARTING = "a master starts, and waits perhaps for hours"
    READER = "another slave serves reads, and goes before us"
    NOBODY = "nobody serves"


class ReadsStep(Enum):
    """What to do now."""

    BEGIN = "begin"
    END = "end"
    STAY = "stay"


@dataclass(slots=True)
class MasterAbsence:
    """Times are monotonic ms."""

    grace_ms: int
    serves: bool = False
    _alone_since_ms: int | None = None
    _is_promised: bool = False
    _looked_ms: int = 0

    def stood_still(self, now_ms: int) -> bool:
        """It serves, and has not looked for as long as another waits before it serves: one may, and be unseen yet."""
        return self.serves and now_ms - self._looked_ms >= self.grace_ms

    def look(self, sight: Sight, *, rank: int, now_ms: int) -> ReadsStep:
        """What follows from what is seen. `rank`: how many other slaves should serve rather than this one."""
        stood_still, self._looked_ms = self.stood_still(now_ms), now_ms
        if stood_still:
            self._alone_since_ms = None
            return self._set(serves=False)
        if sight is Sight.MASTER:
            self._is_promised = False
        if sight in (Sight.MASTER, Sight.READER) or (sight is Sight.STARTING and self._is_promised):
            self._alone_since_ms = None
            return self._set(serves=False)
        if self.serves:
            return ReadsStep.STAY
        if sight is Sight.UNKNOWN:
            self._alone_since_ms = None
            return ReadsStep.STAY
        if self._alone_since_ms is None:
            self._alone_since_ms = now_ms
        if now_ms - self._alone_since_ms < self.grace_ms + rank * STAGGER_MS:
            return ReadsStep.STAY
        self._is_promised = False
        return self._set(serves=True)

    def promised(self) -> ReadsStep:
        """A master that starts was promised its epoch, and takes our leases now: none is given until it is gone."""
        self._is_promised, self._alone_since_ms = True, None
        return self._set(serves=False)

    def ended(self) -> None:
        """It stopped to serve for another reason, and begins no sooner for it."""
        self.serves, self._alone_since_ms = False, None

    def _set(self, *, serves: bool) -> ReadsStep:
        if serves == self.serves:
            return ReadsStep.STAY
        self.serves = serves
        return ReadsStep.BEGIN if serves else ReadsStep.END


# The record of a broker group: who is its master, in which epoch, and which replicas hold all that is acknowledged.
#
# An authority outside the group keeps it (`tandemmq.broker.failover.authority`) and changes it by compare-and-swap
# only. Whoever swaps has read the version that is replaced, so of two that want to be master one loses. The rules of
# who may write what are in `mastership.py`; here is only what is written.
#
# As text, JSON:
#
# | key          | what                                                                                  |
# |--------------|---------------------------------------------------------------------------------------|
# | epoch        | counts the masters of the group, from 1                                               |
# | master       | {brokerId, diskId} of the epoch's master                                              |
# | nonce        | of the master's process: an epoch has one incarnation                                 |
# | inSync       | [{brokerId, diskId}, ...]: the in-sync set, the master included                       |
# | leaseMs      | how long the record stands still before another may claim                             |
# | renewals     | grows with each renewal of the lease                                                  |
# | successor    | broker id that may claim at once; -1: nobody is named                                 |
# | reason       | why this epoch began, for people                                                      |
# | changedMs    | when, by the wall clock of who wrote it, for people                                   |
# | past         | [[epoch, start offset], ...]: earlier epochs and this one, newest last                |

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
    """One version of the record; the table above has its fields."""

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
