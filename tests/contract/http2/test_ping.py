"""A PING is answered with the next answer of its connection, or soon without one."""

from __future__ import annotations

import asyncio

from support.running_time import PATIENCE_S, until
from tandemmq.http2 import frames
from tandemmq.http2.server import Server
from tandemmq.http2.stream import Stream

GREETING = frames.PREFACE + frames.settings({})


async def test_a_ping_that_nothing_follows_is_answered() -> None:
    server = Server(Stream)
    port = server.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GREETING)
    for payload in (b"12345678", b"87654321"):
        writer.write(frames.frame(frames.PING, 0, 0, payload))
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(frames.frame(frames.PING, frames.ACK, 0, payload))
    writer.close()
    await server.stop(limit_s=0)


async def test_a_connection_that_ends_before_its_ping_is_answered_leaves_nothing() -> None:
    server = Server(Stream)
    port = server.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GREETING)
    async with asyncio.timeout(PATIENCE_S):
        await reader.readuntil(frames.frame(frames.SETTINGS, frames.ACK, 0, b""))
        writer.write(frames.frame(frames.PING, 0, 0, b"12345678"))
        while not server.output.is_waiting:
            await asyncio.sleep(0)
        writer.transport.abort()
        await until(lambda: not (server.connection_count or server.output.is_waiting))
    await server.stop(limit_s=0)
