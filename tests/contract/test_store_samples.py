"""Reads and writes a store as RocketMQ 5.5.0 left it, byte for byte."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from support import store_samples as samples
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, log_bytes
from tandemmq.core.message.properties import (
    decode_properties,
    encode_properties,
    index_terms,
    java_map_order,
    tags_code,
)
from tandemmq.core.message.record import (
    Blank,
    MessageRecord,
    RecordFound,
    ScanStop,
    decode_record,
    encode_record,
    record_tags_code,
    scan_record,
)
from tandemmq.core.message.record_layout import encode_blank, enters_consume_queue, enters_index
from tandemmq.core.storage.consume_queue_table import ConsumeQueueTable, StopKind
from tandemmq.core.storage.flush_jobs import StoreCheckpoint
from tandemmq.core.storage.index_table import IndexTable
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.put_result import PutStatus

OPTIONS = StoreOptions(
    commit_log_file_bytes=samples.COMMIT_LOG_FILE_BYTES,
    consume_queue_file_bytes=samples.CONSUME_QUEUE_FILE_BYTES,
    index_slot_count=samples.INDEX_SLOT_COUNT,
    index_entry_count=samples.INDEX_ENTRY_COUNT,
)
DELAY_LEVELS_MS = StoreOptions().delay_levels_ms


def records() -> Iterator[MessageRecord]:
    """Every record of the sample's CommitLog, found by walking it."""
    for name, content in samples.commit_log_files().items():
        position = 0
        while isinstance(
            found := scan_record(content, position, len(content), physical_offset=int(name) + position), RecordFound
        ):
            yield decode_record(content, position)
            position += found.size


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(0))


def disk_with_samples() -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(0))
    for path in samples.STORE.rglob("*"):
        if path.is_file():
            disk.write_file(str(path.relative_to(samples.STORE)), path.read_bytes())
    return disk


# Reading


def test_scan_and_decode_agree_with_java_on_every_record_the_blank_and_the_end() -> None:
    files = samples.commit_log_files()
    expected_position = dict.fromkeys(files, 0)
    for line in samples.decoded_lines():
        fields = line.fields
        content = memoryview(files[fields["file"]])
        position = fields["pos"]
        assert position == expected_position[fields["file"]]
        physical_offset = int(fields["file"]) + position
        found = scan_record(content, position, len(content), physical_offset=physical_offset)
        if line.is_end:
            assert found is ScanStop.END_OF_DATA
        elif line.is_blank:
            assert found == Blank(fields["size"])
            assert position + fields["size"] == len(content)
        else:
            assert isinstance(found, RecordFound)
            assert_equal_to_java(decode_record(content, position), fields)
            assert_agrees(found, decode_record(content, position))
            expected_position[fields["file"]] += found.size


def assert_equal_to_java(record: MessageRecord, fields: dict[str, object]) -> None:
    properties = decode_properties(record.properties)
    tag, _ = index_terms(properties)
    assert {
        "size": record.total_size,
        "magic": f"{record.magic:08x}",
        "body_crc": record.body_crc,
        "queue_id": record.queue_id,
        "flag": record.flag,
        "queue_offset": record.queue_offset,
        "decoded_phys": record.physical_offset,
        "phys": record.physical_offset,
        "sys_flag": record.sys_flag,
        "born_ts": record.born_timestamp_ms,
        "born_host": f"/{record.born_host}",
        "store_ts": record.store_timestamp_ms,
        "store_host": f"/{record.store_host}",
        "reconsume": record.reconsume_times,
        "prepared_tx_offset": record.prepared_transaction_offset,
        "body_len": len(record.body),
        "topic": record.topic,
        "props": properties,
    } == {name: value for name, value in fields.items() if name not in ("file", "pos", "tags_hash")}
    assert fields["tags_hash"] == (tags_code(tag) if tag else None)


def assert_agrees(found: RecordFound, record: MessageRecord) -> None:
    assert found == RecordFound(
        size=record.total_size,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        sys_flag=record.sys_flag,
        store_timestamp_ms=record.store_timestamp_ms,
        topic=record.topic,
        properties=record.properties,
    )


