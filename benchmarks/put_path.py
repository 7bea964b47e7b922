"""What one `MessageStore.put` costs in CPU, whole and step by step: 1 KiB body, unique id, a key and a tag, indexed.

    make bench-put                                  # build/bench-put.json
    python benchmarks/put_path.py --puts 400000 --folder /mnt/disk/put-path

`put` and `put_batch` are the mean over all puts of a round, median of the rounds: user and system time of the process,
so with the page faults of fresh pages, and with what is put off (entering 512 records into the index at once). Messages
are made in chunks beforehand: they are as warm as what a request was just parsed into. A step is the best twentieth of
its rounds, on hot data; steps need not add up to the whole. A machine that others use makes the former dearer, the
latter hardly.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.core.message.properties import encode_properties, tags_code
from tandemmq.core.message.record import Host, OutgoingMessage, RecordEncoder
from tandemmq.core.message.record_layout import crc32
from tandemmq.core.storage.commit_log import CommitLog
from tandemmq.core.storage.consume_queue_table import ConsumeQueueTable
from tandemmq.core.storage.index_table import IndexTable
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.service.event_loop import SystemClock

ROOT: Final = Path(__file__).resolve().parent.parent
TOPIC: Final = "bench-topic"
QUEUES: Final = 8
BATCH: Final = 32
CHUNK: Final = 256
"""Messages made, then put; small enough for the processor's caches."""
BODY: Final = os.urandom(1024)
BORN_HOST: Final = Host.parse("10.0.0.2", 40_000)
STORE_HOST: Final = Host.parse("10.0.0.1", 10_911)
NOW_MS: Final = 1_700_000_000_000
STEP_ROUNDS: Final = 400
PUT_TARGET_US: Final = 7.0
BATCH_TARGET_US: Final = 5.0


def message(number: int) -> OutgoingMessage:
    """As the client API makes one: the properties an official client and the broker set."""
    unique_key = f"0102420AC11002{4711:04X}{123456789:08X}{number:08X}"
    key = f"order-{number:08d}"
    properties = encode_properties(
        [
            ("UNIQ_KEY", unique_key),
            ("KEYS", key),
            ("TAGS", "TagA"),
            ("WAIT", "true"),
            ("CLUSTER", "DefaultCluster"),
            ("MSG_REGION", "DefaultRegion"),
            ("TRACE_ON", "true"),
        ]
    )
    return OutgoingMessage(
        TOPIC,
        number % QUEUES,
        BODY,
        properties,
        tags_code("TagA"),
        (unique_key, key),
        "TagA",
        NOW_MS + number,
        BORN_HOST,
    )


def put_singly(store: MessageStore, messages: list[OutgoingMessage]) -> None:
    put = store.put
    for outgoing in messages:
        put(outgoing)


def put_in_batches(store: MessageStore, messages: list[OutgoingMessage]) -> None:
    for start in range(0, len(messages), BATCH):
        store.put_batch(messages[start : start + BATCH])


def mean_cpu_us(folder: Path, put: Callable[[MessageStore, list[OutgoingMessage]], None], *, count: int) -> float:
    """CPU of a message over `count` of them, in a fresh store whose first files are there."""
    shutil.rmtree(folder, ignore_errors=True)
    store = MessageStore(PosixDisk(folder), SystemClock(), StoreOptions(), store_host=STORE_HOST)
    store.load()
    put(store, [message(number) for number in range(CHUNK)])
    cpu = 0.0
    done = 0
    while done < count:
        messages = [message(number) for number in range(done, done + CHUNK)]
        started = time.process_time()
        put(store, messages)
        cpu += time.process_time() - started
        done += CHUNK
    store.close()
    shutil.rmtree(folder)
    return cpu / done * 1e6


