"""The gate of a rolling upgrade: a broker is restarted only while others hold all it holds.

Broker StatefulSets keep their partition above their last pod, so Kubernetes restarts none of them by itself when the
template changes. This lowers the partitions, one pod after the other, and closes them again:

    wait for the NameServers (Kubernetes renews those by itself)
    for each broker group that has pods of an older revision:
        wait until its master serves and its slaves hold what the master held when the wait began
        each slave, the last first: open its gate, wait until it runs the new revision and has caught up
        wait as at the beginning
        the master: open its gate (its preStop hook drains it, and with failover hands over), wait until the group has a
            master that serves, and the others follow it
        close the gates
        give clients the time to find the master again, before another group is touched

The master is who says that it is; with failover that may be a pod of the slaves' set. The set that it is in comes last.

A pod of an older revision that does not serve is renewed without that wait, and a master in that state before its
slaves: otherwise the way back from a bad upgrade would wait for what the bad upgrade broke. Nothing else is forced.
Every wait ends with the limit of the whole, and CommandError says what was missing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Protocol

import typer

from tandemmq.cli import ending
from tandemmq.cli.cluster_address import KubernetesPlace, find_place
from tandemmq.cli.ending import CommandError, Refused
from tandemmq.cli.kube.release import (
    METADATA_PORT_NAME,
    KubeContextOption,
    KubernetesCluster,
    NamespaceOption,
    PodAddresses,
    PodState,
    ReleaseOption,
    StatefulSetState,
    certificate_of,
    connect,
    find_release,
    place_of,
)
from tandemmq.cli.options import ContextOption, parse_duration_s
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.kubernetes_api import AccessDenied, KubernetesUnavailable

if TYPE_CHECKING:
    from tandemmq.core.clock import Clock
    from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb


# One broker group in the middle of an upgrade: its StatefulSets, its pods, its copies, and what is still missing.
#
# Values and judgements only. `rollout` asks for them again and again, opens the gates and waits.


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
    """A broker's own answer; or why there is none."""

    # Empty when it answered.
    error: str
    broker_id: int = 0
    # False: it is a slave, and the rest says nothing of its group.
    is_master: bool = True
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
    def members(self) -> dict[int, str]:
        """Broker id of each member there should be, with the name of its pod; the home master first."""
        return {
            each.first_ordinal + index: each.pod_name(index)
            for each in reversed(self.sets)
            for index in range(each.replicas)
        }

    def master_name(self, copies: MasterCopies | None) -> str:
        """Name of the master's pod: of whoever says so, else the home master's; "" without either."""
        is_told = copies is not None and not copies.error and copies.is_master
        master_id = copies.broker_id if is_told and copies is not None else 0
        return self.members.get(master_id, "")

    def set_order(self, copies: MasterCopies | None, *, master_first: bool) -> list[StatefulSetState]:
        """In which order they are renewed: the set that has the master last, or first."""
        master = self.master_name(copies)
        has_master = [each for each in self.sets if master in _pod_names(each)]
        others = [each for each in self.sets if each not in has_master]
        return has_master + others if master_first else others + has_master

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
        master = self.master_name(copies)
        if missing := _pod_missing(self.pods, master):
            return missing
        if copies is None:
            return f"{master} was not asked yet"
        if copies.error:
            return f"{master} does not answer ({copies.error})"
        if not copies.is_master:
            return f"no member of {self.name} is its master"
        if copies.write_refusal:
            return f"{master} refuses writes: {copies.write_refusal}"
        return ""

    def slaves_missing(
        self, copies: MasterCopies | None, mark_offset: int, *, without: Collection[str] = (), from_index: int = 0
    ) -> str:
        """Until every slave is ready, counted in sync by its master, and holds the master's log up to `mark_offset`.

        In sync alone allows a lag of haMaxGapNotInSync. `without` names pods that are not waited for; those of the
        slaves' set of an index below `from_index` need not be looked at either.
        """
        if self.slave_set is None:
            return ""
        spared = {self.master_name(copies), *without, *_pod_names(self.slave_set)[:from_index]}
        wanted = {broker_id: pod for broker_id, pod in self.members.items() if pod not in spared}
        unready = [text for pod in wanted.values() if (text := _pod_missing(self.pods, pod))]
        if unready:
            return "; ".join(unready)
        if not wanted:
            return ""
        if copies is None or copies.error or not copies.is_master:
            why = "not asked" if copies is None else copies.error or "nobody is master"
            return f"the master does not tell which slaves are in sync ({why})"
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


