"""Sockets over the simulated network, with just the calls the broker's replication plane makes.

`tandemmq.broker.master.ha_listener` and `tandemmq.broker.slave.ha_connection` run on these unchanged: non-blocking,
partial sends, readiness told by the event loop as long as it lasts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from simulation.network import Connection
from simulation.process import Process, running_process

Address = tuple[str, int]


class SimSocket:
    """One socket of a process: a listener or one end of a stream, as `socket.socket` shows them."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._address: Address = (process.host, 0)
        self._backlog: deque[Connection] = deque()
        self._connection: Connection | None = None
        self._lost: str | None = None
        self._has_room = True
        self._closed = False
        self._reader: Callable[[], None] | None = None
        self._writer: Callable[[], None] | None = None
        self._read_planned = False

    # As socket.socket

    def setblocking(self, flag: bool) -> None:
        assert not flag, "everything here is driven by the event loop"

    def setsockopt(self, level: int, option: int, value: int) -> None:
        pass

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        raise OSError("nothing is known of the kernel's side")

    def bind(self, address: Address) -> None:
        self._address = (self._process.host, address[1])

    def listen(self, backlog: int) -> None:
        self._process.network.listen(self._process, self._address[1], self._accepted)

    def getsockname(self) -> Address:
        return self._address

    def accept(self) -> tuple[SimSocket, Address]:
        if not self._backlog:
            raise BlockingIOError
        connection = self._backlog.popleft()
        sock = SimSocket(self._process)
        sock.join(connection)
        return sock, (connection.peer_host, connection.port)

    def recv(self, max_bytes: int) -> bytes:
        assert self._connection is not None
        data = self._connection.receive(max_bytes)
        if data:
            return data
        if self._lost is None:
            raise BlockingIOError
        if "reset" in self._lost:
            raise ConnectionResetError(self._lost)
        return b""

    def recv_into(self, buffer: bytearray) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: bytes | memoryview) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: Sequence[bytes | memoryview]) -> int:
        assert self._connection is not None
        if self._lost is not None:
            raise BrokenPipeError(self._lost)
        sent = 0
        for buffer in buffers:
            taken = self._connection.send(buffer)
            sent += taken
            if taken < len(buffer):
                self._has_room = False
                break
        if sent == 0:
            raise BlockingIOError
        return sent

    def fileno(self) -> int:
        return -1 if self._closed else 0

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    # As the event loop sees it

    async def connect_to(self, address: Address) -> None:
        """Opens a stream; see `Network.connect`."""
        connection = await self._process.network.connect(self._process, *address)
        self._address = (self._process.host, connection.port)
        self.join(connection)

    def join(self, connection: Connection) -> None:
        """Gives the stream under a connected socket."""
        self._connection = connection
        connection.on_readable = self._plan_read
        connection.on_writable = self._room_made
        connection.on_lost = self._peer_gone

    def watch_reads(self, callback: Callable[[], None] | None) -> None:
        """Calls back while there is something to read, or an end to be seen."""
        self._reader = callback
        self._plan_read()

    def watch_writes(self, callback: Callable[[], None] | None) -> None:
        """Calls back while there is room to send."""
        self._writer = callback
        if callback is not None and self._has_room:
            self._process.loop.call_soon(self._write)

    def _accepted(self, connection: Connection) -> None:
        self._backlog.append(connection)
        self._plan_read()

    def _peer_gone(self, reason: str) -> None:
        self._lost = reason
        self._plan_read()

    def _room_made(self) -> None:
        self._has_room = True
        self._write()

    def _write(self) -> None:
        if self._writer is not None and self._has_room and not self._closed:
            self._writer()

    def _plan_read(self) -> None:
        if self._reader is not None and not self._read_planned and self._readable():
            self._read_planned = True
            self._process.loop.call_soon(self._read)

    def _readable(self) -> bool:
        if self._closed:
            return False
        unread = self._connection is not None and self._connection.unread_bytes > 0
        return bool(self._backlog) or unread or self._lost is not None

    def _read(self) -> None:
        self._read_planned = False
        if self._reader is not None and self._readable():
            self._reader()
            self._plan_read()


class SimSocketModule:
    """Stands where a module of the shell says `socket`."""

    AF_INET: Final = 2
    AF_INET6: Final = 10
    SOCK_STREAM: Final = 1
    SOL_SOCKET: Final = 1
    SO_REUSEADDR: Final = 2
    IPPROTO_TCP: Final = 6
    TCP_NODELAY: Final = 1

    def socket(self, family: int, kind: int, protocol: int = 0) -> SimSocket:
        """A socket of the process whose event loop runs."""
        return SimSocket(running_process())
