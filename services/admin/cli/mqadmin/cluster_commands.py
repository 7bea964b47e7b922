"""clusterList and brokerStatus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Final

import typer

from admin.cli.broker_choice import check_cluster_name, find_broker
from admin.cli.cluster_choice import ClusterChoice, with_cluster
from admin.cli.connection import ClusterConnection
from admin.cli.mqadmin.columns import Columns, emit_lines
from admin.cli.mqadmin.options import BrokerAddrOption, ClusterNameOption, IntervalOption, refuse
from admin.cli.mqadmin.repeat import repeat
from admin.cli.options import OutputOption
from admin.cli.output import OutputFormat
from admin.cli.rates import BrokerRates, read_with_rates
from admin.cluster_state import BrokerState, BrokerStatus
from mqcore.clock import Clock
from mqservice.loop_meter import SystemClock

__all__ = ["broker_status", "cluster_list"]

_LIST: Final = Columns(
    ("#Cluster Name", 22),
    ("#Broker Name", 22),
    ("#BID", 4),
    ("#Addr", 22),
    ("#Version", 16),
    ("#InTPS(LOAD)", -16),
    ("#OutTPS(LOAD)", -30),
    ("#Timer(Progress)", 22),
    ("#PCWait(ms)", -11),
    ("#Hour", 12),
    ("#SPACE", 8),
    ("#ACTIVATED", -10),
)
_MORE: Final = Columns(
    ("#Cluster Name", 16),
    ("#Broker Name", 32),
    ("#InTotalYest", -14),
    ("#OutTotalYest", -14),
    ("#InTotalToday", -14),
    ("#OutTotalToday", -14),
)
_RATE_INTERVAL_S: Final = 1.0
# What this version has no equal of; RocketMQ's columns stay where scripts look for them.
_NO_TIMER: Final = "0-0(0.0w, 0.0, 0.0)"


@with_cluster
def cluster_list(
    cluster: ClusterChoice,
    more_stats: Annotated[bool, typer.Option("--moreStats", "-m", help="Messages in and out instead.")] = False,
    interval: IntervalOption = 0,
    cluster_name: ClusterNameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List clusters and brokers. InTPS and OutTPS are measured over a second; with -m, since each broker's start.

    Example: mqadmin clusterList -n 127.0.0.1:9876
    """

    async def once(connection: ClusterConnection) -> None:
        clock = SystemClock()
        state, rates = await read_with_rates(connection, clock, interval_s=_RATE_INTERVAL_S)
        check_cluster_name(state, cluster_name)
        found = [broker for broker in state.brokers if cluster_name in (None, broker.cluster)]
        lines = _more_lines(found) if more_stats else _LIST.lines(_row(each, rates, clock) for each in found)
        emit_lines(output, found, lines)

    cluster.run(lambda connection: repeat(lambda: once(connection), interval_s=interval))


