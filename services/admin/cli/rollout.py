"""The gate of a rolling upgrade: a broker is restarted only while others hold all it holds.

Broker StatefulSets keep their partition above their last pod, so Kubernetes restarts none of them by itself when the
template changes. This lowers the partitions, one pod after the other, and closes them again:

    wait for the NameServers (Kubernetes renews those by itself)
    for each broker group that has pods of an older revision:
        wait until its master serves and its slaves hold what the master held when the wait began
        each slave, the last first: open its gate, wait until it runs the new revision and has caught up
        wait as at the beginning
        the master: open its gate (its preStop hook drains it), wait until it serves and its slaves follow it
        close the gates
        give clients the time to find the master again, before another group is touched

A pod of an older revision that does not serve is renewed without that wait, and a master in that state before its
slaves: otherwise the way back from a bad upgrade would wait for what the bad upgrade broke. Nothing else is forced.
Every wait ends with the limit of the whole, and CommandError says what was missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.cli.rollout_group import GroupState, MasterCopies, broker_groups, name_servers_missing
from admin.kubernetes_cluster import (
    AccessDenied,
    KubernetesCluster,
    KubernetesUnavailable,
    PodState,
    StatefulSetState,
)
from mqcore.clock import Clock

__all__ = ["AskMaster", "Rollout"]

_POLL_S: Final = 1.0
# A wait is spoken of when it begins, and then this often.
_PROGRESS_INTERVAL_MS: Final = 5_000
# An outdated pod that runs but does not become ready is given this long before it counts as stuck: a slave that was
# restarted by chance, a master whose disk is slow for a moment.
_PATIENCE_MS: Final = 120_000


class AskMaster(Protocol):
    """Asks the broker in a pod for its copies."""

    async def __call__(self, pod: PodState) -> MasterCopies:
        """Never raises: a broker that does not answer within its deadline is an answer, too."""
        ...


class Rollout:
    """One run over one release. `say` gets progress lines; `limit_ms` is for the whole run."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        release: str,
        ask_master: AskMaster,
        *,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]],
        say: Callable[[str], None],
        limit_ms: int,
        settle_ms: int,
    ) -> None:
        self._cluster = cluster
        self._release = release
        self._ask_master = ask_master
        self._clock = clock
        self._sleep = sleep
        self._say = say
        self._limit_ms = limit_ms
        self._settle_ms = settle_ms
        self._deadline_ms = clock.monotonic_ms() + limit_ms

    async def plan(self) -> list[str]:
        """What `run` would do, a line a step; empty when all brokers run the newest revision."""
        lines: list[str] = []
        for group in _in_order(await self._groups()):
            if not group.outdated:
                continue
            master_first = _master_of(group) in group.stuck_pods(patient=True)
            for stateful_set in _set_order(group, master_first=master_first):
                if group.is_outdated(stateful_set):
                    names = ", ".join(stateful_set.pod_name(index) for index in reversed(range(stateful_set.replicas)))
                    lines.append(f"{group.name}: renew {names} ({stateful_set.home_role})")
        return lines

    async def run(self) -> list[str]:
        """Renews every outdated group; returns their names. CommandError when the limit passes in any wait."""
        await self._until("the NameServers are renewed", self._name_servers, _NAME_SERVER_REMEDY)
        renewed: list[str] = []
        done: set[str] = set()
        # The order is made anew after each group: a group may break while another is under way.
        while group := next((each for each in _in_order(await self._groups_seen()) if each.name not in done), None):
            done.add(group.name)
            if not group.outdated:
                self._say(f"{group.name}: up to date")
                continue
            if renewed and self._settle_ms:
                self._say(
                    f"{renewed[-1]}: {self._settle_ms / 1_000:.0f} s for clients to find its master again "
                    f"before {group.name} is touched"
                )
                await self._sleep(self._settle_ms / 1_000)
            await self._renew_group(group.name)
            renewed.append(group.name)
        return renewed

    # One group

    async def _renew_group(self, name: str) -> None:
        started_ms = self._clock.monotonic_ms()
        health = _Health(self, name, may_be_stuck=True)
        await self._until(f"{name} can spare a member", health.missing, _HEALTH_REMEDY)
        group = await self._group(name)
        gates = {each.name: each.partition for each in group.sets}
        for planned in _set_order(group, master_first=_master_of(group) in health.stuck):
            if not group.is_outdated(planned):
                continue
            if planned.update_type != "RollingUpdate":
                raise CommandError(
                    f"{planned.name} has updateStrategy {planned.update_type}; nothing was changed in it",
                    remedy="set it back to RollingUpdate, which is what the chart installs",
                )
            if planned.home_role == "master":
                await self._renew_master(name, planned)
            else:
                await self._renew_slaves(name, planned)
        await self._until(f"{name} is whole again", _Health(self, name).missing, _HEALTH_REMEDY)
        for stateful_set, partition in gates.items():
            if partition:
                await self._set_partition(stateful_set, partition)
        self._say(f"{name}: renewed in {(self._clock.monotonic_ms() - started_ms) / 1_000:.0f} s")

    async def _renew_slaves(self, name: str, planned: StatefulSetState) -> None:
        """One slave after the other, the last first, each in sync before the next is touched."""
        for index in reversed(range(planned.replicas)):
            await self._set_partition(planned.name, index)
            health = _Health(self, name, needs_master=False, renewed_from=(planned.name, index))
            await self._until(f"{planned.pod_name(index)} is renewed and in sync", health.missing, _RENEWAL_REMEDY)

    async def _renew_master(self, name: str, planned: StatefulSetState) -> None:
        await self._until(
            f"{name} can spare its master", _Health(self, name, may_be_stuck=True).missing, _HEALTH_REMEDY
        )
        await self._set_partition(planned.name, 0)
        health = _Health(self, name, needs_slaves=False, renewed_from=(planned.name, 0))
        await self._until(f"{planned.pod_name(0)} is renewed and serves", health.missing, _RENEWAL_REMEDY)

    async def _set_partition(self, stateful_set: str, partition: int) -> None:
        self._say(
            f"{stateful_set}: gate open from pod {partition} on"
            if partition < 1_000
            else f"{stateful_set}: gate closed"
        )

        async def change() -> str:
            await self._cluster.set_partition(stateful_set, partition)
            return ""

        await self._until(f"the partition of {stateful_set} is {partition}", change, _API_REMEDY)

    # Looking

    async def _groups(self) -> list[GroupState]:
        sets = await self._cluster.stateful_sets(self._release)
        if not any(each.broker_group for each in sets):
            raise CommandError(
                f"no broker StatefulSet of release {self._release} in namespace {self._cluster.namespace}",
                remedy="name the release with --release and its namespace with --namespace; `helm list -A` shows both",
                exit_code=EXIT_REFUSED,
            )
        return broker_groups(sets, await self._cluster.pods(self._release))

    async def _groups_seen(self) -> list[GroupState]:
        """The groups once the controllers have seen the newest templates: before that, nothing looks outdated."""
        seen: list[GroupState] = []

        async def look() -> str:
            seen[:] = await self._groups()
            unseen = [each.name for group in seen for each in group.sets if not each.observed]
            return f"the controller has not seen the change of {', '.join(unseen)} yet" if unseen else ""

        await self._until("the controllers know the new templates", look, _API_REMEDY)
        return seen

    async def _group(self, name: str) -> GroupState:
        for group in await self._groups_seen():
            if group.name == name:
                return group
        raise _gone(name)

    async def _name_servers(self) -> str:
        return name_servers_missing(await self._cluster.stateful_sets(self._release))

    async def _until(self, goal: str, look: Callable[[], Awaitable[str]], remedy: str) -> None:
        """Returns once `look` finds nothing missing. It may be called any number of times."""
        started_ms = self._clock.monotonic_ms()
        say_at_ms = started_ms
        while True:
            try:
                missing = await look()
            except AccessDenied as error:
                raise CommandError(
                    "Kubernetes refuses", cause=str(error), remedy=_ACCESS_REMEDY, exit_code=EXIT_REFUSED
                ) from error
            except KubernetesUnavailable as error:
                # An API server restarts, too, in an upgrade of nodes.
                missing = str(error)
            if not missing:
                return
            now_ms = self._clock.monotonic_ms()
            if now_ms >= self._deadline_ms:
                raise CommandError(
                    f"the limit of {self._limit_ms / 1_000:.0f} s passed before {goal}; nothing was forced",
                    cause=missing,
                    remedy=remedy,
                )
            if now_ms >= say_at_ms:
                self._say(f"waiting until {goal}, {(now_ms - started_ms) / 1_000:.0f} s: {missing}")
                say_at_ms = now_ms + _PROGRESS_INTERVAL_MS
            await self._sleep(_POLL_S)

    async def look_at(self, name: str) -> tuple[GroupState, MasterCopies | None]:
        """A group and its master's answer, None when there is no master pod that could be asked."""
        group = next((each for each in await self._groups() if each.name == name), None)
        if group is None:
            raise _gone(name)
        pod = group.master_pod
        return group, None if pod is None or not pod.ip else await self._ask_master(pod)

    def now_ms(self) -> int:
        """Monotonic time."""
        return self._clock.monotonic_ms()


