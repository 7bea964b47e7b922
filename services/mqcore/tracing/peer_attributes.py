"""Who called, as spans tell it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from mqcore.tracing.attributes import NETWORK_PEER_ADDRESS, NETWORK_PEER_PORT
from mqcore.tracing.span_data import AttributeValue

__all__ = ["peer_attributes"]


@lru_cache(maxsize=1_024)
def peer_attributes(peer: str) -> Mapping[str, AttributeValue]:
    """Address and port of `ipv4:10.0.0.7:51234` or `ipv6:[::1]:51234`, whose brackets gRPC writes %5B and %5D.

    Nothing for what is neither. Callers share the mapping.
    """
    address, _, port = peer.partition(":")[2].rpartition(":")
    if not address or not port.isdecimal():
        return {}
    address = address.removeprefix("%5B").removesuffix("%5D").strip("[]")
    return {NETWORK_PEER_ADDRESS: address, NETWORK_PEER_PORT: int(port)}
