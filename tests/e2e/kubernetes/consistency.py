"""The consistency job on a live cluster under load: its CronJobs are run, find what is planted, and nothing else."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from e2e.kubernetes.client_pod import Acknowledged, ClientPod
from e2e.kubernetes.cluster import Cluster, CommandFailed, NotInTime, say, until
from e2e.kubernetes.command_line import Operator
from e2e.kubernetes.faults import groups_of
from e2e.kubernetes.installation import RELEASE, STORE, Installation
from e2e.kubernetes.port_forward import admin_port, fetched
from e2e.kubernetes.replicas import compare_replicas
from e2e.kubernetes.report import Report

# Runs are started by hand here; a schedule that comes due meanwhile would take the machine from them.
VALUES: Final = (
    "consistency.enabled=true",
    "consistency.quick.suspend=true",
    "consistency.deep.suspend=true",
    "consistency.executors.count=2",
    # So that the log tells which executor ran which task.
    'consistency.sparkConf={"spark.log.level":"INFO"}',
)
TOPIC: Final = "proven"
LOAD: Final = "load"
RATE: Final = 60.0
# Load before the first run, and between two: so much is compared.
MESSAGES: Final = 1_500
RUN_LIMIT_S: Final = 600.0
LOAD_LIMIT_S: Final = 3_600.0
FOUND_LIMIT_S: Final = 60.0
_REPAIR_LIMIT_S: Final = 180.0

# What Spark's driver says of each task, with the executor's number, in which its pod's name ends.
_TASK: Final = re.compile(r"Finished task .*\(executor (\d+)\)")
# Runs in a broker's pod: flips the lowest bit of the middle byte of a message's body, in the CommitLog. The message is
# found by its id among the properties, its record by walking from the file's start.
_FLIP: Final = """
import pathlib, struct, sys
wanted = sys.argv[2].encode()
for path in sorted(pathlib.Path(sys.argv[1], "commitlog").iterdir()):
    log = path.read_bytes()
    at = log.find(wanted)
    if at < 0:
        continue
    record = 0
    while record + struct.unpack_from(">i", log, record)[0] <= at:
        record += struct.unpack_from(">i", log, record)[0]
    system_flag = struct.unpack_from(">i", log, record + 36)[0]
    length_at = record + 84 + 12 * (bool(system_flag & 16) + bool(system_flag & 32))
    position = length_at + 4 + struct.unpack_from(">i", log, length_at)[0] // 2
    with path.open("r+b") as target:
        target.seek(position)
        target.write(bytes([log[position] ^ 1]))
    print(int(path.name) + position)
    break
