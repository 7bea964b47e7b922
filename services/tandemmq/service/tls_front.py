"""One port for callers with and without TLS: the first byte tells, and the connection goes on to one of two sockets of
this machine.

For the step between an open cluster and a closed one only (`serviceTlsMode=permissive`): each byte is copied twice more
on its way. 0x16 begins a TLS handshake (RFC 8446, 5.1), 0x50, the P of HTTP/2's preface, anything else here.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["TlsFront"]

_TLS_HANDSHAKE: Final = 0x16
_FIRST_BYTE_LIMIT_S: Final = 10.0
_CONNECTIONS_MAX: Final = 1_000
_PIECE_BYTES: Final = 256 << 10


class TlsFront:
    """`plain_path` and `tls_path` name the Unix sockets that a server is to listen on before `start`."""

    def __init__(self) -> None:
        # Readable by this user only: who reaches the sockets is taken for one who came through the front.
        self._folder = Path(tempfile.mkdtemp(prefix="tandemmq-"))
        self.plain_path = str(self._folder / "plain")
        self.tls_path = str(self._folder / "tls")
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listens; the port. OSError when it is taken."""
        self._server = await asyncio.start_server(self._accepted, host, port, limit=_PIECE_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Connections that are open stay so."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Ends all."""
        self.stop_listening()
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections))
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _CONNECTIONS_MAX:
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner: asyncio.StreamWriter | None = None
        # A caller that says nothing, or goes away, is nobody's failure.
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            try:
                async with asyncio.timeout(_FIRST_BYTE_LIMIT_S):
                    first = await reader.readexactly(1)
                path = self.tls_path if first[0] == _TLS_HANDSHAKE else self.plain_path
                inner_reader, inner = await asyncio.open_unix_connection(path, limit=_PIECE_BYTES)
                inner.write(first)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_copy(reader, inner))
                    tasks.create_task(_copy(inner_reader, writer))
            except* OSError:
                pass
            finally:
                for each in (writer, inner):
                    if each is not None:
                        each.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Until the source ends; the target is told of the end."""
    while data := await source.read(_PIECE_BYTES):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()
