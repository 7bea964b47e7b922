"""What carries the replication plane: TCP, which tells who is cut off, and TLS above it (ADR 52).

TLS carries the same bytes as a connection without it, in the records of OpenSSL. A master tells by the first byte which
of the two a connection is: 0x16 begins a TLS handshake (RFC 8446, 5.1), and a report, eight bytes of an offset, begins
so above 1.5 EB only. A slave begins TLS where its master has said on the metadata plane that it takes it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tandemmq.core.access.identity import IdentityUnusable, Role, group_server_name, identity_of
from tandemmq.http2.errors import TlsMode
from tandemmq.service.certificates import CERTIFICATE_FILE, KEY_FILE, CertificateFolder, Certificates

if TYPE_CHECKING:
    from typing_extensions import Buffer

# TCP: both ends know within some five seconds who is cut off.
#
# Nothing of it is on the wire. The protocol's own heartbeats are no help: a Java peer sends one after more than 5 s of
# idleness, and closes after 20 s of silence. A kernel answers sooner, whatever runs above it and whether it is paused:
#
# - *Nothing is on its way*: keepalive. After 2 s without a byte the kernel asks once a second; three unanswered
#   questions end the connection, which its owner sees as an error of the socket.
# - *Something is on its way*: the kernel would send it again for a quarter of an hour. `answers_no_more` tells. The
#   option made for this, TCP_USER_TIMEOUT, also ends a connection whose peer answers but has no room: a slave with a
#   slow disk.


CHECK_INTERVAL_S: Final = 1.0
"""How often `answers_no_more` is to be asked."""

_IDLE_S: Final = 2
_INTERVAL_S: Final = 1
_QUESTIONS: Final = 3
_SILENCE_MAX_MS: Final = 5_000
"""As long as the keepalive takes."""
_UNANSWERED_MIN: Final = 2
"""One may have left this very moment, after a long pause: then its answer is on the way."""

# The start of Linux' struct tcp_info: eight bytes, among them retransmits and probes, then 13 numbers of which the last
# is the time since an acknowledgement came, and the one before it the time since data came.
_TCP_INFO: Final = struct.Struct("=BBBBBBBB13I")
_RETRANSMITS: Final = 2
_PROBES: Final = 3
_LAST_DATA_RECEIVED_MS: Final = 19
_LAST_ACK_RECEIVED_MS: Final = 20


class TcpState(NamedTuple):
    """A connection, as the kernel sees it."""

    silent_ms: int
    """Since anything came from the peer's kernel: data, or a mere acknowledgement."""
    unanswered: int
    """Repetitions and questions that were sent since then, in a row."""


def prepare(sock: socket.socket) -> None:
    """Sets the options of a connection, made or still to be made."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)  # macOS has the latter.
    if idle is not None:
        sock.setsockopt(socket.IPPROTO_TCP, idle, _IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _QUESTIONS)


def tcp_state(sock: socket.socket) -> TcpState | None:
    """None: this system does not tell, or the connection is gone."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return None
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO.size)
    except OSError:
        return None
    if len(data) < _TCP_INFO.size:
        return None
    fields = _TCP_INFO.unpack(data)
    return TcpState(
        silent_ms=min(fields[_LAST_DATA_RECEIVED_MS], fields[_LAST_ACK_RECEIVED_MS]),
        unanswered=fields[_RETRANSMITS] + fields[_PROBES],
    )


def answers_no_more(sock: socket.socket) -> str:
    """Why the peer counts as cut off, in words; empty: it does not."""
    state = tcp_state(sock)
    if state is None or state.silent_ms < _SILENCE_MAX_MS or state.unanswered < _UNANSWERED_MIN:
        return ""
    return _words(state.silent_ms / 1_000)


def why_broken(error: OSError) -> str:
    """An error of such a connection's socket, in words."""
    return _words(_SILENCE_MAX_MS / 1_000) if error.errno == errno.ETIMEDOUT else str(error)


