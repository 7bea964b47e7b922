"""clusterList and brokerStatus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.cli.commands.brokers import changes_of, check_cluster_name, find_broker
from tandemmq.cli.connection import BrokerRates, ClusterChoice, ClusterConnection, read_with_rates, with_cluster
from tandemmq.cli.ending import CommandError, Refused, one_line
from tandemmq.cli.listing import confirmed, tell_changes, tell_warnings
from tandemmq.cli.mqadmin.options import (
    BrokerAddrOption,
    ClusterNameOption,
    Columns,
    IntervalOption,
    TopicOption,
    TrueFalse,
    emit_lines,
    note_ignored,
    repeat,
)
from tandemmq.cli.options import DryRunOption, OutputOption, YesOption, complete_broker_group
from tandemmq.cli.output import OutputFormat, tell_unseen
from tandemmq.service.event_loop import SystemClock

if TYPE_CHECKING:
    from tandemmq.admin.cluster_state import BrokerState, BrokerStatus, ClusterState, SlaveState
    from tandemmq.admin.operations.values import BrokerSettings, ChangeResult, Client, ConfigChange, HandOver
    from tandemmq.core.clock import Clock

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
# RocketMQ's column of timers: how far it is behind, ten thousands that wait, and rates, which are not known here.
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
        state, rates = await read_with_rates(connection, SystemClock(), interval_s=_RATE_INTERVAL_S)
        check_cluster_name(state, cluster_name)
        found = [broker for broker in state.brokers if cluster_name in (None, broker.cluster)]
        lines = _more_lines(found) if more_stats else _LIST.lines(_row(each, rates) for each in found)
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
        raise Refused("which broker?", remedy="give -b for one, or -c for all")

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


def _row(broker: BrokerState, rates: Mapping[str, BrokerRates]) -> Sequence[object]:
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
        f"0-0({status.delayed.waiting_count / 10_000:.1f}w, 0.0, 0.0)",
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
        "timerCongestNum": str(status.delayed.waiting_count),
        "topicCount": str(status.topic_count),
    }
    if status.write_refusal:
        facts["writeRefusal"] = status.write_refusal
    if status.disk is not None:
        facts["commitLogDiskRatio"] = f"{status.disk.used_ratio:.4f}"
        total_gib, free_gib = status.disk.total_bytes / 2**30, status.disk.free_bytes / 2**30
        facts["commitLogDirCapacity"] = f"Total : {total_gib:.1f} GiB, Free : {free_gib:.1f} GiB."
    return facts


# getBrokerConfig, updateBrokerConfig, wipeWritePerm and addWritePerm.

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

    def show(planned: tuple[Sequence[BrokerState], Sequence[ConfigChange]]) -> None:
        for each in planned[1]:
            typer.echo(f"{each.broker}: {each.key} would be {each.to_value} instead of {each.from_value}")
        if not planned[1]:
            typer.echo("nothing would change")

    changed = confirmed(
        cluster,
        lambda dry: cluster.run(lambda connection: change(connection, dry)),
        show,
        lambda planned: f"Change that on {', '.join(each.key for each in planned[0])}?",
        dry_run=dry_run,
        yes=yes,
    )
    for broker in changed[0] if changed is not None else ():
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
    def permit(dry: bool) -> ChangeResult:
        return cluster.ask(
            lambda operations: operations.set_write_permission(broker_name, writable=writable, dry_run=dry)
        )

    question = f"Let producers {'use' if writable else 'no longer use'} {broker_name}?"
    result = confirmed(cluster, permit, tell_changes, question, dry_run=dry_run, yes=yes)
    if result is None:
        return
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
        raise Refused("which broker?", remedy="give -b for one, or -c for all")
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


# consumerStatus, consumerConnection and producerConnection.

_CONNECTIONS: Final = Columns(("#ClientId", 36), ("#ClientAddr", 22), ("#Language", 10), ("#Version", 0))
_SUBSCRIPTIONS: Final = Columns(("#Topic", 20), ("#SubExpression", 0))
_STATUS: Final = Columns(("#Index", 10), ("#ClientId", 40), ("#Version", 20), ("#ConsumerRunningInfoFile", 0))
_PRODUCERS: Final = Columns(("", 4), ("", 32), ("", 22), ("", 8), ("", 0))
_PRODUCER: Final = "PRODUCER"
_CLIENTS_MAX: Final = 1_000

_ConsumerGroupOption = Annotated[str, typer.Option("--consumerGroup", "-g", help="Consumer group.")]


@with_cluster
def consumer_connection(
    cluster: ClusterChoice,
    group: _ConsumerGroupOption,
    broker_addr: BrokerAddrOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the members of a group, and what they subscribe to.

    Example: mqadmin consumerConnection -g billing
    """
    note_ignored([("-b", broker_addr)], "all brokers are asked")
    members = _members(cluster, group)
    subscriptions = sorted({(topic, rule) for each in members for topic, rule in each.subscriptions.items()})
    rows = [(each.client_id, each.address, each.language, each.version) for each in members]
    lines = [
        *_CONNECTIONS.lines(rows),
        "",
        "Below is subscription:",
        *_SUBSCRIPTIONS.lines((topic, rule or "*") for topic, rule in subscriptions),
        "",
        "ConsumeType: CONSUME_POP",
        "MessageModel: CLUSTERING",
        "ConsumeFromWhere: as the brokers' consumeFromEarliest says",
    ]
    emit_lines(output, members, lines)


