"""Dispatch in batches leaves what dispatch one by one leaves, byte for byte, whatever the log holds."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, flush_all, messages_by_key, new_store
from tandemmq.core.message.properties import decode_properties, index_terms
from tandemmq.core.message.record import SCHEDULE_TOPIC, Host, OutgoingMessage, encode_record
from tandemmq.core.message.record_layout import (
    COMPRESSED,
    INNER_BATCH,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    encode_blank,
)
from tandemmq.core.storage import dispatch, record_batch
from tandemmq.core.storage.disk import RecordCorrupt
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions

FILE_BYTES: Final = 16_384
OPTIONS: Final = StoreOptions(
    commit_log_file_bytes=FILE_BYTES,
    consume_queue_file_bytes=400,
    index_slot_count=16,
    index_entry_count=60,
    dispatch_batch_bytes_min=1 << 40,
    dispatch_walk_bytes_max=0,
)
IN_BATCHES: Final = replace(OPTIONS, dispatch_batch_bytes_min=1)
HOSTS: Final = (Host.parse("192.0.2.7", 40_001), Host.parse("2001:db8::7", 40_001))


@pytest.fixture(autouse=True, params=[0, 1 << 40], ids=["queue by queue", "record by record"])
def _batches_of_any_length(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_SHORT_BATCH", 0)
    monkeypatch.setattr(record_batch, "_RUN_ROWS_MIN", request.param)


@dataclass(frozen=True)
class Message:
    """What varies between the records of a log."""

    topic: str = "topic"
    queue_id: int = 0
    body: bytes = b"body"
    properties: bytes = b"UNIQ_KEY\x0112345\x02TAGS\x01red\x02"
    sys_flag: int = 0
    born_host: Host = HOSTS[0]
    store_host: Host = HOSTS[0]
    queue_step: int = 1
    """How far the queue offset advances; 0 repeats one, more than 1 leaves a gap."""
    time_step_ms: int = 1


def raw_log(messages: list[Message], *, file_bytes: int = FILE_BYTES) -> bytes:
    """The CommitLog of a master that stored `messages`."""
    log = bytearray()
    next_offsets: dict[tuple[str, int], int] = {}
    now_ms = 1_700_000_000_000
    for message in messages:
        now_ms += message.time_step_ms
        key = (message.topic, message.queue_id)
        queue_offset = next_offsets.get(key, 0) + message.queue_step - 1
        next_offsets[key] = queue_offset + 1
        for _ in range(2):
            record = encode_record(
                OutgoingMessage(
                    topic=message.topic,
                    queue_id=message.queue_id,
                    body=message.body,
                    properties=message.properties,
                    tags_code=0,
                    index_keys=(),
                    tag=None,
                    born_timestamp_ms=now_ms,
                    born_host=message.born_host,
                    sys_flag=message.sys_flag,
                ),
                queue_offset=max(0, queue_offset),
                physical_offset=len(log),
                store_timestamp_ms=now_ms,
                store_host=message.store_host,
            )
            left = file_bytes - len(log) % file_bytes
            if len(record) + 8 <= left:
                break
            log += encode_blank(left) + b"\xee" * (left - 8)
        log += record
    return bytes(log)


def replicated(
    log: bytes, options: StoreOptions, chunk_bytes: list[int], *, check: bool = False
) -> tuple[dict[str, bytes], object]:
    """Feeds `log` in chunks to a fresh store. What its derived files hold, and where and why dispatch ended."""
    disk = SimulatedDisk(random.Random(1))
    store = new_store(disk, ManualClock(), options)
    store.load()
    store.set_writable(False, "a slave")
    problem: object = None
    chunks = iter(chunk_bytes)
    while store.end_offset < len(log) and problem is None:
        start = store.end_offset
        file_left = options.commit_log_file_bytes - start % options.commit_log_file_bytes
        store.append_raw(start, log[start : start + min(next(chunks, 1 << 30), file_left)])
        checked_problem = checked(store) if check else None
        checked_offset = store.checked_offset
        try:
            while store.dispatch():
                pass
        except RecordCorrupt as error:
            problem = (error.offset, str(error))
        if check:
            assert (checked_offset, checked_problem) == (store.dispatched_offset, problem)
    ended = (store.dispatched_offset, problem, queue_ends(store))
    flush_all(store)
    # Not where queues end: that is written down in the order in which they were made.
    folders = ("consumequeue/", "index/")
    derived = {path: disk.read_file(path) or b"" for path in disk.paths() if path.startswith(folders)}
    return derived, ended


def checked(store: MessageStore) -> object:
    """Checks all that was appended, some records at a time; why it went no further, None at a half record."""
    try:
        before = -1
        while before < store.checked_offset:
            before = store.checked_offset
            store.check_appended(max_bytes=700)
    except RecordCorrupt as error:
        return (error.offset, str(error))
    return None


def queue_ends(store: MessageStore) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Each queue's extent and the end of its last record."""
    return {
        (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset, queue.last_physical_end)
        for queue in store.queues
    }


