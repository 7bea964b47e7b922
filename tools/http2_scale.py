"""How many streams, connections and large bodies the HTTP/2 front holds at once.

    make http2-scale    # build/http2-scale.json

The server runs in a process of its own, so that its memory is its own; clients are plain sockets in this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

import psutil
from google.protobuf.wrappers_pb2 import BytesValue

from support.http2_peer import data, message, open_request
from tandemmq.http2 import frames
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.http2_front import Http2Front
from tandemmq.service.rpc import Call, MethodTable, UnaryMethod

LATE: Final = "/test.Scale/Late"
ECHO: Final = "/test.Scale/Echo"
FILES_NEEDED: Final = 5_000


@dataclass(frozen=True, slots=True)
class Sizes:
    streams: int = 10_000
    connections: int = 100
    idle_connections: int = 2_000
    bodies: int = 32
    body_bytes: int = 4 << 20


async def serve() -> None:
    """In the child: `Late` answers once a whole round of calls is there, `Echo` at once. Ends with its input."""
    waiting: list[Call] = []
    expected = 0

    def late(request: BytesValue, call: Call) -> None:
        nonlocal expected
        expected = int(request.value)
        waiting.append(call)
        if len(waiting) == expected:
            for each in waiting:
                each.send(BytesValue(value=b"late"))
                each.finish()
            waiting.clear()

    def echo(request: BytesValue, call: Call) -> None:
        call.send(request)
        call.finish()

    front = Http2Front("127.0.0.1", 0, clock=SystemClock())
    front.add(MethodTable("test.Scale", {"Late": UnaryMethod(late, BytesValue), "Echo": UnaryMethod(echo, BytesValue)}))
    print(await front.start(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await front.stop(limit_ms=100)


class Client:
    """One connection. Gives windows back, answers PINGs, gathers answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._next_stream_id = 1
        self._answers: dict[int, tuple[bytearray, asyncio.Future[bytes]]] = {}
        self._window_opened = asyncio.Event()
        self._window = frames.DEFAULT_WINDOW_BYTES
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def connect(cls, port: int) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            frames.PREFACE
            + frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 8 << 20})
            + frames.window_update(0, 64 << 20)
        )
        return cls(reader, writer)

    async def call(self, path: str, body: bytes) -> bytes:
        """One unary call, within the connection's window; no body is larger than a stream's."""
        stream_id = self._next_stream_id
        self._next_stream_id += 2
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[stream_id] = (bytearray(), future)
        request = message(BytesValue(value=body).SerializeToString())
        self.writer.write(open_request(stream_id, (":path", path)))
        for start in range(0, len(request), 16_384):
            part = request[start : start + 16_384]
            while self._window < len(part):
                self._window_opened.clear()
                await self._window_opened.wait()
            self._window -= len(part)
            self.writer.write(data(stream_id, part, end=start + len(part) == len(request)))
            await self.writer.drain()
        return BytesValue.FromString((await future)[5:]).value

    async def _read(self) -> None:
        while True:
            head, flags, stream_id = frames.FRAME_HEAD.unpack(await self._reader.readexactly(frames.FRAME_HEAD_BYTES))
            payload = await self._reader.readexactly(head >> 8)
            kind = head & 0xFF
            if kind == frames.WINDOW_UPDATE and stream_id == 0:
                self._window += int.from_bytes(payload, "big")
                self._window_opened.set()
            elif kind == frames.PING and not flags:
                self.writer.write(frames.frame(frames.PING, frames.ACK, 0, payload))
            elif kind == frames.DATA:
                self._answers[stream_id][0].extend(payload)
                self.writer.write(frames.window_update(0, max(1, len(payload))))
            elif kind in (frames.RST_STREAM, frames.GOAWAY):
                raise RuntimeError(f"frame {kind}: {payload!r}")
            if flags & frames.END_STREAM and kind in (frames.DATA, frames.HEADERS):
                body, future = self._answers.pop(stream_id)
                future.set_result(bytes(body))

    async def close(self) -> None:
        self._reading.cancel()
        self.writer.transport.abort()
        await asyncio.gather(self._reading, return_exceptions=True)


async def measure(port: int, pid: int, sizes: Sizes) -> list[dict[str, Any]]:
    process = psutil.Process(pid)
    rows: list[dict[str, Any]] = []

    def row(name: str, value: float, unit: str, target: str | None = None, *, holds: bool = True) -> None:
        rows.append({"name": name, "value": value, "unit": unit, "target": target, "holds": holds})

    def resident() -> int:
        return int(process.memory_info().rss)

    def cpu_s() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    # What the first connections and bodies make the server allocate for good is none of theirs.
    warm = await Client.connect(port)
    await warm.call(ECHO, bytes(1 << 20))
    await warm.close()
    idle_before = resident()
    idle = [await Client.connect(port) for _ in range(sizes.idle_connections)]
    await asyncio.gather(*(client.call(ECHO, b"x") for client in idle))
    per_connection = (resident() - idle_before) / len(idle)
    row("idle_connections", len(idle), "connections", f">= {sizes.idle_connections}")
    row("idle_connection_memory", round(per_connection / 1024, 1), "KiB")

    clients = [await Client.connect(port) for _ in range(sizes.connections)]
    before, cpu_before, started = resident(), cpu_s(), time.monotonic()
    expected = str(sizes.streams).encode()
    calls = [clients[number % len(clients)].call(LATE, expected) for number in range(sizes.streams)]
    peak = before
    gathering = asyncio.gather(*calls)
    while not gathering.done():
        peak = max(peak, resident())
        await asyncio.wait([gathering], timeout=0.02)
    answers = gathering.result()
    answered = sum(answer == b"late" for answer in answers)
    row("concurrent_streams", answered, "streams", f"{sizes.streams}", holds=answered == sizes.streams)
    row("concurrent_streams_memory", round((peak - before) / sizes.streams / 1024, 2), "KiB a stream")
    row("concurrent_streams_cpu", round((cpu_s() - cpu_before) / sizes.streams * 1e6, 1), "us a stream")
    row("concurrent_streams_time", round(time.monotonic() - started, 2), "s")

    body = bytes(range(256)) * (sizes.body_bytes // 256)
    cpu_before = cpu_s()
    bodies = await asyncio.gather(*(clients[number % 4].call(ECHO, body) for number in range(sizes.bodies)))
    whole = sum(answer == body for answer in bodies)
    row("large_bodies", whole, "bodies both ways", f"{sizes.bodies}", holds=whole == sizes.bodies)
    row("large_bodies_cpu", round((cpu_s() - cpu_before) / sizes.bodies * 1e3, 1), "ms a body")
    for client in [*idle, *clients]:
        await client.close()
    return rows


def run(sizes: Sizes) -> list[dict[str, Any]]:
    """Starts the server, measures, stops it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, FILES_NEEDED)), hard))
    with subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        return asyncio.run(measure(int(server.stdout.readline()), server.pid, sizes))


def main() -> int:
    """Exit code 1 when something was not held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().serve:
        asyncio.run(serve())
        return 0
    rows = run(Sizes())
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "http2-scale.json").write_text(json.dumps(rows, indent=2) + "\n")
    for row in rows:
        print(f"{row['name']:28}{row['value']:>10} {row['unit']}{'' if row['holds'] else '  FAILS'}")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
