"""The real Kubernetes the tests run on: nodes that can lose their power, kubectl, helm, and what runs inside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[3]
# Beside a checkout; set KUBE_SCRIPTS and KUBE_HOME for other places.
SCRIPTS: Final = Path(os.environ.get("KUBE_SCRIPTS", ROOT.parent / "shared" / "kube")).absolute()
HOME: Final = Path(os.environ.get("KUBE_HOME", "/var/tmp/onebox-kube"))
# Holds etcd, the API server and the bridge that all nodes are plugged into.
CONTROL_NODE: Final = "node0"
_BRIDGE: Final = "brn"
# The first time everything is compiled.
UP_LIMIT_S: Final = 3_600.0
NODE_LIMIT_S: Final = 180.0
COMMAND_LIMIT_S: Final = 60.0
_SHOWN_CHARACTERS: Final = 2_000


class CommandFailed(Exception):
    """A command ended with another exit code than 0; the text holds the end of what it said."""


class NotInTime(Exception):
    """A condition did not come true within its limit; the text says which and what was seen last."""


def say(text: str) -> None:
    """A line of progress, with the time of day."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def until(condition: Callable[[], str], limit_s: float, what: str, *, pause_s: float = 0.5) -> float:
    """Waits until `condition` returns an empty text (it says what is missing); returns the seconds that took.

    A command that fails meanwhile counts as missing. Raises NotInTime.
    """
    started = time.monotonic()
    told = started
    while True:
        try:
            missing = condition()
        except (CommandFailed, json.JSONDecodeError, subprocess.TimeoutExpired) as error:
            missing = str(error)[:300]
        now = time.monotonic()
        if not missing:
            return now - started
        if now - started > limit_s:
            raise NotInTime(f"not within {limit_s:.0f} s: {what}; last: {missing}")
        if now - told > 15:
            told = now
            say(f"  waiting {now - started:.0f} s for {what}: {missing}")
        time.sleep(pause_s)


@dataclass(frozen=True, slots=True)
class Process:
    """The first process of a container, as its node counts."""

    node: str
    pid: int


