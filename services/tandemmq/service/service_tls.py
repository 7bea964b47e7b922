"""TLS on the ports of services, 10911 of brokers and 9876 of NameServers, and what services are told of it.

The gRPC library speaks TLS. This module gives it the certificates, has it ask callers for theirs, and judges each call
by them. The callers' side is `service_channels`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message
from pydantic import Field, field_validator

from tandemmq.core.access.identity import (
    METHODS,
    Caller,
    Identity,
    IdentityUnusable,
    Role,
    callers_of,
    identity_of,
    refusal,
)
from tandemmq.core.clock import Clock
from tandemmq.core.quotas import address_of_peer
from tandemmq.http2.errors import TlsMode
from tandemmq.service.certificates import CertificateFolder, Certificates, CertificateUnusable
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.logging import LineRoom
from tandemmq.service.metrics import ExporterType, MetricsOptions, parse_exporter_types
from tandemmq.service.service_channels import ServiceTls
from tandemmq.service.settings import ENVIRONMENT_PREFIX, Passing, Port, ServiceSettings, load_settings

log = structlog.get_logger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_STRANGERS_TOLD_MAX: Final = 1_000
_LOOK_EVERY_S: Final = 1.0
"""At the certificate of a call that goes on."""


class ServiceTlsSettings(ServiceSettings):
    """What every service says of the service planes: 10911, 9876, and its calls to them."""

    service_tls_mode: TlsMode = Field(
        TlsMode.DISABLED,
        description="TLS between services (listenPort of brokers and NameServers, and calls to them): disabled, "
        "permissive (callers with and without TLS are taken, a step on the way) or enforcing (nobody without a "
        "certificate is).",
    )
    service_tls_path: str = Field(
        "",
        description="Folder of this service's certificate: tls.crt, tls.key and ca.crt, as cert-manager names them. "
        "Read again when they change.",
    )
    service_tls_call: bool = Field(
        False,
        description="With serviceTlsMode=permissive: calls other services with TLS, which all of them must take by "
        "then. Enforcing always does.",
    )

    @property
    def calls_with_tls(self) -> bool:
        """Its own calls use TLS."""
        return self.service_tls_mode is TlsMode.ENFORCING or (
            self.service_tls_mode is TlsMode.PERMISSIVE and self.service_tls_call
        )


class ServicePortSettings(ServiceTlsSettings):
    """What a service says besides that others call: its ports, and where its metrics go."""

    bind_address: str = Field("0.0.0.0", description="Local address all planes listen on.")
    open_listen_port: Port = Field(
        0,
        description="Port without TLS for those who have no certificate: an orchestrator's probes, and at a NameServer "
        "clients that ask for routes. It serves nothing else. 0: none.",
    )

    metrics_exporter_type: str = Field("DISABLE", description="DISABLE, or PROM and OTLP_GRPC separated by ';'.")
    metrics_prom_exporter_port: Port = Field(
        5_557, description="HTTP port of /metrics for Prometheus. 0: any free port, for tests."
    )
    metrics_prom_exporter_host: str = Field("", description="Local address of that port; bindAddress if empty.")
    metrics_grpc_exporter_target: str = Field("", description="OTLP/gRPC receiver of metrics, host:port.")
    metrics_grpc_exporter_interval: int = Field(
        60_000, ge=1, alias="metricsGrpcExporterIntervalInMills", description="Pause between exports to it, in ms."
    )

    @field_validator("metrics_exporter_type")
    @classmethod
    def _are_exporters(cls, value: str) -> str:
        parse_exporter_types(value)
        return value

    @property
    def common_ports(self) -> dict[str, int]:
        """Ports that are listened on if they are asked for, by key."""
        ports = {"openListenPort": self.open_listen_port} if self.open_listen_port else {}
        if ExporterType.PROM in self.metrics_options().types:
            ports["metricsPromExporterPort"] = self.metrics_prom_exporter_port
        return ports

    def metrics_options(self) -> MetricsOptions:
        """How metrics leave the process."""
        return MetricsOptions(
            types=parse_exporter_types(self.metrics_exporter_type),
            host=self.metrics_prom_exporter_host or self.bind_address,
            port=self.metrics_prom_exporter_port,
            target=self.metrics_grpc_exporter_target,
            interval_ms=self.metrics_grpc_exporter_interval,
        )


def check_service_tls(
    settings: ServiceTlsSettings,
    role: Role,
    *,
    clock: Clock,
    cluster: str = "",
    group: str = "",
    broker_id: int | None = None,
) -> list[str]:
    """What is wrong with a service's certificate, for people to read; `--check` and the start tell."""
    if settings.service_tls_mode is TlsMode.DISABLED:
        if settings.service_tls_path and "service_tls_mode" not in settings.model_fields_set:
            return ["serviceTlsMode: it is not set, and serviceTlsPath is; set it to enforcing, permissive or disabled"]
        return []
    if not settings.service_tls_path:
        return [f"serviceTlsPath: serviceTlsMode={settings.service_tls_mode} needs it; name the folder of tls.crt"]
    try:
        certificates = CertificateFolder(Path(settings.service_tls_path), clock=clock).current()
    except CertificateUnusable as error:
        # Who makes and renews them may not have done so yet.
        return [Passing(f"serviceTlsPath: {error}")]
    misfit = certificates.misfit(role, cluster=cluster, group=group, broker_id=broker_id)
    return [f"serviceTlsPath: {settings.service_tls_path}/{misfit}"] if misfit else []


