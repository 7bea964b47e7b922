"""TLS on a service port: who gets in, who is told what, and certificates that change under load."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from google.protobuf.wrappers_pb2 import StringValue

from support.certificates import (
    ADMIN,
    CALLERS,
    CLUSTER,
    CONSISTENCY,
    GROUP,
    USES,
    TestCertificates,
    broker,
    made_by_hand,
    now,
)
from support.cluster_processes import lasting_port
from support.manual_time import ManualTime
from support.running_time import PATIENCE_S
from tandemmq.core.access.identity import METHODS, AdminLevel, Identity, Role, refusal, server_name
from tandemmq.http2.errors import TlsMode
from tandemmq.proto.admin.v1 import broker_access_service_pb2 as access_pb
from tandemmq.proto.admin.v1 import broker_access_service_pb2_grpc
from tandemmq.service import grpc_server
from tandemmq.service.certificates import (
    CA_FILE,
    CA_KEY_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    CertificateAuthority,
    CertificateFolder,
    CertificateUnusable,
    names_of,
    read_certificates,
    write_certificates,
)
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.grpc_server import GrpcServer
from tandemmq.service.rpc import Call, MethodTable, UnaryMethod
from tandemmq.service.service_channels import ServiceTls, aio_channel, use_service_tls
from tandemmq.service.service_tls import PermissionInterceptor, ServerTls

STATUS = "/tandemmq.admin.v1.BrokerAdminService/GetBrokerStatus"
PROBES = "/tandemmq.admin.v1.BrokerAdminService/ProbePeers"


@pytest.fixture
def certificates(tmp_path: Path) -> TestCertificates:
    return TestCertificates(tmp_path)


class Server:
    """Every method of the table, and one that is not in it."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.port = 0
        self.watch: grpc.aio.ServicerContext[bytes, bytes] | None = None
        self.others: Callable[[GrpcServer], None] = lambda server: None

    @asynccontextmanager
    async def serving(
        self,
        folder: Path,
        mode: TlsMode = TlsMode.ENFORCING,
        address: str = "127.0.0.1",
        clock: SystemClock | None = None,
    ) -> AsyncIterator[None]:
        clock = clock or SystemClock()
        tls = ServerTls(mode, CertificateFolder(folder, clock=clock), CLUSTER, GROUP)
        server = GrpcServer(address, 0, clock=clock, tls=tls)
        self.others(server)
        by_service: dict[str, list[str]] = {}
        for path in (*METHODS, "/tandemmq.broker.v1.ReplicaService/New"):
            _, service, method = path.split("/")
            if path == PROBES:
                keep = grpc.unary_stream_rpc_method_handler(self._keep)
                handlers = grpc.method_handlers_generic_handler(service, {method: keep})
                server.aio_server.add_generic_rpc_handlers((handlers,))
            elif not service.startswith("grpc."):
                by_service.setdefault(service, []).append(method)
        for service, methods in by_service.items():
            table = {name: UnaryMethod(self._answer(f"/{service}/{name}"), StringValue) for name in methods}
            server.add(MethodTable(service, table))
        self.port = await server.start()
        await server.set_serving(True)
        try:
            yield
        finally:
            await server.stop(limit_ms=0)

    def _answer(self, path: str) -> Callable[[StringValue, Call], None]:
        def answer(request: StringValue, call: Call) -> None:
            self.called.append(path)
            call.send(request)
            call.finish()

        return answer

    async def _keep(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self.called.append(PROBES)
        self.watch = context
        await context.write(request)
        await asyncio.Event().wait()

    @asynccontextmanager
    async def caller(
        self, folder: Path | None, *, own_group: bool = False, address: str = ""
    ) -> AsyncIterator[grpc.aio.Channel]:
        tls = None if folder is None else ServiceTls(CertificateFolder(folder, clock=SystemClock()))
        with use_service_tls(tls):
            async with aio_channel(address or f"127.0.0.1:{self.port}", (), own_group=own_group) as channel:
                yield channel

    @asynccontextmanager
    async def stranger(self, folder: Path) -> AsyncIterator[grpc.aio.Channel]:
        """Takes the server for one of its own cluster, whichever that is."""
        found = CertificateFolder(folder, clock=SystemClock()).current()
        credentials = grpc.ssl_channel_credentials(found.authorities, found.key, found.chain)
        name = ("grpc.ssl_target_name_override", server_name(CLUSTER))
        async with grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, options=(name,)) as channel:
            yield channel


