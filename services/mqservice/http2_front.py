"""Runs `mqservice.rpc` handlers on `mqgrpc`: the client API's front, made for many small calls.

A call is one object, made from its headers and dropped with its last byte; no task and no future belongs to it. The
handlers are the ones `grpc_front` runs, and one conformance suite holds for both.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Mapping
from typing import Final

from mqcore.clock import Clock
from mqgrpc.limits import Limits
from mqgrpc.server import Server, TlsMode
from mqservice.grpc_server import MESSAGE_BYTES_MAX, ListenError
from mqservice.health import HealthService
from mqservice.http2_call import MethodIndex
from mqservice.loop_turns import LoopTurns
from mqservice.reflection import reflection_table
from mqservice.rpc import MethodTable

__all__ = ["Http2Front"]


class Http2Front:
    """One port served by `mqgrpc`, with health and reflection. Add tables, `start`, declare it serving, `stop`."""

    def __init__(
        self,
        bind_address: str,
        port: int,
        *,
        clock: Clock,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        tls_mode: TlsMode = TlsMode.DISABLED,
        turns: LoopTurns | None = None,
    ) -> None:
        """`turns` are the loop's it will run on: answers are written at their ends."""
        self._bind_address = bind_address
        self._port = port
        self._index = MethodIndex(clock)
        self._health = HealthService()
        self.new_call: Final = self._index
        """What makes the calls of a connection: the `new_stream` of `mqgrpc.Connection`."""
        self._server = Server(
            self.new_call,
            limits=limits or Limits(message_bytes=MESSAGE_BYTES_MAX),
            tls=tls,
            tls_mode=tls_mode,
            write_soon=(turns or LoopTurns()).write_soon,
        )
        self._index.add(self._health.method_table())

    @property
    def counters(self) -> Mapping[str, int]:
        """What limits refused, by the names in `mqgrpc.Limits`, and "connections_accepted"."""
        return self._server.counters

    @property
    def connection_count(self) -> int:
        """Connections open now."""
        return self._server.connection_count

    def add(self, table: MethodTable) -> None:
        """Serves the table's methods. Before `start`."""
        self._index.add(table)
        self._health.add(table.service_name)

    async def start(self) -> int:
        """Listens and returns the port, which differs from the one asked for when that was 0. Raises ListenError."""
        names = sorted({path[1:].rpartition("/")[0] for path in self._index.by_path})
        self._index.add(reflection_table(names))
        try:
            return self._server.listen(self._bind_address, self._port)
        except OSError as error:
            raise ListenError(self._bind_address, self._port, _reason(error)) from error

    def adopt(self, transport: asyncio.Transport, received: bytes) -> None:
        """Serves a connection that was accepted elsewhere, and of which `received` was read already."""
        self._server.adopt(transport, received)

    async def set_serving(self, is_serving: bool) -> None:
        """Readiness, as probes and clients see it."""
        self._health.set_serving(is_serving)

    def flush(self) -> None:
        """Writes all answers given so far, rather than at the end of this turn of the loop."""
        self._server.flush()

    async def stop(self, *, limit_ms: int) -> None:
        """Takes no new calls at once, gives those in progress `limit_ms`, then cancels them."""
        self._health.set_serving(False)
        self._health.end_watches()
        await self._server.stop(limit_s=limit_ms / 1_000)


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process has the port; stop it or choose another port"
    return f"{error.strerror or error}; is it an address of this machine?"
