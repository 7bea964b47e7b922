"""One preset, closed: an open release by three upgrades under load, strangers at its ports, certificates made anew.

Then closed from its first install on. All of it in a namespace that enforces the `restricted` pod security.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from e2e.kubernetes.client_pod import WORK, ClientPod
from e2e.kubernetes.cluster import CommandFailed, say, until
from e2e.kubernetes.command_line import Operator
from e2e.kubernetes.installation import RELEASE, Installation
from e2e.kubernetes.replicas import compare_replicas
from e2e.kubernetes.report import Report
from tandemmq.core.access.identity import AdminLevel, Identity, Role
from tandemmq.service.certificates import CertificateAuthority

# What an open release of before is like.
OPEN: Final = ("security.serviceTlsMode=disabled",)
AUTO: Final = "security.serviceTlsMode=auto"
STEPS: Final = ("permissive", "permissive, calls with TLS", "enforcing")
TOPIC: Final = "siege"
RATE: Final = 40.0
SEND_LIMIT_S: Final = 1_800.0
RECEIVE_LIMIT_S: Final = 300.0
# A kubelet brings a changed Secret to a pod within its sync period and its cache's age.
BROUGHT_LIMIT_S: Final = 300.0
ASKED_EVERY_S: Final = 2.0


def close_and_besiege(installation: Installation, report: Report, client_image: str) -> None:
    """All steps of one preset; each adds its rows to the report."""
    client = ClientPod(installation.cluster, installation.namespace, client_image, installation.access_point)
    siege = _Siege(installation, report, client)
    installation.make_namespace()
    installation.cluster.kubectl(
        "label", "namespace", installation.namespace, "pod-security.kubernetes.io/enforce=restricted"
    )
    client.start()
    say(f"helm install {installation.preset}, open")
    installation.install()
    installation.wait_healthy()
    installation.create_topic(TOPIC)
    # The same knocking has to find what is open, or it would prove nothing.
    siege.knock("while it is open, ports that a stranger gets something from", closed=False)
    _close_under_load(siege)
    siege.knock("once it is closed, ports that a stranger gets something from", closed=True)
    _renew_under_load(siege)
    _come_from_outside(siege)
    _begin_closed(siege)
    installation.remove_namespace()


class _Siege:
    """A release, a client beside it, and where what is seen is reported."""

    def __init__(self, installation: Installation, report: Report, client: ClientPod) -> None:
        self.installation = installation
        self.report = report
        self.client = client
        self.name = f"security {installation.preset}"

    def check(self, what: str, value: float, unit: str, target: str, note: str = "") -> None:
        """A row of this preset."""
        self.report.check(f"{self.name}: {what}", value, unit, target, note)

    def figure(self, what: str, value: float, unit: str) -> None:
        """A measured value of this preset."""
        self.report.figure(f"{self.name}: {what}", value, unit)

    @contextmanager
    def load(self, name: str, what: str, *, refusals: bool) -> Iterator[None]:
        """Sends and receives while the block runs; rows for what was lost, with `refusals` for sends that failed."""
        client = self.client
        client.receive(f"{name}-received", TOPIC, awaited=(name,), group=name, limit_s=RECEIVE_LIMIT_S)
        client.send(name, TOPIC, rate=RATE, limit_s=SEND_LIMIT_S)
        until(lambda: "" if client.count(name) >= 100 else "not yet", 120, "the producer runs")
        try:
            yield
        finally:
            client.stop(name)
        result = client.result(name, 180)
        client.stop(f"{name}-received")
        client.result(f"{name}-received", RECEIVE_LIMIT_S + 60)
        compared = client.compare((name,), f"{name}-received")
        moments = sorted(each.at_s for each in client.acknowledged(name))
        longest = max(later - earlier for earlier, later in itertools.pairwise(moments))
        self.check(f"acknowledged {what}", compared.acknowledged, "messages", ">= 500")
        self.check(f"of them lost {what}", compared.lost, "messages", "== 0")
        self.figure(f"longest time without an acknowledgement {what}", longest, "s")
        if refusals:
            self.check(f"sends that failed {what}", result["failures"], "sends", "== 0", client.errors(name))
        else:
            self.figure(f"sends that the client had to repeat {what}", result["failures"], "sends")

    def knock(self, what: str, *, closed: bool) -> None:
        """A pod of somebody else tries each port of each service, with a certificate of its own making, too."""
        replicated = self.installation.has_slaves
        places = [
            f"{pod['metadata']['name']}:9876={pod['status']['podIP']}:9876:service"
            for pod in self.installation.pods("nameserver")
        ]
        for pod in self.installation.pods("broker"):
            name, address = pod["metadata"]["name"], pod["status"]["podIP"]
            places.append(f"{name}:10911={address}:10911:service")
            if replicated and pod["metadata"]["labels"].get("tandemmq.io/role") == "master":
                places.append(f"{name}:10912={address}:10912:replication")
        now = datetime.now(UTC)
        stranger = CertificateAuthority.new("a stranger's CA", now=now, days=1)
        bearer = Identity("DefaultCluster", Role.ADMIN, level=AdminLevel.REPAIR)
        pair = stranger.issue(bearer, now=now, days=1)
        files = [f"{WORK}/stranger.crt", f"{WORK}/stranger.key"]
        for path, text in zip(files, pair, strict=True):
            self.client.python("import sys; open(sys.argv[1], 'w').write(sys.argv[2])", path, text.decode())
        found = json.loads(self.client.run("strangers.py", *places, *files, limit_s=300))
        opened = {place: ways for place, ways in found.items() if ways}
        self.figure("ports of services that a stranger tries", len(places), "ports")
        if closed:
            self.check(what, len(opened), "ports", "== 0", json.dumps(opened))
            probes = [f"{pod['metadata']['name']}={pod['status']['podIP']}:10913:open" for pod in self._brokers()]
            probed = json.loads(self.client.run("strangers.py", *probes, limit_s=300))
            answered = sum(bool(ways) for ways in probed.values())
            self.check("ports for probes that answer anybody", answered, "ports", f"== {len(probes)}")
        else:
            # A master answers a report with nothing as long as it has nothing.
            services = [place for place in found if not place.endswith(":10912")]
            self.check(what, len(set(services) & set(opened)), "ports", f"== {len(services)}", json.dumps(found))

    def _brokers(self) -> list[dict[str, Any]]:
        return self.installation.pods("broker")

    def modes(self) -> set[str]:
        """What the pods of services run with."""
        return {
            variable.get("value", "")
            for pod in self.installation.pods()
            for variable in pod["spec"]["containers"][0]["env"]
            if variable["name"] == "TANDEMMQ_SERVICE_TLS_MODE"
        }


def _close_under_load(siege: _Siege) -> None:
    """The same `helm upgrade` three times, as somebody does who only takes new versions."""
    installation = siege.installation
    with siege.load("closing", "while it is closed step by step", refusals=False):
        for number, step in enumerate(STEPS, 1):
            say(f"helm upgrade, step {number}: {step}")
            seconds = installation.upgrade(AUTO)
            siege.figure(f"helm upgrade, step {number} of 3", seconds, "s")
            installation.wait_healthy()
            mode = step.partition(",")[0]
            siege.check(f"pods in another mode after step {number}", len(siege.modes() - {mode}), "modes", "== 0")
        time.sleep(5)
    if installation.has_slaves:
        compared = compare_replicas(installation)
        differing = compared.differences
        siege.check("CommitLogs that differ once it is closed", len(differing), "groups", "== 0", str(differing))
    before = installation.broker_identities()
    try:
        installation.upgrade(*OPEN)
        refused = ""
    except CommandFailed as error:
        refused = str(error)
    siege.check("a jump back to open is refused with a reason", int("would not be talked to" in refused), "", "== 1")
    installation.upgrade(AUTO)
    after = installation.broker_identities()
    siege.check("brokers that one more upgrade restarts", len(set(after.items()) - set(before.items())), "pods", "== 0")


def _renew_under_load(siege: _Siege) -> None:
    """The chart's own job makes all certificates anew; every service takes them, and no call fails."""
    installation = siege.installation
    cluster, namespace = installation.cluster, installation.namespace
    begun = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with siege.load("renewal", "while certificates are made anew", refusals=True), _asked(siege):
        job = json.loads(
            cluster.kubectl(
                *("create", "job", "renew-now", f"--from=cronjob/{RELEASE}-certs", "-n", namespace),
                *("--dry-run=client", "-o", "json"),
            )
        )
        command = job["spec"]["template"]["spec"]["containers"][0]["command"]
        command.remove("--due")
        job["metadata"]["labels"] = {"tandemmq.io/test-client": "yes"}
        started = time.monotonic()
        cluster.apply([job])
        cluster.kubectl(
            *("wait", "-n", namespace, "--for=condition=Complete", "job/renew-now", "--timeout=120s"), limit_s=130
        )
        said = cluster.kubectl("logs", "-n", namespace, "job/renew-now")
        groups = {pod["metadata"]["labels"]["tandemmq.io/broker-group"] for pod in installation.pods("broker")}
        siege.check("Secrets that the job writes", said.count("made Secret"), "Secrets", f"== {3 + len(groups)}", said)
        pods = [pod["metadata"]["name"] for pod in installation.pods()]

        def untaken() -> str:
            # Files are looked at when somebody connects; this one connects to all of them.
            installation.tandemmq("status")
            missing = [
                pod
                for pod in pods
                if "certificates_taken" not in cluster.kubectl("logs", "-n", namespace, pod, f"--since-time={begun}")
            ]
            return f"not taken: {', '.join(missing)}" if missing else ""

        until(untaken, BROUGHT_LIMIT_S, "each service has the new certificate", pause_s=10)
        siege.figure("from the job to the last service that has its new certificate", time.monotonic() - started, "s")
        time.sleep(10)
    cluster.kubectl("delete", "job", "renew-now", "-n", namespace)
    if installation.has_slaves:
        # It has to connect with the new ones.
        slave = next(
            pod["metadata"]["name"]
            for pod in installation.pods("broker")
            if pod["metadata"]["labels"].get("tandemmq.io/role") == "slave"
        )
        cluster.kubectl("delete", "pod", slave, "-n", namespace, limit_s=120)
    installation.wait_healthy()
    installation.test()
    siege.check("helm test passes with the new certificates", 1, "times", "== 1")