@with_cluster
def consumer_status(
    cluster: ClusterChoice,
    group: _ConsumerGroupOption,
    client_id: Annotated[str | None, typer.Option("--clientId", "-i", help="Only this member, in detail.")] = None,
    broker_addr: BrokerAddrOption = None,
    jstack: Annotated[bool, typer.Option("--jstack", "-s", help="Refused: brokers cannot look into clients.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the members of a group, and whether they all subscribe to the same.

    Clients of the 5.x API do not tell their internal state: there are no running info files.

    Example: mqadmin consumerStatus -g billing
    """
    if jstack:
        raise Refused(
            "there is no way to a client's threads", remedy="use jstack, py-spy or the like where the client runs"
        )
    note_ignored([("-b", broker_addr)], "all brokers are asked")
    members = _members(cluster, group)
    if client_id is not None:
        chosen = [each for each in members if each.client_id == client_id]
        if not chosen:
            raise CommandError(f"group {group} has no member {client_id}", remedy="see mqadmin consumerConnection")
        emit_lines(output, chosen, _detail_lines(chosen[0]))
        return
    rows = [(number, each.client_id, each.version, "-") for number, each in enumerate(members, 1)]
    same = len({tuple(sorted(each.subscriptions.items())) for each in members}) <= 1
    verdict = (
        "Same subscription in the same group of consumer"
        if same
        else "WARN: Different subscription in the same group of consumer!!!"
    )
    emit_lines(output, members, [*_STATUS.lines(rows), "", "", verdict])


@with_cluster
def producer_connection(
    cluster: ClusterChoice,
    topic: TopicOption,
    group: Annotated[str | None, typer.Option("--producerGroup", "-g", help="Ignored: clients name none.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the producers of a topic that are connected.

    Example: mqadmin producerConnection -g any -t orders
    """
    found = cluster.ask(lambda operations: operations.clients(topic=topic, limit=_CLIENTS_MAX))
    tell_unseen(found.unseen)
    note_ignored([("-g", group)], "producers of the 5.x API are in no group; shown are all of the topic")
    producers = [each for each in found.items if each.client_type == _PRODUCER]
    lines = [
        _PRODUCERS.line(f"{number:04d}", each.client_id, each.address, each.language, each.version)
        for number, each in enumerate(producers, 1)
    ]
    emit_lines(output, producers, lines)


def _members(cluster: ClusterChoice, group: str) -> Sequence[Client]:
    detail = cluster.ask(lambda operations: operations.group(group))
    tell_unseen(detail.unseen)
    if not detail.members:
        raise CommandError(f"no consumer of group {group} is connected", remedy="see mqadmin consumerProgress")
    return detail.members


def _detail_lines(client: Client) -> list[str]:
    facts = [
        ("Client Id:", client.client_id),
        ("Client Type:", client.client_type),
        ("Client Address:", client.address),
        ("Language:", client.language),
        ("Version:", client.version),
        ("Silent For (ms):", str(client.silent_ms)),
        ("Connected To:", " ".join(client.brokers)),
    ]
    subscriptions = [f"{topic:<32} {rule or '*'}" for topic, rule in sorted(client.subscriptions.items())]
    return list(map(one_line, [*(f"{name:<20} {value}" for name, value in facts), "", "#Subscription", *subscriptions]))


# haStatus, getSyncStateSet and electMaster.

_SLAVES: Final = Columns(
    ("#SlaveAddr", 32),
    ("#SlaveAckOffset", 16),
    ("#Diff", -16),
    ("#TransferSpeed(KB/s)", -20),
    ("#Status", -16),
    ("#TransferFromWhere", -18),
)


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
            raise Refused(
                f"there is no broker group {broker_name or 'with a master'}", remedy="see mqadmin clusterList"
            )
        emit_lines(output, masters, [line for master in masters for line in _set_lines(master, state)])

    cluster.run(lambda connection: repeat(lambda: once(connection), interval_s=interval))


@with_cluster
def elect_master(
    cluster: ClusterChoice,
    controller_address: Annotated[
        str | None, typer.Option("--controllerAddress", "-a", help="There is none here; ignored.")
    ] = None,
    broker_id: Annotated[str | None, typer.Option("--brokerId", "-b", help="The new master.")] = None,
    broker_name: Annotated[str | None, typer.Option("--brokerName", "-bn", help="Of which group.")] = None,
    cluster_name: ClusterNameOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make a broker of a group that fails over its master. `tandemmq failover` tells more.

    Example: mqadmin electMaster -bn broker-a -b 1 -c DefaultCluster --yes
    """
    note_ignored([("-a", controller_address)], "the group's master hands over by itself")
    if broker_name is None or broker_id is None or not broker_id.isdigit():
        raise Refused("which broker?", remedy="give -bn GROUP and -b with the number of the new master in it")

    async def elect(connection: ClusterConnection, dry: bool) -> tuple[HandOver, ClusterState]:
        check_cluster_name(await connection.read_state(), cluster_name)
        operations = await connection.operations()
        done = await operations.failover(broker_name, to=int(broker_id), dry_run=dry)
        return done, await connection.read_state()

    def show(found: tuple[HandOver, ClusterState]) -> None:
        emit_lines(output, found[0], list(_elected_lines(*found)))

    elected = confirmed(
        cluster,
        lambda dry: cluster.run(lambda connection: elect(connection, dry)),
        show,
        lambda found: "Hand over?" if found[0].from_broker != found[0].to_broker else "",
        dry_run=dry_run,
        yes=yes,
    )
    if elected is not None:
        show(elected)


def _elected_lines(done: HandOver, state: ClusterState) -> Iterable[str]:
    members = [each for each in state.brokers if each.broker_name == done.broker_name]
    master = next((each for each in members if each.key == done.to_broker), None)
    yield f"\n#ClusterName\t{master.cluster if master is not None else ''}"
    yield f"#BrokerName\t{done.broker_name}"
    yield f"#BrokerMasterAddr\t{master.metadata_endpoint if master is not None else 'not known'}"
    yield f"#MasterEpoch\t{done.epoch}"
    yield f"#SyncStateSetEpoch\t{done.epoch}"
    yield "\n#BrokerMemberGroup"
    for each in members:
        yield f"{each.broker_id}\t{each.metadata_endpoint}"


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
    record = status.failover if status is not None else None
    yield f"\n#brokerName\t{master.broker_name}"
    yield f"#MasterBrokerId\t{master.broker_id}"
    yield f"#MasterAddr\t{master.metadata_endpoint}"
    if status is None:
        yield f"#Error\t{master.error or 'does not answer'}"
        return
    members = [each for each in state.brokers if each.broker_name == master.broker_name]
    if record is not None:
        yield f"#MasterEpoch\t{record.epoch}"
        yield f"#SyncStateSetEpoch\t{record.epoch}"
        in_sync = set(record.in_sync_ids)
    else:
        in_sync = {master.broker_id, *(slave.broker_id for slave in status.slaves if slave.in_sync)}
    yield f"#SyncStateSetNums\t{len(in_sync)}"
    for each in sorted(members, key=lambda member: (member.broker_id not in in_sync, not member.is_master)):
        yield f"\n{'InSyncReplica' if each.broker_id in in_sync else 'NotInSyncReplica'}:\t{_replica(each)}"


def _replica(member: BrokerState) -> str:
    """As RocketMQ prints a `ReplicaIdentity`."""
    alive = str(member.status is not None).lower()
    return (
        f"ReplicaIdentity{{brokerName='{member.broker_name}', brokerId={member.broker_id}, "
        f"brokerAddress='{member.metadata_endpoint}', alive={alive}}}"
    )
