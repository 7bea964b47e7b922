"""One cause, one finding: what is joined, what is dropped, and what stays."""

from __future__ import annotations

import json
from dataclasses import replace

from tandemmq.core.audit.causes import collate, one_for_each_cause, with_one_source
from tandemmq.core.audit.findings import Cause, Finding, FindingKind, Verdict
from tandemmq.core.audit.repair_plan import RepairAction, plan_repair
from tandemmq.core.audit.replica_store import ReplicaFacts


def found(kind: FindingKind, broker_id: int | None = 1, **more: object) -> Finding:
    """A finding of which only some fields matter."""
    values: dict[str, object] = {"verdict": Verdict.OWN_EVIDENCE, "detail": f"{kind} {more}"} | more
    return Finding(kind=kind, group="broker-a", broker_id=broker_id, **values)  # type: ignore[arg-type]


def entry(queue_offset: int, kind: FindingKind = FindingKind.QUEUE_ENTRY_WRONG, queue_id: int = 0) -> Finding:
    file = f"consumequeue/orders/{queue_id}/{0:020d}"
    return found(
        kind, topic="orders", queue_id=queue_id, queue_offset=queue_offset, message_id=f"m{queue_offset}", file=file
    )


def test_entries_of_one_queue_are_one_finding_over_their_whole_stretch() -> None:
    (joined,) = one_for_each_cause([entry(7), entry(5, FindingKind.QUEUE_ENTRY_MISSING), entry(90)])
    assert joined.kind is FindingKind.QUEUE_ENTRY_WRONG
    assert (joined.queue_offset, joined.end_queue_offset, joined.messages) == (5, 91, 3)
    assert (joined.message_id, joined.last_message_id) == ("m5", "m90")


def test_entries_of_two_queues_or_two_replicas_stay_two() -> None:
    two = [entry(5), entry(5, queue_id=1)]
    assert sorted(one_for_each_cause(two), key=lambda own: own.queue_id or 0) == two
    other = [found(FindingKind.INDEX_ENTRY_WRONG, broker_id, file="index/1") for broker_id in (0, 1)]
    assert one_for_each_cause(other) == other


def test_a_message_with_several_keys_counts_once() -> None:
    lost = [found(FindingKind.INDEX_ENTRY_WRONG, file="index/1", message_id=name) for name in ("a", "a", "b")]
    (joined,) = one_for_each_cause(lost)
    assert joined.messages == 2


def test_neighbours_in_the_log_are_one_damage() -> None:
    torn = found(FindingKind.TORN, start_offset=0, end_offset=100, source_broker_id=0, message_id="a")
    zeroed = found(FindingKind.ZEROED, start_offset=100, end_offset=300, source_broker_id=0, message_id="b")
    apart = found(FindingKind.TORN, start_offset=500, end_offset=600, source_broker_id=0)
    first, second = sorted(one_for_each_cause([apart, zeroed, torn]), key=lambda own: own.start_offset or 0)
    assert (first.kind, first.start_offset, first.end_offset, first.messages) == (FindingKind.ZEROED, 0, 300, 2)
    assert (first.message_id, first.last_message_id) == ("a", "b")
    assert second == apart


def test_what_speaks_of_lost_messages_follows_from_their_loss() -> None:
    lost = found(FindingKind.SEGMENT_MISSING, start_offset=0, end_offset=100)
    checkpoint = found(FindingKind.CHECKPOINT_IMPOSSIBLE, file="checkpoint", cause=Cause.BEYOND_END)
    elsewhere, other = replace(checkpoint, broker_id=0), replace(checkpoint, cause=None)
    assert set(one_for_each_cause([lost, checkpoint, elsewhere, other])) == {lost, elsewhere, other}


def test_the_file_made_ahead_of_what_is_lost_is_no_cause_of_its_own() -> None:
    lost = found(FindingKind.SEGMENT_MISSING, start_offset=100, end_offset=200)
    ahead = found(FindingKind.SEGMENT_EXTRA, file="commitlog/300", cause=Cause.BEHIND_A_GAP)
    elsewhere, full = replace(ahead, broker_id=0), replace(ahead, cause=None)
    assert set(one_for_each_cause([lost, ahead, elsewhere, full])) == {lost, elsewhere, full}


def test_a_file_that_lacks_bytes_and_no_message_is_told_once() -> None:
    whole = found(FindingKind.SEGMENT_SIZE, file="commitlog/100", messages=0)
    part = replace(whole, start_offset=190, end_offset=200)
    lossy, elsewhere = replace(part, messages=3), replace(part, broker_id=0)
    assert set(one_for_each_cause([whole, part, lossy, elsewhere])) == {whole, lossy, elsewhere}


