"""Whether a starting master asks its slaves, and which of them it copies from."""

from __future__ import annotations

from mqcore.replication import LogExtent, SlaveCopy, best_copy, recovery_wait_ms

LIMIT_MS = 60_000


def wait_ms(
    *, log_is_empty: bool = False, clean_stop: bool = False, same_boot: bool = False, needed_slaves: int = 1
) -> int:
    return recovery_wait_ms(
        log_is_empty=log_is_empty,
        clean_stop=clean_stop,
        same_boot=same_boot,
        needed_slaves=needed_slaves,
        recovery_timeout_ms=LIMIT_MS,
    )


def copy(broker_id: int, end_offset: int, *, extends_ours: bool = True) -> SlaveCopy:
    return SlaveCopy(f"slave-{broker_id}:10911", broker_id, LogExtent(0, end_offset), extends_ours=extends_ours)


def test_lost_page_cache_waits_for_the_slaves() -> None:
    assert wait_ms() == LIMIT_MS


def test_nothing_unflushed_was_lost_so_nobody_is_asked() -> None:
    assert wait_ms(clean_stop=True) == 0
    assert wait_ms(same_boot=True) == 0


def test_empty_master_waits_a_little_whatever_the_last_stop_was() -> None:
    assert 0 < wait_ms(log_is_empty=True) < LIMIT_MS
    assert wait_ms(log_is_empty=True, clean_stop=True, same_boot=True) == wait_ms(log_is_empty=True)


def test_master_whose_sends_wait_for_nobody_asks_nobody() -> None:
    assert wait_ms(needed_slaves=0) == 0
    assert wait_ms(needed_slaves=0, log_is_empty=True) == 0


def test_longest_log_that_extends_ours_is_copied() -> None:
    copies = [copy(1, 700), copy(2, 900), copy(3, 950, extends_ours=False)]

    assert best_copy(500, copies) == copies[1]


def test_lowest_broker_id_of_equals() -> None:
    copies = [copy(2, 900), copy(1, 900)]

    assert best_copy(500, copies) == copies[1]


def test_no_slave_with_more_than_ours() -> None:
    assert best_copy(900, [copy(1, 900), copy(2, 100)]) is None
    assert best_copy(0, []) is None
