"""What brokers answer about traces, for tests of the tree, the terminal's view and the page."""

from __future__ import annotations

from support.span_samples import MESSAGE_ID, START_NS, TOPIC, TRACE_ID, delivery_spans, send_spans, slave_spans
from tandemmq.admin.trace_reader import (
    BrokerSpan,
    SlaveHolding,
    StoredCopy,
    TraceFindings,
    TraceLine,
    TraceList,
    TracingState,
)

MASTER, SLAVE = "broker-a:0", "broker-a:1"
_START_MS = START_NS // 1_000_000


def tracing(
    broker: str = MASTER, *, sample_rate: float = 0.01, oldest_ms: int | None = _START_MS - 60_000
) -> TracingState:
    return TracingState(
        broker, tracing=True, sample_rate=sample_rate, slow_threshold_ms=200, trace_count=1_042, oldest_ms=oldest_ms
    )


def master_spans(
    *, wait_us: int = 7_000, failure: str = "", sync_flush: bool = False, parent: int = 0
) -> list[BrokerSpan]:
    spans = send_spans(wait_us=wait_us, failure=failure, slave="1", sync_flush=sync_flush, parent_span_id=parent)
    return [BrokerSpan(MASTER, span) for span in spans]


def replica_spans(*, wait_us: int = 7_000, clock_ahead_us: int = 0) -> list[BrokerSpan]:
    return [BrokerSpan(SLAVE, span) for span in slave_spans(wait_us=wait_us, clock_ahead_us=clock_ahead_us)]


def consumer_spans() -> list[BrokerSpan]:
    """Its delivery and its acknowledgement."""
    return [BrokerSpan(MASTER, span) for span in delivery_spans()]


def stored_copy(broker: str = MASTER, *, missing_bytes: int = 0, born_ms: int = _START_MS - 3) -> StoredCopy:
    """Its record in one replica."""
    return StoredCopy(
        broker=broker,
        topic=TOPIC,
        real_topic="",
        queue_id=3,
        queue_offset=1_042,
        physical_offset=18_274_112,
        stored_bytes=412,
        born_ms=born_ms,
        born_host="10.0.0.7:51234",
        stored_ms=_START_MS,
        store_host="10.0.0.3:10911",
        flushed=broker == MASTER,
        slaves=(SlaveHolding(1, missing_bytes),) if broker == MASTER else (),
        reconsume_times=0,
        tag="paid",
        keys="order-1",
        traceparent="",
    )


def findings(
    spans: list[BrokerSpan],
    *,
    brokers: tuple[TracingState, ...] = (tracing(MASTER), tracing(SLAVE)),
    copies: tuple[StoredCopy, ...] = (stored_copy(),),
    message_id: str = MESSAGE_ID,
    trace_id: int = 0,
) -> TraceFindings:
    return TraceFindings(message_id, trace_id, brokers, tuple(spans), 0, copies)


def trace_list(*, lines: bool = True, brokers: tuple[TracingState, ...] = (tracing(MASTER),)) -> TraceList:
    """A slow send, a failed one and a sampled receive of many messages."""
    made = (
        TraceLine(
            MASTER, TRACE_ID, "x.MessagingService/SendMessage", _START_MS, 7.37, "slow", "", TOPIC, (MESSAGE_ID,), 1
        ),
        TraceLine(
            MASTER,
            2,
            "x.MessagingService/SendMessage",
            _START_MS,
            3_000.4,
            "failed",
            "FLUSH_SLAVE_TIMEOUT",
            TOPIC,
            ("B",),
            1,
        ),
        TraceLine(MASTER, 3, "x.MessagingService/ReceiveMessage", _START_MS, 0.4, "sampled", "", TOPIC, ("C", "D"), 12),
    )
    return TraceList(brokers, made if lines else ())


class FakeTraces:
    """`ClusterTraces` that knows one message."""

    def __init__(self, known: TraceFindings | None = None) -> None:
        self._known = known or findings([*master_spans(), *replica_spans(), *consumer_spans()])

    async def find(self, key: str, *, topic: str = "") -> TraceFindings:
        """The known one, or nothing."""
        if key in (self._known.message_id, f"{TRACE_ID:032x}"):
            return self._known
        return findings([], copies=(), message_id=key)

    async def newest(self, *, count: int, notable_only: bool = False) -> TraceList:
        found = trace_list()
        return TraceList(
            found.brokers, tuple(line for line in found.lines if not notable_only or line.retained_for != "sampled")
        )