def test_table_of_another_time_is_one_finding_and_few_differences_are_told_apart() -> None:
    topics = [
        found(FindingKind.TOPIC_MISSING, topic=f"t{number}", file="config/topics.json", source_broker_id=0)
        for number in range(20)
    ]
    (joined,) = one_for_each_cause(topics)
    assert "20 differences" in joined.detail
    assert "t1, t2" in joined.detail
    assert one_for_each_cause(topics[:3]) == topics[:3]


def test_own_log_does_not_repeat_what_the_master_told() -> None:
    told = found(FindingKind.TOPIC_MISSING, topic="t", file="config/topics.json", source_broker_id=0)
    own = found(FindingKind.TOPIC_MISSING, topic="t", file="config/topics.json")
    assert one_for_each_cause([own, told]) == [told]
    assert one_for_each_cause([own]) == [own]


def test_many_queues_that_lack_entries_are_one_finding_with_a_step_for_each() -> None:
    lacking = [
        found(
            FindingKind.QUEUE_ENTRY_MISSING,
            topic="orders",
            queue_id=queue_id,
            queue_offset=40,
            messages=5,
            start_offset=1000 + queue_id,
            file=f"consumequeue/orders/{queue_id}/{0:020d}",
        )
        for queue_id in range(4)
    ]
    (whole,) = one_for_each_cause(lacking)
    assert (whole.messages, whole.file, whole.queue_id) == (20, "consumequeue", None)
    assert whole.queues == tuple(("orders", queue_id, 40, 45) for queue_id in range(4))
    assert Finding.from_json(json.loads(json.dumps(whole.to_json()))) == whole
    steps = plan_repair("run", "cluster", [whole], lambda *_: "").steps
    assert [(step.action, step.queue_id, step.first_queue_offset, step.end_queue_offset) for step in steps] == [
        (RepairAction.REWRITE_QUEUE_ENTRIES, queue_id, 40, 45) for queue_id in range(4)
    ]
    assert one_for_each_cause(lacking[:2]) == lacking[:2]


def test_queues_of_exchanged_topics_are_one_finding_and_single_wrong_entries_are_not() -> None:
    wrong = [replace(entry(0, queue_id=number), messages=40, end_queue_offset=40) for number in range(3)]
    empty = found(FindingKind.QUEUE_ENTRY_EXTRA, topic="orders", queue_id=3, messages=0, file="consumequeue/orders/3")
    (whole,) = one_for_each_cause([*wrong, empty])
    assert (whole.kind, whole.messages) == (FindingKind.QUEUE_ENTRY_WRONG, 120)
    assert whole.queues == tuple(("orders", number, 0, 40) for number in range(3))
    assert len(one_for_each_cause([entry(7, queue_id=number) for number in range(3)])) == 3


def test_disk_that_was_set_back_is_one_finding() -> None:
    older = [
        found(FindingKind.TABLE_OLDER, file=f"config/{name}.json", verdict=Verdict.STORED_DIGEST)
        for name in ("topics", "users")
    ]
    (tables,) = one_for_each_cause(older)
    assert "config/users.json are older, too" in tables.detail
    end = found(FindingKind.TAIL_MISSING, start_offset=5, end_offset=9, verdict=Verdict.STORED_DIGEST)
    epochs = found(FindingKind.EPOCHS_WRONG, file="epochFileCheckpoint", verdict=Verdict.STORED_DIGEST)
    (whole,) = one_for_each_cause([*older, end, epochs])
    assert whole.kind is FindingKind.TAIL_MISSING
    assert "epochFileCheckpoint" in whole.detail
    other = found(FindingKind.TABLE_OLDER, 2, file="config/topics.json", verdict=Verdict.STORED_DIGEST)
    assert other in one_for_each_cause([*older, end, other])


def test_small_file_that_all_have_damaged_is_one_finding_and_each_running_broker_writes_its_own() -> None:
    gone = [found(FindingKind.EPOCHS_WRONG, own, detail="gone", file="epochFileCheckpoint") for own in (0, 1)]
    (once,) = collate(gone, [], broker_ids=frozenset({0, 1}))
    assert once.broker_id is None
    steps = plan_repair("run", "cluster", [once], lambda *_: "", running={"broker-a": (0, 1)}).steps
    assert [(step.action, step.target_broker_id) for step in steps] == [
        (RepairAction.REWRITE_TABLE, 0),
        (RepairAction.REWRITE_TABLE, 1),
    ]
    assert len(collate(gone, [], broker_ids=frozenset({0, 1, 2}))) == 2


