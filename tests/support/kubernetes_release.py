"""A release on a small made-up Kubernetes: StatefulSets that renew their pods as the real controller does.

Time passes in turns. In each turn a set deletes or makes one pod, pods become ready, slaves catch up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tandemmq.cli.kube.release import ClaimState, DisruptionBudgetState, PodState, StatefulSetState
from tandemmq.cli.kube.rollout import CopyState, MasterCopies
from tandemmq.service.kubernetes_api import AccessDenied, KubernetesUnavailable

CLOSED = 1_000_000
_READY_TURNS = 2
_SYNC_TURNS = 4


def stateful_set(name: str, **changes: object) -> StatefulSetState:
    """The master set of broker-a with one pod, up to date; `changes` replace fields."""
    facts: dict[str, object] = {
        "name": name,
        "component": "broker",
        "broker_group": "broker-a",
        "home_role": "master",
        "replicas": 1,
        "first_ordinal": 0,
        "partition": CLOSED,
        "update_type": "RollingUpdate",
        "observed": True,
        "current_revision": "v1",
        "update_revision": "v1",
        "updated_replicas": 1,
        "ready_replicas": 1,
        **changes,
    }
    return StatefulSetState(**facts)  # type: ignore[arg-type]


def pod(name: str, **changes: object) -> PodState:
    """A ready pod of broker-a's master set; `changes` replace fields."""
    facts: dict[str, object] = {
        "name": name,
        "component": "broker",
        "broker_group": "broker-a",
        "home_role": "master",
        "role": "",
        "owner": name.rpartition("-")[0],
        "revision": "v1",
        "node": "node0",
        "ip": "10.0.0.1",
        "phase": "Running",
        "ready": True,
        "started": True,
        "terminating": False,
        "restart_count": 0,
        "last_end": "",
        "not_ready_reason": "",
        "broken": False,
        "ports": {"grpc-metadata": 10911},
        **changes,
    }
    return PodState(**facts)  # type: ignore[arg-type]


@dataclass(slots=True)
class FakePod:
    """One pod. It becomes ready some turns after it was made, unless its revision is bad."""

    name: str
    revision: str
    # Turns since it was made.
    age: int = 1_000


