"""Role labels by the pod's own connection, against an API server of a few lines."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from support.kubernetes_pod import pod_of
from tandemmq.admin.role_labels import KubernetesPods, Pod
from tandemmq.service.kubernetes_api import ROLE_LABEL, AccessDenied, KubernetesUnavailable

_PODS = "/api/v1/namespaces/messaging/pods"


class _ApiServer(ThreadingHTTPServer):
    """Pods of one namespace by name; `status` other than 200 is the answer to everything."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pods: dict[str, dict[str, str]] = {}
        self.requests: list[tuple[str, str, dict[str, list[str]], str]] = []
        self.status = 200


class _Handler(BaseHTTPRequestHandler):
    server: _ApiServer

    def do_GET(self) -> None:
        path = self._note()
        if path == _PODS:
            items = [_pod(name, labels) for name, labels in self.server.pods.items()]
            self._answer({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
        else:
            name = path.rpartition("/")[2]
            self._answer(_pod(name, self.server.pods.get(name, {})))

    def do_PATCH(self) -> None:
        name = self._note().rpartition("/")[2]
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if name not in self.server.pods:
            self.server.status = 404
        else:
            self.server.pods[name] |= body["metadata"]["labels"]
        self._answer(_pod(name, self.server.pods.get(name, {})))
        self.server.status = 200

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""

    def _note(self) -> str:
        parts = urlsplit(self.path)
        noted = (self.command, parts.path, parse_qs(parts.query), self.headers.get("content-type", ""))
        self.server.requests.append(noted)
        return parts.path

    def _answer(self, document: dict[str, Any]) -> None:
        if self.server.status == 403:
            document = {"kind": "Status", "message": "pods is forbidden: User cannot list resource"}
        data = json.dumps(document).encode()
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _pod(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "messaging", "labels": labels}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[_ApiServer]:
    running = _ApiServer()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    try:
        with pod_of(tmp_path, running.server_port, namespace="messaging"):
            yield running
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


def test_brokers_of_this_release_are_listed_and_labelled(server: _ApiServer) -> None:
    server.pods = {"mq-broker-a-master-0": {"app.kubernetes.io/instance": "mq"}}
    pods = KubernetesPods(instance="mq", namespace="messaging")
    assert pods.list_brokers() == [Pod("mq-broker-a-master-0", {"app.kubernetes.io/instance": "mq"})]
    pods.set_label("mq-broker-a-master-0", ROLE_LABEL, "master")
    assert pods.list_brokers()[0].labels[ROLE_LABEL] == "master"
    listed, patched, _ = server.requests
    assert (listed[0], listed[1]) == ("GET", _PODS)
    assert listed[2]["labelSelector"] == ["app.kubernetes.io/component=broker,app.kubernetes.io/instance=mq"]
    assert (patched[0], patched[1]) == ("PATCH", f"{_PODS}/mq-broker-a-master-0")
    # A list of operations is another kind of patch, and a server refuses one that is sent as the other.
    assert "merge-patch+json" in patched[3]


def test_release_is_that_of_this_pod_unless_it_is_said(server: _ApiServer) -> None:
    server.pods = {socket.gethostname(): {"app.kubernetes.io/instance": "other"}}
    KubernetesPods(instance="", namespace="messaging").list_brokers()
    assert server.requests[-1][2]["labelSelector"][0].endswith("app.kubernetes.io/instance=other")
    server.pods = {}
    with pytest.raises(KubernetesUnavailable, match="set kubernetesInstance"):
        KubernetesPods(instance="", namespace="messaging").list_brokers()


def test_pod_that_is_gone_meanwhile_is_no_error(server: _ApiServer) -> None:
    KubernetesPods(instance="mq", namespace="messaging").set_label("mq-broker-a-slave-1", ROLE_LABEL, "slave")
    assert server.requests[-1][0] == "PATCH"


def test_missing_rights_are_named(server: _ApiServer) -> None:
    server.status = 403
    with pytest.raises(AccessDenied, match="pods is forbidden"):
        KubernetesPods(instance="mq", namespace="messaging").list_brokers()


def test_unreachable_api_is_told_as_such(server: _ApiServer) -> None:
    pods = KubernetesPods(instance="mq", namespace="messaging")
    pods.list_brokers()
    server.status = 500
    with pytest.raises(KubernetesUnavailable, match=r"^500: "):
        pods.list_brokers()
