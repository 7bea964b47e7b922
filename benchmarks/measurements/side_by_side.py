"""The three groups that stand side by side while loads alternate between them, and how loads reach them."""

from __future__ import annotations

import itertools
import math
import shutil
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from load_generators import BODY_BYTES, Generators, Target, Window
from measurements.rounds import Contender, alone
from peer.installation import Installation
from peer.rocketmq import ProxyMode, RocketPair
from plan import Plan
from processes import MeasurementFailed
from system_under_test import SystemUnderTest, TandemPair, make_certificate, tls_settings

# Labels in rows. RocketMQ stands in three ways: proxy in the broker, proxy apart, its own protocol.
OURS: Final = "tandemmq"
OURS_TLS: Final = "tandemmq_tls"
LOCAL: Final = "rocketmq_local"
CLUSTER: Final = "rocketmq_cluster"
REMOTING: Final = "rocketmq_remoting"
SEND_TOPIC: Final = "bench"
KINDS: Final = ("fifo", "delay", "transaction")
"""Kinds of messages with a topic each, of their type."""
DRAIN_TOPIC: Final = "bench-drain"
DELAY_S: Final = 3
BATCH: Final = 32
FILL_BATCHES_IN_FLIGHT: Final = 8
RECEIVERS: Final = 8
WARM_UP_INFLIGHT: Final = 64
WARM_UP_RUNS_MAX: Final = 16
STEADY_RUNS: Final = 3
STEADY: Final = 0.9
_BATCH: Final = {"inflight": FILL_BATCHES_IN_FLIGHT, "batch": BATCH}


def kind_topic(kind: str, *, drain: bool = False) -> str:
    return f"bench-{kind}-drain" if drain else f"bench-{kind}"


def until_steady(plan: Plan, say: Callable[[str], None], title: str, run: Callable[[], list[Window]]) -> None:
    """Runs until CPU per message has fallen by less than a tenth in three runs, at least `server_warmup_s`.

    A JVM compiles its hot paths meanwhile: 8 to 12 s of load without TLS, up to a minute with it. Two runs alike do not
    show that it is done: one stood at 429 and 417 µs a message and ended at 175.
    """
    costs: list[float] = []
    loaded_s = 0.0
    while len(costs) < WARM_UP_RUNS_MAX:
        began = time.monotonic()
        try:
            costs.append(statistics.median(window.server_cpu_us for window in run()))
        except MeasurementFailed as error:  # a cold server may refuse some of its first load
            say(f"{title}: {error}")
            costs.append(math.inf)
        loaded_s += time.monotonic() - began
        is_steady = len(costs) >= STEADY_RUNS and costs[-STEADY_RUNS] * STEADY < costs[-1] < math.inf
        if is_steady and loaded_s >= plan.server_warmup_s:
            break
    say(f"{title}: {' → '.join(f'{cost:.0f}' for cost in costs)} µs a message")


