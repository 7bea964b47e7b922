"""The asyncio part: a listening port, and the connections that asyncio's transports serve.

Those are connections that were accepted elsewhere; `sockets` serves all others. TLS is told from
plain HTTP/2 by its first byte, as RocketMQ's proxy does it, so that one port serves both where the operator allows it.
All answers of one turn of the loop go out in one write per connection.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Final, Protocol

from tandemmq.core.quotas import address_of_peer
from tandemmq.http2.connection import Connection
from tandemmq.http2.errors import Limits, TlsMode, Usage
from tandemmq.http2.frames import RequestShape
from tandemmq.http2.hpack import Header
from tandemmq.http2.output import PendingOutput
from tandemmq.http2.sockets import (
    CLOSE_TIMEOUT_S,
    WRITE_BUFFER_BYTES,
    PlainSocket,
    PlainSockets,
    TlsSocket,
    has_unacknowledged,
    peer_text,
)
from tandemmq.http2.stream import Stream

# One read may hold 100 usual requests, some 1.5 ms of the loop; more at once would make other connections wait. Larger
# requests fill it: of half the size, batches of 32 KiB take 1.6 times the system calls and 4 % more instructions.
_READ_BYTES: Final = 128 << 10
_BACKLOG: Final = 1_024
_ACCEPTS_PER_TURN: Final = 64
_TLS_HANDSHAKE: Final = 0x16
_OUT_OF_FILES_PAUSE_S: Final = 1.0
_SETTLE_LOOK_S: Final = 0.005
_SHARES_FOR_S: Final = 0.1


class ConnectionGate(Protocol):
    """Who may have how many connections; peers are addresses the way gRPC writes them."""

    def admits(self, peer: str, /) -> bool:
        """Whether one more of this peer is served."""

    def connected(self, peer: str, /) -> None:
        """One more is."""

    def disconnected(self, peer: str, /) -> None:
        """One is gone."""


class Server:
    """Serves one port. Event loop only.

    `new_stream` makes a call as `Stream` is made. `counters` counts what limits refused, by the names
    in `Limits`, and "connections_accepted".
    """

    def __init__(
        self,
        new_stream: Callable[[Connection, int, list[Header], RequestShape], Stream],
        *,
        limits: Limits | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        tls_mode: TlsMode = TlsMode.DISABLED,
        write_soon: Callable[[Callable[[], None]], object] | None = None,
        read_last: Callable[[int], None] | None = None,
        gate: ConnectionGate | None = None,
    ) -> None:
        """`tls` gives the context of each new connection, which must offer ALPN "h2"; needed unless `tls_mode` is
        DISABLED. `write_soon` calls back when all that this turn of the loop brought was handled; `call_soon` of the
        loop, unless somebody has better. `read_last` is told the descriptor whose reader the loop is to call behind all
        others. `gate` is asked for each connection; None: whoever comes is served.
        """
        assert tls is not None or tls_mode is TlsMode.DISABLED, "TLS needs a context"
        self.limits: Final = limits or Limits()
        self.usage: Final = Usage(calls_left=self._calls_left, is_greedy=self._is_greedy)
        self.counters: Final[Counter[str]] = Counter()
        self._new_stream: Final = new_stream
        self._gate: Final = gate
        self._read_last: Final = read_last
        self._tls: Final = tls
        self._tls_mode: Final = tls_mode
        self.output: Final = PendingOutput(write_soon)
        """The connections that have something to write."""
        self._listeners: list[socket.socket] = []
        self._plain: PlainSockets | None = None
        self._protocols: set[_Protocol] = set()
        # By what address each connection is counted, and how many each address has.
        self._address_of: dict[Connection, str] = {}
        self._counts: Counter[str] = Counter()
        # What each address has, by address, as it was a moment ago.
        self._calls_of: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()
        self._looked_at = -inf
        # Those whose first byte has not come, with their peers; they count like the others.
        self._undecided: dict[socket.socket, tuple[asyncio.TimerHandle, str]] = {}
        self._turns_away = False
        # One read at a time on one thread: all connections read into the same memory.
        self.memory: Final = memoryview(bytearray(_READ_BYTES))
        """Where every connection reads; used up before the next read."""

    @property
    def connection_count(self) -> int:
        return len(self._protocols) + len(self._plain or ()) + len(self._undecided)

    def listen(self, host: str, port: int) -> int:
        """Listens and gives the port. OSError when the address is taken or not this machine's."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and host == "::":
                # Every address of the machine, IPv4's too.
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.setblocking(False)
            listener.bind((host, port))
            listener.listen(_BACKLOG)
            if self._plain is None:
                self._plain = PlainSockets(
                    self.memory, self.output, self.new_connection, self._disconnected, self._count
                )
                if self._read_last is not None:
                    self._read_last(self._plain.fileno())
        except OSError:
            listener.close()
            raise
        self._listeners.append(listener)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        return int(listener.getsockname()[1])

    def adopt(self, transport: asyncio.Transport, received: bytes) -> None:
        """Serves a connection that was accepted elsewhere, and of which `received` was read already."""
        protocol = _Protocol(self)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.received(received)

    def adopted(self) -> list[asyncio.Transport]:
        """Transports of the connections that were accepted elsewhere."""
        return [protocol.transport for protocol in self._protocols]

    async def stop(self, *, limit_s: float) -> None:
        """Takes no new connections and calls, lets those in progress end within `limit_s`, then cuts them off."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for sock in list(self._undecided):
            self._settle(sock)
            sock.close()
        for connected in self._connected():
            connected.drain()
        deadline = loop.time() + limit_s
        while self.connection_count and loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connected in self._connected():
            connected.abort()
        # They are lost in a later turn of the loop.
        deadline = loop.time() + CLOSE_TIMEOUT_S
        while self.connection_count and loop.time() < deadline:
            await asyncio.sleep(0)
        if self._plain is not None:
            self._plain.close()
            self._plain = None

    def turn_away(self, *, is_on: bool) -> None:
        """While it is on, whoever connects is cut off before a byte: a client with several addresses takes the next
        one. Who is connected is asked to begin its next call elsewhere."""
        if is_on and not self._turns_away:
            for connected in self._connected():
                connected.drain()
        self._turns_away = is_on

    async def settle(self, *, limit_s: float) -> None:
        """Waits until the peers have read what `Stream.unread` was set for; at the limit it is called for the rest."""
        loop = asyncio.get_running_loop()
        asked = [connected for connected in self._connected() if connected.connection.ask_if_read()]
        deadline = loop.time() + limit_s
        while asked := [connected for connected in asked if not connected.connection.has_read]:
            if loop.time() >= deadline:
                break
            await asyncio.sleep(_SETTLE_LOOK_S)
        for connected in asked:
            connected.connection.tell_unread()

    def flush(self) -> None:
        """Writes what every connection has to say, now rather than at the end of this turn of the loop."""
        self.output.flush()

    def _connected(self) -> list[_Protocol | PlainSocket]:
        return [*self._protocols, *(self._plain.open_now() if self._plain is not None else ())]

    # Accepting

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # The connection stays in the backlog; accepting again at once would spin.
                    self.counters["accept_failed"] += 1
                    loop.remove_reader(listener)
                    loop.call_later(_OUT_OF_FILES_PAUSE_S, self._resume_accepting, listener)
                return
            if self._turns_away:
                self.counters["connection_turned_away"] += 1
                sock.close()
                continue
            peer = peer_text(address)
            if self.connection_count >= self.limits.connections and not self._makes_room(peer):
                self.counters["connection_refused"] += 1
                sock.close()
                continue
            if self._gate is not None and not self._gate.admits(peer):
                # Before a byte is read there is no other way to say so.
                self.counters["connection_over_quota"] += 1
                sock.close()
                continue
            self.counters["connections_accepted"] += 1
            sock.setblocking(False)
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls_mode is TlsMode.PERMISSIVE:
                # Its first byte decides.
                timer = loop.call_later(self.limits.preface_timeout_s, self._give_up_undecided, sock)
                self._undecided[sock] = timer, peer
                self._count_in(peer)
                loop.add_reader(sock, self._decide, sock)
            else:
                self._connect(sock, use_tls=self._tls_mode is TlsMode.ENFORCING)

    def _makes_room(self, peer: str) -> bool:
        """Ends a connection of an address that has more than its share of all, one that says nothing or else the one
        with the fewest calls, for a newcomer whose address has less: whoever opens very many keeps out himself."""
        counts, address_of = self._counts, self._address_of
        share = self.limits.connections // (len(counts) + 1)
        if counts[address_of_peer(peer)] >= share:
            return False
        for sock, (_, its_peer) in self._undecided.items():
            if counts[address_of_peer(its_peer)] > share:
                self.counters["connection_gave_way"] += 1
                self._settle(sock)
                sock.close()
                return True
        greedy = [each for each in self._connected() if counts[address_of[each.connection]] > share]
        if not greedy:
            return False
        self.counters["connection_gave_way"] += 1
        min(greedy, key=_open_calls).abort()
        return True

    def _resume_accepting(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _decide(self, sock: socket.socket) -> None:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._settle(sock)
        if first:
            self._connect(sock, use_tls=first[0] == _TLS_HANDSHAKE)
        else:
            sock.close()

    def _give_up_undecided(self, sock: socket.socket) -> None:
        self.counters["preface_timeout"] += 1
        self._settle(sock)
        sock.close()

    def _settle(self, sock: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(sock)
        timer, peer = self._undecided.pop(sock)
        timer.cancel()
        self._count_out(peer)

    def _connect(self, sock: socket.socket, *, use_tls: bool) -> None:
        assert self._plain is not None, "we listen"
        try:
            if use_tls:
                assert self._tls is not None, "TLS has a context"
                context, limit_s = self._tls(), self.limits.tls_handshake_timeout_s
                self._plain.serve(sock, lambda sockets, own, fd: TlsSocket(sockets, own, fd, context, limit_s))
            else:
                self._plain.add(sock)
        except OSError:
            self.counters["connection_failed"] += 1
            sock.close()

    def _count(self, counter: str) -> None:
        self.counters[counter] += 1

    # What connections ask for

    def new_connection(
        self, peer: str, now: float, on_output: Callable[[], None], on_waiting_output: Callable[[], None]
    ) -> Connection:
        """The state machine of a connection of this server."""
        connection = Connection(
            self._new_stream,
            limits=self.limits,
            now=now,
            peer=peer,
            usage=self.usage,
            counters=self.counters,
            on_output=on_output,
            on_waiting_output=on_waiting_output,
        )
        self._address_of[connection] = self._count_in(peer)
        return connection

    def made(self, protocol: _Protocol) -> None:
        self._protocols.add(protocol)

    def lost(self, protocol: _Protocol) -> None:
        self._protocols.discard(protocol)
        self._disconnected(protocol.connection)

    def _disconnected(self, connection: Connection) -> None:
        del self._address_of[connection]
        self._count_out(connection.peer)

    # Shares, where all is taken

    def _calls_left(self, connection: Connection) -> int:
        self._look()
        own = self._calls_of[self._address_of.get(connection, "")]
        return max(0, self.limits.server_streams // (len(self._calls_of) + 1) - own)

    def _is_greedy(self, connection: Connection) -> bool:
        self._look()
        own = max(self._bytes_of[self._address_of.get(connection, "")], connection.buffered_bytes)
        return own > self.limits.server_buffer_bytes // (len(self._bytes_of) + 1)

    def _look(self) -> None:
        """Counts anew what each address has: not with every call, so that whoever takes everything does not make
        others pay for the counting."""
        now = monotonic()
        if now - self._looked_at < _SHARES_FOR_S:
            return
        self._looked_at = now
        self._calls_of, self._bytes_of = Counter(), Counter()
        for each, address in self._address_of.items():
            if each.open_streams:
                self._calls_of[address] += each.open_streams
            if each.buffered_bytes:
                self._bytes_of[address] += each.buffered_bytes

    def _count_in(self, peer: str) -> str:
        """One more of that peer's address, which it tells."""
        address = address_of_peer(peer)
        self._counts[address] += 1
        if self._gate is not None:
            self._gate.connected(peer)
        return address

    def _count_out(self, peer: str) -> None:
        address = address_of_peer(peer)
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
        if self._gate is not None:
            self._gate.disconnected(peer)


