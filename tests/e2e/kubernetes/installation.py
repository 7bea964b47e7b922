"""One `helm install` in a namespace of its own: what it runs, how it is, what it leaves behind."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.kubernetes.cluster import ROOT, Cluster, CommandFailed, NotInTime, until

CHART: Final = ROOT / "charts" / "tandemmq"
PRESETS: Final = ROOT / "deploy" / "helm"
# What differs from the preset on a test cluster: small files, images that are already on the nodes.
OVERLAY: Final = Path(__file__).parent / "values.yaml"
RELEASE: Final = "mq"
INSTALL_LIMIT_S: Final = 420.0
# Two groups, each: the slave stops, starts and catches up, then the master drains, stops, starts.
UPGRADE_LIMIT_S: Final = 900.0
UNINSTALL_LIMIT_S: Final = 300.0
HEALTHY_LIMIT_S: Final = 300.0
STATUS_LIMIT_S: Final = 20.0
STORE: Final = "/var/lib/tandemmq/store"
# An older copy of a store, made with the log last: a snapshot knows of no record that it lacks. And what puts it back.
_STORE_COPY: Final = f"{STORE}-copy"
_COPY: Final = f"""mkdir {_STORE_COPY} && cd {STORE} && for each in *; do
    [ $each = commitlog ] || cp -a $each {_STORE_COPY}/ || exit 1
done && cp -a commitlog {_STORE_COPY}/"""
PUT_BACK: Final = f"rm -rf {STORE} && mv {_STORE_COPY} {STORE}"
HELPER: Final = "disk-helper"
# What a namespace has by itself, or what stays on purpose: volumes, and who was master of them.
_IGNORED_KINDS: Final = frozenset(
    (
        *("persistentvolumeclaims", "leases.coordination.k8s.io"),
        *("events", "events.events.k8s.io", "podmetrics", "pods.metrics.k8s.io", "endpoints"),
    )
)
_IGNORED_NAMES: Final = frozenset(("configmap/kube-root-ca.crt", "serviceaccount/default"))


@dataclass(frozen=True, slots=True)
class Broker:
    """One member of a broker group as the cluster's state shows it."""

    group: str
    broker_id: int
    min_offset: int
    end_offset: int
    pod: str