def _words(silent_s: float) -> str:
    return f"the machine there has not answered for {silent_s:.0f} s: the link is cut, or the machine is gone"


TLS_HANDSHAKE_BYTE: Final = b"\x16"
HANDSHAKE_LIMIT_S: Final = 5.0
# What one record holds.
_RECORD_BYTES: Final = 16 << 10
_BEARERS_MAX: Final = 1_024
_WAITS: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


# TLS.


class HaTls:
    """A broker's certificate on this plane, as both ends use it. A renewed one counts for new connections; those of the
    old one end with it (`certificate_problem`)."""

    def __init__(self, mode: TlsMode, folder: CertificateFolder) -> None:
        """`mode` is not disabled. ssl.SSLError when the files cannot be used."""
        self.is_needed: Final = mode is TlsMode.ENFORCING
        """Nobody without TLS, in either direction, but for stock slaves that are named."""
        self._folder = folder
        self._certificates = folder.current()
        self._server, self._client = self._contexts(self._certificates)

    def take(self, sock: socket.socket) -> SecureSocket:
        """A slave's connection, which began a handshake; `sock` is used up."""
        self._look()
        return self._secured(self._server.wrap_socket(sock, server_side=True, do_handshake_on_connect=False))

    def begin(self, sock: socket.socket) -> SecureSocket:
        """A connection to a master of our group; `sock` is used up."""
        self._look()
        identity = self._certificates.identity
        name = group_server_name(identity.cluster, identity.group)
        return self._secured(self._client.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False))

    def _secured(self, sock: ssl.SSLSocket) -> SecureSocket:
        assert isinstance(sock, SecureSocket), "the context makes such sockets"
        sock._lock, sock._problem_of, sock._leaf = threading.Lock(), self._folder.caller_problem, b""
        return sock

    def problem_of(self, sock: ssl.SSLSocket) -> str:
        """Why who connected, after the handshake, is no member of our group, in words; empty: it is one."""
        names: Any = (sock.getpeercert() or {}).get("subjectAltName", ())
        try:
            theirs = identity_of([value for kind, value in names if kind == "URI"])
        except IdentityUnusable as error:
            return str(error)
        ours = self._certificates.identity
        if theirs.role is not Role.BROKER:
            return f"its certificate is for {theirs.role}, and only brokers replicate"
        if theirs.cluster != ours.cluster:
            return f"its certificate is of cluster {theirs.cluster}, and this is {ours.cluster}"
        if theirs.group != ours.group:
            return f"its certificate is of broker group {theirs.group}, and this is {ours.group}"
        return ""

    def _look(self) -> None:
        fresh = self._folder.current()
        if fresh is self._certificates:
            return
        try:
            self._server, self._client = self._contexts(fresh)
        except (ssl.SSLError, OSError):
            # The files are being changed once more; the next connection looks again.
            return
        self._certificates = fresh

    def _contexts(self, certificates: Certificates) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        found = []
        for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = ssl.SSLContext(protocol)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=certificates.authorities.decode("ascii"))
            context.load_cert_chain(self._folder.folder / CERTIFICATE_FILE, self._folder.folder / KEY_FILE)
            context.sslsocket_class = SecureSocket
            found.append(context)
        server, client = found
        # Nobody resumes.
        server.num_tickets = 0
        return server, client


