"""How far slaves are said to be behind."""

from __future__ import annotations

from support.manual_time import ManualTime
from tandemmq.broker.metrics import LagAge, tell_slaves
from tandemmq.broker.metrics_catalogue import BROKER_METRICS
from tandemmq.core.replication.master_replica import SlaveView
from tandemmq.service.metrics import MetricSamples


def slave(acked_offset: int, *, lag_bytes: int, broker_id: int | None = 1, in_sync: bool = True) -> SlaveView:
    return SlaveView(1, "10.0.0.2:5", broker_id, acked_offset, lag_bytes, in_sync, verified=True)


class Master:
    """A log that grows, slaves that follow, and what is told of them."""

    def __init__(self) -> None:
        self.time = ManualTime()
        self.end_offset = 0
        self.slaves: list[SlaveView] = []
        self.lag_age = LagAge(end_offset=lambda: self.end_offset, clock=self.time)

    def grow(self, end_offset: int) -> None:
        """The log is so long for the next second."""
        self.end_offset = end_offset
        self.lag_age.tick()
        self.time.advance(1_000)

    def told(self) -> dict[tuple[str, ...], float]:
        samples = MetricSamples(BROKER_METRICS, base=("c", "broker", "a", "0"))
        tell_slaves(
            samples,
            self.slaves,
            self.lag_age,
            needed_count=1,
            refused_report_count=3,
            refused_connections={"replaced": 2},
        )
        return {
            (family.info.name.removeprefix("rocketmq_store_ha_"), *labels[4:]): value
            for family in samples.families()
            for labels, value in family.samples
            if isinstance(value, int | float)
        }


def test_the_age_of_a_lag_is_that_of_the_first_byte_that_is_missing() -> None:
    master = Master()
    for end_offset in (100, 200, 300, 300, 300):
        master.grow(end_offset)
    master.slaves = [slave(150, lag_bytes=150)]
    told = master.told()
    assert told["replication_lag_bytes", "1"] == 150
    assert told["replication_lag_seconds", "1"] == 4.0


def test_a_slave_that_holds_everything_has_no_lag() -> None:
    master = Master()
    master.grow(100)
    master.slaves = [slave(100, lag_bytes=0)]
    assert master.told()["replication_lag_seconds", "1"] == 0


def test_bytes_of_this_second_are_no_lag_in_time() -> None:
    master = Master()
    master.grow(100)
    master.end_offset = 180
    master.slaves = [slave(100, lag_bytes=80)]
    told = master.told()
    assert (told["replication_lag_bytes", "1"], told["replication_lag_seconds", "1"]) == (80, 0)


def test_what_was_there_before_the_start_counts_from_the_start() -> None:
    master = Master()
    for _ in range(5):
        master.grow(1_000)
    master.slaves = [slave(10, lag_bytes=990)]
    assert master.told()["replication_lag_seconds", "1"] == 5.0


def test_a_log_that_was_cut_has_the_age_of_its_cut() -> None:
    master = Master()
    master.grow(1_000)
    master.grow(900)
    master.grow(900)
    master.slaves = [slave(10, lag_bytes=890)]
    assert master.told()["replication_lag_seconds", "1"] == 2.0


def test_slaves_are_counted_and_those_without_a_proof_share_a_name() -> None:
    master = Master()
    master.grow(100)
    master.slaves = [
        slave(100, lag_bytes=0),
        slave(60, lag_bytes=40, broker_id=None),
        slave(20, lag_bytes=80, broker_id=None, in_sync=False),
    ]
    told = master.told()
    assert (told["slaves_connected",], told["slaves_in_sync",], told["slaves_needed",]) == (3, 2, 1)
    assert (told["replication_lag_bytes", "unproven"], told["slave_in_sync", "unproven"]) == (80, 0)
    assert told["slave_in_sync", "1"] == 1
    assert told["reports_refused_total",] == 3
    assert told["connections_refused_total", "replaced"] == 2
