"""Synchronous sends: every message is on the slave before it is acknowledged.

Rows come from the Go generator, which costs so little that the servers are what is measured, on both protocols; the
official Java clients and ghz show what other clients get.
"""

from __future__ import annotations

from typing import Final

from load_generators import Window
from measurements.rounds import Case, Rounds
from measurements.side_by_side import CLUSTER, LOCAL, OURS, OURS_TLS, REMOTING, SideBySide
from report import Row

MANY_IN_FLIGHT: Final = (32, 256)
GRPC_MODES: Final = (LOCAL, CLUSTER)


def _rate(window: Window) -> float:
    return window.rate


def _cpu(window: Window) -> float:
    return window.server_cpu_us


def _p50(window: Window) -> float | None:
    return window.p50_ms


def _p99(window: Window) -> float | None:
    return window.p99_ms


def cases(side: SideBySide) -> list[Case]:
    """1, 32 and 256 sends in flight."""
    return [
        Case(
            f"sync_send_{inflight}",
            f"sync sends, {inflight} in flight, Go generator",
            [*side.raw_sends(inflight), side.remoting_send(inflight)],
        )
        for inflight in (1, *MANY_IN_FLIGHT)
    ]


def rows(rounds: Rounds) -> list[Row]:
    """The issue's rows for single sends, then every contender's own figures."""
    found = []
    for inflight in MANY_IN_FLIGHT:
        case = f"sync_send_{inflight}"
        cpu = {label: rounds.median(case, label, _cpu) for label in rounds.contenders(case)}
        rate = {label: rounds.median(case, label, _rate) for label in rounds.contenders(case)}
        found += [
            Row.at_most(f"sync_send_cpu_{inflight}", cpu[OURS] / min(cpu[mode] for mode in GRPC_MODES), 0.3),
            Row.at_most(f"sync_send_cpu_{inflight}_vs_remoting", cpu[OURS] / cpu[REMOTING], 0.6),
            Row.at_least(
                f"sync_send_rate_{inflight}", rate[OURS] / max(rate[mode] for mode in (*GRPC_MODES, REMOTING)), 2.0
            ),
        ]
    p99 = {label: rounds.median("sync_send_32", label, _p99) for label in rounds.contenders("sync_send_32")}
    found.append(Row.at_most("sync_send_p99_32", p99[OURS] / min(p99[mode] for mode in (*GRPC_MODES, REMOTING)), 0.5))
    p50 = {label: rounds.median("sync_send_1", label, _p50) for label in (OURS, REMOTING)}
    found.append(Row.at_most("sync_send_p50_1", p50[OURS] / p50[REMOTING], 0.8))
    for inflight in (1, *MANY_IN_FLIGHT):
        found += rounds.absolute_rows("sync_send", str(inflight), f"sync_send_{inflight}")
    return found


def tls_cases(side: SideBySide) -> list[Case]:
    """Single sends, plain and with TLS, to the same broker."""
    return [
        Case(
            f"tls_send_{inflight}",
            f"sync sends, {inflight} in flight, plain and with TLS",
            [side.raw_send_to_ours(inflight), side.tls_send_to_ours(inflight)],
        )
        for inflight in MANY_IN_FLIGHT
    ]


def tls_rows(rounds: Rounds) -> list[Row]:
    """CPU of both brokers for a message with TLS, as a multiple of what one without costs."""
    found = []
    for inflight in MANY_IN_FLIGHT:
        case = f"tls_send_{inflight}"
        cpu = {label: rounds.median(case, label, _cpu) for label in (OURS, OURS_TLS)}
        found.append(Row.at_most(f"send_cpu_tls_{inflight}", cpu[OURS_TLS] / cpu[OURS], 1.35))
    for inflight in MANY_IN_FLIGHT:
        found += rounds.absolute_rows("tls_send", str(inflight), f"tls_send_{inflight}")
    return found


def client_cases(side: SideBySide) -> list[Case]:
    """The same loads by other clients."""
    official = [
        Case(
            f"official_send_{inflight}",
            f"sync sends, {inflight} in flight, official Java clients",
            side.official_sends(inflight),
        )
        for inflight in MANY_IN_FLIGHT
    ]
    return [*official, Case("ghz_send_32", "sync sends, 32 in flight, ghz", side.ghz_sends(32))]


def client_rows(rounds: Rounds) -> list[Row]:
    """Ratios by client, for reading: on two CPUs a Java client is the slower half of the pair.

    The last ones are what applications of either system see: the official clients, RocketMQ's over its own protocol.
    """
    found = []
    for family, inflight in (("official", 32), ("official", 256), ("ghz", 32)):
        case = f"{family}_send_{inflight}"
        for name, figure, best in (("cpu", _cpu, min), ("rate", _rate, max)):
            theirs = best(rounds.median(case, mode, figure) for mode in GRPC_MODES)
            ratio = rounds.median(case, OURS, figure) / theirs
            found.append(Row.absolute(f"{family}_send_{name}_{inflight}", ratio, "ratio"))
            if REMOTING in rounds.contenders(case):
                ratio = rounds.median(case, OURS, figure) / rounds.median(case, REMOTING, figure)
                found.append(Row.absolute(f"{family}_send_{name}_{inflight}_vs_remoting", ratio, "ratio"))
        found += rounds.absolute_rows(f"{family}_send", str(inflight), case)
    return found


def batch_cases(side: SideBySide) -> list[Case]:
    """32 messages a request, 8 requests in flight."""
    return [
        Case(
            "batch_send",
            "sync sends of 32 messages a request, 8 requests in flight",
            [side.raw_send_to_ours(8, batch=32), side.remoting_batch()],
        )
    ]


def batch_rows(rounds: Rounds) -> list[Row]:
    """Per message."""
    cpu = {label: rounds.median("batch_send", label, _cpu) for label in (OURS, REMOTING)}
    rate = {label: rounds.median("batch_send", label, _rate) for label in (OURS, REMOTING)}
    return [
        Row.at_most("batch_send_cpu", cpu[OURS] / cpu[REMOTING], 0.8),
        Row.at_least("batch_send_rate", rate[OURS] / rate[REMOTING], 1.2),
        *rounds.absolute_rows("batch_send", "", "batch_send"),
    ]
