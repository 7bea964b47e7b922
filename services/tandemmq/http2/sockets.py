"""Sockets read and written without asyncio's transports (ADR 25), plain ones, and on their code those with TLS.

The loop watches one descriptor for all of them, an epoll of their own. When it is readable, one system call names the
sockets that are ready, and each is read once:

    loop -> epoll.poll -> recv_into -> Connection.receive; at the end of the turn: Connection.take_output -> send

A socket keeps its descriptor until the turn after its end. So no descriptor is used again before every socket of a poll
that named it has been handled.

All answers of a turn leave at its end, so a turn is as long as the least that everybody waits. Three rules keep it
short however much others send (ADR 44). Of a socket that shares the loop with others no frame is begun after
`_SERVE_S`, and the rest waits for its next turn: a receive of 200 bytes may cost more than a body of 100 KiB. After
`_TURN_S` whoever was not served waits for the next turn, which serves one socket of each address, whoever waits longest
first, before it serves a second of any. And where addresses speak of which nobody waits, every other turn is theirs
alone, and as short as what they ask for; for a while the others' turns are short then, too, since an answer may wait
for what the loop reads between them. A turn costs what it serves, however many wait.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
import ssl
import termios
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from math import inf
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias

from tandemmq.core.quotas import address_of_peer
from tandemmq.http2.output import PendingOutput

if TYPE_CHECKING:
    from tandemmq.http2.connection import Connection

WRITE_BUFFER_BYTES: Final = 256 << 10
"""Above it no more DATA is handed to a socket that does not take it."""
CLOSE_TIMEOUT_S: Final = 1.0
"""How long a peer may take to read the last words."""
# Down to it DATA flows again: as in asyncio's transports, a quarter.
_RESUME_BYTES: Final = WRITE_BUFFER_BYTES // 4
# Sockets of one poll; the rest is ready in the next, behind all others of the loop.
_EVENTS_MAX: Final = 256
# No socket is read any more when the requests of a turn have taken so long: some 70 sends, enough for what a turn
# does once for all of them to be little for each.
_TURN_S: Final = 0.001
# The same for so long after a turn that was theirs of whom nobody waits.
_SHORT_TURN_S: Final = 0.0003
_NEWCOMERS_S: Final = 0.1
# Of one socket in a turn, if there are others; a request that has begun is handled whole.
_SERVE_S: Final = 0.0003
# Read of a socket at a time, if there are others: what is not handled in time is kept here, of each of them. Of very
# many it would be much: once they all keep so much, less is read.
_READ_BYTES: Final = 64 << 10
_KEPT_BYTES_MAX: Final = 32 << 20
_READ_BYTES_MIN: Final = 4 << 10
_INT: Final = Struct("i")
_READABLE: Final = 0x001  # EPOLLIN
_WRITABLE: Final = 0x004  # EPOLLOUT

# What sockets are ready for, by descriptor and by address, in the order in which they are served.
_Waiting: TypeAlias = OrderedDict[str, OrderedDict[int, int]]


class PlainSockets:
    """All of one server's. Event loop only."""

    def __init__(
        self,
        memory: memoryview,
        output: PendingOutput,
        connect: Callable[[str, float, Callable[[], None], Callable[[], None]], Connection],
        disconnected: Callable[[Connection], None] = lambda _connection: None,
        count: Callable[[str], None] = lambda _counter: None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """Every socket is read into `memory`. `connect` makes a connection: of its peer, the time, and what it calls
        when it has output, and output that may wait; `disconnected` is told when it is gone, and `count` what made a
        socket fail. Raises OSError without a descriptor left."""
        self.memory: Final = memory
        self.output: Final = output
        self.connect: Final = connect
        self.disconnected: Final = disconnected
        self.count: Final = count
        self.now: Final = now
        self.is_shared: bool = False
        """There are others beside the socket that is read."""
        self.read_at: float = 0.0
        """When a socket was read last."""
        self.loop: Final = asyncio.get_running_loop()
        self._sockets: dict[int, PlainSocket] = {}
        # Not served in the last turn, or not to their end; empty unless there is more to do than a turn may take.
        self._waiting: _Waiting = OrderedDict()
        # The last turn served only addresses of which nobody waited; and when one last did.
        self._was_for_newcomers = False
        self._newcomers_at = -inf
        self._epoll = select.epoll()
        # Ready while somebody waits: what a connection keeps no kernel knows of.
        self._again: Final = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_again = False
        self._epoll.register(self._again, _READABLE)
        self.loop.add_reader(self._epoll.fileno(), self._on_ready)

    def __len__(self) -> int:
        return len(self._sockets)

    def fileno(self) -> int:
        """What the loop watches."""
        return self._epoll.fileno()

    def open_now(self) -> list[PlainSocket]:
        return list(self._sockets.values())

    def add(self, sock: socket.socket) -> None:
        """Serves a connected socket that does not block. OSError: the kernel cannot watch it; it is the caller's."""
        self.serve(sock, PlainSocket)

    def serve(self, sock: socket.socket, made: Callable[[PlainSockets, socket.socket, int], PlainSocket]) -> None:
        """The same for a socket of another kind, which `made` makes with its descriptor."""
        fd = sock.fileno()
        self._epoll.register(fd, _READABLE)
        self._sockets[fd] = made(self, sock, fd)

    def close(self) -> None:
        """Serves no more; all sockets are gone."""
        assert not self._sockets, "abort them first"
        self.loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        os.close(self._again)

    # What sockets ask for

    def watch(self, fd: int, events: int) -> None:
        """From now on a socket is ready when one of `events` is true of it."""
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """A socket is never ready again."""
        self._epoll.unregister(fd)

    def forget(self, fd: int) -> None:
        """A socket's descriptor is closed."""
        del self._sockets[fd]

    def serve_again(self, served: PlainSocket) -> None:
        """A socket's connection has more to do than it had time for."""
        _add(self._waiting, served.host, served.fd, _READABLE)
        self._say_if_waiting()

    def is_waiting(self, served: PlainSocket) -> bool:
        """What the socket's peer sent may be here, and only its turn is yet to come."""
        return served.fd in self._waiting.get(served.host, ())

    def _on_ready(self) -> None:
        sockets = self._sockets
        if len(sockets) == 1:
            self.is_shared = False
            if self._is_again:
                self._waiting.clear()
                self._say_if_waiting()
            # It is that one, whatever it is ready for: asking is a system call more for each message that is alone.
            next(iter(sockets.values())).on_ready(_READABLE | _WRITABLE)
            return
        self.is_shared = True
        ready = self._epoll.poll(0, _EVENTS_MAX)
        if self._waiting:
            self._serve_fairly(ready)
            return
        turn_ends = self.read_at = 0.0
        for index, (fd, events) in enumerate(ready):
            sockets[fd].on_ready(events)
            if not turn_ends:
                turn_ends = self.read_at and self.read_at + _TURN_S
            elif self.read_at >= turn_ends:
                for left, its_events in ready[index + 1 :]:
                    _add(self._waiting, sockets[left].host, left, its_events)
                self._say_if_waiting()
                return

    def _serve_fairly(self, ready: list[tuple[int, int]]) -> None:
        """A turn after one that did not come to everybody."""
        sockets, waiting = self._sockets, self._waiting
        newcomers: _Waiting = OrderedDict()
        for fd, events in ready:
            if fd != self._again:
                host = sockets[fd].host
                _add(waiting if host in waiting else newcomers, host, fd, events)
        # Newcomers whose turn this is not are as ready in the next one.
        is_for_newcomers = self._was_for_newcomers = bool(newcomers) and not self._was_for_newcomers
        turn = newcomers if is_for_newcomers else waiting
        again: _Waiting = OrderedDict()
        self._waiting = again
        turn_s = _TURN_S
        if is_for_newcomers:
            self._newcomers_at = self.now()
        elif self.now() - self._newcomers_at < _NEWCOMERS_S:
            turn_s = _SHORT_TURN_S
        turn_ends = self.read_at = 0.0
        while turn:
            host, its = turn.popitem(last=False)
            fd, events = its.popitem(last=False)
            if its:
                turn[host] = its
            if (served := sockets.get(fd)) is None:
                continue
            served.on_ready(events)
            if not turn_ends:
                turn_ends = self.read_at and self.read_at + turn_s
            if turn_ends and self.now() >= turn_ends:
                break
        self._waiting = waiting
        for left in (newcomers, again) if is_for_newcomers else (again,):
            for host, its in left.items():
                for fd, events in its.items():
                    _add(waiting, host, fd, events)
        self._say_if_waiting()

    def _say_if_waiting(self) -> None:
        """So that the loop goes on, or sleeps."""
        if bool(self._waiting) != self._is_again:
            self._is_again = not self._is_again
            if self._is_again:
                os.eventfd_write(self._again, 1)
            else:
                os.eventfd_read(self._again)


def _add(waiting: _Waiting, host: str, fd: int, events: int) -> None:
    """One more, behind those of its address, and a new address behind all; whoever is there stays in its place."""
    its = waiting.get(host)
    if its is None:
        its = waiting[host] = OrderedDict()
    its[fd] = its.get(fd, 0) | events


class PlainSocket:
    """One connection with its socket and timer."""

    def __init__(self, sockets: PlainSockets, sock: socket.socket, fd: int) -> None:
        self._sockets = sockets
        self._memory = sockets.memory
        self._sock = sock
        self.fd: Final = fd
        self._watched = _READABLE
        # Taken from the connection and not yet by the socket; None: the socket takes what comes.
        self._unsent: bytearray | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._is_closing = False
        self._is_over = False
        # The peer does not read, so it is not read: its PINGs would pile up answers.
        self._is_paused = False
        peer = _peer_of(sock)
        self.host: Final = address_of_peer(peer)
        self.connection = sockets.connect(peer, monotonic(), self._has_output, self._has_waiting_output)
        self._arm()

    def on_ready(self, events: int) -> None:
        """Does what the socket is ready for. Errors and ends are not looked up in `events`: the calls tell."""
        try:
            if self._unsent is not None and events != _READABLE:
                self._send_unsent()
            if events != _WRITABLE and self._watched & _READABLE:
                self._read()
        except Exception as error:
            self.fail(error)

    def write_out(self) -> None:
        if self._is_closing:
            return
        connection = self.connection
        while data := connection.take_output():
            self._send(data)
            if self._is_over:
                return
            if self._is_paused:
                break
        connection.output_written(self._unsent_bytes())
        if connection.is_closed or connection.is_drained:
            self._close()

    def fail(self, error: Exception) -> None:
        self._sockets.loop.call_exception_handler(
            {"message": "a connection ends for an error in its handling", "exception": error}
        )
        self._break()

    def drain(self) -> None:
        """Tells the peer to go elsewhere."""
        if not self._is_over:
            self.connection.drain(monotonic())
            self._arm()

    def abort(self) -> None:
        if not self._is_over:
            self.connection.output_written(self._unsent_bytes())
            self._look_for_unacknowledged()
            self._end()

    # Input

    def _read(self) -> None:
        sockets = self._sockets
        connection = self.connection
        size = 0
        if not connection.has_more:
            limit = len(self._memory)
            if sockets.is_shared:
                limit = _READ_BYTES if connection.usage.unfinished_bytes < _KEPT_BYTES_MAX else _READ_BYTES_MIN
            try:
                size = self._sock.recv_into(self._memory, limit)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._break()
                return
            if not size:
                self._eof()
                return
        now = sockets.read_at = sockets.now()
        if size:
            self._received(size, now)
        else:
            self._feed(b"", now)
        if connection.has_more:
            sockets.serve_again(self)
        if connection.is_closed:
            self._has_output()  # its last words, then the end
        elif connection.next_deadline() < self._timer_at:
            self._arm()

    def _received(self, size: int, now: float) -> None:
        """Gives what was read to the state machine."""
        self._feed(bytes(self._memory[:size]), now)

    def _feed(self, data: bytes, now: float) -> None:
        sockets = self._sockets
        if sockets.is_shared:
            self.connection.receive(data, now, sockets.now, now + _SERVE_S)
        else:
            self.connection.receive(data, now)

    def _eof(self) -> None:
        # No gRPC client stops writing and goes on reading: this one is gone. Its end acknowledges what came before it.
        self._look_for_unacknowledged()
        self._close()

    # Output

    def _has_output(self) -> None:
        self._sockets.output.add(self)

    def _has_waiting_output(self) -> None:
        self._sockets.output.add_waiting(self)

    def _send(self, data: bytes) -> None:
        unsent = self._unsent
        if unsent is None:
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                self._break()
                return
            if sent == len(data):
                return
            unsent = self._unsent = bytearray(memoryview(data)[sent:])
            self._watch()
        else:
            unsent += data
        if len(unsent) > WRITE_BUFFER_BYTES and not self._is_paused:
            self._is_paused = True
            self.connection.pause_output(monotonic(), len(unsent))
            self._watch()
            self._arm()

    def _send_unsent(self) -> None:
        unsent = self._unsent
        assert unsent is not None
        try:
            sent = self._sock.send(unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._break()
            return
        del unsent[:sent]
        self.connection.output_written(len(unsent))
        if not unsent:
            self._unsent = None
            if self._is_closing:
                self._end()
                return
        if self._is_paused and not self._is_closing and len(unsent) <= _RESUME_BYTES:
            self._is_paused = False
            self.connection.resume_output(monotonic())
            self.write_out()
            if self._is_closing:
                return
            self._arm()
        self._watch()

    def _unsent_bytes(self) -> int:
        return 0 if self._unsent is None else len(self._unsent)

    def _watch(self) -> None:
        """Waits for what there is to do."""
        events = 0 if self._is_paused or self._is_closing else _READABLE
        if self._unsent is not None:
            events |= _WRITABLE
        if events != self._watched:
            self._watched = events
            self._sockets.watch(self.fd, events)
            if events & _READABLE and self.connection.has_more:
                self._sockets.serve_again(self)

    # Time

    def _arm(self) -> None:
        deadline = self.connection.next_deadline()
        if deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self._sockets.loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = inf
        connection = self.connection
        try:
            connection.on_time(monotonic(), is_read_late=self._sockets.is_waiting(self))
        except Exception as error:
            self.fail(error)
            return
        if connection.is_closed or connection.is_drained:
            self._has_output()
        else:
            self._arm()

    # Ends

    def _close(self) -> None:
        """Ends the connection behind what was taken of it, for which a peer that does not read has little time."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._unsent is None:
            self.connection.output_written()
            self._end()
            return
        self._watch()
        self._sockets.loop.call_later(CLOSE_TIMEOUT_S, self.abort)

    def _look_for_unacknowledged(self) -> None:
        if has_unacknowledged(self._sock):
            self.connection.is_broken = True

    def _break(self) -> None:
        self.connection.is_broken = True
        self._end()

    def _end(self) -> None:
        """The socket is not used any more. It is closed a turn later: see the module's docstring."""
        if self._is_over:
            return
        self._is_over = self._is_closing = True
        self._unsent = None
        self._watched = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sockets.unwatch(self.fd)
        self._sockets.loop.call_soon(self._lost)

    def _lost(self) -> None:
        self._sockets.forget(self.fd)
        self._sock.close()
        # Hooks may have something to say to other calls of this connection; nobody is there to hear it.
        self.connection.lost()
        self._sockets.disconnected(self.connection)


def has_unacknowledged(sock: socket.socket) -> bool:
    """The peer's kernel may lack something of what was written."""
    try:
        (count,) = _INT.unpack(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(_INT.size)))
    except OSError:
        return True
    return bool(count)


def _peer_of(sock: socket.socket) -> str:
    """The peer's address the way gRPC writes it."""
    address: object = None
    with suppress(OSError):
        address = sock.getpeername()
    return peer_text(address)


def peer_text(address: object) -> str:
    """An address of `socket`'s the way gRPC writes it."""
    if not isinstance(address, tuple) or len(address) < 2:
        return "unix:"
    host, port = address[0], address[1]
    return f"ipv6:[{host}]:{port}" if ":" in str(host) else f"ipv4:{host}:{port}"


# The sockets of connections with TLS, on the code of plain ones (ADR 45).
#
# OpenSSL never sees the socket: it works on two buffers in memory, so that a read of the socket brings all the records
# that are there, and the answers of a turn are one write.
#
#     recv_into -> incoming -> SSLObject.read -> Connection.receive
#     Connection.take_output -> SSLObject.write -> outgoing -> send
#
# Until the handshake has ended nothing is asked of the connection, and its peer has `tls_handshake_timeout_s` for it. A
# handshake is work like any other, so the bounds of a turn hold for it.

# At least what one record holds: OpenSSL gives no more at a time.
_RECORD_BYTES: Final = 16 << 10


class TlsSocket(PlainSocket):
    """One connection with its socket, timer and cipher."""

    def __init__(
        self, sockets: PlainSockets, sock: socket.socket, fd: int, context: ssl.SSLContext, handshake_timeout_s: float
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        # Of the handshake; None: it is over.
        self._limit: asyncio.TimerHandle | None = sockets.loop.call_later(handshake_timeout_s, self._handshake_failed)
        super().__init__(sockets, sock, fd)

    def write_out(self) -> None:
        if self._limit is None:
            super().write_out()

    def drain(self) -> None:
        if self._limit is not None:
            self._end()
        else:
            super().drain()

    # Input

    def _received(self, size: int, now: float) -> None:
        self._incoming.write(self._memory[:size])
        try:
            if self._limit is not None and not self._shake_hands():
                return
            data = self._decrypted()
        except ssl.SSLZeroReturnError:
            self._close()
            return
        except ssl.SSLError:
            self._failed()
            return
        if self._outgoing.pending:
            # Tickets of a new session, an answer to a change of keys.
            super()._send(self._outgoing.read())
        if data and not self._is_over:
            self._feed(data, now)

    def _shake_hands(self) -> bool:
        """Goes on as far as what came allows; whether it is done. Raises SSLError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            super()._send(self._outgoing.read())
            return False
        limit, self._limit = self._limit, None
        if limit is not None:
            limit.cancel()
        # The greeting has waited for this.
        self._sockets.output.add(self)
        self._arm()
        return True

    def _decrypted(self) -> bytes:
        """All whole records of what came. Raises SSLError."""
        incoming, tls = self._incoming, self._tls
        pieces: list[bytes] = []
        with suppress(ssl.SSLWantReadError):
            # An exception for what is not whole costs as much as a small request: mostly there is none.
            while incoming.pending or tls.pending():
                pieces.append(tls.read(_RECORD_BYTES))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _eof(self) -> None:
        if self._limit is not None:
            self._handshake_failed()
        else:
            super()._eof()

    # Output

    def _send(self, data: bytes) -> None:
        try:
            self._tls.write(data)
        except ssl.SSLError:
            self._failed()
            return
        super()._send(self._outgoing.read())

    # Time and ends

    def _arm(self) -> None:
        if self._limit is None and not self._is_over:
            super()._arm()

    def _handshake_failed(self) -> None:
        if not self._is_over:
            self._sockets.count("tls_handshake_failed")
            self._end()

    def _failed(self) -> None:
        """What OpenSSL has to say of it, an alert, still goes out."""
        if self._is_over:
            return
        self._sockets.count("tls_handshake_failed" if self._limit is not None else "tls_record_invalid")
        if self._outgoing.pending:
            super()._send(self._outgoing.read())
        self._break()

    def _close(self) -> None:
        if not self._is_closing and self._limit is None:
            # Says that this is the end and not an attack. Nobody waits for the peer to say the same.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            if self._outgoing.pending:
                super()._send(self._outgoing.read())
        super()._close()

    def _end(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        super()._end()
