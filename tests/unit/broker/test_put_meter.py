"""Counters of puts."""

from __future__ import annotations

from tandemmq.broker.put import PutMeter, TopicPuts
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.service.metrics import OTHER


def test_counts_messages_and_bytes_by_topic() -> None:
    meter = PutMeter()
    meter.stored("orders", 1, 300)
    meter.stored("orders", 2, 500)
    meter.stored("bills", 1, 90)
    assert meter.topics == {"orders": TopicPuts(3, 800), "bills": TopicPuts(1, 90)}


def test_topics_that_come_and_go_are_counted_together_in_the_end() -> None:
    meter = PutMeter(topics_max=2)
    for topic in ("orders", "bills", "letters", "parcels", "orders"):
        meter.stored(topic, 1, 100)
    assert meter.topics == {"orders": TopicPuts(2, 200), "bills": TopicPuts(1, 100), OTHER: TopicPuts(2, 200)}


def test_a_size_that_is_a_bound_belongs_to_the_bucket_that_ends_there() -> None:
    meter = PutMeter()
    for size in (91, 128, 129, 256, 257, 4 << 20, (4 << 20) + 1):
        meter.stored("orders", 1, size)
    reading = meter.message_bytes
    assert dict(zip(reading.bounds, reading.counts, strict=False)) == {
        **dict.fromkeys(reading.bounds, 0),
        128.0: 2,
        256.0: 2,
        512.0: 1,
        float(4 << 20): 1,
    }
    assert reading.counts[-1] == 1
    assert reading.total == 91 + 128 + 129 + 256 + 257 + (4 << 20) + (4 << 20) + 1


def test_a_batch_counts_with_its_mean_size() -> None:
    meter = PutMeter()
    meter.stored("orders", 4, 4_000)
    assert meter.message_bytes.counts[3] == 4  # 513 to 1,024 bytes


def test_durations_are_kept_apart_by_what_the_sender_was_told() -> None:
    meter = PutMeter()
    meter.answered(PutStatus.PUT_OK, 900_000, 3)
    meter.answered(PutStatus.FLUSH_SLAVE_TIMEOUT, 3_000_000_000, 1)
    assert {status: sum(histogram.reading().counts) for status, histogram in meter.send_to_ack_s.items()} == {
        PutStatus.PUT_OK: 3,
        PutStatus.FLUSH_SLAVE_TIMEOUT: 1,
    }
    assert meter.send_to_ack_s[PutStatus.PUT_OK].reading().counts[3] == 3  # 0.5 to 1 ms
    assert abs(meter.send_to_ack_s[PutStatus.PUT_OK].reading().total - 0.0027) < 1e-9


def test_a_latency_of_acknowledgement() -> None:
    meter = PutMeter()
    meter.acknowledged(250_000)
    assert meter.ack_latency_s.reading().counts[1] == 1  # up to and with 0.25 ms
