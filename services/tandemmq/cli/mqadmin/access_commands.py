"""createUser, updateUser, deleteUser, getUser, listUser, copyUser, and the same six of acl."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from tandemmq.cli.commands.access import ACTIONS_HELP, acl_rows, entry_of, parts_of, password_of
from tandemmq.cli.commands.brokers import check_cluster_name, find_broker
from tandemmq.cli.connection import ClusterChoice, ClusterConnection, with_cluster
from tandemmq.cli.ending import Refused
from tandemmq.cli.listing import confirmed, tell_changes, tell_warnings
from tandemmq.cli.mqadmin.options import (
    BrokerAddrOption,
    ClusterNameOption,
    Columns,
    emit_lines,
    note_ignored,
)
from tandemmq.cli.options import DryRunOption, OutputOption, YesOption
from tandemmq.cli.output import OutputFormat, tell_unseen

if TYPE_CHECKING:
    from tandemmq.admin.operations.operations import Operations
    from tandemmq.admin.operations.values import Acl, ChangeResult, User

_USERS: Final = Columns(("#UserName", 16), ("#Password", 22), ("#UserType", 22), ("#UserStatus", 22))
_ACLS: Final = Columns(
    ("#Subject", 16), ("#PolicyType", 10), ("#Resource", 22), ("#Actions", 20), ("#SourceIp", 24), ("#Decision", 10)
)
_HIDDEN: Final = "******"

_Place: TypeAlias = tuple[str | None, str | None]
"""What `-b` and `-c` say."""

UsernameOption = Annotated[str, typer.Option("--username", "-u", help="The name of the user.")]
PasswordOption = Annotated[
    str,
    typer.Option(
        "--password", "-p", help="Its secret, which others may see in `ps`; - to have it read from standard input."
    ),
]
UserTypeOption = Annotated[str, typer.Option("--userType", "-t", help="Super or Normal.")]
SubjectOption = Annotated[str, typer.Option("--subject", "-s", help="User:NAME.")]
ResourcesOption = Annotated[
    str, typer.Option("--resources", "-r", help="Topic:NAME, Group:NAME, NAME* for many, *; separated by commas.")
]
ActionsOption = Annotated[str, typer.Option("--actions", "-a", help=ACTIONS_HELP)]
SourceIpOption = Annotated[str | None, typer.Option("--sourceIp", "-i", help="Addresses and networks. Default: all.")]
DecisionOption = Annotated[str, typer.Option("--decision", "-d", help="Allow or Deny.")]


@with_cluster
def create_user(
    cluster: ClusterChoice,
    username: UsernameOption,
    password: PasswordOption,
    user_type: UserTypeOption = "",
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Create a user on all masters.

    Example: mqadmin createUser -c DefaultCluster -u billing -p - -t Normal
    """
    from tandemmq.admin.operations.values import UserChange

    change = UserChange(username, _secret(password), user_type)
    _change(cluster, (broker_addr, cluster_name), "create user", lambda to: to.create_user(change, dry_run=dry_run))


