"""`tandemmq produce` and `tandemmq consume`: lines in, lines out, numbers on standard error."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tandemmq.cli.connection import ClusterChoice, ClusterConnection, own_credentials, with_cluster
from tandemmq.cli.ending import CommandError, OutputClosed, Refused
from tandemmq.cli.options import TopicArgument, at_terminal, standard_input
from tandemmq.cli.output import text_console
from tandemmq.service.event_loop import SystemClock

if TYPE_CHECKING:
    from io import BufferedIOBase

    from rich.console import Console

    from tandemmq.admin.operations.operations import Operations
    from tandemmq.client import Producer, ReceivedMessage, SimpleConsumer


# Receives messages as lines: written first, acknowledged afterwards, so that a crash repeats rather than loses.

_BATCH_MESSAGES: Final = 32
# One waits at a broker group that has nothing while others bring what the other groups have.
_PARALLEL_RECEIVES: Final = 4
# The least that a broker waits (RocketMQ's grpcClientConsumerMinLongPollingTimeoutMillis): to ask more often.
_AWAIT_MS: Final = 5_000
_LEASE_MS: Final = 30_000
# Between receives while brokers do not answer.
_RETRY_PAUSE_S: Final = 0.5
# A change of master is over by then.
_TOLD_AFTER_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    # Messages; None for no end.
    count: int | None
    # Seconds without a message; None waits for ever.
    idle_timeout_s: float | None


@dataclass(slots=True)
class ConsumeCount:
    """What came so far."""

    received: int = 0
    acknowledged: int = 0
    # Delivered before, to this or another consumer.
    redelivered: int = 0
    # Body does not match the digest the broker sent with it.
    damaged: int = 0
    # Of the last receive or acknowledgement that failed.
    last_failure: str = ""
    # The lines go nowhere any more: what was received last is unacknowledged and will be delivered again.
    output_closed: OutputClosed | None = None


async def consume_lines(
    receiver: SimpleConsumer | _Rejecting,
    options: ConsumeOptions,
    count: ConsumeCount,
    *,
    write: Callable[[bytes], object],
    stop: asyncio.Event,
    tell: Callable[[str], object] = lambda _reason: None,
) -> None:
    """Receives until a limit of `options`, which sets `stop`, or until somebody else sets it.

    `write` has stored what it was given when it returns. A failed receive is tried again: brokers may be away for a
    while; `tell` is told why when none has succeeded for some seconds. BrokerRefused that no retry can help is raised,
    inside an exception group.
    """
    consumption = _Consumption(receiver, options, count, write, stop, tell)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(_PARALLEL_RECEIVES):
            tasks.create_task(consumption.receive_until_stopped())
        if options.idle_timeout_s is not None:
            tasks.create_task(consumption.stop_when_idle(options.idle_timeout_s))


class _Consumption:
    """What the parallel receives share."""

    def __init__(
        self,
        receiver: SimpleConsumer | _Rejecting,
        options: ConsumeOptions,
        count: ConsumeCount,
        write: Callable[[bytes], object],
        stop: asyncio.Event,
        tell: Callable[[str], object],
    ) -> None:
        self._receiver = receiver
        self._tell = tell
        self._limit = options.count
        self._count = count
        self._write = write
        self._stop = stop
        # Messages that receives under way may still bring: never more than the limit leaves.
        self._asked_for = 0
        self._last_message_s = self._last_success_s = asyncio.get_running_loop().time()
        self._is_told = False

    async def receive_until_stopped(self) -> None:
        """One receive after the other."""
        stopped = asyncio.create_task(self._stop.wait())
        try:
            while not self._stop.is_set():
                wanted = self._wanted()
                if wanted == 0:
                    # Others are about to bring the last ones, or to come back without.
                    await asyncio.wait((stopped,), timeout=_RETRY_PAUSE_S)
                    continue
                await self._hand_over(await self._receive(wanted, stopped))
        finally:
            stopped.cancel()

    async def stop_when_idle(self, idle_timeout_s: float) -> None:
        """Sets `stop` once so long nothing came."""
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            left_s = self._last_message_s + idle_timeout_s - loop.time()
            if left_s <= 0:
                self._stop.set()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._stop.wait()

    def _wanted(self) -> int:
        if self._limit is None:
            return _BATCH_MESSAGES
        return min(_BATCH_MESSAGES, self._limit - self._count.received - self._asked_for)

    async def _receive(self, wanted: int, stopped: asyncio.Task[Literal[True]]) -> list[ReceivedMessage]:
        from tandemmq.client import BrokerRefused, ClientError

        self._asked_for += wanted
        # Cancelled while it waits, a receive brings nothing; what was on its way is delivered again after its lease.
        receiving = asyncio.ensure_future(self._receiver.receive(wanted, invisible_ms=_LEASE_MS, await_ms=_AWAIT_MS))
        try:
            await asyncio.wait((receiving, stopped), return_when=asyncio.FIRST_COMPLETED)
            messages = receiving.result() if receiving.done() else []
            self._last_success_s, self._is_told = asyncio.get_running_loop().time(), False
            return messages
        except ClientError as error:
            if isinstance(error, BrokerRefused) and not error.retryable:
                raise
            self._count.last_failure = str(error)
            if not self._is_told and asyncio.get_running_loop().time() - self._last_success_s > _TOLD_AFTER_S:
                self._is_told = True
                self._tell(str(error))
            await asyncio.wait((stopped,), timeout=_RETRY_PAUSE_S)
            return []
        finally:
            receiving.cancel()
            self._asked_for -= wanted

    async def _hand_over(self, messages: list[ReceivedMessage]) -> None:
        if not messages:
            return
        count = self._count
        self._last_message_s = asyncio.get_running_loop().time()
        try:
            self._write(b"".join(message.body + b"\n" for message in messages))
        except OutputClosed as closed:
            # Others acknowledge first what was printed before.
            count.output_closed = closed
            self._stop.set()
            return
        count.received += len(messages)
        count.redelivered += sum(message.delivery_attempt > 1 for message in messages)
        count.damaged += sum(not message.intact for message in messages)
        async with asyncio.TaskGroup() as tasks:
            for message in messages:
                tasks.create_task(_acknowledge(self._receiver, message, count))
        if self._limit is not None and count.received >= self._limit:
            self._stop.set()


async def _acknowledge(receiver: SimpleConsumer | _Rejecting, message: ReceivedMessage, count: ConsumeCount) -> None:
    from tandemmq.client import ClientError

    try:
        await receiver.ack(message)
    except ClientError as error:
        # It is delivered again when its lease ends: a repeated line, not a lost one.
        count.last_failure = str(error)
    else:
        count.acknowledged += 1


# Standard input as lines for an event loop that must not block on it.

_CHUNK_BYTES: Final = 1 << 16
# Chunks read ahead of the sender: enough to keep it busy, little enough to stay out of the way of a huge file.
_CHUNKS_AHEAD: Final = 4
# maxMessageSize cannot be set higher, so no broker takes a longer line.
_LINE_LIMIT_BYTES: Final = 128 << 20


async def read_lines(source: BufferedIOBase) -> AsyncIterator[bytes]:
    """Lines without their end, as soon as they come. The last one may lack its end.

    CommandError when a line is longer than any broker takes, or the source cannot be read.

    The thread that reads is a daemon: blocked on a terminal nobody types into, it must not keep the process alive.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_CHUNKS_AHEAD)

    def pump() -> None:
        while True:
            try:
                chunk: bytes | OSError = source.read1(_CHUNK_BYTES)
            except OSError as error:
                chunk = error
            putting = chunks.put(chunk)
            try:
                asyncio.run_coroutine_threadsafe(putting, loop).result()
            except (RuntimeError, CancelledError):
                putting.close()
                return  # the loop has gone: nobody wants more
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=pump, name="line-input", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise CommandError(
                "the input cannot be read",
                cause=chunk.strerror or str(chunk),
                remedy="give lines on standard input: tandemmq produce TOPIC < FILE",
            ) from chunk
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > _LINE_LIMIT_BYTES:
            raise CommandError(
                f"a line of the input is longer than {_LINE_LIMIT_BYTES >> 20} MiB",
                cause="no broker takes so large a message",
                remedy="send text with line ends",
            )
    if rest:
        yield rest


