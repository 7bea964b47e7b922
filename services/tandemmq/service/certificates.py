"""The certificate of a process on the service planes: three files of one folder, read again when they change.

    tls.crt   the certificate, then those between it and the CA, PEM
    tls.key   its private key, PEM, without a password
    ca.crt    whom to believe, PEM; two of them while a CA is replaced

cert-manager and a Secret of type kubernetes.io/tls name them so. A half-written change is not taken: until the three
fit together again, what was read before stays in force.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from tandemmq.core.access.identity import Identity, IdentityUnusable, Role, identity_of, server_name
from tandemmq.core.clock import Clock

__all__ = [
    "CA_FILE",
    "CERTIFICATE_FILE",
    "KEY_FILE",
    "CertificateFolder",
    "CertificateUnusable",
    "Certificates",
    "FileMarks",
    "file_marks",
    "judged",
    "read_certificates",
]

log = structlog.get_logger(__name__)

CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
CA_FILE: Final = "ca.crt"
_FILES: Final = (CERTIFICATE_FILE, KEY_FILE, CA_FILE)
_FILE_BYTES_MAX: Final = 1 << 20
_CHAIN_MAX: Final = 8
_LOOK_INTERVAL_MS: Final = 1_000


FileMarks: TypeAlias = tuple[tuple[int, int, int] | None, ...]


def file_marks(paths: Iterable[str | Path]) -> FileMarks:
    """Others when one of the files was replaced or written. Of a file that cannot be looked at: None."""

    def mark(path: str | Path) -> tuple[int, int, int] | None:
        try:
            found = os.stat(path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    return tuple(map(mark, paths))


class CertificateUnusable(Exception):
    """No link can be made with these files. The message names the file and the remedy; the operator acts."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """What the three files held at one moment."""

    chain: bytes
    key: bytes
    authorities: bytes
    identity: Identity
    not_before: datetime
    not_after: datetime
    serial: int
    issuer: str
    server_names: tuple[str, ...]
    """DNS names; a caller asks a server for the one of its cluster."""

    def misfit(self, role: Role, *, cluster: str = "", group: str = "", broker_id: int | None = None) -> str | None:
        """Why a process that is this one cannot use them, in words; None: it can. Empty: whatever it is."""
        identity = self.identity
        if identity.role is not role:
            return f"{CERTIFICATE_FILE} is for {identity.role} ({identity}), and this is {role}"
        if cluster and identity.cluster != cluster:
            return f"{CERTIFICATE_FILE} is of cluster {identity.cluster}, and this is of {cluster}"
        if broker_id is not None and (problem := identity.claim_problem(cluster, group, broker_id)):
            return f"{CERTIFICATE_FILE}: {problem}"
        if role in (Role.BROKER, Role.NAME_SERVER) and server_name(identity.cluster) not in self.server_names:
            return (
                f"{CERTIFICATE_FILE} lacks the DNS name {server_name(identity.cluster)}, by which callers know a server"
            )
        return None


def read_certificates(folder: Path, *, now: datetime) -> Certificates:
    """The folder's certificates, judged as others will judge them at `now`. Raises CertificateUnusable."""
    chain, key, authorities = (_read(folder / name) for name in _FILES)
    return judged(folder, chain, key, authorities, now=now)


def judged(folder: Path, chain: bytes, key: bytes, authorities: bytes, *, now: datetime) -> Certificates:
    """What three files hold, judged likewise; messages call their place `folder`. Raises CertificateUnusable."""
    certificates = _parsed(folder / CERTIFICATE_FILE, chain)
    leaf = certificates[0]
    _check_key(folder, leaf, key)
    _check_time(folder / CERTIFICATE_FILE, leaf, now)
    _check_issuer(folder, certificates, _parsed(folder / CA_FILE, authorities), now)
    names = _names(leaf)
    try:
        identity = identity_of([] if names is None else names.get_values_for_type(x509.UniformResourceIdentifier))
    except IdentityUnusable as error:
        raise CertificateUnusable(f"{folder / CERTIFICATE_FILE}: {error}") from error
    return Certificates(
        chain=chain,
        key=key,
        authorities=authorities,
        identity=identity,
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
        serial=leaf.serial_number,
        issuer=leaf.issuer.rfc4514_string(),
        server_names=() if names is None else tuple(names.get_values_for_type(x509.DNSName)),
    )