@with_cluster
def update_user(
    cluster: ClusterChoice,
    username: UsernameOption,
    password: PasswordOption = "",
    user_type: UserTypeOption = "",
    user_status: Annotated[str, typer.Option("--userStatus", "-s", help="enable or disable.")] = "",
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Change a user on all masters.

    Example: mqadmin updateUser -c DefaultCluster -u billing -s disable
    """
    from tandemmq.admin.operations.values import UserChange

    change = UserChange(username, _secret(password), user_type, user_status)
    _change(cluster, (broker_addr, cluster_name), "update user", lambda to: to.update_user(change, dry_run=dry_run))


@with_cluster
def delete_user(
    cluster: ClusterChoice,
    username: UsernameOption,
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Remove a user with its policies from all masters.

    Example: mqadmin deleteUser -c DefaultCluster -u billing --yes
    """
    _delete(
        cluster,
        (broker_addr, cluster_name),
        "delete user",
        f"Delete user {username} with its policies?",
        lambda to, dry: to.delete_user(username, dry_run=dry),
        dry_run=dry_run,
        yes=yes,
    )


@with_cluster
def get_user(
    cluster: ClusterChoice,
    username: UsernameOption,
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a user. Its secret is never shown.

    Example: mqadmin getUser -c DefaultCluster -u billing
    """
    users = _users(cluster, username, (broker_addr, cluster_name))
    _tell_users([user for user in users if user.username == username], output)


@with_cluster
def list_user(
    cluster: ClusterChoice,
    filter_text: Annotated[str, typer.Option("--filter", "-f", help="Only names with this in them.")] = "",
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List users. Their secrets are never shown.

    Example: mqadmin listUser -c DefaultCluster
    """
    _tell_users(_users(cluster, filter_text, (broker_addr, cluster_name)), output)


@with_cluster
def copy_user(
    cluster: ClusterChoice,
    from_broker: Annotated[str, typer.Option("--fromBroker", "-f", help="Broker that has them.")],
    to_broker: Annotated[str, typer.Option("--toBroker", "-t", help="Broker that gets them.")],
    usernames: Annotated[str, typer.Option("--usernames", "-u", help="Separated by commas; all without.")] = "",
    dry_run: DryRunOption = False,
) -> None:
    """Copy users, with their secrets, from one master to another that has the same key file.

    Example: mqadmin copyUser -f broker-a -t broker-b -u billing
    """
    names = parts_of(usernames)
    _copy(
        cluster,
        from_broker,
        to_broker,
        lambda to, source, target: to.copy_users(source, target, names, only_users=True, dry_run=dry_run),
    )


@with_cluster
def create_acl(
    cluster: ClusterChoice,
    subject: SubjectOption,
    resources: ResourcesOption,
    actions: ActionsOption,
    decision: DecisionOption = "Allow",
    source_ip: SourceIpOption = None,
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Say what a user may do with some resources, on all masters.

    Example: mqadmin createAcl -c DefaultCluster -s User:billing -r Topic:orders,Group:billing -a Sub -d Allow
    """
    entries = [entry_of(resource, actions, decision, source_ip) for resource in parts_of(resources)]
    _change(
        cluster, (broker_addr, cluster_name), "create acl", lambda to: to.put_acl(subject, entries, dry_run=dry_run)
    )


@with_cluster
def update_acl(
    cluster: ClusterChoice,
    subject: SubjectOption,
    resources: ResourcesOption,
    actions: ActionsOption,
    decision: DecisionOption = "Allow",
    source_ip: SourceIpOption = None,
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Say anew what a user may do with some resources, on all masters.

    Example: mqadmin updateAcl -c DefaultCluster -s User:billing -r Topic:orders -a Pub,Sub -d Deny
    """
    entries = [entry_of(resource, actions, decision, source_ip) for resource in parts_of(resources)]
    _change(
        cluster, (broker_addr, cluster_name), "update acl", lambda to: to.put_acl(subject, entries, dry_run=dry_run)
    )


@with_cluster
def delete_acl(
    cluster: ClusterChoice,
    subject: SubjectOption,
    resources: ResourcesOption = "",
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Remove what was said of a user and some resources, or all of it, from all masters.

    Example: mqadmin deleteAcl -c DefaultCluster -s User:billing -r Topic:orders --yes
    """
    chosen = parts_of(resources)
    _delete(
        cluster,
        (broker_addr, cluster_name),
        "delete acl",
        f"Delete {'these' if chosen else 'all'} policies of {subject}?",
        lambda to, dry: to.delete_acl(subject, chosen, dry_run=dry),
        dry_run=dry_run,
        yes=yes,
    )


@with_cluster
def get_acl(
    cluster: ClusterChoice,
    subject: SubjectOption,
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what a user may do.

    Example: mqadmin getAcl -c DefaultCluster -s User:billing
    """
    acls = _acls(cluster, subject, "", (broker_addr, cluster_name))
    _tell_acls([acl for acl in acls if acl.subject == subject], output)


@with_cluster
def list_acl(
    cluster: ClusterChoice,
    subject: Annotated[str, typer.Option("--subject", "-s", help="Only subjects with this in them.")] = "",
    resource: Annotated[str, typer.Option("--resource", "-r", help="Only resources with this in them.")] = "",
    broker_addr: BrokerAddrOption = None,
    cluster_name: ClusterNameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List what users may do.

    Example: mqadmin listAcl -c DefaultCluster -r Topic:orders
    """
    _tell_acls(_acls(cluster, subject, resource, (broker_addr, cluster_name)), output)


@with_cluster
def copy_acl(
    cluster: ClusterChoice,
    from_broker: Annotated[str, typer.Option("--fromBroker", "-f", help="Broker that has them.")],
    to_broker: Annotated[str, typer.Option("--toBroker", "-t", help="Broker that gets them.")],
    subjects: Annotated[str, typer.Option("--subjects", "-s", help="Separated by commas; all without.")] = "",
    dry_run: DryRunOption = False,
) -> None:
    """Copy policies from one master to another, of users that are there.

    Example: mqadmin copyAcl -f broker-a -t broker-b -s User:billing
    """
    names = tuple(subject.removeprefix("User:") for subject in parts_of(subjects))
    _copy(
        cluster,
        from_broker,
        to_broker,
        lambda to, source, target: to.copy_users(source, target, names, only_acls=True, dry_run=dry_run),
    )


# What they share


def _secret(password: str) -> str:
    """What `-p` says, or the first line of standard input."""
    if password == "-":
        return password_of("-")
    if password:
        typer.echo("note: others may have seen the secret in `ps`; -p - reads it from standard input", err=True)
    return password


def _change(
    cluster: ClusterChoice, place: _Place, done: str, change: Callable[[Operations], Awaitable[ChangeResult]]
) -> None:
    async def carry_out(connection: ClusterConnection) -> ChangeResult:
        await _check_place(connection, place)
        return await change(await connection.operations())

    _tell_done(done, cluster.run(carry_out))


def _delete(
    cluster: ClusterChoice,
    place: _Place,
    done: str,
    question: str,
    change: Callable[[Operations, bool], Awaitable[ChangeResult]],
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    async def carry_out(connection: ClusterConnection, dry: bool) -> ChangeResult:
        await _check_place(connection, place)
        return await change(await connection.operations(), dry)

    result = confirmed(
        cluster,
        lambda dry: cluster.run(lambda connection: carry_out(connection, dry)),
        tell_changes,
        question,
        dry_run=dry_run,
        yes=yes,
    )
    if result is not None:
        _tell_done(done, result)


async def _check_place(connection: ClusterConnection, place: _Place) -> None:
    broker_addr, cluster_name = place
    if broker_addr is None and cluster_name is None:
        raise Refused("on which cluster?", remedy="give -c, the name of the cluster")
    note_ignored([("-b", broker_addr)], "users and policies are the same on all masters")
    check_cluster_name(await connection.read_state(), cluster_name)


def _copy(
    cluster: ClusterChoice,
    from_broker: str,
    to_broker: str,
    copy: Callable[[Operations, str, str], Awaitable[ChangeResult]],
) -> None:
    async def carry_out(connection: ClusterConnection) -> ChangeResult:
        state = await connection.read_state()
        source, target = (find_broker(state, text).broker_name for text in (from_broker, to_broker))
        return await copy(await connection.operations(), source, target)

    tell_changes(cluster.run(carry_out))


def _users(cluster: ClusterChoice, search: str, place: _Place) -> Sequence[User]:
    async def read(connection: ClusterConnection) -> Sequence[User]:
        await _check_place(connection, place)
        users, unseen = await (await connection.operations()).users(search=search)
        tell_unseen(unseen)
        return users

    return cluster.run(read)


def _acls(cluster: ClusterChoice, subject: str, resource: str, place: _Place) -> Sequence[Acl]:
    async def read(connection: ClusterConnection) -> Sequence[Acl]:
        await _check_place(connection, place)
        acls, unseen = await (await connection.operations()).acls(subject=subject, resource=resource)
        tell_unseen(unseen)
        return acls

    return cluster.run(read)


def _tell_users(users: Sequence[User], output: OutputFormat) -> None:
    rows = [(user.username, _HIDDEN, user.user_type, user.user_status) for user in users]
    emit_lines(output, users, _USERS.lines(rows))


def _tell_acls(acls: Sequence[Acl], output: OutputFormat) -> None:
    emit_lines(output, acls, _ACLS.lines([row for row, _ in acl_rows(acls)]))


def _tell_done(done: str, result: ChangeResult) -> None:
    if result.dry_run:
        tell_changes(result)
        return
    for change in result.changes:
        typer.echo(f"{done} to {change.subject} success.")
    tell_warnings(result.warnings)
