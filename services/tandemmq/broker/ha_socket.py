"""What both ends of a replication connection ask of TCP: who is cut off is known within some five seconds.

Nothing of it is on the wire. The protocol's own heartbeats are no help: a Java peer sends one after more than 5 s of
idleness, and closes after 20 s of silence. A kernel answers sooner, whatever runs above it and whether it is paused:

- *Nothing is on its way*: keepalive. After 2 s without a byte the kernel asks once a second; three unanswered
  questions end the connection, which its owner sees as an error of the socket.
- *Something is on its way*: the kernel would send it again for a quarter of an hour. `answers_no_more` tells. The
  option made for this, TCP_USER_TIMEOUT, also ends a connection whose peer answers but has no room: a slave with a slow
  disk.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import Final, NamedTuple

__all__ = ["CHECK_INTERVAL_S", "TcpState", "answers_no_more", "prepare", "tcp_state", "why_broken"]

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
