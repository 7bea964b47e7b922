"""PutGate: releases what is proven, in order, at the cost of what it releases."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.core.replication.put_gate import PutGate, WaitingPut
from tandemmq.core.storage.put_result import PutStatus

from .naive_put_gate import NaivePutGate

PUT_BYTES = 10


@dataclass(slots=True)
class Ack:
    proven_from_offset: int
    acked_offset: int
    disk_id: str = ""


def gate(*, needed_slaves: int = 1) -> PutGate:
    return PutGate(needed_slaves=needed_slaves, slave_timeout_ms=3_000, sync_flush_timeout_ms=5_000)


def put(number: int, *, flush: bool = False, slaves: bool = True) -> WaitingPut:
    return WaitingPut(number * PUT_BYTES, (number + 1) * PUT_BYTES, needs_flush=flush, needs_slaves=slaves)


def completed(waiting: PutGate) -> list[tuple[int, PutStatus]]:
    return [(put.start_offset // PUT_BYTES, put.status) for put in waiting.take_completed()]


def ok(*numbers: int) -> list[tuple[int, PutStatus]]:
    return [(number, PutStatus.PUT_OK) for number in numbers]


def test_report_releases_every_put_it_covers_in_order() -> None:
    waiting = gate()
    for token in range(4):
        waiting.add(put(token), 0)

    waiting.slaves_hold([Ack(0, 29)])

    assert completed(waiting) == ok(0, 1)
    assert completed(waiting) == []


def test_kth_largest_report_counts() -> None:
    waiting = gate(needed_slaves=2)
    for token in range(4):
        waiting.add(put(token), 0)

    waiting.slaves_hold([Ack(0, 40), Ack(0, 10), Ack(0, 20)])

    assert completed(waiting) == ok(0, 1)


def test_too_few_slaves_release_nothing() -> None:
    waiting = gate(needed_slaves=2)
    waiting.add(put(0), 0)

    waiting.slaves_hold([Ack(0, 10)])

    assert completed(waiting) == []


def test_put_below_a_links_start_does_not_count_it_and_does_not_block_those_behind() -> None:
    waiting = gate()
    for token in range(4):
        waiting.add(put(token), 0)
    waiting.split_at(15)

    waiting.slaves_hold([Ack(15, 40)])

    assert completed(waiting) == ok(2, 3)


def test_proven_link_releases_what_an_unproven_one_left() -> None:
    waiting = gate()
    for token in range(3):
        waiting.add(put(token), 0)
    waiting.split_at(10)
    waiting.slaves_hold([Ack(10, 30)])
    waiting.take_completed()

    waiting.slaves_hold([Ack(10, 30), Ack(0, 30)])

    assert completed(waiting) == ok(0)


def test_deadlines_stay_in_order_over_a_split() -> None:
    waiting = gate()
    for token in range(3):
        waiting.add(put(token), 100 * token)
    waiting.split_at(10)

    assert waiting.next_deadline_ms() == 3_000
    waiting.deadline_reached(now_ms=3_100)

    assert completed(waiting) == [
        (0, PutStatus.FLUSH_SLAVE_TIMEOUT),
        (1, PutStatus.FLUSH_SLAVE_TIMEOUT),
    ]
    assert waiting.next_deadline_ms() == 3_200


def test_put_that_needs_both_waits_for_the_later() -> None:
    waiting = gate()
    waiting.add(put(0, flush=True), 0)
    waiting.slaves_hold([Ack(0, 10)])
    assert completed(waiting) == []

    waiting.flushed(10)

    assert completed(waiting) == ok(0)
    assert waiting.next_deadline_ms() is None


def test_one_bad_wait_makes_the_status_bad() -> None:
    waiting = gate()
    waiting.add(put(0, flush=True), 0)
    waiting.add(put(1, flush=True), 0)
    waiting.flushed(10)
    waiting.deadline_reached(now_ms=3_000)
    assert completed(waiting) == [(0, PutStatus.FLUSH_SLAVE_TIMEOUT)]

    waiting.add(put(2, flush=True), 3_000)
    waiting.slaves_hold([Ack(0, 30)])
    waiting.deadline_reached(now_ms=8_000)

    assert completed(waiting) == [
        (1, PutStatus.FLUSH_SLAVE_TIMEOUT),
        (2, PutStatus.FLUSH_DISK_TIMEOUT),
    ]


def test_bad_replica_status_wins_over_bad_flush_status() -> None:
    waiting = gate()
    waiting.add(put(0, flush=True), 0)

    waiting.deadline_reached(now_ms=5_000)

    assert completed(waiting) == [(0, PutStatus.FLUSH_SLAVE_TIMEOUT)]


def test_put_without_slaves_is_answered_when_the_disk_has_it() -> None:
    waiting = gate()
    waiting.add_without_slaves(put(0, flush=True), 0)
    waiting.slaves_hold([Ack(0, 10)])
    assert completed(waiting) == []

    waiting.flushed(10)

    assert completed(waiting) == [(0, PutStatus.SLAVE_NOT_AVAILABLE)]


LINKS = 3
steps = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 9), st.booleans(), st.booleans()),
    st.tuples(st.just("put_without_slaves"), st.integers(1, 9)),
    st.tuples(st.just("start"), st.integers(0, LINKS - 1), st.integers(0, 30), st.booleans()),
    st.tuples(st.just("leave"), st.integers(0, LINKS - 1)),
    st.tuples(st.just("distrust"), st.integers(0, LINKS - 1)),
    st.tuples(st.just("ack"), st.integers(0, LINKS - 1), st.integers(0, 40)),
    st.tuples(st.just("flush"), st.integers(0, 40)),
    st.tuples(st.just("wait"), st.integers(0, 4_000)),
)


@settings(deadline=None)
@given(needed_slaves=st.integers(1, 3), script=st.lists(steps, max_size=60))
def test_gate_does_what_the_naive_one_does(needed_slaves: int, script: list[tuple[str, *tuple[int, ...]]]) -> None:
    fast = gate(needed_slaves=needed_slaves)
    naive = NaivePutGate(needed_slaves=needed_slaves, slave_timeout_ms=3_000, sync_flush_timeout_ms=5_000)
    acks: dict[int, Ack] = {}
    log_end = flushed_offset = now_ms = 0
    for name, *numbers in script:
        match name, numbers:
            case "put", [length, flush, slaves]:
                new = WaitingPut(log_end, log_end + length, bool(flush), bool(slaves or not flush))
                log_end += length
                fast.add(new, now_ms)
                naive.add(new, now_ms=now_ms)
            case "put_without_slaves", [length]:
                new = WaitingPut(log_end, log_end + length, needs_flush=True, needs_slaves=True)
                log_end += length
                fast.add_without_slaves(new, now_ms)
                naive.add_without_slaves(new, now_ms=now_ms)
            case "start", [link, back, verified]:
                start_offset = max(0, log_end - back)
                acks[link] = Ack(0 if verified else start_offset, start_offset)
                fast.split_at(acks[link].proven_from_offset)
            case "leave", [link]:
                acks.pop(link, None)
            case "distrust", [link] if link in acks:
                acks[link].proven_from_offset = log_end
                fast.split_at(log_end)
            case "ack", [link, more] if link in acks:
                acks[link].acked_offset = min(log_end, acks[link].acked_offset + more)
            case "flush", [more]:
                flushed_offset = min(log_end, flushed_offset + more)
                fast.flushed(flushed_offset)
                naive.flushed(flushed_offset)
            case "wait", [ms]:
                now_ms += ms
                fast.deadline_reached(now_ms=now_ms)
                naive.deadline_reached(now_ms=now_ms)
        fast.slaves_hold(list(acks.values()))
        naive.slaves_hold(list(acks.values()))
        ended = [(put.start_offset, put.status) for put in fast.take_completed()]
        assert len(ended) == len(set(ended))
        assert set(ended) == naive.take_completed()
        assert fast.next_deadline_ms() == naive.next_deadline_ms()
    assert [put.start_offset for put in fast.give_up()] == naive.waiting_offsets
    assert (fast.give_up(), fast.next_deadline_ms()) == ([], None)
