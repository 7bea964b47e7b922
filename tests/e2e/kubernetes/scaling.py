"""More broker groups and more slaves by a change of values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from e2e.kubernetes.client_pod import ClientPod
from e2e.kubernetes.cluster import say
from e2e.kubernetes.installation import Installation
from e2e.kubernetes.replicas import compare_replicas
from e2e.kubernetes.report import Report

__all__ = ["grow"]

TOPIC: Final = "scaled"
MESSAGES: Final = 600


def grow(installation: Installation, report: Report, client: ClientPod) -> None:
    """A third group, then a second slave of a group that has messages; both without a word to anybody else."""
    installation.create_topic(TOPIC)
    client.send("before", TOPIC, count=MESSAGES, limit_s=180)
    client.result("before", 200)
    say("scaling: a third broker group")
    seconds = installation.upgrade(_groups({"broker-a": 1, "broker-b": 1, "broker-c": 1}))
    report.figure("scaling: a third broker group by helm upgrade --wait", seconds, "s")
    installation.wait_healthy(brokers=6)
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


def _groups(slaves: Mapping[str, int]) -> str:
    """The value that names these groups with this many slaves each."""
    return "brokerGroups=" + json.dumps(
        [{"name": name, "slaves": count} for name, count in slaves.items()], separators=(",", ":")
    )