def _pod_names(stateful_set: StatefulSetState) -> list[str]:
    return [stateful_set.pod_name(index) for index in range(stateful_set.replicas)]


def _pod_missing(pods: Mapping[str, PodState], name: str) -> str:
    pod = pods.get(name)
    if pod is None:
        return f"{name} is not there"
    if pod.terminating:
        return f"{name} is stopping"
    if not pod.ready:
        return f"{name} is not ready: {pod.not_ready_reason}"
    return ""


_POLL_S: Final = 1.0
# A wait is spoken of when it begins, and then this often.
_PROGRESS_INTERVAL_MS: Final = 5_000
# An outdated pod that runs but does not become ready is given this long before it counts as stuck: a slave that was
# restarted by chance, a master whose disk is slow for a moment.
_PATIENCE_MS: Final = 120_000


class AskMaster(Protocol):
    """Asks the broker in a pod whether it is the master, and for its copies."""

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
            _, copies = await self.look_at(group.name)
            master_first = group.master_name(copies) in group.stuck_pods(patient=True)
            for stateful_set in group.set_order(copies, master_first=master_first):
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
        _, copies = await self.look_at(name)
        gates = {each.name: each.partition for each in group.sets}
        for planned in group.set_order(copies, master_first=group.master_name(copies) in health.stuck):
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
            group, copies = await self.look_at(name)
            if group.master_name(copies) == planned.pod_name(index):
                await self._wait_to_spare_master(name)
            await self._set_partition(planned.name, index)
            health = _Health(self, name, needs_master=False, renewed_from=(planned.name, index))
            await self._until(f"{planned.pod_name(index)} is renewed and in sync", health.missing, _RENEWAL_REMEDY)

    async def _renew_master(self, name: str, planned: StatefulSetState) -> None:
        await self._wait_to_spare_master(name)
        await self._set_partition(planned.name, 0)
        health = _Health(self, name, needs_slaves=False, renewed_from=(planned.name, 0))
        await self._until(f"{planned.pod_name(0)} is renewed and serves", health.missing, _RENEWAL_REMEDY)

    async def _wait_to_spare_master(self, name: str) -> None:
        await self._until(
            f"{name} can spare its master", _Health(self, name, may_be_stuck=True).missing, _HEALTH_REMEDY
        )

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
            raise Refused(
                f"no broker StatefulSet of release {self._release} in namespace {self._cluster.namespace}",
                remedy="name the release with --release and its namespace with --namespace; `helm list -A` shows both",
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
                raise Refused("Kubernetes refuses", cause=str(error), remedy=_ACCESS_REMEDY) from error
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
        """A group and its master's answer; the home master's where nobody says that he is the master, and None where
        there is no pod to ask."""
        group = next((each for each in await self._groups() if each.name == name), None)
        if group is None:
            raise _gone(name)
        answers: dict[str, MasterCopies] = {}
        for member in group.members.values():
            pod = group.pods.get(member)
            if pod is None or not pod.ip:
                continue
            answers[member] = answer = await self._ask_master(pod)
            if not answer.error and answer.is_master and not answer.write_refusal:
                return group, answer
        masters = [each for each in answers.values() if not each.error and each.is_master]
        return group, masters[0] if masters else answers.get(group.master_name(None))

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
        if group.master_name(copies) in self.stuck:
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


# `tandemmq rollout`: the hook of `helm upgrade`, and the same by hand.


def rollout(
    release: ReleaseOption = None,
    namespace: NamespaceOption = None,
    timeout: Annotated[
        float, typer.Option(parser=parse_duration_s, metavar="DURATION", help="Limit of the whole: 90s, 30m, 1h.")
    ] = "30m",  # type: ignore[assignment]
    settle: Annotated[
        float,
        typer.Option(
            parser=parse_duration_s,
            metavar="DURATION",
            help="Pause before the next broker group. Clients ask for routes every 30 s; until then one that was "
            "away is not used again, and the next group going down would leave them none.",
        ),
    ] = "30s",  # type: ignore[assignment]
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be renewed and change nothing.")] = False,
    kube_context: KubeContextOption = None,
    context: ContextOption = None,
) -> None:
    """Renew brokers after `helm upgrade`, group by group, so that nothing acknowledged is ever on one broker only.

    Slaves first, one at a time, each in sync before the next; then the master, which drains and, with failover, hands
    over first. The chart runs this as a
    hook after an upgrade or a rollback; run again, it goes on where it stopped.

    Exit code 0: every broker runs the newest revision. 1: the limit passed, with what was missing and the remedy;
    nothing was forced. 2: Kubernetes cannot be asked, or there is no such release.

    Examples:

      tandemmq rollout --release mq --namespace mq --dry-run

      tandemmq rollout --release mq --timeout 1h
    """
    place = place_of(find_place(context), release=release, namespace=namespace, kube_context=kube_context)
    ending.run(_rollout(place, limit_s=timeout, settle_s=settle, dry_run=dry_run))


async def _rollout(place: KubernetesPlace, *, limit_s: float, settle_s: float, dry_run: bool) -> None:
    cluster = await connect(place)
    name = await find_release(cluster, place.release or None)
    async with certificate_of(cluster, await _pods(cluster, name)), PodAddresses(cluster) as addresses:
        running = Rollout(
            cluster,
            name,
            _BrokerInPod(addresses),
            clock=SystemClock(),
            sleep=asyncio.sleep,
            say=_say,
            limit_ms=round(limit_s * 1_000),
            settle_ms=round(settle_s * 1_000),
        )
        if dry_run:
            await _print_plan(running)
        else:
            await _run_until_stopped(running)


async def _pods(cluster: KubernetesCluster, release: str) -> list[PodState]:
    """None while Kubernetes does not tell: whoever waits for it asks again, and says so."""
    try:
        return await cluster.pods(release)
    except KubernetesUnavailable:
        return []


async def _print_plan(running: Rollout) -> None:
    try:
        steps = await running.plan()
    except KubernetesUnavailable as error:
        raise Refused("Kubernetes cannot be asked", cause=str(error), remedy="see `kubectl get pods`") from error
    for step in steps:
        typer.echo(step)
    if not steps:
        typer.echo("every broker runs the newest revision")


async def _run_until_stopped(running: Rollout) -> None:
    """A hook's pod may be deleted on the way: as process 1 it would not even notice without a handler."""
    from tandemmq.service.settings import stop_requested

    with stop_requested() as stop:
        work = asyncio.ensure_future(running.run())
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait((work,))
            raise CommandError(
                "stopped on request before every group was renewed",
                remedy="run `tandemmq rollout` again; it goes on where it stopped",
            )
        renewed = work.result()
    _say(f"done: {', '.join(renewed) if renewed else 'nothing'} renewed")


class _BrokerInPod:
    """Satisfies `AskMaster` with GetBrokerStatus. A channel for each answer: pods and their addresses come and go."""

    def __init__(self, addresses: PodAddresses) -> None:
        self._addresses = addresses

    async def __call__(self, pod: PodState) -> MasterCopies:
        """The answer of the broker in the pod, or why there is none."""
        import grpc.aio

        from tandemmq.admin.rpc import BrokerAdminCalls, Channels, error_text

        channels = Channels()
        try:
            address = await self._addresses.find(pod, METADATA_PORT_NAME)
            return _copies(await BrokerAdminCalls(channels, address).status())
        except grpc.aio.AioRpcError as error:
            return MasterCopies(error=error_text(error))
        finally:
            await channels.close()


def _copies(reply: admin_pb.GetBrokerStatusResponse) -> MasterCopies:
    from tandemmq.service.protobuf import as_value

    # Slaves tell of their master, whatever their settings say.
    return as_value(MasterCopies, reply, error="", is_master=not reply.HasField("master_link"))


def _say(line: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')} {line}")