class SideBySide:
    """Starts the groups, gives contenders, ends the groups."""

    def __init__(self, folder: Path, installation: Installation, generators: Generators, plan: Plan) -> None:
        self._folder = folder
        self.plan = plan
        self.generators = generators
        # One port for both: what tells them apart is looked at once a connection.
        self.ours = TandemPair(folder / OURS, settings=tls_settings(folder))
        self.local = RocketPair(folder / LOCAL, installation, ProxyMode.LOCAL)
        self.cluster = RocketPair(folder / CLUSTER, installation, ProxyMode.CLUSTER)

    def __enter__(self) -> Self:
        shutil.rmtree(self._folder, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        for system in self.systems:
            system.stop_all()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def systems(self) -> Sequence[SystemUnderTest]:
        """Ours first."""
        return (self.ours, self.local, self.cluster)

    def start(self, say: Callable[[str], None]) -> None:
        """Starts all groups with their topics."""
        make_certificate(self._folder)
        for system in self.systems:
            say(f"starting {system.label}")
            system.start()
            for topic in (SEND_TOPIC, DRAIN_TOPIC):
                system.create_topic(topic)
            for kind in KINDS:
                for topic in (kind_topic(kind), kind_topic(kind, drain=True)):
                    system.create_topic(topic, message_type=kind.upper())

    def warm_up(self, say: Callable[[str], None], *, remoting: bool, drains: bool, kinds: bool) -> None:
        """Load on every server until its cost has stopped falling; `kinds`: of each kind of messages, too."""
        for system in self.systems:
            with alone(system, self.systems):
                if kinds:
                    for kind in KINDS:
                        title = f"warming up {system.label}, {kind}"
                        until_steady(self.plan, say, title, self._kind_send(system, kind, WARM_UP_INFLIGHT))
                send = self._send(system, self.generators.raw, WARM_UP_INFLIGHT, 1)
                until_steady(self.plan, say, f"warming up {system.label}", send)
                if drains:
                    until_steady(self.plan, say, f"warming up {system.label}, drain", self.drain(system))
        if remoting:
            with alone(self.cluster, self.systems):
                for title, options in (("single", {"inflight": WARM_UP_INFLIGHT}), ("batches", _BATCH)):
                    run = self._remoting(self.generators.raw, "remoting", **options)
                    until_steady(self.plan, say, f"warming up {REMOTING}, {title}", run)

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

    def tls_send_to_ours(self, inflight: int) -> Contender:
        """The same over TLS."""
        options = self._options(self.generators.raw, inflight, 1) | {"tls": "true"}
        return Contender(OURS_TLS, self.ours, lambda: self.generators.raw(self._target(self.ours), "send", **options))

    def official_sends(self, inflight: int) -> list[Contender]:
        """The official Java client against every gRPC endpoint, and RocketMQ's own against the broker."""
        remoting = self._remoting(self.generators.official_remoting, "send", inflight=inflight)
        return [
            *(Contender(s.label, s, self._send(s, self.generators.official, inflight, 1)) for s in self.systems),
            Contender(REMOTING, self.cluster, remoting),
        ]

    def ghz_sends(self, inflight: int) -> list[Contender]:
        """ghz against every gRPC endpoint."""

        def sender(system: SystemUnderTest) -> Callable[[], list[Window]]:
            seconds = self.plan.window_s
            return lambda: [
                self.generators.ghz(self._target(system), topic=SEND_TOPIC, inflight=inflight, seconds=seconds)
            ]

        return [Contender(system.label, system, sender(system)) for system in self.systems]

    def remoting_send(self, inflight: int) -> Contender:
        """RocketMQ's own protocol, straight to the broker that has no proxy inside, from the Go generator."""
        return Contender(REMOTING, self.cluster, self._remoting(self.generators.raw, "remoting", inflight=inflight))

    def remoting_batch(self) -> Contender:
        """The same with 32 messages a request."""
        return Contender(REMOTING, self.cluster, self._remoting(self.generators.raw, "remoting", **_BATCH))

    def _send(
        self, system: SystemUnderTest, generate: Callable[..., list[Window]], inflight: int, batch: int
    ) -> Callable[[], list[Window]]:
        options = self._options(generate, inflight, batch)
        return lambda: generate(self._target(system), "send", **options)

    def _remoting(
        self, generate: Callable[..., list[Window]], operation: str, *, inflight: int, batch: int = 1
    ) -> Callable[[], list[Window]]:
        options = self._options(generate, inflight, batch)

        def run() -> list[Window]:
            target = Target(REMOTING, self.cluster.namesrv_endpoint, self.cluster.broker_pids())
            return generate(target, operation, **options)

        return run

    def _options(self, generate: Callable[..., list[Window]], inflight: int, batch: int) -> dict[str, object]:
        is_raw = generate == self.generators.raw
        return {
            "topic": SEND_TOPIC,
            "size": BODY_BYTES,
            "inflight": inflight,
            "warmup": self.plan.raw_warmup_s if is_raw else self.plan.java_warmup_s,
            "windows": self.plan.windows,
            "seconds": self.plan.window_s,
            **({"batch": batch} if batch > 1 else {}),
        }

    def drain(self, system: SystemUnderTest) -> Callable[[], list[Window]]:
        """A new consumer group takes the first messages of the topic, as many as the plan says."""
        groups = itertools.count()
        family = uuid.uuid4().hex[:8]

        def run() -> list[Window]:
            # Anew, for on a disk that gets full a broker removes what was sent first.
            self._fill(self._target(system))
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

    def kind_sends(self, kind: str, inflight: int) -> list[Contender]:
        """The Go generator sends messages of one of KINDS to every gRPC endpoint; delayed ones for in an hour."""
        return [Contender(system.label, system, self._kind_send(system, kind, inflight)) for system in self.systems]

    def _kind_send(self, system: SystemUnderTest, kind: str, inflight: int) -> Callable[[], list[Window]]:
        options = {**self._options(self.generators.raw, inflight, 1), "topic": kind_topic(kind), "kind": kind}
        if kind == "delay":
            options["delay"] = 3_600
        return lambda: self.generators.raw(self._target(system), "send", **options)

    def kind_drains(self, kind: str) -> list[Contender]:
        """A new group takes messages of one of KINDS that were sent just before; delayed ones come due meanwhile, so
        what it costs to deliver them is part of it."""
        return [Contender(system.label, system, self._kind_drain(system, kind)) for system in self.systems]

    def _kind_drain(self, system: SystemUnderTest, kind: str) -> Callable[[], list[Window]]:
        groups = itertools.count()
        family = uuid.uuid4().hex[:8]
        topic, count = kind_topic(kind, drain=True), self.plan.kind_messages

        def run() -> list[Window]:
            group = f"bench-{kind}-{family}-{next(groups)}"
            system.create_group(group, ordered=kind == "fifo")
            target = self._target(system)
            missing = 1.25 * count
            while missing > 0:
                windows = self.generators.raw(
                    target,
                    "send",
                    topic=topic,
                    kind=kind,
                    size=BODY_BYTES,
                    inflight=WARM_UP_INFLIGHT,
                    warmup=0,
                    windows=1,
                    seconds=1,
                    **({"delay": DELAY_S} if kind == "delay" else {}),
                )
                missing -= sum(window.messages for window in windows)
            return self.generators.raw(
                target,
                "drain",
                topic=topic,
                group=group,
                receivers=RECEIVERS,
                batch=BATCH,
                count=count,
                limit=120,
            )

        return run

    def drains(self) -> list[Contender]:
        """The Go generator receives and acknowledges from every gRPC endpoint."""
        return [Contender(system.label, system, self.drain(system)) for system in self.systems]
