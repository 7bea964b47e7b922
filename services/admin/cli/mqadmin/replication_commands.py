"""haStatus, getSyncStateSet and electMaster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import typer

from admin.cli.broker_choice import check_cluster_name, find_broker
from admin.cli.cluster_choice import ClusterChoice, with_cluster
from admin.cli.connection import ClusterConnection
from admin.cli.mqadmin.columns import Columns, emit_lines
from admin.cli.mqadmin.options import BrokerAddrOption, ClusterNameOption, IntervalOption, note_ignored, refuse
from admin.cli.mqadmin.repeat import repeat
from admin.cli.options import OutputOption
from admin.cli.output import OutputFormat
from admin.cli.rates import BrokerRates, read_with_rates
from admin.cluster_state import BrokerState, ClusterState, SlaveState
from mqservice.loop_meter import SystemClock

__all__ = ["elect_master", "get_sync_state_set", "ha_status"]

_SLAVES: Final = Columns(
    ("#SlaveAddr", 32),
    ("#SlaveAckOffset", 16),
    ("#Diff", -16),
    ("#TransferSpeed(KB/s)", -20),
    ("#Status", -16),
    ("#TransferFromWhere", -18),
)
_RATE_INTERVAL_S: Final = 1.0


@with_cluster
def ha_status(
    cluster: ClusterChoice,
    cluster_name: ClusterNameOption = None,
    broker_addr: BrokerAddrOption = None,
    interval: IntervalOption = 0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show replication of a broker, or of all. `tandemmq ha status` tells more.

    Examples:

      mqadmin haStatus -c DefaultCluster

      mqadmin haStatus -b 127.0.0.1:10911 -i 5
    """

    async def once(connection: ClusterConnection) -> None:
        state, rates = await read_with_rates(connection, SystemClock(), interval_s=_RATE_INTERVAL_S)
        check_cluster_name(state, cluster_name)
        chosen = [find_broker(state, broker_addr)] if broker_addr else list(state.brokers)
        emit_lines(output, chosen, [line for broker in chosen for line in _ha_lines(broker, rates)])

    cluster.run(lambda connection: repeat(lambda: once(connection), interval_s=interval))


@with_cluster
def get_sync_state_set(
    cluster: ClusterChoice,
    controller_address: Annotated[
        str | None, typer.Option("--controllerAddress", "-a", help="There is none here; ignored.")
    ] = None,
    cluster_name: ClusterNameOption = None,
    broker_name: Annotated[str | None, typer.Option("--brokerName", "-b", help="Broker group.")] = None,
    interval: IntervalOption = 0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show which replicas hold what was acknowledged, group by group.

    Example: mqadmin getSyncStateSet -b broker-a
    """
    note_ignored([("-a", controller_address)], "masters themselves know who is in sync")

    async def once(connection: ClusterConnection) -> None:
        state = await connection.read_state()
        check_cluster_name(state, cluster_name)
        masters = [each for each in state.brokers if each.is_master and broker_name in (None, each.broker_name)]
        if not masters:
            raise refuse(f"there is no broker group {broker_name or 'with a master'}", remedy="see mqadmin clusterList")
        emit_lines(output, masters, [line for master in masters for line in _set_lines(master, state)])

    cluster.run(lambda connection: repeat(lambda: once(connection), interval_s=interval))


@with_cluster
def elect_master(
    cluster: ClusterChoice,
    controller_address: Annotated[str | None, typer.Option("--controllerAddress", "-a", help="There is none.")] = None,
    broker_id: Annotated[str | None, typer.Option("--brokerId", "-b", help="Which broker.")] = None,
    broker_name: Annotated[str | None, typer.Option("--brokerName", "-bn", help="Of which group.")] = None,
    cluster_name: ClusterNameOption = None,
) -> None:
    """Refused: which broker of a group is its master is fixed by configuration. Says what to do instead.

    Example: mqadmin electMaster -bn broker-a -b 1
    """
    raise refuse(
        f"the master of {broker_name or 'a group'} is its broker with brokerId 0; no other can be elected",
        cause="roles are fixed by configuration: brokerId and brokerRole",
        remedy="restart the master; clients use the other groups meanwhile. If its disk is lost, start its slaves and "
        "then the master with an empty store: a SYNC_MASTER gets everything from a slave before it takes sends. To "
        "take a group out of use before maintenance: tandemmq broker write-permission GROUP off",
    )


def _ha_lines(broker: BrokerState, rates: Mapping[str, BrokerRates]) -> Iterable[str]:
    status = broker.status
    if status is None:
        yield f"\n#BrokerAddr\t{broker.metadata_endpoint}\n#Error\t{broker.error or 'does not answer'}"
        return
    if broker.is_master:
        in_sync = sum(slave.in_sync for slave in status.slaves)
        yield f"\n#MasterAddr\t{broker.metadata_endpoint}"
        yield f"#MasterCommitLogMaxOffset\t{status.end_offset}"
        yield f"#SlaveNum\t{len(status.slaves)}"
        yield f"#InSyncSlaveNum\t{in_sync}"
        yield from _SLAVES.lines(_slave_row(slave, rates.get(broker.key)) for slave in status.slaves)
    elif status.master_link is not None:
        rate = rates.get(broker.key)
        yield f"\n#MasterAddr\t{status.master_link.address}"
        yield f"#CommitLogMaxOffset\t{status.end_offset}"
        yield f"#TransferSpeed(KB/s)\t{(rate.log_growth if rate else 0.0) / 1_024:.2f}"
        yield f"#State\t{status.master_link.state}"
        yield f"#MasterCommitLogMaxOffset\t{status.master_link.master_end_offset}"


def _slave_row(slave: SlaveState, rate: BrokerRates | None) -> tuple[object, ...]:
    speed = rate.sent_bytes.get(slave.peer, 0.0) if rate is not None else 0.0
    return (
        slave.peer,
        slave.acked_offset,
        slave.lag_bytes,
        f"{speed / 1_024:.2f}",
        "OK" if slave.in_sync else "Fall Behind",
        slave.acked_offset,
    )


def _set_lines(master: BrokerState, state: ClusterState) -> Iterable[str]:
    status = master.status
    yield f"\n#brokerName\t{master.broker_name}"
    yield f"#MasterBrokerId\t{master.broker_id}"
    yield f"#MasterAddr\t{master.metadata_endpoint}"
    if status is None:
        yield f"#Error\t{master.error or 'does not answer'}"
        return
    in_sync = [slave for slave in status.slaves if slave.in_sync]
    yield f"#SyncStateSetNums\t{1 + len(in_sync)}"
    yield f"\nInSyncReplica:\t{master.key} {master.metadata_endpoint}"
    addresses = {(each.broker_name, each.broker_id): each.metadata_endpoint for each in state.brokers}
    for slave in in_sync:
        yield f"\nInSyncReplica:\t{_replica(master, slave, addresses)}"
    for slave in status.slaves:
        if not slave.in_sync:
            yield f"\nNotInSyncReplica:\t{_replica(master, slave, addresses)}"
    connected = {slave.broker_id for slave in status.slaves}
    for each in state.brokers:
        if each.broker_name == master.broker_name and not each.is_master and each.broker_id not in connected:
            yield f"\nNotInSyncReplica:\t{each.key} {each.metadata_endpoint} is not connected"


def _replica(master: BrokerState, slave: SlaveState, addresses: Mapping[tuple[str, int], str]) -> str:
    address = addresses.get((master.broker_name, slave.broker_id), slave.peer)
    return f"{master.broker_name}:{slave.broker_id} {address} acknowledged {slave.acked_offset}"
