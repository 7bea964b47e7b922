"""Strangers who take all connections of a port that asks for certificates, and whoever belongs to the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from support.certificates import ADMIN, CLUSTER, GROUP, TestCertificates, broker
from support.manual_time import ManualTime
from tandemmq.core.access.identity import AdminLevel
from tandemmq.core.routing.values import connection_end
from tandemmq.http2.errors import TlsMode
from tandemmq.service import grpc_server
from tandemmq.service.certificates import CertificateFolder
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.grpc_server import GrpcServer
from tandemmq.service.newcomers import Newcomers
from tandemmq.service.rpc import Call, MethodTable, UnaryMethod
from tandemmq.service.service_channels import ServiceTls, aio_channel, use_service_tls
from tandemmq.service.service_tls import ServerTls

_CONNECTIONS_MAX = 32
_LIMIT_S = 60.0
_STATUS = "/tandemmq.admin.v1.BrokerAdminService/GetBrokerStatus"
_ELSEWHERE = [f"127.0.1.{number}" for number in range(1, 65)]


@contextlib.contextmanager
def strangers(port: int, addresses: Sequence[str], says: bytes) -> Iterator[None]:
    """Take all connections, and anew each that is ended."""
    is_over = threading.Event()

    def take() -> None:
        taken: dict[int, socket.socket] = {}
        while not is_over.wait(0.05):
            for number in range(2 * _CONNECTIONS_MAX):
                with contextlib.suppress(OSError):
                    if number in taken:
                        with contextlib.suppress(BlockingIOError):
                            if not taken[number].recv(1):
                                taken.pop(number).close()
                        continue
                    one = taken[number] = socket.socket()
                    one.bind((addresses[number % len(addresses)], 0))
                    one.connect(("127.0.0.1", port))
                    one.setblocking(False)
                    one.send(says)
        for one in taken.values():
            one.close()

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _answer(request: StringValue, call: Call) -> None:
    call.send(request)
    call.finish()


@pytest.mark.parametrize(
    ("mode", "addresses"),
    [
        (TlsMode.ENFORCING, ["127.0.0.1"]),
        (TlsMode.ENFORCING, ["127.0.0.2"]),
        (TlsMode.ENFORCING, _ELSEWHERE),
        (TlsMode.PERMISSIVE, ["127.0.0.2"]),
    ],
    ids=["the member's own address", "another address", "many addresses", "permissive"],
)
@pytest.mark.parametrize("says", [b"", b"\x16\x03\x01"], ids=["nothing", "half a greeting"])
async def test_who_takes_all_connections_keeps_no_member_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: TlsMode, addresses: list[str], says: bytes
) -> None:
    monkeypatch.setattr(grpc_server, "_CONNECTIONS_MAX", _CONNECTIONS_MAX)
    # That they would be given up some time is not what lets others in.
    monkeypatch.setattr(grpc_server, "_FIRST_BYTE_LIMIT_S", 3_600.0)
    given_up = "grpc.server_handshake_timeout_ms"
    given = [(name, 3_600_000 if name == given_up else value) for name, value in grpc_server._OPTIONS]
    monkeypatch.setattr(grpc_server, "_OPTIONS", given)
    certificates, clock = TestCertificates(tmp_path), SystemClock()
    tls = ServerTls(mode, CertificateFolder(certificates.issue(broker()), clock=clock), CLUSTER, GROUP)
    server = GrpcServer("127.0.0.1", 0, clock=clock, tls=tls, connections_max=_CONNECTIONS_MAX)
    service, _, method = _STATUS[1:].partition("/")
    server.add(MethodTable(service, {method: UnaryMethod(_answer, StringValue)}))
    port = await server.start()
    called = ServiceTls(CertificateFolder(certificates.issue(ADMIN[AdminLevel.VIEWER]), clock=clock))
    try:
        with strangers(port, addresses, says), use_service_tls(called):
            await asyncio.sleep(1)
            for number in range(2):
                options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200))
                async with aio_channel(f"127.0.0.1:{port}", options) as channel:
                    call = channel.unary_unary(
                        _STATUS,
                        request_serializer=StringValue.SerializeToString,
                        response_deserializer=StringValue.FromString,
                    )
                    answer = await call(StringValue(value=f"{number}"), timeout=_LIMIT_S, wait_for_ready=True)
                    assert answer.value == f"{number}"
                    # Whoever is in stays in, and says nothing for a while.
                    await asyncio.sleep(3)
                    answer = await call(StringValue(value="again"), timeout=_LIMIT_S)
                    assert answer.value == "again"
    finally:
        await server.stop(limit_ms=0)


async def test_members_behind_one_gateway_stay_connected_while_many_addresses_take_all_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "_CONNECTIONS_MAX", _CONNECTIONS_MAX)
    certificates, clock = TestCertificates(tmp_path), SystemClock()
    tls = ServerTls(TlsMode.PERMISSIVE, CertificateFolder(certificates.issue(broker()), clock=clock), CLUSTER, GROUP)
    server = GrpcServer("127.0.0.1", 0, clock=clock, tls=tls)
    service, _, method = _STATUS[1:].partition("/")

    def answer_where_from(_request: StringValue, call: Call) -> None:
        _answer(StringValue(value=call.peer), call)

    server.add(MethodTable(service, {method: UnaryMethod(answer_where_from, StringValue)}))
    port = await server.start()
    called = ServiceTls(CertificateFolder(certificates.issue(ADMIN[AdminLevel.VIEWER]), clock=clock))
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200))
    try:
        with use_service_tls(called):
            async with contextlib.AsyncExitStack() as open_channels:
                members = []
                for _ in range(_CONNECTIONS_MAX // 2):
                    channel = await open_channels.enter_async_context(aio_channel(f"127.0.0.1:{port}", options))
                    members.append(
                        channel.unary_unary(
                            _STATUS,
                            request_serializer=StringValue.SerializeToString,
                            response_deserializer=StringValue.FromString,
                        )
                    )
                connections = [(await each(StringValue(), timeout=_LIMIT_S)).value for each in members]
                assert len(set(connections)) == len(members)
                with strangers(port, _ELSEWHERE, b"\x16\x03\x01"):
                    await asyncio.sleep(3)
                    assert [(await each(StringValue(), timeout=_LIMIT_S)).value for each in members] == connections
    finally:
        await server.stop(limit_ms=0)


@pytest.mark.parametrize("seed", range(10))
def test_who_is_known_stays_and_of_the_others_each_address_has_its_share(seed: int) -> None:
    chance, clock = random.Random(seed), ManualTime()
    many = chance.randrange(2, 40)
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
        port = listener.getsockname()[1]
        newcomers = Newcomers(port, 2 * many, clock=clock)
        addresses = chance.sample(_ELSEWHERE, chance.randrange(1, 8))
        known: set[str] = set()
        ends: dict[str, tuple[socket.socket, socket.socket]] = {}

        def is_ended(end: str) -> bool:
            ours, _ = ends[end]
            ours.setblocking(False)
            try:
                return ours.recv(1) == b""
            except BlockingIOError:
                return False

        for _ in range(5):
            for _ in range(chance.randrange(30)):
                ours = opened.enter_context(socket.socket())
                ours.bind((chance.choice(addresses), 0))
                ours.connect(("127.0.0.1", port))
                theirs = opened.enter_context(listener.accept()[0])
                end = connection_end(*ours.getsockname())
                ends[end] = ours, theirs
                if chance.random() < 0.2:
                    newcomers.came_in(f"ipv4:{end}")
                    known.add(end)
            count = len(ends)
            has_many = newcomers.look()
            assert has_many == (count >= many)
            left = {end for end in ends if not is_ended(end)}
            assert known <= left
            if not has_many:
                assert left == ends.keys()
            by_address = Counter(end.partition(":")[0] for end in left - known)
            of_all = {end.partition(":")[0] for end in ends.keys() - known}
            assert not has_many or all(each <= max(1, many // (len(of_all) + 1)) for each in by_address.values())
            # What has ended is closed by who accepted it; some close by themselves.
            for end in [*(ends.keys() - left), *(one for one in left if chance.random() < 0.1)]:
                for one in ends.pop(end):
                    one.close()
                known.discard(end)
            clock.advance(chance.choice([0, 200, 1_000]))
        clock.advance(2_000)
        if newcomers.look():
            assert {end for end in ends if not is_ended(end)} == known


@contextlib.contextmanager
def port_with(count: int) -> Iterator[tuple[int, list[socket.socket], list[socket.socket]]]:
    """A port, so many connections to it, and their accepted ends."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        ends, accepted = [], []
        for _ in range(count):
            ends.append(opened.enter_context(socket.create_connection(listener.getsockname())))
            ends[-1].setblocking(False)
            accepted.append(opened.enter_context(listener.accept()[0]))
        yield listener.getsockname()[1], ends, accepted


