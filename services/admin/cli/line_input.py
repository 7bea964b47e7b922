"""Standard input as lines for an event loop that must not block on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from typing import Final, Protocol

from admin.cli.failure import CommandError

__all__ = ["ByteSource", "read_lines"]

_CHUNK_BYTES: Final = 1 << 16
# Chunks read ahead of the sender: enough to keep it busy, little enough to stay out of the way of a huge file.
_CHUNKS_AHEAD: Final = 4
# maxMessageSize cannot be set higher, so no broker takes a longer line.
_LINE_LIMIT_BYTES: Final = 128 << 20


class ByteSource(Protocol):
    """What is read from: `sys.stdin.buffer` has it."""

    def read1(self, size: int, /) -> bytes:
        """At most `size` bytes as soon as there are some; empty at the end."""
        ...


async def read_lines(source: ByteSource) -> AsyncIterator[bytes]:
    """Lines without their end, as soon as they come. The last one may lack its end.

    CommandError when a line is longer than any broker takes.

    The thread that reads is a daemon: blocked on a terminal nobody types into, it must not keep the process alive.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_CHUNKS_AHEAD)

    def pump() -> None:
        while True:
            try:
                chunk: bytes | OSError = source.read1(_CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except (RuntimeError, CancelledError):
                return  # the loop has gone: nobody wants more
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=pump, name="line-input", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > _LINE_LIMIT_BYTES:
            raise CommandError(
                f"a line of the input is longer than {_LINE_LIMIT_BYTES >> 20} MiB",
                cause="no broker takes so large a message",
                remedy="send text with line ends",
            )
    if rest:
        yield rest
