"""More broker groups, more slaves and bigger volumes by a change of values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from e2e.kubernetes.client_pod import ClientPod
from e2e.kubernetes.cluster import CommandFailed, say
from e2e.kubernetes.installation import Installation
from e2e.kubernetes.replicas import compare_replicas
from e2e.kubernetes.report import Report

TOPIC: Final = "scaled"
MESSAGES: Final = 600
# More than the 2 GiB of the overlay.
BIGGER: Final = "3Gi"
STORAGE_CLASS: Final = "local-path"
OTHER_GROUP: Final = "broker-c"
OTHER_CLASS: Final = "e2e-other"
_OTHER_CLASS_SPEC: Final = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "provisioner": "rancher.io/local-path",
    "volumeBindingMode": "WaitForFirstConsumer",
    "allowVolumeExpansion": True,
}


def grow(installation: Installation, report: Report, client: ClientPod) -> None:
    """A third group, a second slave of a group that has messages, bigger volumes; each leaves the others alone."""
    installation.create_topic(TOPIC)
    client.send("before", TOPIC, count=MESSAGES, limit_s=180)
    client.result("before", 200)
    say("scaling: a third broker group, on volumes of another storage class")
    installation.cluster.apply([{"metadata": {"name": OTHER_CLASS}, **_OTHER_CLASS_SPEC}])
    seconds = installation.upgrade(_groups({"broker-a": 1, "broker-b": 1, "broker-c": 1}))
    report.figure("scaling: a third broker group by helm upgrade --wait", seconds, "s")
    installation.wait_healthy(brokers=6)
    classes = {
        claim["metadata"]["name"]: claim["spec"]["storageClassName"]
        for claim in installation.cluster.get("pvc", "-n", installation.namespace)
    }
    others = {name for name, storage_class in classes.items() if storage_class == OTHER_CLASS}
    wanted = {name for name in classes if OTHER_GROUP in name}
    report.check(
        "scaling: claims of another class than their group's", len(others ^ wanted), "claims", "== 0", f"{classes}"
    )
    # Creating a topic again gives it queues on the group that was not there.
    installation.create_topic(TOPIC)
    client.send("after", TOPIC, count=MESSAGES, limit_s=180)
    client.result("after", 200)
    to_new = sum(each.is_of("broker-c") for each in client.acknowledged("after"))
    report.check("scaling: sends that the new group acknowledged", to_new, "messages", ">= 100")
    say("scaling: a second slave of broker-a")
    seconds = installation.upgrade(_groups({"broker-a": 2, "broker-b": 1, "broker-c": 1}))
    report.figure("scaling: a second slave by helm upgrade --wait", seconds, "s")
    caught_up = installation.wait_healthy(brokers=7)
    report.figure("scaling: the new slave in sync after that", caught_up, "s")
    _enlarge(installation, report)
    compared = compare_replicas(installation)
    report.check("scaling: members compared", compared.members, "members", "== 7")
    report.check(
        "scaling: CommitLogs that differ", len(compared.differences), "groups", "== 0", str(compared.differences)
    )
    client.receive("scaled-received", TOPIC, awaited=("before", "after"), group="scaled", limit_s=180)
    client.stop("scaled-received")
    client.result("scaled-received", 300)
    lost = client.compare(("before", "after"), "scaled-received").lost
    report.check("scaling: acknowledged and lost", lost, "messages", "== 0")


def _enlarge(installation: Installation, report: Report) -> None:
    """Bigger volumes as docs/operations/kubernetes.md says: claims first, then the sets anew around the running pods.

    The provisioner here makes folders and enlarges nothing: what is seen is that claims, sets and pods fit together.
    """
    cluster, namespace = installation.cluster, installation.namespace
    say(f"scaling: volumes of {BIGGER}")
    before = installation.broker_identities()
    cluster.kubectl("patch", "storageclass", STORAGE_CLASS, "-p", '{"allowVolumeExpansion":true}')
    request = json.dumps({"spec": {"resources": {"requests": {"storage": BIGGER}}}})
    for pod in before:
        cluster.kubectl("patch", "pvc", f"store-{pod}", "-n", namespace, "-p", request)
    try:
        installation.upgrade(f"brokers.persistence.size={BIGGER}")
        refused = ""
    except CommandFailed as error:
        refused = str(error)
    told = int("StatefulSet" in refused and "Forbidden" in refused)
    report.check("scaling: a size in the values alone is refused by Kubernetes", told, "times", "== 1", refused)
    for owner in sorted({pod.rpartition("-")[0] for pod in before}):
        cluster.kubectl("delete", "statefulset", owner, "-n", namespace, "--cascade=orphan")
    seconds = installation.upgrade()
    report.figure("scaling: sets with bigger volumes by helm upgrade --wait", seconds, "s")
    installation.wait_healthy(brokers=len(before))
    after = installation.broker_identities()
    anew = sorted(pod for pod, identity in before.items() if after.get(pod) != identity)
    report.check("scaling: brokers restarted by bigger volumes", len(anew), "pods", "== 0", ", ".join(anew))
    sets = cluster.get("statefulset", "-n", namespace, "-l", "app.kubernetes.io/component=broker")
    asked = [
        claim["spec"]["resources"]["requests"]["storage"]
        for each in sets
        for claim in each["spec"]["volumeClaimTemplates"]
    ]
    report.check(
        "scaling: sets that ask for bigger volumes", asked.count(BIGGER), "sets", f"== {len(sets)}", f"{asked}"
    )


def _groups(slaves: Mapping[str, int]) -> str:
    """The value that names these groups with this many slaves each, one with volumes of another class."""
    groups = [
        {
            "name": name,
            "slaves": count,
            **({"persistence": {"storageClass": OTHER_CLASS}} if name == OTHER_GROUP else {}),
        }
        for name, count in slaves.items()
    ]
    return "brokerGroups=" + json.dumps(groups, separators=(",", ":"))