class _Health:
    """One wait for a group: asked again and again, it remembers since when, and how far slaves must have come."""

    def __init__(
        self,
        rollout: Rollout,
        name: str,
        *,
        may_be_stuck: bool = False,
        needs_master: bool = True,
        needs_slaves: bool = True,
        renewed_from: tuple[str, int] | None = None,
    ) -> None:
        self._rollout = rollout
        self._name = name
        self._may_be_stuck = may_be_stuck
        self._needs_master = needs_master
        self._needs_slaves = needs_slaves
        self._renewed_from = renewed_from
        self._since_ms = rollout.now_ms()
        self._mark_offset = -1
        # Pods that were not waited for at the last look. A pod that crashes in a loop looks better now and then.
        self.stuck: set[str] = set()

    async def missing(self) -> str:
        """What is missing, "" when nothing is."""
        group, copies = await self._rollout.look_at(self._name)
        if self._may_be_stuck:
            self.stuck = group.stuck_pods(patient=self._rollout.now_ms() - self._since_ms < _PATIENCE_MS)
        from_index = 0
        if self._renewed_from is not None:
            set_name, index = self._renewed_from
            renewing = next((each for each in group.sets if each.name == set_name), None)
            if renewing is None:
                raise _gone(set_name)
            if text := group.renewal_missing(renewing, from_index=index):
                return text
            from_index = index if renewing is group.slave_set else 0
        if _master_of(group) in self.stuck:
            # It serves nobody; its slaves cannot follow it either.
            return ""
        if self._needs_master and (text := group.master_missing(copies)):
            return text
        if not self._needs_slaves:
            return ""
        if self._mark_offset < 0 and copies is not None and not copies.error:
            self._mark_offset = copies.end_offset
        return group.slaves_missing(copies, max(self._mark_offset, 0), without=self.stuck, from_index=from_index)


