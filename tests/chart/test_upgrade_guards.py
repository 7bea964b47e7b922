"""An upgrade looks at the cluster: what would leave messages behind, or make a second master, is refused."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import pytest
import yaml

from chart.rendering import render, upgrade
from support.running_time import PATIENCE_S

_RESOURCES: Final = {"apps/v1": ("statefulsets", "StatefulSet"), "coordination.k8s.io/v1": ("leases", "Lease")}
_TWO: Final = [{"name": "broker-a"}, {"name": "broker-b"}]
Objects = dict[str, Any]


class Kubernetes:
    """An API server that has some objects in namespace `ns`, and answers what helm's `lookup` asks."""

    def __init__(self) -> None:
        self.objects: list[Objects] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = outer.answer(self.path.partition("?")[0])
                body = json.dumps(answer).encode()
                self.send_response(answer.get("code", 200))
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="kubernetes", daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, path: str) -> Objects:
        version, _, rest = path.removeprefix("/apis/").partition("/namespaces/ns/")
        plural, kind = _RESOURCES.get(version, ("", ""))
        resource, _, name = rest.partition("/")
        if plural and not rest:
            verbs = {"name": plural, "namespaced": True, "kind": kind, "verbs": ["get", "list"]}
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": [verbs]}
        found = [each for each in self.objects if each["kind"] == kind and resource == plural]
        if resource == plural and not name:
            return {"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": found}
        named = [each for each in found if each["metadata"]["name"] == name]
        return named[0] if named else {"kind": "Status", "apiVersion": "v1", "code": 404, "reason": "NotFound"}

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=PATIENCE_S)


@pytest.fixture
def kubernetes() -> Iterator[Kubernetes]:
    """What runs is what the chart's defaults make: two groups."""
    started = Kubernetes()
    # Copies: a rendering is kept for all tests, and some change what runs.
    started.objects = copy.deepcopy(list(render().kind("StatefulSet").values()))
    yield started
    started.stop()


def test_what_runs_on_is_no_obstacle(kubernetes: Kubernetes) -> None:
    done = upgrade(kubernetes.address)
    assert done.returncode == 0, done.stderr


def test_another_group_is_no_obstacle(kubernetes: Kubernetes) -> None:
    done = upgrade(kubernetes.address, "--set-json", f"brokerGroups={json.dumps([*_TWO, {'name': 'broker-c'}])}")
    assert done.returncode == 0, done.stderr


def test_a_group_that_runs_is_not_removed_unasked(kubernetes: Kubernetes) -> None:
    done = upgrade(kubernetes.address, "--set-json", 'brokerGroups=[{"name":"broker-a"}]')
    assert done.returncode != 0
    assert "brokerGroups: broker-b is missing, which runs" in done.stderr
    assert "tandemmq broker write-permission broker-b off" in done.stderr
    assert "drainedBrokerGroups: [broker-b]" in done.stderr
    assert done.stderr.count("is missing") == 1, "its master and its slaves are one group"


def test_one_group_that_was_drained_says_nothing_of_another(kubernetes: Kubernetes) -> None:
    groups = 'brokerGroups=[{"name":"broker-c"}]'
    done = upgrade(kubernetes.address, "--set-json", groups, "--set", "drainedBrokerGroups={broker-a}")
    assert "broker-b is missing" in done.stderr
    assert "broker-a is missing" not in done.stderr


def test_a_group_that_was_drained_may_go(kubernetes: Kubernetes) -> None:
    groups = 'brokerGroups=[{"name":"broker-a"}]'
    done = upgrade(kubernetes.address, "--set-json", groups, "--set", "drainedBrokerGroups={broker-b}")
    assert done.returncode == 0, done.stderr
    assert "mq-broker-b" not in done.stdout


def test_a_group_cannot_be_drained_and_stay(kubernetes: Kubernetes) -> None:
    done = upgrade(kubernetes.address, "--set", "drainedBrokerGroups={broker-b}")
    assert "drainedBrokerGroups: broker-b is in brokerGroups, too" in done.stderr


