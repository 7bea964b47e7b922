"""`tandemmq user …` and `tandemmq acl …`: who may use the client API, and for what."""

from __future__ import annotations

import contextlib
import getpass
import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.cli.connection import ClusterChoice, with_cluster
from tandemmq.cli.ending import CommandError, Refused
from tandemmq.cli.listing import carry_out, tell_changes
from tandemmq.cli.options import DryRunOption, OutputOption, SearchOption, YesOption, at_terminal, standard_input
from tandemmq.cli.output import OutputFormat, emit, new_table, or_text, plain_row, tell_unseen
from tandemmq.core.access.users_and_policies import Action, Decision, PolicyType, UserStatus, UserType

if TYPE_CHECKING:
    from rich.table import Table

    from tandemmq.admin.operations.values import Acl, AclEntry, User

_SECRET_BYTES: Final = 24
_SECRET_CHARACTERS_MAX: Final = 256
ACTIONS_HELP: Final = f"{', '.join(Action)}; separated by commas."

user_app = typer.Typer(no_args_is_help=True, help="Users of the client API: access keys and secret keys.")
acl_app = typer.Typer(no_args_is_help=True, help="What users may do with topics and groups.")


UserArgument = Annotated[str, typer.Argument(metavar="USER", help="Its name: what clients call access key.")]
SubjectArgument = Annotated[str, typer.Argument(metavar="SUBJECT", help="User:NAME, or the name alone.")]
PasswordFileOption = Annotated[
    str,
    typer.Option("--password-file", metavar="FILE", help="Its first line is the secret key; - for standard input."),
]
TypeOption = Annotated[
    UserType | None, typer.Option("--type", "-t", case_sensitive=False, help="Super users may do everything.")
]
StatusOption = Annotated[
    UserStatus | None, typer.Option("--status", "-s", case_sensitive=False, help="A disabled user cannot sign in.")
]


@user_app.command("create")
@with_cluster
def user_create(
    cluster: ClusterChoice,
    user: UserArgument,
    user_type: TypeOption = None,
    password_file: PasswordFileOption = "",
    dry_run: DryRunOption = False,
) -> None:
    """Make a user on all masters. Without --password-file a secret key is made, and printed this once.

    Examples:

      tandemmq user create billing

      tandemmq user create ops --type Super --password-file secret.txt
    """
    from tandemmq.admin.operations.values import UserChange

    made = "" if password_file else secrets.token_urlsafe(_SECRET_BYTES)
    change = UserChange(user, made or password_of(password_file), user_type or "")
    tell_changes(cluster.ask(lambda operations: operations.create_user(change, dry_run=dry_run)))
    if made and not dry_run:
        typer.echo(f"secret key of {user}: {made}")


