"""`tandemmq certs …`: certificates of the links between services: who, until when, for what."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.cli.ending import CommandError, Refused
from tandemmq.cli.kube.release import KubeContextOption, NamespaceOption
from tandemmq.cli.local.folder import DEFAULT_FOLDER, ClusterFolder, data_option, lay_out, read_members
from tandemmq.cli.options import OutputOption
from tandemmq.cli.output import OutputFormat, bad, emit, new_table, or_text, plain_row
from tandemmq.core.access.identity import Identity, IdentityUnusable, Role, identity_of
from tandemmq.service.kubernetes_api import KubernetesApi, KubernetesUnavailable, api_of_user

if TYPE_CHECKING:
    from rich.console import RenderableType

certs_app = typer.Typer(no_args_is_help=True, help="Certificates of the links between services.")

_EXIT_WARNING: Final = 1
_EXIT_CRITICAL: Final = 2
_USES: Final = {
    Role.BROKER: "serves its group on 10911 and replicates; registers as itself",
    Role.NAME_SERVER: "serves 9876",
    Role.ADMIN: "asks and changes the cluster, by its level",
    Role.CONSISTENCY: "reads replicas",
    Role.HOOK: "drains, hands over and renews brokers for a release",
}

_DataOption = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", help="Data folder of a cluster of `tandemmq up --secure`."),
]
_FoldersArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FOLDER]…",
        help="Folders with tls.crt, tls.key and ca.crt. Default: $TANDEMMQ_SERVICE_TLS_PATH, else those of --data.",
    ),
]


@dataclass(frozen=True, slots=True)
class CertificateLine:
    """One folder, as `show` and `check` print it."""

    folder: str
    # Empty: it cannot be told, see problem.
    identity: str
    not_after: str
    days_left: float
    uses: str
    issuer: str
    serial: str
    problem: str


@certs_app.command("show")
def certs_show(
    folders: _FoldersArgument = None, data: _DataOption = DEFAULT_FOLDER, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show certificates: whose they are, until when, and what for.

    Examples:

      tandemmq certs show

      tandemmq certs show /etc/tandemmq/tls
    """
    lines = _lines(folders, data)
    emit(output, lines, _table(lines))


