"""What a broker tells others to reach it by, judged before it starts.

A loopback address works on one machine and ruins a cluster: clients and slaves elsewhere are sent to themselves, and
nothing says so. And a name may need a moment: a pod is often running before its DNS entry is.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from tandemmq.broker.settings import BrokerSettings
from tandemmq.core.clock import Clock
from tandemmq.core.message.record import Host
from tandemmq.core.routing.values import AddressScheme, parse_address

log = structlog.get_logger(__name__)

# Host to its addresses as text; OSError when it has none.
Resolve = Callable[[str], Awaitable[Sequence[str]]]

_RETRY_PAUSE_S: Final = 0.5
_LOCAL_NAMES: Final = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
_REMEDY: Final = "set it to a name or address of this machine that clients and the other brokers reach"


class AddressUnusable(Exception):
    """The broker cannot be reached by what it would advertise. The operator corrects the setting or the DNS.

    `may_pass`: the name had no address yet, which it may get.
    """

    def __init__(self, problem: str, *, may_pass: bool = False) -> None:
        super().__init__(problem)
        self.may_pass = may_pass


def loopback_problems(settings: BrokerSettings) -> list[str]:
    """A problem for each advertised host that is plainly this machine's own, while a NameServer is elsewhere.

    Asks no DNS; `resolve_advertised` does.
    """
    elsewhere = _name_server_elsewhere(settings)
    if elsewhere is None:
        return []
    return [
        _problem(key, host, "", elsewhere) for key, host in _advertised(settings).items() if _is_local(host) is not None
    ]


async def resolve_advertised(
    settings: BrokerSettings,
    *,
    clock: Clock,
    resolve: Resolve | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Host:
    """brokerIP1 and listenPort as records carry them: numbers. brokerIP2 is looked at, too.

    A name that does not resolve is asked for again until `addressResolveTimeout`. AddressUnusable when it never does,
    or stands for loopback in a cluster.
    """
    resolve = resolve or _resolve
    deadline_ms = clock.monotonic_ms() + settings.address_resolve_timeout
    addresses = {}
    for key, host in _advertised(settings).items():
        addresses[key] = await _resolved(key, host, settings, clock, deadline_ms, resolve, sleep)
        await _refuse_loopback(key, host, addresses[key], settings, resolve)
    # Of a name with several, one that others can use.
    own = addresses["brokerIP1"]
    chosen = next((address for address in own if _is_local(address) is None), own[0])
    return Host.parse(chosen, settings.listen_port)


async def _resolved(
    key: str,
    host: str,
    settings: BrokerSettings,
    clock: Clock,
    deadline_ms: int,
    resolve: Resolve,
    sleep: Callable[[float], Awaitable[None]],
) -> Sequence[str]:
    is_told = False
    while True:
        try:
            return await resolve(host)
        except OSError as error:
            if clock.monotonic_ms() >= deadline_ms:
                raise AddressUnusable(
                    f"{key}={host}: does not resolve ({error.strerror or error}), not even after "
                    f"addressResolveTimeout={settings.address_resolve_timeout} ms; correct the name, or its DNS entry",
                    may_pass=True,
                ) from error
            if not is_told:
                is_told = True
                log.warning("advertised_name_does_not_resolve", key=key, host=host, error=error.strerror or str(error))
        await sleep(_RETRY_PAUSE_S)


async def _refuse_loopback(
    key: str, host: str, addresses: Sequence[str], settings: BrokerSettings, resolve: Resolve
) -> None:
    if any(_is_local(address) is None for address in addresses):
        return
    for name_server in settings.name_servers:
        parsed = parse_address(name_server)
        if parsed is None or _is_local(parsed.host) is not None:
            continue
        try:
            found = await resolve(parsed.host)
        except OSError:
            # Unknown yet, as in a cluster that is being installed: this machine's own names are known at once.
            found = ()
        if not found or any(_is_local(address) is None for address in found):
            raise AddressUnusable(_problem(key, host, addresses[0], name_server), may_pass=not found)


def _advertised(settings: BrokerSettings) -> dict[str, str]:
    advertised = {"brokerIP1": settings.broker_ip1}
    if settings.broker_ip2:
        advertised["brokerIP2"] = settings.broker_ip2
    return advertised


def _name_server_elsewhere(settings: BrokerSettings) -> str | None:
    """The first NameServer that is given by an address of another machine; names are not judged here."""
    for name_server in settings.name_servers:
        parsed = parse_address(name_server)
        if parsed is None or parsed.scheme is AddressScheme.DOMAIN_NAME:
            continue
        if _is_local(parsed.host) is None:
            return name_server
    return None


def _is_local(host: str) -> str | None:
    """Why nobody else can use it; None if that does not show."""
    if host.lower().rstrip(".") in _LOCAL_NAMES:
        return "loopback"
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None) or address
    if mapped.is_loopback:
        return "loopback"
    return "no address at all" if mapped.is_unspecified else None


def _problem(key: str, host: str, address: str, name_server: str) -> str:
    stands_for = f" stands for {address}, which" if address and address != host else ""
    kind = _is_local(address or host)
    return (
        f"{key}={host}:{stands_for} is {kind}, but NameServer {name_server} is on another machine, where clients and "
        f"brokers would be sent to themselves; {_REMEDY}"
    )


async def _resolve(host: str) -> Sequence[str]:
    infos = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]).partition("%")[0] for _, _, _, _, address in infos]
