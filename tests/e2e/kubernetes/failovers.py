"""A group's master goes, in every way that it can, while the official client sends and receives without a pause.

Who is master is read from the group's Lease. What is measured is what a client feels: the time without an
acknowledgement, of any group and of this one, and without a delivery. Rounds of one way are one line of the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from e2e.kubernetes.client_pod import ClientPod
from e2e.kubernetes.cluster import CONTROL_NODE, CommandFailed, NotInTime, say, until
from e2e.kubernetes.faults import LOAD, FaultPlayer, groups_of, judge, under_load
from e2e.kubernetes.installation import PUT_BACK, Installation
from e2e.kubernetes.report import Report

FAILOVERS: Final = ("delete", "kill", "power", "partition", "claim", "copy", "rollout", "authority")
HIT: Final = "broker-a"
# The lease, a try or two, and what a client needs to find the new master: it asks for routes each 30 s.
CHANGE_LIMIT_S: Final = 120.0
# A node that is off stays off so long after all groups acknowledge again, and they must go on doing so.
DARK_S: Final = 60.0
# In the rounds after the first: what the long one shows of Kubernetes' own patience it has shown.
DARK_AGAIN_S: Final = 5.0
# Sends between the copy of a disk and the moment when it is given back.
MISSED: Final = 300
# The API server hangs so long with all masters alive, then for a while with one killed.
AUTHORITY_AWAY_S: Final = 600.0
WITHOUT_MASTER_S: Final = 30.0
REPLACED_LIMIT_S: Final = 300.0
# Another value in each round, of what every broker reads at its start.
CHANGED_SETTING: Final = "brokers.settings.flushIntervalCommitLog"


def change_masters(
    installation: Installation, report: Report, client: ClientPod, *, kinds: Sequence[str], rounds: int
) -> None:
    """All ways under one load; afterwards what was acknowledged is compared with what was received."""
    client.leave_silent_nodes()
    failovers = _Failovers(installation, report, client, under_load(installation, client))
    steps: dict[str, Callable[[int], None]] = {
        "delete": failovers.delete,
        "kill": failovers.kill,
        "power": failovers.darken,
        "partition": failovers.cut_off,
        "claim": failovers.lose_claim,
        "copy": failovers.give_back_copy,
        "rollout": failovers.roll_out,
        "authority": failovers.stop_authority,
    }
    for kind in kinds:
        for number in range(rounds):
            try:
                # A round that failed may have left one disk alone with what was acknowledged.
                installation.wait_healthy()
                steps[kind](number)
            except (CommandFailed, NotInTime) as error:
                report.failure(
                    f"failover: {kind}, round {number + 1}", f"{error}\n{client.errors(LOAD)}\n{installation.events()}"
                )
                break
    judge(installation, report, client, failovers.player, part="failover")


class _Failovers:
    """Each begins and ends with a healthy cluster, whoever is master by then."""

    def __init__(self, installation: Installation, report: Report, client: ClientPod, player: FaultPlayer) -> None:
        self._installation = installation
        self._cluster = installation.cluster
        self._report = report
        self._client = client
        self.player = player

    def delete(self, _: int) -> None:
        """kubectl delete pod: the master drains, and hands over."""
        master, pod = self._master()

        def act() -> None:
            self._kubectl("delete", "pod", master, "--wait=false")

        self.player.play("the master's pod deleted", [pod], act, self._changed(master))

    def kill(self, _: int) -> None:
        """SIGKILL: the container is started again, and whoever is first becomes master."""
        master, pod = self._master()
        process = self._cluster.process_of(pod)
        before = _restarts(pod)

        def restarted() -> str:
            return "" if _restarts(self._installation.pod(master)) > before else "not restarted"

        self.player.play("kill -9 in the master", [pod], lambda: self._cluster.kill(process), restarted)

    def darken(self, number: int) -> None:
        """The master's node loses its power, and stays so while the group goes on."""
        self._without_node(
            "the master's node without power",
            self._cluster.power_off,
            self._cluster.power_on,
            DARK_AGAIN_S if number else DARK_S,
        )

    def cut_off(self, number: int) -> None:
        """The master's node reaches nobody: the master runs on, and has to stop to act within its lease."""
        self._without_node(
            "the master's node cut off",
            self._cluster.cut_off,
            self._cluster.connect,
            DARK_AGAIN_S if number else DARK_S,
        )

    def lose_claim(self, _: int) -> None:
        """The master's disk is gone, with its pod and without an orderly stop: it comes back as an empty slave."""
        master, pod = self._master()
        claim = self._claim(master)
        volume = self._installation.claims()[claim]

        def act() -> None:
            self._kubectl("delete", "pvc", claim, "--wait=false")
            self._kubectl("delete", "pod", master, "--force", "--grace-period=0", "--wait=false")
            until(self._changed(master), CHANGE_LIMIT_S, f"{HIT} has another master")
            # Its set makes the claim anew with the pod; one that came before the claim was gone waits for ever.
            until(replaced, REPLACED_LIMIT_S, f"{master} has a new volume", pause_s=1)

        def replaced() -> str:
            return "the old volume is there" if self._installation.claims().get(claim, "") in ("", volume) else ""

        self.player.play("the master's pod and volume deleted", [pod], act, replaced)

    def give_back_copy(self, _: int) -> None:
        """The master goes without an orderly stop, and comes back with its disk as it was some hundred sends before."""
        master, pod = self._master()
        owner = master.rpartition("-")[0]
        process = self._cluster.process_of(pod)
        self._installation.copy_store(master)
        target = self._client.count(LOAD) + MISSED
        until(lambda: "" if self._client.count(LOAD) >= target else "not yet", 120, "more is sent than the copy holds")

        def gone() -> str:
            there = {each["metadata"]["name"] for each in self._installation.pods("broker")}
            return f"{master} is there" if master in there else ""

        def act() -> None:
            self._kubectl("scale", "statefulset", owner, "--replicas=0")
            # A process that is still about to stop would write its checkpoint beside the older log.
            self._cluster.kill(process)
            self._kubectl("delete", "pod", master, "--force", "--grace-period=0", "--wait=false")
            until(self._changed(master), CHANGE_LIMIT_S, f"{HIT} has another master")
            until(gone, CHANGE_LIMIT_S, f"{master} is gone")
            self._installation.on_volume(self._claim(master), PUT_BACK, self._client.image)
            self._kubectl("scale", "statefulset", owner, "--replicas=1")

        def back() -> str:
            return "" if gone() else f"{master} is not back"

        self.player.play("the master's disk given back from an older copy", [pod], act, back)

    def roll_out(self, number: int) -> None:
        """helm upgrade with a changed value: every broker restarts, each master hands over first."""
        before = self._installation.broker_identities()

        def renewed() -> str:
            after = self._installation.broker_identities()
            same = [pod for pod, identity in before.items() if after.get(pod) in (None, identity)]
            return f"not renewed: {', '.join(same)}" if same else ""

        def act() -> float:
            seconds = self._installation.upgrade(f"{CHANGED_SETTING}={400 + number}")
            self._report.figure("failover: helm upgrade --wait", seconds, "s")
            return time.time()

        self.player.play("helm upgrade", self._installation.pods("broker"), act, renewed)

    def stop_authority(self, _: int) -> None:
        """The API server hangs for long; then a master is killed, and nobody can be elected until it answers again."""
        pod = self._master()[1]
        process = self._cluster.process_of(pod)
        moments: list[float] = []

        def act() -> float:
            with self._cluster.without_api_server():
                say(f"  the API server hangs for {AUTHORITY_AWAY_S:.0f} s")
                time.sleep(AUTHORITY_AWAY_S)
                self._cluster.kill(process)
                moments.append(time.time())
                time.sleep(WITHOUT_MASTER_S)
                return time.time()

        self.player.play("the API server away", self._installation.pods("broker"), act, lambda: "")
        whole = self.player.played.pop()
        [killed] = moments
        calm = replace(
            whole,
            name=f"the API server away for {AUTHORITY_AWAY_S:.0f} s",
            ended_s=killed,
            healthy_s=killed,
            over_s=killed,
        )
        name = f"then the master killed, the API server back {WITHOUT_MASTER_S:.0f} s later"
        self.player.played += [calm, replace(whole, name=name, groups=(HIT,), began_s=killed)]

    def _without_node(
        self, name: str, take: Callable[[str], None], give: Callable[[str], None], pause_s: float
    ) -> None:
        """The master's node goes, and stays away for `pause_s` after all groups acknowledge sends again."""
        master, pod = self._master()
        if pod["spec"]["nodeName"] == CONTROL_NODE:
            # The API server would go with it: the master moves first.
            self.delete(0)
            self.player.played.pop()
            master, pod = self._master()
        node = str(pod["spec"]["nodeName"])
        hit = [each for each in self._installation.pods() if each["spec"].get("nodeName") == node]
        everybody = groups_of(self._installation.pods("broker"))

        def act() -> float:
            take(node)
            try:
                until(self._changed(master), CHANGE_LIMIT_S, f"{HIT} has another master")
                began = time.time()
                until(lambda: self.player.unheard(everybody, began), CHANGE_LIMIT_S, "all groups acknowledge")
                self._report.figure(f"failover: {name}, until all groups acknowledge", time.time() - off_s, "s")
                time.sleep(pause_s)
                silent = self.player.unheard(everybody, time.time() - 5)
                self._report.check(
                    f"failover: {name}, {pause_s:.0f} s later: silent groups",
                    int(bool(silent)),
                    "times",
                    "== 0",
                    silent,
                )
            finally:
                ended = time.time()
                give(node)
            return ended

        def reported() -> str:
            return "" if node in self._cluster.ready_nodes() else f"{node} is not Ready"

        off_s = time.time()
        self.player.play(name, hit, act, reported)

    def _claim(self, pod: str) -> str:
        return next(name for name in self._installation.claims() if name.endswith(pod))

    def _master(self) -> tuple[str, dict[str, Any]]:
        name = self._installation.master(HIT)
        return name, self._installation.pod(name)

    def _changed(self, before: str) -> Callable[[], str]:
        return lambda: f"{before} is the master still" if self._installation.master(HIT) == before else ""

    def _kubectl(self, *arguments: str) -> None:
        self._cluster.kubectl(*arguments, "-n", self._installation.namespace, limit_s=30)


def _restarts(pod: dict[str, Any]) -> int:
    return sum(known["restartCount"] for known in pod["status"].get("containerStatuses", []))
