"""`tandemmq produce` and `tandemmq consume`: lines in, lines out, numbers on standard error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from admin.cli.cluster_choice import ClusterChoice, with_cluster
from admin.cli.connection import ClusterConnection
from admin.cli.failure import EXIT_FAILED, CommandError
from admin.cli.line_consumer import ConsumeCount, ConsumeOptions, consume_lines
from admin.cli.line_input import ByteSource, read_lines
from admin.cli.line_producer import LineOptions, LineSink, ProduceCount, produce_lines
from admin.cli.options import TopicArgument
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.values import TopicChange
from mqclient import BrokerRefused, ClientOptions, Producer, ReceivedMessage, SimpleConsumer
from mqservice.command_line import stop_requested
from mqservice.loop_meter import SystemClock

__all__ = ["consume", "produce"]


@with_cluster
def produce(
    cluster: ClusterChoice,
    topic: TopicArgument,
    tag: Annotated[str | None, typer.Option(help="Tag of every message, for consumers to filter by.")] = None,
    key_field: Annotated[
        str | None,
        typer.Option(metavar="COLUMN|NAME", help="Message key: a column from 1, or a member of a JSON line."),
    ] = None,
    rate: Annotated[float, typer.Option(min=0, help="Lines per second; 0: as fast as they are acknowledged.")] = 0,
    inflight: Annotated[int, typer.Option(min=1, max=1024, help="Sends at once; 1: one after another.")] = 64,
    unacknowledged: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write lines that were not acknowledged here.")
    ] = None,
) -> None:
    """Send each line of standard input as a message. A missing topic is created.

    Exit code 0: every line was acknowledged. 1: some were not; they may be stored all the same.

    Examples:

      tandemmq produce logs < /var/log/dpkg.log

      tail -f events.json | tandemmq produce events --key-field id --tag live
    """
    options = LineOptions(topic=topic, tag=tag, key_field=key_field, rate=rate, inflight=inflight)
    with contextlib.ExitStack() as files:
        failed = files.enter_context(unacknowledged.open("wb")) if unacknowledged else None
        # Our own reader of the descriptor: sys.stdin decodes, and its buffer need not have read1.
        source = files.enter_context(open(0, "rb", closefd=False))
        count = cluster.run(lambda connection: _produce(connection, options, source, failed))
    if count.unacknowledged:
        raise CommandError(
            f"{count.unacknowledged} line(s) were not acknowledged",
            cause="\n".join(f"line {failure.number}: {failure.reason}" for failure in count.failures),
            remedy=f"send {unacknowledged} again"
            if unacknowledged
            else "see `tandemmq status`; next time, --unacknowledged FILE keeps such lines to be sent again",
        )


@with_cluster
def consume(
    cluster: ClusterChoice,
    topic: TopicArgument,
    group: Annotated[str, typer.Option("--group", "-g", help="Consumer group; its members share the messages.")],
    tag: Annotated[str, typer.Option(help="Tags to receive, joined by ||; * for all.")] = "*",
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many messages.")] = None,
    idle_timeout: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Stop after this long without a message.")
    ] = None,
    reject: Annotated[
        bool,
        typer.Option(
            "--reject",
            help="Hand each message back instead of acknowledging it, as a consumer does that fails: it is delivered "
            "again, and at last becomes a dead letter.",
        ),
    ] = False,
) -> None:
    """Print each message as a line and acknowledge it. A missing topic is created.

    Where a new group starts is the broker's setting consumeFromEarliest: all presets, local and Helm, start it at the
    oldest message, a broker without the setting at the newest; older messages it skips so are told by tandemmq status.
    Exit code 0: stopped as asked. 1: --count was not reached, or a message was damaged or could not be acknowledged.

    Examples:

      tandemmq consume logs --group readers

      tandemmq consume logs --group copy --idle-timeout 5 > copy.log

      tandemmq consume logs --group failing --reject --count 10
    """
    options = ConsumeOptions(count=count, idle_timeout_s=idle_timeout)
    done = cluster.run(lambda connection: _consume(connection, topic, group, tag, options, rejects=reject))
    if done.damaged:
        raise CommandError(f"{done.damaged} message(s) do not match their digest", remedy="check the brokers' disks")
    if done.acknowledged < done.received:
        raise CommandError(
            f"{done.received - done.acknowledged} message(s) were printed but not acknowledged",
            cause=done.last_failure,
            remedy="they will be delivered to the group again",
        )
    if count is not None and done.received < count:
        raise CommandError(f"only {done.received} of {count} messages came", cause=done.last_failure)


async def _produce(
    connection: ClusterConnection, options: LineOptions, source: ByteSource, failed: LineSink | None
) -> ProduceCount:
    console = Console(stderr=True)
    access_points = await _prepare(connection, options.topic, console)
    count = ProduceCount()
    client = ClientOptions(access_points=access_points, sends_in_flight_max=options.inflight, dial=connection.dial)

    def line() -> str:
        seconds = asyncio.get_running_loop().time() - started_s
        return (
            f"{count.acknowledged:,} acknowledged, {count.unacknowledged:,} failed, {count.empty:,} empty lines left "
            f"out, {count.acknowledged / max(seconds, 0.001):,.0f}/s"
        )

    async with Producer(client, SystemClock()) as producer:
        started_s = asyncio.get_running_loop().time()
        with stop_requested() as stop, _progress(console, line):
            await produce_lines(producer, _until(read_lines(source), stop), options, count, failed=failed)
        console.print(line(), highlight=False)
    return count


async def _consume(
    connection: ClusterConnection, topic: str, group: str, tag: str, options: ConsumeOptions, *, rejects: bool
) -> ConsumeCount:
    console = Console(stderr=True)
    access_points = await _prepare(connection, topic, console)
    count = ConsumeCount()

    def line() -> str:
        seconds = asyncio.get_running_loop().time() - started_s
        repeated = f", {count.redelivered:,} redelivered" if count.redelivered else ""
        return f"{count.received:,} received{repeated}, {count.received / max(seconds, 0.001):,.0f}/s"

    consumer = SimpleConsumer(
        ClientOptions(access_points=access_points, dial=connection.dial),
        SystemClock(),
        group=group,
        subscriptions={topic: tag},
    )
    async with consumer:
        started_s = asyncio.get_running_loop().time()
        with stop_requested() as stop, _progress(console, line):
            try:
                receiver = _Rejecting(consumer) if rejects else consumer
                await consume_lines(receiver, options, count, write=_write_out, stop=stop)
            except* BrokerRefused as refusals:
                raise CommandError(
                    f"group {group} cannot read topic {topic}", cause=str(refusals.exceptions[0])
                ) from refusals
        console.print(line(), highlight=False)
    return count


class _Rejecting:
    """A consumer that hands back what it should acknowledge."""

    def __init__(self, consumer: SimpleConsumer) -> None:
        self.receive = consumer.receive
        self._consumer = consumer

    async def ack(self, message: ReceivedMessage) -> None:
        """Ends the lease without an acknowledgement. Raises ClientError."""
        await self._consumer.change_invisible(message, 0)


async def _prepare(connection: ClusterConnection, topic: str, console: Console) -> tuple[str, ...]:
    """Creates the topic if it is missing and returns the masters' client endpoints."""
    operations = await connection.operations()
    try:
        await operations.topic(topic)
    except OperationFailed as failure:
        if failure.kind is not FailureKind.NOT_FOUND:
            raise
        made = await operations.put_topic(TopicChange(topic))
        brokers = ", ".join(change.subject.rpartition(":")[0] for change in made.changes)
        console.print(f"topic {topic} did not exist; created on {brokers}", highlight=False)
    masters = [broker for broker in (await connection.read_state()).brokers if broker.is_master and broker.status]
    if not masters:
        raise CommandError("no master answers", remedy="`tandemmq status` shows what is there")
    return tuple(master.client_endpoint for master in masters)


def _write_out(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The reader, `head` perhaps, has enough. What was not written stays unacknowledged and is delivered again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_FAILED) from None


async def _until(lines: AsyncIterator[bytes], stop: asyncio.Event) -> AsyncIterator[bytes]:
    """The same lines, ended early when `stop` is set, also while none comes."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        while not stop.is_set():
            following = asyncio.ensure_future(anext(lines, None))
            await asyncio.wait((following, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                return
            if (line := following.result()) is None:
                return
            yield line
    finally:
        stopped.cancel()


def _progress(console: Console, line: Callable[[], str]) -> contextlib.AbstractContextManager[object]:
    """Keeps `line()` on the terminal while the block runs; nothing when there is no terminal."""
    return console.status(_LiveLine(line)) if console.is_terminal else contextlib.nullcontext()


class _LiveLine:
    """A line that is asked for anew whenever rich draws it."""

    def __init__(self, line: Callable[[], str]) -> None:
        self._line = line

    def __rich__(self) -> str:
        return self._line()
