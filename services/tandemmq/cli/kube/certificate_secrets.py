"""Certificates of a release in Secrets: its CA, and one for each role, as the chart's pods mount them.

PREFIX-ca                                  ca.crt and ca.key; who has the key can be anybody to this cluster
PREFIX-nameserver, PREFIX-broker-GROUP,    tls.crt, tls.key and ca.crt
PREFIX-admin, PREFIX-consistency, PREFIX-hook

Several may write at a time: a Secret is replaced only as the version that was read, and the CA comes first.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tandemmq.cli.ending import CommandError, Refused
from tandemmq.cli.local.certificates import AUTHORITY_DAYS, is_good
from tandemmq.core.access.identity import Identity
from tandemmq.service.certificates import (
    CA_FILE,
    CA_KEY_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    CertificateAuthority,
    CertificateFolder,
    CertificateUnusable,
    judged,
    write_certificates,
)
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.kubernetes_api import Document, Kind, ObjectConflict, ObjectMissing
from tandemmq.service.service_channels import ServiceTls, use_service_tls

if TYPE_CHECKING:
    from tandemmq.service.kubernetes_api import KubernetesApi

_AUTHORITY: Final = "ca"
# Another one that writes the CA at the same moment is done by then.
_ATTEMPTS_MAX: Final = 5


class CertificateSecrets:
    """The Secrets that begin with a prefix. Every call may raise KubernetesUnavailable and CommandError."""

    def __init__(self, api: KubernetesApi, prefix: str, *, now: Callable[[], datetime]) -> None:
        self._api = api
        self._prefix = prefix
        self._now = now

    def name_of(self, identity: Identity) -> str:
        """The Secret that members of this role, and of this broker group, mount."""
        return "-".join(part for part in (self._prefix, identity.role.value, identity.group) if part)

    def make(self, identities: Sequence[Identity], *, only_due: bool, days: float) -> list[str]:
        """Issues certificates, with `only_due` those that are missing, unusable or soon over; the Secrets written."""
        authority = self._authority(f"TandemMQ {identities[0].cluster}")
        return [
            self.name_of(identity)
            for identity in identities
            if self._issue(authority, identity, only_due=only_due, days=days)
        ]

    def _issue(self, authority: CertificateAuthority, identity: Identity, *, only_due: bool, days: float) -> bool:
        name = self.name_of(identity)

        def fresh(held: dict[str, bytes]) -> dict[str, bytes] | None:
            if only_due and self._is_good(name, held, identity, authority):
                return None
            chain, key = authority.issue(identity, now=self._now(), days=days)
            return {CERTIFICATE_FILE: chain, KEY_FILE: key, CA_FILE: authority.pem}

        return self._change(name, fresh)

    def _is_good(self, name: str, held: dict[str, bytes], identity: Identity, authority: CertificateAuthority) -> bool:
        chain, key, authorities = (held.get(file, b"") for file in (CERTIFICATE_FILE, KEY_FILE, CA_FILE))
        try:
            found = judged(Path(f"Secret {name}"), chain, key, authorities, now=self._now())
        except CertificateUnusable:
            return False
        return is_good(found, identity, authority, now=self._now())

    def _authority(self, title: str) -> CertificateAuthority:
        """The CA, made if its Secret has none. CommandError when what is there cannot be used: a new one would be
        believed by nobody."""
        name = f"{self._prefix}-{_AUTHORITY}"
        found: CertificateAuthority | None = None

        def kept(held: dict[str, bytes]) -> dict[str, bytes] | None:
            nonlocal found
            if not held:
                found = CertificateAuthority.new(title, now=self._now(), days=AUTHORITY_DAYS)
                return {CA_FILE: found.pem, CA_KEY_FILE: found.key_pem}
            try:
                found = CertificateAuthority.of(
                    held.get(CA_KEY_FILE, b""), held.get(CA_FILE, b""), place=f"Secret {name}"
                )
            except CertificateUnusable as error:
                raise Refused(
                    "the CA cannot be used",
                    cause=str(error),
                    remedy=f"put {CA_FILE} and {CA_KEY_FILE} back, or remove all its data to have a new CA made",
                ) from error
            return None

        self._change(name, kept)
        assert found is not None, "it was read or made"
        return found

    def _change(self, name: str, change: Callable[[dict[str, bytes]], dict[str, bytes] | None]) -> bool:
        """Writes what `change` makes of the Secret's data, if anything, and only in place of what it was given."""
        for _ in range(_ATTEMPTS_MAX):
            document = self._read(name)
            data = change({} if document is None else _data(document))
            if data is None:
                return False
            with contextlib.suppress(ObjectConflict):
                self._write(name, document, data)
                return True
        raise CommandError(
            f"Secret {name} was changed by somebody else {_ATTEMPTS_MAX} times in a row",
            remedy="run it again when nobody else makes certificates",
        )

    def _read(self, name: str) -> Document | None:
        try:
            return self._api.read(Kind.SECRET, name)
        except ObjectMissing:
            return None

    def _write(self, name: str, document: Document | None, data: dict[str, bytes]) -> None:
        encoded = {key: base64.b64encode(value).decode("ascii") for key, value in data.items()}
        if document is None:
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "Opaque"}
            self._api.create(Kind.SECRET, {**secret, "data": encoded})
        else:
            self._api.replace(Kind.SECRET, name, {**document, "data": encoded})


@contextlib.asynccontextmanager
async def show_certificate(name: str, document: Document) -> AsyncIterator[None]:
    """Calls within the block show the certificate that a Secret holds. CommandError when it cannot be used."""
    held = _data(document)
    # Libraries read files. The folder, which only this user can read, is gone before anything is asked, so that a
    # command that is killed leaves no key behind.
    with tempfile.TemporaryDirectory(prefix="tandemmq-") as folder:
        write_certificates(
            Path(folder),
            chain=held.get(CERTIFICATE_FILE, b""),
            key=held.get(KEY_FILE, b""),
            authorities=held.get(CA_FILE, b""),
        )
        try:
            tls = ServiceTls(CertificateFolder(Path(folder), clock=SystemClock(), is_lasting=False))
        except CertificateUnusable as error:
            raise Refused(
                f"the certificate in Secret {name} cannot be used",
                cause=str(error).replace(f"{folder}/", ""),
                remedy="see `tandemmq certs check` in the admin's pod, and have it made anew",
            ) from error
    with use_service_tls(tls):
        yield


def _data(document: Document) -> dict[str, bytes]:
    data: dict[str, Any] = dict(document.get("data") or {})
    try:
        return {key: base64.b64decode(value, validate=True) for key, value in data.items()}
    except (binascii.Error, ValueError) as error:
        raise Refused(
            "a Secret's data is no base64",
            cause=str(error),
            remedy="have it made anew: `tandemmq certs make --secrets PREFIX`",
        ) from error