@pytest.mark.parametrize("label", ["app.kubernetes.io/instance", "app.kubernetes.io/name"])
def test_groups_of_another_release_are_not_asked_for(kubernetes: Kubernetes, label: str) -> None:
    for each in kubernetes.objects:
        each["metadata"] = {**each["metadata"], "labels": {**each["metadata"]["labels"], label: "other"}}
    done = upgrade(kubernetes.address, "--set-json", 'brokerGroups=[{"name":"orders"}]')
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("holder", "minutes", "refused"), [("broker-a-1", 1, True), ("broker-a-1", 11, False), ("broker-a-0", 1, False)]
)
def test_failover_is_turned_off_with_broker_0_as_the_master(
    kubernetes: Kubernetes, holder: str, minutes: int, refused: bool
) -> None:
    renewed = (datetime.now(UTC) - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    kubernetes.objects.append(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "mq-broker-a", "namespace": "ns"},
            "spec": {"holderIdentity": holder, "renewTime": renewed},
        }
    )
    done = upgrade(kubernetes.address, "--set", "failover.enabled=false")
    assert ("failover.enabled: off, but broker-a-1 is the master" in done.stderr) == refused, done.stderr
    assert (done.returncode != 0) == refused


# How far a release is closed, and how far the next upgrade closes it.

_STEPS: Final = (
    {"mode": None, "call": None},
    {"mode": "permissive", "call": "false"},
    {"mode": "permissive", "call": "true"},
    {"mode": "enforcing", "call": "true"},
)
_EXPLICIT: Final = (
    "security.serviceTlsMode=disabled",
    "security.serviceTlsMode=permissive",
    "security.serviceTlsMode=permissive,security.serviceTlsCall=true",
    "security.serviceTlsMode=enforcing",
)


def _running(step: int, *, whole: bool = True) -> list[Objects]:
    """The sets of a release that is at this step; not whole: pods of the revision before are still there."""
    found = copy.deepcopy(list(render("--set", _EXPLICIT[step]).kind("StatefulSet").values()))
    for each in found:
        each["metadata"]["generation"] = 2
        each["status"] = {"observedGeneration": 2, "currentRevision": "b", "updateRevision": "b"}
    if not whole:
        found[0]["status"]["currentRevision"] = "a"
    return found


def _step_of(text: str) -> set[int]:
    """Of all pods in a rendering."""
    steps = set()
    for document in yaml.load_all(text, Loader=yaml.CSafeLoader):
        if document and document["kind"] in ("StatefulSet", "Deployment"):
            variables = document["spec"]["template"]["spec"]["containers"][0]["env"]
            values = {each["name"]: each.get("value") for each in variables}
            told = {
                "mode": values.get("TANDEMMQ_SERVICE_TLS_MODE"),
                "call": values.get("TANDEMMQ_SERVICE_TLS_CALL"),
            }
            steps.add(_STEPS.index(told))
    return steps


@pytest.mark.parametrize("step", range(4))
def test_each_upgrade_closes_a_release_by_one_step_for_all(kubernetes: Kubernetes, step: int) -> None:
    kubernetes.objects = _running(step)
    done = upgrade(kubernetes.address)
    assert done.returncode == 0, done.stderr
    assert _step_of(done.stdout) == {min(step + 1, 3)}


@pytest.mark.parametrize("step", range(4))
def test_a_step_that_is_not_through_is_repeated(kubernetes: Kubernetes, step: int) -> None:
    kubernetes.objects = _running(step, whole=False)
    done = upgrade(kubernetes.address)
    assert done.returncode == 0, done.stderr
    # Of an open release the one before was open, too.
    assert _step_of(done.stdout) == {max(step, 1)}


def test_a_controller_that_has_not_looked_yet_counts_as_not_through(kubernetes: Kubernetes) -> None:
    kubernetes.objects = _running(2)
    kubernetes.objects[-1]["status"]["observedGeneration"] = 1
    assert _step_of(upgrade(kubernetes.address).stdout) == {2}


def test_the_one_that_is_furthest_behind_says_how_far_it_goes(kubernetes: Kubernetes) -> None:
    kubernetes.objects = [*_running(1)[:1], *_running(2)[1:]]
    assert _step_of(upgrade(kubernetes.address).stdout) == {2}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("wanted", range(4))
@pytest.mark.parametrize("step", range(4))
def test_a_jump_by_hand_is_refused_and_a_step_is_not(
    kubernetes: Kubernetes, step: int, wanted: int, whole: bool
) -> None:
    kubernetes.objects = _running(step, whole=whole)
    done = upgrade(kubernetes.address, "--set", _EXPLICIT[wanted])
    if step - 1 <= wanted <= max(step + whole, 1):
        assert done.returncode == 0, done.stderr
        assert _step_of(done.stdout) == {wanted}
    else:
        assert "would not be talked to" in done.stderr


def test_another_release_says_nothing_of_this_one(kubernetes: Kubernetes) -> None:
    others = _running(0)
    for each in others:
        each["metadata"]["labels"]["app.kubernetes.io/instance"] = "other"
    kubernetes.objects = [*others, *_running(3)]
    assert _step_of(upgrade(kubernetes.address).stdout) == {3}
