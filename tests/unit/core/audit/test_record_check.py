"""What one replica's check tells: gaps in queues, and what goes over a wire."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.audit_stores import AUDIT_OPTIONS, copy_group, open_store
from support.messages import STORE_HOST, changed, outgoing_message
from support.replica_folders import open_replica
from support.stores import ManualClock
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.core.audit.findings import FindingKind
from tandemmq.core.audit.queue_check import QueueSpan, seam_gaps
from tandemmq.core.audit.record_check import RecordCheck, check_records
from tandemmq.core.message.properties import encode_properties
from tandemmq.core.message.record import SCHEDULE_TOPIC
from tandemmq.core.message.record_layout import INNER_BATCH, NEED_UNWRAP
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.storage.message_store import MessageStore


def log_with_gap(folder: Path) -> int:
    """Five messages of one queue, the third of which was never stored; returns where the fourth lies."""
    store = open_store(folder, ManualClock())
    offsets = [store.put(outgoing_message(body=bytes(50))).physical_offset for _ in range(5)]
    store.close()
    path = folder / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    size = offsets[1] - offsets[0]
    for number in (2, 3):
        data[offsets[number] + 20 : offsets[number] + 28] = (number + 1).to_bytes(8, "big")
    data[offsets[4] : offsets[4] + size] = bytes(size)
    path.write_bytes(data)
    entries = folder / "consumequeue" / "topic" / "0" / f"{0:020d}"
    held = bytearray(entries.read_bytes())
    filler = offsets[2].to_bytes(8, "big") + (0x7FFF_FFFF).to_bytes(4, "big") + bytes(8)
    held[40:100] = filler + bytes(held[40:80])
    entries.write_bytes(held)
    return offsets[2]


def test_gap_in_a_queue_is_found(tmp_path: Path) -> None:
    following = log_with_gap(tmp_path)
    store = open_replica(tmp_path)
    findings = check_records(store, 0, store.facts.end_offset).findings
    (gap,) = [finding for finding in findings if finding.kind is FindingKind.QUEUE_GAP]
    assert (gap.topic, gap.queue_id, gap.queue_offset, gap.messages) == ("topic", 0, 2, 1)
    assert gap.end_offset == following


def test_gap_between_parts_is_found_by_their_seam(tmp_path: Path) -> None:
    following = log_with_gap(tmp_path)
    store = open_replica(tmp_path)
    parts = [check_records(store, 0, following), check_records(store, following, store.facts.end_offset)]
    assert not [finding for part in parts for finding in part.findings if finding.kind is FindingKind.QUEUE_GAP]
    spans = [part.queue_spans for part in parts]
    (gap,) = seam_gaps("broker-a", 0, spans, damaged=[])
    assert (gap.queue_offset, gap.messages) == (2, 1)
    assert not seam_gaps("broker-a", 0, spans, damaged=[LogRange(following - 10, following)])


def test_topic_made_again_is_no_gap() -> None:
    spans = [[QueueSpan("topic", 0, 0, 100, 0, 5000)], [QueueSpan("topic", 0, 0, 3, 6000, 7000)]]
    assert not seam_gaps("broker-a", 0, spans, damaged=[])


def test_gap_is_not_told_across_damage(equal_group: list[Path], tmp_path: Path) -> None:
    (folder,) = copy_group(equal_group[:1], tmp_path)
    path = folder / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[50_000:90_000] = bytes(40_000)
    path.write_bytes(data)
    store = open_replica(folder)
    findings = check_records(store, 0, store.facts.end_offset).findings
    assert [finding.kind for finding in findings] == [FindingKind.ZEROED]


def test_queues_and_index_may_be_left_out(equal_group: list[Path], tmp_path: Path) -> None:
    (folder,) = copy_group(equal_group[:1], tmp_path)
    for part in ("consumequeue", "index"):
        for path in (folder / part).rglob("0*" if part == "consumequeue" else "2*"):
            if path.is_file():
                data = path.read_bytes()
                path.write_bytes(data[:200] + bytes(200) + data[400:])
    store = open_replica(folder)
    end = store.facts.end_offset
    assert check_records(store, 0, end).findings
    assert not check_records(store, 0, end, with_queues=False, with_index=False).findings


def test_check_goes_over_a_wire(equal_group: list[Path], tmp_path: Path) -> None:
    (folder,) = copy_group(equal_group[:1], tmp_path)
    path = folder / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:1000] + b"x" * 50 + path.read_bytes()[1050:])
    store = open_replica(folder)
    result = check_records(store, 0, store.facts.end_offset)
    assert result.findings
    assert RecordCheck.from_json(result.to_json()) == result


def test_delayed_messages_of_another_level_table(tmp_path: Path) -> None:
    """The tags code of a delayed message is its due time by the broker's own table."""
    options = replace(AUDIT_OPTIONS, delay_levels_ms=(7_000, 77_000))
    store = MessageStore(PosixDisk(tmp_path), ManualClock(), options, store_host=STORE_HOST)
    store.load()
    for level in (1, 2, 2):
        message = changed(
            outgoing_message(topic=SCHEDULE_TOPIC, queue_id=level - 1),
            properties=encode_properties([("DELAY", str(level))]),
        )
        store.put(message)
    store.close()
    replica = open_replica(tmp_path)
    assert not check_records(replica, 0, replica.facts.end_offset).findings


def test_count_of_an_inner_batch_without_end_is_none(tmp_path: Path) -> None:
    store = open_store(tmp_path, ManualClock())
    properties = encode_properties([("INNER_NUM", "9" * 40), ("INNER_BASE", "0")])
    store.put(changed(outgoing_message(), properties=properties, sys_flag=INNER_BATCH | NEED_UNWRAP))
    store.close()
    replica = open_replica(tmp_path)

    (span,) = check_records(replica, 0, replica.facts.end_offset).queue_spans

    assert span.next_queue_offset == 1


@pytest.mark.parametrize("zeros", [1, 2, 3, 7, 20, 60])
def test_zeros_that_begin_in_a_record_s_properties_are_one_finding_with_it(tmp_path: Path, zeros: int) -> None:
    store = open_store(tmp_path, ManualClock())
    keys = [(f"id-{number}", f"order-{number}", "of-the-day") for number in range(9)]
    offsets = [store.put(outgoing_message(body=b"b" * 700, keys=key, tag="new")).physical_offset for key in keys]
    store.close()
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(offsets[4] - zeros)
        log.write(bytes(offsets[7] - offsets[4] + zeros))
    replica = open_replica(tmp_path)
    (finding,) = check_records(replica, 0, replica.facts.end_offset).findings
    assert (finding.kind, finding.start_offset, finding.end_offset) == (FindingKind.ZEROED, offsets[3], offsets[7])
