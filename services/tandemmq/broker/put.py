"""A put on its way: who is answered, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from tandemmq.core.histogram import Histogram, HistogramReading
from tandemmq.core.message.record import OutgoingMessage
from tandemmq.core.replication.put_gate import WaitingPut
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.core.tracing.span_data import TraceContext
from tandemmq.service.metrics import OTHER
from tandemmq.service.rpc import Call

# Who is told what became of a put.

# For those that put now and then: the write path makes a `PutAnswer` of it.
PutDone = Callable[[list[AppendResult]], None]


class PutAnswer:
    """Told the results of one put, in the order of its messages. A class, as a call of its method is one jump for the
    compiler, while one of a function that was put together is a search for its arguments."""

    __slots__ = ()

    def answer(self, results: list[AppendResult]) -> None:
        """What became of each message. Once."""
        raise NotImplementedError


class _Function(PutAnswer):
    __slots__ = ("_done",)

    def __init__(self, done: PutDone) -> None:
        self._done = done

    def answer(self, results: list[AppendResult]) -> None:
        self._done(results)


def answer_of(done: PutAnswer | PutDone) -> PutAnswer:
    """The same, whichever way it is to be told."""
    return done if isinstance(done, PutAnswer) else _Function(done)


class PutMessages(Protocol):
    def __call__(
        self,
        messages: Sequence[OutgoingMessage],
        done: PutAnswer | PutDone,
        call: Call | None = None,
        traceparents: Sequence[str] = (),
    ) -> None:
        """Stores messages, all or none, and tells `done` their final results, at once or later.

        Final means: every flush and copy the settings ask for was had, or is known to be missing. `call` is what the
        messages came with, and `traceparents` are those that they had themselves.
        """


# The server's span, its parent, and the contexts it is linked with.
Place: TypeAlias = tuple[TraceContext, TraceContext | None, tuple[TraceContext, ...]]


class Put(WaitingPut):
    """One for every put, from its append to its answer; hence no keywords and no class that is made by another's
    code. Times are monotonic ns.

    `received_ns`: when its request was read; 0: there was none. `begun_ns`: when its append began, exact for a put that
    is traced from the start. Of the others only the latest moment is known that was before: when they were read, or
    when the put before them was appended. `appended_ns`: 0 if nothing was stored.
    """

    __slots__ = (
        "answer",
        "appended_ns",
        "begun_ns",
        "call",
        "messages",
        "place",
        "received_ns",
        "results",
        "traceparents",
    )

    def __init__(
        self,
        results: list[AppendResult],
        needs_flush: bool,
        needs_slaves: bool,
        answer: PutAnswer,
        messages: Sequence[OutgoingMessage],
        call: Call | None,
        traceparents: Sequence[str],
        received_ns: int,
        begun_ns: int,
        appended_ns: int,
    ) -> None:
        super().__init__(results[0].physical_offset, results[-1].end_offset, needs_flush, needs_slaves)
        self.results = results
        self.answer = answer
        self.messages = messages
        self.call = call
        self.traceparents = traceparents
        self.received_ns = received_ns
        self.begun_ns = begun_ns
        self.appended_ns = appended_ns
        # Of a put that is traced.
        self.place: Place | None = None


# What producers put, and how long they waited: counted where messages pass, read when somebody asks.
#
# Always on, hence made of few steps: sizes are counted by their number of binary digits, and nothing is looked up by
# label.

# From the fastest flush of a good disk to the limit of most clients. The type is said because the compiler would take
# a tuple of fifteen floats for something else than a tuple.
LATENCY_BOUNDS_S: Final[tuple[float, ...]] = (
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0,
)  # fmt: skip
# Powers of two, 128 bytes to 4 MiB; among them RocketMQ's 1 KiB, 4 KiB, 512 KiB, 1, 2 and 4 MiB.
_SMALLEST_SIZE_DIGITS: Final = 7
_LARGEST_SIZE_DIGITS: Final = 22
SIZE_BOUNDS_BYTES: Final[tuple[float, ...]] = tuple(
    float(1 << digits) for digits in range(_SMALLEST_SIZE_DIGITS, _LARGEST_SIZE_DIGITS + 1)
)
# A record is no longer than 2 GiB.
_DIGITS_MAX: Final = 31
_S_PER_NS: Final = 1e-9
# Five times as many as any cluster has at a time; topics that were deleted stay counted.
_TOPICS_MAX: Final = 50_000

# Looked up for every put: a module's global is cheaper than an attribute of the enum.
_PUT_OK: Final = PutStatus.PUT_OK


@dataclass(slots=True)
class TopicPuts:
    """Stored since the start of the process. Bytes are those of the records."""

    messages: int = 0
    bytes: int = 0


class PutMeter:
    """Counts of one broker's puts. Event loop only; only the write path adds to them.

    `send_to_ack_s`: from the read of a request to its answer, one observation a message, by what its sender was told.
    `ack_latency_s`: from the append to the acknowledgement by enough slaves, one observation a put that waited for
    them and got it.
    """

    def __init__(self, *, topics_max: int = _TOPICS_MAX) -> None:
        self.topics: dict[str, TopicPuts] = {}
        """By topic; beyond `topics_max` further ones are counted under `OTHER`."""
        self._topics_max = topics_max
        self._ok_s = Histogram(LATENCY_BOUNDS_S)
        self.send_to_ack_s: dict[PutStatus, Histogram] = {_PUT_OK: self._ok_s}
        self.ack_latency_s = Histogram(LATENCY_BOUNDS_S)
        self._by_size_digits = [0] * (_DIGITS_MAX + 1)

    @property
    def message_bytes(self) -> HistogramReading:
        """Sizes of stored records in bytes."""
        digits, smallest, largest = self._by_size_digits, _SMALLEST_SIZE_DIGITS, _LARGEST_SIZE_DIGITS
        counts = (sum(digits[: smallest + 1]), *digits[smallest + 1 : largest + 1], sum(digits[largest + 1 :]))
        total = float(sum(topic.bytes for topic in self.topics.values()))
        return HistogramReading(SIZE_BOUNDS_BYTES, counts, total, (None,) * len(counts))

    def stored(self, topic: str, messages: int, size_bytes: int) -> None:
        """A put was appended: `size_bytes` in all. A batch counts with its mean size, as in RocketMQ."""
        puts = self.topics.get(topic)
        if puts is None:
            puts = self._first_of(topic)
        puts.messages += messages
        puts.bytes += size_bytes
        size = size_bytes if messages == 1 else size_bytes // messages
        # A size of exactly a power of two belongs to the bucket that ends there.
        self._by_size_digits[(size - 1).bit_length()] += messages

    def _first_of(self, topic: str) -> TopicPuts:
        name = topic if len(self.topics) < self._topics_max else OTHER
        return self.topics.setdefault(name, TopicPuts())

    def answered(self, status: PutStatus, duration_ns: int, messages: int) -> None:
        """Messages got their answer so long after they had been read."""
        histogram = self._ok_s if status is _PUT_OK else self.send_to_ack_s.get(status)
        if histogram is None:
            histogram = self.send_to_ack_s[status] = Histogram(LATENCY_BOUNDS_S)
        histogram.observe(float(duration_ns) * _S_PER_NS, messages)

    def acknowledged(self, duration_ns: int) -> None:
        """Enough slaves have a put so long after its append."""
        self.ack_latency_s.observe(float(duration_ns) * _S_PER_NS)

    def note_exemplars(
        self,
        context: TraceContext,
        status: PutStatus,
        *,
        wall_ms: int,
        duration_ns: int,
        ack_latency_ns: int | None,
    ) -> None:
        """A put whose durations were counted has a trace."""
        trace_id, span_id, _ = context
        histogram = self._ok_s if status is _PUT_OK else self.send_to_ack_s.get(status)
        if histogram is not None:
            histogram.note_exemplar((float(duration_ns) * _S_PER_NS, trace_id, span_id, wall_ms))
        if ack_latency_ns is not None:
            self.ack_latency_s.note_exemplar((float(ack_latency_ns) * _S_PER_NS, trace_id, span_id, wall_ms))


# What consumers were given, by topic and consumer group: plain counters where deliveries pass, read when asked for.

# As many as consume anything in the largest cluster anybody runs; each costs about 300 bytes.
_PAIRS_MAX: Final = 50_000


@dataclass(slots=True)
class DeliveryCounts:
    """Since the start of the process. Bytes are those of the messages as they went out, encoded."""

    # Deliveries of any attempt, redeliveries among them.
    messages: int = 0
    bytes: int = 0
    # Second and later attempts alone.
    redelivered_messages: int = 0
    redelivered_bytes: int = 0
    # Written to the group's dead letter queue, by the broker or because a client asked.
    dead_letters: int = 0


class DeliveryMeter:
    """Counts for all pairs of topic and consumer group. Event loop only."""

    def __init__(self, *, pairs_max: int = _PAIRS_MAX) -> None:
        """Beyond `pairs_max` a further pair is counted under (`OTHER`, `OTHER`)."""
        self._pairs_max = pairs_max
        self.counts: dict[tuple[str, str], DeliveryCounts] = {}
        """By (topic, consumer group). A view: it changes with the next delivery."""

    def of(self, topic: str, group: str) -> DeliveryCounts:
        """The pair's own counters, to be added to."""
        counts = self.counts.get((topic, group))
        return counts if counts is not None else self._first_of(topic, group)

    def _first_of(self, topic: str, group: str) -> DeliveryCounts:
        pair = (topic, group) if len(self.counts) < self._pairs_max else (OTHER, OTHER)
        return self.counts.setdefault(pair, DeliveryCounts())