class SecureSocket(ssl.SSLSocket):
    """A non-blocking socket with TLS that is read and written as one without: what it waits for is BlockingIOError.

    From any thread: the slave's thread reads while its loop writes, and OpenSSL knows no threads.
    """

    _lock: threading.Lock
    _problem_of: Callable[[bytes], str | None]
    _leaf: bytes

    def certificate_problem(self) -> str:
        """Why no handshake would take the other end's certificate now, in words; empty: one would, or none has been."""
        if not self._leaf and (shown := self.getpeercert(binary_form=True)):
            self._leaf = ssl.DER_cert_to_PEM_cert(shown).encode()
        return (self._leaf and self._problem_of(self._leaf)) or ""

    def send(self, data: Buffer, flags: int = 0) -> int:
        """One record at most. After BlockingIOError the same bytes have to come first."""
        try:
            with self._lock:
                return super().send(data, flags)
        except _WAITS:
            raise BlockingIOError from None

    def sendmsg(self, buffers: Iterable[Buffer], *_: Any) -> int:  # type: ignore[override]  # it takes no more
        """As many whole records as the socket takes. After BlockingIOError, or less than all, the rest comes first."""
        total = 0
        for piece in _records(buffers):
            try:
                total += self.send(piece)
            except BlockingIOError:
                if not total:
                    raise
                break
        return total

    def recv(self, size: int = 1024, flags: int = 0) -> bytes:
        """What one record holds; empty at the end."""
        try:
            with self._lock:
                return super().recv(size, flags)
        except _WAITS:
            raise BlockingIOError from None

    def recv_into(self, buffer: Buffer, size: int | None = None, flags: int = 0) -> int:
        """What all records hold that are there; 0 at the end."""
        view = memoryview(buffer)[:size]
        filled = 0
        while filled < len(view):
            try:
                with self._lock:
                    count = super().recv_into(view[filled:], None, flags)
            except OSError as error:
                # A broken connection is told by the next read.
                if filled:
                    break
                if isinstance(error, _WAITS):
                    raise BlockingIOError from None
                raise
            if not count:
                break
            filled += count
        return filled


class ConnectionBearers:
    """Under which certificate each connection of a slave was proven on the metadata plane, by its end host:port. A
    connection lives for days: it ends when its certificate does, or when nobody believes the CA of that any more."""

    def __init__(self, problem_of: Callable[[bytes], str | None]) -> None:
        """`problem_of` a certificate, PEM: why it would not be taken now."""
        self._problem_of = problem_of
        self._leaves: OrderedDict[str, bytes] = OrderedDict()

    def note(self, connection: str, leaf: bytes) -> None:
        self._leaves[connection] = leaf
        self._leaves.move_to_end(connection)
        # Proofs of connections that never came, for the most part.
        while len(self._leaves) > _BEARERS_MAX:
            self._leaves.popitem(last=False)

    def problem(self, connection: str) -> str:
        """Why it must not go on, in words; empty: it may, or was not proven so."""
        leaf = self._leaves.get(connection)
        if leaf is None:
            return ""
        self._leaves.move_to_end(connection)
        return self._problem_of(leaf) or ""

    def gone(self, connection: str) -> None:
        self._leaves.pop(connection, None)


def certificate_problem(sock: socket.socket) -> str:
    """Why the other end of a connection would not be let in now, in words; empty: it would, or there is no TLS."""
    return sock.certificate_problem() if isinstance(sock, SecureSocket) else ""


async def handshake(sock: SecureSocket) -> None:
    """Ends it, with either end. OSError, TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(HANDSHAKE_LIMIT_S):
        while True:
            ready = loop.create_future()
            try:
                sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                loop.add_reader(sock, _set, ready)
                forget = loop.remove_reader
            except ssl.SSLWantWriteError:
                loop.add_writer(sock, _set, ready)
                forget = loop.remove_writer
            try:
                await ready
            finally:
                # Whoever closed it meanwhile has done so; its number may be another's by now.
                if sock.fileno() >= 0:
                    forget(sock)


def why_refused(error: OSError) -> str:
    """Why no TLS came about, in words of an operator."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not taken: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return "it shows no certificate"
        return f"no TLS comes about: {error.reason or error}"
    return "its handshake takes too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _records(buffers: Iterable[Buffer]) -> Iterator[bytes]:
    """The bytes in pieces of one record, however they are cut."""
    parts: list[memoryview] = []
    room = _RECORD_BYTES
    for buffer in buffers:
        view = memoryview(buffer)
        while view:
            parts.append(view[:room])
            room -= len(parts[-1])
            view = view[len(parts[-1]) :]
            if not room:
                yield b"".join(parts)
                parts, room = [], _RECORD_BYTES
    if parts:
        yield b"".join(parts)