def assert_same(log: bytes, chunk_bytes: list[int] | None = None, *, options: StoreOptions = OPTIONS) -> None:
    alone = replicated(log, options, chunk_bytes or [])
    batches = replicated(log, replace(options, dispatch_batch_bytes_min=1), chunk_bytes or [])
    assert batches[1] == alone[1]
    assert batches[0] == alone[0]
    walked = replicated(log, replace(options, dispatch_walk_bytes_max=1 << 40), chunk_bytes or [])
    assert walked[1] == alone[1]
    assert walked[0] == alone[0]
    # What was checked before is walked faster, to the same end.
    again = replicated(log, replace(options, dispatch_walk_bytes_max=1 << 40), chunk_bytes or [], check=True)
    assert again[1] == alone[1]
    assert again[0] == alone[0]


words = st.text(st.sampled_from("abXY019-_ é漢𝄞"), max_size=12)
names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "TAG", "KEYSS", "é", "", "__BORNHOST"])
motley_properties = st.lists(st.tuples(names, words), max_size=5).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
)
odd_properties = st.sampled_from(
    [
        b"",
        b"TAGS\x01red",
        b"TAGS\x01red\x02TAGS\x01blue\x02",
        b"TAGS\x01re\x01d\x02",
        b"KEYS\x01a  b \x02",
        b"KEYS\x01a\x00b\x02",
        b"UNIQ_KEY\x01\xff\xfe\x02TAGS\x01\xe9\x02",
        b"\x02\x02\x01",
        b"UNIQ_KEY\x01" + b"k" * 300 + b"\x02",
    ]
)
usual_properties = st.tuples(st.integers(0, 10**8), st.sampled_from(["red", "blue", "a long tag"])).map(
    lambda drawn: (
        f"UNIQ_KEY\x017F0000010A2B{drawn[0]:020d}\x02KEYS\x01k{drawn[0]}\x02WAIT\x01true\x02TAGS\x01{drawn[1]}\x02".encode()
    )
)
messages = st.builds(
    Message,
    topic=st.sampled_from(["topic", "topic", "other", "é漢", "t" * 127, "v" * 200, SCHEDULE_TOPIC]),
    queue_id=st.sampled_from([0, 0, 1, 7]),
    body=st.one_of(st.just(b"b" * 100), st.binary(max_size=600)),
    properties=st.one_of(usual_properties, usual_properties, motley_properties, odd_properties),
    sys_flag=st.sampled_from(
        [0] * 8 + [COMPRESSED, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_MASK, INNER_BATCH]
    ),
    born_host=st.sampled_from([HOSTS[0]] * 6 + [HOSTS[1]]),
    store_host=st.sampled_from([HOSTS[0]] * 6 + [HOSTS[1]]),
    queue_step=st.sampled_from([1] * 12 + [0, 2, 5]),
    time_step_ms=st.sampled_from([0, 1, 700, 5_000]),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(messages, min_size=1, max_size=80), st.lists(st.integers(1, 9_000), max_size=20))
def test_any_log_in_any_chunks(log_messages: list[Message], chunk_bytes: list[int]) -> None:
    assert_same(raw_log(log_messages), chunk_bytes)


def damage(data: st.DataObject, log: bytearray, *, most: int) -> None:
    """Changes some bytes, but not those that make a queue offset or a time huge: nobody waits until such a gap is
    filled, and no IndexFile is named after the year 10000."""
    huge = set()
    position = 0
    while position < len(log):
        huge |= {*range(position + 20, position + 27), *range(position + 56, position + 76)}
        position += int.from_bytes(log[position : position + 4], "big")
    for position in data.draw(st.lists(st.integers(0, len(log) - 1), max_size=most)):
        if position not in huge:
            log[position] = data.draw(st.integers(0, 255))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_log_ends_at_the_same_record_for_the_same_reason(data: st.DataObject) -> None:
    log = bytearray(raw_log(data.draw(st.lists(messages, min_size=1, max_size=30))))
    damage(data, log, most=3)
    assert_same(bytes(log))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 300), st.booleans())
