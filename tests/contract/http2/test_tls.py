"""TLS on the client port: ALPN, one port for both, and peers that do not shake hands."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from contract.http2.conftest import SERVICE, Mirror
from support.http2_attacks import GREETING, TLS_CLIENT_HELLO
from support.http2_peer import unary_request
from support.running_time import PATIENCE_S
from tandemmq.http2 import frames
from tandemmq.http2.errors import Limits, TlsMode
from tandemmq.http2.server import Server
from tandemmq.http2.stream import Stream
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.http2_front import Http2Front

LIMITS = Limits(preface_timeout_s=0.3, tls_handshake_timeout_s=0.3)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cert.pem and key.pem for localhost."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates for tests are made with the openssl command")
    folder = tmp_path_factory.mktemp("tls")
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    alternative = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    paths = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(["openssl", *request.split(), "-addext", alternative, *paths], check=True, capture_output=True)
    return folder


@pytest.fixture
def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


def client_context(certificate: Path, *alpn: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


class Answering(Stream):
    def half_closed(self) -> None:
        self.respond(bytes(300_000))


@asynccontextmanager
async def serving(context: ssl.SSLContext, mode: TlsMode) -> AsyncIterator[tuple[Server, int]]:
    server = Server(Answering, limits=LIMITS, tls=lambda: context, tls_mode=mode)
    port = server.listen("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop(limit_s=0.1)
    assert server.connection_count == 0
    assert server.usage.buffered_bytes == 0


async def answer_bytes(port: int, context: ssl.SSLContext | None) -> int:
    """Sends one request and counts the answer's DATA."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(GREETING + frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 20}))
    writer.write(frames.window_update(0, 1 << 20) + unary_request(1))
    received = 0
    async with asyncio.timeout(PATIENCE_S):
        while True:
            head, flags, stream_id = frames.FRAME_HEAD.unpack(await reader.readexactly(frames.FRAME_HEAD_BYTES))
            await reader.readexactly(head >> 8)
            if head & 0xFF == frames.DATA:
                received += head >> 8
            if stream_id == 1 and flags & frames.END_STREAM:
                break
    writer.transport.abort()
    return received


async def until(server: Server, counter: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not server.counters[counter] or server.connection_count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("mode", [TlsMode.ENFORCING, TlsMode.PERMISSIVE])
async def test_h2_by_alpn(certificate: Path, server_context: ssl.SSLContext, mode: TlsMode) -> None:
    async with serving(server_context, mode) as (_, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(certificate, "http/1.1", "h2"))
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.transport.abort()
        assert await answer_bytes(port, client_context(certificate, "h2")) == 300_005


async def test_a_permissive_port_takes_both(certificate: Path, server_context: ssl.SSLContext) -> None:
    async with serving(server_context, TlsMode.PERMISSIVE) as (_, port):
        found = await asyncio.gather(
            *(answer_bytes(port, client_context(certificate, "h2") if number % 2 else None) for number in range(6))
        )
        assert found == [300_005] * 6


async def test_a_client_of_another_protocol_gets_no_further(certificate: Path, server_context: ssl.SSLContext) -> None:
    async with serving(server_context, TlsMode.ENFORCING) as (server, port):
        with suppress(ConnectionError, ssl.SSLError):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client_context(certificate, "http/1.1")
            )
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() is None
            writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                await reader.read()
        async with asyncio.timeout(PATIENCE_S):
            while not server.counters["preface_invalid"] + server.counters["tls_handshake_failed"]:
                await asyncio.sleep(0.01)


async def test_plaintext_on_a_port_that_enforces_tls(server_context: ssl.SSLContext) -> None:
    async with serving(server_context, TlsMode.ENFORCING) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GREETING)
        with suppress(ConnectionError):
            await reader.read()
        await until(server, "tls_handshake_failed")
        writer.close()


@pytest.mark.parametrize(
    ("mode", "first", "counter"),
    [
        (TlsMode.ENFORCING, b"", "tls_handshake_failed"),
        (TlsMode.ENFORCING, TLS_CLIENT_HELLO[:20], "tls_handshake_failed"),
        (TlsMode.PERMISSIVE, TLS_CLIENT_HELLO[:20], "tls_handshake_failed"),
        (TlsMode.PERMISSIVE, b"", "preface_timeout"),
        (TlsMode.PERMISSIVE, frames.PREFACE[:5], "preface_timeout"),
    ],
)
async def test_a_handshake_that_does_not_end(
    server_context: ssl.SSLContext, mode: TlsMode, first: bytes, counter: str
) -> None:
    async with serving(server_context, mode) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(first)
        with suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                await reader.read()
        await until(server, counter)
        writer.close()


