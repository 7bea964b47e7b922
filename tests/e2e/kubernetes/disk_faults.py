"""Disks that are gone, rolled back or late: what a group acknowledged, knows and owes its consumers stays.

All faults hit the group broker-a, one after the other. A consumer group has read what was sent before the first, under
the product's own `consumeFromEarliest`, and reads nothing while a fault is played: what is sent then is its backlog.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from e2e.kubernetes.client_pod import ClientPod
from e2e.kubernetes.cluster import CommandFailed, NotInTime, say, until
from e2e.kubernetes.faults import Fault, felt
from e2e.kubernetes.installation import PUT_BACK, RELEASE, STORE, Installation
from e2e.kubernetes.replicas import compare_replicas
from e2e.kubernetes.report import Report

DISK_FAULTS: Final = ("claim", "slave-late", "nameservers-late", "copy", "both")
# A group that is not known begins at the newest message, as the presets have it: a forgotten one loses its backlog. And
# nobody takes over: what a master does that comes back without its disk is the question here.
VALUES: Final = ("brokers.settings.consumeFromEarliest=false", "failover.enabled=false")
TOPIC, OTHER_TOPIC = "disks", "disks-other"
GROUP: Final = "disk-readers"
HIT: Final = "broker-a"
MASTER, SLAVE = f"{RELEASE}-{HIT}-master-0", f"{RELEASE}-{HIT}-slave-1"
NAME_SERVERS: Final = f"{RELEASE}-nameserver"
RATE: Final = 60.0
MESSAGES: Final = 300
# Who is late comes so much later than the empty disk: longer than any start.
LATE_S: Final = 20.0
LIMIT_S: Final = 300.0
SEND_LIMIT_S: Final = 900.0
RECEIVE_LIMIT_S: Final = 300.0

# Runs in a broker's pod: ids of all messages in the CommitLog whose record is whole.
_IDS: Final = """
import pathlib, sys
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import RecordFound, scan_record
for path in sorted(path for path in pathlib.Path(sys.argv[1], "commitlog").iterdir() if path.name.isdigit()):
    data, position = path.read_bytes(), 0
    first = int(path.name)
    while isinstance(
        found := scan_record(data, position, len(data), physical_offset=first + position), RecordFound
    ):
        print(decode_properties(bytes(found.properties)).get("UNIQ_KEY", ""))
        position += found.size
