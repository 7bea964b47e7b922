"""Turns of an event loop that take too long are counted, with their length."""

from __future__ import annotations

import asyncio
import selectors
import socket
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tandemmq.service import event_loop
from tandemmq.service.event_loop import LoopMeter, LoopTurns, TurnSelector


def test_long_turn_is_a_stall() -> None:
    meter = LoopMeter()

    async def stall() -> None:
        await asyncio.sleep(0)
        time.sleep(0.05)  # noqa: ASYNC251  # what must not happen on a loop
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=meter.new_loop) as runner:
        runner.run(stall())

    assert meter.stall_count >= 1
    assert meter.longest_stall_s >= 0.05
    assert meter.stalled_s >= meter.longest_stall_s


# What is left for the end of a turn is done once, behind the readers of all sockets that were ready in it.


def run(main: Callable[[LoopTurns], Awaitable[None]]) -> None:
    """Runs `main` on a loop that knows the ends of its turns."""
    meter = LoopMeter()

    async def start() -> None:
        await main(meter.turns)

    with asyncio.Runner(loop_factory=meter.new_loop) as runner:
        runner.run(start())


async def when(noted: Sequence[object], count: int) -> None:
    """Until so many things were noted."""
    while len(noted) < count:
        await asyncio.sleep(0)


def test_what_two_sockets_left_is_done_once_behind_both_and_before_the_next_turn() -> None:
    noted: list[str] = []

    async def main(turns: LoopTurns) -> None:
        loop = asyncio.get_running_loop()
        pairs = [socket.socketpair() for _ in range(2)]
        asked: list[bool] = []

        def readable(sock: socket.socket) -> None:
            noted.append(sock.recv(1).decode())
            loop.call_soon(noted.append, "next turn")
            if not asked:
                asked.append(True)
                turns.write_soon(lambda: noted.append("written"))
                turns.call_soon(lambda: noted.append("end of turn"))

        for number, (near, far) in enumerate(pairs):
            loop.add_reader(near, readable, near)
            far.send(str(number).encode())
        await when(noted, 6)
        for near, far in pairs:
            loop.remove_reader(near)
            near.close()
            far.close()

    run(main)
    assert sorted(noted[:2]) == ["0", "1"]
    assert noted[2:] == ["end of turn", "written", "next turn", "next turn"]


@pytest.mark.parametrize("last", [{0}, {1}, {2}, {0, 2}, {1, 2}])
def test_who_may_have_much_to_do_is_read_behind_all_others(last: set[int]) -> None:
    """A broker with a port for clients outside has two of them."""
    noted: list[int] = []

    async def main(turns: LoopTurns) -> None:
        loop = asyncio.get_running_loop()
        pairs = [socket.socketpair() for _ in range(3)]

        def readable(number: int) -> None:
            pairs[number][0].recv(1)
            noted.append(number)
            if len(noted) % 3 == 0:
                turns.call_next(lambda: noted.append(9))
                turns.call_soon(lambda: noted.append(8))

        for number, (near, _) in enumerate(pairs):
            loop.add_reader(near, readable, number)
            if number in last:
                turns.read_last(near.fileno())
        for _, far in pairs:
            far.send(b"x")
        await when(noted, 5)
        for near, far in pairs:
            loop.remove_reader(near)
            near.close()
            far.close()
        assert not turns.last_read, "who comes next by that number is another"

    run(main)
    assert set(noted[:3]) == {0, 1, 2}
    assert set(noted[3 - len(last) : 3]) == last
    assert noted[3:] == [8, 9]


def test_a_turn_without_ready_sockets_has_an_end_too() -> None:
    noted: list[str] = []

    async def main(turns: LoopTurns) -> None:
        turns.call_soon(lambda: noted.append("end"))
        # Only what was left for the end can wake this.
        done = asyncio.get_running_loop().create_future()
        turns.write_soon(lambda: done.set_result(None))
        await done

    run(main)
    assert noted == ["end"]


