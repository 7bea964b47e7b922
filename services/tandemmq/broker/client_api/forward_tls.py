"""The way to other brokers' client ports, for calls that are passed on: as this broker's own port is, so are theirs.

With `tlsMode=enforcing` they take TLS alone. Whom to believe is said by the files of this broker's own port: a `ca.crt`
beside the certificate, and the certificate itself with those that it came with. So brokers may share one certificate,
self-signed or not, or have one each of the same CA. In the permissive mode, others may take none yet.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import grpc.aio
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tandemmq.broker.settings import BrokerSettings
from tandemmq.core.clock import Clock
from tandemmq.http2.errors import TlsMode
from tandemmq.service.certificates import CA_FILE, FileMarks, file_marks

log = structlog.get_logger(__name__)

_LOOK_INTERVAL_MS: Final = 1_000


class BrokerChannels(Protocol):
    """How other brokers' client ports are reached."""

    def generation(self) -> int:
        """Another number when new calls need new channels."""

    def channel(self, endpoint: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
        """To host:port."""


class PlainChannels:
    """Without TLS."""

    def generation(self) -> int:
        """Always the same."""
        return 0

    def channel(self, endpoint: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(endpoint, options=options)


class TlsChannels:
    """With TLS, by the files of this broker's own client port, read again when they change. Event loop only."""

    def __init__(self, certificate_path: Path, *, own_host: str, clock: Clock) -> None:
        """`own_host`: what this broker is called by others. OSError or ValueError if the files cannot be used."""
        self._paths = (certificate_path, certificate_path.with_name(CA_FILE))
        self._own_host = own_host
        self._clock = clock
        self._marks = self._look()
        self._looked_at_ms = clock.monotonic_ms()
        self._generation = 0
        self._roots, self._name = self._read()

    def generation(self) -> int:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_at_ms >= _LOOK_INTERVAL_MS:
            self._looked_at_ms = now_ms
            marks = self._look()
            if marks != self._marks:
                self._marks = marks
                self._take()
        return self._generation

    def channel(self, endpoint: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
        if self._name:
            options = (*options, ("grpc.ssl_target_name_override", self._name))
        return grpc.aio.secure_channel(endpoint, grpc.ssl_channel_credentials(self._roots), options=options)

    def _look(self) -> FileMarks:
        return file_marks(self._paths)

    def _take(self) -> None:
        try:
            self._roots, self._name = self._read()
        except (OSError, ValueError) as error:
            # What was read before serves on; the next change is looked at.
            log.warning(
                "tls_certificate_not_renewed", path=str(self._paths[0]), reason=str(error), of="calls passed on"
            )
            return
        self._generation += 1

    def _read(self) -> tuple[bytes, str]:
        """Whom to believe, and which name they show; empty: the one they are called by."""
        chain = x509.load_pem_x509_certificates(self._paths[0].read_bytes())
        try:
            authorities = x509.load_pem_x509_certificates(self._paths[1].read_bytes())
        except (OSError, ValueError):
            authorities = []
        roots = b"".join(each.public_bytes(Encoding.PEM) for each in (*authorities, *chain))
        return roots, _shown_name(chain[0], self._own_host)


def broker_channels_of(settings: BrokerSettings, *, clock: Clock) -> BrokerChannels:
    if settings.tls_mode is not TlsMode.ENFORCING:
        return PlainChannels()
    return TlsChannels(Path(settings.tls_cert_path), own_host=settings.broker_ip1, clock=clock)


def _shown_name(leaf: x509.Certificate, own_host: str) -> str:
    """Certificates of brokers are either for the hosts they are called by, as ours is then, too; or for another name,
    such as that of a load balancer, which all of them show."""
    dns, addresses = _names_of(leaf)
    try:
        is_own = ipaddress.ip_address(own_host) in addresses
    except ValueError:
        is_own = any(_covers(name, own_host) for name in dns)
    if is_own:
        return ""
    if dns:
        return dns[0].replace("*", "broker", 1)
    return str(addresses[0]) if addresses else ""


def _names_of(leaf: x509.Certificate) -> tuple[list[str], list[Any]]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        common = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return [str(each.value) for each in common[:1]], []
    return names.get_values_for_type(x509.DNSName), names.get_values_for_type(x509.IPAddress)


def _covers(name: str, host: str) -> bool:
    name, host = name.lower(), host.lower()
    return name == host or (name.startswith("*.") and name[1:] == host[host.find(".") :] and host.find(".") > 0)