# The message key of a line: one of its columns, or one member of the JSON object it holds.


def line_key(line: bytes, field: str) -> str | None:
    """`field` is a column counted from 1, separated by white space, or a JSON member's name. None: the line has none.

    RocketMQ separates keys by spaces in the stored property, so a value with a space would become several keys; it
    gets underscores instead.
    """
    text = line.decode(errors="replace")
    if field.isdigit():
        columns = text.split()
        column = int(field)
        return columns[column - 1] if 1 <= column <= len(columns) else None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found = value.get(field) if isinstance(value, dict) else None
    return None if found is None or found == "" else "_".join(str(found).split())


# Sends lines as messages, a bounded number at a time, and accounts for every one of them.

# Kept to be shown; the rest is counted.
_SHOWN_FAILURES: Final = 10


@dataclass(frozen=True, slots=True)
class LineOptions:
    """How lines become messages."""

    topic: str
    tag: str | None
    # See `line_key`; None for no keys.
    key_field: str | None
    # Sends waiting for their acknowledgement at once.
    inflight: int


@dataclass(frozen=True, slots=True)
class UnacknowledgedLine:
    """A line whose send failed. It may be stored all the same."""

    number: int
    reason: str


@dataclass(slots=True)
class ProduceCount:
    """What became of the lines so far. Every line taken is in exactly one of the three counts or still in flight."""

    # From the input, in its order.
    taken: int = 0
    # It was taken to its end. Else the command was stopped first, and the rest is not sent.
    is_whole: bool = False
    acknowledged: int = 0
    unacknowledged: int = 0
    # Of the unacknowledged: a broker will not have them as they are.
    refused: int = 0
    # RocketMQ has no empty messages.
    empty: int = 0
    failures: list[UnacknowledgedLine] = field(default_factory=list)


