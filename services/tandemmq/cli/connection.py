"""One command's connection to the cluster it talks to: channels, a reading of the cluster, and its operations."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast

import typer

from tandemmq.cli import ending
from tandemmq.cli.cluster_address import ClusterAddress, ClusterTarget, find_address, find_target
from tandemmq.cli.ending import EXIT_FAILED, EXIT_REFUSED, CommandError, Refused
from tandemmq.cli.options import ContextOption
from tandemmq.service.event_loop import SystemClock

if TYPE_CHECKING:
    from tandemmq.admin.cluster_state import BrokerStatus, ClusterState, LatencyCounts
    from tandemmq.admin.operations.operations import Operations
    from tandemmq.admin.operations.questions import OperationFailed
    from tandemmq.admin.rpc import Channels
    from tandemmq.cli.kube.release import ReleaseWay
    from tandemmq.client import Credentials, Producer
    from tandemmq.core.clock import Clock


class ClusterConnection(Protocol):
    """What a command has of a cluster for as long as it runs."""

    @property
    def address(self) -> ClusterAddress: ...

    @property
    def channels(self) -> Channels:
        """Channels that reach the addresses the members advertise."""
        ...

    @property
    def dial(self) -> Callable[[str], str] | None:
        """Where an address the members advertise is dialled from here; None: itself."""
        ...

    async def read_state(self) -> ClusterState:
        """The cluster now; what does not answer is part of it."""
        ...

    async def operations(self) -> Operations:
        """What can be asked of it and done to it. CommandError when nobody answers who knows the cluster."""
        ...


def own_credentials() -> Credentials | None:
    """What this command signs the client API's calls with: TANDEMMQ_ACCESS_KEY and TANDEMMQ_SECRET_KEY of the
    environment, so that no secret stands in a command line. CommandError when one of them is missing."""
    from tandemmq.client import AccessPointInvalid, Credentials

    try:
        return Credentials.from_environment(os.environ)
    except AccessPointInvalid as error:
        raise Refused("the credentials are incomplete", cause=str(error)) from error


@contextlib.asynccontextmanager
async def open_connection(target: ClusterTarget) -> AsyncIterator[ClusterConnection]:
    """A connection that ends with the block. CommandError when a release in Kubernetes cannot be reached."""
    # Half of what a page of help would import.
    from tandemmq.cli.kube.release import ReleaseWay, way_to_place

    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(certificates_of(target))
        if isinstance(target.where, ClusterAddress):
            way = ReleaseWay(target.where)
        else:
            way = await stack.enter_async_context(way_to_place(target.where))
        yield await stack.enter_async_context(connection_on(way))


@contextlib.contextmanager
def certificates_of(target: ClusterTarget) -> Iterator[None]:
    """Calls within the block show the certificate that the cluster's data folder has, or the environment names.
    CommandError when it cannot be used."""
    has_own = target.data is not None and (target.data / "certs").is_dir()
    if not has_own and not os.environ.get("TANDEMMQ_SERVICE_TLS_PATH"):
        yield
        return
    # Here: reading certificates takes a library that most commands can do without.
    from tandemmq.cli.local.certificates import caller_certificate, refuse_unusable_certificate
    from tandemmq.service.service_channels import use_service_tls

    if not has_own:
        refuse_unusable_certificate()
        yield
        return
    with use_service_tls(caller_certificate(target.data)):
        yield


@contextlib.asynccontextmanager
async def connection_on(way: ReleaseWay) -> AsyncIterator[ClusterConnection]:
    """A connection on this way; its channels are closed with the block."""
    from tandemmq.admin.rpc import Channels

    channels = Channels(way.dial)
    try:
        yield _Connection(way, channels)
    finally:
        await channels.close()


class _Connection:
    """The real one. Its operations know the cluster as `read_state` saw it last."""

    def __init__(self, way: ReleaseWay, channels: Channels) -> None:
        from tandemmq.admin.operations.operations import Operations

        self._way = way
        self._channels = channels
        self._state: ClusterState | None = None
        self._operations = Operations(
            channels, members=lambda: self._state, send_client=self._producer, clock=SystemClock()
        )

    @property
    def address(self) -> ClusterAddress:
        return self._way.address

    @property
    def channels(self) -> Channels:
        return self._channels

    @property
    def dial(self) -> Callable[[str], str] | None:
        return self._way.dial

    async def read_state(self) -> ClusterState:
        from tandemmq.admin.cluster_reader import ClusterReader

        address = self._way.address
        self._state = await ClusterReader(self._channels, address.name_servers, address.expected).read()
        return self._state

    async def operations(self) -> Operations:
        refuse_blindness(self._state or await self.read_state())
        return self._operations

    def _producer(self, access_points: tuple[str, ...]) -> Producer:
        from tandemmq.client import ClientOptions, Producer

        options = ClientOptions(access_points=access_points, dial=self._way.dial, credentials=own_credentials())
        return Producer(options, SystemClock())


def refuse_blindness(state: ClusterState) -> None:
    """CommandError when no NameServer answers and no broker is known from elsewhere: there is nobody to ask."""
    if state.brokers or any(server.error is None for server in state.name_servers):
        return
    told = [server.error or "" for server in state.name_servers]
    remedies = (remedy for mark, remedy in _REMEDIES if any(mark in each for each in told))
    raise CommandError(
        "no NameServer answers",
        cause="\n".join(f"{server.address}: {server.error}" for server in state.name_servers),
        remedy=next(remedies, "start a cluster with `tandemmq up`, or name one with --namesrv host:port or --context"),
    )


# What helps, by what gRPC makes of an answer.
_HANGS_UP: Final = (
    "it is there and hangs up: where services know each other by certificates, name the cluster's folder "
    "with --data, or the folder of your certificate in $TANDEMMQ_SERVICE_TLS_PATH; see `tandemmq certs check`. Or it "
    "is another port, such as that of replication (10912): a NameServer's is 9876 unless its listenPort says otherwise"
)
_ANOTHER: Final = (
    "somebody else answers on that port, such as a broker (8081, 10911) or the console (8080): "
    "name a NameServer's, 9876 unless its listenPort says otherwise"
)
_SILENT: Final = (
    "somebody takes connections there and says nothing: another program, or a NameServer that hangs; name a "
    "NameServer's port, 9876 unless its listenPort says otherwise"
)
_NO_NAME: Final = "see whether that name is spelt right and known here, or name its address: --namesrv host:port"
# A TLS port that does not take a caller, with or without a certificate, says no more to strangers.
_REMEDIES: Final = (
    ("Socket closed", _HANGS_UP),
    ("UNIMPLEMENTED", _ANOTHER),
    ("before receiving SETTINGS", _SILENT),
    ("errors resolving", _NO_NAME),
)

# The options by which a command is told its cluster, given to all commands alike, and how a command runs on it.

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")

Connect = Callable[[ClusterTarget], AbstractAsyncContextManager[ClusterConnection]]

_NamesrvOption = Annotated[
    str | None,
    typer.Option(
        "--namesrv",
        "-n",
        metavar="HOST:PORT;…",
        help="NameServers of the cluster. Default: --data, else --context, else $TANDEMMQ_CONTEXT, "
        "$TANDEMMQ_NAMESRV_ADDR or $NAMESRV_ADDR, else the context in use, else the cluster that runs in ./data, else "
        "127.0.0.1:9876.",
        rich_help_panel="Cluster",
    ),
]
_DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Data folder of a cluster started with `tandemmq up`.",
        rich_help_panel="Cluster",
    ),
]
_OPTIONS: Final = tuple(
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
    for name, annotation in (("namesrv", _NamesrvOption), ("data", _DataOption), ("context", ContextOption))
)

# Typer gives itself to a parameter of this type; it is no option.
_CONTEXT: Final = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """What the options say; nothing is looked up before it is asked for."""

    namesrv: str | None = None
    data: Path | None = None
    context: str | None = None
    connect: Connect = open_connection

    def target(self) -> ClusterTarget:
        """The cluster meant. CommandError when there is no such one."""
        return find_target(self.namesrv, self.data, self.context)

    def address(self) -> ClusterAddress:
        """Its NameServers, for what dials them itself. CommandError for a release in Kubernetes, too."""
        return find_address(self.namesrv, self.data, self.context)

    def run(self, action: Callable[[ClusterConnection], Awaitable[ResultT]]) -> ResultT:
        """Connects, does it, and closes. An operation that fails becomes a CommandError."""
        from tandemmq.admin.operations.questions import OperationFailed

        async def connected() -> ResultT:
            async with self.connect(target) as connection:
                return await action(connection)

        target = self.target()
        try:
            return ending.run(connected())
        except OperationFailed as failure:
            raise _command_error(failure) from failure
        except ExceptionGroup as failures:
            found: BaseException | None = failures.subgroup(OperationFailed)
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            if isinstance(found, OperationFailed):
                raise _command_error(found) from failures
            raise

    def ask(self, action: Callable[[Operations], Awaitable[ResultT]]) -> ResultT:
        """The same with the cluster's operations."""

        async def with_operations(connection: ClusterConnection) -> ResultT:
            return await action(await connection.operations())

        return self.run(with_operations)

    def read_state(self) -> ClusterState:
        return self.run(lambda connection: connection.read_state())


