"""The options by which a command is told its cluster, given to all commands alike, and how a command runs on it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Concatenate, Final, ParamSpec, TypeVar, cast

import typer

from admin.cli.cluster_address import ClusterAddress, ClusterTarget, find_address, find_target
from admin.cli.connection import ClusterConnection, open_connection
from admin.cli.failure import EXIT_FAILED, EXIT_REFUSED, CommandError
from admin.cli.options import ContextOption
from admin.cluster_state import ClusterState
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.interface import Operations

__all__ = ["ClusterChoice", "with_cluster"]

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

        async def connected() -> ResultT:
            async with self.connect(target) as connection:
                return await action(connection)

        target = self.target()
        try:
            return asyncio.run(connected())
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
        """The cluster now."""
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
    code = EXIT_REFUSED if failure.kind is FailureKind.INVALID else EXIT_FAILED
    return CommandError(failure.problem, cause=failure.cause, remedy=failure.remedy, exit_code=code)
