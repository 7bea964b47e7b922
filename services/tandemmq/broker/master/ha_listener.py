"""The master's end of the raw replication plane: sockets under `MasterReplica`.

One non-blocking socket per slave, driven by the broker's event loop without tasks: readable bytes go to the replica,
and after every turn in which the log grew or a report came in, `pump` gathers what each slave lacks into one
`sendmsg` of headers and slices of the mapped CommitLog. No byte of the log is copied in Python.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from tandemmq.broker.ha_transport import (
    CHECK_INTERVAL_S,
    TLS_HANDSHAKE_BYTE,
    ConnectionBearers,
    HaTls,
    answers_no_more,
    certificate_problem,
    handshake,
    prepare,
    tcp_state,
    why_broken,
    why_refused,
)
from tandemmq.core.clock import Clock
from tandemmq.core.quotas import counted_host
from tandemmq.core.replication.master_replica import MasterReplica, SlaveView
from tandemmq.core.routing.values import connection_end, host_of
from tandemmq.service.rpc import ListenError

if TYPE_CHECKING:
    from tandemmq.broker.tracing.send_tracer import SendTracer
    from tandemmq.core.storage.message_store import MessageStore

log = structlog.get_logger(__name__)

# One sendmsg: 32 frames of 32 KiB. Larger gains nothing (docs/protocol/replication.md) and delays other slaves' turns.
SEND_BUDGET_BYTES: Final = 1 << 20
# Reports are 8 bytes; a slave that sends more than this in one read is met again at the next.
READ_BYTES: Final = 64 << 10
SLAVES_MAX: Final = 64
STRANGERS_LINES_MAX: Final = 60
"""In a minute. Slaves that are proven later have theirs among them when they connect."""
_DEPARTURES_MAX: Final = 32
_NOTHING: Final = memoryview(b"")
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Departure:
    """A slave's connection that ended."""

    peer: str
    # None: it never proved one.
    broker_id: int | None
    at_wall_ms: int
    reason: str
    # How far behind it was.
    lag_bytes: int


class LinkTraffic(NamedTuple):
    """A connection in numbers."""

    # On the monotonic clock.
    connected_at_ms: int
    sent_bytes: int
    # Since anything came from the slave's machine; None: this system does not tell.
    silent_ms: int | None


class _HaLink:
    """One slave's socket with the bytes of a half-finished send."""

    __slots__ = ("connected_at_ms", "link_id", "peer", "sent_bytes", "sock", "unsent", "writing")

    def __init__(self, link_id: int, sock: socket.socket, peer: str, *, connected_at_ms: int) -> None:
        self.link_id = link_id
        self.sock = sock
        self.peer = peer
        self.connected_at_ms = connected_at_ms
        self.sent_bytes = 0
        self.unsent: list[bytes | memoryview] = []
        self.writing = False