class Installation:
    """One release `mq` of the chart in one namespace, from one preset, and the values that were set on top."""

    def __init__(
        self,
        cluster: Cluster,
        preset: str,
        namespace: str,
        *,
        images: Mapping[str, str],
        values: Sequence[str] = (),
    ) -> None:
        self.cluster = cluster
        self.preset = preset
        self.namespace = namespace
        self._images = images
        self._more = list(values)

    @property
    def access_point(self) -> str:
        """What clients are given."""
        return f"{RELEASE}-broker.{self.namespace}.svc.cluster.local:8081"

    @property
    def has_slaves(self) -> bool:
        """True when the preset replicates."""
        return self.preset != "2m-noslave"

    def make_namespace(self) -> None:
        """An empty namespace; what an earlier run left in it is removed first, volumes included."""
        self.remove_namespace()
        self.cluster.kubectl("create", "namespace", self.namespace)

    def remove_namespace(self) -> None:
        """Everything of it, volumes included."""
        self.cluster.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--timeout=180s", limit_s=200)

    def install(self, *, wait: bool = True) -> None:
        """`helm install`; with `--wait` returns when all is Ready."""
        waiting = ("--wait", "--timeout", f"{INSTALL_LIMIT_S:.0f}s") if wait else ()
        self.cluster.helm("install", RELEASE, *self._arguments(), *waiting, limit_s=INSTALL_LIMIT_S + 20)

    def upgrade(self, *values: str) -> float:
        """`helm upgrade --wait` with more `key=value`s, which stay for later ones; returns seconds."""
        self._more += values
        started = time.monotonic()
        self.cluster.helm(
            *("upgrade", RELEASE, *self._arguments(), "--wait", "--timeout", f"{UPGRADE_LIMIT_S:.0f}s"),
            limit_s=UPGRADE_LIMIT_S + 20,
        )
        return time.monotonic() - started

    def test(self) -> None:
        """`helm test`. Raises CommandFailed with what the test said; its pod is gone only when it passed."""
        try:
            self.cluster.helm("test", RELEASE, "-n", self.namespace, "--timeout", "180s", limit_s=200)
        except CommandFailed as error:
            said = self.cluster.kubectl("logs", "-n", self.namespace, f"{RELEASE}-test", check=False)
            raise CommandFailed(f"{error}: {said[-2000:]}") from error

    def uninstall(self) -> list[str]:
        """`helm uninstall --wait`; returns what is left but the volumes' claims, as kind/name."""
        limit = f"{UNINSTALL_LIMIT_S:.0f}s"
        self.cluster.helm(
            "uninstall", RELEASE, "-n", self.namespace, "--wait", "--timeout", limit, limit_s=UNINSTALL_LIMIT_S + 20
        )
        left: list[str] = []

        def gone() -> str:
            # Pods end within their grace period after helm returned.
            left[:] = self.left_behind()
            return f"left: {', '.join(left)}" if left else ""

        try:
            until(gone, UNINSTALL_LIMIT_S, "nothing is left", pause_s=2)
        except NotInTime:
            return left
        return []

    def left_behind(self) -> list[str]:
        """All objects of the namespace, as kind/name, without claims, a namespace's own, and the test's client."""
        kinds = self.cluster.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
        wanted = ",".join(kind for kind in kinds if kind not in _IGNORED_KINDS)
        found = self.cluster.kubectl(
            *("get", wanted, "-n", self.namespace, "-l", "tandemmq.io/test-client!=yes", "-o", "name")
        )
        return sorted(set(found.split()) - _IGNORED_NAMES)

    def claims(self) -> dict[str, str]:
        """Volume of each claim of the namespace."""
        found = self.cluster.get("pvc", "-n", self.namespace)
        return {claim["metadata"]["name"]: claim["spec"].get("volumeName", "") for claim in found}

    def pods(self, component: str = "") -> list[dict[str, Any]]:
        """The release's pods; hooks' and tests' pods are not among them."""
        selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component"
        found = self.cluster.get("pods", "-n", self.namespace, "-l", selector + (f"={component}" if component else ""))
        kept = [pod for pod in found if pod["metadata"]["labels"]["app.kubernetes.io/component"] in _COMPONENTS]
        return sorted(kept, key=lambda pod: str(pod["metadata"]["name"]))

    def broker_identities(self) -> dict[str, str]:
        """Of each broker's pod by name what is another when it was made anew."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods("broker")}

    def pod(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cluster.kubectl("get", "pod", name, "-n", self.namespace, "-o", "json"))
        return found

    def in_pod(self, pod: str, *command: str, limit_s: float = 60.0, check: bool = True) -> str:
        """Runs a command in a pod of the release."""
        return self.cluster.kubectl("exec", "-n", self.namespace, pod, "--", *command, limit_s=limit_s, check=check)

    def copy_store(self, pod: str) -> None:
        """Of a broker that runs; `PUT_BACK` puts the copy in the store's place."""
        self.in_pod(pod, "sh", "-c", _COPY, limit_s=120)

    def on_volume(self, claim: str, command: str, image: str) -> None:
        """Runs a shell command in a pod that holds a broker's volume alone."""
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001},
            "containers": [
                {
                    "name": "helper",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sh", "-c", command],
                    "volumeMounts": [{"name": "store", "mountPath": STORE.rpartition("/")[0]}],
                }
            ],
            "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": claim}}],
        }
        metadata = {"name": HELPER, "namespace": self.namespace, "labels": {"tandemmq.io/test-client": "yes"}}
        pod = ("-n", self.namespace, f"pod/{HELPER}")
        self.cluster.apply([{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}])
        try:
            self.cluster.kubectl(
                "wait", "--for=jsonpath={.status.phase}=Succeeded", *pod, "--timeout=120s", limit_s=130
            )
        finally:
            self.cluster.kubectl("delete", *pod, "--force", "--grace-period=0", check=False)

    def tandemmq(self, *arguments: str, limit_s: float = 90.0, check: bool = True) -> str:
        """The command line in the admin's pod, as the chart's notes tell an operator to use it."""
        return self.in_pod(f"deploy/{RELEASE}-admin", "tandemmq", *arguments, limit_s=limit_s, check=check)

    def status(self) -> dict[str, Any]:
        """What `tandemmq status --json` prints, from the admin service, read after this call began.

        Through the API server: starting the command line each second would take the machine from what is measured.
        """
        path = f"/api/v1/namespaces/{self.namespace}/services/{RELEASE}-admin:8080/proxy/api/v1/cluster"
        asked = time.monotonic()
        while True:
            found: dict[str, Any] = json.loads(self.cluster.kubectl("get", "--raw", path, limit_s=15))
            waited_s = time.monotonic() - asked
            if found["age_ms"] < waited_s * 1_000:
                return found
            if waited_s > STATUS_LIMIT_S:
                raise CommandFailed(f"the admin service's reading is {found['age_ms']} ms old")
            time.sleep(0.1)

    def create_topic(self, topic: str, queues: int = 8) -> None:
        self.tandemmq("topic", "create", topic, "--queues", str(queues))

    def brokers(self) -> list[Broker]:
        """All brokers that answer, with the extent of their CommitLog."""
        return [
            Broker(
                group=known["broker_name"],
                broker_id=known["broker_id"],
                min_offset=known["status"]["min_offset"],
                end_offset=known["status"]["end_offset"],
                pod=known["metadata_endpoint"].partition(".")[0],
            )
            for known in self.status()["brokers"]
            if known["status"]
        ]

    def master(self, group: str) -> str:
        """Pod of the group's master, as the group's Lease has it."""
        found = self.cluster.kubectl("get", "lease", f"{RELEASE}-{group}", "-n", self.namespace, "-o", "json")
        broker_id = json.loads(found)["spec"]["holderIdentity"].rpartition("-")[2]
        return f"{RELEASE}-{group}-{'master' if broker_id == '0' else 'slave'}-{broker_id}"

    def wait_healthy(self, limit_s: float = HEALTHY_LIMIT_S, *, brokers: int = 0) -> float:
        """Waits until each pod is Ready and `tandemmq status` finds no problem; returns the seconds that took."""
        return until(lambda: self._missing(brokers), limit_s, f"{self.namespace} is healthy")

    def _missing(self, brokers: int) -> str:
        pods = self.pods()
        waiting = [pod["metadata"]["name"] for pod in pods if not _is_ready(pod)]
        if waiting or not pods:
            return f"not ready: {', '.join(waiting)}" if waiting else "no pods"
        status = self.status()
        if len(status["brokers"]) < brokers:
            return f"{len(status['brokers'])} of {brokers} brokers are registered"
        problems = [found for found in status["findings"] if found["severity"] == "problem"]
        return "; ".join(f"{found['subject']} {found['problem']}" for found in problems)

    def events(self) -> str:
        """The namespace's last events, for a failure's text."""
        try:
            return self.cluster.kubectl("get", "events", "-n", self.namespace, "--sort-by=.lastTimestamp")[-3000:]
        except CommandFailed as error:
            return str(error)

    def arguments(self) -> Sequence[str]:
        """Chart and values as given to helm, for a rendering."""
        return self._arguments()

    def _arguments(self) -> list[str]:
        files = [str(PRESETS / f"{self.preset}.yaml"), str(OVERLAY)]
        arguments = [str(CHART), "-n", self.namespace]
        for file in files:
            arguments += ["-f", file]
        for key, value in self._images.items():
            arguments += ["--set-string", f"{key}={value}"]
        for value in self._more:
            arguments += ["--set-json" if "=[" in value or "={" in value else "--set", value]
        return arguments


_COMPONENTS: Final = ("nameserver", "broker", "admin")


def _is_ready(pod: Mapping[str, Any]) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(known["type"] == "Ready" and known["status"] == "True" for known in conditions)