async def produce_lines(
    sender: Producer,
    lines: AsyncIterator[bytes],
    options: LineOptions,
    count: ProduceCount,
    *,
    failed: Callable[[bytes], object] | None,
) -> None:
    """Sends every line and updates `count` as it goes; `failed` takes those that were not acknowledged. With an
    `inflight` of 1 lines are stored in their order."""
    from tandemmq.client import BrokerRefused, ClientError

    work: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(options.inflight)

    async def send_lines() -> None:
        while (item := await work.get()) is not None:
            number, line = item
            key = line_key(line, options.key_field) if options.key_field else None
            try:
                await sender.send(options.topic, line, tag=options.tag, keys=[key] if key else [])
            except ClientError as error:
                count.unacknowledged += 1
                count.refused += isinstance(error, BrokerRefused) and not error.retryable
                if len(count.failures) < _SHOWN_FAILURES:
                    count.failures.append(UnacknowledgedLine(number, str(error)))
                if failed is not None:
                    failed(line + b"\n")
            else:
                count.acknowledged += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(options.inflight):
            tasks.create_task(send_lines())
        async for line in lines:
            count.taken += 1
            if line:
                await work.put((count.taken, line))
            else:
                count.empty += 1
        for _ in range(options.inflight):
            await work.put(None)