def test_consume_queues_hold_what_java_reads_in_them() -> None:
    table = ConsumeQueueTable(disk_with_samples(), file_bytes=samples.CONSUME_QUEUE_FILE_BYTES)
    table.load(StopKind.CLEAN, durable_offset=318_520)
    found = {
        (queue.topic, queue.queue_id): [tuple(entry) for entry in queue.read(0, queue.max_offset)] for queue in table
    }
    assert found == java_consume_queues()


def java_consume_queues() -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for line in (samples.SAMPLES / "consumequeue-decoded.txt").read_text().splitlines():
        if line.startswith("#"):
            _, _, topic, queue_id, _ = (
                line.split(" ")[1].removeprefix("store/").replace("consumequeue/", "x/y/").split("/")
            )
            entries = queues.setdefault((topic, int(queue_id)), [])
        else:
            _, physical_offset, size, code = map(int, line.split())
            entries.append((physical_offset, size, code))
    return queues


def test_every_key_and_tag_is_found_in_javas_index() -> None:
    table = IndexTable(disk_with_samples(), slot_count=samples.INDEX_SLOT_COUNT, entry_count=samples.INDEX_ENTRY_COUNT)
    assert table.load(StopKind.CLEAN, durable_timestamp_ms=0) is None
    for record in records():
        tag, keys = index_terms(decode_properties(record.properties))
        within = {
            "begin_ms": record.store_timestamp_ms,
            "end_ms": record.store_timestamp_ms,
            "max_count": 1000,
        }
        for key in keys:
            assert record.physical_offset in table.query(record.topic, key, **within)
        if tag:
            assert record.physical_offset in table.query_tag(record.topic, tag, **within)


def test_checkpoint_reads_as_java_reads_it() -> None:
    values = [int(word) for word in (samples.SAMPLES / "checkpoint-decoded.txt").read_text().split()]
    checkpoint = StoreCheckpoint.load(disk_with_samples())
    assert checkpoint == StoreCheckpoint(
        physic_message_timestamp_ms=values[0],
        logics_message_timestamp_ms=values[1],
        index_message_timestamp_ms=values[2],
        master_flushed_offset=values[3],
        confirm_physical_offset=values[4],
        logics_physical_offset=values[5],
    )


# Writing


def test_property_strings_are_written_back_in_javas_bytes_and_order() -> None:
    for record in records():
        properties = decode_properties(record.properties)
        assert encode_properties(properties.items()) == record.properties
        # 128 buckets where the broker rebuilt the string, 16 in members of client batches and transaction markers.
        assert list(properties) in (
            java_map_order(properties, capacity=128),
            java_map_order(properties, capacity=16),
        )


def test_commit_log_files_are_written_byte_for_byte() -> None:
    written = bytearray()
    file_bytes = samples.COMMIT_LOG_FILE_BYTES
    for record in records():
        message = samples.outgoing(record)
        rest = file_bytes - len(written) % file_bytes
        if record.total_size + 8 > rest:
            written += encode_blank(rest)
            # What follows the head of a blank has no meaning; Java leaves the zeros of the new file.
            written += bytes(rest - 8)
        written += encode_record(
            message,
            queue_offset=record.queue_offset,
            physical_offset=len(written),
            store_timestamp_ms=record.store_timestamp_ms,
            store_host=record.store_host,
        )
    written += bytes(-len(written) % file_bytes)
    assert written == b"".join(samples.commit_log_files().values())


def test_consume_queue_files_are_written_byte_for_byte(disk: SimulatedDisk) -> None:
    table = ConsumeQueueTable(disk, file_bytes=samples.CONSUME_QUEUE_FILE_BYTES)
    for record in records():
        if enters_consume_queue(record.sys_flag):
            code = record_tags_code(
                record.topic,
                decode_properties(record.properties),
                store_timestamp_ms=record.store_timestamp_ms,
                delay_levels_ms=DELAY_LEVELS_MS,
            )
            queue = table.get_or_create(record.topic, record.queue_id)
            queue.append(record.queue_offset, record.physical_offset, record.total_size, code)
    table.write_out()
    assert {path: disk.read_file(path) for path in disk.paths()} == samples.consume_queue_files()


