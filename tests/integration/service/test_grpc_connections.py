"""What strangers who only connect take from a service of gRPC's library: not the files that it needs itself."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

import pytest

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
