"""How broker groups stand, in a word: the same on the overview, the replication page and the page of brokers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.admin.cluster_state import BrokerState, BrokerStatus, ClusterState

__all__ = ["GroupStanding", "group_standings", "groups_text"]

_WORST_FIRST: Final = {"bad": 0, "warning": 1, "ok": 2}


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """A broker group."""

    name: str
    # By broker id.
    members: tuple[BrokerState, ...]
    # ok, warning or bad, and the same in words.
    tone: str
    verdict: str

    @property
    def master(self) -> BrokerState | None:
        """The master, if anybody knows of one."""
        return next((broker for broker in self.members if broker.is_master), None)

    @property
    def master_status(self) -> BrokerStatus | None:
        """What the master says, if it answers."""
        return self.master.status if self.master is not None else None

    @property
    def slaves(self) -> tuple[BrokerState, ...]:
        """The other members."""
        return tuple(broker for broker in self.members if not broker.is_master)

    @property
    def lag_bytes(self) -> int | None:
        """Of the slave that is furthest behind; None if nobody can tell, or there is none."""
        slaves = self.master_status.slaves if self.master_status is not None else ()
        return max((slave.lag_bytes for slave in slaves), default=None)

    @property
    def lag_seconds(self) -> float | None:
        """The same as a time."""
        slaves = self.master_status.slaves if self.master_status is not None else ()
        return max((slave.lag_seconds for slave in slaves), default=None)

    @property
    def lacks_slave(self) -> bool:
        """True when a slave that is known of is not connected to the master, so that nobody can tell its lag."""
        connected = len(self.master_status.slaves) if self.master_status is not None else 0
        return len(self.slaves) > connected

    @property
    def in_sync_text(self) -> str:
        """1 of 2."""
        status = self.master_status
        if status is None:
            return "not known"
        count = max(len(status.slaves), len(self.slaves))
        return f"{sum(slave.in_sync for slave in status.slaves)} of {count}" if count else "no slave"


def group_standings(state: ClusterState, *, search: str = "") -> list[GroupStanding]:
    """All groups whose name has `search` in it, worst first and then by name."""
    members: dict[str, list[BrokerState]] = {}
    for broker in state.brokers:
        if search.lower() in broker.broker_name.lower():
            members.setdefault(broker.broker_name, []).append(broker)
    standings = [_standing(name, tuple(found), state.registrations_known) for name, found in members.items()]
    return sorted(standings, key=lambda standing: (_WORST_FIRST[standing.tone], standing.name))


def groups_text(standings: Sequence[GroupStanding]) -> str:
    """All of them in a sentence."""
    bad, warned = (sum(standing.tone == tone for standing in standings) for tone in ("bad", "warning"))
    if not standings:
        return "No broker group is known."
    if not bad and not warned:
        return "Every group holds what it should." if len(standings) > 1 else "The group holds what it should."
    parts = [f"{bad} in trouble"] if bad else []
    parts += [f"{warned} not complete"] if warned else []
    return f"{len(standings):,} groups: {', '.join(parts)}." if len(standings) > 1 else f"{standings[0].verdict}."


def _standing(name: str, members: tuple[BrokerState, ...], registrations_known: bool) -> GroupStanding:
    tone, verdict = _verdict(members, registrations_known)
    return GroupStanding(name, members, tone, verdict)


def _verdict(members: tuple[BrokerState, ...], registrations_known: bool) -> tuple[str, str]:
    reached = (broker for broker in members if broker.registered or not registrations_known)
    master = next((broker.status for broker in reached if broker.is_master), None)
    if master is None:
        return "bad", "no working master"
    if master.start_wait is not None:
        return "bad", "its master waits"
    if any(broker.status and broker.status.master_link and broker.status.master_link.problem for broker in members):
        return "bad", "a slave refuses its master"
    in_sync = sum(slave.in_sync for slave in master.slaves)
    if master.write_refusal:
        return "bad", "refuses writes"
    if in_sync < master.needed_slave_count:
        return "bad", f"{in_sync} of {master.needed_slave_count} needed slaves in sync"
    if any(broker.status is None for broker in members) or in_sync < len(master.slaves):
        return "warning", "not all copies are there"
    if not master.slaves:
        known = len(members) - 1
        return ("warning", "no slave is connected") if known else ("ok", "serving, no slave")
    return "ok", f"serving, {in_sync} of {len(master.slaves)} slaves in sync"
