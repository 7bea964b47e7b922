"""What strangers who only connect take from a service: neither the files that it needs itself, nor the place of those
who ask for its health."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.cluster_processes import lasting_port
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.grpc_server import GrpcServer
from tandemmq.service.rpc import Call, MethodTable, UnaryMethod

_FILES = 256
_LIMIT_S = 120.0
_SERVICE = f"""
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({_FILES}, {_FILES}))
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.grpc_server import GrpcServer

async def main():
    server = GrpcServer("127.0.0.1", 0, clock=SystemClock(), open_port=int(sys.argv[1]))
    print(await server.start(), flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        files = []
        try:
            for _ in range(32):
                files.append(open("/dev/null"))
            print("files", flush=True)
        except OSError as error:
            print(error.strerror, flush=True)
        finally:
            for file in files:
                file.close()

asyncio.run(main())
"""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("says", [b"", _PREFACE], ids=["nothing", "http2"])
@pytest.mark.parametrize("is_open_port", [False, True])
def test_who_opens_connections_without_end_leaves_a_service_its_files(says: bytes, is_open_port: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        open_port = free.getsockname()[1]
    with (
        contextlib.ExitStack() as strangers,
        subprocess.Popen(
            [sys.executable, "-c", _SERVICE, str(open_port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as service,
    ):
        assert service.stdin is not None
        assert service.stdout is not None
        try:
            port = int(service.stdout.readline())
            for _ in range(_FILES + 50):
                stranger = strangers.enter_context(socket.socket())
                stranger.settimeout(_LIMIT_S)
                stranger.connect(("127.0.0.1", open_port if is_open_port else port))
                with contextlib.suppress(OSError):
                    stranger.sendall(says)
            service.stdin.write("ask\n")
            service.stdin.flush()
            assert service.stdout.readline() == "files\n"
        finally:
            service.kill()


async def _status(port: int, service: str = "up") -> int:
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=_LIMIT_S, wait_for_ready=True)
        status: int = answer.status
        return status


@pytest.mark.parametrize("says", [b"", _PREFACE], ids=["nothing", "http2"])
async def test_who_takes_all_connections_of_the_open_port_keeps_no_probe_out(says: bytes) -> None:
    """A broker whose probe nobody answers is killed by its orchestrator."""
    port = lasting_port()
    server = GrpcServer(
        "127.0.0.1", 0, clock=SystemClock(), open_port=port, connections_max=8, probes={"up": lambda: True}
    )
    await server.start()
    with contextlib.ExitStack() as strangers:
        for _ in range(20):
            stranger = strangers.enter_context(socket.socket())
            stranger.bind(("127.0.0.2", 0))
            stranger.connect(("127.0.0.1", port))
            with contextlib.suppress(OSError):
                stranger.sendall(says)
        for _ in range(3):
            assert await _status(port) == health_pb2.HealthCheckResponse.SERVING
    await server.stop(limit_ms=0)


async def test_the_open_port_tells_the_health_as_the_other_one_does() -> None:
    port, is_up = lasting_port(), False
    server = GrpcServer("127.0.0.1", 0, clock=SystemClock(), open_port=port, probes={"up": lambda: is_up})
    inner = await server.start(service_names=("a.B",))
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    for is_up in (False, True):
        for is_serving in (False, True):
            await server.set_serving(is_serving)
            for name, expected in (("up", is_up), ("", is_serving), ("a.B", is_serving)):
                found = {await _status(each, name) for each in (port, inner)}
                assert found == {serving if expected else not_serving}
    for each in (port, inner):
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await _status(each, "nobody's")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    await server.stop(limit_ms=0)


async def test_a_port_between_services_unpacks_nothing() -> None:
    """A hundred kilobytes would be a hundred megabytes, from whoever has some certificate: of many at once a broker
    would die."""
    asked: list[int] = []

    def answer(request: StringValue, call: Call) -> None:
        asked.append(len(request.value))
        call.send(StringValue(value="here"))
        call.finish()

    server = GrpcServer("127.0.0.1", 0, clock=SystemClock())
    server.add(MethodTable("a.B", {"C": UnaryMethod(answer, StringValue)}))
    port = await server.start()
    codes = []
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate, grpc.Compression.NoCompression):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", compression=compression) as channel:
            call = channel.unary_unary(
                "/a.B/C", request_serializer=StringValue.SerializeToString, response_deserializer=StringValue.FromString
            )
            try:
                await call(StringValue(value="x" * 1_000_000), timeout=_LIMIT_S)
                codes.append(grpc.StatusCode.OK)
            except grpc.aio.AioRpcError as error:
                codes.append(error.code())
    await server.stop(limit_ms=0)
    assert codes == [grpc.StatusCode.UNIMPLEMENTED] * 2 + [grpc.StatusCode.OK]
    assert asked == [1_000_000]