def test_what_an_end_of_a_turn_leaves_is_for_the_next_one() -> None:
    noted: list[str] = []

    async def main(turns: LoopTurns) -> None:
        def again() -> None:
            noted.append("end")
            if noted.count("end") < 3:
                turns.call_soon(again)

        async def others() -> None:
            while len(noted) < 6:
                noted.append("others")
                await asyncio.sleep(0)

        turns.call_soon(again)
        await asyncio.gather(others(), when(noted, 6))

    run(main)
    first, last = noted.index("end"), len(noted) - 1 - noted[::-1].index("end")
    assert noted.count("end") == 3
    assert "others" in noted[first:last]


def test_a_callback_that_raises_leaves_the_others_to_the_next_end() -> None:
    noted: list[str] = []
    reported: list[str] = []

    async def main(turns: LoopTurns) -> None:
        def fails() -> None:
            raise ValueError("a mistake")

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(str(context["exception"])))
        turns.call_soon(fails)
        turns.call_soon(lambda: noted.append("second"))
        turns.write_soon(lambda: noted.append("written"))
        await when(noted, 2)

    run(main)
    assert noted == ["second", "written"]
    assert reported == ["a mistake"]


async def test_on_any_other_loop_a_turn_ends_where_the_next_one_begins() -> None:
    turns = LoopTurns()
    noted: list[str] = []
    turns.call_soon(lambda: noted.append("end"))
    turns.write_soon(lambda: noted.append("written"))
    assert not turns.is_due
    assert noted == []
    await asyncio.sleep(0)
    assert noted == ["end", "written"]


async def test_a_timer_is_the_running_loop_s() -> None:
    turns = LoopTurns()
    done = asyncio.get_running_loop().create_future()
    turns.call_later(0.001, lambda: done.set_result("later"))
    turns.call_later(0, pytest.fail).cancel()
    assert await done == "later"


class Kernel:
    """Stands behind a TurnSelector: a look takes 10 us, and what is awaited comes at `ready_at_us`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_us = 0
        self.ready_at_us = 0
        self.asked: list[float | None] = []
        monkeypatch.setattr(selectors.DefaultSelector, "select", lambda _, timeout=None: self._select(timeout))
        monkeypatch.setattr(event_loop, "monotonic", lambda: self.now_us / 1e6)

    def _select(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        self.asked.append(timeout)
        left_us = self.ready_at_us - self.now_us
        if timeout == 0:
            self.now_us += 10
            return [] if left_us > 10 else [(selectors.SelectorKey(0, 0, 0, None), 1)]
        self.now_us += left_us
        return [(selectors.SelectorKey(0, 0, 0, None), 1)]

    def wait(self, selector: TurnSelector, ready_after_us: int) -> list[float | None]:
        """What the kernel was asked until something was ready."""
        self.asked.clear()
        self.ready_at_us = self.now_us + ready_after_us
        assert selector.select(1)
        return list(self.asked)


def test_loop_looks_before_it_sleeps_once_a_wait_was_short(monkeypatch: pytest.MonkeyPatch) -> None:
    selector = TurnSelector(LoopTurns())
    kernel = Kernel(monkeypatch)
    assert kernel.wait(selector, 80) == [1], "it has not waited yet"
    assert kernel.wait(selector, 30) == [0, 0, 0]
    assert kernel.wait(selector, 80) == [0, 0, 0, 0, 0, 1], "in vain, but a short wait"
    assert kernel.wait(selector, 10) == [0]
    selector.close()


def test_loop_that_waited_long_sleeps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    selector = TurnSelector(LoopTurns())
    kernel = Kernel(monkeypatch)
    kernel.wait(selector, 80)
    assert kernel.wait(selector, 5_000)[-1] == 1
    assert kernel.wait(selector, 5_000) == [1]
    assert kernel.wait(selector, 20) == [1]
    selector.close()


def test_who_must_not_wait_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    selector = TurnSelector(LoopTurns())
    kernel = Kernel(monkeypatch)
    kernel.wait(selector, 80)
    kernel.asked.clear()
    kernel.ready_at_us = kernel.now_us + 30
    assert selector.select(0) == []
    assert kernel.asked == [0]
    selector.close()