async def _call(channel: grpc.aio.Channel, path: str = STATUS) -> str:
    """What comes back, or the status that does."""
    call = channel.unary_unary(
        path, request_serializer=StringValue.SerializeToString, response_deserializer=StringValue.FromString
    )
    try:
        answer: StringValue = await call(StringValue(value="here"), timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name} {error.details()}"
    return answer.value


async def test_every_method_is_open_to_exactly_those_whom_the_table_names(certificates: TestCertificates) -> None:
    server = Server()
    async with server.serving(certificates.issue(broker())):
        for identity in CALLERS.values():
            async with server.stranger(certificates.issue(identity)) as channel:
                for path in (*METHODS, "/tandemmq.broker.v1.ReplicaService/New"):
                    if path.startswith("/grpc.") or path == PROBES:
                        continue
                    reason = refusal(path, identity, cluster=CLUSTER, group=GROUP)
                    told = await _call(channel, path)
                    assert told == ("here" if reason is None else f"PERMISSION_DENIED {reason}")
                    assert (path in server.called) == (reason is None)
                    server.called.clear()


@pytest.mark.parametrize("kind", ["plain", "no certificate", "expired", "self-signed", "of another CA"])
async def test_a_stranger_never_reaches_a_method(certificates: TestCertificates, kind: str) -> None:
    server = Server()
    admin = ADMIN[AdminLevel.REPAIR]
    other = CertificateAuthority.new("another CA", now=now(), days=3)
    other.save(certificates.root / "other")
    pairs: dict[str, tuple[bytes, bytes] | None] = {
        "no certificate": None,
        "expired": certificates.authority.issue(admin, now=now() - timedelta(days=2), days=1),
        "self-signed": (other.pem, (certificates.root / "other" / CA_KEY_FILE).read_bytes()),
        "of another CA": other.issue(admin, now=now(), days=1),
    }
    async with server.serving(certificates.issue(broker())):
        target = f"127.0.0.1:{server.port}"
        if kind == "plain":
            channel = grpc.aio.insecure_channel(target)
        else:
            pair = pairs[kind]
            credentials = grpc.ssl_channel_credentials(
                certificates.authority.pem, *((pair[1], pair[0]) if pair else (None, None))
            )
            name = ("grpc.ssl_target_name_override", server_name(CLUSTER))
            channel = grpc.aio.secure_channel(target, credentials, options=(name,))
        async with channel:
            for path in (STATUS, "/grpc.health.v1.Health/Check"):
                assert (await _call(channel, path)).startswith("UNAVAILABLE")
        assert server.called == []
        # An orderly caller is served as before.
        async with server.caller(certificates.issue(admin)) as channel:
            assert await _call(channel) == "here"


# Whoever calls, with whatever certificate: what is said in docs/operations/security.md, once more, as a rule.

_SPIFFE = "spiffe://tandemmq/"
_BEARERS = {name: [str(identity)] for name, identity in CALLERS.items()} | {
    "nobody": [],
    "somebody of elsewhere": ["spiffe://example.org/DefaultCluster/admin/repair"],
    "one of ours beside another's": ["spiffe://example.org/pod", str(ADMIN[AdminLevel.VIEWER])],
    "two of ours": [str(ADMIN[AdminLevel.VIEWER]), str(ADMIN[AdminLevel.REPAIR])],
    "no such role": [_SPIFFE + "DefaultCluster/root"],
    "a level that is none": [_SPIFFE + "DefaultCluster/admin/REPAIR"],
    "a path with a hole": [_SPIFFE + "DefaultCluster//admin/repair"],
    "an id that is none": [_SPIFFE + "DefaultCluster/broker/broker-a/01"],
    "another scheme": ["https://tandemmq/DefaultCluster/admin/repair"],
}
_WHEN = {"now": (-1.0, 1.0), "expired": (-3.0, -1.0), "not yet": (1.0, 3.0)}
_DRAWN = 80


