"""What a scrape of a broker with many topics costs, and how long it keeps the event loop from everything else.

Every topic has a consumer group that lags in all its queues. The figures of the event loop are those of its thread:
CPU, and the longest piece of work between two turns. "Longest wait" is what a timer of 1 ms saw while the whole scrape
ran: collecting on the loop, and the text being made on a thread beside it, with the interpreter shared.

python benchmarks/metrics_scrape.py                 # build/bench-metrics.json
python benchmarks/metrics_scrape.py --topics 1000
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.broker_assembly import BrokerAssembly
from support.messages import outgoing_message
from tandemmq.broker.metrics import ConsumerMetrics, MessageMetrics
from tandemmq.broker.metrics_catalogue import BROKER_METRICS
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.broker.put import DeliveryMeter, PutMeter
from tandemmq.core.delivery.subscription import TagFilter
from tandemmq.service.event_loop import SystemClock, TurnLimit
from tandemmq.service.metrics import (
    ExporterType,
    MetricExports,
    MetricFamily,
    MetricSamples,
    MetricsOptions,
    SeriesLimit,
)

QUEUES: Final = 8
SCRAPES: Final = 5
MS: Final = 1_000


class TimedTurns(TurnLimit):
    """Notes the CPU of each piece of work between two turns."""

    def __init__(self, clock: SystemClock) -> None:
        super().__init__(clock)
        self.pieces_s: list[float] = []
        self._began_s = time.thread_time()

    async def pause(self) -> None:
        """Lets the loop go on, and does not count that."""
        self.end()
        await super().pause()
        self._began_s = time.thread_time()

    def end(self) -> None:
        """A piece is done."""
        self.pieces_s.append(time.thread_time() - self._began_s)


class CrowdedBroker:
    """Topics with messages in each queue, and a group that was given some of them and finished none."""

    def __init__(self, folder: Path, topic_count: int, *, series_max: int) -> None:
        self._clock = SystemClock()
        self._broker = BrokerAssembly(clock=self._clock, timers=asyncio.get_running_loop(), disk=PosixDisk(folder))
        puts, deliveries = PutMeter(), DeliveryMeter()
        all_tags = TagFilter.parse("*")
        assert all_tags is not None, "a filter for everything"
        for number in range(topic_count):
            topic, group = f"topic-{number:05d}", f"group-{number:05d}"
            self._broker.add_topic(topic, queue_count=QUEUES)
            for queue_id in range(2 * QUEUES):
                self._broker.store.put(outgoing_message(topic=topic, queue_id=queue_id % QUEUES))
            self._broker.leases.receive(
                group=group,
                topic=topic,
                queue_ids=range(QUEUES),
                tag_filter=all_tags,
                batch_size=QUEUES,
                invisible_ms=600_000,
                now_ms=self._clock.monotonic_ms(),
                max_attempts=17,
                auto_renew=False,
                client_id="client",
            )
            puts.stored(topic, 2 * QUEUES, 2 * QUEUES * 200)
            deliveries.of(topic, group).messages = QUEUES
        pairs: SeriesLimit[tuple[str, str]] = SeriesLimit(series_max)
        self._messages = MessageMetrics(
            puts=puts,
            deliveries=deliveries,
            topics=self._broker.topics,
            is_system_topic=lambda _: False,
            preset="SYNC_MASTER/ASYNC_FLUSH",
            topic_limit=SeriesLimit(series_max),
            pair_limit=pairs,
        )
        self._consumers = ConsumerMetrics(
            leases=self._broker.leases,
            store=self._broker.store,
            has_topic=lambda _: True,
            clock=self._clock,
            pair_limit=pairs,
        )
        self.pieces_s: list[float] = []

    async def collect(self) -> list[MetricFamily]:
        """As `BrokerMetrics` does, the part that grows with topics."""
        samples = MetricSamples(BROKER_METRICS, base=("cluster", "broker", "broker-a", "0"))
        turn = TimedTurns(self._clock)
        await self._messages.tell(samples, turn)
        await self._consumers.tell(samples, turn)
        turn.end()
        self.pieces_s += turn.pieces_s
        return samples.families()


async def measure(topic_count: int, series_max: int) -> dict[str, float]:
    """Some scrapes of one broker; medians, and the worst of all."""
    with tempfile.TemporaryDirectory() as folder:
        broker = CrowdedBroker(Path(folder), topic_count, series_max=series_max)
        options = MetricsOptions(types=frozenset({ExporterType.PROM}))
        exports = MetricExports(options, collect=broker.collect, resource={})
        await exports.start()
        # As a broker has it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        await broker.collect()  # Ages are read from the log once.
        broker.pieces_s.clear()
        loop_cpu_s: list[float] = []
        cpu_s, took_s, waits_s, sizes = [], [], [], []
        for _ in range(SCRAPES):
            cpu_before = time.process_time()
            began = time.perf_counter()
            scraping = asyncio.create_task(asyncio.to_thread(scrape, exports.port))
            waits_s.append(await longest_wait_s(scraping))
            took_s.append(time.perf_counter() - began)
            cpu_s.append(time.process_time() - cpu_before)
            sizes.append(await scraping)
            loop_cpu_s.append(sum(broker.pieces_s) - sum(loop_cpu_s))
        await exports.close()
        return {
            "series": sizes[-1],
            "cpu_of_the_loop": statistics.median(loop_cpu_s) * MS,
            "cpu_in_all": statistics.median(cpu_s) * MS,
            "time": statistics.median(took_s) * MS,
            "longest_piece_on_the_loop": max(broker.pieces_s) * MS,
            "longest_wait_of_a_timer": max(waits_s) * MS,
        }


async def longest_wait_s(task: asyncio.Task[int]) -> float:
    """How late a timer of 1 ms came at most while the task ran."""
    longest_s = 0.0
    while not task.done():
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        longest_s = max(longest_s, time.perf_counter() - before - 0.001)
    return longest_s


def scrape(port: int) -> int:
    """One scrape; the number of samples."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body
    return sum(not line.startswith(b"#") for line in body.splitlines())


def main() -> int:
    """Measures with and without a bound on the series, and writes build/bench-metrics.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000)
    topics = parser.parse_args().topics
    rows = []
    for series_max in (2_000, topics):
        figures = asyncio.run(measure(topics, series_max))
        print(f"{topics} topics of {QUEUES} queues, each with a group that lags; metricsSeriesMax={series_max}")
        for name, value in figures.items():
            unit = "" if name == "series" else "ms"
            print(f"  {name:<28} {value:>12.1f} {unit}")
            rows.append({"name": f"{name}_of_{series_max}", "value": round(value, 3), "unit": unit})
    (ROOT / "build" / "bench-metrics.json").write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
