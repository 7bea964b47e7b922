"""The client API's ports: one for clients inside, and, where settings name one, a second for clients elsewhere."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import structlog
from cryptography import x509

from tandemmq.broker.access_changes import read_keys, read_seeds
from tandemmq.broker.settings import BrokerSettings, ClientFront
from tandemmq.core.clock import Clock
from tandemmq.http2.errors import TlsMode
from tandemmq.http2.server import ConnectionGate
from tandemmq.service.certificates import FileMarks, file_marks
from tandemmq.service.event_loop import LoopTurns
from tandemmq.service.grpc_server import GrpcServer
from tandemmq.service.http2_call import Forwarder
from tandemmq.service.http2_front import Http2Front
from tandemmq.service.settings import Passing

if TYPE_CHECKING:
    from tandemmq.broker.client_api.client_api import ClientApi

log = structlog.get_logger(__name__)

# How often files are looked at; only when somebody connects.
_LOOK_INTERVAL_MS: Final = 1_000


# Which server answers clients, by the settings; both run the same handlers.


ClientServer: TypeAlias = GrpcServer | Http2Front


def client_server_of(
    settings: BrokerSettings,
    *,
    clock: Clock,
    port: int,
    turns: LoopTurns | None = None,
    gate: ConnectionGate | None = None,
) -> ClientServer:
    """The server `clientFront` names, for `port`. OSError or ssl.SSLError if TLS files cannot be used."""
    if settings.client_front is ClientFront.GRPCIO:
        return GrpcServer(settings.bind_address, port, clock=clock)
    return Http2Front(
        settings.bind_address,
        port,
        clock=clock,
        limits=settings.client_limits(),
        tls=TlsFiles(settings, clock=clock).context if settings.tls_mode is not TlsMode.DISABLED else None,
        tls_mode=settings.tls_mode,
        turns=turns,
        gate=gate,
    )


def check_tls_files(settings: BrokerSettings) -> list[str]:
    """What is wrong with the certificate or its key, for people to read."""
    if settings.tls_mode is TlsMode.DISABLED:
        return []
    try:
        _tls_context(settings)
    except (OSError, ssl.SSLError) as error:
        # Whoever renews them may be about to write them.
        return [
            Passing(
                f"tlsCertPath, tlsKeyPath: {error.strerror or error}; name a PEM certificate and its unencrypted key"
            )
        ]
    return []


class TlsFiles:
    """The context of new connections, made anew when certificate or key have changed. Event loop only.

    Connections that are open keep theirs. Files that do not fit together, as between the two writes of a renewal, are
    asked after again; until they do, and for as long as they do not, the context stays. So it does while a new
    certificate has expired, or does not count yet, and the one before still counts.
    """

    def __init__(self, settings: BrokerSettings, *, clock: Clock) -> None:
        """OSError or ssl.SSLError if the files cannot be used."""
        self._settings = settings
        self._clock = clock
        self._marks = self._look()
        self._context = _tls_context(settings)
        self._times = _times_of(settings)
        self._looked_at_ms = clock.monotonic_ms()
        self._is_bad = False

    def context(self) -> ssl.SSLContext:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_at_ms >= _LOOK_INTERVAL_MS:
            self._looked_at_ms = now_ms
            try:
                # Looked at first: what is written meanwhile is seen the next time.
                marks = self._look()
                if marks != self._marks:
                    fresh, times = _tls_context(self._settings), _times_of(self._settings)
                    self._check_times(times)
                    self._context, self._times = fresh, times
                    self._marks, self._is_bad = marks, False
                    log.info("tls_certificate_renewed", path=self._settings.tls_cert_path)
            except (OSError, ValueError) as error:  # ssl.SSLError is of the first
                if not self._is_bad:
                    self._is_bad = True
                    log.warning(
                        "tls_certificate_not_renewed",
                        path=self._settings.tls_cert_path,
                        reason=str(error),
                        remedy="tlsCertPath and tlsKeyPath have changed and are of no use; the old ones serve on",
                    )
        return self._context

    def _check_times(self, fresh: _Times) -> None:
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1_000, UTC)
        if fresh.holds(now) or not self._times.holds(now):
            return
        is_early = now < fresh.not_before
        when = f"not valid before {fresh.not_before.isoformat()}" if is_early else "expired"
        raise ValueError(f"the certificate is {when}, and the one before still counts")

    def _look(self) -> FileMarks:
        return file_marks((self._settings.tls_cert_path, self._settings.tls_key_path))


class _Times(NamedTuple):
    """When a certificate counts."""

    not_before: datetime
    not_after: datetime

    def holds(self, now: datetime) -> bool:
        return self.not_before <= now <= self.not_after


def _times_of(settings: BrokerSettings) -> _Times:
    """OpenSSL has taken the file; what it is more tolerant of counts for ever."""
    try:
        leaf = x509.load_pem_x509_certificates(Path(settings.tls_cert_path).read_bytes())[0]
    except ValueError:
        return _Times(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
    return _Times(leaf.not_valid_before_utc, leaf.not_valid_after_utc)


def check_access_files(settings: BrokerSettings) -> list[str]:
    """What is wrong with the key of users' secrets, or the file of the first users, for people to read."""
    problems: list[str] = []
    for key, path, read in (
        ("authKeyPath", settings.auth_key_path, read_keys),
        ("authSeedPath", settings.auth_seed_path, read_seeds),
    ):
        try:
            read(path)
        except OSError as error:
            problems.append(Passing(f"{key}={path}: {error.strerror or error}; name a file that this process may read"))
        except ValueError as error:
            problems.append(f"{key}={path}: {error}")
    return problems


