"""Clients outside the cluster: a listener and a node port for each broker, and routes that name no pod."""

from __future__ import annotations

from typing import Final

from e2e.kubernetes.client_pod import ClientPod
from e2e.kubernetes.cluster import Cluster
from e2e.kubernetes.installation import Installation
from e2e.kubernetes.report import Report

VALUES: Final = ("externalAccess.enabled=true",)
TOPIC: Final = "outside"
MESSAGES: Final = 1_000
# The chart's default: this number + 10 times the group's place + the broker's id.
NODE_PORT: Final = 31_000


def reach_from_outside(installation: Installation, report: Report, client_image: str) -> None:
    """A client in a node's own network, with no DNS of the cluster, sends to both masters and receives."""
    cluster: Cluster = installation.cluster
    installation.make_namespace()
    installation.install()
    installation.wait_healthy()
    installation.create_topic(TOPIC)
    addresses = {
        pod["status"]["hostIP"] for pod in installation.pods("broker") if pod["metadata"]["name"].endswith("-master-0")
    }
    first = installation.pod("mq-broker-a-master-0")["status"]["hostIP"]
    access_point = f"{first}:{NODE_PORT}"
    client = ClientPod(cluster, installation.namespace, client_image, access_point, outside=True)
    client.start()
    client.receive("received", TOPIC, awaited=("sent",), group="outside", limit_s=120)
    client.send("sent", TOPIC, count=MESSAGES, limit_s=120)
    client.result("sent", 150)
    client.stop("received")
    client.result("received", 200)
    compared = client.compare(("sent",), "received")
    report.check("external access: messages received outside", compared.received, "messages", f"== {MESSAGES}")
    hosts = {sent.host for sent in client.acknowledged("sent")}
    report.check(
        "external access: addresses of nodes in the routes", len(hosts & addresses), "hosts", f"== {len(addresses)}"
    )
    report.check(
        "external access: other addresses in the routes",
        len(hosts - addresses),
        "hosts",
        "== 0",
        ", ".join(sorted(hosts - addresses)),
    )
    installation.remove_namespace()
