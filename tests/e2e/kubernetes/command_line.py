"""The command line outside of the cluster, with a context of the release: every way to a pod is the API server's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.kubernetes.client_pod import ClientPod
from e2e.kubernetes.cluster import ROOT, CommandFailed
from e2e.kubernetes.installation import RELEASE, Installation
from e2e.kubernetes.report import Report

TOPIC: Final = "by-command-line"
QUEUES: Final = 4
SETTING: Final = "fileReservedTime"
VALUE: Final = "55"
LIMIT_S: Final = 60.0
TAIL_LIMIT_S: Final = 90.0
# Refused before anything was done.
REFUSED: Final = 2
_FOLDER: Final = ROOT / "build" / "e2e-kube-contexts"
# The disk is the machine's, and full as it may be.
_CHECKS: Final = (
    ("health",),
    ("nameservers",),
    ("replication",),
    ("lag",),
    ("disk", "--warning", "99", "--critical", "100"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    output: str
    errors: str

    @property
    def note(self) -> str:
        """All of it, for a row that does not hold."""
        return f"{self.code}: {self.output}\n{self.errors}"[-2_000:]


def use_command_line(installation: Installation, report: Report, client: ClientPod, *, topic: str) -> None:
    """Rows for what it reads, compared with kubectl, brokers and the official client, and for what it changes."""
    operator = Operator(installation, report, installation.preset)
    operator.add_context()
    _read(operator, client, topic)
    _follow(operator, topic)
    _watch(operator)
    _change_topic(operator)
    _change_setting(operator)


class Operator:
    """Somebody outside of the cluster, with a kubeconfig and contexts of their own; `part` begins their rows."""

    def __init__(self, installation: Installation, report: Report, part: str) -> None:
        self.installation = installation
        self._report = report
        self._part = part
        self._context = installation.namespace
        self._program = str(Path(sys.executable).parent / "tandemmq")
        meant = {
            name: value
            for name, value in installation.cluster.environment.items()
            if not name.startswith(("TANDEMMQ_", "NAMESRV_"))
        }
        self._environment: Mapping[str, str] = {**meant, "XDG_CONFIG_HOME": str(_FOLDER), "COLUMNS": "160"}

    def add_context(self) -> None:
        """A context of the release, and a row that it is there."""
        shutil.rmtree(_FOLDER, ignore_errors=True)
        named = self.installation.cluster.kubectl("config", "current-context").strip()
        place = ("--kube-context", named, "--namespace", self.installation.namespace, "--release", RELEASE)
        self._run("context", "add", self._context, "--kubernetes", *place)
        contexts = json.loads(self._run("context", "list", "-o", "json").output)
        found = [each for each in contexts if each["name"] == self._context and each["kind"] == "kubernetes"]
        self.check("contexts of the release", len(found), "contexts", "== 1", str(contexts))

    def run(self, *arguments: str) -> Answer:
        """A command of that context, whatever comes of it."""
        return self._run(*arguments, "--context", self._context)

    def run_as(self, certificate: str, *arguments: str) -> Answer:
        """The same with the certificate in this folder."""
        own = {**self._environment, "TANDEMMQ_SERVICE_TLS_PATH": certificate}
        return self._run(*arguments, "--context", self._context, environment=own)

    def read(self, *arguments: str) -> Any:
        """What a command prints for programs. CommandFailed when it fails."""
        answer = self.run(*arguments, "-o", "json")
        if answer.code != 0:
            raise CommandFailed(f"`tandemmq {' '.join(arguments)}` from outside: {answer.note}")
        return json.loads(answer.output)

    def inside(self, *arguments: str) -> Any:
        """The same asked in the admin's pod, where brokers are dialled by their own addresses."""
        return json.loads(self.installation.tandemmq(*arguments, "-o", "json"))

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """A command that goes on; whoever started it ends it."""
        return subprocess.Popen(
            [self._program, *arguments, "--context", self._context],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def check(self, what: str, value: float, unit: str, target: str, note: str = "") -> None:
        self._report.check(f"{self._part}: tandemmq through the API server: {what}", value, unit, target, note)

    def _run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Answer:
        done = subprocess.run(
            [self._program, *arguments],
            env=environment or self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)


def _read(operator: Operator, client: ClientPod, topic: str) -> None:
    installation = operator.installation
    outside, inside = operator.read("topic", "list"), operator.inside("topic", "list")
    differing = [topic for topic in outside["items"] if topic not in inside["items"]]
    operator.check("topics listed", len(outside["items"]), "topics", f"== {len(inside['items'])}")
    operator.check("topics other than the brokers have them", len(differing), "topics", "== 0", str(differing))

    pods = {
        pod["metadata"]["name"]: pod["metadata"]["labels"]["tandemmq.io/role"] for pod in installation.pods("broker")
    }
    listed = operator.read("broker", "list")
    found = {
        line["metadata_endpoint"].partition(".")[0]: "slave" if line["role"] == "SLAVE" else "master"
        for line in listed
        if not line["error"]
    }
    operator.check(
        "brokers other than kubectl's pods and their role labels",
        len(set(found.items()) ^ set(pods.items())),
        "brokers",
        "== 0",
        f"{listed} {pods}",
    )

    groups = operator.read("ha", "status")
    known = {broker.group: broker.end_offset for broker in installation.brokers() if broker.broker_id == 0}
    ends = {group["broker_name"]: group["end_offset"] for group in groups}
    operator.check("masters whose log ends elsewhere", len(set(ends.items()) ^ set(known.items())), "masters", "== 0")
    in_sync = sum(slave["in_sync"] for group in groups for slave in group["slaves"])
    operator.check("slaves in sync", in_sync, "slaves", f"== {len(pods) - len(known)}", str(groups))

    (sent,) = client.acknowledged(topic)
    messages = operator.read("message", "query", topic, "--since", "2h")["messages"]
    ids = [message["message_id"] for message in messages]
    operator.check(
        "messages found that the official client sent", ids.count(sent.message_id), "messages", "== 1", str(ids)
    )
    copies = operator.read("message", "show", sent.message_id)["copies"]
    equal = {copy["sha256"] for copy in copies if copy["held"]}
    wanted = len(pods) // len(known)
    operator.check("copies of it that were read", len(copies), "copies", f"== {wanted}", str(copies))
    operator.check("digests of these copies", len(equal), "digests", "== 1", str(copies))


def _follow(operator: Operator, topic: str) -> None:
    """A tail sees a message that is sent while it runs."""
    tail = operator.begin("tail", topic, "--tag", "tailed", "--count", "1", "-o", "json")
    sent: list[str] = []
    try:
        deadline = time.monotonic() + TAIL_LIMIT_S
        while tail.poll() is None and time.monotonic() < deadline:
            sent.append(operator.read("send", topic, f"tail {len(sent)}", "--tag", "tailed")["message_id"])
        output, errors = ("", "it did not end") if tail.poll() is None else tail.communicate(timeout=LIMIT_S)
    finally:
        if tail.poll() is None:
            tail.kill()
            tail.communicate()
    seen = [json.loads(line)["message_id"] for line in output.splitlines()]
    operator.check(
        "messages a tail showed as they were sent",
        len([message_id for message_id in seen if message_id in sent]),
        "messages",
        "== 1",
        f"{seen} of {sent}; {errors[-1_000:]}",
    )


def _watch(operator: Operator) -> None:
    answers = {check[0]: operator.run("check", *check) for check in _CHECKS}
    failing = {name: answer.note for name, answer in answers.items() if answer.code != 0 or " OK" not in answer.output}
    operator.check("checks for monitoring that are not OK", len(failing), "checks", "== 0", str(failing))


def _change_topic(operator: Operator) -> None:
    """Tried and done; deleted after a trial and a refusal. The brokers are asked each time."""
    masters = len(operator.installation.pods("broker")) // (2 if operator.installation.has_slaves else 1)

    def having() -> int:
        found = operator.inside("topic", "list", "--search", TOPIC)["items"]
        return sum(
            broker["write_queue_count"] == QUEUES
            for topic in found
            if topic["name"] == TOPIC
            for broker in topic["brokers"]
        )

    create = ("topic", "create", TOPIC, "--queues", str(QUEUES))
    tried = operator.run(*create, "--dry-run")
    operator.check(
        "brokers a trial names (--dry-run)", tried.output.count("planned"), "brokers", f"== {masters}", tried.note
    )
    operator.check("brokers with a topic that was only tried", having(), "brokers", "== 0")
    done = operator.run(*create)
    operator.check("brokers with a topic that was created", having(), "brokers", f"== {masters}", done.note)
    delete = ("topic", "delete", TOPIC)
    operator.run(*delete, "--dry-run")
    refused = operator.run(*delete)
    operator.check("exit code where nobody can be asked", refused.code, "", f"== {REFUSED}", refused.note)
    operator.check("brokers that still have the topic then", having(), "brokers", f"== {masters}", refused.note)
    done = operator.run(*delete, "--yes")
    operator.check("brokers that have it after --yes", having(), "brokers", "== 0", done.note)


def _change_setting(operator: Operator) -> None:
    pods = len(operator.installation.pods("broker"))
    keys = [f"{broker.group}:{broker.broker_id}" for broker in operator.installation.brokers()]

    def having() -> int:
        found = [
            setting
            for key in keys
            for setting in operator.inside("broker", "config", "get", key, "--key", SETTING)
            if setting["key"] == SETTING
        ]
        return sum(setting["value"] == VALUE for setting in found)

    change = ("broker", "config", "set", "all", f"{SETTING}={VALUE}")
    tried = operator.run(*change, "--dry-run")
    operator.check("brokers with a setting that was only tried", having(), "brokers", "== 0", tried.note)
    done = operator.run(*change, "--yes")
    operator.check("brokers with a setting that was changed", having(), "brokers", f"== {pods}", done.note)
