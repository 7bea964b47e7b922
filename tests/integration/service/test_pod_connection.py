"""A pod's own way to the API server, over TLS: whom it believes, and what it never does twice."""

from __future__ import annotations

import json
import select
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tandemmq.service import kubernetes_api
from tandemmq.service.kubernetes_api import Kind, KubernetesApi, KubernetesUnavailable, api_of_pod


class _Server(ThreadingHTTPServer):
    """Answers each call with how many there were; `hangs_up` ends the connection instead, before or after it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tokens: list[str] = []
        self.connections = 0
        self.hangs_up = ""

    def get_request(self) -> tuple[socket.socket, Any]:
        accepted = super().get_request()
        self.connections += 1
        return accepted


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Says nothing."""

    def _answer(self) -> None:
        self.server.tokens.append(self.headers["Authorization"])
        self.close_connection = bool(self.server.hangs_up)
        if self.server.hangs_up == "before":
            return
        data = json.dumps({"count": len(self.server.tokens)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _certificate(folder: Path, name: str) -> None:
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=kubernetes"
    paths = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")]
    subprocess.run(
        ["openssl", *request.split(), "-addext", "subjectAltName=IP:127.0.0.1", *paths], check=True, capture_output=True
    )


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    if shutil.which("openssl") is None:
        pytest.skip("certificates for tests are made with the openssl command")
    _certificate(tmp_path, "ca")
    running = _Server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.crt", tmp_path / "ca.key")
    running.socket = context.wrap_socket(running.socket, server_side=True)
    (tmp_path / "namespace").write_text("mq")
    (tmp_path / "token").write_text("first\n")
    monkeypatch.setattr(kubernetes_api, "_SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(running.server_address[1]))
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture
def api(server: _Server) -> Iterator[KubernetesApi]:
    api = api_of_pod(time_limit_s=60)
    yield api
    api.close()


def test_calls_share_a_connection_and_each_has_the_token_of_its_time(
    server: _Server, api: KubernetesApi, tmp_path: Path
) -> None:
    assert api.namespace == "mq"
    assert api.read(Kind.LEASE, "a") == {"count": 1}
    (tmp_path / "token").write_text("second")
    assert api.replace(Kind.LEASE, "a", {}) == {"count": 2}
    assert server.tokens == ["Bearer first", "Bearer second"]
    assert server.connections == 1


def test_connection_that_ended_after_an_answer_is_replaced(server: _Server, api: KubernetesApi) -> None:
    server.hangs_up = "after"
    api.replace(Kind.LEASE, "a", {})
    # The end arrives a moment later; until then it would be met by the next call.
    idle = api._connection._idle[0]  # type: ignore[attr-defined]
    select.select([idle.sock], [], [], 5)
    api.replace(Kind.LEASE, "a", {})
    assert (len(server.tokens), server.connections) == (2, 2)


def test_call_without_an_answer_is_not_repeated(server: _Server, api: KubernetesApi) -> None:
    server.hangs_up = "before"
    with pytest.raises(KubernetesUnavailable, match="does not answer"):
        api.replace(Kind.LEASE, "a", {})
    assert len(server.tokens) == 1


def test_server_of_another_authority_hears_no_token(server: _Server, api: KubernetesApi, tmp_path: Path) -> None:
    _certificate(tmp_path, "other")
    (tmp_path / "other.crt").replace(tmp_path / "ca.crt")
    with pytest.raises(KubernetesUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        api.read(Kind.LEASE, "a")
    assert server.tokens == []


def test_without_a_token_this_is_no_pod(server: _Server, tmp_path: Path) -> None:
    (tmp_path / "token").unlink()
    with pytest.raises(KubernetesUnavailable, match="no usable configuration"):
        api_of_pod()
