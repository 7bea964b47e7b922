"""A network in virtual time: byte streams for the replication plane, calls with time limits for the metadata plane.

A stream behaves as TCP does: bytes arrive in order, in other pieces than they were sent in, after a delay; a cut holds
them back and they arrive after it heals; a killed process closes its streams, a machine without power says nothing. A
call is lost when a cut lies on its way there or back, and the caller's limit passes.

Cuts have a direction: `cut("a", "b")` keeps what `a` sends from `b`; what `b` sends still arrives at `a`. Clogs
have one, too: streams open and stand still, and calls pass, as where packets of full size are dropped.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from simulation.process import Process
from simulation.virtual_time import US_PER_MS, Timeline

ServiceT = TypeVar("ServiceT")
ResultT = TypeVar("ResultT")

NORMAL_DELAY_US: Final = (50, 2_000)
# What two socket buffers hold together. Small against a real one, so that senders meet a full buffer.
PIPE_BYTES: Final = 96 << 10
CONNECT_TIMEOUT_MS: Final = 5_000
# TCP sends again with growing pauses; after a cut heals, bytes come back at the next of them.
RETRANSMIT_MS_MAX: Final = 1_500


class PeerUnavailable(Exception):
    """A call had no answer in time, met nobody, or was refused with a reason."""


class ServiceKey(Generic[ServiceT]):
    """Names a plane of calls and the type that answers them."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Pipe:
    """One direction of a stream: bytes on their way from `source` to `target`."""

    __slots__ = ("_chunks", "_due_us", "_network", "closing", "held_bytes", "pumping", "source", "target")

    def __init__(self, network: Network, source: Connection, target: Connection) -> None:
        self._network = network
        self.source = source
        self.target = target
        self._chunks: deque[bytes] = deque()
        self._due_us = 0
        self.held_bytes = 0  # sent and not yet read by the target
        self.closing = False
        self.pumping = False

    def write(self, data: bytes | memoryview) -> int:
        taken = min(len(data), PIPE_BYTES - self.held_bytes)
        if taken > 0:
            self._chunks.append(bytes(data[:taken]))
            self.held_bytes += taken
            self._schedule(self._network.delay_us())
        return max(taken, 0)

    def finish(self) -> None:
        """Lets the target know, behind everything sent, that no more comes."""
        self.closing = True
        self._schedule(self._network.delay_us())

    def _schedule(self, delay_us: int) -> None:
        if not self.pumping:
            self.pumping = True
            self._network.timeline.after(delay_us, self._arrive)

    def healed(self) -> None:
        """The way is free again."""
        if self._chunks or self.closing:
            self._schedule(self._network.rng.randint(0, RETRANSMIT_MS_MAX * US_PER_MS))

    def _arrive(self) -> None:
        self.pumping = False
        network, target = self._network, self.target
        if network.is_held(self.source.host, target.host):
            return
        if not target.owner.alive:
            network.answer_of_dead(self)
            return
        rng = network.rng
        while self._chunks:
            chunk = self._chunks.popleft()
            if len(chunk) > 1 and rng.random() < 0.2:
                # A segment's end falls anywhere; the rest arrives a moment later.
                cut = rng.randint(1, len(chunk) - 1)
                self._chunks.appendleft(chunk[cut:])
                target.take(chunk[:cut])
                break
            target.take(chunk)
            if rng.random() < 0.5:
                break
        if self._chunks:
            self._schedule(rng.randint(1, 300))
        elif self.closing:
            target.lost("closed by the peer")


