"""How a group that fails over stands, made of what each of its members says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tandemmq.admin.cluster_state import BrokerState, ChangeOfMaster, ClusterState

__all__ = ["GroupFailover", "MasterChange", "MemberStanding", "failover_of", "failovers_of"]


@dataclass(frozen=True, slots=True)
class MemberStanding:
    """A member of a group that fails over."""

    # name:id
    broker: str
    # SYNC_MASTER or SLAVE: what it is now; empty when it does not answer.
    role: str
    in_sync: bool
    # Behind its master; None: not known.
    lag_bytes: int | None
    # It could become the master now, without asking anybody.
    electable: bool
    problem: str


@dataclass(frozen=True, slots=True)
class MasterChange:
    """When a member became the master."""

    epoch: int
    # name:id
    broker: str
    reason: str
    time_ms: int
    # From the moment that it knew until it served.
    took_ms: int


@dataclass(frozen=True, slots=True)
class GroupFailover:
    """Who is master of a group by its record."""

    epoch: int
    # name:id; empty without a record.
    master: str
    # It acts: it is the master by the record, and its lease runs.
    acts: bool
    authority: str
    # Members that cannot reach it.
    authority_away: Sequence[str]
    lease_ms: int
    # As name:id.
    in_sync: Sequence[str]
    reason: str
    # When its epoch began, by its wall clock; -1: not known.
    since_ms: int
    members: Sequence[MemberStanding]
    # Newest first, as far as the processes remember.
    changes: Sequence[MasterChange]


def failover_of(members: Sequence[BrokerState]) -> GroupFailover | None:
    """How a group stands, by what its members say; None: it does not fail over, or nobody answers."""
    states = {
        broker.key: broker.status.failover for broker in members if broker.status and broker.status.failover is not None
    }
    if not states:
        return None
    name = members[0].broker_name
    newest = max(states.values(), key=lambda state: (state.epoch, state.acts))
    in_sync = tuple(f"{name}:{broker_id}" for broker_id in newest.in_sync_ids)
    changes = [_change(key, change) for key, state in states.items() for change in state.changes if change.is_master]
    return GroupFailover(
        epoch=newest.epoch,
        master=f"{name}:{newest.master.broker_id}" if newest.master is not None else "",
        acts=any(state.acts for state in states.values()),
        authority=newest.authority,
        authority_away=tuple(key for key, state in states.items() if state.authority_away),
        lease_ms=newest.lease_ms,
        in_sync=in_sync,
        reason=newest.reason,
        since_ms=newest.changed_ms,
        members=tuple(_standing(broker, in_sync) for broker in members),
        changes=tuple(sorted(changes, key=lambda change: (-change.epoch, -change.time_ms))),
    )


def failovers_of(state: ClusterState) -> Iterator[tuple[str, GroupFailover]]:
    """Of every group that fails over, by its name."""
    for name, members in groupby(state.brokers, key=lambda broker: broker.broker_name):
        if (group := failover_of(list(members))) is not None:
            yield name, group


def _standing(broker: BrokerState, in_sync: Sequence[str]) -> MemberStanding:
    status = broker.status
    state = status.failover if status is not None else None
    link = status.master_link if status is not None else None
    return MemberStanding(
        broker=broker.key,
        role=status.role_in_words if status is not None else "",
        in_sync=broker.key in in_sync,
        lag_bytes=link.lag_bytes if link is not None and link.state == "transfer" else None,
        electable=state is not None and state.is_electable,
        problem=state.problem if state is not None else "" if status is None else "failoverAuthority is not set here",
    )


def _change(key: str, change: ChangeOfMaster) -> MasterChange:
    return MasterChange(change.epoch, key, change.reason, change.time_ms, change.took_ms)