def with_cluster(
    command: Callable[Concatenate[ClusterChoice, ParamsT], None],
) -> Callable[ParamsT, None]:
    """Gives a command --namesrv, --data and --context; it gets what they say as its first argument.

    Whoever invokes the app with `obj=ClusterChoice(connect=…)` decides how its commands connect: tests do.
    """
    signature = inspect.signature(command, eval_str=True)
    _, *own = signature.parameters.values()

    @functools.wraps(command)
    def run(*arguments: ParamsT.args, **options: ParamsT.kwargs) -> None:
        ctx = cast(typer.Context, options.pop(_CONTEXT.name))
        named = {option.name: options.pop(option.name) for option in _OPTIONS}
        given = ctx.find_object(ClusterChoice)
        connect = given.connect if given is not None else open_connection
        command(ClusterChoice(**named, connect=connect), *arguments, **options)  # type: ignore[arg-type]

    parameters = [*own, *_OPTIONS, _CONTEXT]
    # What Typer reads the options from.
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _command_error(failure: OperationFailed) -> CommandError:
    from tandemmq.admin.operations.questions import FailureKind

    code = EXIT_REFUSED if failure.kind is FailureKind.INVALID else EXIT_FAILED
    return CommandError(failure.problem, cause=failure.cause, remedy=failure.remedy, exit_code=code)