def service_tls_of(settings: ServiceTlsSettings, *, clock: Clock) -> ServiceTls | None:
    """The caller's side, as the settings say; None: calls are made without TLS. Raises CertificateUnusable."""
    if not settings.calls_with_tls:
        return None
    return ServiceTls(CertificateFolder(Path(settings.service_tls_path), clock=clock))


def tell_children(settings: ServiceTlsSettings, environ: MutableMapping[str, str]) -> None:
    """Processes that get this environment make calls as the settings say, and so does this one."""
    for field in ServiceTlsSettings.model_fields:
        environ[f"{ENVIRONMENT_PREFIX}{field.upper()}"] = str(getattr(settings, field))


def service_tls_of_environment(environ: Mapping[str, str]) -> ServiceTls | None:
    """What the environment says, for a process that was told nothing: a child of one that was, an executor, a hook."""
    named = {field: environ.get(f"{ENVIRONMENT_PREFIX}{field.upper()}") for field in ServiceTlsSettings.model_fields}
    given = [f"{field}={value}" for field, value in named.items() if value]
    if named["service_tls_path"] and not named["service_tls_mode"]:
        given.append(f"service_tls_mode={TlsMode.ENFORCING}")
    settings = load_settings(ServiceTlsSettings, environ={}, overrides=given)
    return service_tls_of(settings, clock=SystemClock())


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The server's side."""

    mode: TlsMode
    folder: CertificateFolder
    cluster: str
    group: str = ""
    """A broker's; empty: a NameServer, which is of no group."""

    def credentials(self) -> grpc.ServerCredentials:
        """Asks each caller for a certificate, and takes changed files at the next handshake."""
        latest = self.folder.current()

        def fetch() -> Any:  # None: unchanged, which the stubs do not know
            nonlocal latest
            fresh = self.folder.current()
            if fresh is latest:
                return None
            latest = fresh
            return _configuration(fresh)

        return grpc.dynamic_ssl_server_credentials(_configuration(latest), fetch, require_client_authentication=True)

    def connection_problem(self, leaf: bytes) -> str | None:
        """Why the connection of a caller with that certificate, which may be old, would not be taken now; None: it
        would, or has no TLS."""
        problem = self.folder.caller_problem(leaf) if leaf else None
        return problem and f"this connection's certificate is not taken any more: {problem}"


def server_tls_of(settings: ServiceTlsSettings, *, clock: Clock, group: str = "") -> ServerTls | None:
    """As the settings say; None: the port takes plain calls only. Raises CertificateUnusable."""
    if settings.service_tls_mode is TlsMode.DISABLED:
        return None
    folder = CertificateFolder(Path(settings.service_tls_path), clock=clock)
    return ServerTls(settings.service_tls_mode, folder, folder.current().identity.cluster, group)


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificates.key, certificates.chain)], root_certificates=certificates.authorities
    )


_CHANGES: Final = frozenset(
    path
    for path, callers in METHODS.items()
    if callers & {Caller.OPERATOR, Caller.REPAIR} and not callers & {Caller.VIEWER, Caller.CONSISTENCY}
)
"""What changes something for somebody. A repair reads with the consistency job's methods."""
_SUBJECT_FIELDS: Final = (
    *("username", "subject", "group", "topic", "client_id", "transaction_id", "broker_name", "namespace", "key"),
    *("table", "values"),
)
_SUBJECT_CHARACTERS_MAX: Final = 300
_ACCESS_CHANGES: Final = "/tandemmq.admin.v1.BrokerAccessService/"
_ENTRY_FIELDS: Final = ("policy_type", "decision", "actions", "resource", "source_ips")


class PermissionInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Judges each call of a port by the table of permissions, before its method sees it; without `tls` none.

    In the permissive mode a call without TLS passes, and is told of once a caller and method. Of each call that changes
    something a line says who made it, from where, and what became of it.
    """

    def __init__(self, tls: ServerTls | None, *, clock: Clock) -> None:
        self._tls = tls
        self._clock = clock
        self._guarded: dict[str, tuple[Any, Any]] = {}
        self._told: set[tuple[str, str]] = set()
        self._refusals = LineRoom()
        self.came_in: Callable[[str], object] = lambda peer: None
        """Told of each call with a certificate that counts, and where from, as `peer_of` has it."""
        self.refused: Counter[str] = Counter()
        """Calls since the start, by `no_certificate`, `unusable_certificate` and `not_permitted`."""

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """See grpc.aio.ServerInterceptor."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        path = handler_call_details.method
        if self._tls is None and path not in _CHANGES:
            return handler
        known = self._guarded.get(path)
        if known is not None and known[0] is handler:
            return known[1]
        guarded = _guard(handler, path, self._check, self._lasting)
        self._guarded[path] = handler, guarded
        return guarded

    async def _check(self, path: str, context: _Context) -> None:
        if self._tls is None:
            return
        try:
            identity = caller_of(context)
        except IdentityUnusable as error:
            self.refused["unusable_certificate"] += 1
            await self._refuse(path, context, grpc.StatusCode.UNAUTHENTICATED, str(error))
            return
        if problem := self._tls.connection_problem(certificate_of(context)):
            self.refused["unusable_certificate"] += 1
            await self._refuse(path, context, grpc.StatusCode.UNAUTHENTICATED, problem)
            return
        if identity is not None:
            self.came_in(peer_of(context))
        elif self._tls.mode is TlsMode.PERMISSIVE:
            self._tell_plain(path, peer_of(context))
            return
        reason = refusal(path, identity, cluster=self._tls.cluster, group=self._tls.group)
        if reason is not None:
            code = grpc.StatusCode.UNAUTHENTICATED if identity is None else grpc.StatusCode.PERMISSION_DENIED
            self.refused["no_certificate" if identity is None else "not_permitted"] += 1
            await self._refuse(path, context, code, reason)

    @asynccontextmanager
    async def _lasting(self, path: str, context: _Context) -> AsyncIterator[None]:
        """Around a call that may go on for long: it ends with its connection's certificate, wherever it waits."""
        leaf, task = certificate_of(context), asyncio.current_task()
        if self._tls is None or not leaf or task is None:
            yield
            return
        tls, loop = self._tls, asyncio.get_running_loop()
        problem, timer = "", loop.call_later(_LOOK_EVERY_S, lambda: look())

        def look() -> None:
            nonlocal problem, timer
            problem = tls.connection_problem(leaf) or ""
            if problem:
                task.cancel()
            else:
                timer = loop.call_later(_LOOK_EVERY_S, look)

        try:
            yield
        except asyncio.CancelledError:
            if not problem:
                raise
            task.uncancel()
            self.refused["unusable_certificate"] += 1
            await self._refuse(path, context, grpc.StatusCode.UNAUTHENTICATED, problem)
        finally:
            timer.cancel()

    async def _refuse(self, path: str, context: _Context, code: grpc.StatusCode, reason: str) -> None:
        self._tell_refusal(path, peer_of(context), reason)
        await context.abort(code, reason)

    def _tell_refusal(self, path: str, peer: str, reason: str) -> None:
        """Whoever has some certificate of the CA must not fill the disk."""
        host = address_of_peer(peer)
        not_told = self._refusals.take((path, host, reason), host, self._clock.monotonic_ms())
        if not_told is not None:
            log.warning("call_refused", method=path, peer=peer, reason=reason, **not_told.fields())

    def _tell_plain(self, path: str, peer: str) -> None:
        key = (path, address_of_peer(peer))
        if key not in self._told and len(self._told) < _STRANGERS_TOLD_MAX:
            self._told.add(key)
            log.info("call_without_certificate", method=path, peer=peer)


def claim_problem_of(context: _Context, cluster: str, group: str, broker_id: int) -> str | None:
    """Why the caller may not speak as that broker, in words; None: it may, or the port knows no callers."""
    identity = caller_of(context)
    return None if identity is None else identity.claim_problem(cluster, group, broker_id)


def is_operator(context: _Context) -> bool:
    """The caller may change things; also true where the port knows no callers."""
    identity = caller_of(context)
    return identity is None or Caller.OPERATOR in callers_of(identity, group="")