class Connection:
    """One end of a stream. Callbacks run on the owner's event loop; set them right after connect or accept.

    `on_readable` is called when there is something to `receive`, `on_writable` when a full buffer has room again,
    `on_lost` once, with the reason, when the peer is gone.
    """

    __slots__ = (
        "_inbox", "_notified", "_out", "_wants_room", "closed", "host", "on_lost", "on_readable", "on_writable",
        "owner", "peer_host", "port",
    )  # fmt: skip

    def __init__(self, owner: Process, peer_host: str, port: int) -> None:
        """`port` is that of the end that opened the stream; on both ends the same number."""
        self.owner = owner
        self.port = port
        self.host = owner.host
        self.peer_host = peer_host
        self.closed = False
        self.on_readable: Callable[[], None] = _nothing
        self.on_writable: Callable[[], None] = _nothing
        self.on_lost: Callable[[str], None] = _nothing_for
        self._inbox = bytearray()
        self._notified = False
        self._wants_room = False
        self._out: _Pipe | None = None

    @property
    def unread_bytes(self) -> int:
        return len(self._inbox)

    def send(self, data: bytes | memoryview) -> int:
        """Takes as many bytes as the buffers have room for; fewer than given means: wait for `on_writable`."""
        if self.closed or self._out is None:
            return 0
        taken = self._out.write(data)
        self._wants_room = taken < len(data)
        return taken

    def receive(self, max_bytes: int) -> bytes:
        """What has arrived, at most `max_bytes`."""
        data = bytes(self._inbox[:max_bytes])
        del self._inbox[: len(data)]
        if self._inbox:
            self._notify()
        if self._out is not None:
            self._out.target.room_made(len(data))
        return data

    def close(self) -> None:
        """Ends the stream in order: what was sent still arrives. A dead process closes nothing."""
        if not self.closed and self.owner.alive:
            self.closed = True
            if self._out is not None:
                self._out.finish()

    # Called by the network

    def join(self, out: _Pipe) -> None:
        """Gives the pipe this end writes to."""
        self._out = out

    def take(self, data: bytes) -> None:
        if self.closed:
            return
        self._inbox += data
        self._notify()

    def room_made(self, read_bytes: int) -> None:
        """The peer read some of what this end sent."""
        assert self._out is not None
        self._out.held_bytes -= read_bytes
        if self._wants_room and not self.closed and self.owner.alive:
            self._wants_room = False
            self.owner.loop.call_later(0.001, self._writable)

    def lost(self, reason: str) -> None:
        """The peer is gone; what already arrived was handed over before."""
        if not self.closed and self.owner.alive:
            self.owner.loop.call_soon(self._lost, reason)

    def reset(self, reason: str) -> None:
        """The stream is gone at once, with everything on its way."""
        self.lost(reason)
        self._inbox.clear()

    def _notify(self) -> None:
        if not self._notified:
            self._notified = True
            self.owner.loop.call_soon(self._readable)

    def _readable(self) -> None:
        self._notified = False
        if not self.closed and self._inbox:
            self.on_readable()

    def _writable(self) -> None:
        if not self.closed:
            self.on_writable()

    def _lost(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self.on_lost(reason)


def _nothing() -> None:
    pass


def _nothing_for(reason: str) -> None:
    pass


class Network:
    """All hosts, who listens and serves there, and what is wrong between them."""

    def __init__(self, timeline: Timeline, rng: random.Random) -> None:
        self.timeline = timeline
        self.rng = rng
        self.delay_us_range = NORMAL_DELAY_US
        self._cuts: set[tuple[str, str]] = set()
        self._clogs: set[tuple[str, str]] = set()
        self._refused: set[tuple[str, str]] = set()
        self._pipes: list[_Pipe] = []
        self._listeners: dict[tuple[str, int], tuple[Process, Callable[[Connection], None]]] = {}
        self._last_port = 32_768
        self._services: dict[tuple[str, str], tuple[Process, object]] = {}
        self._calls: dict[Process, set[asyncio.Task[None]]] = {}

    # Faults

    def cut(self, source: str, target: str) -> None:
        """From now on nothing `source` sends reaches `target`."""
        self._cuts.add((source, target))

    def heal(self, source: str, target: str) -> None:
        """Ends a cut; streams get what was held back."""
        self._cuts.discard((source, target))
        self._let_go(source, target)

    def clog(self, source: str, target: str) -> None:
        """From now on no stream brings `target` what `source` sends; calls do."""
        self._clogs.add((source, target))

    def unclog(self, source: str, target: str) -> None:
        """Ends a clog."""
        self._clogs.discard((source, target))
        self._let_go(source, target)

    def refuse(self, source: str, target: str) -> None:
        """A firewall says in the name of `target` that nobody listens there, and ends what is open."""
        self._refused.add((source, target))
        self.drop_connections(source, target)

    def admit(self, source: str, target: str) -> None:
        """It does so no more."""
        self._refused.discard((source, target))

    def _let_go(self, source: str, target: str) -> None:
        if self.is_held(source, target):
            return
        for pipe in self._pipes:
            if (pipe.source.host, pipe.target.host) == (source, target):
                pipe.healed()

    def heal_all(self) -> None:
        """Ends every cut and every slowness."""
        self.delay_us_range = NORMAL_DELAY_US
        self._refused.clear()
        for source, target in sorted(self._cuts):
            self.heal(source, target)
        for source, target in sorted(self._clogs):
            self.unclog(source, target)

    def drop_connections(self, first: str, second: str) -> None:
        """Resets every stream between two hosts, as a firewall or a full table of connections does."""
        kept = []
        for pipe in self._pipes:
            if {pipe.source.host, pipe.target.host} == {first, second}:
                pipe.target.reset("reset")
            else:
                kept.append(pipe)
        self._pipes = kept

    def is_cut(self, source: str, target: str) -> bool:
        """True while nothing gets from `source` to `target`."""
        return (source, target) in self._cuts

    def is_held(self, source: str, target: str) -> bool:
        """True while no stream brings anything from `source` to `target`."""
        return (source, target) in self._cuts or (source, target) in self._clogs

    @property
    def healthy(self) -> bool:
        """True while nothing is cut and nothing is slow."""
        return not self._cuts and not self._clogs and not self._refused and not self.is_slow

    @property
    def is_slow(self) -> bool:
        """True while everything takes long."""
        return self.delay_us_range != NORMAL_DELAY_US

    def delay_us(self) -> int:
        """How long the next piece is under way."""
        return self.rng.randint(*self.delay_us_range)

    def connected(self, first: Process, second: Process) -> bool:
        """True while a stream between two processes is open at both ends."""
        return any(
            (pipe.source.owner, pipe.target.owner) == (first, second)
            and not pipe.source.closed
            and not pipe.target.closed
            for pipe in self._pipes
        )

    # Processes

    def listen(self, process: Process, port: int, accept: Callable[[Connection], None]) -> None:
        """Takes connections for a process until it is gone."""
        self._listeners[process.host, port] = (process, accept)

    def serve(self, process: Process, key: ServiceKey[ServiceT], service: ServiceT) -> None:
        """Answers calls with `service` until the process is gone."""
        self._services[process.host, key.name] = (process, service)

    def stop_serving(self, process: Process) -> None:
        """The process closes its doors in order, and carries out no call to its end."""
        self._forget(process)
        for call in self._calls.pop(process, ()):
            call.cancel()

    def process_killed(self, process: Process) -> None:
        """The kernel closes the streams of a process: some of what it sent last may be lost."""
        self._forget(process)
        for pipe in self._pipes:
            if pipe.source.owner is not process:
                continue
            if self.rng.random() < 0.5 and not self.is_cut(process.host, pipe.target.host):
                self.timeline.after(self.delay_us(), pipe.target.reset, "reset by the peer")
            else:
                pipe.finish()
        self._pipes = [pipe for pipe in self._pipes if pipe.target.owner is not process]

    def machine_gone(self, process: Process) -> None:
        """Nobody is there to close anything: peers learn it from silence, or from the machine once it is back."""
        self._forget(process)
        self._pipes = [pipe for pipe in self._pipes if process not in (pipe.source.owner, pipe.target.owner)]

    def _forget(self, process: Process) -> None:
        self._listeners = {key: value for key, value in self._listeners.items() if value[0] is not process}
        self._services = {key: value for key, value in self._services.items() if value[0] is not process}

    def answer_of_dead(self, pipe: _Pipe) -> None:
        """Bytes met a host whose process is gone: it answers with a reset if it is up, else with silence."""
        host = pipe.target.host
        if any(owner.host == host for owner, _ in self._services.values()) and not self.is_cut(host, pipe.source.host):
            pipe.source.reset("reset by the peer")

    # What processes do

    async def connect(self, process: Process, host: str, port: int) -> Connection:
        """Opens a stream. ConnectionRefusedError when nobody listens, TimeoutError when the way is cut."""
        await asyncio.sleep(2 * self.delay_us() / 1e6)
        if (process.host, host) in self._refused:
            raise ConnectionRefusedError(f"connect to {host}:{port}")
        if self.is_cut(process.host, host) or self.is_cut(host, process.host):
            await asyncio.sleep(CONNECT_TIMEOUT_MS / 1000)
            raise TimeoutError(f"connect to {host}")
        listener = self._listeners.get((host, port))
        if listener is None or not listener[0].alive:
            raise ConnectionRefusedError(f"connect to {host}:{port}")
        owner, accept = listener
        self._last_port += 1
        near, far = Connection(process, host, self._last_port), Connection(owner, process.host, self._last_port)
        there, back = _Pipe(self, near, far), _Pipe(self, far, near)
        near.join(there)
        far.join(back)
        self._pipes = [pipe for pipe in self._pipes if not (pipe.source.closed and pipe.target.closed)]
        self._pipes += (there, back)
        owner.loop.call_soon(accept, far)
        return near

    async def call(
        self,
        process: Process,
        host: str,
        key: ServiceKey[ServiceT],
        ask: Callable[[ServiceT], Awaitable[ResultT]],
        *,
        timeout_ms: int,
    ) -> ResultT:
        """Asks the service of `host`. PeerUnavailable when no answer comes; it may have been carried out even so."""
        answer: asyncio.Future[ResultT] = process.loop.create_future()
        self.timeline.after(self.delay_us(), self._arrive, process, host, key.name, ask, answer)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answer
        except TimeoutError as error:
            raise PeerUnavailable(f"no answer from {host} in {timeout_ms} ms") from error

    def _arrive(
        self,
        process: Process,
        host: str,
        service_name: str,
        ask: Callable[[Any], Awaitable[ResultT]],
        answer: asyncio.Future[ResultT],
    ) -> None:
        if self.is_cut(process.host, host) or not process.alive:
            return
        served = self._services.get((host, service_name))
        if served is None:
            refusal = PeerUnavailable(f"{host} refuses connections")
            self.timeline.after(self.delay_us(), self._answer, host, process, answer, refusal)
            return
        owner, service = served

        async def carry_out() -> None:
            try:
                result: ResultT | PeerUnavailable = await ask(service)
            except PeerUnavailable as error:
                result = error
            self.timeline.after(self.delay_us(), self._answer, host, process, answer, result)

        call = owner.loop.spawn(carry_out(), name=f"call from {process.host}")
        calls = self._calls.setdefault(owner, set())
        calls.add(call)
        call.add_done_callback(calls.discard)

    def _answer(
        self, host: str, process: Process, answer: asyncio.Future[ResultT], result: ResultT | PeerUnavailable
    ) -> None:
        if self.is_cut(host, process.host) or not process.alive or answer.done():
            return
        if isinstance(result, PeerUnavailable):
            answer.set_exception(result)
        else:
            answer.set_result(result)
