"""When answers leave that depend on what groups have finished, against a naive model."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.replication.progress_gate import ProgressGate

LIMIT_MS = 100
SETS = st.sampled_from(["", "b", "c", "d", "bc", "bd", "cd", "bcd"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3)),
        st.tuples(st.just("held"), st.sampled_from("bcd"), st.integers(0, 30)),
        st.tuples(st.just("require"), SETS),
        st.tuples(st.just("time"), st.integers(1, 60)),
    ),
    max_size=60,
)


@given(STEPS)
def test_an_answer_leaves_in_its_turn_when_every_required_disk_has_what_it_depends_on(
    steps: Sequence[tuple[str, object]],
) -> None:
    gate: ProgressGate[tuple[int, int]] = ProgressGate(limit_ms=LIMIT_MS)
    required: frozenset[str] = frozenset()
    held: dict[str, int] = {}
    waiting: list[tuple[int, int]] = []
    end = now_ms = 0

    def check(free: list[tuple[int, int]]) -> None:
        least = min((held.get(disk_id, -1) for disk_id in required), default=end)
        assert free == [one for one in waiting if one[0] <= least]
        del waiting[: len(free)]

    for name, *arguments in steps:
        if name == "write":
            end += int(str(arguments[0]))
            if waiting or not gate.is_held(end):
                gate.add(end, (end, now_ms), now_ms=now_ms)
                waiting.append((end, now_ms))
        elif name == "held":
            disk_id, position = str(arguments[0]), min(end, int(str(arguments[1])))
            if disk_id in required:
                held[disk_id] = position
            check(gate.held(disk_id, position))
        elif name == "require":
            required = frozenset(str(arguments[0]))
            held = {disk_id: position for disk_id, position in held.items() if disk_id in required}
            check(gate.require(required))
        else:
            now_ms += int(str(arguments[0]))
            overdue = gate.take_overdue(now_ms=now_ms)
            assert overdue == [one for one in waiting if one[1] + LIMIT_MS <= now_ms]
            del waiting[: len(overdue)]
        assert len(gate) == len(waiting)
        assert gate.next_deadline_ms() == (waiting[0][1] + LIMIT_MS if waiting else None)
        lacking = [disk_id for disk_id in sorted(required) if waiting and held.get(disk_id, -1) < waiting[-1][0]]
        assert gate.lacking() == lacking
    assert gate.give_up() == waiting
    assert not gate


def test_a_disk_that_comes_back_into_the_set_has_to_say_anew_what_it_has() -> None:
    gate: ProgressGate[str] = ProgressGate(limit_ms=LIMIT_MS)
    gate.require(frozenset("b"))
    gate.held("b", 10)
    assert gate.is_held(10)
    gate.require(frozenset())
    gate.require(frozenset("b"))
    assert not gate.is_held(10)
