"""One broker group in the middle of an upgrade: its StatefulSets, its pods, its copies, and what is still missing.

Values and judgements only. `rollout` asks for them again and again, opens the gates and waits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from admin.kubernetes_cluster import PodState, StatefulSetState

__all__ = ["CopyState", "GroupState", "MasterCopies", "broker_groups", "name_servers_missing"]


@dataclass(frozen=True, slots=True)
class CopyState:
    """A connected slave, as its master counts it."""

    # -1 while the master does not know which slave it is.
    broker_id: int
    acked_offset: int
    lag_bytes: int
    in_sync: bool


@dataclass(frozen=True, slots=True)
class MasterCopies:
    """A master's own answer; or why there is none."""

    # Empty when it answered.
    error: str
    # Empty when it takes writes.
    write_refusal: str = ""
    # One past the last byte of its CommitLog.
    end_offset: int = 0
    slaves: tuple[CopyState, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupState:
    """A broker group at one moment. A set that is scaled to nothing counts as absent."""

    name: str
    master_set: StatefulSetState | None
    slave_set: StatefulSetState | None
    # Of these two sets only, by name.
    pods: Mapping[str, PodState]

    @property
    def sets(self) -> tuple[StatefulSetState, ...]:
        """Slaves first: the order in which they are renewed."""
        return tuple(each for each in (self.slave_set, self.master_set) if each is not None)

    @property
    def master_pod(self) -> PodState | None:
        """The master's pod, if there is one now."""
        return None if self.master_set is None else self.pods.get(self.master_set.pod_name(0))

    @property
    def slave_ids(self) -> dict[int, str]:
        """Broker id of each slave there should be, with the name of its pod."""
        if self.slave_set is None:
            return {}
        return {
            self.slave_set.first_ordinal + index: self.slave_set.pod_name(index)
            for index in range(self.slave_set.replicas)
        }

    def outdated_pods(self, stateful_set: StatefulSetState) -> list[int]:
        """Indexes of pods that do not run the newest revision, the absent included."""
        return [
            index
            for index in range(stateful_set.replicas)
            if (pod := self.pods.get(stateful_set.pod_name(index))) is None
            or pod.revision != stateful_set.update_revision
        ]

    def is_outdated(self, stateful_set: StatefulSetState) -> bool:
        """True when a pod of the set is of an older revision, or would be if it were made anew now."""
        return stateful_set.current_revision != stateful_set.update_revision or any(
            (pod := self.pods.get(stateful_set.pod_name(index))) is not None
            and pod.revision != stateful_set.update_revision
            for index in range(stateful_set.replicas)
        )

    @property
    def outdated(self) -> bool:
        """True when there is anything to do in this group."""
        return any(self.is_outdated(each) for each in self.sets)

    def stuck_pods(self, *, patient: bool) -> set[str]:
        """Outdated pods that renewing can only help: those that are broken, and without patience all that run unready.

        What does not serve protects nothing, so nothing is lost by taking it down.
        """
        return {
            pod.name
            for stateful_set in self.sets
            for index in self.outdated_pods(stateful_set)
            if (pod := self.pods.get(stateful_set.pod_name(index))) is not None
            and not pod.ready
            and not pod.terminating
            and (pod.broken or (pod.started and not patient))
        }

    # What is missing; "" when nothing is.

    def master_missing(self, copies: MasterCopies | None) -> str:
        """Until the master serves: there, ready, answering and taking writes."""
        if self.master_set is None:
            return "there is no master StatefulSet"
        if missing := _pod_missing(self.pods, self.master_set.pod_name(0)):
            return missing
        if copies is None:
            return f"{self.master_set.pod_name(0)} was not asked yet"
        if copies.error:
            return f"{self.master_set.pod_name(0)} does not answer ({copies.error})"
        if copies.write_refusal:
            return f"{self.master_set.pod_name(0)} refuses writes: {copies.write_refusal}"
        return ""

    def slaves_missing(
        self, copies: MasterCopies | None, mark_offset: int, *, without: Collection[str] = (), from_index: int = 0
    ) -> str:
        """Until every slave is ready, counted in sync by its master, and holds the master's log up to `mark_offset`.

        In sync alone allows a lag of haMaxGapNotInSync. `without` names pods that are not waited for; those of an index
        below `from_index` need not be looked at either.
        """
        if self.slave_set is None:
            return ""
        wanted = {
            broker_id: pod
            for broker_id, pod in self.slave_ids.items()
            if pod not in without and broker_id >= self.slave_set.first_ordinal + from_index
        }
        unready = [text for pod in wanted.values() if (text := _pod_missing(self.pods, pod))]
        if unready:
            return "; ".join(unready)
        if not wanted:
            return ""
        if copies is None or copies.error:
            return f"the master does not tell which slaves are in sync ({copies.error if copies else 'not asked'})"
        by_id = {copy.broker_id: copy for copy in copies.slaves if copy.broker_id >= 0}
        # A slave that connected without having its log compared has no name yet, but it counts.
        nameless = [copy for copy in copies.slaves if copy.broker_id < 0]
        missing: list[str] = []
        for broker_id, pod in wanted.items():
            copy = by_id.get(broker_id) or (nameless.pop() if nameless else None)
            if copy is None:
                missing.append(f"{pod} is not connected to its master")
            elif not copy.in_sync:
                missing.append(f"{pod} is not in sync, {copy.lag_bytes:,} bytes behind")
            elif copy.acked_offset < mark_offset:
                missing.append(f"{pod} holds {copy.acked_offset:,} of {mark_offset:,} bytes")
        return "; ".join(missing)

    def renewal_missing(self, stateful_set: StatefulSetState, *, from_index: int) -> str:
        """Until the pods of the set from `from_index` run the newest revision and are ready."""
        if not stateful_set.observed:
            return f"the controller has not seen the change of {stateful_set.name} yet"
        missing: list[str] = []
        for index in range(from_index, stateful_set.replicas):
            name = stateful_set.pod_name(index)
            pod = self.pods.get(name)
            if pod is not None and not pod.terminating and pod.revision != stateful_set.update_revision:
                missing.append(f"{name} is still of the old revision")
            elif text := _pod_missing(self.pods, name):
                missing.append(text)
        if missing:
            return "; ".join(missing)
        if from_index == 0 and stateful_set.current_revision != stateful_set.update_revision:
            # Before the controller says so, a pod that is lost now would come back at the old revision.
            return f"the controller has not finished the update of {stateful_set.name} yet"
        return ""


def broker_groups(stateful_sets: Sequence[StatefulSetState], pods: Sequence[PodState]) -> list[GroupState]:
    """The broker groups of a release, ordered by name."""
    brokers = [each for each in stateful_sets if each.broker_group and each.replicas > 0]
    groups: list[GroupState] = []
    for name in sorted({each.broker_group for each in brokers}):
        members = {each.home_role: each for each in brokers if each.broker_group == name}
        names = {each.name for each in members.values()}
        groups.append(
            GroupState(
                name=name,
                master_set=members.get("master"),
                slave_set=members.get("slave"),
                pods={pod.name: pod for pod in pods if pod.owner in names},
            )
        )
    return groups


def name_servers_missing(stateful_sets: Sequence[StatefulSetState]) -> str:
    """Until Kubernetes itself has renewed every NameServer; "" when it has."""
    for each in stateful_sets:
        if each.component != "nameserver":
            continue
        if not each.observed:
            return f"the controller has not seen the change of {each.name} yet"
        renewed = each.replicas if each.current_revision == each.update_revision else each.updated_replicas
        if min(renewed, each.ready_replicas) < each.replicas:
            return (
                f"{each.name}: {renewed} of {each.replicas} NameServers renewed, "
                f"{each.ready_replicas} of {each.replicas} ready"
            )
    return ""


def _pod_missing(pods: Mapping[str, PodState], name: str) -> str:
    pod = pods.get(name)
    if pod is None:
        return f"{name} is not there"
    if pod.terminating:
        return f"{name} is stopping"
    if not pod.ready:
        return f"{name} is not ready: {pod.not_ready_reason}"
    return ""