def test_entries_behind_the_end_are_erased_by_a_broker_that_runs() -> None:
    extra = entry(90, FindingKind.QUEUE_ENTRY_EXTRA)
    extra = replace(extra, end_queue_offset=95, messages=2)
    (step,) = plan_repair("run", "cluster", [extra], lambda *_: "", running={"broker-a": (0, 1)}).steps
    assert step.action is RepairAction.REWRITE_QUEUE_ENTRIES
    assert (step.first_queue_offset, step.end_queue_offset) == (90, 95)
    (step,) = plan_repair("run", "cluster", [extra], lambda *_: "").steps
    assert step.action is RepairAction.MANUAL


def test_config_folder_that_is_gone_is_one_finding_with_a_step_for_each_table() -> None:
    names = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "users.json")
    lost = [
        found(FindingKind.METADATA_UNREADABLE, file=f"config/{name}", cause=Cause.NO_FILE, source_broker_id=0)
        for name in names
    ]
    leases = found(FindingKind.LEASES_MISSING, file="config", cause=Cause.NO_FILE)
    (whole,) = one_for_each_cause([*lost, leases])
    assert whole.files == tuple(f"config/{name}" for name in names)
    assert Finding.from_json(json.loads(json.dumps(whole.to_json()))) == whole
    steps = plan_repair("run", "cluster", [whole], lambda *_: "").steps
    assert {(step.action, step.table) for step in steps} == {(RepairAction.REWRITE_TABLE, name) for name in names}
    assert sorted(one_for_each_cause(lost[:2]), key=lambda own: own.file or "", reverse=True) == lost[:2]


def test_what_follows_from_other_messages_in_a_file_is_no_finding_of_its_own() -> None:
    """IndexFiles still lead to the messages that lay there, and the queues do not go on behind them."""
    lost = found(FindingKind.RECORD_MISSING, start_offset=100, end_offset=900, source_broker_id=0)
    entries = [found(FindingKind.INDEX_ENTRY_WRONG, file="index/1", leads_to=at) for at in (100, 500, 899)]
    behind = found(FindingKind.FIELD_DIFFERS, start_offset=1000, end_offset=1100, cause=Cause.QUEUE_OFFSET)
    more = replace(entries[0], cause=Cause.CUT_OFF)
    both = frozenset({0, 1})
    assert collate([lost], [*entries, behind, more], broker_ids=both) == [lost]
    elsewhere = replace(entries[0], leads_to=900)
    assert set(collate([lost], [*entries, elsewhere], broker_ids=both)) == {lost, elsewhere}
    assert len(collate([lost], [elsewhere, more], broker_ids=both)) == 2
    # All replicas have it: then it is not the damage of one of them that makes it seem so.
    (first, second) = collate([lost], [behind, replace(behind, broker_id=0)], broker_ids=both)
    assert {first.broker_id, second.broker_id} == {1, None}
    before = replace(behind, start_offset=10, end_offset=50)
    assert set(collate([lost], [before], broker_ids=both)) == {lost, before}


def test_one_damage_has_the_source_that_has_all_of_it_right() -> None:
    """Another replica is damaged in the middle: the whole file must not be copied from that one."""
    pieces = [
        found(FindingKind.SEGMENT_MISSING, start_offset=start, end_offset=end, source_broker_id=source)
        for start, end, source in ((0, 100, 0), (100, 200, 2), (200, 300, 0))
    ]
    inner = found(FindingKind.ZEROED, 0, start_offset=100, end_offset=200, source_broker_id=2)
    facts = {
        number: ReplicaFacts("broker-a", number, 0, 900, 300, is_running=False, queues_offset=900, index_offset=900)
        for number in range(3)
    }
    findings = collate(with_one_source([*pieces, inner], facts), [], broker_ids=frozenset(facts))
    lost = next(own for own in findings if own.broker_id == 1)
    assert (len(findings), lost.start_offset, lost.end_offset, lost.source_broker_id) == (2, 0, 300, 2)
    # Nobody has all of it.
    late = facts | {2: replace(facts[2], min_offset=100)}
    assert [own.source_broker_id for own in with_one_source([*pieces, inner], late)] == [0, 2, 0, 2]


def test_a_tail_that_is_lost_in_two_parts_is_told_with_both() -> None:
    tails = [
        found(
            FindingKind.TAIL_MISSING,
            start_offset=start,
            end_offset=start + 50,
            source_broker_id=0,
            verdict=Verdict.STORED_DIGEST,
        )
        for start in (100, 200)
    ]
    older = found(FindingKind.TABLE_OLDER, file="config/topics.json", verdict=Verdict.STORED_DIGEST)
    rest = one_for_each_cause([*tails, older])
    assert sorted((own.start_offset, own.end_offset) for own in rest) == [(100, 150), (200, 250)]
    assert sum("config/topics.json are older" in own.detail for own in rest) == 1
    assert sorted(one_for_each_cause(tails), key=lambda own: own.start_offset or 0) == tails
