"""A CA of one cluster, and the certificates that it issues for service links: ECDSA P-256, SHA-256, as files in PEM.

For clusters that have nothing better: `tandemmq up --secure`, `tandemmq certs make`, and the chart's own CA. Where
cert-manager or a company's CA issues, its certificates need the URI and DNS names that `names_of` gives.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tandemmq.core.access.identity import Identity, Role, group_server_name, server_name
from tandemmq.service.certificates import CA_FILE, CERTIFICATE_FILE, KEY_FILE, CertificateUnusable

__all__ = ["CA_KEY_FILE", "CertificateAuthority", "CertificateNames", "names_of", "write_certificates"]

CA_KEY_FILE: Final = "ca.key"
_CLOCKS_DIFFER: Final = timedelta(minutes=5)
_COMMON_NAME_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """What a certificate has to name."""

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
        """A fresh one."""
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
        """Its key."""
        return _key_bytes(self.key)

    @property
    def pem(self) -> bytes:
        """Its certificate."""
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
        .not_valid_before(now - _CLOCKS_DIFFER)
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


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, *, mode: int) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