def _may(bearer: str, authority: str, when: str, use: str, path: str) -> str:
    """What is told: nothing ("UNAVAILABLE"), who it is not ("UNAUTHENTICATED"), what it may not, or the answer."""
    if authority != "ours" or when != "now" or use not in ("both", "client", "not said"):
        return "UNAVAILABLE"
    ours = [uri for uri in _BEARERS[bearer] if uri.startswith(_SPIFFE)]
    if len(ours) != 1 or (bearer not in CALLERS and bearer != "one of ours beside another's"):
        return "UNAUTHENTICATED"
    identity = CALLERS.get(bearer, ADMIN[AdminLevel.VIEWER])
    return "here" if refusal(path, identity, cluster=CLUSTER, group=GROUP) is None else "PERMISSION_DENIED"


async def test_whoever_gets_in_has_a_certificate_that_says_so_in_every_way(certificates: TestCertificates) -> None:
    chance = random.Random(1)
    authorities = {"ours": certificates.authority, "another": CertificateAuthority.new("other", now=now(), days=9)}
    # Of the same name, and with another key.
    authorities["one called like ours"] = CertificateAuthority.new("test CA", now=now(), days=9)
    paths = sorted(path for path in METHODS if not path.startswith("/grpc.") and path != PROBES)
    server, seen = Server(), Counter[str]()
    async with server.serving(certificates.issue(broker())):
        for _ in range(_DRAWN):
            bearer, path = chance.choice(sorted(_BEARERS)), chance.choice(paths)
            authority = chance.choice(["ours", "ours", "ours", *sorted(authorities)])
            when, use = chance.choice(["now", "now", *sorted(_WHEN)]), chance.choice(["both", "client", *sorted(USES)])
            chain, key = made_by_hand(authorities[authority], uris=_BEARERS[bearer], days=_WHEN[when], use=use)
            credentials = grpc.ssl_channel_credentials(certificates.authority.pem, key, chain)
            options = (
                ("grpc.ssl_target_name_override", server_name(CLUSTER)),
                ("grpc.use_local_subchannel_pool", 1),
            )
            async with grpc.aio.secure_channel(f"127.0.0.1:{server.port}", credentials, options=options) as channel:
                told = (await _call(channel, path)).partition(" ")[0]
            expected = _may(bearer, authority, when, use, path)
            assert told == expected, (bearer, authority, when, use, path)
            assert bool(server.called) == (told == "here")
            server.called.clear()
            seen[told] += 1
    assert set(seen) == {"here", "UNAVAILABLE", "UNAUTHENTICATED", "PERMISSION_DENIED"}


@pytest.mark.parametrize("use", sorted(USES))
@pytest.mark.parametrize("bearer", [broker(1), ADMIN[AdminLevel.VIEWER]], ids=str)
async def test_what_is_said_of_a_folder_is_what_tls_does_with_it(
    certificates: TestCertificates, bearer: Identity, use: str
) -> None:
    """A certificate that `certs check` finds right, and TLS does not, would be looked for in vain."""
    chain, key = made_by_hand(
        certificates.authority, uris=[str(bearer)], dns=names_of(bearer).dns, days=(-1, 1), use=use
    )
    folder = certificates.root / "by-hand"
    write_certificates(folder, chain=chain, key=key, authorities=certificates.authority.pem)
    server, good = Server(), certificates.issue(broker())
    options = (("grpc.ssl_target_name_override", server_name(CLUSTER)),)
    works = True
    async with server.serving(good):
        credentials = grpc.ssl_channel_credentials(certificates.authority.pem, key, chain)
        async with grpc.aio.secure_channel(f"127.0.0.1:{server.port}", credentials, options=options) as channel:
            works &= not (await _call(channel)).startswith("UNAVAILABLE")
    if bearer.role is Role.BROKER:
        own = grpc.aio.server()
        port = own.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials([(key, chain)], certificates.authority.pem, True)
        )
        await own.start()
        pair = [(good / name).read_bytes() for name in (CA_FILE, KEY_FILE, CERTIFICATE_FILE)]
        async with grpc.aio.secure_channel(
            f"127.0.0.1:{port}", grpc.ssl_channel_credentials(*pair), options=options
        ) as channel:
            works &= (await _call(channel)).startswith("UNIMPLEMENTED")
        await own.stop(None)
    with nullcontext() if works else pytest.raises(CertificateUnusable, match="extended key usage"):
        read_certificates(folder, now=now())


