"""Progress of groups and of delay levels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.metadata.metadata_store import DataVersion, MetadataCorrupt
from tandemmq.core.metadata.offset_tables import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    GroupOffset,
    OperatorActs,
    QueueEnd,
)


def test_progress_moves_forward_only() -> None:
    table = ConsumerOffsetTable()
    assert table.offset("G", "T", 0) is None
    assert table.commit("G", "T", 0, 10, now_ms=1) is None
    kept = table.commit("G", "T", 0, 9, now_ms=2)
    assert str(kept) == "T@G queue 0: kept 10, not set back to 9"
    assert table.offset("G", "T", 0) == 10
    assert table.version == DataVersion(0, 1, 1)


def test_an_offset_of_zero_is_progress() -> None:
    table = ConsumerOffsetTable()
    table.commit("G", "T", 3, 0, now_ms=1)
    assert table.offset("G", "T", 3) == 0
    assert table.version.counter == 1


def test_many_commits_are_one_change_and_none_is_no_change() -> None:
    table = ConsumerOffsetTable()
    offsets = [GroupOffset("G", "T", queue_id, 5) for queue_id in range(8)]
    assert table.commit_all(offsets, now_ms=1) == []
    assert table.commit_all(offsets, now_ms=2) == []
    assert table.version == DataVersion(0, 1, 1)
    assert list(table) == offsets


def test_an_operator_may_set_progress_back() -> None:
    table = ConsumerOffsetTable()
    table.commit("G", "T", 0, 10, now_ms=1)
    table.reset("G", "T", 0, 4, now_ms=2)
    assert table.offset("G", "T", 0) == 4
    assert table.version.counter == 2


def test_progress_beyond_a_cut_queue_goes_back_and_a_replica_that_knows_more_still_counts() -> None:
    table, replica = ConsumerOffsetTable(), ConsumerOffsetTable()
    table.commit_all([GroupOffset("G", "T", 0, 10), GroupOffset("G", "T", 1, 3), GroupOffset("G", "U", 0, 2)], now_ms=1)
    replica.commit("G", "T", 0, 8, now_ms=1)
    ends = {("T", 0): 6, ("T", 1): 3}
    assert [str(cut) for cut in table.cut(lambda topic, queue_id: ends.get((topic, queue_id), 0), now_ms=2)] == [
        "T@G queue 0: from 10 back to 6",
        "U@G queue 0: from 2 back to 0",
    ]
    assert set(table) == {GroupOffset("G", "T", 0, 6), GroupOffset("G", "T", 1, 3), GroupOffset("G", "U", 0, 0)}
    version = table.version
    assert table.cut(lambda topic, queue_id: ends.get((topic, queue_id), 0), now_ms=3) == []
    assert table.version == version
    table.merge_replica(replica.to_json())
    assert table.offset("G", "T", 0) == 8


def test_a_table_tells_what_operators_did_that_another_does_not_know() -> None:
    table = ConsumerOffsetTable()
    table.commit_all([GroupOffset(group, "T", queue_id, 9) for group in "GHI" for queue_id in (0, 1)], now_ms=1)
    table.reset("G", "T", 0, 4, now_ms=2)
    marks = table.marks
    assert table.acts_since(marks) == OperatorActs([], set())
    table.reset("G", "T", 1, 3, now_ms=2)
    table.reset("G", "T", 0, 2, now_ms=2)
    table.commit("G", "T", 1, 5, now_ms=3)
    table.remove_group("H", now_ms=3)
    expected = [GroupOffset("G", "T", 0, 2), GroupOffset("G", "T", 1, 5)]
    assert table.acts_since(marks) == OperatorActs(expected, {("H", "T")})
    assert table.acts_since(ConsumerOffsetTable().marks) == OperatorActs(expected, {("H", "T")})


def test_a_slave_keeps_what_its_master_would_set_back() -> None:
    master, slave = ConsumerOffsetTable(), ConsumerOffsetTable()
    master.commit_all([GroupOffset("G", "T", 0, 5), GroupOffset("G", "T", 1, 50)], now_ms=1)
    slave.commit_all([GroupOffset("G", "T", 0, 9), GroupOffset("H", "T", 0, 3)], now_ms=7)
    assert slave.apply_from_master(master.to_json(), master.version) == ["T@G queue 0: kept 9, not set back to 5"]
    assert set(slave) == {GroupOffset("G", "T", 0, 9), GroupOffset("G", "T", 1, 50), GroupOffset("H", "T", 0, 3)}
    assert slave.version == master.version


def test_a_deleted_topic_is_forgotten_and_its_namesakes_are_not() -> None:
    table = ConsumerOffsetTable()
    table.commit_all([GroupOffset("G", "T", 0, 5), GroupOffset("G", "T2", 0, 5)], now_ms=1)
    table.remove_topic("T", now_ms=2)
    assert list(table) == [GroupOffset("G", "T2", 0, 5)]
    table.remove_topic("T", now_ms=3)
    assert table.version == DataVersion(0, 2, 2)


def test_corrupt_offsets_leave_the_table_as_it_was() -> None:
    table = ConsumerOffsetTable()
    table.commit("G", "T", 0, 10, now_ms=1)
    before = table.to_json()
    for text in (
        '{"offsetTable":{"T@G":{"x":1}}}',
        '{"offsetTable":{"T@G":{0:"1"}}}',
        '{"offsetTable":[]}',
        '{"queueEnds":{"T":{0:1}}}',
        '{"queueEnds":{"T":{0:[1]}}}',
        '{"queueEnds":{"T":{0:[1,"2"]}}}',
        '{"queueEnds":{"T":{0:[1,true]}}}',
        '{"queueEnds":{"T":{"x":[1,2]}}}',
    ):
        with pytest.raises(MetadataCorrupt):
            table.apply_from_master(text, DataVersion(0, 9, 9))
    assert table.to_json() == before


def test_delay_levels_move_forward_and_a_slave_takes_them_as_they_are() -> None:
    table = DelayOffsetTable()
    assert table.offset(3) == 0
    table.advance(3, 7, now_ms=1)
    table.advance(3, 6, now_ms=2)
    assert table.offset(3) == 7
    assert table.version == DataVersion(0, 1, 1)
    table.apply_from_master('{"dataVersion":{"counter":0},"offsetTable":{3:2}}', DataVersion(0, 5, 5))
    assert table.offset(3) == 2
    assert table.version == DataVersion(0, 5, 5)
    assert table.apply_from_master('{"offsetTable":{}}', DataVersion(0, 5, 6)) == [
        "delay level 3: kept 2, the master has none"
    ]
    assert table.offset(3) == 2


def test_a_slave_follows_an_operators_reset_back_once() -> None:
    master, slave = ConsumerOffsetTable(), ConsumerOffsetTable()
    master.commit_all([GroupOffset("G", "T", 0, 10), GroupOffset("G", "T", 1, 10)], now_ms=1)
    slave.apply_from_master(master.to_json(), master.version)
    master.reset("G", "T", 0, 4, now_ms=2)
    assert slave.apply_from_master(master.to_json(), master.version) == []
    assert slave.offsets_of("G", "T") == {0: 4, 1: 10}
    slave.commit("G", "T", 0, 9, now_ms=3)
    assert slave.apply_from_master(master.to_json(), master.version) == ["T@G queue 0: kept 9, not set back to 4"]
    master.reset("G", "T", 0, 2, now_ms=2)
    slave.apply_from_master(master.to_json(), master.version)
    assert slave.offset("G", "T", 0) == 2, "a clock that stands still makes a new mark all the same"


def test_a_slave_forgets_what_its_master_was_told_to_forget_and_what_came_later_counts() -> None:
    master, slave = ConsumerOffsetTable(), ConsumerOffsetTable()
    master.commit_all(
        [GroupOffset("G", "T", 0, 10), GroupOffset("G", "T2", 0, 10), GroupOffset("H", "T", 0, 5)], now_ms=1
    )
    slave.apply_from_master(master.to_json(), master.version)
    slave.commit("G", "T", 7, 3, now_ms=1)
    master.remove_group("G", now_ms=2)
    master.commit("G", "T", 0, 1, now_ms=3)
    slave.apply_from_master(master.to_json(), master.version)
    assert set(slave) == {GroupOffset("G", "T", 0, 1), GroupOffset("H", "T", 0, 5)}
    master.remove_topic("T", now_ms=4)
    slave.apply_from_master(master.to_json(), master.version)
    assert list(slave) == []


def test_marks_survive_a_restart_of_either_side() -> None:
    master, slave = ConsumerOffsetTable(), ConsumerOffsetTable()
    master.commit("G", "T", 0, 10, now_ms=1)
    master.reset("G", "T", 0, 4, now_ms=2)
    slave.apply_from_master(master.to_json(), master.version)
    slave.commit("G", "T", 0, 8, now_ms=3)
    restarted_master, restarted_slave = ConsumerOffsetTable(), ConsumerOffsetTable()
    restarted_master.load_json(master.to_json())
    restarted_slave.load_json(slave.to_json())
    assert restarted_slave.apply_from_master(restarted_master.to_json(), restarted_master.version)
    assert restarted_slave.offset("G", "T", 0) == 8, "the mark was followed already"


def test_marks_of_more_than_thirty_days_go() -> None:
    month_ms = 31 * 24 * 3_600_000
    table = ConsumerOffsetTable()
    table.commit("G", "T", 0, 10, now_ms=1)
    table.commit("H", "T", 0, 10, now_ms=1)
    table.reset("G", "T", 0, 4, now_ms=2)
    table.remove_group("H", now_ms=3)
    assert "operatorResets" in table.to_json()
    assert "operatorRemovals" in table.to_json()
    table.reset("G", "T", 1, 4, now_ms=month_ms)
    assert '"H"' not in table.to_json()
    assert "operatorRemovals" not in table.to_json()
    assert table.offset("G", "T", 0) == 4


def test_a_reset_of_many_queues_is_one_change_and_marks_each() -> None:
    table, slave = ConsumerOffsetTable(), ConsumerOffsetTable()
    for queue_id in range(3):
        slave.commit("G", "T", queue_id, 10, now_ms=1)
    before = table.version.counter
    table.reset_all([GroupOffset("G", "T", queue_id, 4) for queue_id in range(3)], now_ms=2)
    assert table.version.counter == before + 1
    assert slave.apply_from_master(table.to_json(), table.version) == []
    assert slave.offsets_of("G", "T") == {0: 4, 1: 4, 2: 4}
    table.reset_all([], now_ms=3)
    assert table.version.counter == before + 1


def test_pairs_are_groups_and_topics() -> None:
    table = ConsumerOffsetTable()
    table.commit_all([GroupOffset("G", "T", 0, 1), GroupOffset("G", "%RETRY%G", 0, 2)], now_ms=1)
    assert table.pairs() == [("G", "T"), ("G", "%RETRY%G")]
    assert table.offsets_of("G", "%RETRY%G") == {0: 2}
    assert table.offsets_of("G", "nowhere") == {}


ENDS = st.dictionaries(
    st.sampled_from("TUV"),
    st.dictionaries(st.integers(0, 2), st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1),
)


def _with_ends(ends: dict[str, dict[int, tuple[int, int]]]) -> ConsumerOffsetTable:
    table = ConsumerOffsetTable()
    for topic, queues in ends.items():
        for queue_id, (next_number, log_offset) in queues.items():
            assert table.note_queue_ends([(topic, queue_id, next_number)], log_offset, now_ms=1)
    return table


@given(st.lists(ENDS, min_size=1, max_size=4), st.booleans())
def test_the_highest_number_of_a_queue_without_messages_counts_whoever_tells_it(
    many: list[dict[str, dict[int, tuple[int, int]]]], merges: bool
) -> None:
    table = ConsumerOffsetTable()
    for ends in many:
        other = _with_ends(ends)
        if merges:
            table.merge_replica(other.to_json())
        else:
            table.apply_from_master(other.to_json(), other.version)
    known = {(topic, queue_id): end.next_number for topic, queue_id, end in table.queue_ends()}
    assert known == {
        queue: max(ends[queue[0]][queue[1]][0] for ends in many if queue[1] in ends.get(queue[0], {}))
        for queue in {(topic, queue_id) for ends in many for topic, queues in ends.items() for queue_id in queues}
    }
    again = ConsumerOffsetTable()
    again.load_json(table.copied().to_json())
    assert again.queue_ends() == table.queue_ends()
    version = table.version
    assert not table.note_queue_ends([(*queue, number) for queue, number in known.items()], 0, now_ms=9)
    assert table.version == version, "nothing is news"
    table.forget_queue_ends(known, now_ms=9)
    assert not table.queue_ends()
    assert '"queueEnds":{"T":{}' not in table.to_json()


def test_what_was_consumed_of_an_empty_queue_is_a_number() -> None:
    table = ConsumerOffsetTable()
    table.commit("G", "T", 0, 5, now_ms=1)
    table.commit("H", "T", 0, 7, now_ms=1)
    table.commit("G", "T", 1, 9, now_ms=1)
    table.commit("G", "T", 2, 1 << 60, now_ms=1)
    assert table.note_consumed_ends(lambda _, queue_id: queue_id != 1, 4_096, now_ms=2)
    assert table.queue_ends() == [("T", 0, QueueEnd(7, 4_096))], "no queue gives as many numbers as 2^60"
