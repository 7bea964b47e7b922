"""Who may read: everybody on this host, and whoever has the token.

A caller from the same host is trusted without one, because in a pod that is who came through `kubectl port-forward`:
Kubernetes has checked them already, and a browser could not send the token. Two things look like the same host and are
none of it, hence the details: a service mesh's sidecar (127.0.0.6) and a web page that had its own name resolved to
127.0.0.1, which gives itself away by its Host header.
"""

from __future__ import annotations

import hmac
import ipaddress
from enum import Enum
from typing import Final

from pydantic import SecretStr

__all__ = ["Access", "Refusal", "peer_host_of"]

_SAME_HOST: Final = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
_BEARER: Final = "bearer "


class Refusal(Enum):
    """Why a request is not answered; the value is for its sender."""

    TOKEN_MISSING = "send the admin token as 'Authorization: Bearer <token>', or come through kubectl port-forward"
    TOKEN_WRONG = "this is not the admin token"
    HOST_NOT_LOCAL = "from this host, ask for localhost or an IP address, or send the admin token"


class Access:
    """The rule for one process."""

    def __init__(self, token: SecretStr) -> None:
        self._token = token.get_secret_value().encode()

    def refusal(self, *, peer_host: str, authorization: str, requested_host: str | None) -> Refusal | None:
        """None: answer. `requested_host` is the Host header, None where there is no browser to be careful about."""
        if peer_host in _SAME_HOST:
            if requested_host is None or _is_local(requested_host) or self._is_proven(authorization):
                return None
            return Refusal.HOST_NOT_LOCAL
        if not self._token or self._is_proven(authorization):
            return None
        return Refusal.TOKEN_WRONG if authorization else Refusal.TOKEN_MISSING

    def _is_proven(self, authorization: str) -> bool:
        if not self._token or authorization[: len(_BEARER)].lower() != _BEARER:
            return False
        return hmac.compare_digest(authorization[len(_BEARER) :].strip().encode(), self._token)


def peer_host_of(peer: str) -> str:
    """The address in a gRPC peer such as `ipv4:10.0.0.7:51234` or `ipv6:[::1]:51234`."""
    kind, _, address = peer.partition(":")
    host = address.rpartition(":")[0]
    return host.strip("[]") if kind == "ipv6" else host


def _is_local(requested_host: str) -> bool:
    if requested_host.startswith("["):
        host = requested_host[1:].partition("]")[0]
    else:
        host = requested_host.partition(":")[0]
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
