"""The three groups that stand side by side while loads alternate between them, and how loads reach them."""

from __future__ import annotations

import itertools
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from load_generators import BODY_BYTES, Generators, Target, Window
from measurements.rounds import Contender, alone
from peer.installation import Installation
from peer.rocketmq import ProxyMode, RocketPair
from plan import Plan
from system_under_test import SystemUnderTest, TandemPair

__all__ = ["CLUSTER", "LOCAL", "OURS", "REMOTING", "SideBySide"]

# Labels in rows. RocketMQ stands in three ways: proxy in the broker, proxy apart, its own protocol.
OURS: Final = "tandemmq"
LOCAL: Final = "rocketmq_local"
CLUSTER: Final = "rocketmq_cluster"
REMOTING: Final = "rocketmq_remoting"
SEND_TOPIC: Final = "bench"
DRAIN_TOPIC: Final = "bench-drain"
BATCH: Final = 32
FILL_BATCHES_IN_FLIGHT: Final = 8
RECEIVERS: Final = 8


class SideBySide:
    """Starts the groups, gives contenders, ends the groups."""

    def __init__(self, folder: Path, installation: Installation, generators: Generators, plan: Plan) -> None:
        self._folder = folder
        self.plan = plan
        self.generators = generators
        self.ours = TandemPair(folder / OURS)
        self.local = RocketPair(folder / LOCAL, installation, ProxyMode.LOCAL)
        self.cluster = RocketPair(folder / CLUSTER, installation, ProxyMode.CLUSTER)

    def __enter__(self) -> Self:
        shutil.rmtree(self._folder, ignore_errors=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for system in self.systems:
            system.stop_all()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def systems(self) -> Sequence[SystemUnderTest]:
        """Ours first."""
        return (self.ours, self.local, self.cluster)

    def start(self, say: Callable[[str], None]) -> None:
        """Starts all groups with their topics."""
        for system in self.systems:
            say(f"starting {system.label}")
            system.start()
            for topic in (SEND_TOPIC, DRAIN_TOPIC):
                system.create_topic(topic)

    def warm_up(self, say: Callable[[str], None], *, remoting: bool, drains: bool) -> None:
        """Load on every server until its hot paths are compiled; the topic for drains is filled by the way."""
        seconds = self.plan.server_warmup_s
        for system in self.systems:
            say(f"warming up {system.label}")
            with alone(system, self.systems):
                target = self._target(system)
                common = {"topic": SEND_TOPIC, "size": BODY_BYTES, "windows": 1}
                self.generators.raw(target, "send", inflight=64, warmup=0, seconds=seconds, **common)
                if drains:
                    self._fill(target)
                    self.drain(system)()
        if remoting:
            say("warming up rocketmq_remoting")
            with alone(self.cluster, self.systems):
                self._remoting("send", inflight=64, seconds=seconds)()
                self._remoting("batch", inflight=FILL_BATCHES_IN_FLIGHT, batch=BATCH, seconds=seconds / 2)()

    def _fill(self, target: Target) -> None:
        """Puts more messages than a drain takes."""
        missing = self.plan.drain_messages * 1.25
        while missing > 0:
            windows = self.generators.raw(
                target,
                "send",
                topic=DRAIN_TOPIC,
                size=BODY_BYTES,
                inflight=FILL_BATCHES_IN_FLIGHT,
                batch=BATCH,
                warmup=0,
                windows=1,
                seconds=1,
            )
            missing -= sum(window.messages for window in windows)

    def _target(self, system: SystemUnderTest) -> Target:
        return Target(system.label, system.endpoint, system.pids())

    def raw_sends(self, inflight: int, *, batch: int = 1) -> list[Contender]:
        """The Go generator against every gRPC endpoint."""
        return [Contender(s.label, s, self._send(s, self.generators.raw, inflight, batch)) for s in self.systems]

    def raw_send_to_ours(self, inflight: int, *, batch: int = 1) -> Contender:
        """The Go generator against ours alone."""
        return Contender(OURS, self.ours, self._send(self.ours, self.generators.raw, inflight, batch))

    def official_sends(self, inflight: int) -> list[Contender]:
        """The official Java client against every gRPC endpoint."""
        return [Contender(s.label, s, self._send(s, self.generators.official, inflight, 1)) for s in self.systems]

    def ghz_sends(self, inflight: int) -> list[Contender]:
        """ghz against every gRPC endpoint."""

        def sender(system: SystemUnderTest) -> Callable[[], list[Window]]:
            seconds = self.plan.window_s
            return lambda: [
                self.generators.ghz(self._target(system), topic=SEND_TOPIC, inflight=inflight, seconds=seconds)
            ]

        return [Contender(system.label, system, sender(system)) for system in self.systems]

    def remoting_send(self, inflight: int) -> Contender:
        """RocketMQ's client and protocol, straight to the broker that has no proxy inside."""
        return Contender(REMOTING, self.cluster, self._remoting("send", inflight=inflight))

    def remoting_batch(self) -> Contender:
        """The same with 32 messages a request."""
        return Contender(REMOTING, self.cluster, self._remoting("batch", inflight=FILL_BATCHES_IN_FLIGHT, batch=BATCH))

    def _send(
        self, system: SystemUnderTest, generate: Callable[..., list[Window]], inflight: int, batch: int
    ) -> Callable[[], list[Window]]:
        is_java = generate == self.generators.official
        options: dict[str, object] = {
            "topic": SEND_TOPIC,
            "size": BODY_BYTES,
            "inflight": inflight,
            "warmup": self.plan.java_warmup_s if is_java else self.plan.raw_warmup_s,
            "windows": self.plan.windows,
            "seconds": self.plan.window_s,
            **({"batch": batch} if batch > 1 else {}),
        }
        return lambda: generate(self._target(system), "send", **options)

    def _remoting(
        self, operation: str, *, inflight: int, batch: int = 1, seconds: float | None = None
    ) -> Callable[[], list[Window]]:
        options: dict[str, object] = {
            "topic": SEND_TOPIC,
            "size": BODY_BYTES,
            "inflight": inflight,
            "warmup": self.plan.java_warmup_s,
            "windows": self.plan.windows if seconds is None else 1,
            "seconds": self.plan.window_s if seconds is None else seconds,
            **({"batch": batch} if batch > 1 else {}),
        }

        def run() -> list[Window]:
            target = Target(REMOTING, self.cluster.namesrv_endpoint, self.cluster.broker_pids())
            return self.generators.remoting(target, operation, **options)

        return run

    def drain(self, system: SystemUnderTest) -> Callable[[], list[Window]]:
        """A new consumer group takes the first messages of the topic, as many as the plan says."""
        groups = itertools.count()
        family = uuid.uuid4().hex[:8]

        def run() -> list[Window]:
            group = f"bench-{family}-{next(groups)}"
            system.create_group(group)
            return self.generators.raw(
                self._target(system),
                "drain",
                topic=DRAIN_TOPIC,
                group=group,
                receivers=RECEIVERS,
                batch=BATCH,
                count=self.plan.drain_messages,
                limit=120,
            )

        return run

    def drains(self) -> list[Contender]:
        """The Go generator receives and acknowledges from every gRPC endpoint."""
        return [Contender(system.label, system, self.drain(system)) for system in self.systems]
