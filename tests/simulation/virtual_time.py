"""Virtual time: one heap of events for the whole cluster, and an asyncio event loop per simulated process over it.

Nothing here sleeps. `Timeline.run` takes the next event, sets the time to it and calls it; a virtual minute costs what
its events cost. Equal times are served in the order of scheduling, so a run depends on its seed alone.

A process gets an event loop of its own, and not only callbacks, so that the broker's real shell
(`tandemmq.broker.write_path`, `tandemmq.broker.flush_worker`, `tandemmq.broker.leases`) runs here unchanged. Killing
the process means that its loop never calls anything again.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import weakref
from asyncio import events
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

BURIAL_ATTEMPTS: Final = 5
"""A block that awaits in its clean-up is closed once more for it."""

US_PER_MS: Final = 1_000
NS_PER_US: Final = 1_000
US_PER_S: Final = 1_000_000
# 2030-01-01T00:00Z: far from zero, so that a wall time mistaken for a monotonic one shows.
WALL_START_MS: Final = 1_893_456_000_000


class Timer:
    """One scheduled call; `cancel` keeps it from happening."""

    __slots__ = ("_arguments", "_callback", "cancelled")

    def __init__(self, callback: Callable[..., None], arguments: tuple[object, ...]) -> None:
        self._callback = callback
        self._arguments = arguments
        self.cancelled = False

    def cancel(self) -> None:
        """Forgets the call; twice is fine."""
        self.cancelled = True

    def fire(self) -> None:
        if not self.cancelled:
            self._callback(*self._arguments)


class Timeline:
    """The cluster's time in microseconds since the start of the run, and everything that is still to happen."""

    def __init__(self) -> None:
        self.now_us = 0
        self.events_done = 0
        self.running: ProcessLoop | None = None
        """What asyncio takes for the running loop: that of the last call, until another's turn comes."""
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._failure: BaseException | None = None

    @property
    def now_ms(self) -> int:
        """Milliseconds since the start of the run."""
        return self.now_us // US_PER_MS

    def push(self, when_us: int, fire: Callable[[], None]) -> None:
        """Schedules a call that cannot be taken back; a time in the past means now."""
        self._scheduled += 1
        heapq.heappush(self._heap, (max(when_us, self.now_us), self._scheduled, fire))

    def after(self, delay_us: int, callback: Callable[..., None], *arguments: object) -> Timer:
        """Calls `callback` in `delay_us` microseconds."""
        timer = Timer(callback, arguments)
        self.push(self.now_us + delay_us, timer.fire)
        return timer

    def fail(self, error: BaseException) -> None:
        """Ends `run` with `error` after the present event."""
        if self._failure is None:
            self._failure = error

    def run(self, *, until_us: int, stop: Callable[[], bool] | None = None) -> None:
        """Runs events up to `until_us`, or until `stop` answers True after one of them."""
        heap = self._heap
        try:
            while heap and heap[0][0] <= until_us:
                when_us, _, fire = heapq.heappop(heap)
                self.now_us = when_us
                self.events_done += 1
                fire()
                if self._failure is not None:
                    raise self._failure
                if stop is not None and stop():
                    return
        finally:
            self.running = None
            events._set_running_loop(None)
        self.now_us = max(self.now_us, until_us)


@dataclass(slots=True)
class VirtualClock:
    """A machine's clock: `monotonic_ms` since its last boot, `wall_ms` wrong by a skew that may change."""

    timeline: Timeline
    booted_at_us: int = 0
    wall_skew_ms: int = 0
    rate: float = 1.0
    """How fast it runs; see `ProcessLoop`."""

    def monotonic_ms(self) -> int:
        """Milliseconds since the machine booted."""
        return self._passed_us() // US_PER_MS

    def monotonic_ns(self) -> int:
        """Nanoseconds since the machine booted."""
        return self._passed_us() * NS_PER_US

    def _passed_us(self) -> int:
        passed_us = self.timeline.now_us - self.booted_at_us
        return passed_us if self.rate == 1 else int(passed_us * self.rate)

    def wall_ms(self) -> int:
        """What the machine takes for the time of day, in ms since 1970."""
        return WALL_START_MS + self.timeline.now_us // US_PER_MS + self.wall_skew_ms

    def wall_ns(self) -> int:
        """The same in ns."""
        return (WALL_START_MS + self.wall_skew_ms) * US_PER_MS * NS_PER_US + self.timeline.now_us * NS_PER_US


