"""Certificates of a local cluster: its CA, and a folder for each member, below the data folder.

DIR/certs/ca/                  ca.crt and ca.key; who has the key can be anybody to this cluster
DIR/certs/<member>/            of each member
DIR/certs/admin, consistency   of the admin service and of the commands, and of the job that proves replicas equal
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tandemmq.cli.ending import Refused
from tandemmq.cli.local.folder import ClusterFolder, Member, MemberKind, data_option
from tandemmq.core.access.identity import AdminLevel, Identity, Role, identity_of
from tandemmq.service.certificates import (
    CertificateAuthority,
    CertificateFolder,
    Certificates,
    CertificateUnusable,
    read_certificates,
    write_certificates,
)
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.service_channels import ServiceTls
from tandemmq.service.service_tls import service_tls_of_environment
from tandemmq.service.settings import SettingsError

AUTHORITY_DAYS: Final = 3_650.0
LEAF_DAYS: Final = 90.0
# A third of the time is left: what cert-manager does, too.
_RENEWED_WHEN_LEFT: Final = 1 / 3
_AUTHORITY: Final = "ca"
_ADMIN: Final = "admin"
_CONSISTENCY: Final = "consistency"


def member_identity(member: Member) -> Identity:
    """Who a member is, by its settings. CommandError when its names cannot stand in a certificate."""
    settings = member.settings
    cluster = settings.get("brokerClusterName", "DefaultCluster")
    if member.kind is MemberKind.BROKER:
        broker_id = settings.get("brokerId", "0")
        identity = Identity(
            cluster,
            Role.BROKER,
            settings.get("brokerName", "broker-a"),
            int(broker_id) if broker_id.isdecimal() else 0,
        )
    else:
        role = Role.NAME_SERVER if member.kind is MemberKind.NAME_SERVER else Role.ADMIN
        identity = Identity(cluster, role, level=AdminLevel.REPAIR if role is Role.ADMIN else None)
    return checked(identity)


def checked(identity: Identity) -> Identity:
    """The same. CommandError when its names cannot stand in a certificate."""
    try:
        return identity_of([str(identity)])
    except ValueError as error:
        raise Refused(
            f"{identity} cannot have a certificate",
            cause=str(error),
            remedy="give cluster and broker groups names of letters, digits, '.', '-' and '_'",
        ) from error


def authority_in(folder: Path, *, name: str) -> CertificateAuthority:
    """The CA in a folder, made if there is none. CommandError when what is there cannot be used."""
    try:
        found = CertificateAuthority.load(folder)
        begins = found.certificate.not_valid_before_utc
        if _now() < begins:
            raise CertificateUnusable(f"{folder}: not valid before {begins.isoformat()}, by this machine's clock")
        return found
    except FileNotFoundError:
        made = CertificateAuthority.new(name, now=_now(), days=AUTHORITY_DAYS)
        made.save(folder)
        return made
    except CertificateUnusable as error:
        raise Refused(
            "the CA cannot be used",
            cause=str(error),
            remedy="put the CA's files back, or this machine's clock right, or remove the folder to have a new CA made",
        ) from error


class ClusterCertificates:
    def __init__(self, folder: ClusterFolder) -> None:
        self.root = folder.certs
        self._folder = folder

    @property
    def are_there(self) -> bool:
        """The folder has a CA: its cluster is a closed one."""
        return (self.root / _AUTHORITY).is_dir()

    def folders(self) -> Iterator[Path]:
        """Of every certificate, by name."""
        if self.root.is_dir():
            yield from sorted(each for each in self.root.iterdir() if each.is_dir() and each.name != _AUTHORITY)

    def make(self, members: Sequence[Member], *, all_anew: bool = False) -> list[Path]:
        """Issues what is missing, unusable or soon over, or all of it; the folders written. CommandError."""
        wanted = {member.name: member_identity(member) for member in members}
        clusters = {identity.cluster for identity in wanted.values() if identity.role is Role.BROKER}
        if len(clusters) > 1:
            raise Refused(
                f"the brokers are of {len(clusters)} clusters, {', '.join(sorted(clusters))}",
                remedy="give all the same brokerClusterName",
            )
        cluster = clusters.pop() if clusters else "DefaultCluster"
        # Only brokers are told the cluster's name.
        wanted = {
            name: identity
            if identity.role is Role.BROKER
            else checked(Identity(cluster, identity.role, level=identity.level))
            for name, identity in wanted.items()
        }
        wanted.setdefault(_ADMIN, Identity(cluster, Role.ADMIN, level=AdminLevel.REPAIR))
        wanted.setdefault(_CONSISTENCY, Identity(cluster, Role.CONSISTENCY))
        self._folder.make(self.root)
        self.root.chmod(0o700)
        authority = authority_in(self.root / _AUTHORITY, name=f"TandemMQ {cluster}")
        written = []
        for name, identity in wanted.items():
            if all_anew or not _is_good(self.root / name, identity, authority):
                chain, key = authority.issue(identity, now=_now(), days=LEAF_DAYS)
                write_certificates(self.root / name, chain=chain, key=key, authorities=authority.pem)
                written.append(self.root / name)
        return written

    def settings_of(self, member: Member) -> dict[str, str]:
        """What has a member use its own."""
        return {"serviceTlsMode": "enforcing", "serviceTlsPath": str(self.root / member.name)}


def caller_certificate(data: Path | None) -> ServiceTls | None:
    """What commands show the cluster of a data folder; None: it takes calls without. CommandError."""
    if data is None or not (certificates := ClusterCertificates(ClusterFolder(data))).are_there:
        return None
    try:
        return ServiceTls(CertificateFolder(certificates.root / _ADMIN, clock=SystemClock()))
    except CertificateUnusable as error:
        raise Refused(
            "the certificate of this cluster's administrator cannot be used",
            cause=str(error),
            remedy=f"make it anew: tandemmq certs make{data_option(data.absolute())}",
        ) from error


def refuse_unusable_certificate() -> None:
    """CommandError when the environment names a certificate for commands that cannot be used."""
    try:
        service_tls_of_environment(os.environ)
    except (CertificateUnusable, SettingsError) as error:
        raise Refused(
            "the certificate that $TANDEMMQ_SERVICE_TLS_PATH names cannot be used",
            cause=str(error),
            remedy="see `tandemmq certs check`; where services take calls without one, unset the variable",
        ) from error


def _is_good(folder: Path, identity: Identity, authority: CertificateAuthority) -> bool:
    now = _now()
    try:
        return is_good(read_certificates(folder, now=now), identity, authority, now=now)
    except CertificateUnusable:
        return False


def is_good(found: Certificates, identity: Identity, authority: CertificateAuthority, *, now: datetime) -> bool:
    """Whether it is this bearer's, of this CA, and far enough from its end not to be renewed."""
    life = found.not_after - found.not_before
    left = found.not_after - now
    return (
        found.identity == identity
        and found.authorities == authority.pem
        and left > max(life * _RENEWED_WHEN_LEFT, timedelta(0))
    )


def _now() -> datetime:
    return datetime.now(UTC)