def hot_us(step: Callable[[], object], *, per: int = CHUNK) -> float:
    """Time of one of `per` repetitions in `step`, in the best twentieth of the rounds."""
    times = []
    for _ in range(STEP_ROUNDS):
        started = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - started)
    times.sort()
    return times[len(times) // 20] / per / 1e3


def step_costs(folder: Path) -> dict[str, float]:
    """What each step of a put takes, µs."""
    shutil.rmtree(folder, ignore_errors=True)
    disk = PosixDisk(folder)
    options = StoreOptions()
    log = CommitLog(disk, file_bytes=options.commit_log_file_bytes)
    log.load()
    log.set_end(0)
    log.roll()
    queues = ConsumeQueueTable(disk, file_bytes=options.consume_queue_file_bytes)
    queue = queues.get_or_create(TOPIC, 0)
    index = IndexTable(disk, slot_count=options.index_slot_count, entry_count=options.index_entry_count)
    messages = [message(number) for number in range(CHUNK)]
    encode = RecordEncoder(STORE_HOST).encode
    record = encode(messages[0], 0, 0, NOW_MS)
    wall_ms = SystemClock().wall_ms
    put_ok = PutStatus.PUT_OK

    def encode_records() -> None:
        for outgoing in messages:
            encode(outgoing, 0, 0, NOW_MS)

    def append_to_log() -> None:
        for _ in messages:
            log.append(record)

    def append_to_queue() -> None:
        for _ in messages:
            queue.append(queue.max_offset, queue.last_physical_end, len(record), 5)

    def index_late() -> None:
        for outgoing in messages:
            index.put_later(TOPIC, outgoing.index_keys, outgoing.tag, 0, NOW_MS)

    def index_at_once() -> None:
        for outgoing in messages:
            index.put(TOPIC, outgoing.index_keys, outgoing.tag, 0, NOW_MS, NOW_MS)

    costs = {
        "message": hot_us(lambda: [message_of(outgoing) for outgoing in messages]),
        "crc": hot_us(lambda: [crc32(BODY) for _ in messages]),
        "encode": hot_us(encode_records),
        "log_append": hot_us(append_to_log),
        "queue_append": hot_us(append_to_queue),
        "wall_clock": hot_us(lambda: [wall_ms() for _ in messages]),
        "result": hot_us(lambda: [AppendResult(put_ok, 0, 1, 2, NOW_MS) for _ in messages]),
        "index_one_by_one": hot_us(index_at_once),
    }
    index.load_columns()

    def index_512() -> None:
        index_late()
        index_late()
        index.enter_waiting()

    costs["index"] = hot_us(index_512, per=2 * CHUNK)
    log.close()
    queues.close()
    shutil.rmtree(folder)
    return costs


def message_of(outgoing: OutgoingMessage) -> OutgoingMessage:
    """A message from values that are at hand."""
    return OutgoingMessage(
        outgoing.topic,
        outgoing.queue_id,
        outgoing.body,
        outgoing.properties,
        outgoing.tags_code,
        outgoing.index_keys,
        outgoing.tag,
        outgoing.born_timestamp_ms,
        outgoing.born_host,
    )


def row(name: str, value: float, *, target: float | None = None) -> dict[str, object]:
    """One line of build/bench-put.json."""
    return {
        "name": name,
        "value": round(value, 3),
        "unit": "us/msg",
        "target": target,
        "holds": target is None or value <= target,
    }


def main() -> int:
    """Measures, prints and writes build/bench-put.json; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--puts", type=int, default=200_000, help="messages of a round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of puts; the median counts")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench-put", help="where the stores are made")
    arguments = parser.parse_args()
    gc.disable()  # A broker freezes what it has after its start; here 256 messages at a time are made and dropped.
    whole: dict[str, list[float]] = {"put": [], "put_batch_32": []}
    for _ in range(arguments.rounds):  # In turns, so that a noisy moment meets both.
        whole["put"].append(mean_cpu_us(arguments.folder, put_singly, count=arguments.puts))
        whole["put_batch_32"].append(mean_cpu_us(arguments.folder, put_in_batches, count=arguments.puts))
    rows = [
        row("put_cpu", statistics.median(whole["put"]), target=PUT_TARGET_US),
        row("put_batch_cpu", statistics.median(whole["put_batch_32"]), target=BATCH_TARGET_US),
        row("put_cpu_best_round", min(whole["put"])),
        row("put_batch_cpu_best_round", min(whole["put_batch_32"])),
        *(row(f"put_step_{name}", value) for name, value in step_costs(arguments.folder).items()),
    ]
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "bench-put.json").write_text(json.dumps(rows, indent=2) + "\n")
    for entry in rows:
        target = "" if entry["target"] is None else f"   target {entry['target']}: {entry['holds']}"
        print(f"  {entry['name']:<28} {entry['value']:>8} {entry['unit']}{target}")
    return 0 if all(entry["holds"] for entry in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