def peer_of(context: _Context) -> str:
    """Where the caller is, such as `ipv4:10.0.0.7:51234`; in the permissive mode as its front says."""
    peer = context.peer()
    return peer.rpartition("/")[2] if peer.startswith("unix:") else peer


def certificate_of(context: _Context) -> bytes:
    """The certificate of whoever calls, PEM; empty: a call without TLS. Not once the call has ended."""
    return next(iter(context.auth_context().get("x509_pem_cert", ())), b"")


def caller_of(context: _Context) -> Identity | None:
    """Who calls; None: a call without TLS. Raises IdentityUnusable."""
    names = context.auth_context()
    if not names.get("x509_pem_cert"):
        return None
    return _identity(tuple(names.get("peer_uri", ())))


@lru_cache(maxsize=1_024)
def _identity(uris: tuple[bytes, ...]) -> Identity:
    return identity_of([uri.decode("utf-8", "replace") for uri in uris])


_Check: TypeAlias = Callable[[str, _Context], Awaitable[None]]
_Lasting: TypeAlias = Callable[[str, _Context], AbstractAsyncContextManager[None]]


def _guard(handler: Any, path: str, check: _Check, lasting: _Lasting) -> Any:
    """The handler, which `check` may end before it begins, and `lasting` while it goes on."""
    is_stream = handler.request_streaming or handler.response_streaming
    makers = {
        (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
    }
    make, behavior = makers[(handler.request_streaming, handler.response_streaming)]
    return make(
        _guarded_stream(behavior, path, check, lasting)
        if inspect.isasyncgenfunction(behavior)
        else _guarded_call(behavior, path, check, lasting if is_stream else None),
        handler.request_deserializer,
        handler.response_serializer,
    )


def _guarded_call(behavior: Any, path: str, check: _Check, lasting: _Lasting | None) -> Any:
    async def guarded(request: Any, context: _Context) -> Any:
        await check(path, context)
        if lasting is not None:
            async with lasting(path, context):
                return await behavior(request, context)
        if path not in _CHANGES or getattr(request, "dry_run", False):
            return await behavior(request, context)
        # Now: of a call that was cut off gRPC does not know them any more.
        who, peer = str(caller_of(context) or "without a certificate"), peer_of(context)
        outcome = "cut off"
        try:
            answer = await behavior(request, context)
            outcome = "done"
            return answer
        except grpc.aio.AbortError:
            outcome = f"failed: {context.details()}"
            raise
        finally:
            _record(path, request, outcome, who=who, peer=peer)

    return guarded


def _record(path: str, request: Any, outcome: str, *, who: str, peer: str) -> None:
    """The line about a change. What a request holds besides, such as a secret, is not in it."""
    said = {field.name: value for field, value in request.ListFields()} if isinstance(request, Message) else {}
    subject = " ".join(_named(said[name]) for name in _SUBJECT_FIELDS if name in said)
    change = _access_change(said) if path.startswith(_ACCESS_CHANGES) else ""
    log.info(
        "operator_call",
        who=who,
        peer=peer,
        method=path.removeprefix("/"),
        subject=subject[:_SUBJECT_CHARACTERS_MAX],
        outcome=outcome[:_SUBJECT_CHARACTERS_MAX],
        **({"change": change[:_SUBJECT_CHARACTERS_MAX]} if change else {}),
    )


def _access_change(said: Mapping[str, Any]) -> str:
    """What somebody may do from now on, in words: `Super`, or `Allow Pub Topic:orders 10.0.0.0/8`."""
    parts = ["new secret"] if "password" in said or "sealed_password" in said else []
    parts += [_listed(said[name]) for name in ("user_type", "user_status", "policy_type", "resources") if name in said]
    entries = [[_listed(getattr(one, field)) for field in _ENTRY_FIELDS] for one in said.get("entries", ())]
    parts.append("; ".join(" ".join(filter(None, entry)) for entry in entries))
    return " ".join(filter(None, parts))


def _listed(value: Any) -> str:
    return value if isinstance(value, str) else ",".join(value)


def _named(value: Any) -> str:
    """Of settings their keys."""
    return value if isinstance(value, str) else ",".join(map(str, value)) if isinstance(value, Mapping) else ""


def _guarded_stream(behavior: Any, path: str, check: _Check, lasting: _Lasting) -> Any:
    async def guarded(request: Any, context: _Context) -> AsyncIterator[Any]:
        await check(path, context)
        async with lasting(path, context), aclosing(behavior(request, context)) as answers:
            async for answer in answers:
                yield answer

    return guarded
