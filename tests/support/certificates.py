"""Certificates of a cluster for tests, and every wrong kind of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from tandemmq.core.access.identity import AdminLevel, Identity, Role
from tandemmq.service.certificates import CertificateAuthority, write_certificates

CLUSTER: Final = "DefaultCluster"
GROUP: Final = "broker-a"


def now() -> datetime:
    return datetime.now(UTC)


def broker(broker_id: int | None = 0, *, group: str = GROUP, cluster: str = CLUSTER) -> Identity:
    return Identity(cluster, Role.BROKER, group, broker_id)


ADMIN: Final = {level: Identity(CLUSTER, Role.ADMIN, level=level) for level in AdminLevel}
CONSISTENCY: Final = Identity(CLUSTER, Role.CONSISTENCY)
HOOK: Final = Identity(CLUSTER, Role.HOOK)
NAME_SERVER: Final = Identity(CLUSTER, Role.NAME_SERVER)

CALLERS: Final[dict[str, Identity]] = {
    "member of the group": broker(1),
    "broker of another group": broker(0, group="broker-b"),
    "NameServer": NAME_SERVER,
    "admin viewer": ADMIN[AdminLevel.VIEWER],
    "admin operator": ADMIN[AdminLevel.OPERATOR],
    "admin repair": ADMIN[AdminLevel.REPAIR],
    "consistency": CONSISTENCY,
    "hook": HOOK,
    "member, other cluster": broker(1, cluster="OtherCluster"),
    "admin repair, other cluster": Identity("OtherCluster", Role.ADMIN, level=AdminLevel.REPAIR),
}
"""Who may call, by the name that the table of permissions gives."""


USES: Final = {
    "both": [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH],
    "client": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "server": [ExtendedKeyUsageOID.SERVER_AUTH],
    "any": [ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE],
    "signing": [ExtendedKeyUsageOID.CODE_SIGNING],
    "not said": None,
}
"""What a certificate may say that it is for."""


def made_by_hand(
    by: CertificateAuthority, *, uris: Sequence[str], dns: Sequence[str] = (), days: tuple[float, float], use: str
) -> tuple[bytes, bytes]:
    """Certificate and key as somebody else's tools may make them; `days`: from when until when, from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = [*map(x509.UniformResourceIdentifier, uris), *map(x509.DNSName, dns)]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() + timedelta(days=days[0]))
        .not_valid_after(now() + timedelta(days=days[1]))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
    if (uses := USES[use]) is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    made = builder.sign(by.key, hashes.SHA256())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.public_bytes(Encoding.PEM), pem


class TestCertificates:
    """One CA, and folders of what it issued below `root`."""

    __test__ = False

    def __init__(self, root: Path, *, name: str = "test CA") -> None:
        self.root = root
        self.authority = CertificateAuthority.new(name, now=now(), days=30)

    def issue(
        self,
        identity: Identity,
        *,
        folder: str = "",
        days: float = 10,
        at: datetime | None = None,
        by: CertificateAuthority | None = None,
        believes: bytes | None = None,
    ) -> Path:
        place = self.root / (folder or str(identity).removeprefix("spiffe://").replace("/", "+"))
        chain, key = (by or self.authority).issue(identity, now=at or now(), days=days)
        write_certificates(place, chain=chain, key=key, authorities=believes or self.authority.pem)
        return place

    def expired(self, identity: Identity) -> Path:
        """Valid until yesterday."""
        return self.issue(identity, folder="expired", days=1, at=now() - timedelta(days=2))

    def of_another_authority(self, identity: Identity) -> Path:
        """Well made, by a CA that nobody here believes; the bearer believes ours."""
        other = CertificateAuthority.new("another CA", now=now(), days=30)
        return self.issue(identity, folder="another-ca", by=other)

    def settings(self, identity: Identity, *, mode: str = "enforcing") -> dict[str, str]:
        """What a process is told to use it."""
        return {"serviceTlsMode": mode, "serviceTlsPath": str(self.issue(identity))}