# What brokers do per second: the difference of two readings.


@dataclass(frozen=True, slots=True)
class BrokerRates:
    """Of one broker between two readings."""

    messages_in: float
    messages_out: float
    # Bytes sent to each slave, by its connection.
    sent_bytes: Mapping[str, float]
    # Growth of its own CommitLog in bytes.
    log_growth: float
    # What was acknowledged in between; of masters.
    ack_latency: LatencyCounts


async def read_with_rates(
    connection: ClusterConnection, clock: Clock, *, interval_s: float
) -> tuple[ClusterState, dict[str, BrokerRates]]:
    """The cluster after `interval_s` seconds, and by `name:id` what those did that answered twice."""
    earlier_state = await connection.read_state()
    refuse_blindness(earlier_state)
    before = {broker.key: broker.status for broker in earlier_state.brokers}
    started_ms = clock.monotonic_ms()
    await asyncio.sleep(interval_s)
    state = await connection.read_state()
    seconds = max(0.001, (clock.monotonic_ms() - started_ms) / 1_000)
    rates = {}
    for broker in state.brokers:
        earlier = before.get(broker.key)
        if earlier is not None and broker.status is not None and earlier.uptime_seconds <= broker.status.uptime_seconds:
            rates[broker.key] = _rates(earlier, broker.status, seconds)
    return state, rates


def _rates(before: BrokerStatus, now: BrokerStatus, seconds: float) -> BrokerRates:
    from tandemmq.admin.history import between

    sent_before = {slave.peer: slave.sent_bytes for slave in before.slaves}
    return BrokerRates(
        messages_in=max(0, now.messages_in_count - before.messages_in_count) / seconds,
        messages_out=max(0, now.messages_out_count - before.messages_out_count) / seconds,
        sent_bytes={
            slave.peer: max(0, slave.sent_bytes - sent_before[slave.peer]) / seconds
            for slave in now.slaves
            if slave.peer in sent_before
        },
        log_growth=max(0, now.end_offset - before.end_offset) / seconds,
        ack_latency=between(before.ack_latency, now.ack_latency) or now.ack_latency,
    )
