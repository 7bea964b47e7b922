"""Receives that wait."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandemmq.core.delivery.poll_table import PollTable


def table_of(*waiting: tuple[str, str, int, str], max_waiting: int = 100) -> PollTable[str]:
    table: PollTable[str] = PollTable(max_waiting=max_waiting)
    for topic, group, deadline_ms, token in waiting:
        assert table.add(topic, group, deadline_ms, token)
    return table


def test_an_arrival_wakes_the_longest_waiting_of_each_group() -> None:
    table = table_of(("T", "g", 9, "g1"), ("T", "g", 5, "g2"), ("T", "h", 9, "h1"), ("U", "g", 9, "u1"))
    assert table.message_arrived("T") == ["g1", "h1"]
    assert table.message_arrived("T") == ["g2"]
    assert table.message_arrived("T") == []
    assert len(table) == 1


def test_one_group_is_woken_alone() -> None:
    table = table_of(("T", "g", 9, "g1"), ("T", "h", 9, "h1"))
    assert table.message_visible("T", "h") == ["h1"]
    assert table.message_visible("T", "h") == []
    assert table.message_visible("U", "h") == []


def test_a_receive_that_is_added_again_waits_behind_the_others() -> None:
    table = table_of(*(("T", "g", 9, f"g{number}") for number in range(3)))
    assert table.message_arrived("T") == ["g0"]
    assert table.add("T", "g", 9, "g0")
    assert table.message_arrived("T") == ["g1"]
    assert table.message_visible("T", "g") == ["g2"]
    assert table.message_visible("T", "g") == ["g0"]
    assert not table.is_waited_for("T", "g")


def test_cancelling_a_woken_receive_says_that_its_wake_is_left() -> None:
    table = table_of(("T", "g", 9, "g1"), ("T", "g", 9, "g2"))
    assert table.message_arrived("T") == ["g1"]
    assert not table.cancel("g1")
    assert table.is_waited_for("T", "g")
    assert table.message_visible("T", "g") == ["g2"]


def test_deadlines_come_in_order_and_only_for_those_still_waiting() -> None:
    table = table_of(("T", "g", 30, "a"), ("T", "g", 10, "b"), ("U", "h", 20, "c"), ("U", "h", 20, "d"))
    assert table.next_deadline_ms() == 10
    assert table.cancel("b")
    assert table.next_deadline_ms() == 20
    assert table.expire(19) == []
    assert table.expire(20) == ["c", "d"]
    assert table.message_arrived("T") == ["a"]
    assert table.next_deadline_ms() is None


def test_a_receive_added_again_has_its_new_deadline() -> None:
    table = table_of(("T", "g", 10, "a"))
    assert table.cancel("a")
    assert table.add("T", "g", 50, "a")
    assert table.expire(10) == []
    assert table.expire(50) == ["a"]


def test_a_full_table_refuses() -> None:
    table = table_of(("T", "g", 10, "a"), max_waiting=1)
    assert not table.add("T", "g", 10, "b")
    assert table.cancel("a")
    assert table.add("T", "g", 10, "b")


def test_deadlines_of_the_gone_do_not_pile_up() -> None:
    table: PollTable[int] = PollTable(max_waiting=10)
    for token in range(5_000):
        assert table.add("T", "g", 1_000_000 + token, token)
        assert table.cancel(token)
    assert len(table._deadlines) < 200


class Waiting(RuleBasedStateMachine):
    """The table against plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.table: PollTable[int] = PollTable(max_waiting=12)
        self.waiting: list[tuple[int, str, str, int]] = []
        self.next_token = 0

    @rule(topic=st.sampled_from("TU"), group=st.sampled_from("gh"), deadline_ms=st.integers(0, 50))
    def add(self, topic: str, group: str, deadline_ms: int) -> None:
        fits = len(self.waiting) < 12
        assert self.table.add(topic, group, deadline_ms, self.next_token) == fits
        if fits:
            self.waiting.append((self.next_token, topic, group, deadline_ms))
        self.next_token += 1

    @precondition(lambda self: self.next_token > 0)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        token = data.draw(st.integers(0, self.next_token - 1))
        waits = any(entry[0] == token for entry in self.waiting)
        assert self.table.cancel(token) == waits
        self.waiting = [entry for entry in self.waiting if entry[0] != token]

    @rule(topic=st.sampled_from("TU"))
    def arrive(self, topic: str) -> None:
        first: dict[str, int] = {}
        for token, waiting_topic, group, _ in self.waiting:
            if waiting_topic == topic:
                first.setdefault(group, token)
        assert sorted(self.table.message_arrived(topic)) == sorted(first.values())
        self.waiting = [entry for entry in self.waiting if entry[0] not in first.values()]

    @rule(topic=st.sampled_from("TU"), group=st.sampled_from("gh"))
    def become_visible(self, topic: str, group: str) -> None:
        expected = [entry for entry in self.waiting if entry[1:3] == (topic, group)]
        assert self.table.is_waited_for(topic, group) == bool(expected)
        assert self.table.message_visible(topic, group) == [entry[0] for entry in expected[:1]]
        self.waiting = [entry for entry in self.waiting if entry not in expected[:1]]

    @rule(now_ms=st.integers(0, 50))
    def expire(self, now_ms: int) -> None:
        expected = [entry[0] for entry in self.waiting if entry[3] <= now_ms]
        assert sorted(self.table.expire(now_ms)) == sorted(expected)
        self.waiting = [entry for entry in self.waiting if entry[3] > now_ms]

    @invariant()
    def agrees(self) -> None:
        assert len(self.table) == len(self.waiting)
        assert self.table.next_deadline_ms() == min((entry[3] for entry in self.waiting), default=None)


TestWaiting = Waiting.TestCase
TestWaiting.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
