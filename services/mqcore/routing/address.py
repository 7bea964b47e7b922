"""Network addresses as routes carry them: host:port, and how a client is to read the host."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import Enum

__all__ = ["Address", "AddressScheme", "connection_end", "host_port", "parse_address"]


class AddressScheme(Enum):
    """How to read a host."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"
    DOMAIN_NAME = "domain name"


@dataclass(frozen=True, slots=True)
class Address:
    """One host and port."""

    host: str
    port: int
    scheme: AddressScheme


def parse_address(text: str) -> Address | None:
    """`host:port` with a name, an IPv4 address or an IPv6 address in brackets; None if it is none of these."""
    host, colon, port_text = text.rpartition(":")
    if not colon or not (port_text.isascii() and port_text.isdigit()) or not 0 < int(port_text) < 65_536:
        return None
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    scheme = _scheme(host)
    if not host or is_bracketed != (scheme is AddressScheme.IPV6) or any(c.isspace() or c in "/;," for c in host):
        return None
    return Address(host, int(port_text), scheme)


def host_port(host: str, port: int) -> str:
    """What `parse_address` reads: an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def connection_end(host: str, port: int) -> str:
    """One end of a connection, from what a socket says of it: the same text on both machines.

    An IPv4 address that an IPv6 socket shows is written as such, and a zone, a name of one machine alone, is left out.
    """
    host = host.partition("%")[0]
    try:
        mapped = getattr(ipaddress.ip_address(host), "ipv4_mapped", None)
    except ValueError:
        mapped = None  # A name: in tests.
    return host_port(host if mapped is None else str(mapped), port)


def _scheme(host: str) -> AddressScheme:
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return AddressScheme.DOMAIN_NAME
    return AddressScheme.IPV4 if version == 4 else AddressScheme.IPV6