async def test_grpcio_s_client_over_tls(certificate: Path, server_context: ssl.SSLContext) -> None:
    front = Http2Front("127.0.0.1", 0, clock=SystemClock(), tls=lambda: server_context, tls_mode=TlsMode.ENFORCING)
    front.add(Mirror().table())
    port = await front.start()
    credentials = grpc.ssl_channel_credentials((certificate / "cert.pem").read_bytes())
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options=options) as channel:
        unary = channel.unary_unary(
            f"/{SERVICE}/Unary",
            request_serializer=BytesValue.SerializeToString,
            response_deserializer=BytesValue.FromString,
        )
        for size in (0, 100_000, 5 << 20):
            assert len((await unary(BytesValue(value=bytes(size)))).value) == size
    await front.stop(limit_ms=100)


class Client:
    """A TLS client whose bytes are in the test's hands."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setblocking(False)

    async def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.flush()
                await self.read()
            else:
                await self.flush()
                return

    async def flush(self, *, piece_bytes: int = 1 << 20) -> None:
        data = self.outgoing.read()
        for start in range(0, len(data), piece_bytes):
            await asyncio.get_running_loop().sock_sendall(self.sock, data[start : start + piece_bytes])
            await asyncio.sleep(0)

    async def read(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            data = await asyncio.get_running_loop().sock_recv(self.sock, 1 << 20)
        self.incoming.write(data)
        return data

    async def answer(self) -> int:
        """Bytes of DATA until the end of the answer."""
        plain, pos, found = bytearray(), 0, 0
        while True:
            try:
                while piece := self.tls.read(1 << 16):
                    plain += piece
            except ssl.SSLWantReadError:
                pass
            while pos + frames.FRAME_HEAD_BYTES <= len(plain):
                head, flags, stream_id = frames.FRAME_HEAD.unpack_from(plain, pos)
                if pos + frames.FRAME_HEAD_BYTES + (head >> 8) > len(plain):
                    break
                pos += frames.FRAME_HEAD_BYTES + (head >> 8)
                found += head >> 8 if head & 0xFF == frames.DATA else 0
                if stream_id and flags & frames.END_STREAM:
                    return found
            assert await self.read(), "closed before the answer's end"


@pytest.mark.parametrize("piece_bytes", [1, 7, 100, 1 << 20])
async def test_records_may_come_in_any_pieces(
    certificate: Path, server_context: ssl.SSLContext, piece_bytes: int
) -> None:
    async with serving(server_context, TlsMode.PERMISSIVE) as (_, port):
        client = Client(port, client_context(certificate, "h2"))
        await client.shake_hands()
        for part in (GREETING, frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 20}), unary_request(1)):
            client.tls.write(part)
        client.tls.write(frames.window_update(0, 1 << 20))
        await client.flush(piece_bytes=piece_bytes)
        assert await client.answer() == 300_005
        client.sock.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_request_may_come_with_the_end_of_the_handshake(
    certificate: Path, server_context: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    context = client_context(certificate, "h2")
    context.maximum_version = version
    async with serving(server_context, TlsMode.ENFORCING) as (_, port):
        client = Client(port, context)
        while True:
            try:
                client.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await client.flush()
                await client.read()
        # In TLS 1.3 the client's last words have not left yet.
        client.tls.write(GREETING + frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 20}))
        client.tls.write(frames.window_update(0, 1 << 20) + unary_request(1))
        await client.flush()
        assert await client.answer() == 300_005
        client.sock.close()


async def test_what_is_no_record_ends_that_connection_alone(certificate: Path, server_context: ssl.SSLContext) -> None:
    async with serving(server_context, TlsMode.ENFORCING) as (server, port):
        good, bad = (Client(port, client_context(certificate, "h2")) for _ in range(2))
        for client in (good, bad):
            await client.shake_hands()
            client.tls.write(GREETING + frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 20}))
            await client.flush()
        await asyncio.get_running_loop().sock_sendall(bad.sock, b"\x17\x03\x03\x00\x20" + bytes(32))
        with suppress(ConnectionError):
            while await bad.read():
                pass
        assert server.counters["tls_record_invalid"] == 1
        good.tls.write(frames.window_update(0, 1 << 20) + unary_request(1))
        await good.flush()
        assert await good.answer() == 300_005
        for client in (good, bad):
            client.sock.close()


async def test_a_client_that_hangs_up_in_the_handshake_is_counted_once(server_context: ssl.SSLContext) -> None:
    async with serving(server_context, TlsMode.ENFORCING) as (server, port):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(TLS_CLIENT_HELLO[:40])
        await until(server, "tls_handshake_failed")
        await asyncio.sleep(2 * LIMITS.tls_handshake_timeout_s)
        assert server.counters["tls_handshake_failed"] == 1


async def test_a_stop_does_not_wait_for_handshakes(server_context: ssl.SSLContext) -> None:
    server = Server(Answering, limits=Limits(), tls=lambda: server_context, tls_mode=TlsMode.ENFORCING)
    port = server.listen("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)):
        async with asyncio.timeout(PATIENCE_S):
            while not server.connection_count:
                await asyncio.sleep(0)
            await server.stop(limit_s=1_000)
    assert server.connection_count == 0
