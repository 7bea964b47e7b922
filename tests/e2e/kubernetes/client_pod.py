"""The official Python client in a pod: programs that run in its background and the records they keep."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.kubernetes.cluster import Cluster, CommandFailed, NotInTime, until

POD: Final = "official-client"
WORK: Final = "/work"
_PROGRAMS: Final = Path(__file__).parent / "client"
_READY_LIMIT_S: Final = 120.0
_TCP_RETRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One send that was acknowledged."""

    number: int
    message_id: str
    # Host the client sent to, as the route names it.
    host: str
    # Seconds since the epoch.
    at_s: float

    def is_of(self, group: str) -> bool:
        """The host is a pod of this broker group, or the Service that leads to its master."""
        return f"-{group}-" in f"{self.host.partition('.')[0]}-"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message a consumer was given."""

    number: int
    message_id: str
    attempt: int
    whole: bool
    # Seconds since the epoch.
    at_s: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was acknowledged against what was received, by message id."""

    acknowledged: int
    received: int
    # Acknowledged and never received: the number that has to be 0.
    lost: int
    # Received with a body whose checksum is wrong.
    broken: int
    # Deliveries of a message id above the first: copies that the client's own retries of a send have made, and...
    repeated: int
    # ...deliveries whose attempt is not the first, because an acknowledgement did not come in time.
    redelivered: int