class Cluster:
    """One cluster of `SCRIPTS`, by its kubeconfig. Nothing here waits without a limit."""

    def __init__(self, home: Path = HOME, scripts: Path = SCRIPTS) -> None:
        self._home = home
        self._scripts = scripts
        self.environment = {**os.environ, "KUBECONFIG": str(home / "kubeconfig"), "KUBE_HOME": str(home)}
        self.environment["PATH"] = f"{home / 'bin'}:{os.environ.get('PATH', '')}"

    def up(self, workers: int) -> None:
        """Starts node0 and this many others; what is there already stays."""
        if not (self._scripts / "up.sh").exists():
            raise SystemExit(f"no cluster scripts in {self._scripts}; set KUBE_SCRIPTS to the folder with up.sh")
        say(f"the cluster is brought up by {self._scripts} (the first time 10 to 25 minutes)")
        # Its own lines are the progress of half an hour.
        subprocess.run([str(self._scripts / "up.sh")], env=self.environment, timeout=UP_LIMIT_S, check=True)
        for number in range(1, workers + 1):
            self.power_on(f"node{number}")
        self.run(str(self._scripts / "tools.sh"), "helm", limit_s=UP_LIMIT_S)
        # DNS and the volumes' provisioner stay out of the faults: what they survive is not our product.
        patch = json.dumps({"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "node0"}}}}})
        for namespace, name in (("kube-system", "coredns"), ("local-path-storage", "local-path-provisioner")):
            self.kubectl("-n", namespace, "patch", "deployment", name, "-p", patch)
            self.kubectl("-n", namespace, "rollout", "status", "deployment", name, "--timeout=120s", limit_s=130)
        say(f"nodes: {', '.join(self.ready_nodes())}")

    def tool(self, name: str) -> Path | None:
        """One more tool of the scripts, or None when it cannot be had."""
        self.run(str(self._scripts / "tools.sh"), name, limit_s=UP_LIMIT_S, check=False)
        found = self._home / "bin" / name
        return found if found.exists() else None

    def power_off(self, node: str) -> None:
        """Pulls the plug: everything on the node is gone at once, and nobody is told."""
        self.run(str(self._scripts / "down.sh"), node, limit_s=NODE_LIMIT_S)

    def power_on(self, node: str) -> None:
        """Starts a node, with the disks it had; returns when Kubernetes calls it Ready."""
        self.run(str(self._scripts / "add-node.sh"), node.removeprefix("node"), limit_s=NODE_LIMIT_S)

    def cut_off(self, node: str) -> None:
        """Takes a worker's cable out: it runs on and reaches nobody, the API server included."""
        self._on_node(CONTROL_NODE, "ip", "link", "set", _port_of(node), "nomaster")

    def connect(self, node: str) -> None:
        """Puts the cable back."""
        self._on_node(CONTROL_NODE, "ip", "link", "set", _port_of(node), "master", _BRIDGE)

    @contextmanager
    def without_api_server(self) -> Iterator[None]:
        """The API server hangs inside: it takes connections and never answers, which is worse than one that is gone."""
        servers = self._on_node(CONTROL_NODE, "pgrep", "-x", "kube-apiserver").split()
        self._on_node(CONTROL_NODE, "kill", "-STOP", *servers)
        try:
            yield
        finally:
            self._on_node(CONTROL_NODE, "kill", "-CONT", *servers)
        until(self._answers, NODE_LIMIT_S, "the API server answers")

    def ready_nodes(self) -> list[str]:
        """Names of the nodes that are Ready and take pods."""
        return sorted(
            node["metadata"]["name"]
            for node in self.get("nodes")
            if any(known["type"] == "Ready" and known["status"] == "True" for known in node["status"]["conditions"])
            and not node["spec"].get("unschedulable")
        )

    def images(self) -> list[str]:
        """Images that every running node holds."""
        held = []
        for node in self._running_nodes():
            socket = self._node_folder(node) / "containerd.sock"
            held.append(
                set(self._on_node(node, "ctr", "-a", str(socket), "-n", "k8s.io", "images", "ls", "-q").split())
            )
        return sorted(set.intersection(*held)) if held else []

    def schemas(self) -> Path:
        """A folder of JSON schemas for kubeconform, from what this API server serves."""
        folder = ROOT / "build" / "kube-schemas"
        if not folder.exists():
            swagger = ROOT / "build" / "swagger.json"
            swagger.write_text(self.kubectl("get", "--raw", "/openapi/v2"))
            self.run(sys.executable, str(self._scripts / "schemas.py"), str(swagger), str(folder))
        return folder

    def kubectl(self, *arguments: str, limit_s: float = COMMAND_LIMIT_S, check: bool = True, stdin: str = "") -> str:
        """Standard output of kubectl. Raises CommandFailed when `check`."""
        return self.run("kubectl", *arguments, limit_s=limit_s, check=check, stdin=stdin)

    def helm(self, *arguments: str, limit_s: float = COMMAND_LIMIT_S) -> str:
        """Standard output of helm."""
        return self.run("helm", *arguments, limit_s=limit_s)

    def get(self, *arguments: str) -> list[dict[str, Any]]:
        """The objects `kubectl get` lists."""
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", *arguments, "-o", "json"))["items"]
        return items

    def apply(self, objects: Iterable[dict[str, Any]]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def kill(self, process: Process, signal: str = "-9") -> None:
        """Sends a signal to a container's first process, from its node: from inside, the kernel would ignore it."""
        self._on_node(process.node, "kill", signal, str(process.pid))

    def set_network(self, process: Process, setting: str, value: int) -> None:
        """A setting of the kernel for a pod's network, such as `net.ipv4.tcp_retries2`."""
        pid = str(process.pid)
        self._on_node(process.node, "nsenter", "--target", pid, "--net", "sysctl", "--write", f"{setting}={value}")

    def process_of(self, pod: dict[str, Any]) -> Process:
        """The first process of a pod's first container."""
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        node = pod["spec"]["nodeName"]
        socket = self._node_folder(node) / "containerd.sock"
        table = self._on_node(node, "ctr", "-a", str(socket), "-n", "k8s.io", "tasks", "ls")
        for line in table.splitlines():
            words = line.split()
            if words and words[0] == container:
                return Process(node, int(words[1]))
        raise CommandFailed(f"{pod['metadata']['name']}: its container does not run on {node}")

    def run(
        self, *command: str, limit_s: float = COMMAND_LIMIT_S, check: bool = True, stdin: str = "", folder: Path = ROOT
    ) -> str:
        """Standard output of a command in the cluster's environment."""
        done = subprocess.run(
            command,
            cwd=folder,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        if check and done.returncode != 0:
            shown = (done.stderr or done.stdout).strip()[-_SHOWN_CHARACTERS:]
            raise CommandFailed(f"`{_short(command)}` ended with {done.returncode}: {shown}")
        return done.stdout

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """A command that goes on in the background; whoever started it ends it."""
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _answers(self) -> str:
        return "" if self.kubectl("get", "--raw", "/readyz", limit_s=10) == "ok" else "not ready"

    def _running_nodes(self) -> list[str]:
        return [CONTROL_NODE, *(path.parent.name for path in sorted((self._home / "run").glob("node[1-9]/node.pid")))]

    def _node_folder(self, node: str) -> Path:
        return self._home / "run" if node == CONTROL_NODE else self._home / "run" / node

    def _on_node(self, node: str, *command: str) -> str:
        enter = shutil.which("nsenter") or "/usr/bin/nsenter"
        pid = (self._node_folder(node) / "node.pid").read_text().strip()
        return self.run(enter, "-t", pid, "-m", "-n", "-p", "-C", *command)


def _port_of(node: str) -> str:
    """The bridge's port of a worker, as add-node.sh names it."""
    return f"w{node.removeprefix('node')}"


def _short(command: Sequence[str]) -> str:
    return " ".join(command)[:200]
