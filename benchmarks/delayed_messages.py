"""What a million delayed messages cost that wait: memory, a start, lateness, and the delivery of one.

    python benchmarks/delayed_messages.py [--waiting 1000000] [--seconds 20] [--body-bytes 300]

A store on disk, the queue that follows it and the loop that delivers, in one process without sockets and slaves; times
are of its processor unless they say otherwise. `make compiled` and PYTHONPATH=build/compiled for what images run.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tandemmq.broker.delayed_messages import DelayedMessages, timer_message
from tandemmq.broker.message_timers import MessageTimers
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.broker.put import PutAnswer, PutDone, answer_of
from tandemmq.broker.queries.stored_records import CommitLogPages
from tandemmq.broker.queue_reader import StoreQueueReader
from tandemmq.core.delivery.timer_queue import TimerQueue
from tandemmq.core.message.properties import encode_properties
from tandemmq.core.message.record import Host, OutgoingMessage
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.rpc import Call

HOST = Host.parse("127.0.0.1", 10_911)
BATCH = 500
CLOCK = SystemClock()


class Broker:
    """As much of one as delivers."""

    def __init__(self, folder: Path) -> None:
        self.disk = PosixDisk(folder)
        options = StoreOptions(index_enabled=False, commit_log_file_bytes=1 << 28)
        self.store = MessageStore(self.disk, CLOCK, options, store_host=HOST)
        self.store.load()
        self.timers = MessageTimers(
            store=self.store,
            reader=StoreQueueReader(self.store),
            disk=self.disk,
            pages=CommitLogPages(folder / "commitlog", file_bytes=self.store.segment_bytes),
            clock=CLOCK,
            store_host=HOST,
        )
        self.delayed = DelayedMessages(
            self.timers, clock=CLOCK, topics=TopicTable(), put=self._put, roll_after_ms=72 * 3_600_000
        )

    def _put(
        self,
        messages: Sequence[OutgoingMessage],
        done: PutAnswer | PutDone,
        call: Call | None = None,
        traceparents: Sequence[str] = (),
    ) -> None:
        answer_of(done).answer(self.store.put_batch(messages))

    def send(self, dues_ms: Sequence[int], body: bytes) -> None:
        """DELAY messages for these times."""
        messages = []
        for due_ms in dues_ms:
            message_id = f"01{random.getrandbits(128):032X}"
            properties = encode_properties([("UNIQ_KEY", message_id), ("PGROUP", "reminders"), ("KEYS", "order-1")])
            message = OutgoingMessage("reminders", 0, body, properties, 0, (message_id,), None, due_ms, HOST)
            messages.append(timer_message(message, due_ms, is_held=True))
        self.store.put_batch(messages)

    def close(self) -> None:
        self.store.close()


def resident_mib() -> float:
    return float(psutil.Process().memory_info().rss) / (1 << 20)


def told(what: str, began_s: float, count: int) -> None:
    seconds = time.process_time() - began_s
    print(f"{what}: {seconds:.1f} s of the processor, {seconds / count * 1e6:.1f} us each", flush=True)


async def measure(folder: Path, *, waiting: int, seconds: int, body: bytes) -> None:
    broker = Broker(folder)
    now_ms = CLOCK.wall_ms()
    for start in range(0, waiting, BATCH):
        count = min(BATCH, waiting - start)
        broker.send([now_ms + 3_600_000 + random.randrange(71 * 3_600_000) for _ in range(count)], body)
    began_s = time.process_time()
    await broker.timers.take_over()
    told(f"a start that reads {waiting} timers", began_s, waiting)
    broker.timers.close()
    saved = TimerQueue()
    before_mib = resident_mib()
    data = broker.disk.read_file("config/rmq_sys_wheel_timer.state")
    assert data is not None
    began_s = time.process_time()
    assert saved.load(data)
    told(f"a start from the saved state of {len(data) >> 20} MiB", began_s, waiting)
    print(f"memory: {(resident_mib() - before_mib - len(data) / (1 << 20)) * (1 << 20) / waiting:.0f} bytes a timer")
    del saved, data
    running = asyncio.get_running_loop().create_task(broker.delayed.run())
    soon_ms = CLOCK.wall_ms() + 3_000
    broker.send([soon_ms + random.randrange(1_000 * seconds) for _ in range(200 * seconds)], body)
    await asyncio.sleep(seconds + 5)
    print(f"{broker.delayed.delivered_count} delivered while the others waited")
    lateness = broker.delayed.lateness_s.reading()
    print("late, upper bound in s and messages:", list(zip([*lateness.bounds, float("inf")], lateness.counts)))
    running.cancel()
    await asyncio.wait([running])
    broker.send([CLOCK.wall_ms()] * BATCH * 100, body)
    await broker.timers.follow()
    count, began_s = broker.delayed.delivered_count, time.process_time()
    while await broker.delayed.deliver_due():
        pass
    told("delivered at once", began_s, broker.delayed.delivered_count - count)
    broker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--body-bytes", type=int, default=300)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="delayed-") as folder:
        work = measure(
            Path(folder), waiting=arguments.waiting, seconds=arguments.seconds, body=bytes(arguments.body_bytes)
        )
        asyncio.run(work)


if __name__ == "__main__":
    main()
