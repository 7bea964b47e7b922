"""A broker without sockets that traces, and the spans it made."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime
from tandemmq.broker.tracing.send_tracer import BrokerTracing
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.tracing.send_spans import ResolvedSend, send_spans
from tandemmq.core.tracing.span_data import HeadSampler, SpanData, TraceOptions


class Spans(list[SpanData]):
    """A `SpanSink` that keeps all."""

    def add(self, spans: Sequence[SpanData]) -> None:
        """`SpanSink`'s."""
        self += spans

    def add_sends(self, sends: Sequence[ResolvedSend]) -> None:
        """`SpanSink`'s."""
        for send in sends:
            self.add(send_spans(send))

    def named(self, name: str) -> list[SpanData]:
        """Those of a method or a step."""
        return [span for span in self if span.name.rpartition("/")[2] == name]

    def only(self, name: str) -> SpanData:
        """The one of a method or a step."""
        [span] = self.named(name)
        return span


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def new_tracing(time: ManualTime, spans: Spans) -> Callable[..., BrokerTracing]:
    """Makes tracing at a sample rate; what takes more than 100 ms is slow."""

    def make(sample_rate: float = 0.0) -> BrokerTracing:
        chance = random.Random(7)
        return BrokerTracing(
            identity=BrokerIdentity("DefaultCluster", "broker-a", 0),
            clock=time,
            options=TraceOptions(sample_rate=sample_rate, slow_ms=100),
            sampler=HeadSampler(sample_rate, chance=chance.random, bits=chance.getrandbits),
            sink=spans,
        )

    return make


@pytest.fixture
def new_broker(time: ManualTime) -> Iterator[Callable[[BrokerTracing], BrokerAssembly]]:
    """Makes a broker with topic `orders`."""
    made: list[BrokerAssembly] = []

    def make(tracing: BrokerTracing) -> BrokerAssembly:
        broker = BrokerAssembly(clock=time, timers=time, tracing=tracing)
        broker.add_topic("orders")
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.close()
