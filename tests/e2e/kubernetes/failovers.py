"""A group's master goes, in every way that it can, while the official client sends and receives without a pause.

Who is master is read from the group's Lease. What is measured is what a client feels: the time without an
acknowledgement, of any group and of this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from e2e.kubernetes.client_pod import ClientPod
from e2e.kubernetes.cluster import CommandFailed, NotInTime, until
from e2e.kubernetes.faults import LOAD, FaultPlayer, groups_of, judge, under_load
from e2e.kubernetes.installation import Installation
from e2e.kubernetes.report import Report

__all__ = ["FAILOVERS", "change_masters"]

CONTROL_NODE: Final = "node0"
FAILOVERS: Final = ("delete", "kill", "power", "claim", "rollout")
HIT: Final = "broker-a"
# The lease, a try or two, and what a client needs to find the new master: it asks for routes each 30 s.
CHANGE_LIMIT_S: Final = 120.0
# A node that is off stays off so long after all groups acknowledge again, and they must go on doing so.
DARK_S: Final = 60.0
REPLACED_LIMIT_S: Final = 300.0
CHANGED_VALUE: Final = "brokers.settings.flushIntervalCommitLog=400"


def change_masters(installation: Installation, report: Report, client: ClientPod, *, kinds: Sequence[str]) -> None:
    """All ways under one load; afterwards what was acknowledged is compared with what was received."""
    failovers = _Failovers(installation, report, under_load(installation, client))
    steps: dict[str, Callable[[], None]] = {
        "delete": failovers.delete,
        "kill": failovers.kill,
        "power": failovers.darken,
        "claim": failovers.lose_claim,
        "rollout": failovers.roll_out,
    }
    for kind in kinds:
        try:
            steps[kind]()
        except (CommandFailed, NotInTime) as error:
            report.failure(f"failover: {kind}", f"{error}\n{client.errors(LOAD)}\n{installation.events()}")
    judge(installation, report, client, failovers.player, part="failover")


class _Failovers:
    """Each begins and ends with a healthy cluster, whoever is master by then."""

    def __init__(self, installation: Installation, report: Report, player: FaultPlayer) -> None:
        self._installation = installation
        self._cluster = installation.cluster
        self._report = report
        self.player = player

    def delete(self) -> None:
        """kubectl delete pod: the master drains, and hands over."""
        master, pod = self._master()

        def act() -> None:
            self._kubectl("delete", "pod", master, "--wait=false")

        self.player.play(f"the master's pod {master} deleted", [pod], act, self._changed(master))

    def kill(self) -> None:
        """SIGKILL: the container is started again, and whoever is first becomes master."""
        master, pod = self._master()
        process = self._cluster.process_of(pod)
        before = _restarts(pod)

        def restarted() -> str:
            return "" if _restarts(self._installation.pod(master)) > before else "not restarted"

        self.player.play(f"kill -9 in the master {master}", [pod], lambda: self._cluster.kill(process), restarted)

    def darken(self) -> None:
        """The master's node loses its power, and stays so while the group goes on."""
        master, pod = self._master()
        if pod["spec"]["nodeName"] == CONTROL_NODE:
            # The API server would go with it: the master moves first.
            self.delete()
            master, pod = self._master()
        node = str(pod["spec"]["nodeName"])
        hit = [each for each in self._installation.pods() if each["spec"].get("nodeName") == node]
        everybody = groups_of(self._installation.pods("broker"))

        def act() -> float:
            self._cluster.power_off(node)
            try:
                until(self._changed(master), CHANGE_LIMIT_S, f"{HIT} has another master")
                began = time.time()
                until(lambda: self.player.unheard(everybody, began), CHANGE_LIMIT_S, "all groups acknowledge")
                self._report.figure("failover: a dark node, until all groups acknowledge", time.time() - off_s, "s")
                time.sleep(DARK_S)
                silent = self.player.unheard(everybody, time.time() - 5)
                self._report.check(
                    f"failover: {DARK_S:.0f} s later, node still off: silent groups",
                    int(bool(silent)),
                    "times",
                    "== 0",
                    silent,
                )
            finally:
                ended = time.time()
                self._cluster.power_on(node)
            return ended

        def reported() -> str:
            return "" if node in self._cluster.ready_nodes() else f"{node} is not Ready"

        off_s = time.time()
        self.player.play(f"{node} of the master {master} without power", hit, act, reported)

    def lose_claim(self) -> None:
        """The master's disk is gone, with its pod and without an orderly stop: it comes back as an empty slave."""
        master, pod = self._master()
        claim = next(name for name in self._installation.claims() if name.endswith(master))
        volume = self._installation.claims()[claim]

        def act() -> None:
            self._kubectl("delete", "pvc", claim, "--wait=false")
            self._kubectl("delete", "pod", master, "--force", "--grace-period=0", "--wait=false")
            until(self._changed(master), CHANGE_LIMIT_S, f"{HIT} has another master")
            # Its set makes the claim anew with the pod; one that came before the claim was gone waits for ever.
            until(replaced, REPLACED_LIMIT_S, f"{master} has a new volume", pause_s=1)

        def replaced() -> str:
            return "the old volume is there" if self._installation.claims().get(claim, "") in ("", volume) else ""

        self.player.play(f"volume and pod of the master {master} deleted", [pod], act, replaced)

    def roll_out(self) -> None:
        """helm upgrade with a changed value: every broker restarts, each master hands over first."""
        before = self._installation.broker_identities()

        def renewed() -> str:
            after = self._installation.broker_identities()
            same = [name for name, identity in before.items() if after.get(name) in (None, identity)]
            return f"not renewed: {', '.join(same)}" if same else ""

        def act() -> float:
            seconds = self._installation.upgrade(CHANGED_VALUE)
            self._report.figure("failover: helm upgrade --wait", seconds, "s")
            return time.time()

        self.player.play("helm upgrade", self._installation.pods("broker"), act, renewed)

    def _master(self) -> tuple[str, dict[str, Any]]:
        name = self._installation.master(HIT)
        return name, self._installation.pod(name)

    def _changed(self, before: str) -> Callable[[], str]:
        return lambda: f"{before} is the master still" if self._installation.master(HIT) == before else ""

    def _kubectl(self, *arguments: str) -> None:
        self._cluster.kubectl(*arguments, "-n", self._installation.namespace, limit_s=30)


def _restarts(pod: dict[str, Any]) -> int:
    return sum(known["restartCount"] for known in pod["status"].get("containerStatuses", []))
