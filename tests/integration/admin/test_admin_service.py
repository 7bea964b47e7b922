"""`mqadminservice` as a process: one port for HTTP and gRPC, a real cluster behind it, strangers in front of it."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from prometheus_client.parser import text_string_to_metric_families

from support.audit_summaries import diverged_run
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.running_time import PATIENCE_S, run_program
from tandemmq.core.audit.run_summary import RunSummary
from tandemmq.proto.admin.v1 import cluster_service_pb2 as pb
from tandemmq.proto.admin.v1 import consistency_service_pb2 as consistency_pb

_CALL_S = 10.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SERVICE = "/tandemmq.admin.v1.ClusterService/"


def _admin(folder: Path, **settings: str) -> ServiceProcess:
    return ServiceProcess(
        name="admin",
        module="tandemmq.admin",
        settings={"refreshInterval": "200", **settings},
        log_path=folder / "logs" / "admin.log",
        port_keys=("httpPort",),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("admin")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[ProcessCluster]:
    with ProcessCluster(folder) as running:
        running.add_name_server()
        running.add_name_server()
        running.add_broker(broker_id=0)
        running.add_broker(broker_id=1)
        yield running


@pytest.fixture(scope="module")
def admin(folder: Path, cluster: ProcessCluster) -> Iterator[ServiceProcess]:
    process = _admin(folder, namesrvAddr=cluster.namesrv_addr)
    process.start()
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture
def channel(admin: ServiceProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(_address(admin)) as opened:
        yield opened


def _address(admin: ServiceProcess) -> str:
    return f"127.0.0.1:{admin.ports['httpPort']}"


def _get(admin: ServiceProcess, path: str) -> httpx.Response:
    return httpx.get(f"http://{_address(admin)}{path}", timeout=_CALL_S, trust_env=False)


def _document(admin: ServiceProcess) -> dict[str, Any]:
    answer = _get(admin, "/api/v1/cluster")
    found: dict[str, Any] = answer.json() if answer.status_code == 200 else {"healthy": False, "brokers": []}
    return found


def _unary(channel: grpc.Channel, method: str, request: Message, reply: type[Message]) -> Any:
    call = channel.unary_unary(
        method, request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString
    )
    return call(request, timeout=_CALL_S, wait_for_ready=True)


def _watch(channel: grpc.Channel) -> Any:
    return channel.unary_stream(
        _SERVICE + "WatchClusterState",
        request_serializer=pb.WatchClusterStateRequest.SerializeToString,
        response_deserializer=pb.WatchClusterStateResponse.FromString,
    )(pb.WatchClusterStateRequest(), timeout=PATIENCE_S, wait_for_ready=True)


def _until(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, limit_s=PATIENCE_S, what=what)


def test_cluster_becomes_healthy_on_every_plane(admin: ServiceProcess, channel: grpc.Channel) -> None:
    _until(lambda: bool(_document(admin)["healthy"]) and len(_document(admin)["brokers"]) == 2, "two healthy brokers")
    document = _document(admin)
    assert [broker["status"]["role"] for broker in document["brokers"]] == ["SYNC_MASTER", "SLAVE"]
    assert 0 <= document["age_ms"] < 30_000
    state = _unary(channel, _SERVICE + "GetClusterState", pb.GetClusterStateRequest(), pb.GetClusterStateResponse).state
    assert (state.healthy, [broker.broker_id for broker in state.brokers]) == (True, [0, 1])
    assert state.brokers[0].status.slaves[0].in_sync
    page = _get(admin, "/").text
    assert "healthy" in page
    assert "1 of 1 slaves in sync" in page
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(_get(admin, "/metrics").text)
        for sample in family.samples
    }
    assert (samples["rocketmq_cluster_healthy"], samples["rocketmq_broker_up"]) == (1, 1)
    assert samples["process_resident_memory_bytes"] > 0
    assert _get(admin, "/readyz").status_code == 200


def test_json_and_the_command_line_say_the_same(admin: ServiceProcess, cluster: ProcessCluster) -> None:
    _until(lambda: bool(_document(admin)["healthy"]), "healthy")
    command = [sys.executable, "-m", "tandemmq.cli", "status", "--json", "--namesrv", cluster.namesrv_addr]
    printed = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S).stdout)
    document = _document(admin)
    assert set(printed) <= set(document)
    assert [set(broker) for broker in printed["brokers"]] == [set(broker) for broker in document["brokers"]]


def test_watch_brings_reading_after_reading(channel: grpc.Channel) -> None:
    watch = _watch(channel)
    revisions = [next(watch).state.revision for _ in range(4)]
    watch.cancel()
    assert revisions == sorted(set(revisions))


def test_health_and_reflection_are_served(channel: grpc.Channel) -> None:
    health = _unary(
        channel, "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse
    )
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert "tandemmq.admin.v1.ClusterService" in services


def test_unknown_method_is_refused_by_name(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        _unary(channel, _SERVICE + "DeleteCluster", pb.GetClusterStateRequest(), pb.GetClusterStateResponse)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_first_bytes_may_come_one_by_one(admin: ServiceProcess) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    for sent, expected in ((preface, b"\x00"), (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 200")):
        with socket.create_connection(("127.0.0.1", admin.ports["httpPort"]), _CALL_S) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for number in range(len(sent)):
                connection.sendall(sent[number : number + 1])
                if number < 20:
                    time.sleep(0.002)
            assert connection.recv(65_536).startswith(expected)


def test_kept_alive_connection_answers_again_and_again(admin: ServiceProcess) -> None:
    with httpx.Client(base_url=f"http://{_address(admin)}", timeout=_CALL_S, trust_env=False) as client:
        assert [client.get("/api/v1/findings").status_code for _ in range(20)] == [200] * 20


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x" * 40_000,
        b"PRI * HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
        b"\x00" * 1_000,
    ],
    ids=["tls", "endless-header", "pri-http1", "no-settings", "zeros"],
)
def test_nonsense_ends_its_own_connection_only(admin: ServiceProcess, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", admin.ports["httpPort"]), _CALL_S) as connection:
        connection.sendall(sent)
        while True:
            try:
                if not connection.recv(65_536):
                    break
            except ConnectionResetError:
                break
    assert _get(admin, "/healthz").status_code == 200


def test_lost_slave_is_a_finding_until_it_is_back(admin: ServiceProcess, cluster: ProcessCluster) -> None:
    _until(lambda: bool(_document(admin)["healthy"]), "healthy before")
    cluster.brokers["broker-a-1"].kill()

    def is_told() -> bool:
        broker = _document(admin)["brokers"][1:]
        return len(broker) == 1 and broker[0]["error"] is not None and not broker[0]["registered"]

    _until(is_told, "the lost slave is shown though no NameServer knows it")
    findings = _get(admin, "/api/v1/findings").json()["findings"]
    assert any("SLAVE_NOT_AVAILABLE" in finding["problem"] for finding in findings)
    assert _get(admin, "/readyz").status_code == 200
    cluster.brokers["broker-a-1"].start()
    _until(lambda: bool(_document(admin)["healthy"]), "healthy again")


def test_runs_of_the_consistency_job_are_on_every_plane(tmp_path: Path, cluster: ProcessCluster) -> None:
    admin = _admin(tmp_path, namesrvAddr=cluster.namesrv_addr, consistencyResults=str(tmp_path / "results"))
    run = diverged_run()
    path = tmp_path / "results" / "runs" / run.run_id / "summary.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(run.to_json()), encoding="utf-8")
    admin.start()
    try:
        _until(lambda: bool(_get(admin, "/api/v1/consistency/runs").json()["runs"]), "the run is read")
        assert RunSummary.from_json(_get(admin, "/api/v1/consistency/runs/latest").json()) == run
        _until(lambda: not _document(admin)["healthy"], "a finding degrades the cluster")
        assert "body does not match its checksum" in _get(admin, "/consistency").text
        labels = 'cluster="DefaultCluster",broker_group="broker-a"'
        assert f"tandemmq_consistency_findings{{{labels}" in _get(admin, "/metrics").text
        with grpc.insecure_channel(_address(admin)) as channel:
            answer = _unary(
                channel,
                "/tandemmq.admin.v1.ConsistencyService/GetConsistencyRun",
                consistency_pb.GetConsistencyRunRequest(run_id="latest"),
                consistency_pb.GetConsistencyRunResponse,
            )
            assert [finding.message_id for finding in answer.findings] == [run.findings[0].message_id]
            services = ProtoReflectionDescriptorDatabase(channel).get_services()
            assert "tandemmq.admin.v1.ConsistencyService" in services
        seen = next(event for event in admin.events() if event["event"] == "consistency_run_seen")
        assert (seen["service"], seen["run"], seen["outcome"]) == ("admin", run.run_id, "diverged")
    finally:
        admin.kill()


def test_works_and_says_so_with_all_name_servers_down(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    admin = _admin(tmp_path, namesrvAddr=nobody)
    admin.start()
    try:
        _until(lambda: _get(admin, "/readyz").status_code == 200, "ready")

        def is_told() -> bool:
            findings = _document(admin).get("findings") or [{}]
            return bool(findings[0].get("subject") == f"NameServer {nobody}")

        _until(is_told, "the NameServer that does not answer is a finding")
        assert not _document(admin)["healthy"]
        _until(lambda: f"NameServer {nobody}" in _get(admin, "/").text, "and on the page")
    finally:
        admin.kill()


def test_stop_is_orderly_with_a_watch_and_a_kept_connection_open(tmp_path: Path, cluster: ProcessCluster) -> None:
    admin = _admin(tmp_path, namesrvAddr=cluster.namesrv_addr, shutdownTimeout="3000")
    admin.start()
    try:
        with grpc.insecure_channel(_address(admin)) as channel, httpx.Client(trust_env=False) as client:
            watch = _watch(channel)
            next(watch)
            client.get(f"http://{_address(admin)}/healthz")
            assert admin.stop() == 0
            with pytest.raises(grpc.RpcError) as ended:
                list(watch)
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        events = [event["event"] for event in admin.events()]
        assert events[-1] == "admin_stopped"
        assert not [line for line in admin.log_text().splitlines() if not line.startswith("{")]
    finally:
        admin.kill()


@pytest.mark.parametrize("says", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", _PREFACE], ids=repr)
def test_connections_are_limited_in_number(tmp_path: Path, cluster: ProcessCluster, says: bytes) -> None:
    """And whoever opens all of them keeps out himself alone."""
    admin = _admin(tmp_path, namesrvAddr=cluster.namesrv_addr, maxConnections="5")
    admin.start()
    held = []
    try:
        # Accepted in their order: the sixth finds five.
        held += [socket.create_connection(("127.0.0.1", admin.ports["httpPort"]), _CALL_S) for _ in range(5)]
        for connection in held:
            connection.sendall(says)
        assert not says or all(connection.recv(1) for connection in held)
        with socket.create_connection(("127.0.0.1", admin.ports["httpPort"]), _CALL_S) as refused:
            try:
                assert refused.recv(1) == b""
            except ConnectionResetError:
                pass
        for number in (2, 3):
            place, source = ("127.0.0.1", admin.ports["httpPort"]), (f"127.0.0.{number}", 0)
            with socket.create_connection(place, _CALL_S, source_address=source) as other:
                other.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert other.recv(12) == b"HTTP/1.1 200"
        for connection in held:
            connection.close()
        _until(lambda: _answers(admin), "room again")
    finally:
        for connection in held:
            connection.close()
        admin.kill()


def _answers(admin: ServiceProcess) -> bool:
    try:
        return _get(admin, "/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_open_port_without_a_token_is_warned_of(tmp_path: Path) -> None:
    admin = _admin(tmp_path, bindAddress="0.0.0.0")
    admin.start()
    try:
        assert "admin_open_to_the_network" in [event["event"] for event in admin.events()]
    finally:
        admin.kill()


def test_taken_port_and_bad_settings_are_told_before_the_start() -> None:
    command = [sys.executable, "-m", "tandemmq.admin"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run_program([*command, "--set", f"httpPort={port}", "--set", "adminToken=abc"])
        again = run_program([*command, "--set", f"httpPort={port}"])
    assert (refused.returncode, again.returncode) == (2, 75)
    assert "adminToken" in refused.stderr
    assert again.stderr.startswith(f"httpPort={port}: another process listens")


# TLS


def _new_certificate(folder: Path) -> bytes:
    """Made as an operator makes one; what a client believes."""
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=console"
    names = ["-addext", "subjectAltName=DNS:localhost,DNS:console.example,IP:127.0.0.1"]
    made = folder / "new"
    made.mkdir(exist_ok=True)
    paths = ["-keyout", str(made / "tls.key"), "-out", str(made / "tls.crt")]
    subprocess.run(["openssl", *request.split(), *names, *paths], check=True, capture_output=True)
    for name in ("tls.key", "tls.crt"):
        (made / name).replace(folder / name)
    return (folder / "tls.crt").read_bytes()


@pytest.fixture
def secure_admin(tmp_path: Path) -> Iterator[tuple[ServiceProcess, Path]]:
    _new_certificate(tmp_path)
    process = _admin(
        tmp_path,
        namesrvAddr="127.0.0.1:1",
        tlsCertPath=f"{tmp_path}/tls.crt",
        tlsKeyPath=f"{tmp_path}/tls.key",
        adminToken="a-token-of-sixteen-or-more",
        maxConnections="12",
    )
    process.start()
    try:
        yield process, tmp_path
    finally:
        process.kill()


def _context(certificate: bytes) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=certificate.decode())


def _check(channel: grpc.Channel, *, waits: bool = True) -> Any:
    call = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    return call(health_pb2.HealthCheckRequest(), timeout=_CALL_S, wait_for_ready=waits)


def test_browsers_and_grpc_are_served_by_tls_alone(secure_admin: tuple[ServiceProcess, Path]) -> None:
    admin, folder = secure_admin
    certificate, port = (folder / "tls.crt").read_bytes(), admin.ports["httpPort"]
    with httpx.Client(verify=_context(certificate), base_url=f"https://localhost:{port}", trust_env=False) as browser:
        _until(lambda: browser.get("/healthz").status_code == 200, "it serves")
        answer = browser.get("/healthz")
        assert (answer.text, answer.http_version) == ("ok\n", "HTTP/1.1")
        logged_in = browser.post("/login", data={"token": "a-token-of-sixteen-or-more", "next": "/"})
        assert "; Secure" in logged_in.headers["set-cookie"]
        elsewhere = {"host": "console.example"}  # so that coming from this host is no proof
        assert browser.get("/api/v1/topics", headers=elsewhere).status_code == 503, "logged in; there is no cluster"
        browser.cookies.clear()
        assert browser.get("/api/v1/topics", headers=elsewhere).status_code == 403
        # Browsers take it for every port of a host: only where this is the host's own place.
        hosts = {"localhost": False, f"localhost:{port}": False, "127.0.0.1": False, f"console.example:{port}": False}
        for host, is_said in (hosts | {"console.example": True, "console.example:443": True}).items():
            said = browser.get("/healthz", headers={"host": host}).headers
            assert ("strict-transport-security" in said) is is_said, host
    with grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(certificate)) as channel:
        assert _check(channel).status in (1, 2)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{port}/healthz", timeout=_CALL_S, trust_env=False)
    with grpc.insecure_channel(f"localhost:{port}") as channel, pytest.raises(grpc.RpcError):
        _check(channel, waits=False)
    assert "Traceback" not in admin.log_path.read_text()


def test_a_renewed_certificate_is_shown_to_new_connections_and_ends_none(
    secure_admin: tuple[ServiceProcess, Path],
) -> None:
    admin, folder = secure_admin
    first, url = (folder / "tls.crt").read_bytes(), f"https://localhost:{admin.ports['httpPort']}/healthz"
    with httpx.Client(verify=_context(first), trust_env=False) as before:
        _until(lambda: before.get(url).status_code == 200, "it serves")
        second = _new_certificate(folder)

        def is_new() -> bool:
            try:
                return httpx.get(url, verify=_context(second), trust_env=False).status_code == 200
            except httpx.ConnectError:
                return False

        _until(is_new, "the new certificate is shown")
        assert before.get(url).status_code == 200
    (folder / "tls.key").write_text("no key\n")
    for _ in range(3):
        time.sleep(0.6)
        assert is_new(), "files that do not fit together change nothing"
    assert "tls_certificate_not_renewed" in admin.log_path.read_text()


def test_handshakes_that_never_end_are_connections_and_do_not_last(secure_admin: tuple[ServiceProcess, Path]) -> None:
    admin, folder = secure_admin
    address, context = ("127.0.0.1", admin.ports["httpPort"]), _context((folder / "tls.crt").read_bytes())
    url = f"https://localhost:{address[1]}/healthz"
    _until(lambda: httpx.get(url, verify=context, trust_env=False).status_code == 200, "it serves")
    silent = [socket.create_connection(address) for _ in range(40)]
    for number, sock in enumerate(silent):
        if number % 2:
            sock.sendall(b"\x16\x03\x01\x02\x00\x01"[: 1 + number % 6])  # a handshake that goes no further
    for sock in silent:
        sock.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b"", "closed: some at once, the others when their time is over"
        sock.close()
    assert httpx.get(url, verify=context, trust_env=False).status_code == 200


@pytest.mark.parametrize("lacks", ["key", "certificate", "both fit together", "nothing"])
def test_files_of_no_use_are_told_at_the_start(tmp_path: Path, lacks: str) -> None:
    _new_certificate(tmp_path)
    settings = {"tlsCertPath": f"{tmp_path}/tls.crt", "tlsKeyPath": f"{tmp_path}/tls.key", "httpPort": "0"}
    if lacks == "key":
        settings.pop("tlsKeyPath")
    elif lacks == "certificate":
        (tmp_path / "tls.crt").unlink()
    elif lacks == "both fit together":
        (tmp_path / "tls.key").replace(tmp_path / "old.key")
        _new_certificate(tmp_path)
        (tmp_path / "old.key").replace(tmp_path / "tls.key")
    command = [
        sys.executable,
        "-m",
        "tandemmq.admin",
        "--check",
        *(f"--set={key}={text}" for key, text in settings.items()),
    ]
    done = run_program(command)
    assert ("tlsCertPath" in done.stderr) is (lacks != "nothing"), done.stderr
    assert (done.returncode == 0) is (lacks == "nothing"), done.stderr