def test_index_file_is_written_byte_for_byte(disk: SimulatedDisk) -> None:
    path, content = samples.index_file()
    table = IndexTable(disk, slot_count=samples.INDEX_SLOT_COUNT, entry_count=samples.INDEX_ENTRY_COUNT)
    for record in records():
        if enters_index(record.sys_flag):
            tag, keys = index_terms(decode_properties(record.properties))
            table.put(
                topic=record.topic,
                keys=keys,
                tag=tag,
                physical_offset=record.physical_offset,
                store_timestamp_ms=record.store_timestamp_ms,
                wall_ms=1_795_259_956_090,
            )
    assert {path: disk.read_file(path) for path in disk.paths()} == {path: content}


def test_checkpoint_is_written_byte_for_byte(disk: SimulatedDisk) -> None:
    StoreCheckpoint.load(disk_with_samples()).save(disk)
    assert disk.read_file("checkpoint") == (samples.STORE / "checkpoint").read_bytes()


def test_a_store_that_is_sent_the_same_messages_writes_the_same_files(disk: SimulatedDisk) -> None:
    clock = ManualClock()
    store = MessageStore(disk, clock, OPTIONS, store_host=samples.STORE_HOST)
    store.load()
    for record in records():
        clock.now_ms = record.store_timestamp_ms
        result = store.put(samples.outgoing(record))
        assert result.status is PutStatus.PUT_OK
        assert (result.physical_offset, result.queue_offset) == (record.physical_offset, record.queue_offset)
    store.close()
    assert_files_are_javas(disk)


@pytest.mark.parametrize("chunk_bytes", [1000, 32_768])
def test_a_slave_that_is_sent_the_log_derives_the_same_files(disk: SimulatedDisk, chunk_bytes: int) -> None:
    store = MessageStore(disk, ManualClock(), OPTIONS, store_host=samples.STORE_HOST)
    store.load()
    log = b"".join(samples.commit_log_files().values())[: samples.END_OFFSET]
    while store.end_offset < len(log):
        file_left = samples.COMMIT_LOG_FILE_BYTES - store.end_offset % samples.COMMIT_LOG_FILE_BYTES
        store.append_raw(store.end_offset, log[store.end_offset :][: min(chunk_bytes, file_left)])
        store.dispatch()
    assert store.dispatched_offset == samples.END_OFFSET
    store.close()
    assert_files_are_javas(disk)


def assert_files_are_javas(disk: SimulatedDisk) -> None:
    """CommitLog, ConsumeQueues and IndexFile, byte for byte and no file more."""
    expected = {f"commitlog/{name}": content for name, content in samples.commit_log_files().items()}
    expected |= samples.consume_queue_files()
    written = {path: disk.read_file(path) for path in disk.paths()}
    assert {path: written[path] for path in written if path.startswith(("commitlog/", "consumequeue/"))} == expected
    # Java made its IndexFile 10 ms after the first record was stored, and named it so.
    (index_path,) = [path for path in written if path.startswith("index/")]
    assert written[index_path] == samples.index_file()[1]


def test_a_store_goes_on_where_java_stopped() -> None:
    disk = disk_with_samples()
    store = MessageStore(disk, ManualClock(now_ms=1_800_000_000_000), OPTIONS, store_host=samples.STORE_HOST)
    report = store.load()
    assert report.end_offset == store.end_offset == samples.END_OFFSET
    assert {(queue.topic, queue.queue_id): queue.max_offset for queue in store.queues} == {
        key: len(entries) for key, entries in java_consume_queues().items()
    }
    record = next(records())
    result = store.put(samples.outgoing(record))
    assert (result.physical_offset, result.queue_offset) == (
        samples.END_OFFSET,
        len(java_consume_queues()["sample", 0]),
    )
    assert store.message_at(samples.END_OFFSET).body == record.body
    assert log_bytes(store)[: samples.END_OFFSET] == b"".join(samples.commit_log_files().values())[: samples.END_OFFSET]
