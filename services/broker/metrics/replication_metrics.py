"""How far slaves are behind, as their master sees it, and as a slave sees itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from broker.lag_age import LagAge
from broker.put_meter import PutMeter
from broker.slave.follower import Follower
from mqcore.replication.master_replica import SlaveView
from mqservice.metrics.metric_samples import MetricSamples

__all__ = ["MasterMetrics", "SlaveMetrics"]

_UNPROVEN: Final = "unproven"


class MasterMetrics:
    """Tells what a master knows of its slaves."""

    def __init__(
        self,
        *,
        slaves: Callable[[], Sequence[SlaveView]],
        lag_age: LagAge,
        refused_connections: Callable[[], Mapping[str, int]],
        refused_report_count: Callable[[], int],
        puts: PutMeter,
        needed_slaves: int,
    ) -> None:
        self._slaves = slaves
        self._lag_age = lag_age
        self._refused_connections = refused_connections
        self._refused_report_count = refused_report_count
        self._puts = puts
        self._needed_slaves = needed_slaves

    def tell(self, samples: MetricSamples) -> None:
        """Adds its samples."""
        slaves = self._slaves()
        samples.add("rocketmq_store_ha_slaves_connected", len(slaves))
        samples.add("rocketmq_store_ha_slaves_in_sync", sum(slave.in_sync for slave in slaves))
        samples.add("rocketmq_store_ha_slaves_needed", self._needed_slaves)
        for slave in _by_name(slaves):
            samples.add("rocketmq_store_ha_replication_lag_bytes", slave.lag_bytes, slave.name)
            samples.add(
                "rocketmq_store_ha_replication_lag_seconds", self._lag_age.lag_s(slave.acked_offset), slave.name
            )
            samples.add("rocketmq_store_ha_slave_in_sync", slave.in_sync, slave.name)
        samples.add_histogram("rocketmq_store_ha_ack_latency_seconds", self._puts.ack_latency_s.reading())
        samples.add("rocketmq_store_ha_reports_refused_total", self._refused_report_count())
        samples.add_counts("rocketmq_store_ha_connections_refused_total", self._refused_connections())


class SlaveMetrics:
    """Tells what a slave knows of itself."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def tell(self, samples: MetricSamples) -> None:
        """Adds its samples."""
        samples.add("rocketmq_store_ha_slave_following", self._follower.is_following)
        samples.add("rocketmq_store_ha_slave_behind_bytes", self._follower.lag_bytes)
        samples.add("rocketmq_store_ha_slave_refusing", self._follower.is_refusing)


class _Slave(NamedTuple):
    name: str
    acked_offset: int
    lag_bytes: int
    in_sync: bool


def _by_name(slaves: Iterable[SlaveView]) -> Iterator[_Slave]:
    """Once for each name: two connections of one slave are one series, the worst.

    Connections that have not proven who they are have only a port number to go by, and every retry has a new one; they
    share a name, as labels have to be bounded.
    """
    found: dict[str, _Slave] = {}
    for view in slaves:
        name = str(view.broker_id) if view.broker_id is not None else _UNPROVEN
        slave = _Slave(name, view.acked_offset, view.lag_bytes, view.in_sync)
        known = found.get(name)
        if known is None or slave.lag_bytes > known.lag_bytes:
            found[name] = slave
    yield from (found[name] for name in sorted(found))
