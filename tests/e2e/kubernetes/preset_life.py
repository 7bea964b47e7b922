"""The life of one preset: installed, tested, used, upgraded under load, removed, installed again on what was kept."""

from __future__ import annotations

import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from e2e.kubernetes.admin_access import close_admin
from e2e.kubernetes.client_pod import ClientPod
from e2e.kubernetes.cluster import CommandFailed, say, until
from e2e.kubernetes.command_line import use_command_line
from e2e.kubernetes.console import look_at_console
from e2e.kubernetes.installation import INSTALL_LIMIT_S, Installation
from e2e.kubernetes.port_forward import admin_port, fetched
from e2e.kubernetes.replicas import compare_replicas
from e2e.kubernetes.report import Report, UsageRow
from e2e.kubernetes.resources import idle_usage

MESSAGES: Final = 10_000
KEPT_MESSAGES: Final = 200
# Sends per second while the brokers are upgraded: a steady load that leaves the small machine air.
UPGRADE_RATE: Final = 60.0
IDLE_S: Final = 60.0
SEND_LIMIT_S: Final = 600.0
RECEIVE_LIMIT_S: Final = 300.0
# A changed value that every broker reads at its start.
CHANGED_VALUE: Final = "brokers.settings.flushIntervalCommitLog=400"
# Who may use the admin does not depend on replication: the smallest preset shows it.
CLOSED_PRESET: Final = "2m-noslave"


def live_through(installation: Installation, report: Report, client_image: str) -> None:
    """All steps of one preset; each adds its rows to the report."""
    name = installation.preset
    client = ClientPod(installation.cluster, installation.namespace, client_image, installation.access_point)
    installation.make_namespace()
    client.start()
    _install(installation, client, report)
    installation.test()
    report.check(f"{name}: helm test passes", 1, "times", "== 1")
    _measure_idle(installation, report)
    _look_at_admin(installation, report)
    (first,) = client.acknowledged("first")
    look_at_console(installation, report, topic="first", message_id=first.message_id)
    use_command_line(installation, report, client, topic="first")
    _send_ten_thousand(installation, client, report)
    _upgrade_under_load(installation, client, report)
    _come_back(installation, client, report)
    if name == CLOSED_PRESET:
        close_admin(installation, report, client)
    installation.uninstall()
    installation.remove_namespace()


def _install(installation: Installation, client: ClientPod, report: Report) -> None:
    """helm install --wait, while a client already waits for its first acknowledgement."""
    client.send("first", "first", count=1, limit_s=INSTALL_LIMIT_S)
    with ThreadPoolExecutor(1) as pool:
        started, at_s = time.monotonic(), time.time()
        say(f"helm install {installation.preset} --wait")
        installed = pool.submit(_installed, installation)

        def created() -> str:
            if installed.done() and installed.exception() is not None:
                return ""
            installation.create_topic("first")
            return ""

        until(created, INSTALL_LIMIT_S, "a topic can be created", pause_s=1)
        ready = installed.result()
    client.result("first", INSTALL_LIMIT_S)
    name = installation.preset
    report.figure(f"{name}: helm install --wait", ready - started, "s")
    first_s = client.acknowledged("first")[0].at_s - at_s
    report.figure(f"{name}: from helm install to the first accepted message", first_s, "s")
    installation.wait_healthy()


def _installed(installation: Installation) -> float:
    installation.install()
    return time.monotonic()


def _measure_idle(installation: Installation, report: Report) -> None:
    usages = idle_usage(installation, over_s=IDLE_S)
    name = installation.preset
    report.figure(f"{name}: idle memory of all pods, anonymous", sum(each.anonymous_mib for each in usages), "MiB")
    report.figure(f"{name}: idle memory of all pods, working set", sum(each.working_set_mib for each in usages), "MiB")
    report.figure(f"{name}: idle CPU of all pods", sum(each.millicores for each in usages), "millicores")
    if name == "2m-2s-sync":
        for each in usages:
            report.add_usage(UsageRow(each.pod, each.anonymous_mib, each.working_set_mib, each.millicores))


def _look_at_admin(installation: Installation, report: Report) -> None:
    """The state by port-forward, the role labels, the doctor."""
    name, count = installation.preset, len(installation.pods("broker"))
    with admin_port(installation) as port:
        cluster = json.loads(fetched(port, "/api/v1/cluster"))
        report.check(f"{name}: brokers in the admin's JSON", len(cluster["brokers"]), "brokers", f"== {count}")
        slaves = [slave for broker in cluster["brokers"] for slave in broker["status"]["slaves"]]
        known = [slave for slave in slaves if slave["verified"]]
        report.check(f"{name}: slaves whose master knows them by their proof", len(known), "slaves", f"== {count - 2}")
        report.check(f"{name}: status page by port-forward", len(fetched(port, "/")), "bytes", ">= 500")

    def labelled() -> str:
        roles = [pod["metadata"]["labels"].get("tandemmq.io/role") for pod in installation.pods("broker")]
        return "" if None not in roles else f"roles {roles}"

    until(labelled, 60, "each broker's pod has its role as a label")
    masters = [pod for pod in installation.pods("broker") if pod["metadata"]["labels"]["tandemmq.io/role"] == "master"]
    report.check(f"{name}: pods labelled master", len(masters), "pods", "== 2")
    try:
        installation.tandemmq("doctor")
        problem = ""
    except CommandFailed as error:
        problem = str(error) + installation.tandemmq("doctor", check=False)
    report.check(f"{name}: tandemmq doctor finds problems", int(bool(problem)), "times", "== 0", problem)


