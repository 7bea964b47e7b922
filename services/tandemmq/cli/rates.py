"""What brokers do per second: the difference of two readings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandemmq.cli.connection import ClusterConnection, refuse_blindness

if TYPE_CHECKING:
    from tandemmq.admin.cluster_state import BrokerStatus, ClusterState, LatencyCounts
    from tandemmq.core.clock import Clock

__all__ = ["BrokerRates", "read_with_rates"]


@dataclass(frozen=True, slots=True)
class BrokerRates:
    """Of one broker between two readings."""

    messages_in: float
    messages_out: float
    bytes_in: float
    # Bytes sent to each slave, by its connection.
    sent_bytes: Mapping[str, float]
    # Growth of its own CommitLog in bytes.
    log_growth: float
    # What was acknowledged in between; of masters.
    ack_latency: LatencyCounts


async def read_with_rates(
    connection: ClusterConnection, clock: Clock, *, interval_s: float
) -> tuple[ClusterState, dict[str, BrokerRates]]:
    """The cluster after `interval_s` seconds, and by `name:id` what those did that answered twice."""
    earlier_state = await connection.read_state()
    refuse_blindness(earlier_state)
    before = {broker.key: broker.status for broker in earlier_state.brokers}
    started_ms = clock.monotonic_ms()
    await asyncio.sleep(interval_s)
    state = await connection.read_state()
    seconds = max(0.001, (clock.monotonic_ms() - started_ms) / 1_000)
    rates = {}
    for broker in state.brokers:
        earlier = before.get(broker.key)
        if earlier is not None and broker.status is not None and earlier.uptime_seconds <= broker.status.uptime_seconds:
            rates[broker.key] = _rates(earlier, broker.status, seconds)
    return state, rates


def _rates(before: BrokerStatus, now: BrokerStatus, seconds: float) -> BrokerRates:
    from tandemmq.admin.history import between

    sent_before = {slave.peer: slave.sent_bytes for slave in before.slaves}
    return BrokerRates(
        messages_in=max(0, now.messages_in_count - before.messages_in_count) / seconds,
        messages_out=max(0, now.messages_out_count - before.messages_out_count) / seconds,
        bytes_in=max(0, now.bytes_in_count - before.bytes_in_count) / seconds,
        sent_bytes={
            slave.peer: max(0, slave.sent_bytes - sent_before[slave.peer]) / seconds
            for slave in now.slaves
            if slave.peer in sent_before
        },
        log_growth=max(0, now.end_offset - before.end_offset) / seconds,
        ack_latency=between(before.ack_latency, now.ack_latency) or now.ack_latency,
    )
