"""Calls of one service to another, with TLS if this process was told to use it.

What a process is holds for the whole of it, and calls are made from many places. So it is told once, where a process
begins (`use_service_tls`): each task inherits it, and threads find it, too. When the certificate changes, new calls
take a new channel, and calls under way end on the old one.

Commands import this: it stands on nothing that takes long to load.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import grpc
import grpc.aio

from tandemmq.core.access.identity import group_server_name, server_name

if TYPE_CHECKING:
    from tandemmq.service.certificates import CertificateFolder, Certificates

_ChannelOptions: TypeAlias = Sequence[tuple[str, Any]]

# How soon a caller notices that the other machine fell silent, and what that costs. Who keeps a channel for as long as
# the other one lives takes LONG_LIVED_CHANNEL: brokers to their NameServers and their group, the admin to both. The
# others have their own numbers, each for a cause:
#
# | who                               | idle, answer | also idle | because                                      |
# |-----------------------------------|--------------|-----------|----------------------------------------------|
# | LONG_LIVED_CHANNEL                | 5 s, 3 s     | yes       | a watch says nothing for hours               |
# | a broker passes clients' calls on | 5 s, 5 s     | no        | it only must not hold a call for ever        |
# | a broker to etcd                  | 5 s, 3 s     | no        | etcd allows a ping each 5 s, and no more     |
# | the consistency job to brokers    | 20 s, 10 s   | no        | its calls take minutes: seconds do not count |
# | our own client to brokers         | 20 s, 5 s    | no        | each of its calls ends by its own deadline   |
# | a gRPC server to its callers      | 10 s, 5 s    | yes       | leases and heartbeats end with a connection  |

LONG_LIVED_CHANNEL: Final = (
    # The other one may be silent for hours: only pings tell a quiet machine from one without power.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A pod that returns has a new address behind its name; by default the old one is believed for 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # An attempt at an address that nobody has any more would be given 20 s, and the right one be tried after it.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # Services are addressed directly; a proxy of the environment would end watches and streams.
    ("grpc.enable_http_proxy", 0),
)
"""Options of a channel from one service to another that is kept while both live."""

# Calls on a channel whose certificate was replaced end when they end: a heartbeat may last for months.
_UNTIL_THEY_END_S: Final = 10 * 365 * 86_400.0
_PATH_VARIABLE: Final = "TANDEMMQ_SERVICE_TLS_PATH"


@dataclass(frozen=True, slots=True)
class ServiceTls:
    """The caller's side: a certificate, and with it the cluster whose servers are believed."""

    folder: CertificateFolder


_of_task: ContextVar[ServiceTls | None] = ContextVar("service_tls")
# For threads, which inherit no context; the latest counts.
_of_process: list[ServiceTls | None] = []


@contextmanager
def use_service_tls(tls: ServiceTls | None) -> Iterator[None]:
    """Calls to other services that are made within the block, by tasks that begin there and by threads, use it."""
    token = _of_task.set(tls)
    _of_process.append(tls)
    try:
        yield
    finally:
        _of_process.pop()
        _of_task.reset(token)


def _calls() -> ServiceTls | None:
    return _of_task.get(_of_process[-1] if _of_process else _of_environment())


@lru_cache(maxsize=1)
def _of_environment() -> ServiceTls | None:
    if not os.environ.get(_PATH_VARIABLE):
        return None
    from tandemmq.service.service_tls import service_tls_of_environment

    return service_tls_of_environment(os.environ)


def aio_channel(target: str, options: _ChannelOptions, *, own_group: bool = False) -> grpc.aio.Channel:
    """A channel to a service, with TLS if this process uses it; then the server has to be of our cluster, and with
    `own_group` a member of our broker group."""
    tls = _calls()
    if tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    return _RenewedChannel(target, options, tls.folder, own_group=own_group)


def connection_of(channel: grpc.aio.Channel | None) -> object:
    """What a new call of the channel is made on: another one once the certificate was renewed. Whoever keeps a call
    open begins it anew then, since the server ends it with the old certificate."""
    return channel.current() if isinstance(channel, _RenewedChannel) else channel


def sync_channel(target: str, options: _ChannelOptions) -> grpc.Channel:
    """The same for threads, with the certificate of this moment: for channels that are kept for minutes."""
    tls = _calls()
    if tls is None:
        return grpc.insecure_channel(target, options=options)
    certificates = tls.folder.current()
    return grpc.secure_channel(
        target, _credentials(certificates), options=_with_name(options, certificates, own_group=False)
    )


def _credentials(certificates: Certificates) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(certificates.authorities, certificates.key, certificates.chain)


def _with_name(options: _ChannelOptions, certificates: Certificates, *, own_group: bool) -> _ChannelOptions:
    identity = certificates.identity
    name = group_server_name(identity.cluster, identity.group) if own_group else server_name(identity.cluster)
    return (*options, ("grpc.ssl_target_name_override", name))


class _RenewedChannel(grpc.aio.Channel):
    """A channel that is made anew, for new calls, when the caller's certificate has changed."""

    def __init__(self, target: str, options: _ChannelOptions, folder: CertificateFolder, *, own_group: bool) -> None:
        self._target = target
        self._options = options
        self._folder = folder
        self._own_group = own_group
        self._certificates = folder.current()
        self._channel = self._new()
        self._old: dict[grpc.aio.Channel, asyncio.Task[None]] = {}

    def current(self) -> grpc.aio.Channel:
        """The channel that a new call takes."""
        certificates = self._folder.current()
        if certificates is not self._certificates:
            old, self._certificates = self._channel, certificates
            self._channel = self._new()
            ending = asyncio.get_running_loop().create_task(old.close(_UNTIL_THEY_END_S))
            self._old[old] = ending
            ending.add_done_callback(lambda _: self._old.pop(old, None))
        return self._channel

    def _new(self) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(
            self._target,
            _credentials(self._certificates),
            options=_with_name(self._options, self._certificates, own_group=self._own_group),
        )

    async def close(self, grace: float | None = None) -> None:
        """The calls of former channels, too."""
        for old, ending in list(self._old.items()):
            ending.cancel()
            await old.close(grace)
        await self._channel.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self.current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self.current().channel_ready()

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._calls_of("unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._calls_of("unary_stream", arguments, options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._calls_of("stream_unary", arguments, options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._calls_of("stream_stream", arguments, options)

    def _calls_of(self, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Callable[..., Any]:
        made_for: grpc.aio.Channel | None = None
        call: Callable[..., Any] | None = None

        def start(*request: Any, **how: Any) -> Any:
            nonlocal made_for, call
            channel = self.current()
            if call is None or channel is not made_for:
                made_for, call = channel, getattr(channel, kind)(*arguments, **options)
            return call(*request, **how)

        return start
