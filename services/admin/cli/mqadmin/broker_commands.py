"""getBrokerConfig, updateBrokerConfig, wipeWritePerm and addWritePerm."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from admin.cli.broker_choice import check_cluster_name, find_broker
from admin.cli.broker_commands import changes_of
from admin.cli.cluster_choice import ClusterChoice, with_cluster
from admin.cli.completion import complete_broker_group
from admin.cli.confirmation import ask, tell_changes, tell_warnings
from admin.cli.connection import ClusterConnection
from admin.cli.mqadmin.columns import emit_lines
from admin.cli.mqadmin.options import BrokerAddrOption, ClusterNameOption, TrueFalse, refuse
from admin.cli.options import DryRunOption, OutputOption, YesOption
from admin.cli.output import OutputFormat
from admin.cluster_state import BrokerState, ClusterState
from admin.operations.values import BrokerSettings, ConfigChange

__all__ = ["add_write_perm", "get_broker_config", "update_broker_config", "wipe_write_perm"]

_NUMBER: Final = re.compile(r"\d+")
_BrokerNameOption = Annotated[
    str, typer.Option("--brokerName", "-b", help="Broker group.", autocompletion=complete_broker_group)
]


@with_cluster
def get_broker_config(
    cluster: ClusterChoice,
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the settings of a broker, or of all of a cluster. Secrets are masked.

    Example: mqadmin getBrokerConfig -b 127.0.0.1:10911
    """

    async def read(connection: ClusterConnection) -> list[tuple[BrokerState, BrokerSettings]]:
        chosen = _chosen(await connection.read_state(), broker_addr, cluster_name, with_slaves=True)
        operations = await connection.operations()
        return [(each, await operations.broker_settings(each.key)) for each in chosen]

    found = cluster.run(read)
    lines = []
    for broker, settings in found:
        lines.append(f"============{_title(broker, broker_addr, [each for each, _ in found])}============")
        lines += [f"{each.key:<50}=  {each.value}" for each in settings.settings]
        lines.append("")
    emit_lines(output, [settings for _, settings in found], lines)


@with_cluster
def update_broker_config(
    cluster: ClusterChoice,
    key: Annotated[str, typer.Option("--key", "-k", help="Setting.")],
    value: Annotated[str, typer.Option("--value", "-v", help="New value.")],
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    update_all: Annotated[
        TrueFalse, typer.Option("--updateAllBroker", "-a", case_sensitive=False, help="With -c: slaves, too.")
    ] = TrueFalse.FALSE,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Change a setting of a running broker, or of all masters of a cluster, until its next start.

    Example: mqadmin updateBrokerConfig -b 127.0.0.1:10911 -k fileReservedTime -v 48 --yes
    """

    async def change(connection: ClusterConnection, dry: bool) -> tuple[list[BrokerState], list[ConfigChange]]:
        chosen = _chosen(await connection.read_state(), broker_addr, cluster_name, with_slaves=update_all.truth)
        return chosen, await changes_of(connection, chosen, {key: value}, dry_run=dry)

    if dry_run or not yes:
        chosen, planned = cluster.run(lambda connection: change(connection, True))
        for each in planned:
            typer.echo(f"{each.broker}: {each.key} would be {each.to_value} instead of {each.from_value}")
        if not planned:
            typer.echo("nothing would change")
        if dry_run:
            return
        ask(f"Change that on {', '.join(each.key for each in chosen)}? ({cluster.target().title})")
    chosen, _ = cluster.run(lambda connection: change(connection, False))
    for broker in chosen:
        typer.echo(f"update broker config success, {broker.metadata_endpoint}")


@with_cluster
def wipe_write_perm(
    cluster: ClusterChoice, broker_name: _BrokerNameOption, dry_run: DryRunOption = False, yes: YesOption = False
) -> None:
    """Take a broker group out of producers' routes at every NameServer.

    Example: mqadmin wipeWritePerm -b broker-a --yes
    """
    _set_permission(cluster, broker_name, writable=False, dry_run=dry_run, yes=yes)


@with_cluster
def add_write_perm(
    cluster: ClusterChoice, broker_name: _BrokerNameOption, dry_run: DryRunOption = False, yes: YesOption = False
) -> None:
    """Put a broker group back into producers' routes at every NameServer.

    Example: mqadmin addWritePerm -b broker-a --yes
    """
    _set_permission(cluster, broker_name, writable=True, dry_run=dry_run, yes=yes)


def _set_permission(cluster: ClusterChoice, broker_name: str, *, writable: bool, dry_run: bool, yes: bool) -> None:
    if dry_run or not yes:
        tell_changes(
            cluster.ask(
                lambda operations: operations.set_write_permission(broker_name, writable=writable, dry_run=True)
            )
        )
        if dry_run:
            return
        ask(f"Let producers {'use' if writable else 'no longer use'} {broker_name}? ({cluster.target().title})")
    result = cluster.ask(lambda operations: operations.set_write_permission(broker_name, writable=writable))
    verb = "add" if writable else "wipe"
    for change in result.changes:
        typer.echo(
            f"{verb} write perm of broker[{broker_name}] in name server[{change.subject}] OK, {_count(change.what)}"
        )
    tell_warnings(result.warnings)


def _count(what: str) -> str:
    """RocketMQ ends the line with the number of topics changed; the words are what there is without one."""
    numbers = _NUMBER.findall(what)
    return str(numbers[-1]) if numbers else what


def _chosen(
    state: ClusterState, broker_addr: str | None, cluster_name: str | None, *, with_slaves: bool
) -> list[BrokerState]:
    if (broker_addr is None) == (cluster_name is None):
        raise refuse("which broker?", remedy="give -b for one, or -c for all")
    if broker_addr is not None:
        return [find_broker(state, broker_addr)]
    check_cluster_name(state, cluster_name)
    return [each for each in state.brokers if each.cluster == cluster_name and (with_slaves or each.is_master)]


def _title(broker: BrokerState, broker_addr: str | None, all_of_them: list[BrokerState]) -> str:
    """As RocketMQ heads each broker's settings."""
    if broker_addr is not None:
        return broker_addr
    if broker.is_master:
        return f"Master: {broker.metadata_endpoint}"
    master = next((each for each in all_of_them if each.is_master and each.broker_name == broker.broker_name), None)
    return f"My Master: {master.metadata_endpoint if master else '-'}=====Slave: {broker.metadata_endpoint}"