class CertificateFolder:
    """A folder's certificates as they are now. Safe on any thread.

    Raises CertificateUnusable when it is made and the files cannot be used. Later changes are taken if they can be.
    """

    def __init__(self, folder: Path, *, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = self._marks()
        self._certificates = read_certificates(folder, now=self._now())
        self._looked_ms = clock.monotonic_ms()
        self._problem = ""

    def current(self) -> Certificates:
        """The same object as long as nothing changed. Looks at the files once a second at most."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms < _LOOK_INTERVAL_MS:
            return self._certificates
        with self._lock:
            self._looked_ms = now_ms
            marks = self._marks()
            if marks != self._seen:
                self._take(marks)
        return self._certificates

    def _take(self, marks: FileMarks) -> None:
        try:
            fresh = read_certificates(self.folder, now=self._now())
            if fresh.identity != self._certificates.identity:
                raise CertificateUnusable(
                    f"{self.folder / CERTIFICATE_FILE} is of {fresh.identity} now, and this process is "
                    f"{self._certificates.identity}; restart it, or put its own certificate there"
                )
        except CertificateUnusable as error:
            # Looked at again: the other files of a change may be on their way.
            if str(error) != self._problem:
                log.warning("certificates_not_taken", folder=str(self.folder), reason=str(error))
            self._problem = str(error)
            return
        self._seen, self._certificates, self._problem = marks, fresh, ""
        log.info(
            "certificates_taken",
            folder=str(self.folder),
            identity=str(fresh.identity),
            not_after=fresh.not_after.isoformat(),
            serial=f"{fresh.serial:x}",
        )

    def _marks(self) -> FileMarks:
        return file_marks(self.folder / name for name in _FILES)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1_000, tz=UTC)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CertificateUnusable(
            f"{path}: cannot be read ({error.strerror}); put tls.crt, tls.key and ca.crt into one folder"
        ) from error
    if len(data) > _FILE_BYTES_MAX:
        raise CertificateUnusable(f"{path}: has more than {_FILE_BYTES_MAX} bytes; put PEM certificates there")
    return data


def _parsed(path: Path, data: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise CertificateUnusable(f"{path}: holds no PEM certificate ({error})") from error


def _check_key(folder: Path, leaf: x509.Certificate, data: bytes) -> None:
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateUnusable(f"{folder / KEY_FILE}: is no PEM key without a password ({error})") from error
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        raise CertificateUnusable(
            f"{folder / KEY_FILE}: is not the key of {CERTIFICATE_FILE}; put the two that were made together there"
        )


def _check_time(path: Path, leaf: x509.Certificate, now: datetime) -> None:
    if now > leaf.not_valid_after_utc:
        raise CertificateUnusable(
            f"{path}: the certificate has expired at {leaf.not_valid_after_utc.isoformat()}; renew it, for example "
            "with `tandemmq certs make`"
        )
    if now < leaf.not_valid_before_utc:
        raise CertificateUnusable(
            f"{path}: the certificate is not valid before {leaf.not_valid_before_utc.isoformat()}; set this machine's "
            "clock, or make another"
        )


def _check_issuer(
    folder: Path, chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate], now: datetime
) -> None:
    """Follows the chain up to one of `authorities`."""
    path = folder / CERTIFICATE_FILE
    current, between = chain[0], list(chain[1:_CHAIN_MAX])
    while True:
        for authority in authorities:
            if _issued(authority, current):
                if now > authority.not_valid_after_utc:
                    raise CertificateUnusable(
                        f"{folder / CA_FILE}: the CA {authority.subject.rfc4514_string()} has expired at "
                        f"{authority.not_valid_after_utc.isoformat()}; make a new one"
                    )
                return
        if current.issuer == current.subject:
            raise CertificateUnusable(
                f"{path}: the certificate is self-signed, and {CA_FILE} does not hold it; have the cluster's CA sign it"
            )
        above = next((each for each in between if _issued(each, current)), None)
        if above is None:
            raise CertificateUnusable(
                f"{path}: the certificate is of another CA, {current.issuer.rfc4514_string()}, than {CA_FILE} holds "
                f"({', '.join(each.subject.rfc4514_string() for each in authorities)})"
            )
        between.remove(above)
        current = above


def _issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(leaf: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    except ValueError as error:
        raise CertificateUnusable(f"{CERTIFICATE_FILE}: its names cannot be read ({error})") from error