def _open_calls(connected: _Protocol | PlainSocket) -> int:
    return connected.connection.open_streams


class _Protocol(asyncio.BufferedProtocol):
    """One connection's transport and timer."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._memory = server.memory
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._is_closing = False
        self._is_aborted = False
        self._is_paused = False
        self.connection: Connection
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.connection = self._server.new_connection(
            peer_text(transport.get_extra_info("peername")),
            self._loop.time(),
            partial(self._server.output.add, self),
            partial(self._server.output.add_waiting, self),
        )
        self._server.made(self)
        self._arm()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._memory

    def buffer_updated(self, nbytes: int) -> None:
        self.received(bytes(self._memory[:nbytes]))

    def received(self, data: bytes) -> None:
        """Feeds the state machine."""
        connection = self.connection
        connection.receive(data, self._loop.time())
        if connection.is_closed:
            self._server.output.add(self)  # its last words, then the end
        elif connection.next_deadline() < self._timer_at:
            self._arm()

    def eof_received(self) -> bool:
        # No gRPC client stops writing and goes on reading: this one is gone.
        self._look_for_unacknowledged()
        return False

    def pause_writing(self) -> None:
        # A peer that does not read is not read: its PINGs would pile up answers.
        self._is_paused = True
        self.connection.pause_output(self._loop.time(), self.transport.get_write_buffer_size())
        if not self._is_closing:
            self.transport.pause_reading()
        self._arm()

    def resume_writing(self) -> None:
        self._is_paused = False
        self.connection.resume_output(self._loop.time())
        if not self._is_closing:
            self.transport.resume_reading()
        self.write_out()
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if exc is None and not self._is_aborted:
            # A transport that is closed writes what it has first.
            self.connection.output_written()
        if exc is not None:
            self.connection.is_broken = True
        # Hooks may have something to say to other calls of this connection; nobody is there to hear it.
        self._is_closing = True
        self.connection.lost()
        self._server.lost(self)

    def write_out(self) -> None:
        if self._is_closing:
            return
        connection = self.connection
        transport = self.transport
        while data := connection.take_output():
            transport.write(data)
            if self._is_paused:
                break
        connection.output_written(transport.get_write_buffer_size())
        if connection.is_closed or connection.is_drained:
            self._close()

    def fail(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": "a connection ends for an error in its handling", "exception": error}
        )
        self.abort()

    def drain(self) -> None:
        """Tells the peer to go elsewhere."""
        self.connection.drain(self._loop.time())
        self._arm()

    def abort(self) -> None:
        self._is_closing = True
        if not self._is_aborted:
            self._is_aborted = True
            self.connection.output_written(self.transport.get_write_buffer_size())
            self._look_for_unacknowledged()
            self.transport.abort()

    def _look_for_unacknowledged(self) -> None:
        sock = self.transport.get_extra_info("socket")
        if sock is not None and has_unacknowledged(sock):
            self.connection.is_broken = True

    def _close(self) -> None:
        self._is_closing = True
        # What is in the socket's buffer is still sent, but a peer that does not read must not keep us.
        self.transport.close()
        self._loop.call_later(CLOSE_TIMEOUT_S, self.abort)

    def _arm(self) -> None:
        deadline = self.connection.next_deadline()
        if deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = inf
        connection = self.connection
        connection.on_time(self._loop.time())
        if connection.is_closed or connection.is_drained:
            self._server.output.add(self)
        else:
            self._arm()