def _in_order(groups: Sequence[GroupState]) -> list[GroupState]:
    """Groups with a broken member first, so that no healthy one is touched while another is down."""
    return sorted(groups, key=lambda group: (not group.stuck_pods(patient=True), group.name))


def _set_order(group: GroupState, *, master_first: bool) -> list[StatefulSetState]:
    return list(reversed(group.sets)) if master_first else list(group.sets)


def _master_of(group: GroupState) -> str:
    """Name of the master's pod, "" without one."""
    return "" if group.master_set is None else group.master_set.pod_name(0)


def _gone(name: str) -> CommandError:
    return CommandError(
        f"{name} is gone", cause="its StatefulSet was deleted meanwhile", remedy="run the command again"
    )


_NAME_SERVER_REMEDY: Final = (
    "see `kubectl describe` of the NameServer that is not ready; when it is, run `tandemmq rollout` again"
)
_HEALTH_REMEDY: Final = (
    "mend the member named above (`tandemmq doctor --kube`, `kubectl logs`), then run `tandemmq rollout` again; "
    "`helm rollback` goes back to the revision before"
)
_RENEWAL_REMEDY: Final = (
    "see why the new pod is not ready (`kubectl logs`, `kubectl describe pod`); `helm rollback` brings the old "
    "revision back through the same gate; if a slave only needs more time to catch up, run `tandemmq rollout` again"
)
_API_REMEDY: Final = "see whether the Kubernetes API answers, then run `tandemmq rollout` again"
_ACCESS_REMEDY: Final = (
    "run it with the chart's service account <release>-rollout, or as a user who may get, list and patch statefulsets "
    "and list pods in the namespace"
)