async def test_a_caller_believes_servers_of_its_cluster_and_group_only(certificates: TestCertificates) -> None:
    caller = certificates.issue(broker(1))
    wrong = {
        "another cluster": broker(0, cluster="OtherCluster"),
        "another group": broker(0, group="broker-b"),
        "no server": CONSISTENCY,
    }
    for name, identity in wrong.items():
        server = Server()
        async with server.serving(certificates.issue(identity)), server.caller(caller, own_group=True) as channel:
            told = await _call(channel)
            assert told.startswith("UNAVAILABLE"), name
            assert server.called == []
    server = Server()
    async with server.serving(certificates.issue(broker(0, group="broker-b"))), server.caller(caller) as channel:
        # Of the cluster it is, and it refuses us by the table.
        assert "PERMISSION_DENIED" in await _call(channel)


async def test_permissive_takes_both_and_judges_whoever_shows_a_certificate(certificates: TestCertificates) -> None:
    server = Server()
    async with server.serving(certificates.issue(broker()), TlsMode.PERMISSIVE):
        async with server.caller(None) as plain:
            assert await _call(plain) == "here"
        async with server.caller(certificates.issue(ADMIN[AdminLevel.VIEWER])) as viewer:
            assert await _call(viewer) == "here"
            assert "PERMISSION_DENIED" in await _call(viewer, "/tandemmq.admin.v1.BrokerAdminService/DeleteTopic")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_permissive_tells_of_each_caller_without_a_certificate_where_it_is(
    certificates: TestCertificates, address: str
) -> None:
    """Whoever closes a cluster has to find them all; behind the front the library sees the front alone."""
    server = Server()
    with structlog.testing.capture_logs() as lines:
        async with server.serving(certificates.issue(broker()), TlsMode.PERMISSIVE, address):
            target = f"[{address}]:{server.port}" if ":" in address else f"{address}:{server.port}"
            async with grpc.aio.insecure_channel(target) as plain:
                assert await _call(plain) == "here"
                assert await _call(plain) == "here"
            folder = certificates.issue(ADMIN[AdminLevel.VIEWER])
            async with server.caller(folder, address=target) as viewer:
                assert "PERMISSION_DENIED" in await _call(viewer, "/tandemmq.admin.v1.BrokerAdminService/DeleteTopic")
    kind = f"ipv6:%5B{address}%5D:" if ":" in address else f"ipv4:{address}:"
    told = [(line["event"], line["peer"]) for line in lines if "peer" in line]
    assert [event for event, _ in told] == ["call_without_certificate", "call_refused"]
    assert all(peer.startswith(kind) and peer.removeprefix(kind).isdigit() for _, peer in told), told


async def test_certificates_and_their_ca_change_under_load_and_no_call_fails(certificates: TestCertificates) -> None:
    server = Server()
    identity: Identity = ADMIN[AdminLevel.OPERATOR]
    first, second = certificates.authority, CertificateAuthority.new("next CA", now=now(), days=30)
    both = first.pem + second.pem

    def issue(by: CertificateAuthority, believes: bytes) -> None:
        certificates.issue(broker(), folder="server", by=by, believes=believes)
        certificates.issue(identity, folder="caller", by=by, believes=believes)

    issue(first, first.pem)
    failed: list[str] = []
    done = 0
    stopping = asyncio.Event()

    async def load(channel: grpc.aio.Channel) -> None:
        nonlocal done
        while not stopping.is_set():
            told = await _call(channel)
            done += 1
            if told != "here":
                failed.append(told)

    async with server.serving(certificates.root / "server"), server.caller(certificates.root / "caller") as channel:
        stream = channel.unary_stream(
            PROBES, request_serializer=StringValue.SerializeToString, response_deserializer=StringValue.FromString
        )(StringValue(value="first"))
        assert await stream.read() == StringValue(value="first")
        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(load(channel))
            # A CA is replaced as an operator does it: believe both, then have the new one issue, then drop the old.
            for by, believes in ((first, first.pem), (first, both), (second, both), (second, second.pem)):
                issue(by, believes)
                await asyncio.sleep(1.2)  # The files are looked at once a second.
                before = done
                async with asyncio.timeout(PATIENCE_S):
                    while done < before + 50:
                        await asyncio.sleep(0.01)
                if believes == both:
                    # A call that was open all the while still is, on the connection of the first certificate.
                    assert server.watch is not None
                    await server.watch.write(StringValue(value="still here").SerializeToString())
                    assert await asyncio.wait_for(stream.read(), PATIENCE_S) == StringValue(value="still here")
            stopping.set()
        assert failed == []
        # Until nobody believes the first CA any more.
        with pytest.raises(grpc.aio.AioRpcError, match="this connection's certificate is not taken any more"):
            await asyncio.wait_for(stream.read(), PATIENCE_S)
    # The first CA's bearers are strangers by now.
    old = certificates.issue(identity, folder="old")
    async with server.serving(certificates.root / "server"), server.caller(old) as channel:
        assert (await _call(channel)).startswith("UNAVAILABLE")


