"""Does a message cost more when there is more of everything? TandemMQ alone: server CPU per sync send, small against
large, in turn.

Topics: sends go round all queues of 1, 100 and 10,000 topics of 8 queues, whose files are all there before. The cost is
the whole one: with what the pairs write after the answers, and at last when they are stopped. See whole_cost.
Connections: 200 sends in flight over 1, 50 and 200 connections.
Log: a store of 1 GB against one of 20 GB (master and slave: 40 GB of disk), and how long each takes to come back after
kill -9 of its master.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from load_generators import BODY_BYTES, Generators, Target, Window
from measurements.fill import fill
from measurements.first_send import wait_first_send
from measurements.rounds import Case, Contender, Rounds
from measurements.whole_cost import WholeCost
from plan import Plan
from report import Row
from system_under_test import Member, SystemUnderTest, TandemPair
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.core.metadata.metadata_store import MetadataFile, MetadataStore
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable

FLAT: Final = 1.15
INFLIGHT: Final = 32
CONNECTIONS_INFLIGHT: Final = 200
QUEUES: Final = 8
TOPIC: Final = "topic"
# Records of the filled store are larger than those measured, to have the bytes in minutes.
FILL_BODY_BYTES: Final = 16 << 10
FILL_BATCH: Final = 16
TOUCH_S: Final = 20.0
TOUCH_TRIES: Final = 3
RECOVERY_LIMIT_S: Final = 300.0
GB: Final = 10**9
# Of the free disk, what stores may take: the brokers refuse writes on a disk that is nearly full.
DISK_SHARE: Final = 0.75


def topic_name(number: int) -> str:
    """Name of one of many topics, as the Go generator counts them."""
    return f"{TOPIC}-{number:05d}"


def write_topics(store: Path, count: int) -> None:
    """Puts `count` topics into a store that no broker runs on, as a broker would have written them."""
    table = TopicTable()
    for number in range(count):
        table.put(TopicConfig(topic_name(number), QUEUES, QUEUES), now_ms=int(time.time() * 1000))
    store.mkdir(parents=True)
    MetadataStore(PosixDisk(store)).persist(MetadataFile.TOPICS, table.to_json())


def _round(count: int) -> dict[str, object]:
    """The Go generator's options to go round `count` topics; it numbers them only when there are several."""
    return {"topic": TOPIC, "topics": count} if count > 1 else {"topic": topic_name(0)}