def _send_ten_thousand(installation: Installation, client: ClientPod, report: Report) -> None:
    installation.create_topic("ten-thousand")
    client.receive("received", "ten-thousand", awaited=("sent",), group="readers", limit_s=RECEIVE_LIMIT_S)
    client.send("sent", "ten-thousand", count=MESSAGES, limit_s=SEND_LIMIT_S)
    sent = client.result("sent", SEND_LIMIT_S + 30)
    client.stop("received")
    client.result("received", RECEIVE_LIMIT_S + 60)
    compared = client.compare(("sent",), "received")
    name = installation.preset
    report.check(f"{name}: messages acknowledged", compared.acknowledged, "messages", f"== {MESSAGES}")
    report.check(f"{name}: messages received", compared.received, "messages", f"== {MESSAGES}")
    report.check(f"{name}: bodies broken", compared.broken, "messages", "== 0")
    report.figure(f"{name}: official client, one process", compared.acknowledged / sent["seconds"], "messages/s")
    _check_replicas(installation, report, "after 10,000 messages")


def _upgrade_under_load(installation: Installation, client: ClientPod, report: Report) -> None:
    """helm upgrade with a changed value; every broker restarts, none before its copy is complete."""
    name = installation.preset
    before = installation.broker_identities()
    client.receive("upgrade-received", "ten-thousand", awaited=("upgrade",), group="upgrade", limit_s=RECEIVE_LIMIT_S)
    client.send("upgrade", "ten-thousand", rate=UPGRADE_RATE, limit_s=2 * SEND_LIMIT_S)
    until(lambda: "" if client.count("upgrade") >= 100 else "not yet", 60, "the producer runs")
    say(f"helm upgrade {name} --wait, {CHANGED_VALUE}")
    try:
        seconds = installation.upgrade(CHANGED_VALUE)
        installation.wait_healthy()
        time.sleep(5)
    finally:
        client.stop("upgrade")
    result = client.result("upgrade", 180)
    client.stop("upgrade-received")
    client.result("upgrade-received", RECEIVE_LIMIT_S + 60)
    after = installation.broker_identities()
    restarted = sum(1 for pod, identity in after.items() if before.get(pod) != identity)
    compared = client.compare(("upgrade",), "upgrade-received")
    moments = sorted(each.at_s for each in client.acknowledged("upgrade"))
    longest = max(later - earlier for earlier, later in itertools.pairwise(moments))
    report.check(f"{name}: brokers restarted by the upgrade", restarted, "pods", f"== {len(before)}")
    report.check(f"{name}: acknowledged during the upgrade", compared.acknowledged, "messages", ">= 500")
    report.check(f"{name}: of them lost", compared.lost, "messages", "== 0")
    report.figure(f"{name}: helm upgrade --wait", seconds, "s")
    report.figure(f"{name}: longest time without an acknowledgement", longest, "s")
    report.figure(f"{name}: sends that the client had to repeat", result["failures"], "sends")
    _check_replicas(installation, report, "after the upgrade")


def _come_back(installation: Installation, client: ClientPod, report: Report) -> None:
    """Uninstalled, only volumes stay; installed again, the messages are there."""
    name = installation.preset
    installation.create_topic("kept")
    client.send("kept", "kept", count=KEPT_MESSAGES, limit_s=120)
    client.result("kept", 150)
    ends = {broker.pod: broker.end_offset for broker in installation.brokers()}
    claims = installation.claims()
    left = installation.uninstall()
    report.check(f"{name}: objects left by helm uninstall", len(left), "objects", "== 0", ", ".join(left))
    kept = installation.claims()
    wanted = sorted(pod for pod in ends)
    with_volume = [pod for pod in wanted if any(claim.endswith(pod) for claim in kept)]
    report.check(f"{name}: volumes retained", len(with_volume), "claims", f"== {len(wanted)}", f"{kept}")
    installation.install()
    installation.wait_healthy(brokers=len(ends))
    same = sum(1 for claim, volume in installation.claims().items() if claims.get(claim) == volume)
    report.check(f"{name}: volumes picked up again", same, "claims", f"== {len(claims)}")
    shorter = [broker.pod for broker in installation.brokers() if broker.end_offset < ends[broker.pod]]
    report.check(f"{name}: logs shorter than before", len(shorter), "logs", "== 0", ", ".join(shorter))
    client.receive("kept-received", "kept", awaited=("kept",), group="kept", limit_s=RECEIVE_LIMIT_S)
    client.stop("kept-received")
    client.result("kept-received", RECEIVE_LIMIT_S + 60)
    compared = client.compare(("kept",), "kept-received")
    report.check(f"{name}: messages of before read again", compared.received, "messages", f"== {KEPT_MESSAGES}")


def _check_replicas(installation: Installation, report: Report, when: str) -> None:
    if not installation.has_slaves:
        return
    compared = compare_replicas(installation)
    name = installation.preset
    report.check(
        f"{name}: CommitLogs that differ {when}", len(compared.differences), "groups", "== 0", str(compared.differences)
    )
    report.figure(f"{name}: bytes of CommitLog compared {when}", compared.compared_bytes, "bytes")
