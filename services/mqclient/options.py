"""How a client behaves; plain values, the same for producers and consumers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.trace import TracerProvider

from mqclient.errors import AccessPointInvalid

__all__ = ["ClientOptions", "parse_access_points"]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Times and limits of one client. The defaults are those of the official clients."""

    # Addresses asked for routes, as host:port; any one that answers is enough.
    access_points: tuple[str, ...]
    request_timeout_ms: int = 3_000
    heartbeat_interval_ms: int = 10_000
    route_refresh_interval_ms: int = 30_000
    # Tries of one send, the first included.
    send_attempts_max: int = 3
    send_backoff_initial_ms: int = 10
    send_backoff_max_ms: int = 1_000
    # Sends in flight at once; a further one waits. Bounds memory and the queue at the broker.
    sends_in_flight_max: int = 1_024
    # A broker that failed is asked again only when no other is left, or after this time.
    isolation_ms: int = 5_000
    # Where spans go. None: to the provider of the process, which does nothing unless the application has set one.
    tracer_provider: TracerProvider | None = None
    # Where a host:port is dialled instead, for one who stands outside the network the brokers' addresses belong to.
    dial: Callable[[str], str] | None = None


def parse_access_points(text: str) -> tuple[str, ...]:
    """Splits `host:port;host:port`. AccessPointInvalid names the part that is no address."""
    parts = tuple(part.strip() for part in text.split(";") if part.strip())
    if not parts:
        raise AccessPointInvalid("name at least one address as host:port")
    for part in parts:
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise AccessPointInvalid(f"'{part}' is no host:port")
    return parts
