"""What becomes of readings: rates, quantiles, gaps, and when a slave has caught up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from support.cluster_histories import observe
from support.cluster_states import master
from tandemmq.admin.cluster_state import BrokerState, ClusterState, LatencyCounts, SlaveState
from tandemmq.admin.history import ClusterHistory, Figure, UsageHistory

_MASTER = "broker-a:0"


def _cluster(*brokers: BrokerState) -> ClusterState:
    return ClusterState(name_servers=(), brokers=brokers)


def _slave(lag_bytes: int, lag_seconds: float = 0.0) -> SlaveState:
    return SlaveState(
        peer="10.0.0.1:4000",
        broker_id=1,
        acked_offset=0,
        lag_bytes=lag_bytes,
        in_sync=True,
        verified=True,
        lag_seconds=lag_seconds,
    )


def _values(history: ClusterHistory, figure: Figure) -> list[float | None]:
    return [None if math.isnan(value) else value for value in history.figure(_MASTER, figure).values]


def test_counters_become_rates() -> None:
    history = ClusterHistory()
    states = [
        _cluster(master(messages_in_count=count, bytes_in_count=count * 100, uptime_seconds=count))
        for count in (1_000, 1_500, 1_600)
    ]
    observe(history, *states)
    assert _values(history, Figure.MESSAGES_IN) == [None, 100.0, 20.0]
    assert history.figure(_MASTER, Figure.BYTES_IN).newest == 2_000.0


def test_restart_of_a_broker_is_a_gap_and_no_negative_rate() -> None:
    history = ClusterHistory()
    counts = ((900, 50), (950, 55), (10, 2), (60, 7))
    states = [_cluster(master(messages_in_count=count, uptime_seconds=uptime)) for count, uptime in counts]
    observe(history, *states)
    assert _values(history, Figure.MESSAGES_IN) == [None, 10.0, None, 10.0]


def test_silent_broker_is_a_gap() -> None:
    history = ClusterHistory()
    silent = replace(master(), status=None, error="refused")
    observe(history, *(_cluster(broker) for broker in (master(), silent, master(), master())))
    assert _values(history, Figure.MEMORY) == [50 << 20, None, 50 << 20, 50 << 20]
    # The first answer after the silence cannot be compared with one before it.
    assert _values(history, Figure.LOG_GROWTH) == [None, None, None, 0.0]


def test_samples_are_taken_every_five_seconds_and_for_an_hour() -> None:
    history = ClusterHistory()
    observe(history, *([_cluster(master())] * 4_000), step_ms=2_000)
    samples = history.figure(_MASTER, Figure.MEMORY)
    assert len(samples.times_ms) == 720
    assert samples.times_ms[1] - samples.times_ms[0] == 6_000
    assert len(samples.values) == 720


def test_latencies_of_sends_are_those_between_two_samples() -> None:
    bounds = (0.01, 0.1)
    early = master(ack_latency=LatencyCounts(bounds, (1_000, 0, 0)), send_latency=LatencyCounts(bounds, (1_000, 0, 0)))
    late = master(ack_latency=LatencyCounts(bounds, (1_000, 10, 0)), send_latency=LatencyCounts(bounds, (1_000, 0, 0)))
    history = ClusterHistory()
    observe(history, _cluster(early), _cluster(late))
    assert history.figure(_MASTER, Figure.ACK_P99).newest == pytest.approx(0.0991)
    # Nothing was sent: not known, and not zero.
    assert history.figure(_MASTER, Figure.SEND_P99).newest is None
    recent = history.ack_latency(_MASTER)
    assert recent is not None
    assert recent.counts == (0, 10, 0)


def test_when_a_slave_has_caught_up() -> None:
    history = ClusterHistory()
    observe(history, *(_cluster(master(slaves=(_slave(lag),))) for lag in (10_000_000, 9_000_000, 8_000_000)))
    assert history.closing_rate(_MASTER, "1") == 200_000.0
    assert history.catch_up_seconds(_MASTER, _slave(8_000_000)) == 40.0
    assert history.catch_up_seconds(_MASTER, _slave(0)) == 0.0
    assert history.lag(_MASTER, "1").newest == 8_000_000


def test_a_slave_that_falls_behind_never_catches_up() -> None:
    history = ClusterHistory()
    observe(history, *(_cluster(master(slaves=(_slave(lag),))) for lag in (1_000, 2_000, 3_000)))
    assert history.closing_rate(_MASTER, "1") == -200.0
    assert history.catch_up_seconds(_MASTER, _slave(3_000)) is None


def test_one_sample_says_nothing_about_speed() -> None:
    history = ClusterHistory()
    observe(history, _cluster(master(slaves=(_slave(1_000),))))
    assert history.closing_rate(_MASTER, "1") is None
    assert history.catch_up_seconds(_MASTER, _slave(1_000)) is None
    assert history.closing_rate("nobody:0", "1") is None


def test_sum_over_brokers_leaves_out_who_is_silent() -> None:
    history = ClusterHistory()
    both = ("broker-a", "broker-b")

    def cluster(count: int, *names: str) -> ClusterState:
        sound = [master(name, messages_in_count=count, uptime_seconds=count) for name in names]
        silent = [
            replace(master(name), status=None, error="refused")
            for name in ("broker-a", "broker-b")
            if name not in names
        ]
        return _cluster(*sound, *silent)

    observe(history, cluster(0, *both), cluster(100, *both), cluster(200, "broker-a"), cluster(300))
    values = history.total(Figure.MESSAGES_IN).values
    assert list(values[1:3]) == [40.0, 20.0]
    assert math.isnan(values[0])
    assert history.total(Figure.MESSAGES_IN).newest is None


def test_broker_that_is_forgotten_is_forgotten_here() -> None:
    history = ClusterHistory()
    observe(history, _cluster(master("broker-a"), master("broker-b")), _cluster(master("broker-b")))
    assert not history.figure("broker-a:0", Figure.MEMORY).times_ms
    assert history.figure("broker-b:0", Figure.MEMORY).newest == 50 << 20


def test_a_day_is_kept_by_its_peaks_and_the_last_hour_whole() -> None:
    track = UsageHistory()
    for second in range(0, 26 * 3_600, 15):
        lag = 10_000 if second == 10_800 else second % 7
        track.observe_groups({"g": (lag, 0)}, at_wall_ms=1_000_000 + second * 1_000)
    end_ms = 1_000_000 + 26 * 3_600 * 1_000
    fine = track.lag("g")
    assert len(fine.times_ms) == 240
    assert fine.since(end_ms - 900_000).times_ms[0] >= end_ms - 900_000
    day = fine.since(end_ms - 25 * 3_600_000)
    assert list(day.times_ms) == sorted(set(day.times_ms))
    assert 720 <= len(day.times_ms) <= 740
    assert max(day.values) == 10_000
    assert day.newest == fine.newest


@pytest.mark.parametrize("step_ms", [1, 4_000, 7_200_000, 100 * 86_400_000])
def test_a_clock_that_is_set_back_takes_what_was_kept_with_it(step_ms: int) -> None:
    """Plots and forecasts go by times that grow."""
    history = ClusterHistory()
    usage = UsageHistory()
    for number in range(2_000):
        at_ms = 1_000_000 + number * 5_000
        wall_ms = 1_700_000_000_000 + at_ms - (step_ms if number >= 1_500 else 0)
        state = _cluster(master(slaves=(_slave(3_000_000 - number * 1_000),)))
        observe(history, state, first_wall_ms=wall_ms, first_ms=at_ms)
        usage.observe_groups({"g": (number, 0)}, at_wall_ms=wall_ms)
        if number >= 1_499:
            for samples in (history.lag(_MASTER, "1"), usage.lag("g")):
                day = samples.since(wall_ms - 86_400_000)
                assert list(day.times_ms) == sorted(set(day.times_ms))
                assert day.times_ms[-1] == wall_ms
            assert len(history.lag(_MASTER, "1").since(wall_ms - 60_000).times_ms) in (12, 13)
            assert history.catch_up_seconds(_MASTER, _slave(200_000)) == pytest.approx(1_000, rel=0.1)
    # The peak of the first two minutes.
    assert usage.lag("g").since(wall_ms - 86_400_000).values[0] < 24


def test_rates_of_topics_have_gaps_where_nobody_knows_and_after_a_topic_was_made_anew() -> None:
    usage = UsageHistory()
    for number, stored in enumerate((100, 400, -1, 700, 50, 200)):
        usage.observe_topics({"t": stored}, at_ms=number * 10_000, at_wall_ms=number * 10_000)
    known = [None if value != value else value for value in usage.rate("t").values]
    assert known == [None, 30.0, None, None, None, 15.0]
    usage.observe_topics({}, at_ms=70_000, at_wall_ms=70_000)
    assert usage.rate("t").times_ms == ()