def end_of(connection: socket.socket) -> str:
    return connection_end(*connection.getsockname())


def is_open(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True


def test_who_comes_in_while_the_files_are_listed_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualTime()
    with port_with(3) as (port, [member, *others], accepted):
        newcomers = Newcomers(port, 4, clock=clock)
        files = os.listdir("/proc/self/fd")

        def list_files(_path: object) -> list[str]:
            # It connects when they have been listed, and its first call comes at once.
            newcomers.came_in(f"ipv4:{end_of(member)}")
            return [name for name in files if int(name) != accepted[0].fileno()]

        with monkeypatch.context() as patched:
            patched.setattr("tandemmq.service.newcomers.os.listdir", list_files)
            newcomers.look()
        newcomers.look()
        clock.advance(2_000)
        newcomers.look()
        assert is_open(member), "it says nothing for a while"
        assert not any(is_open(other) for other in others)


@pytest.mark.parametrize(("fails", "times"), [("listdir", 1), ("dup", 30)])
async def test_a_process_without_a_file_to_look_with_forgets_nobody_and_looks_again(
    monkeypatch: pytest.MonkeyPatch, fails: str, times: int
) -> None:
    monkeypatch.setattr("tandemmq.service.newcomers._LIMIT_MS", 0)
    monkeypatch.setattr("tandemmq.service.newcomers._LOOK_AGAIN_S", 0.01)
    failures = iter([OSError(errno.EMFILE, os.strerror(errno.EMFILE)) for _ in range(times)])
    call = getattr(os, fails)

    def fail_at_first(argument: object) -> object:
        for failure in failures:
            raise failure
        return call(argument)

    with port_with(3) as (port, [member, *others], _):
        newcomers = Newcomers(port, 4, clock=SystemClock())
        newcomers.came_in(f"ipv4:{end_of(member)}")
        monkeypatch.setattr(f"tandemmq.service.newcomers.os.{fails}", fail_at_first)
        watch = asyncio.create_task(newcomers.watch())
        try:
            async with asyncio.timeout(_LIMIT_S):
                while any(is_open(other) for other in others):
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            assert not watch.done()
            assert is_open(member)
        finally:
            watch.cancel()