@dataclass(slots=True)
class FakeSet:
    """One StatefulSet with its controller."""

    name: str
    group: str
    role: str
    first_ordinal: int = 0
    replicas: int = 1
    partition: int = CLOSED
    current: str = "v1"
    update: str = "v1"
    pods: dict[int, FakePod | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index in range(self.replicas):
            self.pods[index] = FakePod(f"{self.name}-{self.first_ordinal + index}", self.current)


class FakeRelease:
    """Satisfies `KubernetesCluster` and `AskMaster`. `events` has every deletion, with who was in sync then."""

    def __init__(self, groups: dict[str, int], *, name_servers: int = 2, fails_over: bool = False) -> None:
        """`groups`: slaves by name. With `fails_over` a master that is deleted hands over to a member in sync."""
        self.namespace = "mq"
        self.fails_over = fails_over
        # Pod of each group's master.
        self.masters = {group: f"mq-{group}-master-0" for group in groups}
        self.names = ["mq"]
        self.sets: dict[str, FakeSet] = {}
        for group, slaves in groups.items():
            self.add(FakeSet(f"mq-{group}-master", group, "master"))
            if slaves:
                self.add(FakeSet(f"mq-{group}-slave", group, "slave", first_ordinal=1, replicas=slaves))
        self.add(FakeSet("mq-nameserver", "", "", replicas=name_servers, partition=0))
        self.bad_revisions: set[str] = set()
        # Pods that run and never become ready, without crashing.
        self.unready: set[str] = set()
        # Pods whose slave never catches up.
        self.lagging: set[str] = set()
        self.end_offset = 10_000
        self.events: list[str] = []
        # Whether every request is refused.
        self.denied = False
        # Requests that fail before the API server answers again.
        self.failures_left = 0

    def add(self, added: FakeSet) -> None:
        """One more StatefulSet."""
        self.sets[added.name] = added

    def upgrade(self, revision: str) -> None:
        """What `helm upgrade` does: new templates, closed gates."""
        for each in self.sets.values():
            each.update = revision
            if each.role:
                each.partition = CLOSED

    def revisions(self) -> dict[str, str]:
        """Revision of each broker pod."""
        return {
            found.name: found.revision
            for each in self.sets.values()
            if each.role
            for found in each.pods.values()
            if found is not None
        }

    # Time

    def turn(self) -> None:
        """One second passes."""
        self.end_offset += 1_000
        for each in self.sets.values():
            for found in each.pods.values():
                if found is not None:
                    found.age += 1
            self._control(each)

    def is_ready(self, found: FakePod | None) -> bool:
        """Whether the pod is ready now."""
        return (
            found is not None
            and found.revision not in self.bad_revisions
            and found.name not in self.unready
            and found.age >= _READY_TURNS
        )

    def in_sync(self, group: str) -> list[str]:
        """Slaves that hold what their master holds."""
        members = self._members(group).values()
        if not any(found.name == self.masters[group] and self.is_ready(found) for found in members):
            return []
        return [
            found.name
            for found in members
            if found.name != self.masters[group]
            and self.is_ready(found)
            and found.age >= _SYNC_TURNS
            and found.name not in self.lagging
        ]

    def _members(self, group: str) -> dict[int, FakePod]:
        """Pods that there are, by broker id."""
        return {
            each.first_ordinal + index: found
            for each in self.sets.values()
            if each.group == group
            for index, found in each.pods.items()
            if found is not None
        }

    def _control(self, each: FakeSet) -> None:
        for index, found in each.pods.items():
            if found is None:
                revision = each.current if index < each.partition else each.update
                each.pods[index] = FakePod(f"{each.name}-{each.first_ordinal + index}", revision, age=0)
                return
        for index in sorted(each.pods, reverse=True):
            found = each.pods[index]
            assert found is not None
            if index >= each.partition and found.revision != each.update:
                sync = ",".join(self.in_sync(each.group)) if each.group else ""
                self.events.append(f"delete {found.name} [{sync}]")
                if self.fails_over and sync and self.masters[each.group] == found.name:
                    self.masters[each.group] = sync.partition(",")[0]
                each.pods[index] = None
                return
            if index >= each.partition and not self.is_ready(found):
                return
        if all(found is not None and found.revision == each.update for found in each.pods.values()):
            each.current = each.update

    # KubernetesCluster

    async def releases(self) -> list[str]:
        """Just one, unless a test says otherwise."""
        return self.names

    async def stateful_sets(self, release: str) -> list[StatefulSetState]:
        self._answer()
        return [self._set_state(each) for each in self.sets.values()] if release == "mq" else []

    async def pods(self, release: str) -> list[PodState]:
        self._answer()
        return [
            self._pod_state(each, found)
            for each in self.sets.values()
            for found in each.pods.values()
            if found is not None and release == "mq"
        ]

    async def claims(self, release: str) -> list[ClaimState]:
        return []

    async def disruption_budgets(self, release: str) -> list[DisruptionBudgetState]:
        return []

    async def set_partition(self, stateful_set: str, partition: int) -> None:
        self._answer()
        self.sets[stateful_set].partition = partition
        self.events.append(f"gate {stateful_set} {'closed' if partition == CLOSED else partition}")

    # AskMaster

    async def __call__(self, pod: PodState) -> MasterCopies:
        """The pod's answer."""
        if not pod.ready:
            return MasterCopies(error="UNAVAILABLE")
        members = self._members(pod.broker_group)
        (own_id,) = (broker_id for broker_id, found in members.items() if found.name == pod.name)
        if pod.name != self.masters[pod.broker_group]:
            return MasterCopies(error="", broker_id=own_id, is_master=False)
        copies: list[CopyState] = []
        for broker_id, found in members.items():
            if broker_id != own_id and self.is_ready(found):
                synced = found.name in self.in_sync(pod.broker_group)
                acked = self.end_offset if synced else self.end_offset - 5_000
                copies.append(CopyState(broker_id, acked, self.end_offset - acked, synced))
        return MasterCopies(error="", broker_id=own_id, end_offset=self.end_offset, slaves=tuple(copies))

    def _answer(self) -> None:
        if self.denied:
            raise AccessDenied("403: statefulsets.apps is forbidden")
        if self.failures_left:
            self.failures_left -= 1
            raise KubernetesUnavailable("the API server does not answer: refused")

    def _set_state(self, each: FakeSet) -> StatefulSetState:
        present = [found for found in each.pods.values() if found is not None]
        return stateful_set(
            each.name,
            component="broker" if each.role else "nameserver",
            broker_group=each.group,
            home_role=each.role,
            replicas=each.replicas,
            first_ordinal=each.first_ordinal,
            partition=each.partition,
            current_revision=each.current,
            update_revision=each.update,
            updated_replicas=sum(found.revision == each.update for found in present),
            ready_replicas=sum(self.is_ready(found) for found in present),
        )

    def _pod_state(self, each: FakeSet, found: FakePod) -> PodState:
        ready = self.is_ready(found)
        crashes = found.revision in self.bad_revisions
        return pod(
            found.name,
            broker_group=each.group,
            home_role=each.role,
            owner=each.name,
            revision=found.revision,
            ready=ready,
            started=not crashes and found.age >= 1,
            # A pod that crashes in a loop runs for a moment now and then.
            broken=crashes and found.age % 3 != 0,
            not_ready_reason="" if ready else ("broker: CrashLoopBackOff" if crashes else "not ready"),
        )
