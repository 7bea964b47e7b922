"""An IP address and port, packed as a record stores them."""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

__all__ = ["Host"]


class Host(NamedTuple):
    """Where a message was born or stored."""

    address: bytes
    """4 bytes (IPv4) or 16 (IPv6), network order."""
    port: int
    """0..65535; stored as i32."""

    @classmethod
    def parse(cls, address: str, port: int) -> Host:
        """From a literal address such as "10.0.0.1" or "fe80::1". Raises ValueError for anything else: no look-up."""
        return cls(ip_address(address).packed, port)

    def __str__(self) -> str:
        address = ip_address(self.address)
        return f"[{address}]:{self.port}" if address.version == 6 else f"{address}:{self.port}"
