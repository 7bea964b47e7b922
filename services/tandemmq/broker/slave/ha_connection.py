"""The slave's end of the raw replication plane: one socket under a `SlaveSession`.

Large reads into one buffer, every whole or partial frame appended straight from it, one report per read. The
ConsumeQueues are built afterwards in bounded slices, so that a long catch-up never holds the loop for long.

A read of a megabyte or more comes from a master that is far ahead. A thread stores it and reads on into the other
buffer, while the loop dispatches what was stored before (docs/adr/0013, 0021):

    read A -> [thread stores A, reads B] -> A stored: [thread stores B, reads A]
                                            report A, dispatch A                -> B stored: …

Only one of the two is at the socket at a time, and only the loop knows what the bytes mean.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tandemmq.broker.ha_transport import (
    CHECK_INTERVAL_S,
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
from tandemmq.core.replication.frames import AppendBytes, RemoteProtocolError, SlaveOptions
from tandemmq.core.replication.sessions import SlaveSession
from tandemmq.core.storage.disk import DiskFull, RawWrite, StorageError
from tandemmq.core.tracing.send_spans import ReplicaTimelines

if TYPE_CHECKING:
    from tandemmq.core.storage.message_store import MessageStore

# As much as a dispatch takes in one go: while one thread does the one, the other has enough of the other to do.
READ_BUFFER_BYTES: Final = 4 << 20
# A hand-over to the thread waits for the interpreter: up to 5 ms, which a master's sends must not wait for. Whoever has
# so much unread is 10 ms behind in any case.
WRITTEN_APART_BYTES_MIN: Final = 1 << 20
CONNECT_TIMEOUT_S: Final = 5.0
_LOOK_TIMEOUT_S: Final = 1.0
_NS_PER_MS: Final = 1_000_000


@dataclass(slots=True)
class _StoreAndRead:
    """What the thread does at a time: stores what is in one buffer, and fills the other with what came meanwhile."""

    write: RawWrite
    sock: socket.socket
    view: memoryview
    """Is read into."""
    count: int | None = None
    """Bytes read, 0 at the end of the stream; None: nothing was there."""
    broken: OSError | None = None
    """The connection broke, after the write."""

    def run(self) -> None:
        """Blocks for the write. StorageError: some of its bytes may be stored, and nothing was read."""
        self.write.run()
        try:
            self.count = self.sock.recv_into(self.view)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.broken = error


class HaConnection:
    """Follows one master over one TCP connection until it breaks.

    `acknowledged_end` tells which end may be reported: the end of the log, or of its flushed part when this slave
    promises the disk. `appended` is called after each read that brought bytes. `timelines` are told when bytes were
    received, appended and reported. A read of `written_apart_bytes_min` or more is the thread's to store.
    """

    def __init__(
        self,
        *,
        log: MessageStore,
        clock: Clock,
        options: SlaveOptions,
        acknowledged_end: Callable[[], int],
        appended: Callable[[], None],
        timelines: ReplicaTimelines | None = None,
        written_apart_bytes_min: int = WRITTEN_APART_BYTES_MIN,
    ) -> None:
        self._log = log
        self._clock = clock
        self._options = options
        self._acknowledged_end = acknowledged_end
        self._appended = appended
        self._timelines = timelines
        self._written_apart_bytes_min = written_apart_bytes_min
        self._sock: socket.socket | None = None
        self._session: SlaveSession | None = None
        # Mapped, not allocated: of a buffer that is never filled only the beginning takes memory.
        self._view, self._other_view = (
            memoryview(mmap.mmap(-1, READ_BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)) for _ in range(2)
        )
        self._writing: asyncio.Future[None] | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ha-write")
        self._closed: asyncio.Future[str] | None = None
        self.dialled: tuple[str, int] | None = None
        """Address and port of the last connection, as the name resolved then."""
        self.is_ended_there = False
        """The last connection was ended by the master, or by its kernel."""
        self.master_end_offset = 0
        self.no_room: DiskFull | None = None
        """The last connection ended because there was no room for what came."""

    @property
    def is_open(self) -> bool:
        """True while there is a connection to the master."""
        return self._session is not None

    @property
    def silent_ms(self) -> int | None:
        """Since anything came from the master's machine; None: not connected, or this system does not tell."""
        state = None if self._sock is None else tcp_state(self._sock)
        return None if state is None else state.silent_ms

    async def follow(self, sock: socket.socket) -> str:
        """Replicates over a connection of `connect`, and closes it; returns why it ended.

        When it returns or is cancelled no write is out, and what was written belongs to the log.
        """
        try:
            return await self._follow(sock)
        finally:
            try:
                await self._write_settled()
            finally:
                # Not before: under the thread's read the number could be given to another socket.
                sock.close()

    async def _follow(self, sock: socket.socket) -> str:
        loop = asyncio.get_running_loop()
        self._sock = sock
        self.no_room, self.is_ended_there = None, False
        self._closed = loop.create_future()
        self._session = SlaveSession(
            min_offset=self._log.min_offset,
            end_offset=self._log.end_offset,
            options=self._options,
            now_ms=self._clock.monotonic_ms(),
        )
        if self._timelines is not None:
            self._timelines.begin_at(self._log.end_offset)
        loop.add_reader(sock, self._readable)
        try:
            self._send_reports()
            while not self._closed.done():
                await self._wait_for_deadline()
            return self._closed.result()
        finally:
            loop.remove_reader(sock)
            self._sock = self._session = None

    def acknowledge(self) -> None:
        self._acknowledge(0 if self._timelines is None else self._clock.monotonic_ns())

    def _acknowledge(self, now_ns: int) -> None:
        if self._session is not None:
            end_offset = self._acknowledged_end()
            if self._timelines is not None:
                # Before it is sent, so that it never seems to come after the master's hearing of it.
                self._timelines.reported.note(end_offset, now_ns)
            self._session.appended(end_offset)
            self._send_reports()

    def drop(self, reason: str) -> None:
        """Ends the connection from our side."""
        self._end(reason)

    async def listens(self, host: str, port: int) -> bool | None:
        """Whether anybody listens there now. False is that machine's own word; None: nothing is heard of it."""
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                sock = await self.connect(host, port)
        except ConnectionRefusedError:
            return False
        except (OSError, TimeoutError):
            return None
        sock.close()
        return True

    async def connect(self, host: str, port: int) -> socket.socket:
        """A connection to a master, on which nothing was said. OSError or TimeoutError when none comes about."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            # Names are resolved at every connect: a pod keeps its name, not its address.
            infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, address = infos[0]
            self.dialled = (str(address[0]), int(address[1]))
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                prepare(sock)
                await loop.sock_connect(sock, address)
            except BaseException:
                sock.close()
                raise
        return sock

    async def secure(self, sock: socket.socket, tls: HaTls) -> socket.socket:
        """The connection with TLS, once the master's certificate is known to be of our group; `sock` is used up.
        OSError or TimeoutError when that does not come about, and it is closed."""
        secured = tls.begin(sock)
        try:
            await handshake(secured)
        except ssl.SSLError as error:
            secured.close()
            raise OSError(f"the master at the other end: {why_refused(error)}") from error
        except BaseException:
            secured.close()
            raise
        return secured

    async def _wait_for_deadline(self) -> None:
        assert self._session is not None
        assert self._sock is not None
        assert self._closed is not None
        timeout_s = max(0.0, (self._session.next_deadline_ms() - self._clock.monotonic_ms()) / 1000)
        await asyncio.wait((self._closed,), timeout=min(timeout_s, CHECK_INTERVAL_S))
        if self._closed.done():
            return
        if reason := answers_no_more(self._sock):
            self._end(reason)
            return
        if problem := certificate_problem(self._sock):
            self._end(f"the master's certificate is not taken any more: {problem}")
            return
        if self._clock.monotonic_ms() < self._session.next_deadline_ms():
            return
        try:
            self._session.deadline_reached(now_ms=self._clock.monotonic_ms())
        except RemoteProtocolError as error:
            self._end(str(error))
            return
        self._send_reports()

    async def _write_settled(self) -> None:
        """Waits for the thread, even if cancelled: what it stores must belong to the log before anything is done."""
        cancelled: asyncio.CancelledError | None = None
        while self._writing is not None:
            try:
                await asyncio.wait((self._writing,))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _readable(self) -> None:
        assert self._sock is not None
        try:
            count = self._sock.recv_into(self._view)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broke(error)
            return
        self._received(count)

    def _received(self, count: int) -> None:
        """Takes the `count` bytes that a read brought into the buffer; 0: the stream's end."""
        assert self._session is not None
        if count == 0:
            self._end("closed by the master", there=True)
            return
        parts: list[memoryview] = []
        start_offset = 0
        now_ns = self._clock.monotonic_ns()
        try:
            for event in self._session.receive_data(self._view[:count], now_ms=now_ns // _NS_PER_MS):
                if isinstance(event, AppendBytes):
                    # The session has checked that each goes on where the one before it ended.
                    if not parts:
                        start_offset = event.start_offset
                    parts.append(event.data)
                else:
                    self.master_end_offset = max(self.master_end_offset, event.offset)
        except RemoteProtocolError as error:
            self._end(str(error))
        if parts:
            if self._timelines is not None:
                self._timelines.received.note(start_offset + sum(map(len, parts)), now_ns)
            self._store(start_offset, parts, count)

    def _store(self, start_offset: int, parts: list[memoryview], size: int) -> None:
        """Appends what a read of `size` bytes brought: at once, or in the thread."""
        if size >= self._written_apart_bytes_min:
            write = self._log.replicated_write(start_offset, parts)
            if write is not None:
                self._store_apart(write)
                return
        try:
            self._log.append_replicated(start_offset, parts)
        except StorageError as error:
            # No room for the next file, or bytes that do not follow: what was appended is sound, the rest comes again.
            if isinstance(error, DiskFull):
                self.no_room = error
            self._end(str(error))
        self._note_appended()

    def _store_apart(self, write: RawWrite) -> None:
        """Has the thread store what is in the buffer, and read on into the other one."""
        assert self._sock is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock)
        self._view, self._other_view = self._other_view, self._view
        work = _StoreAndRead(write, self._sock, self._view)
        self._writing = loop.run_in_executor(self._executor, work.run)
        self._writing.add_done_callback(lambda done: self._stored_apart(work, done))

    def _stored_apart(self, work: _StoreAndRead, done: asyncio.Future[None]) -> None:
        self._writing = None
        error = done.exception()
        if error is None:
            self._log.replicated_write_finished(work.write)
        elif isinstance(error, StorageError):
            if isinstance(error, DiskFull):
                self.no_room = error
            self._end(str(error))
        else:
            raise error
        if work.broken is not None:
            self._broke(work.broken)
        # What was read for a connection that has ended comes again.
        if self._sock is not None and not self._is_ended:
            if work.count is not None:
                # First of all: the thread works on while the loop reports and dispatches.
                self._received(work.count)
            if self._writing is None:
                asyncio.get_running_loop().add_reader(self._sock, self._readable)
        self._note_appended()

    def _note_appended(self) -> None:
        """The log has grown: reports it, and has it dispatched."""
        end_offset = self._log.end_offset
        if end_offset > self.master_end_offset:
            self.master_end_offset = end_offset
        now_ns = 0
        if self._timelines is not None:
            now_ns = self._clock.monotonic_ns()
            self._timelines.appended.note(end_offset, now_ns)
        self._acknowledge(now_ns)
        self._appended()

    def _send_reports(self) -> None:
        """Sends queued reports. Eight bytes that do not fit the socket buffer mean a master that stopped reading."""
        if self._session is None or self._sock is None:
            return
        data = self._session.data_to_send()
        if not data:
            return
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._broke(error)
            return
        if sent != len(data):
            # A part of a report would shift every later one by some bytes: the connection is of no more use.
            self._end("the master does not read our reports")

    @property
    def _is_ended(self) -> bool:
        return self._closed is None or self._closed.done()

    def _broke(self, error: OSError) -> None:
        self._end(why_broken(error), there=isinstance(error, ConnectionError))

    def _end(self, reason: str, *, there: bool = False) -> None:
        if self._closed is not None and not self._closed.done():
            self.is_ended_there = there
            self._closed.set_result(reason)
