"""The certificate of a process on the service planes: three files of one folder, read again when they change. And the
CA that issues them.

    tls.crt   the certificate, then those between it and the CA, PEM
    tls.key   its private key, PEM, without a password
    ca.crt    whom to believe, PEM; two of them while a CA is replaced

cert-manager and a Secret of type kubernetes.io/tls name them so. A half-written change is not taken: until the three
fit together again, what was read before stays in force.
"""

from __future__ import annotations

import os
import ssl
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tandemmq.core.access.identity import Identity, IdentityUnusable, Role, group_server_name, identity_of, server_name
from tandemmq.core.clock import Clock
from tandemmq.service.settings import Passing

log = structlog.get_logger(__name__)

CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
CA_FILE: Final = "ca.crt"
_FILES: Final = (CERTIFICATE_FILE, KEY_FILE, CA_FILE)
_FILE_BYTES_MAX: Final = 1 << 20
_CHAIN_MAX: Final = 8
_LOOK_INTERVAL_MS: Final = 1_000
_FORMER_MAX: Final = 8


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
    """Of the first to end: the certificate, one above it, or the CA."""
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
        if role in (Role.BROKER, Role.NAME_SERVER) and server_name(identity.cluster) not in self.known_names:
            return (
                f"{CERTIFICATE_FILE} lacks the DNS name {server_name(identity.cluster)}, by which callers know a server"
            )
        return None

    @property
    def known_names(self) -> frozenset[str]:
        """DNS names of `names_of` that callers find in it, as they compare: a * stands for the first part."""
        named = {each.lower() for each in self.server_names}
        return frozenset(name for name in names_of(self.identity).dns if {name, f"*.{name.partition('.')[2]}"} & named)


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
    believed = sorted(_parsed(folder / CA_FILE, authorities), key=lambda each: each.not_valid_after_utc, reverse=True)
    above_until = _check_issuer(folder, certificates, believed, now)
    names = _names(leaf)
    try:
        identity = identity_of([] if names is None else names.get_values_for_type(x509.UniformResourceIdentifier))
    except IdentityUnusable as error:
        raise CertificateUnusable(f"{folder / CERTIFICATE_FILE}: {error}") from error
    _check_uses(folder / CERTIFICATE_FILE, leaf, identity)
    return Certificates(
        chain=chain,
        key=key,
        # The library takes the first that fits, also if that one has expired and another of the same key has not.
        authorities=b"".join(each.public_bytes(Encoding.PEM) for each in believed),
        identity=identity,
        not_before=leaf.not_valid_before_utc,
        not_after=min(leaf.not_valid_after_utc, above_until),
        serial=leaf.serial_number,
        issuer=leaf.issuer.rfc4514_string(),
        server_names=() if names is None else tuple(names.get_values_for_type(x509.DNSName)),
    )


@lru_cache(maxsize=1_024)
def _leaf_problem(leaf: bytes, authorities: bytes, former: tuple[bytes, ...], now: datetime) -> str | None:
    """Why no handshake would take at `now` what one has taken while `authorities` or the former ones were believed, in
    words; None: one would, as far as the leaf tells: who is above its issuer is not known."""
    (certificate,) = x509.load_pem_x509_certificates(leaf)
    believed = _parsed(Path(CA_FILE), authorities)
    known = [*believed, *(each for own in former for each in _parsed(Path(CA_FILE), own))]
    try:
        _check_time(Path(CERTIFICATE_FILE), certificate, now)
        if any(_issued(each, certificate) for each in known):
            _check_issuer(Path(), [certificate], believed, now)
    except CertificateUnusable as error:
        return str(error)
    return None


