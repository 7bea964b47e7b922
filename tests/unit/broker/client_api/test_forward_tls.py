"""Calls that are passed on to brokers whose client ports take TLS alone."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from support.manual_time import ManualTime
from support.running_time import PATIENCE_S
from tandemmq.broker.client_api.forward_tls import PlainChannels, TlsChannels, _covers, broker_channels_of
from tandemmq.broker.client_api.forwarding import CallForwarder
from tandemmq.broker.settings import BrokerSettings
from tandemmq.http2.errors import TlsMode
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.http2_front import Http2Front
from tandemmq.service.rpc import Call, MethodTable, UnaryMethod
from tandemmq.service.settings import load_settings

SERVICE = "apache.rocketmq.v2.MessagingService"


class Issued(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


def issue(name: str, *alternatives: str, by: Issued | None = None, is_ca: bool = False) -> Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by is not None else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if alternatives:
        names = [
            x509.IPAddress(ipaddress.ip_address(each)) if each[0].isdigit() else x509.DNSName(each)
            for each in alternatives
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Issued(builder.sign(by.key if by is not None else key, hashes.SHA256()), key)


class BrokerFiles:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate, self.key, self.authorities = (folder / name for name in ("tls.crt", "tls.key", "ca.crt"))

    def write(self, leaf: Issued, *between: Issued, authorities: Sequence[Issued] = ()) -> BrokerFiles:
        self.certificate.write_bytes(b"".join(each.pem for each in (leaf, *between)))
        self.key.write_bytes(leaf.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        if authorities:
            self.authorities.write_bytes(b"".join(each.pem for each in authorities))
        return self

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(self.certificate, self.key)
        return context


@asynccontextmanager
async def group(master: BrokerFiles, channels: TlsChannels | None) -> AsyncIterator[grpc.aio.Channel]:
    """A master whose port takes TLS alone, and a channel to a member that passes calls on to it."""

    def heartbeat(request: pb.HeartbeatRequest, call: Call) -> None:
        call.send(pb.HeartbeatResponse(status=definition.Status(message="master")))
        call.finish()

    table = MethodTable(SERVICE, {"Heartbeat": UnaryMethod(heartbeat, pb.HeartbeatRequest)})
    clock = ManualTime()
    server = Http2Front("127.0.0.1", 0, clock=clock, tls=master.context, tls_mode=TlsMode.ENFORCING)
    member = Http2Front("127.0.0.1", 0, clock=clock)
    for each in (server, member):
        each.add(table)
    endpoint = f"127.0.0.1:{await server.start()}"
    forwarder = CallForwarder(lambda: endpoint, now_ms=clock.monotonic_ms, brokers=channels)
    member.forward(forwarder)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{await member.start()}") as channel:
        try:
            yield channel
        finally:
            await forwarder.close()
            await member.stop(limit_ms=100)
            await server.stop(limit_ms=100)


async def heartbeat(channel: grpc.aio.Channel) -> str:
    call = channel.unary_unary(f"/{SERVICE}/Heartbeat", None, pb.HeartbeatResponse.FromString)
    try:
        answer = await call(b"", timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return str(answer.status.message)


def two_brokers(kind: str, folder: Path) -> tuple[BrokerFiles, BrokerFiles]:
    ours, theirs = BrokerFiles(folder / "ours"), BrokerFiles(folder / "theirs")
    root = issue("root", is_ca=True)
    between = issue("between", by=root, is_ca=True)
    shared = {
        "one, self-signed, a common name alone": issue("mq"),
        "one, self-signed, for a load balancer": issue("mq", "mq.example"),
        "one of a CA, for names of pods": issue("mq", "*.set.ns.svc", "mq.ns.svc", by=root),
    }
    if kind in shared:
        return ours.write(shared[kind]), theirs.write(shared[kind])
    first, second = issue("a", "127.0.0.2", by=between), issue("b", "127.0.0.1", by=between)
    if kind == "one each, with what is between":
        return ours.write(first, between), theirs.write(second, between)
    if kind == "one each, with a CA beside":
        return ours.write(first, authorities=(between, root)), theirs.write(second, between)
    assert kind == "of another CA"
    return ours.write(first, authorities=(root,)), theirs.write(issue("b", "127.0.0.1", by=issue("root", is_ca=True)))


@pytest.mark.parametrize(
    "kind",
    [
        "one, self-signed, a common name alone",
        "one, self-signed, for a load balancer",
        "one of a CA, for names of pods",
        "one each, with what is between",
        "one each, with a CA beside",
    ],
)
async def test_a_call_is_passed_on_by_tls(kind: str, tmp_path: Path) -> None:
    ours, theirs = two_brokers(kind, tmp_path)
    channels = TlsChannels(ours.certificate, own_host="127.0.0.2", clock=ManualTime())
    async with group(theirs, channels) as channel:
        assert await heartbeat(channel) == "master"


async def test_nobody_is_believed_who_has_another_ca_s_certificate(tmp_path: Path) -> None:
    ours, theirs = two_brokers("of another CA", tmp_path)
    async with group(theirs, TlsChannels(ours.certificate, own_host="127.0.0.2", clock=ManualTime())) as channel:
        assert await heartbeat(channel) == "UNAVAILABLE"


async def test_a_certificate_that_was_renewed_is_believed_after_a_second(tmp_path: Path) -> None:
    old, new, clock = issue("mq"), issue("mq"), ManualTime()
    ours, theirs = BrokerFiles(tmp_path / "ours").write(old), BrokerFiles(tmp_path / "theirs").write(old)
    channels = TlsChannels(ours.certificate, own_host="127.0.0.2", clock=clock)
    async with group(theirs, channels) as channel:
        assert await heartbeat(channel) == "master"
    theirs.write(new)
    async with group(theirs, channels) as channel:
        assert await heartbeat(channel) == "UNAVAILABLE"
        ours.certificate.write_bytes(b"half of it")
        clock.advance(1_000)
        assert await heartbeat(channel) == "UNAVAILABLE", "what cannot be read is not taken"
        ours.write(new)
        clock.advance(1_000)
        assert await heartbeat(channel) == "master"


@pytest.mark.parametrize(
    ("name", "host", "is_so"),
    [
        ("mq.example", "MQ.example", True),
        ("*.set.ns", "pod-0.set.ns", True),
        ("*.set.ns", "a.pod-0.set.ns", False),
        ("*.set.ns", "set.ns", False),
        ("*.set.ns", ".set.ns", False),
        ("mq.example", "mq", False),
        ("*.x", "localhost", False),
    ],
)
def test_which_hosts_a_name_covers(name: str, host: str, is_so: bool) -> None:
    assert _covers(name, host) is is_so


@pytest.mark.parametrize(("mode", "kind"), [("disabled", PlainChannels), ("permissive", PlainChannels)])
def test_while_others_may_take_no_tls_yet_calls_go_without(mode: str, kind: type, tmp_path: Path) -> None:
    files = BrokerFiles(tmp_path).write(issue("mq"))
    given = [f"tlsMode={mode}", f"tlsCertPath={files.certificate}", f"tlsKeyPath={files.key}"]
    settings = load_settings(BrokerSettings, environ={}, overrides=given if mode != "disabled" else [])
    assert isinstance(broker_channels_of(settings, clock=ManualTime()), kind)