@certs_app.command("check")
def certs_check(
    folders: _FoldersArgument = None,
    data: _DataOption = DEFAULT_FOLDER,
    warn_days: Annotated[
        float, typer.Option(min=0.0, metavar="DAYS", help="Warn of those that end within so many days.")
    ] = 21.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check certificates, for monitoring: exit code 0 all are good, 1 one ends soon, 2 one cannot be used.

    Example: tandemmq certs check --warn-days 30
    """
    lines = _lines(folders, data)
    emit(output, lines, _table(lines))
    if not lines or any(line.problem for line in lines):
        raise typer.Exit(_EXIT_CRITICAL)
    if any(line.days_left < warn_days for line in lines):
        raise typer.Exit(_EXIT_WARNING)


@certs_app.command("make")
def certs_make(
    identities: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[IDENTITY]…",
            help="Who to make certificates for, such as broker/broker-a/0, nameserver, admin/operator, consistency or "
            "hook. Default: every member of --data.",
        ),
    ] = None,
    data: _DataOption = DEFAULT_FOLDER,
    cluster: Annotated[str, typer.Option(metavar="NAME", help="brokerClusterName.")] = "DefaultCluster",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With identities: where to; DIR/ca is the CA, made if it is missing."),
    ] = None,
    secrets: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX",
            help="With identities: into Secrets of Kubernetes, PREFIX-nameserver, PREFIX-broker-GROUP and so on; "
            "PREFIX-ca is the CA, made if it is missing.",
        ),
    ] = None,
    only_due: Annotated[
        bool,
        typer.Option(
            "--due", help="With --secrets: only those that are missing, unusable, or have a third of their time left."
        ),
    ] = False,
    days: Annotated[
        float | None, typer.Option(min=0.0001, help="How long they last, at most as long as the CA. Default: 90.")
    ] = None,
    namespace: NamespaceOption = None,
    kube_context: KubeContextOption = None,
) -> None:
    """Make certificates, and a CA if there is none. Running services take them without a restart: of files within a
    second, of Secrets when Kubernetes has brought them to the pods, within two minutes.

    Examples:

      tandemmq certs make --data data

      tandemmq certs make broker/broker-a/0 broker/broker-a/1 nameserver admin/repair --cluster mq --out certs

      tandemmq certs make broker/broker-a nameserver admin/repair hook --cluster mq --secrets own --namespace mq
    """
    if secrets is not None:
        _refuse_unless(bool(identities), "--secrets needs identities", "name them, such as nameserver")
        _refuse_unless(out is None, "--out and --secrets are two places", "leave one out")
        api = _api_of(namespace, kube_context)
        names = _make_secrets(identities or [], secrets, cluster, api, only_due=only_due, days=days)
        for name in names:
            typer.echo(f"made Secret {name}")
        if not names:
            typer.echo("all are good")
        return
    _refuse_unless(not only_due, "--due is for --secrets", "without it `up` renews what is due by itself")
    if not identities:
        written = _make_for(data)
    else:
        if out is None:
            raise Refused("--out is missing", remedy="say where the certificates are to go")
        written = _make(identities, cluster=cluster, out=out, days=days)
    for folder in written:
        typer.echo(f"made {folder}")


@certs_app.command("names")
def certs_names(
    identity: Annotated[str, typer.Argument(metavar="IDENTITY", help="Such as broker/broker-a/0.")],
    cluster: Annotated[str, typer.Option(metavar="NAME", help="brokerClusterName.")] = "DefaultCluster",
) -> None:
    """Say which names a certificate of another CA needs: a URI, and DNS names for a server.

    Example: tandemmq certs names broker/broker-a/0 --cluster mq
    """
    from tandemmq.service.certificates import names_of

    names = names_of(_identity(identity, cluster))
    typer.echo(f"URI: {names.uri}")
    for name in names.dns:
        typer.echo(f"DNS: {name}")


def _refuse_unless(holds: bool, problem: str, remedy: str) -> None:
    if not holds:
        raise Refused(problem, remedy=remedy)


def _api_of(namespace: str | None, kube_context: str | None) -> KubernetesApi:
    try:
        return api_of_user(namespace or "", context=kube_context or "")
    except KubernetesUnavailable as error:
        raise Refused("no Kubernetes to write to", cause=str(error), remedy="set KUBECONFIG") from error


def _make_secrets(
    identities: list[str], prefix: str, cluster: str, api: KubernetesApi, *, only_due: bool, days: float | None
) -> list[str]:
    from tandemmq.cli.kube.certificate_secrets import CertificateSecrets
    from tandemmq.cli.local.certificates import LEAF_DAYS

    secrets = CertificateSecrets(api, prefix, now=lambda: datetime.now(UTC))
    wanted = [_identity(text, cluster) for text in identities]
    try:
        return secrets.make(wanted, only_due=only_due, days=days or LEAF_DAYS)
    except KubernetesUnavailable as error:
        raise CommandError(
            f"Secrets {prefix}-… cannot be written",
            cause=str(error),
            remedy="it needs the right to get and update them, and to create those that are missing",
        ) from error


def _make_for(data: Path) -> list[Path]:
    from tandemmq.cli.local.certificates import ClusterCertificates

    folder = ClusterFolder(data)
    if not folder.conf.is_dir():
        raise Refused(
            f"there is no cluster in {folder.root}",
            remedy=f"start one: tandemmq up --secure{data_option(folder.root)}; or name identities and --out",
        )
    certificates = ClusterCertificates(folder)
    record = folder.read_record()
    if record is not None and record.supervised and not certificates.are_there:
        raise Refused(
            f"the cluster that runs in {folder.root} takes calls without certificates",
            cause="its members would not show theirs before they start again, and commands would not reach them",
            remedy=f"stop it with `tandemmq down{data_option(folder.root)}`, then "
            f"`tandemmq up --secure{data_option(folder.root)}` makes them",
        )
    members = read_members(folder, lay_out(folder, None), {})
    return certificates.make(members, all_anew=True)


def _make(identities: list[str], *, cluster: str, out: Path, days: float | None) -> list[Path]:
    from tandemmq.cli.local.certificates import LEAF_DAYS, authority_in
    from tandemmq.service.certificates import write_certificates

    wanted = {text: _identity(text, cluster) for text in identities}
    authority = authority_in(out / "ca", name=f"TandemMQ {cluster}")
    written = []
    for text, identity in wanted.items():
        chain, key = authority.issue(identity, now=datetime.now(UTC), days=days or LEAF_DAYS)
        folder = out / text.strip("/").replace("/", "-")
        write_certificates(folder, chain=chain, key=key, authorities=authority.pem)
        written.append(folder)
    return written


def _identity(text: str, cluster: str) -> Identity:
    from tandemmq.cli.local.certificates import checked

    try:
        return checked(identity_of([f"spiffe://tandemmq/{cluster}/{text.strip('/')}"]))
    except IdentityUnusable as error:
        raise Refused(
            f"{text} is no identity",
            cause=str(error),
            remedy="write broker/<group>/<brokerId>, nameserver, admin/<viewer|operator|repair>, consistency or hook",
        ) from error


def _lines(folders: list[Path] | None, data: Path) -> list[CertificateLine]:
    from tandemmq.cli.local.certificates import ClusterCertificates

    if not folders and (own := os.environ.get("TANDEMMQ_SERVICE_TLS_PATH")):
        folders = [Path(own)]
    return [_line(folder) for folder in folders or ClusterCertificates(ClusterFolder(data)).folders()]


def _line(folder: Path) -> CertificateLine:
    from tandemmq.service.certificates import CertificateUnusable, read_certificates

    now = datetime.now(UTC)
    try:
        found = read_certificates(folder, now=now)
        problem = found.misfit(found.identity.role)
    except CertificateUnusable as error:
        return CertificateLine(str(folder), "", "", 0.0, "", "", "", str(error))
    if problem is not None:
        return CertificateLine(str(folder), str(found.identity), "", 0.0, "", "", "", f"{folder}/{problem}")
    return CertificateLine(
        folder=str(folder),
        identity=str(found.identity),
        not_after=found.not_after.isoformat(),
        days_left=round((found.not_after - now) / timedelta(days=1), 1),
        uses=_USES[found.identity.role],
        issuer=found.issuer,
        serial=f"{found.serial:x}",
        problem="",
    )


def _table(lines: list[CertificateLine]) -> RenderableType:
    table = new_table("whose", "until", "days left", "for what", "folder")
    for line in lines:
        if line.problem:
            plain_row(table, bad("unusable"), "-", "-", line.problem, line.folder)
        else:
            plain_row(table, line.identity, line.not_after, f"{line.days_left:g}", line.uses, line.folder)
    return or_text(table, "no certificates here; see tandemmq certs make --help")
