"""Faults on a 2m-2s-sync installation while the official client sends and receives without a pause."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from e2e.kubernetes.client_pod import Acknowledged, ClientPod
from e2e.kubernetes.cluster import CommandFailed, NotInTime, say, until
from e2e.kubernetes.installation import Installation
from e2e.kubernetes.replicas import compare_replicas
from e2e.kubernetes.report import FaultRow, Report

FAULT_KINDS: Final = ("delete", "kill", "power", "drain")
TOPIC: Final = "faults"
LOAD: Final = "load"
RATE: Final = 60.0
# All faults together, with the slowest machine in mind; the sender ends by itself then.
WHOLE_LIMIT_S: Final = 3_600.0
HEALTHY_LIMIT_S: Final = 300.0
# Kubernetes calls a silent node NotReady after 40 to 50 s; it stays dark a while longer.
DARK_S: Final = 60.0
DRAIN_LIMIT_S: Final = 240.0
# A drained node stays empty this long.
EMPTY_S: Final = 10.0
# After a fault a client has found all groups again: it asks for its routes each 30 s.
FOUND_LIMIT_S: Final = 120.0
# Sends come each 17 ms and go to the groups in turn; silence above this is the fault's, below it may be the machine's.
FELT_S: Final = 1.0
CALM_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault as it was played. Moments in seconds since the epoch."""

    name: str
    # Broker groups with a member that was hit.
    groups: tuple[str, ...]
    began_s: float
    # From here on recovery is counted: later than `began_s` where the fault lasts (a dark node).
    ended_s: float
    healthy_s: float
    # No longer in this fault's window.
    over_s: float


class FaultPlayer:
    """Plays faults one after the other, each from a healthy cluster to a healthy cluster."""

    def __init__(self, installation: Installation, client: ClientPod) -> None:
        self._installation = installation
        self._cluster = installation.cluster
        self._client = client
        self.played: list[Fault] = []

    def delete_each_pod(self) -> None:
        """kubectl delete pod, one after the other: NameServers, brokers, the admin."""
        for pod in self._installation.pods():
            name, identity = pod["metadata"]["name"], pod["metadata"]["uid"]

            def delete(name: str = name) -> None:
                self._cluster.kubectl(
                    "delete", "pod", name, "-n", self._installation.namespace, "--wait=false", limit_s=30
                )

            def replaced(identity: str = identity) -> str:
                there = any(known["metadata"]["uid"] == identity for known in self._installation.pods())
                return "the old pod is there" if there else ""

            self.play(f"pod {name} deleted", [pod], delete, replaced)

    def kill_inside(self) -> None:
        """SIGKILL to the process in each broker's container and in one NameServer's."""
        for pod in [*self._installation.pods("broker"), self._installation.pods("nameserver")[0]]:
            name = pod["metadata"]["name"]
            before = _restarts(pod)

            def restarted(name: str = name, before: int = before) -> str:
                return "" if _restarts(self._installation.pod(name)) > before else "not restarted"

            process = self._cluster.process_of(pod)
            self.play(f"kill -9 in {name}", [pod], partial(self._cluster.kill, process), restarted)

    def darken(self, node: str) -> None:
        """A node without power for a while, then back with its disks."""
        hit = self._pods_on(node)

        def gone_and_back() -> float:
            self._cluster.power_off(node)
            time.sleep(DARK_S)
            ended = time.time()
            self._cluster.power_on(node)
            return ended

        # Its pods keep their names and identities: what is Ready before the node reports again is stale.
        def reported() -> str:
            return "" if node in self._cluster.ready_nodes() else f"{node} is not Ready"

        self.play(f"{node} without power for {DARK_S:.0f} s ({_names(hit)})", hit, gone_and_back, reported)

    def drain(self, node: str) -> None:
        """kubectl drain, a moment of emptiness, uncordon: volumes are local, so its brokers wait for it."""
        hit = self._pods_on(node)

        def drain() -> float:
            try:
                self._cluster.kubectl(
                    *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data"),
                    f"--timeout={DRAIN_LIMIT_S:.0f}s",
                    limit_s=DRAIN_LIMIT_S + 20,
                )
                time.sleep(EMPTY_S)
            finally:
                ended = time.time()
                self._cluster.kubectl("uncordon", node)
            return ended

        identities = {pod["metadata"]["uid"] for pod in hit}

        def replaced() -> str:
            there = [pod for pod in self._installation.pods() if pod["metadata"]["uid"] in identities]
            return f"still there: {_names(there)}" if there else ""

        self.play(f"{node} drained ({_names(hit)})", hit, drain, replaced)

    def play(
        self,
        name: str,
        hit: Sequence[dict[str, Any]],
        act: Callable[[], float | None],
        happened: Callable[[], str],
    ) -> None:
        """`act` returns when the fault ended, where it lasts; `happened` what is still missing of it."""
        say(f"fault: {name} ({_names(hit)})")
        brokers = len(self._installation.pods("broker"))
        everybody = groups_of(self._installation.pods("broker"))
        began = time.time()
        ended = act() or began
        until(happened, HEALTHY_LIMIT_S, f"{name}: it happened", pause_s=0.2)
        self._installation.wait_healthy(HEALTHY_LIMIT_S, brokers=brokers)
        healthy = time.time()
        until(lambda: self.unheard(everybody, healthy), FOUND_LIMIT_S, "the client sends to every group", pause_s=1)
        time.sleep(CALM_S)
        self.played.append(Fault(name, groups_of(hit), began, ended, healthy, time.time()))
        say(f"  healthy {healthy - ended:.1f} s after it")

    def unheard(self, groups: Sequence[str], since_s: float) -> str:
        """Groups that have acknowledged nothing since then, in words."""
        heard = [each for each in self._client.last_acknowledged(LOAD) if each.at_s > since_s]
        silent = [group for group in groups if not any(each.is_of(group) for each in heard)]
        return f"no acknowledgement from {', '.join(silent)}" if silent else ""

    def _pods_on(self, node: str) -> list[dict[str, Any]]:
        return [pod for pod in self._installation.pods() if pod["spec"].get("nodeName") == node]