class _Handle:
    """A call scheduled on one process's loop: of `asyncio.TimerHandle` what asyncio itself uses, at half its cost."""

    __slots__ = ("_arguments", "_callback", "_context", "_loop", "_when_us")

    def __init__(
        self,
        when_us: int,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        loop: ProcessLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._when_us = when_us
        self._callback: Callable[..., object] | None = callback
        self._arguments = arguments
        self._loop = loop
        self._context = contextvars.copy_context() if context is None else context

    def cancel(self) -> None:
        """Forgets the call; it stays in the heap and does nothing there."""
        self._callback, self._arguments = None, ()

    def cancelled(self) -> bool:
        """True once it was taken back."""
        return self._callback is None

    def when(self) -> float:
        """The loop's time at which it is due, in seconds."""
        return self._when_us / US_PER_S

    def fire(self) -> None:
        """Runs the call in its process, if that still lives."""
        loop = self._loop
        if self._callback is None or loop.dead:
            return
        if loop.frozen:
            loop.held.append(self.fire)
            return
        loop.enter()
        try:
            self._context.run(self._callback, *self._arguments)
        except Exception as error:
            loop.call_exception_handler({"message": "a callback raised", "exception": error})


class LoopSocket(Protocol):
    """What the event loop asks of a simulated socket."""

    def watch_reads(self, callback: Callable[[], None] | None) -> None:
        """Calls back while there is something to read."""

    def watch_writes(self, callback: Callable[[], None] | None) -> None:
        """Calls back while there is room to send."""

    async def connect_to(self, address: tuple[str, int]) -> None:
        """Opens a stream."""


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process, `owner`.

    `blocking_us` draws how long a job on a worker thread takes. The job's effect happens at the start or at the end of
    that time, by chance: a real thread may be anywhere when the process dies. `failed` is told of every exception that
    nobody handled.
    """

    def __init__(
        self,
        timeline: Timeline,
        rng: random.Random,
        *,
        owner: object,
        blocking_us: Callable[[], int],
        failed: Callable[[BaseException], None],
        rate: float = 1.0,
    ) -> None:
        """`rate` is that of the machine's clock: with 1.1 a timer of a second fires after 0.91 s."""
        LOOPS.add(self)
        self._rate = rate
        self.dead = False
        self.frozen = False
        self.held: list[Callable[[], None]] = []
        """What came due while frozen, in its order."""
        self.owner = owner
        self._timeline = timeline
        self._rng = rng
        self._blocking_us = blocking_us
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def enter(self) -> None:
        """Its turn. asyncio is told of a change alone, for it asks the kernel for our process id each time."""
        if self._timeline.running is not self:
            self._timeline.running = self
            events._set_running_loop(self)

    def stop_for_ever(self) -> None:
        """Kills everything that runs or waits here, without any of its clean-up: that is what a SIGKILL does.

        Safe from within one of the loop's own calls.
        """
        if not self.dead:
            self.dead = True
            self._timeline.after(0, self.bury)

    def freeze(self) -> None:
        """Nothing runs until `thaw`; whatever comes due waits. Safe from outside of the loop only."""
        self.frozen = True

    def thaw(self) -> None:
        """What waited runs, as late as it is. Twice is fine."""
        self.frozen = False
        held, self.held = self.held, []
        for fire in held:
            self._timeline.push(self._timeline.now_us, fire)

    def bury(self) -> None:
        """Closes what waits, so that the interpreter has nothing to say about it later."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            for _ in range(BURIAL_ATTEMPTS):
                try:
                    task.get_coro().close()
                except (
                    Exception,
                    asyncio.CancelledError,
                ):  # Clean-up of the dead: an exit that awaits, a disk already gone.
                    continue
                break

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._timeline.now_us * self._rate / US_PER_S

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        return self._schedule(self._timeline.now_us, callback, args, context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        return self._schedule(self._timeline.now_us + round(delay * US_PER_S / self._rate), callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        return self._schedule(round(when * US_PER_S / self._rate), callback, args, context)

    def _schedule(
        self,
        when_us: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> _Handle:
        handle = _Handle(when_us, callback, args, self, context)
        if not self.dead:
            self._timeline.push(when_us, handle.fire)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def spawn(self, coro: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Starts a task whose failure is the process's failure."""
        task = self.create_task(coro, name=name)
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        outcome: list[T | BaseException] = []

        def work() -> None:
            try:
                outcome.append(func(*args))
            except Exception as error:
                outcome.append(error)

        def deliver() -> None:
            if not outcome:
                work()
            if future.cancelled():
                return
            result = outcome[0]
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        if self._rng.random() < 0.5:
            work()
        self.call_later(self._blocking_us() / US_PER_S, deliver)
        return future

    def add_reader(self, fd: LoopSocket, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        fd.watch_reads(lambda: _call(callback, args))

    def remove_reader(self, fd: LoopSocket) -> None:  # type: ignore[override]
        fd.watch_reads(None)

    def add_writer(self, fd: LoopSocket, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        fd.watch_writes(lambda: _call(callback, args))

    def remove_writer(self, fd: LoopSocket) -> None:  # type: ignore[override]
        fd.watch_writes(None)

    async def sock_connect(self, sock: LoopSocket, address: tuple[str, int]) -> None:  # type: ignore[override]
        await sock.connect_to(address)

    async def getaddrinfo(  # type: ignore[override]
        self, host: str, port: int, **kwargs: int
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        """Every name is its own address."""
        return [(2, 1, 0, "", (host, port))]

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            error = context.get("exception")
            self._failed(error if isinstance(error, BaseException) else RuntimeError(str(context["message"])))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead


def _call(callback: Callable[..., object], args: tuple[Any, ...]) -> None:
    callback(*args)


LOOPS: Final[weakref.WeakSet[ProcessLoop]] = weakref.WeakSet()
"""All loops with something still to be closed."""


def bury_all() -> None:
    """Closes what waits on any loop: a run is over, and the interpreter is to have nothing to say about it later."""
    for loop in list(LOOPS):
        loop.dead = True
        loop.bury()
    LOOPS.clear()