def test_many_usual_records(seed: int, count: int, equal_sizes: bool) -> None:
    chance = random.Random(seed)
    tags = chance.choice([1, 3, 30])
    log = raw_log(
        [
            Message(
                topic=f"topic-{chance.randrange(3)}",
                queue_id=chance.randrange(4),
                body=b"x" * (64 if equal_sizes else chance.randrange(200)),
                properties=f"UNIQ_KEY\x01{number:032X}\x02TAGS\x01tag{chance.randrange(tags):02}\x02".encode(),
                time_step_ms=chance.randrange(300),
            )
            for number in range(count)
        ]
    )
    assert_same(
        log,
        options=replace(
            OPTIONS, index_slot_count=chance.choice([3, 50]), index_entry_count=chance.choice([7, 80, 10_000])
        ),
    )


@pytest.mark.parametrize("damaged", [0, 1, 20, 39])
@pytest.mark.parametrize("body_bytes", [100, 2100])
def test_a_damaged_body_among_equal_records(damaged: int, body_bytes: int) -> None:
    log = bytearray(raw_log([Message(body=b"b" * body_bytes)] * 40))
    position = 0
    for _ in range(damaged):
        position += int.from_bytes(log[position : position + 4], "big")
    log[position + 88 + body_bytes - 1] ^= 1
    assert_same(bytes(log))


@pytest.mark.parametrize("damaged", [None, 60_000, 150_000, 300_000])
def test_records_across_and_beyond_the_pieces_of_a_walk(damaged: int | None) -> None:
    chance = random.Random(5)
    sizes = [*(chance.randrange(3_000) for _ in range(120)), 70_000, 5, 200_000, 3, 64 << 10, 9]
    log = bytearray(
        raw_log(
            [
                Message(body=bytes(size), properties=f"UNIQ_KEY\x01{number:032X}\x02".encode())
                for number, size in enumerate(sizes)
            ],
            file_bytes=1 << 20,
        )
    )
    if damaged is not None:
        log[damaged] ^= 1
    assert_same(bytes(log), options=replace(OPTIONS, commit_log_file_bytes=1 << 20))


def recovered(log: bytes, options: StoreOptions) -> tuple[dict[str, bytes], object]:
    """Starts a store on the files of `log`. What it derived, and what it says of it."""
    disk = SimulatedDisk(random.Random(1))
    for start in range(0, len(log), FILE_BYTES):
        segment = disk.map_segment(f"commitlog/{start:020d}", FILE_BYTES, create=True)
        piece = log[start : start + FILE_BYTES]
        segment.view[: len(piece)] = piece
        segment.sync()
    store = new_store(disk, ManualClock(), options)
    report = store.load()
    ended = (report, store.end_offset, store.checkpoint, queue_ends(store))
    flush_all(store)
    # Not where queues end: that is written down in the order in which they were made.
    folders = ("consumequeue/", "index/")
    derived = {path: disk.read_file(path) or b"" for path in disk.paths() if path.startswith(folders)}
    return derived, ended


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_recovery_of_a_damaged_log(data: st.DataObject) -> None:
    log = bytearray(raw_log(data.draw(st.lists(messages, min_size=1, max_size=40))))
    damage(data, log, most=2)
    assert recovered(bytes(log), IN_BATCHES) == recovered(bytes(log), OPTIONS)


def test_recovery_up_to_a_record_with_zeros_gives_none_the_terms_of_one_behind_it() -> None:
    named = b"UNIQ_KEY\x017F00\x02KEYS\x01k0\x02"
    log = raw_log([Message(properties=properties) for properties in (named, named, b"", b"KEYS\x01a\0b\x02", named)])
    assert recovered(log, IN_BATCHES) == recovered(log, OPTIONS)


def test_terms_are_found() -> None:
    """The property string of a usual record is read right, not only read the same way twice."""
    disk = SimulatedDisk(random.Random(1))
    store = new_store(disk, ManualClock(), IN_BATCHES)
    store.load()
    store.set_writable(False, "a slave")
    properties = b"UNIQ_KEY\x01the-id\x02KEYS\x01one two\x02TAGS\x01red\x02"
    log = raw_log([Message(properties=properties)] * 20)
    store.append_raw(0, log)
    assert store.dispatch() == 20
    assert index_terms(decode_properties(properties)) == ("red", ("the-id", "one", "two"))
    for key in ("the-id", "one", "two"):
        assert len(messages_by_key(store, "topic", key, begin_ms=0, end_ms=1 << 60)) == 20
    queue = store.consume_queue("topic", 0)
    assert queue is not None
    assert [entry.tags_code for entry in queue.read(0, 20)] == [112_785] * 20  # "red".hashCode()