class LaterClock(SystemClock):
    """Its wall clock shows `hours` more."""

    hours = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.hours * 3_600_000


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
@pytest.mark.parametrize("change", ["it expires", "its CA is not believed any more"])
async def test_calls_on_an_open_connection_end_with_its_certificate(
    certificates: TestCertificates, mode: TlsMode, change: str
) -> None:
    clock, server, admin = LaterClock(), Server(), ADMIN[AdminLevel.OPERATOR]
    other = CertificateAuthority.new("next CA", now=now(), days=30)
    both = certificates.authority.pem + other.pem
    folder = certificates.issue(broker(), by=other, believes=both)
    certificates.issue(admin, folder="caller", days=1, believes=both)
    async with (
        server.serving(folder, mode, clock=clock),
        server.caller(certificates.root / "caller") as channel,
        server.caller(certificates.issue(admin, by=other, believes=other.pem)) as renewed,
    ):
        assert await _call(channel) == await _call(renewed) == "here"
        if change == "it expires":
            clock.hours = 25
        else:
            certificates.issue(broker(), by=other, believes=other.pem)
        async with asyncio.timeout(PATIENCE_S):
            while (told := await _call(channel)) == "here":
                await asyncio.sleep(0.1)
        assert told.startswith("UNAUTHENTICATED this connection's certificate is not taken any more: tls.crt: ")
        assert ("has expired at" if change == "it expires" else "is of another CA, CN=test CA") in told
        assert await _call(renewed) == "here"


def _SAME(data: bytes) -> bytes:
    return data


STREAMS = [
    ("/tandemmq.admin.v1.BrokerAdminService/ProbePeers", "waits"),
    ("/tandemmq.broker.v1.MetadataService/WatchMetadata", "waits"),
    ("/tandemmq.broker.v1.MetadataService/WatchMetadata", "tells"),
    ("/tandemmq.nameserver.v1.NameServerService/Heartbeat", "waits"),
]