class ClientPod:
    """A pod with the official client, on a node that no fault touches.

    `outside`: in the node's network instead of the pods', as a client that is not in the cluster.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        image: str,
        access_point: str,
        *,
        node: str = "node0",
        outside: bool = False,
    ) -> None:
        self.image = image
        self._cluster = cluster
        self._namespace = namespace
        self._access_point = access_point
        self._node = node
        self._outside = outside

    def start(self) -> None:
        """Returns when the pod runs."""
        labels = {"tandemmq.io/test-client": "yes"}
        metadata = {"namespace": self._namespace, "labels": labels}
        programs = {path.name: path.read_text(encoding="utf-8") for path in sorted(_PROGRAMS.glob("*.py"))}
        container = {
            "name": "client",
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sleep", "86400"],
            "env": [{"name": "HOME", "value": WORK}],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [
                {"name": "programs", "mountPath": "/programs", "readOnly": True},
                {"name": "work", "mountPath": WORK},
            ],
        }
        volumes = [{"name": "programs", "configMap": {"name": POD}}, {"name": "work", "emptyDir": {}}]
        spec = {
            "nodeName": self._node,
            "hostNetwork": self._outside,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            # What a namespace that enforces `restricted` asks for.
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "runAsGroup": 10001,
                "fsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": volumes,
        }
        self._cluster.apply(
            [
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": POD, **metadata}, "data": programs},
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, **metadata}, "spec": spec},
            ]
        )
        self._cluster.kubectl(
            *("wait", "-n", self._namespace, "--for=condition=Ready", f"pod/{POD}"),
            *(f"--timeout={_READY_LIMIT_S:.0f}s",),
            limit_s=_READY_LIMIT_S + 10,
        )

    def leave_silent_nodes(self) -> None:
        """As docs/operations/failover.md advises: the kernel ends a connection to a node that has fallen silent."""
        pod = json.loads(self._cluster.kubectl("get", "pod", "-n", self._namespace, POD, "-o", "json"))
        self._cluster.set_network(self._cluster.process_of(pod), "net.ipv4.tcp_retries2", _TCP_RETRIES)

    def send(self, name: str, topic: str, *, count: int = 0, rate: float = 0.0, limit_s: float = 600.0) -> None:
        """Starts a sender in the background. `count` 0: until `stop`."""
        self._begin(
            name,
            *("send.py", "--endpoints", self._access_point, "--topic", topic, "--record", f"{WORK}/{name}.tsv"),
            *("--count", str(count), "--rate", str(rate), "--limit-s", str(limit_s), "--stop", f"{WORK}/{name}.stop"),
        )

    def receive(self, name: str, topic: str, *, awaited: tuple[str, ...], group: str, limit_s: float = 240.0) -> None:
        """Starts a receiver of what these senders had acknowledged; it ends after `stop`, when all has come."""
        records = [part for sender in awaited for part in ("--awaited", f"{WORK}/{sender}.tsv")]
        self._begin(
            name,
            *("receive.py", "--endpoints", self._access_point, "--topic", topic, "--group", group, *records),
            *("--record", f"{WORK}/{name}.tsv", "--until", f"{WORK}/{name}.stop", "--limit-s", str(limit_s)),
        )

    def stop(self, name: str) -> None:
        """Tells a program to come to its end."""
        self._exec("touch", f"{WORK}/{name}.stop")

    def has_ended(self, name: str) -> bool:
        """Whether a program has come to its end."""
        # Asked while faults are played: an API server that is busy with them takes its time.
        return bool(self._exec("sh", "-c", f"cat {WORK}/{name}.code 2>/dev/null || true", limit_s=120).strip())

    def result(self, name: str, limit_s: float) -> dict[str, Any]:
        """Waits for a program's end; returns the JSON object it printed. Raises NotInTime and CommandFailed."""

        try:
            until(lambda: "" if self.has_ended(name) else "it runs", limit_s, f"the client's {name} ends", pause_s=1)
        except NotInTime as error:
            raise NotInTime(f"{error}\n{self.errors(name)}") from None
        printed = self._exec("cat", f"{WORK}/{name}.out").strip()
        if not printed:
            raise CommandFailed(f"the client's {name} printed nothing: {self.errors(name)}")
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return found

    def python(self, program: str, *arguments: str, limit_s: float = 60.0) -> str:
        """What a short program prints that runs in the pod until it ends."""
        return self._exec("python3", "-c", program, *arguments, limit_s=limit_s)

    def run(self, program: str, *arguments: str, limit_s: float = 60.0) -> str:
        """What one of the pod's programs prints that runs until it ends."""
        return self._exec("python3", f"/programs/{program}", *arguments, limit_s=limit_s)

    def errors(self, name: str) -> str:
        """The end of what a program wrote to standard error."""
        return self._exec("sh", "-c", f"tail -c 2000 {WORK}/{name}.err 2>/dev/null || true")

    def count(self, name: str) -> int:
        """Lines of a record so far."""
        return int(self._exec("sh", "-c", f"cat {WORK}/{name}.tsv 2>/dev/null | wc -l"))

    def acknowledged(self, name: str) -> list[Acknowledged]:
        """A sender's record, in the order of acknowledgement."""
        return _acknowledged(self._exec("cat", f"{WORK}/{name}.tsv", limit_s=120))

    def last_acknowledged(self, name: str) -> list[Acknowledged]:
        """The end of a sender's record: some seconds under the load used here."""
        return _acknowledged(self._exec("tail", "-n", "100", f"{WORK}/{name}.tsv"))

    def deliveries(self, name: str) -> list[Delivery]:
        """A receiver's record."""
        return [
            Delivery(int(number), message_id, int(attempt), whole == "1", float(at_s))
            for number, message_id, attempt, whole, at_s in _lines(self._exec("cat", f"{WORK}/{name}.tsv", limit_s=120))
        ]

    def compare(self, senders: tuple[str, ...], receiver: str) -> Comparison:
        """Whether each acknowledged message was received, whole."""
        acknowledged = {sent.message_id for name in senders for sent in self.acknowledged(name)}
        deliveries = self.deliveries(receiver)
        received = {delivery.message_id for delivery in deliveries}
        return Comparison(
            acknowledged=len(acknowledged),
            received=len(received & acknowledged),
            lost=len(acknowledged - received),
            broken=sum(not delivery.whole for delivery in deliveries),
            repeated=len(deliveries) - len(received),
            redelivered=sum(delivery.attempt > 1 for delivery in deliveries),
        )

    def _begin(self, name: str, program: str, *arguments: str) -> None:
        words = " ".join(arguments)
        # Detached: a broken connection of kubectl must not end the program.
        line = (
            f"rm -f {WORK}/{name}.*; cd {WORK}; nohup sh -c 'python3 -u /programs/{program} {words} "
            f">{WORK}/{name}.out 2>{WORK}/{name}.err; echo $? >{WORK}/{name}.code' >/dev/null 2>&1 </dev/null &"
        )
        self._exec("sh", "-c", line)

    def _exec(self, *command: str, limit_s: float = 30.0) -> str:
        return self._cluster.kubectl("exec", "-n", self._namespace, POD, "--", *command, limit_s=limit_s)


def _acknowledged(text: str) -> list[Acknowledged]:
    return [Acknowledged(int(number), message_id, host, float(at_s)) for number, message_id, host, at_s in _lines(text)]


def _lines(text: str) -> list[list[str]]:
    # The last line may be under way.
    return [line.split("\t") for line in text[: text.rfind("\n") + 1].splitlines()]