class CertificateFolder:
    """A folder's certificates as they are now. Safe on any thread.

    Raises CertificateUnusable when it is made and the files cannot be used. Later changes are taken if they can be.
    """

    def __init__(self, folder: Path, *, clock: Clock, is_lasting: bool = True) -> None:
        """Unless `is_lasting` the files are read this once, and may be gone then."""
        self.folder = folder
        self._clock = clock
        self._is_lasting = is_lasting
        self._lock = threading.Lock()
        self._seen = self._marks()
        self._certificates = read_certificates(folder, now=self._now())
        self._looked_ms = clock.monotonic_ms()
        self._problem = ""
        self._former: tuple[bytes, ...] = ()
        """What else has been in the CA's file since the start, the latest first."""

    def current(self) -> Certificates:
        """The same object as long as nothing changed. Looks at the files once a second at most."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms < _LOOK_INTERVAL_MS or not self._is_lasting:
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
            if lost := self._certificates.known_names - fresh.known_names:
                raise CertificateUnusable(
                    f"{self.folder / CERTIFICATE_FILE} lacks the DNS name {' and '.join(sorted(lost))}, which the one "
                    "before has, and by which callers know this server"
                )
        except CertificateUnusable as error:
            # Looked at again: the other files of a change may be on their way.
            if str(error) != self._problem:
                log.warning("certificates_not_taken", folder=str(self.folder), reason=str(error))
            self._problem = str(error)
            return
        if fresh.authorities != self._certificates.authorities:
            self._former = (self._certificates.authorities, *self._former)[:_FORMER_MAX]
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

    def caller_problem(self, leaf: bytes) -> str | None:
        """Why a caller that came with this certificate would not be taken any more, in words. Judged once a second."""
        authorities = self.current().authorities
        return _leaf_problem(leaf, authorities, self._former, self._now().replace(microsecond=0))

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
) -> datetime:
    """Follows the chain up to one of `authorities`, and tells until when all of them hold. While a CA is renewed with
    its old key, two of them may do."""
    path = folder / CERTIFICATE_FILE
    current, between = chain[0], list(chain[1:_CHAIN_MAX])
    used: list[x509.Certificate] = []
    while True:
        issuers = [authority for authority in authorities if _issued(authority, current)]
        if in_time := [authority for authority in issuers if _is_in_time(authority, now)]:
            if current not in in_time:  # else it is its own CA
                _check_ca(folder / CA_FILE, in_time[0], len(used))
            return min([each.not_valid_after_utc for each in (*used, max(in_time, key=_end_of))])
        if issuers and now > issuers[0].not_valid_after_utc:
            raise CertificateUnusable(
                f"{folder / CA_FILE}: the CA {issuers[0].subject.rfc4514_string()} has expired at "
                f"{issuers[0].not_valid_after_utc.isoformat()}; make a new one"
            )
        if issuers:
            raise CertificateUnusable(
                f"{folder / CA_FILE}: the CA {issuers[0].subject.rfc4514_string()} is not valid before "
                f"{issuers[0].not_valid_before_utc.isoformat()}; set this machine's clock, or make another"
            )
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
        _check_time(path, above, now)
        _check_ca(path, above, len(used))
        between.remove(above)
        used.append(above)
        current = above


def _check_ca(path: Path, issuer: x509.Certificate, below: int) -> None:
    """TLS takes nothing from an issuer that may be none, or may not have so many CAs `below` it."""
    name = issuer.subject.rfc4514_string()
    try:
        constraints = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        return  # Libraries differ.
    if not constraints.ca:
        raise CertificateUnusable(
            f"{path}: {name} issued the certificate, and is no CA (basic constraints); have the cluster's CA sign it"
        )
    if constraints.path_length is not None and below > constraints.path_length:
        raise CertificateUnusable(
            f"{path}: {name} may have {constraints.path_length} CAs below it, and there are {below} (path length); "
            "have it sign the certificate itself"
        )


def _end_of(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_after_utc


def _is_in_time(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def _issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _check_uses(path: Path, leaf: x509.Certificate, identity: Identity) -> None:
    """Where a certificate says what it is for, that has to be in it: TLS looks, and takes "any" for neither."""
    try:
        named = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    needed = {} if identity.role is Role.NAME_SERVER else {"client auth": ExtendedKeyUsageOID.CLIENT_AUTH}
    if names_of(identity).dns:
        needed["server auth"] = ExtendedKeyUsageOID.SERVER_AUTH
    lacking = [word for word, use in needed.items() if use not in named]
    if lacking:
        raise CertificateUnusable(
            f"{path}: the certificate is not for {' and '.join(lacking)} (extended key usage), as {identity.role} needs"
        )


def _names(leaf: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    except ValueError as error:
        raise CertificateUnusable(f"{CERTIFICATE_FILE}: its names cannot be read ({error})") from error


# A CA of one cluster, and the certificates that it issues for service links: ECDSA P-256, SHA-256, as files in PEM.
#
# For clusters that have nothing better: `tandemmq up --secure`, `tandemmq certs make`, and the chart's own CA. Where
# cert-manager or a company's CA issues, its certificates need the URI and DNS names that `names_of` gives.

CA_KEY_FILE: Final = "ca.key"
_CLOCKS_DIFFER: Final = timedelta(minutes=5)
_CLOCK_WAS_AHEAD: Final = timedelta(days=1)
"""A machine that takes local time for UTC until NTP sets its clock back: what it made meanwhile counts at once."""
_COMMON_NAME_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class CertificateNames:
    uri: str
    dns: tuple[str, ...]


def names_of(identity: Identity) -> CertificateNames:
    """Of the bearer; DNS names are a server's, by which callers know it."""
    dns: tuple[str, ...] = ()
    if identity.role in (Role.BROKER, Role.NAME_SERVER):
        dns = (server_name(identity.cluster),)
    if identity.role is Role.BROKER:
        dns += (group_server_name(identity.cluster, identity.group),)
    return CertificateNames(str(identity), dns)


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """Key and certificate of a CA."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, name: str, *, now: datetime, days: float) -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name)
        certificate = (
            _builder(subject, subject, key.public_key(), now=now, days=days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """From its two files. Raises CertificateUnusable; FileNotFoundError when there is none."""
        try:
            key, certificate = (folder / CA_KEY_FILE).read_bytes(), (folder / CA_FILE).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CertificateUnusable(f"{folder}: {CA_FILE} and {CA_KEY_FILE} are no CA ({error})") from error
        return cls.of(key, certificate, place=str(folder))

    @classmethod
    def of(cls, key_pem: bytes, certificate_pem: bytes, *, place: str) -> Self:
        """From the content of its two files. Raises CertificateUnusable, which names the place."""
        try:
            key = load_pem_private_key(key_pem, password=None)
            certificate = x509.load_pem_x509_certificate(certificate_pem)
        except (ValueError, TypeError) as error:
            raise CertificateUnusable(f"{place}: {CA_FILE} and {CA_KEY_FILE} are no CA ({error})") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise CertificateUnusable(
                f"{place}: {CA_KEY_FILE} is not the key of {CA_FILE}; put back what belongs there"
            )
        return cls(key, certificate)

    def save(self, folder: Path) -> None:
        """Its two files; only this user may read the key."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(folder / CA_KEY_FILE, self.key_pem, mode=0o600)
        _write(folder / CA_FILE, self.pem, mode=0o644)

    @property
    def key_pem(self) -> bytes:
        return _key_bytes(self.key)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def issue(self, identity: Identity, *, now: datetime, days: float) -> tuple[bytes, bytes]:
        """A certificate and its key for the bearer; it ends with the CA at the latest."""
        names = names_of(identity)
        key = ec.generate_private_key(ec.SECP256R1())
        left_days = (self.certificate.not_valid_after_utc - now) / timedelta(days=1)
        alternatives: list[x509.GeneralName] = [x509.UniformResourceIdentifier(names.uri)]
        alternatives += [x509.DNSName(name) for name in names.dns]
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if names.dns:
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        certificate = (
            _builder(
                _subject(f"{identity.cluster} {identity.role} {identity.group}".strip()),
                self.certificate.subject,
                key.public_key(),
                now=now,
                days=min(days, left_days),
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.certificate.public_key()),  # type: ignore[arg-type]
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM), _key_bytes(key)


