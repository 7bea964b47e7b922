"""What went in and out, by topic and consumer group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Final

from broker.delivery_meter import DeliveryCounts, DeliveryMeter
from broker.metrics.turn_limit import TurnLimit
from broker.put_meter import PutMeter, TopicPuts
from mqcore.metadata.topic_table import TopicTable, system_subscription_groups
from mqservice.metrics.metric_samples import MetricSamples
from mqservice.metrics.series_limit import OTHER, SeriesLimit

__all__ = ["MessageMetrics", "flag"]

_NORMAL: Final = "NORMAL"
_SYSTEM_GROUPS: Final = frozenset(group.group_name for group in system_subscription_groups())


def flag(value: bool) -> str:
    """A label that says yes or no, as RocketMQ writes it."""
    return "true" if value else "false"


class MessageMetrics:
    """Tells the counts of what producers put and consumers were given; the rest of too many is told as `OTHER`."""

    def __init__(
        self,
        *,
        puts: PutMeter,
        deliveries: DeliveryMeter,
        topics: TopicTable,
        is_system_topic: Callable[[str], bool],
        preset: str,
        topic_limit: SeriesLimit[str],
        pair_limit: SeriesLimit[tuple[str, str]],
    ) -> None:
        """`preset` says what a send waits for."""
        self._puts = puts
        self._deliveries = deliveries
        self._topics = topics
        self._is_system_topic = is_system_topic
        self._preset = preset
        self._topic_limit = topic_limit
        self._pair_limit = pair_limit

    async def tell(self, samples: MetricSamples, turn: TurnLimit) -> None:
        """Adds its samples."""
        samples.add_histogram("rocketmq_message_size", self._puts.message_bytes)
        for status, histogram in self._puts.send_to_ack_s.items():
            samples.add_histogram("rocketmq_send_to_ack_seconds", histogram.reading(), self._preset, status.name)
        await self._tell_puts(samples, turn)
        await self._tell_deliveries(samples, turn)

    async def _tell_puts(self, samples: MetricSamples, turn: TurnLimit) -> None:
        others: defaultdict[bool, TopicPuts] = defaultdict(TopicPuts)
        for topic, puts in list(self._puts.topics.items()):
            is_system = self._is_system_topic(topic)
            if topic != OTHER and self._topic_limit.admits(topic):
                config = self._topics.get(topic)
                message_type = config.message_type if config is not None else _NORMAL
                _tell_topic(samples, topic, message_type, is_system, puts)
            else:
                other = others[is_system]
                other.messages += puts.messages
                other.bytes += puts.bytes
            if turn.is_reached:
                await turn.pause()
        for is_system, puts in others.items():
            _tell_topic(samples, OTHER, OTHER, is_system, puts)

    async def _tell_deliveries(self, samples: MetricSamples, turn: TurnLimit) -> None:
        others: defaultdict[bool, DeliveryCounts] = defaultdict(DeliveryCounts)
        for (topic, group), counts in list(self._deliveries.counts.items()):
            is_system = group in _SYSTEM_GROUPS or self._is_system_topic(topic)
            if topic != OTHER and self._pair_limit.admits((topic, group)):
                _tell_pair(samples, topic, group, is_system, counts)
            else:
                _add(others[is_system], counts)
            if turn.is_reached:
                await turn.pause()
        for is_system, counts in others.items():
            _tell_pair(samples, OTHER, OTHER, is_system, counts)


def _tell_topic(samples: MetricSamples, topic: str, message_type: str, is_system: bool, puts: TopicPuts) -> None:
    labels = (topic, message_type, flag(is_system))
    samples.add("rocketmq_messages_in_total", puts.messages, *labels)
    samples.add("rocketmq_throughput_in_total", puts.bytes, *labels)


def _tell_pair(samples: MetricSamples, topic: str, group: str, is_system: bool, counts: DeliveryCounts) -> None:
    labels = (topic, group, flag(is_system))
    first_messages = counts.messages - counts.redelivered_messages
    samples.add("rocketmq_messages_out_total", first_messages, *labels, flag(False))
    samples.add("rocketmq_messages_out_total", counts.redelivered_messages, *labels, flag(True))
    samples.add("rocketmq_throughput_out_total", counts.bytes - counts.redelivered_bytes, *labels, flag(False))
    samples.add("rocketmq_throughput_out_total", counts.redelivered_bytes, *labels, flag(True))
    samples.add("rocketmq_send_to_dlq_messages_total", counts.dead_letters, *labels)


def _add(total: DeliveryCounts, counts: DeliveryCounts) -> None:
    total.messages += counts.messages
    total.bytes += counts.bytes
    total.redelivered_messages += counts.redelivered_messages
    total.redelivered_bytes += counts.redelivered_bytes
    total.dead_letters += counts.dead_letters