@user_app.command("update")
@with_cluster
def user_update(
    cluster: ClusterChoice,
    user: UserArgument,
    user_type: TypeOption = None,
    status: StatusOption = None,
    password_file: PasswordFileOption = "",
    new_password: Annotated[bool, typer.Option("--new-password", help="Ask for a new secret key.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Change a user. Clients notice within a second, open connections too.

    Examples:

      tandemmq user update billing --status disable

      tandemmq user update billing --password-file secret.txt
    """
    from tandemmq.admin.operations.values import UserChange

    password = password_of(password_file) if password_file or new_password else ""
    change = UserChange(user, password, user_type or "", status or "")
    tell_changes(cluster.ask(lambda operations: operations.update_user(change, dry_run=dry_run)))


@user_app.command("delete")
@with_cluster
def user_delete(
    cluster: ClusterChoice, user: UserArgument, dry_run: DryRunOption = False, yes: YesOption = False
) -> None:
    """Remove a user with its policies from all masters.

    Example: tandemmq user delete billing --yes
    """
    carry_out(
        cluster,
        f"Delete user {user} with its policies?",
        lambda operations, dry: operations.delete_user(user, dry_run=dry),
        dry_run=dry_run,
        yes=yes,
    )


@user_app.command("list")
@with_cluster
def user_list(cluster: ClusterChoice, search: SearchOption = "", output: OutputOption = OutputFormat.TABLE) -> None:
    """List users. No secret is ever shown.

    Example: tandemmq user list
    """
    users, unseen = cluster.ask(lambda operations: operations.users(search=search))
    emit(output, users, or_text(_users_table(users), "no such user" if search else "there is no user yet"))
    tell_unseen(unseen)


@user_app.command("copy")
@with_cluster
def user_copy(
    cluster: ClusterChoice,
    source: Annotated[str, typer.Argument(metavar="FROM", help="Broker group that has them.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Broker group that gets them; with the same key file.")],
    users: Annotated[list[str] | None, typer.Argument(metavar="USER…", help="Default: all.")] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Copy users with their secrets and policies from one broker group to another, such as one that was added.

    Example: tandemmq user copy broker-a broker-b
    """
    tell_changes(
        cluster.ask(lambda operations: operations.copy_users(source, target, tuple(users or ()), dry_run=dry_run))
    )


@acl_app.command("put")
@with_cluster
def acl_put(
    cluster: ClusterChoice,
    subject: SubjectArgument,
    resources: Annotated[
        list[str], typer.Argument(metavar="RESOURCE…", help="Topic:NAME, Group:NAME, a NAME* for many, or *.")
    ],
    actions: Annotated[str, typer.Option("--actions", "-a", help=ACTIONS_HELP, show_default=False)],
    decision: Annotated[
        Decision, typer.Option("--decision", "-d", case_sensitive=False, help="A Deny wins over any Allow.")
    ] = Decision.ALLOW,
    source_ips: Annotated[
        str | None,
        typer.Option("--source-ips", "-i", help="Addresses and networks it counts for. Default: all."),
    ] = None,
    policy_type: Annotated[
        PolicyType, typer.Option("--policy-type", case_sensitive=False, help="Default: where no custom one matches.")
    ] = PolicyType.CUSTOM,
    dry_run: DryRunOption = False,
) -> None:
    """Say what a user may do, or may not, with some topics and groups; in place of what was said of the same ones.

    Examples:

      tandemmq acl put billing Topic:orders Group:billing --actions Sub

      tandemmq acl put shop "Topic:orders-*" --actions Pub --source-ips 10.1.0.0/16
    """
    entries = [entry_of(one, actions, decision, source_ips, policy_type) for one in resources]
    tell_changes(cluster.ask(lambda operations: operations.put_acl(_subject(subject), entries, dry_run=dry_run)))


@acl_app.command("delete")
@with_cluster
def acl_delete(
    cluster: ClusterChoice,
    subject: SubjectArgument,
    resources: Annotated[list[str] | None, typer.Argument(metavar="RESOURCE…", help="Default: all.")] = None,
    policy_type: Annotated[
        PolicyType, typer.Option("--policy-type", case_sensitive=False, help="Only those of this type.")
    ] = PolicyType.CUSTOM,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Remove what was said of a user and some resources, or all of it.

    Example: tandemmq acl delete billing Topic:orders --yes
    """
    carry_out(
        cluster,
        f"Delete {'these' if resources else 'all'} policies of {_subject(subject)}?",
        lambda operations, dry: operations.delete_acl(
            _subject(subject), tuple(resources or ()), policy_type=policy_type, dry_run=dry
        ),
        dry_run=dry_run,
        yes=yes,
    )


@acl_app.command("list")
@with_cluster
def acl_list(
    cluster: ClusterChoice,
    subject: Annotated[str, typer.Option("--subject", "-s", help="Only subjects with this in them.")] = "",
    resource: Annotated[str, typer.Option("--resource", "-r", help="Only resources with this in them.")] = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List what users may do.

    Example: tandemmq acl list --resource Topic:orders
    """
    acls, unseen = cluster.ask(lambda operations: operations.acls(subject=subject, resource=resource))
    table = new_table("subject", "type", "resource", "actions", "from", "decision", "differs on")
    for row, acl in acl_rows(acls):
        plain_row(table, *row, " ".join(acl.differs_on) or "-")
    emit(output, acls, or_text(table, "no such policy" if subject or resource else "there is no policy yet"))
    tell_unseen(unseen)


def acl_rows(acls: Iterable[Acl]) -> Iterable[tuple[tuple[str, ...], Acl]]:
    """A row for each entry: subject, policy type, resource, actions, sources and decision."""
    for acl in acls:
        for entry in acl.entries:
            sources = ",".join(entry.source_ips) or "*"
            row = (acl.subject, entry.policy_type, entry.resource, ",".join(entry.actions), sources, entry.decision)
            yield row, acl


def entry_of(
    resource: str, actions: str, decision: str = "Allow", source_ips: str | None = None, policy_type: str = "Custom"
) -> AclEntry:
    """An entry, its lists separated by commas. An empty `source_ips` is refused where it is judged."""
    from tandemmq.admin.operations.values import AclEntry

    sources = () if source_ips is None else tuple(part.strip() for part in source_ips.split(","))
    return AclEntry(resource, parts_of(actions), decision, sources, policy_type)


def parts_of(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _subject(text: str) -> str:
    return text if ":" in text else f"User:{text}"


def _users_table(users: Sequence[User]) -> Table:
    table = new_table("user", "type", "status", "differs on")
    for user in users:
        plain_row(table, user.username, user.user_type, user.user_status, " ".join(user.differs_on) or "-")
    return table


def password_of(file: str) -> str:
    """From a file's first line, or typed twice. CommandError when there is none."""
    if file:
        try:
            with contextlib.nullcontext(standard_input()) if file == "-" else open(file, encoding="utf-8") as source:
                text = source.readline(_SECRET_CHARACTERS_MAX + 2)
        except OSError as error:
            raise _no_password(f"{file}: {error.strerror}") from error
        except ValueError as error:
            raise _no_password(f"{file} is no text in UTF-8") from error
        lines = text.splitlines()
        if not lines or not lines[0]:
            raise _no_password("its first line is empty")
        return lines[0]
    if not at_terminal():
        raise _no_password("there is no terminal to ask at")
    password = getpass.getpass("new secret key: ")
    if password != getpass.getpass("again: "):
        raise _no_password("the two are not the same")
    return password


def _no_password(cause: str) -> CommandError:
    return Refused(
        "there is no secret key", cause=cause, remedy="put it into a file and name that: --password-file FILE"
    )