def write_certificates(folder: Path, *, chain: bytes, key: bytes, authorities: bytes) -> None:
    """The three files of a service. Each is replaced as a whole; a reader takes them when all three fit."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(folder / CA_FILE, authorities, mode=0o644)
    _write(folder / KEY_FILE, key, mode=0o600)
    _write(folder / CERTIFICATE_FILE, chain, mode=0o644)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, now: datetime, days: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - max(_CLOCKS_DIFFER, min(_CLOCK_WAS_AHEAD, timedelta(days=days) / 10)))
        .not_valid_after(now + timedelta(days=days))
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_COMMON_NAME_MAX])])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


_WRITTEN_WITHIN_S: Final = 600


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, *, mode: int) -> None:
    for left in path.parent.glob(f".{path.name}-*"):
        # Of a process that was killed while it wrote. Nobody writes for so long.
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _WRITTEN_WITHIN_S:
                left.unlink()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


# The certificate of a port that is not a service's: of clients, and of people. Two files, and nobody is asked for one.


def tls_files_problems(certificate_path: str, key_path: str) -> list[str]:
    """What is wrong with `tlsCertPath` or `tlsKeyPath`, for people to read."""
    try:
        _tls_context(certificate_path, key_path, ())
    except (OSError, ssl.SSLError) as error:
        # Whoever renews them may be about to write them.
        return [
            Passing(
                f"tlsCertPath, tlsKeyPath: {error.strerror or error}; name a PEM certificate and its unencrypted key"
            )
        ]
    return []


class TlsFiles:
    """The context of new connections, made anew when certificate or key have changed. Event loop only.

    Looked at when somebody connects, at most once a second. Connections that are open keep theirs. Files that do not
    fit together, as between the two writes of a renewal, are asked after again; until they do, and for as long as they
    do not, the context stays. So it does while a new certificate has expired, or does not count yet, and the one before
    still counts.
    """

    def __init__(self, certificate_path: str, key_path: str, *, protocols: Sequence[str], clock: Clock) -> None:
        """`protocols`: of ALPN, those that are liked best first. OSError or ssl.SSLError if the files cannot be
        used."""
        self._certificate_path = certificate_path
        self._key_path = key_path
        self._protocols = protocols
        self._clock = clock
        self._marks = self._look()
        self._context = self._made()
        self._times = _times_of(certificate_path)
        self._looked_at_ms = clock.monotonic_ms()
        self._is_bad = False

    def context(self) -> ssl.SSLContext:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_at_ms >= _LOOK_INTERVAL_MS:
            self._looked_at_ms = now_ms
            try:
                # Looked at first: what is written meanwhile is seen the next time.
                marks = self._look()
                if marks != self._marks:
                    fresh, times = self._made(), _times_of(self._certificate_path)
                    self._check_times(times)
                    self._context, self._times = fresh, times
                    self._marks, self._is_bad = marks, False
                    log.info("tls_certificate_renewed", path=self._certificate_path)
            except (OSError, ValueError) as error:  # ssl.SSLError is of the first
                if not self._is_bad:
                    self._is_bad = True
                    log.warning(
                        "tls_certificate_not_renewed",
                        path=self._certificate_path,
                        reason=str(error),
                        remedy="tlsCertPath and tlsKeyPath have changed and are of no use; the old ones serve on",
                    )
        return self._context

    def _made(self) -> ssl.SSLContext:
        return _tls_context(self._certificate_path, self._key_path, self._protocols)

    def _check_times(self, fresh: _Times) -> None:
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1_000, UTC)
        if fresh.holds(now) or not self._times.holds(now):
            return
        is_early = now < fresh.not_before
        when = f"not valid before {fresh.not_before.isoformat()}" if is_early else "expired"
        raise ValueError(f"the certificate is {when}, and the one before still counts")

    def _look(self) -> FileMarks:
        return file_marks((self._certificate_path, self._key_path))


def _tls_context(certificate_path: str, key_path: str, protocols: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(protocols)
    # An encrypted key would ask for its password on the terminal.
    context.load_cert_chain(certificate_path, key_path, password="")
    return context


class _Times(NamedTuple):
    """When a certificate counts."""

    not_before: datetime
    not_after: datetime

    def holds(self, now: datetime) -> bool:
        return self.not_before <= now <= self.not_after


def _times_of(certificate_path: str) -> _Times:
    """OpenSSL has taken the file; what it is more tolerant of counts for ever."""
    try:
        leaf = x509.load_pem_x509_certificates(Path(certificate_path).read_bytes())[0]
    except ValueError:
        return _Times(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
    return _Times(leaf.not_valid_before_utc, leaf.not_valid_after_utc)