def break_everything(
    installation: Installation, report: Report, client: ClientPod, *, kinds: Sequence[str], workers: Sequence[str]
) -> None:
    """All faults under one load; afterwards what was acknowledged is compared with what was received."""
    player = under_load(installation, client)
    steps: dict[str, list[Callable[[], None]]] = {
        "delete": [player.delete_each_pod],
        "kill": [player.kill_inside],
        "power": [partial(player.darken, node) for node in workers],
        "drain": [partial(player.drain, node) for node in workers],
    }
    for kind in kinds:
        for step in steps[kind]:
            try:
                step()
            except (CommandFailed, NotInTime) as error:
                report.failure(f"faults: {kind}", f"{error}\n{client.errors(LOAD)}\n{installation.events()}")
    judge(installation, report, client, player, part="faults")


def under_load(installation: Installation, client: ClientPod) -> FaultPlayer:
    """Sends and receives without a pause from now on, until `judge`."""
    installation.create_topic(TOPIC)
    client.receive("load-received", TOPIC, awaited=(LOAD,), group="faults", limit_s=400)
    client.send(LOAD, TOPIC, rate=RATE, limit_s=WHOLE_LIMIT_S)
    until(lambda: "" if client.count(LOAD) >= 200 else "not yet", 120, "the producer runs")
    return FaultPlayer(installation, client)


def judge(installation: Installation, report: Report, client: ClientPod, player: FaultPlayer, *, part: str) -> None:
    """Whether all that was acknowledged was received, and the replicas are equal."""
    client.stop(LOAD)
    result = client.result(LOAD, 240)
    client.stop("load-received")
    client.result("load-received", 500)
    compared = client.compare((LOAD,), "load-received")
    deliveries = client.deliveries("load-received")
    received = {delivery.message_id for delivery in deliveries}
    delivered = sorted(delivery.at_s for delivery in deliveries)
    sends = sorted(client.acknowledged(LOAD), key=lambda each: each.at_s)
    for fault in player.played:
        row = felt(fault, sends, delivered)
        inside = [each for each in sends if fault.began_s <= each.at_s < fault.over_s]
        report.add_fault(replace(row, lost=sum(each.message_id not in received for each in inside)))
    report.check(f"{part}: played", len(player.played), "faults", ">= 1")
    report.check(f"{part}: acknowledged under load", compared.acknowledged, "messages", ">= 1000")
    report.check(f"{part}: acknowledged and lost", compared.lost, "messages", "== 0")
    report.check(f"{part}: bodies broken", compared.broken, "messages", "== 0")
    report.figure(f"{part}: deliveries of copies that retried sends have made", compared.repeated, "deliveries")
    report.figure(f"{part}: deliveries with an attempt above the first", compared.redelivered, "deliveries")
    report.figure(f"{part}: sends that the client had to repeat", result["failures"], "sends")
    logs = compare_replicas(installation)
    report.check(
        f"{part}: CommitLogs that differ afterwards", len(logs.differences), "groups", "== 0", str(logs.differences)
    )


def felt(fault: Fault, sends: Sequence[Acknowledged], delivered: Sequence[float] = ()) -> FaultRow:
    """What a client felt of a fault, from the moments of its acknowledgements and of its deliveries."""
    inside = [each for each in sends if fault.began_s - FELT_S <= each.at_s <= fault.over_s]
    moments = [each.at_s for each in inside]
    ends = []
    for group in fault.groups:
        ours = [each.at_s for each in inside if each.is_of(group)]
        ends += [later for earlier, later in itertools.pairwise(ours) if later - earlier > FELT_S]
    return FaultRow(
        fault=fault.name,
        no_acknowledgement_s=_longest(moments) or 0.0,
        no_delivery_s=_longest([at_s for at_s in delivered if fault.began_s - FELT_S <= at_s <= fault.over_s]),
        group_s=max(ends) - fault.began_s if ends else None,
        healthy_s=fault.healthy_s - fault.ended_s,
        acknowledged=sum(1 for moment in moments if moment >= fault.began_s),
    )


def _longest(moments: Sequence[float]) -> float | None:
    return max((later - earlier for earlier, later in itertools.pairwise(moments)), default=None)


def groups_of(pods: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Broker groups with a member among these pods."""
    return tuple(sorted({pod["metadata"]["labels"].get("tandemmq.io/broker-group", "") for pod in pods} - {""}))


def _restarts(pod: dict[str, Any]) -> int:
    return sum(known["restartCount"] for known in pod["status"].get("containerStatuses", []))


def _names(pods: Sequence[dict[str, Any]]) -> str:
    return ", ".join(pod["metadata"]["name"] for pod in pods) or "empty"