"""


@dataclass
class Run:
    """One Job made from a CronJob, as Kubernetes saw it."""

    name: str
    # Node of each executor that was seen, by pod.
    executors: dict[str, str] = field(default_factory=dict)
    # Tasks that each finished, by pod.
    tasks: dict[str, int] = field(default_factory=dict)
    complete: bool = False
    exit_code: int = -1
    # The Job's own word for a failure.
    message: str = ""
    seconds: float = 0.0
    log: str = ""
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """For a row that does not hold."""
        return f"{self.message}\n{self.log[-3000:]}"


def prove_equal(installation: Installation, report: Report, client: ClientPod) -> None:
    """Quick and deep on sound replicas, a flipped byte that is found, repaired, and found no more; all under load."""
    operator = Operator(installation, report, "consistency")
    operator.add_context()
    installation.create_topic(TOPIC)
    client.send(LOAD, TOPIC, rate=RATE, limit_s=LOAD_LIMIT_S)
    try:
        _more_load(client)
        first = _run(installation, "quick", "quick-first")
        _sound(installation, report, first, "first run")
        _look_from_outside(operator, report, "the first run", first.summary["run_id"], "equal", exit_code=0)
        _more_load(client)
        second = _run(installation, "quick", "quick-second")
        _sound(installation, report, second, "second run")
        report.figure("consistency: bytes the second run read for the first time", _new_bytes(second), "bytes")
        deep = _run(installation, "deep", "deep")
        _sound(installation, report, deep, "deep run")
        report.check(
            "consistency: records the deep run checked", int(deep.summary["records_checked"]), "records", ">= 1000"
        )
        _damage_and_repair(operator, report, client)
    finally:
        client.stop(LOAD)
    client.result(LOAD, 120)
    compared = compare_replicas(installation)
    report.check(
        "consistency: CommitLogs that differ in the end",
        len(compared.differences),
        "groups",
        "== 0",
        str(compared.differences),
    )


def _sound(installation: Installation, report: Report, run: Run, name: str) -> None:
    """Rows of a run that had nothing to find."""
    prefix = f"consistency: {name}"
    report.check(f"{prefix} completes", int(run.complete), "times", "== 1", run.told)
    report.check(f"{prefix}, exit code", run.exit_code, "", "== 0", run.told)
    report.check(f"{prefix}, findings", int(run.summary["findings_total"]), "findings", "== 0", run.told)
    worked = {pod for pod, tasks in run.tasks.items() if tasks}
    report.check(f"{prefix}, executors that ran tasks", len(worked), "pods", ">= 2", str(run.tasks))
    report.check(
        f"{prefix}, on nodes", len({run.executors[pod] for pod in worked}), "nodes", ">= 2", str(run.executors)
    )
    report.figure(f"{prefix}, bytes compared", int(run.summary["bytes_read"]), "bytes")
    report.figure(f"{prefix}, from Job to its end", run.seconds, "s")
    told = _events(installation, "ReplicasEqual", run)
    report.check(
        f"{prefix}, StatefulSets with the Event ReplicasEqual", len(told), "sets", "== 4", installation.events()
    )
    shown = _shown(installation, run)
    report.check(
        f"{prefix}, shown by the admin service as equal", int(shown.get("outcome") == "equal"), "", "== 1", str(shown)
    )


def _damage_and_repair(operator: Operator, report: Report, client: ClientPod) -> None:
    """One bit of one message on one slave; the plan that the run made puts it right."""
    installation = operator.installation
    before = client.count(LOAD)
    _more_load(client)
    victim = _victim(client, before)
    slave = next(f"mq-{group}-slave-1" for group in groups_of(installation.pods("broker")) if victim.is_of(group))
    offset = int(installation.in_pod(slave, "python3", "-c", _FLIP, STORE, victim.message_id))
    say(f"flipped a bit of {victim.message_id} on {slave}, at {offset}")
    run = _run(installation, "quick", "quick-damaged")
    prefix = "consistency: a flipped byte"
    report.check(f"{prefix} fails the Job", int(not run.complete), "times", "== 1", run.told)
    report.check(f"{prefix}, exit code", run.exit_code, "", "== 2", run.told)
    report.check(
        f"{prefix}, told in the Job's condition", int("exit code 2" in run.message), "times", "== 1", run.message
    )
    findings = run.summary.get("findings", [])
    named = [each for each in findings if each["message_id"] == victim.message_id and each["broker_id"] == 1]
    report.check(
        f"{prefix}, found with the message's id and the slave's", len(named), "findings", "== 1", str(findings)[:2000]
    )
    report.check(f"{prefix}, nothing else found", len(findings), "findings", "== 1", str(findings)[:2000])
    told = _events(installation, "ReplicasDiverged", run)
    expected = slave.rpartition("-")[0]
    report.check(f"{prefix}, Warning on {expected} and no other", int(told == {expected}), "", "== 1", str(told))
    shown = _shown(installation, run)
    report.check(
        f"{prefix}, shown by the admin service", int(shown.get("outcome") == "diverged"), "", "== 1", str(shown)
    )
    _look_from_outside(operator, report, "a flipped byte", run.summary["run_id"], victim.message_id, exit_code=2)
    plan = f"configmap:{RELEASE}-consistency/{run.summary['run_id']}"
    tried = operator.run("repair", "--plan", plan, "--dry-run")
    operator.check("repair --dry-run of a flipped byte, exit code", tried.code, "", "== 0", tried.note)
    said = installation.tandemmq("repair", "--plan", plan, "--yes", limit_s=_REPAIR_LIMIT_S)
    say(f"repaired: {said.strip()[-300:]}")
    mended = _run(installation, "quick", "quick-mended")
    report.check(f"{prefix}, after tandemmq repair: exit code", mended.exit_code, "", "== 0", f"{said}\n{mended.told}")
    shown = _shown(installation, mended)
    report.check(
        f"{prefix}, after tandemmq repair: shown as equal", int(shown.get("outcome") == "equal"), "", "== 1", str(shown)
    )


def _look_from_outside(operator: Operator, report: Report, after: str, *words: str, exit_code: int) -> None:
    """What monitoring is told through the API server, and what the console's page shows by port-forward."""
    answer = operator.run("check", "consistency")
    operator.check(f"check consistency after {after}, exit code", answer.code, "", f"== {exit_code}", answer.note)
    with admin_port(operator.installation) as port:
        page = fetched(port, "/consistency")
    missing = [word for word in words if word not in page]
    report.check(
        f"consistency: console by port-forward after {after}: /consistency lacks of what it has to show",
        len(missing),
        "words",
        "== 0",
        f"{missing}",
    )


