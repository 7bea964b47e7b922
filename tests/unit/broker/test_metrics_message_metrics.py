"""What is told of messages in and out."""

from __future__ import annotations

from types import MappingProxyType

from support.manual_time import ManualTime
from tandemmq.broker.metrics import MessageMetrics
from tandemmq.broker.metrics_catalogue import BROKER_METRICS
from tandemmq.broker.put import DeliveryMeter, PutMeter
from tandemmq.core.histogram import HistogramReading
from tandemmq.core.metadata.topic_table import ATTRIBUTE_MESSAGE_TYPE, TopicConfig, TopicTable
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.service.event_loop import TurnLimit
from tandemmq.service.metrics import OTHER, MetricSamples, SeriesLimit

PRESET = "SYNC_MASTER/ASYNC_FLUSH"


class Messages:
    """Meters, and what is told of them."""

    def __init__(self, *, series_max: int = 10) -> None:
        self.puts = PutMeter()
        self.deliveries = DeliveryMeter()
        self.topics = TopicTable()
        self.metrics = MessageMetrics(
            puts=self.puts,
            deliveries=self.deliveries,
            topics=self.topics,
            is_system_topic=lambda name: name.startswith("rmq_sys_"),
            preset=PRESET,
            topic_limit=SeriesLimit(series_max),
            pair_limit=SeriesLimit(series_max),
        )

    async def told(self) -> dict[tuple[str, ...], float | HistogramReading]:
        samples = MetricSamples(BROKER_METRICS, base=("c", "broker", "a", "0"))
        await self.metrics.tell(samples, TurnLimit(ManualTime()))
        return {
            (family.info.name, *labels[4:]): value for family in samples.families() for labels, value in family.samples
        }


async def test_puts_are_told_by_topic_and_its_type() -> None:
    messages = Messages()
    fifo = MappingProxyType({ATTRIBUTE_MESSAGE_TYPE: "FIFO"})
    messages.topics.put(TopicConfig("orders", 1, 1, attributes=fifo), now_ms=1)
    messages.puts.stored("orders", 2, 600)
    messages.puts.stored("rmq_sys_x", 1, 100)
    told = await messages.told()
    assert told["rocketmq_messages_in_total", "orders", "FIFO", "false"] == 2
    assert told["rocketmq_throughput_in_total", "orders", "FIFO", "false"] == 600
    assert told["rocketmq_messages_in_total", "rmq_sys_x", "NORMAL", "true"] == 1


async def test_times_to_the_answer_are_told_by_status() -> None:
    messages = Messages()
    messages.puts.answered(PutStatus.FLUSH_SLAVE_TIMEOUT, 3_000_000_000, 1)
    told = await messages.told()
    reading = told["rocketmq_send_to_ack_seconds", PRESET, "FLUSH_SLAVE_TIMEOUT"]
    assert isinstance(reading, HistogramReading)
    assert (sum(reading.counts), reading.total) == (1, 3.0)


async def test_deliveries_are_told_by_pair_and_attempt() -> None:
    messages = Messages()
    counts = messages.deliveries.of("orders", "billing")
    counts.messages, counts.bytes = 10, 1_000
    counts.redelivered_messages, counts.redelivered_bytes, counts.dead_letters = 3, 300, 1
    told = await messages.told()
    labels = ("orders", "billing", "false")
    assert told["rocketmq_messages_out_total", *labels, "false"] == 7
    assert told["rocketmq_messages_out_total", *labels, "true"] == 3
    assert told["rocketmq_throughput_out_total", *labels, "false"] == 700
    assert told["rocketmq_send_to_dlq_messages_total", *labels] == 1


async def test_beyond_the_limit_counts_are_summed_up_and_nothing_is_lost() -> None:
    messages = Messages(series_max=2)
    for number in range(5):
        messages.puts.stored(f"topic-{number}", 1, 100)
        messages.deliveries.of(f"topic-{number}", "billing").messages = 1
    for _ in range(2):
        told = await messages.told()
        assert told["rocketmq_messages_in_total", "topic-1", "NORMAL", "false"] == 1
        assert told["rocketmq_messages_in_total", OTHER, OTHER, "false"] == 3
        assert told["rocketmq_messages_out_total", OTHER, OTHER, "false", "false"] == 3
        assert len([labels for labels in told if labels[0] == "rocketmq_messages_in_total"]) == 3