@with_cluster
def broker_status(
    cluster: ClusterChoice,
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the state of a broker, or of all of a cluster, by RocketMQ's names.

    Examples:

      mqadmin brokerStatus -b 127.0.0.1:10911

      mqadmin brokerStatus -c DefaultCluster
    """
    if (broker_addr is None) == (cluster_name is None):
        raise refuse("which broker?", remedy="give -b for one, or -c for all")

    async def read(connection: ClusterConnection) -> dict[str, dict[str, str]]:
        clock = SystemClock()
        state, rates = await read_with_rates(connection, clock, interval_s=_RATE_INTERVAL_S)
        check_cluster_name(state, cluster_name)
        brokers: Sequence[BrokerState] = state.brokers if broker_addr is None else [find_broker(state, broker_addr)]
        return {each.metadata_endpoint: _facts(each, rates.get(each.key), clock) for each in brokers}

    found = cluster.run(read)
    prefixed = cluster_name is not None
    lines = [
        f"{address:<24} {name:<32}: {value}" if prefixed else f"{name:<32}: {value}"
        for address, facts in found.items()
        for name, value in sorted(facts.items())
    ]
    emit_lines(output, found, lines)


def _row(broker: BrokerState, rates: Mapping[str, BrokerRates], clock: Clock) -> Sequence[object]:
    status, rate = broker.status, rates.get(broker.key)
    head = (broker.cluster, broker.broker_name, broker.broker_id, broker.metadata_endpoint)
    if status is None:
        return (*head, "", "0.00(,ms)", "0.00(,ms|N,Nms)", _NO_TIMER, "", "0.00", "0.0000", "false")
    in_rate, out_rate = (rate.messages_in, rate.messages_out) if rate is not None else (0.0, 0.0)
    space = status.disk.used_ratio if status.disk is not None else 0.0
    return (
        *head,
        status.version,
        f"{in_rate:9.2f}({status.waiting_send_count},0ms)",
        f"{out_rate:9.2f}(0,0ms|0,0ms)",
        _NO_TIMER,
        0,
        # RocketMQ tells the age of the oldest message here; known is how long the broker runs.
        f"{status.uptime_seconds / 3_600:.2f}",
        f"{space:.4f}",
        str(not status.write_refusal or not broker.is_master).lower(),
    )


def _more_lines(brokers: Iterable[BrokerState]) -> list[str]:
    return _MORE.lines(
        (
            broker.cluster,
            broker.broker_name,
            0,
            0,
            broker.status.messages_in_count if broker.status else 0,
            broker.status.messages_out_count if broker.status else 0,
        )
        for broker in brokers
        if broker.is_master
    )


def _facts(broker: BrokerState, rate: BrokerRates | None, clock: Clock) -> dict[str, str]:
    if broker.status is None:
        return {"brokerActive": "false", "error": broker.error or "does not answer"}
    status: BrokerStatus = broker.status
    up = timedelta(seconds=status.uptime_seconds)
    hours, rest = divmod(up.seconds, 3_600)
    facts = {
        "bootTimestamp": str(clock.wall_ms() - status.uptime_seconds * 1_000),
        "brokerActive": str(not status.write_refusal or not broker.is_master).lower(),
        "brokerRole": status.role,
        "brokerVersionDesc": status.version,
        "clientConnectionCount": str(status.client_connection_count),
        "commitLogMaxOffset": str(status.end_offset),
        "commitLogMinOffset": str(status.min_offset),
        "commitLogFlushedOffset": str(status.flushed_offset),
        "dispatchBehindBytes": str(max(0, status.end_offset - status.dispatched_offset)),
        "flushBehindBytes": str(status.end_offset - status.flushed_offset),
        "flushDiskType": status.flush_disk_type,
        "getTransferredTps": f"{rate.messages_out:.2f}" if rate is not None else "0.00",
        "longestEventLoopStallMs": str(status.longest_loop_stall_ms),
        "msgGetTotal": str(status.messages_out_count),
        "msgPutTotal": str(status.messages_in_count),
        "putTps": f"{rate.messages_in:.2f}" if rate is not None else "0.00",
        "residentMemory": str(status.resident_bytes),
        "runtime": f"[ {up.days} days, {hours} hours, {rest // 60} minutes, {rest % 60} seconds ]",
        "sendThreadPoolQueueSize": str(status.waiting_send_count),
        "slavesInSync": str(sum(slave.in_sync for slave in status.slaves)),
        "slavesNeeded": str(status.needed_slave_count),
        "subscriptionGroupCount": str(status.group_count),
        "topicCount": str(status.topic_count),
    }
    if status.write_refusal:
        facts["writeRefusal"] = status.write_refusal
    if status.disk is not None:
        facts["commitLogDiskRatio"] = f"{status.disk.used_ratio:.4f}"
        total_gib, free_gib = status.disk.total_bytes / 2**30, status.disk.free_bytes / 2**30
        facts["commitLogDirCapacity"] = f"Total : {total_gib:.1f} GiB, Free : {free_gib:.1f} GiB."
    return facts