def _run(installation: Installation, tier: str, name: str) -> Run:
    """`kubectl create job --from=cronjob/…`, watched until its end."""
    cluster, namespace = installation.cluster, installation.namespace
    run = Run(name)
    started = time.monotonic()
    cluster.kubectl("create", "job", name, "-n", namespace, f"--from=cronjob/{RELEASE}-consistency-{tier}")

    def ended() -> str:
        _watch_executors(cluster, namespace, run)
        job = json.loads(cluster.kubectl("get", "job", name, "-n", namespace, "-o", "json"))
        for condition in job.get("status", {}).get("conditions", []):
            if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
                run.complete = condition["type"] == "Complete"
                run.message = condition.get("message", "")
                return ""
        return "it runs"

    until(ended, RUN_LIMIT_S, f"the job {name} ends")
    run.seconds = time.monotonic() - started
    for pod in cluster.get("pods", "-n", namespace, "-l", f"batch.kubernetes.io/job-name={name}"):
        for container in pod["status"].get("containerStatuses", []):
            run.exit_code = container["state"].get("terminated", {}).get("exitCode", -1)
    run.log = cluster.kubectl("logs", "-n", namespace, f"job/{name}", check=False)
    finished = Counter(_TASK.findall(run.log))
    run.tasks = {pod: finished[pod.rpartition("-")[2]] for pod in run.executors}
    newest = _newest_summary(cluster, namespace)
    run.summary = newest if newest.get("run_id", "?") in run.log else {}
    say(f"{name}: exit code {run.exit_code}, {run.seconds:.0f} s, executors {run.executors}, tasks {run.tasks}")
    if not run.summary:
        raise CommandFailed(f"{name}: exit code {run.exit_code} and no summary: {run.told}")
    return run


def _watch_executors(cluster: Cluster, namespace: str, run: Run) -> None:
    """Spark removes them when the run ends, so they are looked at while it lasts."""
    for pod in cluster.get("pods", "-n", namespace, "-l", "spark-role=executor"):
        if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Running":
            run.executors[pod["metadata"]["name"]] = pod["spec"]["nodeName"]


def _newest_summary(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """What the run left in the ConfigMap."""
    found = json.loads(cluster.kubectl("get", "configmap", f"{RELEASE}-consistency", "-n", namespace, "-o", "json"))
    data: Mapping[str, str] = found.get("data") or {}
    # Beside the summaries there are the plans of runs that found something.
    runs = [key for key in data if "." not in key]
    newest: dict[str, Any] = json.loads(data[max(runs)]) if runs else {}
    return newest


def _events(installation: Installation, reason: str, run: Run) -> set[str]:
    """StatefulSets that an Event of this run is about."""
    found = installation.cluster.get("events", "-n", installation.namespace, "--field-selector", f"reason={reason}")
    return {
        str(event["involvedObject"]["name"])
        for event in found
        if event["involvedObject"]["kind"] == "StatefulSet" and str(run.summary.get("run_id")) in event["message"]
    }


def _shown(installation: Installation, run: Run) -> dict[str, Any]:
    """The run as the admin service shows it; {} if it does not."""
    proxy = f"/api/v1/namespaces/{installation.namespace}/services/{RELEASE}-admin:8080/proxy"
    found: dict[str, Any] = {}

    def there() -> str:
        answer = json.loads(installation.cluster.kubectl("get", "--raw", f"{proxy}/api/v1/consistency/runs"))
        found.update(next((each for each in _listed(answer) if each["run_id"] == run.summary.get("run_id")), {}))
        return "" if found else f"not among {len(list(_listed(answer)))} runs"

    try:
        until(there, FOUND_LIMIT_S, "the admin service shows the run", pause_s=2)
    except NotInTime as error:
        say(str(error))
    return found


def _listed(answer: Any) -> Iterator[dict[str, Any]]:
    yield from answer["runs"] if isinstance(answer, dict) else answer


def _victim(client: ClientPod, before: int) -> Acknowledged:
    """A message that no run has seen, with others around it."""
    fresh = client.acknowledged(LOAD)[before:]
    return fresh[len(fresh) // 2]


def _more_load(client: ClientPod) -> None:
    target = client.count(LOAD) + MESSAGES
    until(lambda: "" if client.count(LOAD) >= target else f"{client.count(LOAD)} of {target}", 300, "messages are sent")


def _new_bytes(run: Run) -> int:
    return sum(int(group["new_bytes"]) for group in run.summary.get("groups", []))
