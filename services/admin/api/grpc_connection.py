"""A gRPC connection on a port that also speaks HTTP/1.1: `mqgrpc`'s state machine on a transport accepted elsewhere.

The admin plane carries small answers to few callers, so unlike `mqgrpc.Server` nothing here is made for throughput, and
the limits are far tighter.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from math import inf
from typing import Final

from admin.api.access import Access
from admin.api.cluster_servicer import ClusterServicer, guarded
from mqcore.clock import Clock
from mqgrpc import Connection, Limits, Usage
from mqservice.http2_front import Http2Front
from mqservice.reflection import reflection_table

__all__ = ["GrpcConnection", "GrpcSide"]

# Requests are empty messages; answers are a cluster's state, some 100 KB for a hundred brokers.
_LIMITS: Final = Limits(
    message_bytes=64 << 10,
    concurrent_streams=32,
    server_streams=1_000,
    stream_window_bytes=64 << 10,
    connection_window_bytes=256 << 10,
    connection_buffer_bytes=16 << 20,
    server_buffer_bytes=128 << 20,
    idle_burst=200,
    idle_per_s=50,
)
_CLOSE_TIMEOUT_S: Final = 1.0


class GrpcSide:
    """The gRPC half of the port: ClusterService, health and reflection, and the open connections."""

    def __init__(self, servicer: ClusterServicer, *, access: Access, clock: Clock) -> None:
        self._servicer = servicer
        # Used for its handlers, health and method table; it never listens.
        self._front = Http2Front("", 0, clock=clock, limits=_LIMITS)
        table = guarded(servicer.method_table(), access)
        self._front.add(table)
        self._front.add(guarded(reflection_table([table.service_name, "grpc.health.v1.Health"]), access))
        self.usage: Final = Usage()
        self.counters: Final[Counter[str]] = Counter()
        self.connections: Final[set[GrpcConnection]] = set()

    async def set_serving(self, is_serving: bool) -> None:
        """What grpc.health.v1 answers."""
        await self._front.set_serving(is_serving)

    async def stop(self, *, limit_ms: int) -> None:
        """Ends watches, tells callers to go elsewhere, and cuts off who has not gone within `limit_ms`."""
        self._servicer.end_watches()
        await self._front.stop(limit_ms=0)
        loop = asyncio.get_running_loop()
        for connection in list(self.connections):
            connection.drain()
        deadline = loop.time() + limit_ms / 1_000
        while self.connections and loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()

    def new_connection(self, peer: str, now: float, connection: GrpcConnection) -> Connection:
        """The state machine of one connection."""
        return Connection(
            self._front.new_call,
            limits=_LIMITS,
            now=now,
            peer=peer,
            usage=self.usage,
            counters=self.counters,
            on_output=connection.output_ready,
        )


class GrpcConnection(asyncio.Protocol):
    """One connection's transport and timer. `begin` stands for `connection_made`."""

    def __init__(self, side: GrpcSide) -> None:
        self._side = side
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._is_closing = False
        self._is_paused = False
        self._is_flush_scheduled = False
        self._transport: asyncio.Transport
        self._connection: Connection

    def begin(self, transport: asyncio.Transport, peer: str, received: bytes) -> None:
        """Takes the transport over, with what was read of it already."""
        self._transport = transport
        self._connection = self._side.new_connection(peer, self._loop.time(), self)
        self._side.connections.add(self)
        transport.set_protocol(self)
        self._arm()
        self.data_received(received)

    def data_received(self, data: bytes) -> None:
        """Feeds the state machine."""
        if self._is_closing:
            return
        self._connection.receive(data, self._loop.time())
        if self._connection.is_closed:
            self.output_ready()  # its last words, then the end
        else:
            self._arm()

    def eof_received(self) -> bool:
        """No gRPC client stops writing and goes on reading."""
        return False

    def pause_writing(self) -> None:
        """A peer that does not read is not read either."""
        self._is_paused = True
        self._connection.pause_output(self._loop.time(), self._transport.get_write_buffer_size())
        if not self._is_closing:
            self._transport.pause_reading()
        self._arm()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._is_paused = False
        self._connection.resume_output(self._loop.time())
        if not self._is_closing:
            self._transport.resume_reading()
        self._write_out()
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells the calls."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_closing = True
        self._connection.lost()
        self._side.connections.discard(self)

    def output_ready(self) -> None:
        """There is something to write; all of this turn of the loop goes out together."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._write_out)

    def drain(self) -> None:
        """Tells the peer to go elsewhere."""
        self._connection.drain(self._loop.time())
        self.output_ready()
        self._arm()

    def abort(self) -> None:
        """Cuts the connection."""
        self._is_closing = True
        self._transport.abort()

    def _write_out(self) -> None:
        self._is_flush_scheduled = False
        if self._is_closing:
            return
        connection = self._connection
        while data := connection.take_output():
            self._transport.write(data)
            if self._is_paused:
                break
        connection.output_written(self._transport.get_write_buffer_size())
        if connection.is_closed or connection.is_drained:
            self._is_closing = True
            self._transport.close()
            # What is in the socket's buffer is still sent, but a peer that does not read must not keep us.
            self._loop.call_later(_CLOSE_TIMEOUT_S, self._transport.abort)
        else:
            self._arm()

    def _arm(self) -> None:
        deadline = self._connection.next_deadline()
        if deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, inf
        self._connection.on_time(self._loop.time())
        if self._connection.is_closed or self._connection.is_drained:
            self.output_ready()
        else:
            self._arm()