@contextmanager
def _asked(siege: _Siege) -> Iterator[None]:
    """The admin is asked for what it has to ask every broker for; a row for answers that were none."""
    failed: list[str] = []
    ended = threading.Event()
    counted = 0

    def ask() -> None:
        nonlocal counted
        while not ended.wait(ASKED_EVERY_S):
            counted += 1
            try:
                brokers = siege.installation.status()["brokers"]
                failed.extend(json.dumps(broker)[:300] for broker in brokers if not broker["status"])
            except (CommandFailed, ValueError, KeyError) as error:
                failed.append(str(error)[:300])

    asking = threading.Thread(target=ask, name="asking", daemon=True)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        asking.join(30)
    siege.check("readings of all brokers by the admin meanwhile", counted, "readings", ">= 10")
    siege.check("brokers that did not answer one", len(failed), "answers", "== 0", "\n".join(failed[:3]))


def _come_from_outside(siege: _Siege) -> None:
    """An operator with a kubeconfig gets the certificate from its Secret; without it nobody answers."""
    operator = Operator(siege.installation, siege.report, siege.name)
    operator.add_context()
    outside, inside = operator.read("topic", "list"), operator.inside("topic", "list")
    operator.check("topics listed", len(outside["items"]), "topics", f"== {len(inside['items'])}")
    answer = operator.run("topic", "create", "from-outside", "--queues", "4")
    operator.check("topic create fails", int(answer.code != 0), "times", "== 0", answer.note)

    def unwell() -> str:
        # An API server that was away for a moment is a problem that it rightly tells.
        return "" if (told := operator.run("doctor", "--kube")).code == 0 else told.note[-300:]

    operator.check("doctor --kube passes after", until(unwell, 180, "the doctor finds nothing", pause_s=5), "s", ">= 0")
    with tempfile.TemporaryDirectory() as folder:
        now = datetime.now(UTC)
        other = CertificateAuthority.new("another CA", now=now, days=1)
        identity = Identity("DefaultCluster", Role.ADMIN, level=AdminLevel.REPAIR)
        chain, key = other.issue(identity, now=now, days=1)
        for name, data in (("tls.crt", chain), ("tls.key", key), ("ca.crt", other.pem)):
            (Path(folder) / name).write_bytes(data)
        answer = operator.run_as(folder, "status")
        operator.check("a certificate of another CA gets in", int(answer.code == 0), "times", "== 0", answer.note)


def _begin_closed(siege: _Siege) -> None:
    """Uninstalled and installed again as everybody begins: closed at once, and what was stored is there."""
    installation = siege.installation
    ends = {broker.pod: broker.end_offset for broker in installation.brokers()}
    left = installation.uninstall()
    siege.check("objects left by helm uninstall", len(left), "objects", "== 0", ", ".join(left))
    started = time.monotonic()
    installation.install()
    siege.figure("helm install --wait, closed", time.monotonic() - started, "s")
    installation.wait_healthy(brokers=len(ends))
    siege.check("pods not enforcing after a first install", len(siege.modes() - {"enforcing"}), "modes", "== 0")
    shorter = [broker.pod for broker in installation.brokers() if broker.end_offset < ends.get(broker.pod, 0)]
    siege.check("logs shorter than before", len(shorter), "logs", "== 0", ", ".join(shorter))
    with siege.load("after", "after a closed install", refusals=True):
        time.sleep(15)
