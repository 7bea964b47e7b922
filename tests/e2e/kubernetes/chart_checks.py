"""The chart before it is installed: bad values, lint, schemas, and what the API server says of it."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from typing import Final

from e2e.kubernetes.cluster import ROOT, Cluster, CommandFailed
from e2e.kubernetes.installation import CHART, PRESETS, Installation
from e2e.kubernetes.report import Report

# Arguments of helm, and a word its message has to hold, so that it helps.
BAD_VALUES: Final = (
    (("--set", "replication=semi"), "replication"),
    (("--set-json", 'brokerGroups=[{"name":"broker-a","slaves":0}]'), "slaves"),
    (("--set-json", 'brokerGroups=[{"name":"broker-a","slaves":1},{"name":"broker-a","slaves":1}]'), "broker-a"),
    (("--set-json", 'brokerGroups=[{"name":"Broker_A","slaves":1}]'), "name"),
    (("--set-json", "brokerGroups=[]"), "brokerGroups"),
    (("--set", "brokers.settings.brokerId=7"), "brokerId"),
    (("--set", "brokers.settings.haListenPort=1"), "haListenPort"),
    (("--set", "nameserver.replicas=0"), "replicas"),
    (("--set", "tls.mode=sometimes"), "tls"),
    (("--set", "noSuchKey=1"), "noSuchKey"),
    (("--set", "brokers.persistence.size=lots"), "size"),
    (("--set", "brokers.terminationGracePeriodSeconds=1"), "terminationGracePeriodSeconds"),
)
_TESTS_LIMIT_S: Final = 900.0
NAMESPACE: Final = "e2e-dry-run"


def check_chart(cluster: Cluster, report: Report, *, images: dict[str, str]) -> None:
    """Rows for the third point of the issue."""
    _refusals(cluster, report)
    for preset in sorted(path.stem for path in PRESETS.glob("*.yaml")):
        values = ("-f", str(PRESETS / f"{preset}.yaml"))
        report.check(
            f"chart: helm lint --strict {preset}", _works(cluster, "lint", "--strict", str(CHART), *values), "", "== 1"
        )
        rendered = cluster.helm("template", "mq", str(CHART), "-n", NAMESPACE, *values)
        installation = Installation(cluster, preset, NAMESPACE, images=images)
        installation.make_namespace()
        try:
            cluster.kubectl("apply", "-n", NAMESPACE, "--dry-run=server", "-f", "-", stdin=rendered)
            problem = ""
        except CommandFailed as error:
            problem = str(error)
        finally:
            installation.remove_namespace()
        report.check(f"chart: objects the API server refuses, {preset}", int(bool(problem)), "times", "== 0", problem)
        _conform(cluster, report, preset, rendered)
    _own_tests(report)


def _refusals(cluster: Cluster, report: Report) -> None:
    refused, notes = 0, []
    for arguments, word in BAD_VALUES:
        try:
            cluster.helm("template", "mq", str(CHART), "-f", str(PRESETS / "2m-2s-sync.yaml"), *arguments)
            notes.append(f"{' '.join(arguments)}: accepted")
        except CommandFailed as error:
            if word in str(error).partition(" ended with ")[2]:
                refused += 1
            else:
                notes.append(f"{' '.join(arguments)}: no word of {word} in: {error}")
    report.check(
        "chart: bad values refused with a message that names them",
        refused,
        "values",
        f"== {len(BAD_VALUES)}",
        "\n".join(notes),
    )


def _works(cluster: Cluster, *arguments: str) -> int:
    try:
        cluster.helm(*arguments)
    except CommandFailed:
        return 0
    return 1


def _conform(cluster: Cluster, report: Report, preset: str, rendered: str) -> None:
    program = cluster.tool("kubeconform")
    if program is None:
        return
    location = f"{cluster.schemas()}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}{{{{.StrictSuffix}}}}.json"
    try:
        cluster.run(str(program), "-strict", "-summary", "-schema-location", location, "-", stdin=rendered)
        problem = ""
    except CommandFailed as error:
        problem = str(error)
    report.check(f"chart: kubeconform strict complains, {preset}", int(bool(problem)), "times", "== 0", problem)


def _own_tests(report: Report) -> None:
    result = ROOT / "build" / "test-chart.xml"
    result.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/chart", f"--junitxml={result}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_TESTS_LIMIT_S,
        check=False,
    )
    passed = failed = 0
    if result.exists():
        for suite in ElementTree.parse(result).getroot().iter("testsuite"):
            bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            failed += bad
            passed += int(suite.get("tests", 0)) - bad - int(suite.get("skipped", 0))
    report.check("chart: unit tests passed", passed, "tests", ">= 1")
    report.check("chart: unit tests failed", failed + (done.returncode != 0), "tests", "== 0", done.stdout[-2000:])