class _Watched:
    """Streams as generated servicers have them: one that tells or waits for ever, and one in both directions."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.pause_s = PATIENCE_S

    async def watch(self, request: StringValue, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b""
                async with asyncio.timeout(2 * PATIENCE_S):
                    await asyncio.sleep(self.pause_s)
        finally:
            self.ended.append("watch")

    async def beat(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        try:
            async for each in requests:
                yield each
        finally:
            self.ended.append("beat")

    def serve_on(self, server: GrpcServer) -> None:
        for service, method, handler in (
            ("broker.v1.MetadataService", "WatchMetadata", grpc.unary_stream_rpc_method_handler(self.watch)),
            ("nameserver.v1.NameServerService", "Heartbeat", grpc.stream_stream_rpc_method_handler(self.beat)),
        ):
            handlers = grpc.method_handlers_generic_handler(f"tandemmq.{service}", {method: handler})
            server.aio_server.add_generic_rpc_handlers((handlers,))


@pytest.mark.parametrize(("path", "pace"), STREAMS)
@pytest.mark.parametrize("change", ["it expires", "its CA is not believed any more"])
async def test_a_call_under_way_ends_with_its_certificate(
    certificates: TestCertificates, path: str, pace: str, change: str
) -> None:
    clock, server, watched = LaterClock(), Server(), _Watched()
    watched.pause_s = 0.05 if pace == "tells" else PATIENCE_S
    server.others = watched.serve_on
    other = CertificateAuthority.new("next CA", now=now(), days=30)
    both = certificates.authority.pem + other.pem
    identity = ADMIN[AdminLevel.OPERATOR] if path == PROBES else broker(1)
    folder = certificates.issue(broker(), by=other, believes=both)
    certificates.issue(identity, folder="caller", days=1, believes=both)
    async with server.serving(folder, clock=clock), server.caller(certificates.root / "caller") as channel:
        if "Heartbeat" in path:
            call: Any = channel.stream_stream(path, _SAME, _SAME)()  # type: ignore[call-arg]  # it is written to
            await call.write(StringValue(value="here").SerializeToString())
        else:
            call = channel.unary_stream(path, _SAME, _SAME)(StringValue(value="here").SerializeToString())
        await call.read()
        await asyncio.sleep(1.5)
        assert not call.done(), "a good certificate ends nothing"
        if change == "it expires":
            clock.hours = 25
        else:
            certificates.issue(broker(), by=other, believes=other.pem)
        async with asyncio.timeout(PATIENCE_S):
            with suppress(grpc.aio.AioRpcError):
                while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]  # grpc-stubs lacks it
                    pass
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            told = await call.details()
        assert told.startswith("this connection's certificate is not taken any more: tls.crt: ")
        assert watched.ended == ([] if path == PROBES else ["beat" if "Heartbeat" in path else "watch"])


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00"], ids=["silent", "half a handshake"])
async def test_whoever_connects_and_says_nothing_is_hung_up_on(
    certificates: TestCertificates, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    limit = "grpc.server_handshake_timeout_ms"
    assert dict(grpc_server._OPTIONS)[limit] <= 30_000
    soon = tuple((name, 500 if name == limit else value) for name, value in grpc_server._OPTIONS)
    monkeypatch.setattr(grpc_server, "_OPTIONS", soon)
    server = Server()
    async with server.serving(certificates.issue(broker())):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(first)
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionError):
                while await reader.read(1_000):
                    pass
        writer.close()


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_whoever_may_ask_without_a_certificate_asks_shortly(compression: grpc.Compression) -> None:
    """A few kilobytes may be a hundred megabytes, when they are unpacked: of many at once a NameServer would die."""
    lengths: list[int] = []

    def answer(request: StringValue, call: Call) -> None:
        lengths.append(len(request.value))
        call.send(StringValue(value="here"))
        call.finish()

    port = lasting_port()
    server = GrpcServer("127.0.0.1", 0, clock=SystemClock(), open_port=port)
    server.add(MethodTable("a.B", {"C": UnaryMethod(answer, StringValue)}), for_anybody=True)
    await server.start()
    options = (("grpc.max_send_message_length", -1),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", compression=compression, options=options) as channel:
        call = channel.unary_unary(
            "/a.B/C", request_serializer=StringValue.SerializeToString, response_deserializer=StringValue.FromString
        )
        assert (await call(StringValue(value="a name"), timeout=PATIENCE_S)).value == "here"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(StringValue(value="x" * (1 << 20)), timeout=PATIENCE_S)
    await server.stop(limit_ms=0)
    is_packed = compression is grpc.Compression.Gzip
    assert refused.value.code() is (grpc.StatusCode.UNIMPLEMENTED if is_packed else grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert lengths == [6]


async def test_whoever_is_refused_again_and_again_fills_no_disk(certificates: TestCertificates) -> None:
    clock = ManualTime()
    folder = CertificateFolder(certificates.issue(broker()), clock=SystemClock())
    interceptor = PermissionInterceptor(ServerTls(TlsMode.ENFORCING, folder, CLUSTER, GROUP), clock=clock)
    with structlog.testing.capture_logs() as lines:
        for number in range(3_000):
            interceptor._tell_refusal("/a.B/C", f"ipv4:10.0.0.7:{number}", "why")
        for number in range(3_000):
            interceptor._tell_refusal(f"/a.B/{number}", "ipv4:10.0.0.8:1", "why")
        assert len(lines) == 1 + 25
        clock.advance(10_000)
        interceptor._tell_refusal("/a.B/C", "ipv4:10.0.0.7:9", "why")
        interceptor._tell_refusal("/a.B/D", "ipv4:10.0.0.9:9", "why")
    assert [line.get("not_told", 0) for line in lines[-2:]] == [2_999, 0]
    assert sum(1 + line.get("not_told", 0) + line.get("others_not_told", 0) for line in lines) == 6_002


class Users(broker_access_service_pb2_grpc.BrokerAccessServiceServicer):
    """Takes every user but one."""

    async def PutUser(self, request: access_pb.PutUserRequest, context: Any) -> access_pb.PutUserResponse:
        if request.username == "late":
            await asyncio.sleep(PATIENCE_S)
        if request.username == "bad":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "username: no")
        return access_pb.PutUserResponse()

    async def PutAcl(self, request: access_pb.PutAclRequest, context: Any) -> access_pb.PutAclResponse:
        return access_pb.PutAclResponse()

    async def DeleteAcl(self, request: access_pb.DeleteAclRequest, context: Any) -> access_pb.DeleteAclResponse:
        return access_pb.DeleteAclResponse()

    async def ListUsers(self, request: access_pb.ListUsersRequest, context: Any) -> access_pb.ListUsersResponse:
        return access_pb.ListUsersResponse()


@pytest.mark.parametrize("mode", [TlsMode.DISABLED, TlsMode.PERMISSIVE, TlsMode.ENFORCING])
async def test_each_change_leaves_a_line_with_who_made_it_and_from_where(
    certificates: TestCertificates, mode: TlsMode
) -> None:
    clock = SystemClock()
    folder = CertificateFolder(certificates.issue(broker()), clock=clock)
    tls = None if mode is TlsMode.DISABLED else ServerTls(mode, folder, CLUSTER, GROUP)
    server = GrpcServer("127.0.0.1", 0, clock=clock, tls=tls, records_changes=True)
    broker_access_service_pb2_grpc.add_BrokerAccessServiceServicer_to_server(Users(), server.aio_server)
    port = await server.start()
    admin = ADMIN[AdminLevel.OPERATOR]
    called = None if mode is TlsMode.DISABLED else ServiceTls(CertificateFolder(certificates.issue(admin), clock=clock))
    with structlog.testing.capture_logs() as lines, use_service_tls(called):
        async with aio_channel(f"127.0.0.1:{port}", ()) as channel:
            stub = broker_access_service_pb2_grpc.BrokerAccessServiceStub(channel)
            await stub.ListUsers(access_pb.ListUsersRequest(search="ann"))
            await stub.PutUser(access_pb.PutUserRequest(username="ann", password="planted-secret", dry_run=True))
            for username in ("ann", "bad", "late", "x" * 10_000):
                with suppress(grpc.aio.AioRpcError):
                    request = access_pb.PutUserRequest(username=username, password="planted-secret")
                    await stub.PutUser(request, timeout=1.0 if username == "late" else PATIENCE_S)
            await stub.PutUser(access_pb.PutUserRequest(username="bob", user_type="Super", user_status="enable"))
            entries = [
                access_pb.AclEntry(resource="Topic:orders", actions=["Pub", "Get"], decision="Allow"),
                access_pb.AclEntry(resource="*", actions=["All"], decision="Deny", source_ips=["10.0.0.0/8", "::1"]),
            ]
            await stub.PutAcl(access_pb.PutAclRequest(subject="User:bob", entries=entries))
            await stub.DeleteAcl(access_pb.DeleteAclRequest(subject="User:bob", resources=["*", "Group:g"]))
    await server.stop(limit_ms=1_000)
    told = [line for line in lines if line["event"] == "operator_call"]
    told, rights = told[:-3], told[-3:]
    assert {line["change"] for line in told} == {"new secret"}
    assert [line["change"] for line in rights] == [
        "Super enable",
        "Allow Pub,Get Topic:orders; Deny All * 10.0.0.0/8,::1",
        "*,Group:g",
    ]
    assert [line["outcome"] for line in told] == ["done", "failed: username: no", "cut off", "done"]
    assert [line["subject"] for line in told] == ["ann", "bad", "late", "x" * 300]
    who = str(admin) if called else "without a certificate"
    assert {line["who"] for line in told} == {who}
    assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in told)
    assert {line["method"] for line in told} == {"tandemmq.admin.v1.BrokerAccessService/PutUser"}
    assert "planted-secret" not in str(lines)
