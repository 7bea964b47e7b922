"""Who wrote which part of a log, and up to where two histories agree."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.replication.log_history import HistoryCorrupt, LogHistory, ReplicaRecord
from tandemmq.core.routing.values import ReplicaMemory

STARTS = st.lists(st.integers(0, 1_000), min_size=0, max_size=8).map(sorted)


@st.composite
def histories(draw: st.DrawFn) -> LogHistory:
    starts = draw(STARTS)
    epochs = sorted(draw(st.sets(st.integers(1, 50), min_size=len(starts), max_size=len(starts))))
    return LogHistory.of(zip(epochs, starts, strict=True))


@given(histories())
def test_text_round_trip(history: LogHistory) -> None:
    assert LogHistory.from_text(history.to_text()) == history


@given(histories(), st.data())
def test_a_damaged_file_is_noticed(history: LogHistory, data: st.DataObject) -> None:
    text = history.begun(history.last_epoch + 1, 2_000).to_text()
    at = data.draw(st.integers(text.index("\n") + 1, len(text) - 1))
    damaged = text[:at] + data.draw(st.sampled_from("0123456789x-\n")) + text[at + 1 :]
    if damaged == text:
        return
    try:
        assert LogHistory.from_text(damaged).to_text().split("\n")[0] == text.split("\n")[0]
    except HistoryCorrupt:
        return
    assert damaged.split("\n")[1] == "0" or damaged.split() == text.split(), "only an unchecked file may differ"


@pytest.mark.parametrize("text", ["", "\n", "1\n0\n", "2\n0\n2-5\n1-7\n", "1\n0\n0-0\n", "1\n7\n1-0\n", "x\n0\n"])
def test_what_is_no_epoch_file_is_refused(text: str) -> None:
    with pytest.raises(HistoryCorrupt):
        LogHistory.from_text(text)


def test_a_file_of_rocketmq_that_is_not_to_be_checked_is_read() -> None:
    assert LogHistory.from_text("2\n0\n1-0\n3-165\n").epochs == ((1, 0), (3, 165))


@given(histories(), st.integers(0, 1_100))
def test_the_last_byte_belongs_to_the_last_epoch_that_began_before_it(history: LogHistory, end: int) -> None:
    epoch = history.epoch_of_last_byte(end)
    assert epoch == max((number for number, start in history.epochs if start < end), default=0)
    assert history.up_to(end).last_epoch == epoch


@given(st.data())
def test_replicas_of_one_group_hold_the_same_bytes_up_to_the_shared_end(data: st.DataObject) -> None:
    """Two replicas follow a line of masters, each missing some epochs and tails: bytes are (epoch, offset) pairs."""
    logs: list[list[tuple[int, int]]] = [[], []]
    known = [LogHistory(), LogHistory()]
    for epoch in range(1, data.draw(st.integers(1, 6)) + 1):
        # The next master is one of the two; the other follows it from their common end on, or is not there.
        master = data.draw(st.integers(0, 1))
        start = len(logs[master])
        known[master] = known[master].begun(epoch, start)
        logs[master] += [(epoch, offset) for offset in range(start, start + data.draw(st.integers(0, 4)))]
        if data.draw(st.booleans()):
            slave = 1 - master
            shared = known[slave].shared_end(known[master])
            common = 0
            for ours, theirs in zip(logs[slave], logs[master]):
                if ours != theirs:
                    break
                common += 1
            held = min(len(logs[slave]), len(logs[master]))
            assert common >= min(shared, held), "what both histories cover is the same"
            # It was not cut below what both share, and goes on some way with the master.
            logs[slave] = logs[master][: data.draw(st.integers(common, len(logs[master])))]
            known[slave] = known[master]


def test_an_epoch_without_a_byte_is_dropped() -> None:
    history = LogHistory.of([(1, 0), (2, 100)])
    assert history.begun(3, 100).epochs == ((1, 0), (3, 100))
    assert history.begun(3, 150).epochs == ((1, 0), (2, 100), (3, 150))


def test_a_replica_record_keeps_who_was_master_and_an_older_one_goes_by_the_ids() -> None:
    members = (
        ReplicaMemory(0, "disk-0", 1, 7, 100, "host-0:10911", master_epoch=3),
        ReplicaMemory(1, "disk-1", 2, 7, 100, "host-1:10911", left=True, master_epoch=7),
    )
    record = ReplicaRecord("disk-2", 1, "DefaultCluster", "broker-a", 2, members)
    assert ReplicaRecord.from_json(record.to_json()) == record
    document = json.loads(record.to_json())
    for member in document["replicas"].values():
        del member["masterEpoch"]
    older = ReplicaRecord.from_json(json.dumps(document))
    assert [member.master_epoch for member in older.replicas] == [7, 0]
