"""`tandemmq up` and `tandemmq down`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.cli.ending import CommandError, Refused, die_by, one_line, signals_to_end
from tandemmq.cli.local.folder import DEFAULT_FOLDER, DEFAULT_PRESET, PRESETS, ClusterFolder, MemberRecord, is_running
from tandemmq.cli.output import text_console
from tandemmq.service.extras import absent_packages, install_line

if TYPE_CHECKING:
    from rich.console import Console


# `tandemmq down`: stops what runs in a data folder.

# Three waves of at most 20 s each, and some room.
_SUPERVISOR_LIMIT_S: Final = 75.0
_MEMBER_LIMIT_S: Final = 20.0
_POLL_S: Final = 0.1


def bring_down(folder: ClusterFolder, console: Console) -> None:
    """Stops the cluster through its `tandemmq up`, or member by member when that one is gone."""
    record = folder.read_record()
    if record is None:
        console.print(one_line(f"nothing runs in {folder.root}"), soft_wrap=True)
        return
    if record.supervised:
        _signal(record.supervisor_pid, signal.SIGTERM)
        if not _gone(record.supervisor_pid, record.supervisor_start_mark, limit_s=_SUPERVISOR_LIMIT_S):
            raise CommandError(
                f"tandemmq up (pid {record.supervisor_pid}) did not stop within {_SUPERVISOR_LIMIT_S:.0f} s",
                remedy=f"see its output; `kill -9 {record.supervisor_pid}` and `tandemmq down` again stops its members",
            )
    # The supervisor's order: masters, slaves, NameServers.
    for member in sorted(record.members, key=lambda member: (member.kind != "broker", member.role == "SLAVE")):
        if member.running:
            _stop(member, console)
    folder.remove_record()
    console.print(one_line(f"stopped the cluster in {folder.root}"), soft_wrap=True)


def _signal(pid: int, number: signal.Signals) -> None:
    """CommandError when it is another user's; one that has just gone is no failure."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise Refused(
            f"process {pid} of this cluster cannot be stopped by user id {os.getuid()}",
            cause="another user has started the cluster",
            remedy="run `tandemmq down` as that user, or as root",
        ) from error


def _stop(member: MemberRecord, console: Console) -> None:
    _signal(member.pid, signal.SIGTERM)
    if not _gone(member.pid, member.start_mark, limit_s=_MEMBER_LIMIT_S):
        console.print(f"{member.name}: still running after {_MEMBER_LIMIT_S:.0f} s, killed", soft_wrap=True)
        _signal(member.pid, signal.SIGKILL)
        _gone(member.pid, member.start_mark, limit_s=_MEMBER_LIMIT_S)


def _gone(pid: int, mark: str, *, limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while is_running(pid, mark):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


_PRESET_HELP = "; ".join(f"{name}: {meaning}" for name, meaning in PRESETS.items())


def up(
    preset: Annotated[
        str | None, typer.Option(help=f"{_PRESET_HELP}. Default: the folder's own, else {DEFAULT_PRESET}.")
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Configuration, logs and stores.")
    ] = DEFAULT_FOLDER,
    port_base: Annotated[
        int | None,
        typer.Option(min=1, max=65_000, help="Write consecutive ports from here into the configuration."),
    ] = None,
    free: Annotated[bool, typer.Option("--free-ports", help="Write ports nobody uses into the configuration.")] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[MEMBER:]KEY=VALUE",
            help="A setting of all brokers, or of one member, for this run; repeatable. Edit DIR/conf for good.",
        ),
    ] = None,
    tracing: Annotated[
        bool,
        typer.Option("--tracing", help="Trace every message, and serve metrics."),
    ] = False,
    trace_target: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="With --tracing: send traces to this OTLP/gRPC receiver too, such as Jaeger."
        ),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Have services know each other by certificates, which are made in DIR/certs. From then on the "
            "folder's cluster is closed; remove DIR/certs to open it.",
        ),
    ] = False,
    admin: Annotated[bool, typer.Option(help="Start the admin service, with the console, beside the brokers.")] = True,
    restart: Annotated[bool, typer.Option(help="Restart a member that dies, with growing pauses.")] = True,
    live: Annotated[bool, typer.Option(help="Live view; lines when off or when the output is no terminal.")] = True,
    check: Annotated[bool, typer.Option("--check", help="Check the configuration and start nothing.")] = False,
) -> None:
    """Start a whole cluster on this machine and watch it; Ctrl-C stops it.

    Two NameServers, by preset two masters with or without slaves, and the admin service with its console, each a
    process of its own. The configuration is copied to DIR/conf at the first start and is yours from then on: a changed
    file wins over the preset. Each broker reserves 40 MiB of disk before its first message, and 32 MiB whenever its
    CommitLog has filled a file.

    Examples:

      tandemmq up

      tandemmq up --preset 2m-2s-async --data /tmp/async --port-base 21000

      tandemmq up --set flushDiskType=SYNC_FLUSH --set broker-a:grpcServerPort=18081

      tandemmq up --tracing --trace-target 127.0.0.1:4317

      tandemmq up --secure
    """
    if preset is not None and preset not in PRESETS:
        raise Refused(f"there is no preset {preset}", remedy=f"choose one of {', '.join(PRESETS)}")
    if free and port_base is not None:
        raise Refused("--free-ports and --port-base exclude each other", remedy="leave one out")
    if trace_target is not None and not tracing:
        raise Refused("--trace-target needs --tracing", remedy="give both")
    _refuse_without("broker", *(["admin"] if admin else []))
    console = text_console()
    console.print(one_line(f"checking the configuration in {data.absolute() / 'conf'}"), soft_wrap=True)
    # After that line: these take a second, and the checks some more.
    from tandemmq.cli.local.cluster import FREE_PORTS, LocalCluster, checked_members, refuse_leftovers
    from tandemmq.cli.local.members import Tracing

    folder = ClusterFolder(data)
    with _interruptible(), folder.kept_if_done():
        folder.prepare()
        folder.lock()
        refuse_leftovers(folder)
        name, members = checked_members(
            folder,
            preset=preset,
            first_port=FREE_PORTS if free else port_base,
            overrides=overrides or [],
            admin=admin,
            tracing=Tracing(target=trace_target or "") if tracing else None,
            secure=secure,
        )
    if check:
        console.print(one_line(f"the configuration of {len(members)} members in {folder.conf} is good"), soft_wrap=True)
        return
    cluster = LocalCluster(folder, name, members, restart=restart, live=live and console.is_terminal, console=console)
    asyncio.run(cluster.run())


def _refuse_without(*extras: str) -> None:
    lacking = {extra: packages for extra in extras if (packages := absent_packages(extra))}
    if lacking:
        raise Refused(
            "this installation cannot run a cluster",
            cause="\n".join(f"[{extra}] is not installed: {', '.join(names)}" for extra, names in lacking.items()),
            remedy=install_line(*lacking),
        )


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """What asks the process to end raises KeyboardInterrupt here, so that what was made is put away; then the process
    ends by that signal. The second one does not wait for that."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt(signal.Signals(number))

    before = {number: signal.getsignal(number) for number in signals_to_end()}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt as interrupted:
        die_by(interrupted.args[0])
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def down(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Data folder of the cluster.")] = DEFAULT_FOLDER,
) -> None:
    """Stop the cluster that runs in a data folder, in order; its data stays.

    Example: tandemmq down --data /tmp/async
    """
    bring_down(ClusterFolder(data), text_console())
