"""Secrets are planted wherever one can be given to a cluster, the cluster is used, refuses, fails and crashes; then all
that it said and wrote is searched for them."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import quote

import grpc
import httpx
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from support.api_requests import message, receive_request, send_request
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.running_time import run_program
from tandemmq.admin.api.access import SESSION_COOKIE
from tandemmq.admin.settings import AdminSettings
from tandemmq.broker.settings import BrokerSettings
from tandemmq.cli.app import app
from tandemmq.cli.ending import Refused
from tandemmq.cli.local.folder import split_overrides
from tandemmq.consistency.settings import ConsistencySettings
from tandemmq.core.access.signature import sign
from tandemmq.nameserver.settings import NameServerSettings
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.settings import ServiceSettings, SettingsError, load_settings

_LIMIT_S = 120.0
_CALL_S = 20.0
_SERVICES: list[type[ServiceSettings]] = [BrokerSettings, NameServerSettings, AdminSettings, ConsistencySettings]
_SECRETS = [
    pytest.param(settings, each.alias or name, id=f"{settings.__name__}-{name}")
    for settings in _SERVICES
    for name, each in settings.model_fields.items()
    if each.annotation is SecretStr or "SecretStr" in str(each.annotation)
]


def planted(what: str) -> str:
    """A value that stands nowhere by chance."""
    return f"planted-{what}-{secrets.token_hex(12)}"


def forms(secret: str) -> list[str]:
    """How it might be written."""
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    return [secret, encoded[:-1], quote(secret, safe=""), secret.encode().hex()]


@dataclass
class Run:
    """A cluster, what is planted in it, and what it said beside its files."""

    folder: Path
    cluster: ProcessCluster
    admin: ServiceProcess
    planted: dict[str, str]
    said: dict[str, str] = field(default_factory=dict)

    def cli(self, *words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--namesrv", self.cluster.namesrv_addr])
        text = f"{result.output}\n{result.exception!r}"
        self.said["tandemmq " + " ".join(words)] = text
        return text

    def get(self, path: str, **headers: str) -> httpx.Response:
        port = self.admin.ports["httpPort"]
        answer = httpx.get(f"http://127.0.0.1:{port}{path}", headers=headers, timeout=_CALL_S, trust_env=False)
        self.said[f"GET {path} {len(self.said)}"] = f"{answer.status_code} {answer.headers}\n{answer.text}"
        return answer

    def found(self, *names: str) -> list[tuple[str, str]]:
        """Which of the planted stand where: everything said, and every file that is no secret's own."""
        places = {name: text.encode() for name, text in self.said.items()}
        for path in self.folder.rglob("*"):
            if path.is_file() and path.parent.name != "secret":
                places[str(path.relative_to(self.folder))] = path.read_bytes()
        return [
            (name, place)
            for name in names or self.planted
            for place, content in places.items()
            if any(form.encode() in content for form in forms(self.planted[name]))
        ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("secrets")
    secret = folder / "secret"
    secret.mkdir()
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        [
            *("openssl", *request.split(), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(secret / "tls.key"), "-out", str(folder / "tls.crt")),
        ],
        check=True,
        capture_output=True,
    )
    values = {
        **{name: planted(name) for name in ("admin-token", "viewer-token", "guessed-token", "short-token")},
        **{name: planted(name) for name in ("signature", "session-token", "body", "property", "user-secret")},
        # Of users that are made and changed while the cluster runs.
        **{name: planted(name) for name in ("made-secret", "changed-secret", "posted-secret", "typed-secret")},
        # What users' secrets are sealed with: 32 bytes.
        "auth-key": base64.b64encode(secrets.token_bytes(32)).decode(),
        # The first line of the key.
        "tls-key": (secret / "tls.key").read_text().splitlines()[1],
    }
    (secret / "auth.key").write_text(values["auth-key"] + "\n")
    user = {"username": "ann", "password": values["user-secret"], "userType": "Super"}
    (secret / "seeds.yaml").write_text(json.dumps({"users": [user]}))
    more = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authKeyPath": str(secret / "auth.key"),
        "authSeedPath": str(secret / "seeds.yaml"),
        "tlsMode": "permissive",
        "tlsCertPath": str(folder / "tls.crt"),
        "tlsKeyPath": str(secret / "tls.key"),
        "traceEnable": "true",
        "traceSampleRate": "1",
        "logLevel": "DEBUG",
    }
    (folder / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch, ProcessCluster(folder) as cluster:
        # What services and commands leave there is searched, too.
        patch.setenv("TMPDIR", str(folder / "tmp"))
        cluster.add_name_server(with_disk=True)
        for broker_id in (0, 1):
            cluster.add_broker(broker_id=broker_id, settings=more)
        admin = ServiceProcess(
            name="admin",
            module="tandemmq.admin",
            settings={"namesrvAddr": cluster.namesrv_addr, "refreshInterval": "200"},
            log_path=folder / "logs" / "admin.log",
            port_keys=("httpPort",),
            # A program of its own, with a command line of its own.
            prefix=("env",),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TANDEMMQ_ADMIN_TOKEN", values["admin-token"])
            patch.setenv("TANDEMMQ_VIEWER_TOKEN", values["viewer-token"])
            admin.start()
        try:
            yield Run(folder, cluster, admin, values)
        finally:
            admin.kill()


def _call(run: Run, method: str, request: Any, response_type: Any, *, tls: bool, is_stranger: bool = False) -> None:
    """As a client that signs, or one that guesses; what it is told is kept."""
    port = run.cluster.brokers["broker-a-0"].ports["grpcServerPort"]
    if tls:
        credentials = grpc.ssl_channel_credentials((run.folder / "tls.crt").read_bytes())
        channel = grpc.secure_channel(f"localhost:{port}", credentials)
    else:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    date = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    signature = sign(run.planted["user-secret"].encode(), date)
    if is_stranger:
        signature = run.planted["signature"].encode()
    signed = "MQv2-HMAC-SHA1 Credential=ann, SignedHeaders=x-mq-date-time"
    metadata = (
        ("x-mq-client-id", "client@1"),
        ("x-mq-date-time", date),
        ("x-mq-session-token", run.planted["session-token"]),
        ("authorization", f"{signed}, Signature={signature.hex()}"),
    )
    with channel:
        made = channel.unary_stream if method == "ReceiveMessage" else channel.unary_unary
        call = made(
            f"/apache.rocketmq.v2.MessagingService/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        try:
            answer = call(request, timeout=_CALL_S, metadata=metadata)
            for each in answer if method == "ReceiveMessage" else [answer]:
                # A receive gives the body to whom it is for.
                run.said[f"{method} {len(run.said)}"] = "" if method == "ReceiveMessage" else str(each)
        except grpc.RpcError as error:
            run.said[f"{method} {len(run.said)}"] = repr(error)


@contextmanager
def command_lines() -> Iterator[set[bytes]]:
    """Those of all processes of this machine that were seen within the block, some hundred times a second."""
    seen: set[bytes] = set()
    over = Event()

    def look() -> None:
        while not over.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(path.read_bytes())
            over.wait(0.002)

    looks = Thread(target=look)
    looks.start()
    try:
        yield seen
    finally:
        over.set()
        looks.join()


def test_no_secret_is_in_a_command_line_of_any_process(run: Run) -> None:
    """Services with tokens and keys, and commands that are given users' secrets in each way they know."""
    command = [sys.executable, "-m", "tandemmq.cli"]
    where, ask = ["--namesrv", run.cluster.namesrv_addr], ["-n", run.cluster.namesrv_addr]
    file = run.folder / "secret" / "of-dan.txt"
    file.write_text(f"{run.planted['made-secret']}\n")
    secret = run.planted["typed-secret"]
    keys = {"TANDEMMQ_ACCESS_KEY": "ann", "TANDEMMQ_SECRET_KEY": run.planted["user-secret"]}
    asked: list[tuple[list[str], str]] = [
        (["user", "create", "dan", "--password-file", str(file), *where], ""),
        (["user", "update", "dan", "--password-file", "-", *where], secret),
        (["createUser", *ask, "-c", "DefaultCluster", "-u", "eve", "-p", "-"], secret),
        (["updateUser", *ask, "-c", "DefaultCluster", "-u", "eve", "-p", "-"], run.planted["made-secret"]),
        (["topic", "create", "notes", *where], ""),
        (["send", "notes", "text", *where], ""),
    ]
    with command_lines() as seen:
        for words, said in asked:
            done = subprocess.run(
                [*command, *words],
                input=f"{said}\n",
                env={**os.environ, **keys},
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
            assert done.returncode == 0, (words, done.stdout, done.stderr)
            run.said[f"process {words[:3]}"] = done.stdout + done.stderr
    text = b"\n".join(seen)
    assert b"createUser" in text, "the search sees short commands"
    assert b"tandemmq.admin" in text
    for name, value in run.planted.items():
        assert not [form for form in forms(value) if form.encode() in text], name
    assert run.found() == []


def test_a_service_warns_of_a_secret_in_an_argument_and_up_does_not_take_one() -> None:
    command = [sys.executable, "-m", "tandemmq.admin", "--check", "--set", "namesrvAddr=127.0.0.1:1"]
    for given, warned in (
        ([], False),
        (["--set", "admin_token="], False),
        (["--set", f"admin_token={'x' * 20}"], True),
    ):
        done = subprocess.run([*command, *given], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        assert ("warning: adminToken (--set)" in done.stderr) is warned, done.stderr
        assert "x" * 20 not in done.stderr + done.stdout
    for parameter in _SECRETS:
        with pytest.raises(Refused, match="is not taken") as refused:
            split_overrides([f"admin:{parameter.values[1]}=planted"], ["admin"])
        assert "planted" not in f"{refused.value} {refused.value.cause} {refused.value.remedy}"


def test_nothing_planted_is_found_after_a_run_with_errors_and_a_crash(run: Run) -> None:
    cluster = run.cluster
    assert "created" in run.cli("topic", "create", "orders")
    wait_until(lambda: "broker-a:1" in run.cli("status"), limit_s=_LIMIT_S, what="both brokers are seen")
    sent = message("orders", run.planted["body"].encode())
    sent.user_properties["card"] = run.planted["property"]
    for tls in (True, False):
        _call(run, "SendMessage", send_request(sent), pb.SendMessageResponse, tls=tls)
    assert sum("code: OK" in text for name, text in run.said.items() if name.startswith("SendMessage")) == 2, run.said
    # Refusals of every kind.
    _call(run, "SendMessage", send_request(sent), pb.SendMessageResponse, tls=True, is_stranger=True)
    assert any("UNAUTHORIZED" in text for name, text in run.said.items() if name.startswith("SendMessage")), run.said
    odd = message("no-such-topic", run.planted["body"].encode())
    _call(run, "SendMessage", send_request(odd), pb.SendMessageResponse, tls=False)
    odd = message("orders", run.planted["body"].encode())
    odd.user_properties["bad\nname"] = run.planted["property"]
    _call(run, "SendMessage", send_request(odd), pb.SendMessageResponse, tls=False)
    _call(run, "ReceiveMessage", receive_request("orders"), pb.ReceiveMessageResponse, tls=True)
    _call(run, "AckMessage", pb.AckMessageRequest(), pb.AckMessageResponse, tls=False)
    _ask_admin(run)
    _change_users(run)
    for words in (
        ("status", "-o", "json"),
        ("doctor",),
        ("events",),
        ("clients", "-o", "json"),
        ("broker", "list", "--interval", "0.1"),
        ("broker", "config", "get", "broker-a", "-o", "yaml"),
        ("broker", "config", "set", "broker-a", "tlsKeyPath=/elsewhere", "--yes"),
        ("topic", "describe", "orders"),
        ("verify", "--results", str(run.folder / "consistency")),
    ):
        run.cli(*words)
    # A slave that dies, a master that ends while it is asked, and an admin service that crashes.
    cluster.brokers["broker-a-1"].kill()
    cluster.brokers["broker-a-0"].stop()
    run.get("/api/v1/cluster", authorization=f"Bearer {run.planted['admin-token']}")
    run.cli("status")
    assert run.admin.process is not None
    os.kill(run.admin.process.pid, signal.SIGABRT)
    run.admin.process.wait(_CALL_S)

    # The search finds what is there, and the run came to the places that matter.
    in_stores = run.found("body")
    assert {place.split("/")[0] for _, place in in_stores} == {"broker-a-0", "broker-a-1"}, in_stores
    assert len(run.admin.log_text()) > 100
    assert len(cluster.brokers["broker-a-0"].log_text()) > 100
    beside_stores = [(name, place) for name, place in run.found() if not re.match(r"broker-a-[01]/commitlog/", place)]
    assert beside_stores == []
    # Nor are there secrets in the store: they are nobody's message.
    assert {name for name, _ in run.found()} == {"body", "property"}


def _ask_admin(run: Run) -> None:
    """Everything that says much, as each of those who may and may not ask."""
    tokens = [f"Bearer {run.planted[name]}" for name in ("admin-token", "viewer-token", "guessed-token")]
    paths = [
        "/",
        "/metrics",
        "/api/v1/cluster",
        "/api/v1/events",
        "/brokers/broker-a:0",
        "/api/v1/brokers/broker-a:0/settings",
    ]
    answers = {(path, token): run.get(path, authorization=token).status_code for path in paths for token in tokens}
    answers |= {(path, ""): run.get(path).status_code for path in paths}
    assert answers["/api/v1/cluster", tokens[0]] == 200
    run.get(f"/api/v1/{run.planted['guessed-token'][:0]}unknown", authorization=tokens[2])
    port = run.admin.ports["httpPort"]
    for token in ("guessed-token", "admin-token"):
        answer = httpx.post(
            f"http://127.0.0.1:{port}/login",
            data={"token": run.planted[token]},
            timeout=_CALL_S,
            trust_env=False,
        )
        session = answer.cookies.get(SESSION_COOKIE, "")
        text = f"{answer.status_code} {answer.headers}\n{answer.text}"
        if session:
            # It is told to whom it is for, this once.
            run.planted["session"] = session
            text = text.replace(session, "(the session)")
            assert run.get("/brokers/broker-a:0", cookie=f"{SESSION_COOKIE}={session}").status_code == 200
        run.said[f"login with {token}"] = text
    assert "session" in run.planted


def _change_users(run: Run) -> None:
    """Users are made, changed, copied to the slave, looked at from all sides, and refused."""
    file = run.folder / "secret" / "of-a-user.txt"
    for verb, name in (("create", "made-secret"), ("update", "changed-secret")):
        file.write_text(f"{run.planted[name]}\n")
        assert "broker-a:0: " in run.cli("user", verb, "bob", "--password-file", str(file))
    run.cli("acl", "put", "bob", "Topic:orders", "--actions", "Pub")
    for words in (("user", "list", "-o", "json"), ("acl", "list", "-o", "json"), ("user", "list")):
        assert "bob" in run.cli(*words)
    port = run.admin.ports["httpPort"]
    posted = {"password": run.planted["posted-secret"], "user_type": "of no type"}
    for body in (json.dumps(posted), json.dumps(posted)[:-1]):
        answer = httpx.post(
            f"http://127.0.0.1:{port}/api/v1/users/cy",
            content=body,
            headers={"authorization": f"Bearer {run.planted['admin-token']}", "content-type": "application/json"},
            timeout=_CALL_S,
            trust_env=False,
        )
        assert answer.status_code >= 400
        run.said[f"POST user {len(run.said)}"] = f"{answer.status_code} {answer.headers}\n{answer.text}"
    for path in ("/users", "/api/v1/users", "/api/v1/users/bob", "/api/v1/acls", "/events"):
        run.get(path, authorization=f"Bearer {run.planted['admin-token']}")
    slave = run.cluster.store_folder("broker-a-1") / "config" / "users.json"
    wait_until(lambda: slave.exists() and "bob" in slave.read_text(), limit_s=_LIMIT_S, what="the slave has the user")


@pytest.mark.parametrize("source", ["set", "environment", "file"])
@pytest.mark.parametrize("module", ["tandemmq.admin", "tandemmq.broker", "tandemmq.nameserver"])
def test_a_start_that_fails_does_not_show_a_secret(module: str, source: str, tmp_path: Path) -> None:
    """Each of its settings is refused: as a key that is not known, or as one that is too short or odd."""
    secret = f"short {planted('token')}"
    arguments, environment = [], dict(os.environ)
    if source == "set":
        arguments = ["--set", f"adminToken={secret}"]
    elif source == "environment":
        # The second with a slip of the pen.
        environment["TANDEMMQ_ADMIN_TOKEN"] = environment["TANDEMMQ_ADMIN_TOKN"] = secret
        arguments = ["--set", "listenPort=nonsense", "--set", "httpPort=nonsense"]
    else:
        (tmp_path / "settings.conf").write_text(f"adminToken={secret}\n")
        arguments = ["--config", str(tmp_path / "settings.conf")]
    done = run_program([sys.executable, "-m", module, *arguments], env=environment, cwd=tmp_path, limit_s=_LIMIT_S)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert said
    assert not [form for form in [*forms(secret), secret.split()[1]] if form in said], said


@pytest.mark.parametrize(("settings_type", "key"), _SECRETS)
def test_a_secret_setting_is_masked_however_settings_are_shown(settings_type: type[ServiceSettings], key: str) -> None:
    secret, shown = planted(key), io.StringIO()
    try:
        settings = load_settings(settings_type, environ={}, overrides=[f"{key}={secret}"])
    except SettingsError as error:
        # It needs others beside it; the refusal is a place to leak, too.
        print(error, file=shown)
    else:
        print(settings, repr(settings), settings.model_dump(), settings.model_dump_json(), file=shown)
    assert len(shown.getvalue()) > 10
    assert not [form for form in forms(secret) if form in shown.getvalue()]