@dataclass
class Growth:
    """What the three measurements share."""

    folder: Path
    generators: Generators
    plan: Plan
    rounds: Rounds
    say: Callable[[str], None]

    @contextmanager
    def _pairs(self, names: Sequence[str]) -> Iterator[list[TandemPair]]:
        """Pairs of the same settings; killed and removed at the end."""
        shutil.rmtree(self.folder, ignore_errors=True)
        pairs = [TandemPair(self.folder / name, label=name) for name in names]
        try:
            yield pairs
        finally:
            for pair in pairs:
                pair.stop_all()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _contender(self, system: SystemUnderTest, label: str, inflight: int, **options: object) -> Contender:
        def run() -> list[Window]:
            return self.generators.raw(
                Target(label, system.endpoint, system.pids()),
                "send",
                size=BODY_BYTES,
                inflight=inflight,
                warmup=self.plan.raw_warmup_s,
                windows=self.plan.windows,
                seconds=self.plan.window_s,
                **options,
            )

        return Contender(label, system, run)

    def _play(self, name: str, title: str, contenders: list[Contender]) -> None:
        self.rounds.play([Case(name, title, contenders)], [one.system for one in contenders], rounds=self.plan.rounds)

    def _rows(self, name: str) -> list[Row]:
        """Each contender's cost over the first one's."""
        first, *others = self.rounds.contenders(name)
        cost = {label: self.rounds.median(name, label, lambda w: w.server_cpu_us) for label in (first, *others)}
        return [
            *(Row.at_most(f"growth_{label}", cost[label] / cost[first], FLAT) for label in others),
            *self.rounds.absolute_rows("growth", "", name),
        ]

    def topics(self) -> list[Row]:
        """1, 100, 10,000 topics."""
        counts = self.plan.growth_topics
        with self._pairs([f"topics_{count}" for count in counts]) as pairs:
            costs = {pair.label: WholeCost(pair, self.say) for pair in pairs}
            contenders = []
            for pair, count in zip(pairs, counts, strict=True):
                self.say(f"growth · {count} topics: start, a message into each queue, and their files made")
                write_topics(pair.store_folder(Member.MASTER), count)
                pair.start()
                self._touch(pair, count)
                costs[pair.label].wait_saved()
                contenders.append(self._topics_contender(costs[pair.label], count))
            self._play("topics", "growth: sync sends round all queues of many topics, 32 in flight", contenders)
            for label, cost in costs.items():
                cost.stop()
                self.say(
                    f"growth · {label}: {cost.us_per_message:.1f} µs a message with all that came after its answer, "
                    f"{cost.stop_us_per_message:.1f} of them the stop's"
                )
        return [*_whole_rows(list(costs.values())), *self.rounds.absolute_rows("growth", "", "topics")]

    def _topics_contender(self, cost: WholeCost, count: int) -> Contender:
        pair = cost.pair

        def run() -> list[Window]:
            return self.generators.raw(
                Target(pair.label, pair.endpoint, pair.pids()),
                "send",
                size=BODY_BYTES,
                inflight=INFLIGHT,
                windows=self.plan.windows + 1,
                seconds=self.plan.window_s,
                **_round(count),
            )

        return Contender(pair.label, pair, lambda: cost.turn(run))

    def _touch(self, pair: TandemPair, count: int) -> None:
        """Writes into every queue: no file is to be made while we measure."""
        seconds = TOUCH_S * count / max(self.plan.growth_topics) + 1
        for _ in range(TOUCH_TRIES):
            options = {**_round(count), "size": 100, "inflight": CONNECTIONS_INFLIGHT, "windows": 1, "seconds": seconds}
            windows = self.generators.raw(Target(pair.label, pair.endpoint, pair.pids()), "send", **options)
            if sum(window.messages for window in windows) >= count * QUEUES:
                return
            seconds *= 2

    def connections(self) -> list[Row]:
        """1, 50, 200 connections."""
        with self._pairs(["connections"]) as (pair,):
            self.say("growth · connections: start")
            pair.start()
            pair.create_topic(TOPIC)
            contenders = [
                self._contender(pair, f"connections_{count}", CONNECTIONS_INFLIGHT, topic=TOPIC, connections=count)
                for count in self.plan.growth_connections
            ]
            self._play("connections", "growth: sync sends, 200 in flight over many connections", contenders)
        return self._rows("connections")

    def log(self) -> list[Row]:
        """1 GB and 20 GB of log."""
        small, wanted = self.plan.growth_log_bytes
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        room = int(shutil.disk_usage(self.folder.parent).free * DISK_SHARE / 2) - small
        large = min(wanted, max(room, 2 * small))
        if large < wanted:
            self.say(f"growth · log: the disk has room for {large / GB:.1f} GB a broker, not for {wanted / GB:.0f} GB")
        sizes = (small, large)
        recovered = []
        with self._pairs([f"log_{size / GB:.3g}gb" for size in sizes]) as pairs:
            contenders = []
            for pair, size in zip(pairs, sizes, strict=True):
                self.say(f"growth · log: filling {size / GB:.1f} GB into master and slave")
                pair.start()
                pair.create_topic(TOPIC)
                common = {"topic": TOPIC, "size": FILL_BODY_BYTES, "batch": FILL_BATCH}
                fill(self.generators, pair, until_bytes=size, **common)  # type: ignore[arg-type]
                contenders.append(self._contender(pair, pair.label, INFLIGHT, topic=TOPIC))
            self._play("log", "growth: sync sends into a store that holds much, 32 in flight", contenders)
            for pair, size in zip(pairs, sizes, strict=True):
                pair.stop(Member.MASTER, kill=True)
                began = time.perf_counter()
                pair.launch(Member.MASTER)
                seconds = wait_first_send(pair.endpoint, TOPIC, limit_s=RECOVERY_LIMIT_S) - began
                self.say(f"growth · recovery after kill -9 of {pair.label}: {seconds:.2f} s")
                recovered.append(Row.absolute(f"recovery_time_{pair.label}", seconds, "s"))
                recovered.append(Row.absolute(f"recovery_time_per_gb_{pair.label}", seconds / (size / GB), "s/GB"))
        return [*self._rows("log"), *recovered, Row.absolute("growth_log_bytes", large, "bytes")]


def _whole_rows(costs: Sequence[WholeCost]) -> list[Row]:
    """Each pair's cost over the first one's, and what they are made of."""
    first, *others = costs
    rows = [
        Row.at_most(f"growth_{cost.pair.label}", cost.us_per_message / first.us_per_message, FLAT) for cost in others
    ]
    for cost in costs:
        rows.append(Row.absolute(f"growth_whole_cpu_{cost.pair.label}", cost.us_per_message, "us/msg"))
        rows.append(Row.absolute(f"growth_stop_cpu_{cost.pair.label}", cost.stop_us_per_message, "us/msg"))
    return rows