class _StrangersLines:
    """Lines about connections that have proven no log: anybody can open them, and must not fill the disk."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._minute_ends_ms = 0
        self._lines = 0

    def may_be_told(self) -> dict[str, int] | None:
        """What the line says besides; None: it is left out, and the first of the next minute says how many were."""
        now_ms, left_out = self._clock.monotonic_ms(), 0
        if now_ms >= self._minute_ends_ms:
            left_out = max(0, self._lines - STRANGERS_LINES_MAX)
            self._minute_ends_ms, self._lines = now_ms + 60_000, 0
        self._lines += 1
        if self._lines > STRANGERS_LINES_MAX:
            return None
        return {"not_told": left_out} if left_out else {}


class HaListener:
    """Accepts slaves and moves bytes between their sockets and the replica.

    `after_input` is called after every change a slave made, so that the owner can collect the replica's events.
    `tracer` is told before that how far each slave was sent and has acknowledged. `slave_left` is told of each that is
    gone. With `tls` the first byte tells whether a slave speaks it; where it has to, `takes_plain` says of a slave's
    host:port whether it need not. A connection ends with its certificate, of TLS or among `bearers`.
    """

    def __init__(
        self,
        *,
        replica: MasterReplica,
        log_reader: MessageStore,
        clock: Clock,
        after_input: Callable[[], None],
        tracer: SendTracer | None = None,
        slave_left: Callable[[SlaveView], None] | None = None,
        tls: HaTls | None = None,
        takes_plain: Callable[[str], bool] = lambda _: True,
        bearers: ConnectionBearers | None = None,
    ) -> None:
        self._bearers = bearers
        self._tls = tls
        self._takes_plain = takes_plain
        self._handshakes: dict[int, asyncio.Task[None]] = {}
        self._replica = replica
        self._log_reader = log_reader
        self._clock = clock
        self._after_input = after_input
        self._tracer = tracer
        self._slave_left = slave_left
        self._links: dict[int, _HaLink] = {}
        self._strangers_lines = _StrangersLines(clock)
        self._listener: socket.socket | None = None
        self._check_handle: asyncio.TimerHandle | None = None
        self.departures: deque[Departure] = deque(maxlen=_DEPARTURES_MAX)
        """Slaves that went away, newest last."""

    @property
    def port(self) -> int:
        """The bound port; 0 before `start`."""
        return int(self._listener.getsockname()[1]) if self._listener else 0

    def start(self, *, host: str, port: int) -> None:
        """Binds and listens. ListenError when the address is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        try:
            listener.bind((host, port))
            listener.listen(SLAVES_MAX)
        except OSError as error:
            listener.close()
            raise ListenError(host, port, error.strerror or str(error)) from error
        self._listener = listener
        loop = asyncio.get_running_loop()
        loop.add_reader(listener, self._accept)
        self._check_handle = loop.call_later(CHECK_INTERVAL_S, self._close_cut_off)

    def stop(self) -> None:
        """Closes the port and every slave's connection."""
        loop = asyncio.get_running_loop()
        if self._check_handle is not None:
            self._check_handle.cancel()
        if self._listener is not None:
            loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for link_id in list(self._links):
            self.close_link(link_id, "this broker stopped")

    def traffic(self, link_id: int) -> LinkTraffic | None:
        """Of one connection; None when it is closed."""
        link = self._links.get(link_id)
        if link is None:
            return None
        state = tcp_state(link.sock)
        return LinkTraffic(link.connected_at_ms, link.sent_bytes, None if state is None else state.silent_ms)

    def pump(self) -> None:
        """Sends every slave what it lacks, as far as its socket takes it."""
        for link in list(self._links.values()):
            if not link.writing:
                self._send(link)

    def close_link(self, link_id: int, reason: str) -> None:
        """Closes one slave's connection for `reason`, in words; unknown ids are fine."""
        link = self._links.pop(link_id, None)
        if link is None:
            return
        loop = asyncio.get_running_loop()
        if link.sock.fileno() >= 0:
            loop.remove_reader(link.sock)
            if link.writing:
                loop.remove_writer(link.sock)
        shaking = self._handshakes.pop(link_id, None)
        if shaking is not None:
            shaking.cancel()
        link.unsent.clear()
        link.sock.close()
        if self._bearers is not None:
            self._bearers.gone(link.peer)
        now_ns = self._clock.monotonic_ns()
        if self._tracer is not None:
            self._tracer.slave_gone(link_id, now_ns)
        slave = self._replica.slave_disconnected(link_id, now_ms=now_ns // _NS_PER_MS)
        if slave is not None:
            self.departures.append(
                Departure(slave.peer, slave.broker_id, self._clock.wall_ms(), reason, slave.lag_bytes)
            )
            if self._slave_left is not None:
                self._slave_left(slave)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        peer = connection_end(address[0], address[1])
        if len(self._links) >= SLAVES_MAX and not self._make_room():
            reason = "too many replication connections"
            self.tell(log.warning, "slave_refused", None, peer=peer, reason=reason, limit=SLAVES_MAX)
            sock.close()
            return
        sock.setblocking(False)
        try:
            prepare(sock)
        except OSError as error:
            # It was reset before it was accepted: some systems say so here.
            self.tell(log.info, "slave_disconnected", None, peer=peer, reason=str(error))
            sock.close()
            return
        now_ms = self._clock.monotonic_ms()
        link_id = self._replica.slave_connected(peer, now_ms=now_ms)
        link = _HaLink(link_id, sock, peer, connected_at_ms=now_ms)
        self._links[link_id] = link
        if self._tracer is not None:
            self._tracer.slave_connected(link_id, peer)
        asyncio.get_running_loop().add_reader(sock, self._readable if self._tls is None else self._begun, link)
        self.tell(log.info, "slave_connected", link_id, peer=peer)
        self._after_input()

    def _make_room(self) -> bool:
        """Closes a connection that has not said who it is, the oldest of the host that has most of them: whoever opens
        many, and says nothing, is in its own way first."""
        now_ms = self._clock.monotonic_ms()
        unknown: dict[str, list[_HaLink]] = {}
        for link in self._links.values():
            if not self._replica.is_expected(link.link_id, now_ms=now_ms):
                unknown.setdefault(counted_host(host_of(link.peer)), []).append(link)
        if not unknown:
            return False
        self._lost(max(unknown.values(), key=len)[0], "it did not say who it is, and others want to connect")
        return True

    def _begun(self, link: _HaLink) -> None:
        """Looks at the first byte of a connection, and leaves it there."""
        assert self._tls is not None
        try:
            first = link.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(link, why_broken(error))
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(link.sock)
        if first == TLS_HANDSHAKE_BYTE:
            # Nothing is sent meanwhile, by `pump` neither.
            link.writing = True
            self._handshakes[link.link_id] = loop.create_task(self._shake_hands(link, self._tls))
        elif first and self._tls.is_needed and not self._takes_plain(link.peer):
            self._refuse(link, "it speaks without TLS, and haTlsMode=enforcing; haPlaintextPeers names who may")
        else:
            loop.add_reader(link.sock, self._readable, link)
            self._readable(link)

    async def _shake_hands(self, link: _HaLink, tls: HaTls) -> None:
        try:
            link.sock = sock = tls.take(link.sock)
            await handshake(sock)
        except OSError as error:
            self._handshakes.pop(link.link_id, None)
            self._refuse(link, why_refused(error))
            return
        self._handshakes.pop(link.link_id, None)
        if problem := tls.problem_of(sock):
            self._refuse(link, problem)
            return
        link.writing = False
        asyncio.get_running_loop().add_reader(sock, self._readable, link)
        self.tell(log.info, "slave_secured", link.link_id, peer=link.peer, version=sock.version())
        # What came with the end of the handshake is in OpenSSL's hands, where no selector sees it.
        self._readable(link)

    def _refuse(self, link: _HaLink, reason: str) -> None:
        self.tell(log.warning, "replication_refused", link.link_id, peer=link.peer, reason=reason)
        self._close(link, reason)

    def _readable(self, link: _HaLink) -> None:
        try:
            data = link.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(link, why_broken(error))
            return
        if not data:
            self._lost(link, "closed by the slave")
            return
        now_ns = self._clock.monotonic_ns()
        self._replica.receive_data(link.link_id, data, now_ms=now_ns // _NS_PER_MS)
        if self._tracer is not None:
            self._tracer.acknowledged(link.link_id, self._replica.acked_offset(link.link_id), now_ns)
        self._after_input()

    def _close_cut_off(self) -> None:
        """Ends connections whose other end is out of reach while something is on its way there, and those whose
        certificate is not taken any more."""
        for link in list(self._links.values()):
            if reason := answers_no_more(link.sock):
                self._lost(link, reason)
            elif problem := self._certificate_problem(link):
                self._refuse(link, f"this connection's certificate is not taken any more: {problem}")
        self._check_handle = asyncio.get_running_loop().call_later(CHECK_INTERVAL_S, self._close_cut_off)

    def _certificate_problem(self, link: _HaLink) -> str:
        if link.link_id in self._handshakes:
            return ""
        return certificate_problem(link.sock) or ("" if self._bearers is None else self._bearers.problem(link.peer))

    def _lost(self, link: _HaLink, reason: str) -> None:
        self.tell(log.info, "slave_disconnected", link.link_id, peer=link.peer, reason=reason)
        self._close(link, reason)

    def _close(self, link: _HaLink, reason: str) -> None:
        self.close_link(link.link_id, reason)
        self._after_input()

    def tell(self, write: Callable[..., object], event: str, link_id: int | None, **values: object) -> None:
        """Writes a line about a connection; of those that have proven no log only so many in a minute."""
        is_known = link_id is not None and self._replica.is_proven(link_id)
        besides = {} if is_known else self._strangers_lines.may_be_told()
        if besides is not None:
            write(event, **values, **({} if link_id is None else {"link": link_id}), **besides)

    def _send(self, link: _HaLink) -> None:
        """Finishes the last send, then takes new transfers until the socket is full or nothing is left."""
        while True:
            if not link.unsent and not self._refill(link):
                self._want_writable(link, wanted=False)
                return
            try:
                sent = link.sock.sendmsg(link.unsent)
            except (BlockingIOError, InterruptedError):
                self._want_writable(link, wanted=True)
                return
            except OSError as error:
                self._lost(link, why_broken(error))
                return
            link.sent_bytes += sent
            link.unsent = _after(link.unsent, sent)
            if link.unsent:
                self._want_writable(link, wanted=True)
                return

    def _refill(self, link: _HaLink) -> bool:
        now_ns = self._clock.monotonic_ns()
        transfers = self._replica.take_transfers(
            link.link_id, budget_bytes=SEND_BUDGET_BYTES, now_ms=now_ns // _NS_PER_MS
        )
        # Frames are neighbours: the log is asked once for all that lie in one file, and each takes its slice of that.
        left = sum(transfer.length for transfer in transfers)
        rest = _NOTHING
        for header, start_offset, length in transfers:
            link.unsent.append(header)
            if length:
                if not rest:
                    rest = self._log_reader.read_log(start_offset, left)
                assert len(rest) >= length, "a transfer must lie within one CommitLog file and below its end"
                link.unsent.append(rest[:length])
                rest = rest[length:]
                left -= length
        if self._tracer is not None and transfers:
            self._tracer.sent(link.link_id, transfers[-1].start_offset + transfers[-1].length, now_ns)
        return bool(link.unsent)

    def _want_writable(self, link: _HaLink, *, wanted: bool) -> None:
        if wanted == link.writing:
            return
        link.writing = wanted
        loop = asyncio.get_running_loop()
        if wanted:
            loop.add_writer(link.sock, self._send, link)
        else:
            loop.remove_writer(link.sock)


def _after(buffers: list[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """What is left of `buffers` once `sent` bytes are gone."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [buffer[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    return []