async def _paced(lines: AsyncIterator[bytes], rate: float) -> AsyncIterator[bytes]:
    """The same lines, so many a second; 0: as they come. Time lost is made up, by at most a second's worth."""
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    async for line in lines:
        if rate > 0:
            due_s = max(due_s + 1 / rate, loop.time() - 1.0)
            if (wait_s := due_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
        yield line


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

    Exit code 0: every line was acknowledged. 1: some were not, and may be stored all the same; or Ctrl-C came before
    the end of the input, and the rest was not sent.

    Examples:

      tandemmq produce logs < /var/log/dpkg.log

      tail -f events.json | tandemmq produce events --key-field id --tag live
    """
    if key_field is not None and key_field.isdigit() and int(key_field) == 0:
        raise Refused("there is no column 0", remedy="columns are counted from 1")
    standard_input()
    if at_terminal():
        typer.echo("each line typed here is a message; Ctrl-D ends them", err=True)
    options = LineOptions(topic=topic, tag=tag, key_field=key_field, inflight=inflight)
    with contextlib.ExitStack() as files:
        failed = files.enter_context(_kept_lines(unacknowledged)) if unacknowledged else None
        # Our own reader of the descriptor: sys.stdin decodes, and its buffer need not have read1.
        source = files.enter_context(open(0, "rb", closefd=False))
        count = cluster.run(lambda connection: _produce(connection, options, source, failed, rate=rate))
    unsent = [] if count.is_whole else [f"{count.taken:,} line(s) were taken; what follows was not sent"]
    if count.unacknowledged:
        again = f"send {unacknowledged} again"
        if count.refused == count.unacknowledged:
            remedy = f"correct what is refused; `tandemmq topic describe {topic}` shows which type it takes"
            remedy += f"; then {again}" if unacknowledged else ""
        elif unacknowledged:
            remedy = again
        else:
            remedy = "see `tandemmq status`; next time, --unacknowledged FILE keeps such lines to be sent again"
        raise CommandError(
            f"{count.unacknowledged} line(s) were not acknowledged",
            cause="\n".join(
                [
                    *(
                        f"line {failure.number}: {failure.reason}"
                        for failure in sorted(count.failures, key=lambda one: one.number)
                    ),
                    *unsent,
                ]
            ),
            remedy=remedy,
        )
    if unsent:
        raise CommandError(
            "the command was stopped before the end of its input",
            cause=unsent[0],
            remedy=f"send the rest, from a file say: tail -n +{count.taken + 1} FILE | tandemmq produce {topic}",
        )


@contextlib.contextmanager
def _kept_lines(path: Path) -> Iterator[Callable[[bytes], None]]:
    """A new file for the lines that were not acknowledged. CommandError when it cannot be written."""

    def failure(error: OSError) -> CommandError:
        return Refused(
            f"{path} cannot be written",
            cause=error.strerror or str(error),
            remedy="name another file with --unacknowledged",
        )

    def write(data: bytes) -> None:
        try:
            file.write(data)
            # Now: what is wrong with the disk may be wrong with the brokers', too.
            file.flush()
        except OSError as error:
            raise failure(error) from error

    try:
        if path.exists() and os.path.samestat(path.stat(), os.fstat(0)):
            raise Refused(
                f"{path} is the input, and would be emptied before it is read",
                remedy="name another file with --unacknowledged",
            )
        file = path.open("wb")
    except OSError as error:
        raise failure(error) from error
    try:
        yield write
    finally:
        # All was flushed, or told that it could not be.
        with contextlib.suppress(OSError):
            file.close()


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
    A new group of a FIFO topic is made ordered.

    Exit code 0: stopped as asked. 1: --count was not reached, or a message was damaged or could not be acknowledged.

    Examples:

      tandemmq consume logs --group readers

      tandemmq consume logs --group copy --idle-timeout 5 > copy.log

      tandemmq consume logs --group failing --reject --count 10
    """
    options = ConsumeOptions(count=count, idle_timeout_s=idle_timeout)
    done = cluster.run(lambda connection: _consume(connection, topic, group, tag, options, rejects=reject))
    if done.output_closed is not None:
        raise done.output_closed
    if done.damaged:
        raise CommandError(f"{done.damaged} message(s) do not match their digest", remedy="check the brokers' disks")
    if done.acknowledged < done.received:
        raise CommandError(
            f"{done.received - done.acknowledged} message(s) were printed but not acknowledged",
            cause=done.last_failure,
            remedy="they will be delivered to the group again",
        )
    if count is not None and done.received < count:
        raise CommandError(
            f"only {done.received} of {count} messages came",
            cause=done.last_failure,
            remedy=f"`tandemmq group describe {group}` shows what it lacks, and who else reads with it",
        )


async def _produce(
    connection: ClusterConnection,
    options: LineOptions,
    source: BufferedIOBase,
    failed: Callable[[bytes], object] | None,
    *,
    rate: float,
) -> ProduceCount:
    from tandemmq.client import ClientOptions, Producer
    from tandemmq.service.settings import stop_requested

    console = text_console(stderr=True)
    access_points = await _prepare(connection, options.topic, console)
    count = ProduceCount()
    client = ClientOptions(
        access_points=access_points,
        sends_in_flight_max=options.inflight,
        dial=connection.dial,
        credentials=own_credentials(),
    )

    def line() -> str:
        seconds = asyncio.get_running_loop().time() - started_s
        return (
            f"{count.acknowledged:,} acknowledged, {count.unacknowledged:,} failed, {count.empty:,} empty lines left "
            f"out, {count.acknowledged / max(seconds, 0.001):,.0f}/s"
        )

    async with Producer(client, SystemClock()) as producer:
        started_s = asyncio.get_running_loop().time()
        with stop_requested() as stop, _progress(console, line):
            # Stopped also while a line waits for its turn.
            lines = _until(_paced(read_lines(source), rate), stop, count)
            await produce_lines(producer, lines, options, count, failed=failed)
        console.print(line())
    return count


async def _consume(
    connection: ClusterConnection, topic: str, group: str, tag: str, options: ConsumeOptions, *, rejects: bool
) -> ConsumeCount:
    from tandemmq.client import BrokerRefused, ClientOptions, SimpleConsumer
    from tandemmq.service.settings import stop_requested

    console = text_console(stderr=True)
    access_points = await _prepare(connection, topic, console)
    if note := await order_of_group(await connection.operations(), topic, group):
        console.print(note, soft_wrap=True)
    count = ConsumeCount()

    def line() -> str:
        seconds = asyncio.get_running_loop().time() - started_s
        repeated = f", {count.redelivered:,} redelivered" if count.redelivered else ""
        return f"{count.received:,} received{repeated}, {count.received / max(seconds, 0.001):,.0f}/s"

    def tell(reason: str) -> None:
        console.print(f"note: nothing can be received, trying on: {reason}", soft_wrap=True)

    consumer = SimpleConsumer(
        ClientOptions(access_points=access_points, dial=connection.dial, credentials=own_credentials()),
        SystemClock(),
        group=group,
        subscriptions={topic: tag},
    )
    async with consumer:
        started_s = asyncio.get_running_loop().time()
        with stop_requested() as stop, _progress(console, line):
            try:
                receiver = _Rejecting(consumer) if rejects else consumer
                await consume_lines(receiver, options, count, write=_write_out, stop=stop, tell=tell)
            except* BrokerRefused as refusals:
                raise CommandError(
                    f"group {group} cannot read topic {topic}",
                    cause=str(refusals.exceptions[0]),
                    remedy=f"`tandemmq topic describe {topic}` shows its type and permissions, "
                    f"`tandemmq group describe {group}` whether the group is enabled",
                ) from refusals
        console.print(line())
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
    from tandemmq.admin.operations.questions import FailureKind, OperationFailed
    from tandemmq.admin.operations.values import TopicChange

    operations = await connection.operations()
    try:
        await operations.topic(topic)
    except OperationFailed as failure:
        if failure.kind is not FailureKind.NOT_FOUND:
            raise
        made = await operations.put_topic(TopicChange(topic))
        brokers = ", ".join(change.subject.rpartition(":")[0] for change in made.changes)
        console.print(f"topic {topic} did not exist; created on {brokers}", soft_wrap=True)
    masters = [broker for broker in (await connection.read_state()).brokers if broker.is_master and broker.status]
    if not masters:
        raise CommandError("no master answers", remedy="`tandemmq status` shows what is there")
    return tuple(master.client_endpoint for master in masters)


async def order_of_group(operations: Operations, topic: str, group: str) -> str:
    """A group that reads a FIFO topic should be ordered: a new one is made so. What to say of it; empty: nothing."""
    from tandemmq.admin.operations.questions import FailureKind, OperationFailed
    from tandemmq.admin.operations.values import GroupChange

    if all(each.message_type != "FIFO" for each in (await operations.topic(topic)).summary.brokers):
        return ""
    try:
        is_ordered = (await operations.group(group)).summary.ordered
    except OperationFailed as failure:
        if failure.kind is not FailureKind.NOT_FOUND:
            raise
        await operations.put_group(GroupChange(group, ordered=True))
        return f"group {group} did not exist; created, ordered as topic {topic} is"
    if is_ordered:
        return ""
    return (
        f"note: topic {topic} is FIFO and group {group} is not ordered: messages of a message group may come in "
        f"another order; to change that: tandemmq group create {group} --ordered"
    )


def _write_out(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


async def _until(lines: AsyncIterator[bytes], stop: asyncio.Event, count: ProduceCount) -> AsyncIterator[bytes]:
    """The same lines, ended early when `stop` is set, also while none comes; `count` learns which."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        while not stop.is_set():
            following = asyncio.ensure_future(anext(lines, None))
            await asyncio.wait((following, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                return
            if (line := following.result()) is None:
                count.is_whole = True
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
