"""The `kubernetes` client against a small API server: what is asked, what is changed, what an error becomes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from kubernetes.config import kube_config

from support.kubernetes_release import pod
from support.running_time import PATIENCE_S
from tandemmq.cli.commands.repair import read_plan
from tandemmq.cli.ending import CommandError
from tandemmq.cli.kube.release import ApiServerCluster, PodAddresses
from tandemmq.consistency.cluster_report import ApiServerObjects
from tandemmq.core.audit.repair_plan import RepairAction, RepairPlan, RepairStep
from tandemmq.service.kubernetes_api import AccessDenied, KubernetesApi, KubernetesUnavailable, api_of_user

_WEBSOCKET_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAPS = "/api/v1/namespaces/mq/configmaps"
_SETS = "/apis/apps/v1/namespaces/mq/statefulsets"


class _ApiServer(ThreadingHTTPServer):
    """Answers lists from `lists` and remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lists: dict[str, list[dict[str, Any]]] = {}
        self.config_map: dict[str, str] = {}
        self.asked: list[tuple[str, str, str, Any]] = []
        self.status = 200


class _Handler(BaseHTTPRequestHandler):
    server: _ApiServer

    def do_GET(self) -> None:
        if self.path.partition("?")[0].endswith("/portforward"):
            self._forward()
        else:
            self._answer(None)

    def _forward(self) -> None:
        """A port of a pod that answers in capitals: one WebSocket, a data and an error channel, both announced."""
        port = int(parse_qs(urlsplit(self.path).query)["ports"][0]).to_bytes(2, "little")
        digest = hashlib.sha1((self.headers["Sec-WebSocket-Key"] + _WEBSOCKET_GUID).encode()).digest()
        self.protocol_version = "HTTP/1.1"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(digest).decode())
        self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
        self.end_headers()
        for channel in (0, 1):
            self._write_frame(bytes([channel]) + port)
        while (payload := self._read_frame()) is not None:
            self._write_frame(payload[:1] + payload[1:].upper())
        self.close_connection = True

    def _read_frame(self) -> bytes | None:
        """A short masked binary frame; None at the end."""
        head = self.rfile.read(2)
        if len(head) < 2 or head[0] & 0xF == 8:
            return None
        mask = self.rfile.read(4)
        return bytes(byte ^ mask[place % 4] for place, byte in enumerate(self.rfile.read(head[1] & 0x7F)))

    def _write_frame(self, payload: bytes) -> None:
        self.wfile.write(bytes([0x82, len(payload)]) + payload)
        self.wfile.flush()

    def do_POST(self) -> None:
        self.do_PATCH()

    def do_PATCH(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Says nothing."""

    def _answer(self, body: Any) -> None:
        url = urlsplit(self.path)
        selector = parse_qs(url.query).get("labelSelector", [""])[0]
        self.server.asked.append((self.command, url.path, selector or self.headers.get("Content-Type", ""), body))
        document: dict[str, Any] = {"items": self.server.lists.get(url.path, [])}
        if "/configmaps/" in url.path:
            document = {"data": self.server.config_map}
        status = 404 if self.command == "PATCH" and "/configmaps/" in url.path else self.server.status
        if status != 200:
            document = {"message": "statefulsets.apps is forbidden: User cannot list resource"}
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_ApiServer]:
    server = _ApiServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": address}}],
        "users": [{"name": "me", "user": {"token": "none"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "mq"}}],
        "current-context": "here",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


async def _cluster() -> ApiServerCluster:
    return ApiServerCluster(await asyncio.to_thread(_api))


def _api() -> KubernetesApi:
    # The package's own place of the default file is fixed when it is imported first.
    kube_config.KUBE_CONFIG_DEFAULT_LOCATION = os.environ["KUBECONFIG"]
    return api_of_user()


async def test_lists_are_asked_by_release_and_namespace(api: _ApiServer) -> None:
    api.lists[_SETS] = [
        {
            "metadata": {
                "name": name,
                "labels": {"app.kubernetes.io/name": "tandemmq", "app.kubernetes.io/instance": "mq"},
            },
            "spec": {},
        }
        for name in ("mq-b", "mq-a")
    ]
    cluster = await _cluster()
    assert cluster.namespace == "mq"
    assert not cluster.is_inside
    assert [each.name for each in await cluster.stateful_sets("mq")] == ["mq-a", "mq-b"]
    assert await cluster.releases() == ["mq"]
    assert await cluster.pods("mq") == []
    assert await cluster.claims("mq") == []
    assert await cluster.disruption_budgets("mq") == []
    assert [(path, selector) for _, path, selector, _ in api.asked] == [
        (_SETS, "app.kubernetes.io/instance=mq"),
        (_SETS, "app.kubernetes.io/name=tandemmq"),
        ("/api/v1/namespaces/mq/pods", "app.kubernetes.io/instance=mq"),
        ("/api/v1/namespaces/mq/persistentvolumeclaims", "app.kubernetes.io/instance=mq"),
        ("/apis/policy/v1/namespaces/mq/poddisruptionbudgets", "app.kubernetes.io/instance=mq"),
    ]


def test_repair_plan_comes_from_the_config_map_of_the_results(api: _ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", os.environ["KUBECONFIG"])
    plans = {
        run_id: RepairPlan(
            run_id=run_id,
            cluster="DefaultCluster",
            steps=(RepairStep(1, RepairAction.MANUAL, "broker-a", 1, reason="index is built again"),),
        )
        for run_id in ("20261121T210000Z-0000", "20261121T220000Z-0000")
    }
    api.config_map = {f"{run_id}.plan": json.dumps(plan.to_json()) for run_id, plan in plans.items()}
    api.config_map["20261121T230000Z-0000"] = "a summary"
    assert read_plan("configmap:mq-consistency") == plans["20261121T220000Z-0000"]
    assert read_plan("configmap:mq-consistency/20261121T210000Z-0000") == plans["20261121T210000Z-0000"]
    assert {path for _, path, _, _ in api.asked} == {"/api/v1/namespaces/mq/configmaps/mq-consistency"}
    with pytest.raises(CommandError, match="holds no plan of run 2020"):
        read_plan("configmap:mq-consistency/2020")
    api.status = 404
    with pytest.raises(CommandError, match="cannot be read"):
        read_plan("configmap:mq-consistency")


async def test_partition_is_changed_by_a_merge_patch_of_nothing_else(api: _ApiServer) -> None:
    await (await _cluster()).set_partition("mq-broker-a-slave", 0)
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
    assert api.asked == [
        (
            "PATCH",
            f"{_SETS}/mq-broker-a-slave",
            "application/merge-patch+json",
            {"spec": {"updateStrategy": strategy}},
        )
    ]


async def test_results_of_a_run_make_the_config_map_that_is_missing(api: _ApiServer) -> None:
    objects = ApiServerObjects(await asyncio.to_thread(_api))
    await asyncio.to_thread(objects.change_config_map, "mq-consistency", {"new": "a summary", "old": None})
    patched, created = api.asked
    assert patched[:3] == ("PATCH", f"{_MAPS}/mq-consistency", "application/merge-patch+json")
    assert patched[3] == {"data": {"new": "a summary", "old": None}}
    assert created[:2] == ("POST", _MAPS)
    assert created[3] == {"metadata": {"name": "mq-consistency"}, "data": {"new": "a summary"}}


async def test_port_of_a_pod_is_reached_through_the_api_server(api: _ApiServer) -> None:
    async with PodAddresses(await _cluster()) as addresses:
        address = await addresses.find(pod("mq-broker-a-master-0"), "grpc-metadata")
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"question")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readexactly(8) == b"QUESTION"
        writer.close()
        await writer.wait_closed()


async def test_refusal_names_verb_and_resource(api: _ApiServer) -> None:
    api.status = 403
    with pytest.raises(AccessDenied, match="cannot list resource"):
        await (await _cluster()).stateful_sets("mq")


async def test_broken_api_server_may_be_asked_again(api: _ApiServer) -> None:
    api.status = 503
    with pytest.raises(KubernetesUnavailable) as failure:
        await (await _cluster()).pods("mq")
    assert not isinstance(failure.value, AccessDenied)


async def test_silent_api_server_is_unavailable(api: _ApiServer) -> None:
    cluster = await _cluster()
    api.shutdown()
    api.server_close()
    with pytest.raises(KubernetesUnavailable, match="does not answer"):
        await cluster.pods("mq")


async def test_missing_configuration_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(KubernetesUnavailable, match="no usable configuration"):
        await _cluster()