"""


@dataclass(frozen=True, slots=True)
class Tables:
    """What the cluster says of topics and groups."""

    topics: frozenset[str]
    groups: frozenset[str]
    # By topic, broker group and queue.
    offsets: dict[tuple[str, str, int], int]


def lose_disks(installation: Installation, report: Report, client: ClientPod, *, kinds: Sequence[str]) -> None:
    """All faults; after each, every message, topic, group and offset is looked for."""
    _Disks(installation, report, client).play(kinds)


class _Disks:
    def __init__(self, installation: Installation, report: Report, client: ClientPod) -> None:
        self._installation = installation
        self._cluster = installation.cluster
        self._report = report
        self._client = client
        self._is_sync = installation.preset == "2m-2s-sync"
        self._sent: list[str] = []
        self._load = ""

    def play(self, kinds: Sequence[str]) -> None:
        """From a healthy cluster to a healthy cluster each time."""
        self._begin()
        faults: dict[str, tuple[str, Callable[[], None]]] = {
            "claim": ("volume and pod of a master deleted", self._lose_claim),
            "slave-late": (f"the same, its slave {LATE_S:.0f} s late", self._slave_late),
            "nameservers-late": (f"the same, all NameServers {LATE_S:.0f} s late", self._name_servers_late),
            "copy": ("a master's volume put back from an older copy", self._put_back),
            "both": ("both members' pods deleted at once", self._delete_both),
        }
        for kind in kinds:
            name, act = faults[kind]
            try:
                self._play(f"{self._installation.preset}: {name}", act)
            except (CommandFailed, NotInTime, subprocess.TimeoutExpired) as error:
                said = self._cluster.kubectl("logs", "-n", self._installation.namespace, MASTER, check=False)
                self._report.failure(
                    f"disks: {self._installation.preset}: {kind}",
                    f"{error}\n{said[-1500:]}\n{self._installation.events()[-1500:]}",
                )
                return  # The next fault would be played on what this one has left.

    def _begin(self) -> None:
        """Topics, and a consumer group that has its place and has read something."""
        installation, client = self._installation, self._client
        installation.create_topic(TOPIC)
        installation.tandemmq("topic", "create", OTHER_TOPIC, "--queues", "3", "--type", "FIFO")
        installation.tandemmq("group", "create", GROUP)
        client.receive("place", TOPIC, awaited=("first",), group=GROUP, limit_s=RECEIVE_LIMIT_S)

        def has_place() -> str:
            brokers = {broker for _, broker, _ in self._tables().offsets}
            return "" if brokers == {"broker-a", "broker-b"} else f"has its place on {brokers}"

        until(has_place, 90, "the group has its place on every master", pause_s=2)
        client.send("first", TOPIC, count=MESSAGES, limit_s=180)
        client.result("first", 200)
        client.stop("place")
        client.result("place", RECEIVE_LIMIT_S + 30)
        self._sent.append("first")
        # Progress goes to the file and to the slaves within flushConsumerOffsetInterval.
        before = sum(self._tables().offsets.values())
        self._report.check("disks: acknowledged by the group before the first fault", before, "messages", "== 300")
        time.sleep(8)

    def _play(self, name: str, act: Callable[[], None]) -> None:
        say(f"fault: {name}")
        installation, client = self._installation, self._client
        before = self._tables()
        self._load = f"load-{len(self._sent)}"
        client.send(self._load, TOPIC, rate=RATE, limit_s=SEND_LIMIT_S)
        self._sent.append(self._load)
        self._until_sent(MESSAGES)
        began = time.time()
        act()
        ended = time.time()
        installation.wait_healthy(LIMIT_S, brokers=4)
        healthy = time.time()
        if not client.has_ended(self._load):
            self._until_sent(client.count(self._load) + 100)
        self._end_sends()
        self._judge(Fault(name, (HIT,), began, ended, healthy, time.time()), before)

    def _judge(self, fault: Fault, before: Tables) -> None:
        client, report, load = self._client, self._report, self._load
        got = f"got-{load}"
        client.receive(got, TOPIC, awaited=(load,), group=GROUP, limit_s=RECEIVE_LIMIT_S)
        client.stop(got)
        client.result(got, RECEIVE_LIMIT_S + 60)
        compared = client.compare((load,), got)
        acknowledged = {sent.message_id for sender in self._sent for sent in client.acknowledged(sender)}
        masters, slaves = self._logged("master"), self._logged("slave")
        after = self._tables()
        missing = len(acknowledged - masters)
        report.check(f"disks: {fault.name}: acknowledged around it", compared.acknowledged, "messages", ">= 300")
        report.check(f"disks: {fault.name}: of all acknowledged not in a master's log", missing, "messages", "== 0")
        report.check(f"disks: {fault.name}: nor in a slave's", len(acknowledged - slaves), "messages", "== 0")
        report.check(f"disks: {fault.name}: of the backlog never delivered", compared.lost, "messages", "== 0")
        report.check(f"disks: {fault.name}: bodies broken", compared.broken, "messages", "== 0")
        lost = _lost(before, after)
        report.check(f"disks: {fault.name}: topics, groups, offsets lost", len(lost), "names", "== 0", str(lost))
        logs = compare_replicas(self._installation)
        report.check(
            f"disks: {fault.name}: CommitLogs that differ",
            len(logs.differences),
            "groups",
            "== 0",
            str(logs.differences),
        )
        sends = sorted(client.acknowledged(load), key=lambda each: each.at_s)
        report.add_fault(replace(felt(fault, sends), lost=max(missing, compared.lost)))

    # Faults

    def _lose_claim(self) -> None:
        self._rest()
        claim, volume, identity = self._claim(), self._volume(), self._identity(MASTER)
        self._kubectl("delete", "pvc", claim, "--wait=false")
        # As if its node were gone: no orderly stop.
        self._kubectl("delete", "pod", MASTER, "--force", "--grace-period=0", "--wait=false")

        def replaced() -> str:
            if self._identity(MASTER) in ("", identity):
                return "the old pod is there"
            if self._volume() in ("", volume):
                return "the old volume is there"
            return "" if self._installation.pod(MASTER)["spec"].get("nodeName") else "it is on no node yet"

        until(replaced, LIMIT_S, f"{MASTER} has a new volume")

    def _slave_late(self) -> None:
        # Nothing more is sent: a SYNC_MASTER without its slave goes on writing what it does not acknowledge, and a
        # group of which only the lost disk knew that waits for an operator's word.
        self._end_sends()
        compare_replicas(self._installation)
        slaves = f"{RELEASE}-{HIT}-slave"
        node = str(self._installation.pod(SLAVE)["spec"]["nodeName"])
        self._scale(slaves, 0, gone=[SLAVE])
        # The volumes here belong to nodes: a new master in the slave's place would keep it away.
        self._cluster.kubectl("cordon", node)
        try:
            self._lose_claim()
        finally:
            self._cluster.kubectl("uncordon", node)
        time.sleep(LATE_S)
        self._scale(slaves, 1)

    def _name_servers_late(self) -> None:
        self._rest()
        names = [pod["metadata"]["name"] for pod in self._installation.pods("nameserver")]
        self._scale(NAME_SERVERS, 0, gone=names)
        self._lose_claim()
        time.sleep(LATE_S)
        self._scale(NAME_SERVERS, len(names))

    def _put_back(self) -> None:
        """A copy of the running master's volume, half a thousand messages later put in its place."""
        self._installation.copy_store(MASTER)
        self._until_sent(self._client.count(self._load) + MESSAGES)
        self._rest()
        masters = f"{RELEASE}-{HIT}-master"
        self._scale(masters, 0, gone=[MASTER])
        self._installation.on_volume(self._claim(), PUT_BACK, self._client.image)
        self._scale(masters, 1)

    def _delete_both(self) -> None:
        identities = {name: self._identity(name) for name in (MASTER, SLAVE)}
        self._kubectl("delete", "pod", MASTER, SLAVE, "--force", "--grace-period=0", "--wait=false")

        def replaced() -> str:
            old = [name for name, identity in identities.items() if self._identity(name) in ("", identity)]
            return f"still there: {', '.join(old)}" if old else ""

        until(replaced, LIMIT_S, "both pods are new")

    # Steps of faults

    def _until_sent(self, count: int) -> None:
        until(lambda: "" if self._client.count(self._load) >= count else "not yet", 120, "the producer goes on")

    def _rest(self) -> None:
        """Ends the sends before a fault of an ASYNC_MASTER, whose slaves are then to hold everything."""
        if not self._is_sync:
            self._end_sends()
            compare_replicas(self._installation)

    def _end_sends(self) -> None:
        if not self._client.has_ended(self._load):
            self._client.stop(self._load)
            self._client.result(self._load, 240)

    def _scale(self, name: str, replicas: int, *, gone: Sequence[str] = ()) -> None:
        self._kubectl("scale", "statefulset", name, f"--replicas={replicas}")
        for pod in gone:
            until(partial(self._still_there, pod), LIMIT_S, f"{pod} is gone")

    def _still_there(self, pod: str) -> str:
        return f"{pod} is there" if self._identity(pod) else ""

    # What is the case

    def _tables(self) -> Tables:
        tandemmq = self._installation.tandemmq
        topics = json.loads(tandemmq("topic", "list", "-o", "json"))["items"]
        groups = json.loads(tandemmq("group", "list", "-o", "json"))["items"]
        progress = json.loads(tandemmq("group", "list", "--group", GROUP, "-o", "json", check=False) or "[]")
        return Tables(
            topics=frozenset(topic["name"] for topic in topics),
            groups=frozenset(group["name"] for group in groups),
            offsets={(row["topic"], row["broker_name"], row["queue_id"]): row["committed_offset"] for row in progress},
        )

    def _logged(self, role: str) -> set[str]:
        pods = [
            pod
            for pod in self._installation.pods("broker")
            if pod["metadata"]["labels"]["tandemmq.io/home-role"] == role
        ]
        names = [pod["metadata"]["name"] for pod in pods]
        return {
            line
            for name in names
            for line in self._installation.in_pod(name, "python3", "-c", _IDS, STORE, limit_s=120).split()
        }

    def _claim(self) -> str:
        [claim] = [name for name in self._installation.claims() if name.endswith(MASTER)]
        return claim

    def _volume(self) -> str:
        return next((volume for name, volume in self._installation.claims().items() if name.endswith(MASTER)), "")

    def _identity(self, pod: str) -> str:
        found = self._cluster.kubectl(
            *("get", "pod", pod, "-n", self._installation.namespace, "--ignore-not-found", "-o", "json")
        )
        return str(json.loads(found)["metadata"]["uid"]) if found.strip() else ""

    def _kubectl(self, *arguments: str, limit_s: float = 60.0, check: bool = True) -> str:
        return self._cluster.kubectl(*arguments, "-n", self._installation.namespace, limit_s=limit_s, check=check)


def _lost(before: Tables, after: Tables) -> list[str]:
    """What was there and is not, or is less."""
    return [
        *(f"topic {name}" for name in sorted(before.topics - after.topics)),
        *(f"group {name}" for name in sorted(before.groups - after.groups)),
        *(
            f"offset {key}: {after.offsets.get(key, 0)} < {offset}"
            for key, offset in before.offsets.items()
            if after.offsets.get(key, 0) < offset
        ),
    ]
