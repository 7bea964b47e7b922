"""The sockets of connections with TLS, on the code of plain ones (ADR 45).

OpenSSL never sees the socket: it works on two buffers in memory, so that a read of the socket brings all the records
that are there, and the answers of a turn are one write.

    recv_into -> incoming -> SSLObject.read -> Connection.receive
    Connection.take_output -> SSLObject.write -> outgoing -> send

Until the handshake has ended nothing is asked of the connection, and its peer has `tls_handshake_timeout_s` for it. A
handshake is work like any other, so the bounds of a turn hold for it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Final

from tandemmq.http2.plain_sockets import PlainSocket, PlainSockets

__all__ = ["TlsSocket"]

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
            self._connection.receive(data, now)

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
        self._end()

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