def _tls_context(settings: BrokerSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    # An encrypted key would ask for its password on the terminal.
    context.load_cert_chain(settings.tls_cert_path, settings.tls_key_path, password="")
    return context


class ClientPlane:
    """The same handlers on each port; only the routes of the second name other addresses."""

    def __init__(
        self, settings: BrokerSettings, api: ClientApi, *, clock: Clock, turns: LoopTurns | None = None
    ) -> None:
        """OSError or ssl.SSLError if TLS files cannot be used."""
        self._quotas = api.quotas
        gate = api.quotas
        inside = client_server_of(settings, clock=clock, port=settings.grpc_server_port, turns=turns, gate=gate)
        inside.add(api.method_table())
        # By the setting that names the port.
        self._servers: dict[str, ClientServer] = {"grpcServerPort": inside}
        if settings.external_listen_port:
            outside = client_server_of(
                settings, clock=clock, port=settings.external_listen_port, turns=turns, gate=gate
            )
            outside.add(api.external_method_table())
            self._servers["externalListenPort"] = outside
        # Called for every report of a slave: with one port there is no step in between.
        self.flush = inside.flush if len(self._servers) == 1 else self._flush_all

    async def start(self) -> dict[str, int]:
        """Listens; ports by setting. Raises ListenError."""
        return {key: await server.start() for key, server in self._servers.items()}

    def forward(self, forwarder: Forwarder | None) -> None:
        """Has calls answered by another broker, where the front can (grpcio's cannot); None: by this one again."""
        for server in self._servers.values():
            if isinstance(server, Http2Front):
                server.forward(forwarder)

    def turn_away(self, *, is_on: bool) -> None:
        """While it is on, clients are sent to another address, where the front can (grpcio's cannot)."""
        for server in self._servers.values():
            if isinstance(server, Http2Front):
                server.turn_away(is_on=is_on)

    async def set_serving(self, is_serving: bool) -> None:
        """Readiness, as probes and clients see it."""
        for server in self._servers.values():
            await server.set_serving(is_serving)

    async def settle(self, *, limit_ms: int) -> bool:
        """Waits until callers have read their answers, and tells at the limit who may not have. False: a front cannot
        know (grpcio's)."""
        async with asyncio.TaskGroup() as settling:
            tasks = [settling.create_task(server.settle(limit_ms=limit_ms)) for server in self._servers.values()]
        return all(task.result() for task in tasks)

    async def stop(self, *, limit_ms: int) -> None:
        """Takes no new calls, gives those in progress `limit_ms`, then cancels them."""
        async with asyncio.TaskGroup() as stops:
            for server in self._servers.values():
                stops.create_task(server.stop(limit_ms=limit_ms))

    @property
    def connection_count(self) -> int:
        return sum(server.connection_count for server in self._servers.values())

    @property
    def counters(self) -> dict[str, int]:
        """Connections accepted, and what limits and quotas refused, by name."""
        added: Counter[str] = Counter(self._quotas.refused)
        for server in self._servers.values():
            added.update(server.counters)
        return dict(added)

    def _flush_all(self) -> None:
        """Writes all answers given so far."""
        for server in self._servers.values():
            server.flush()
