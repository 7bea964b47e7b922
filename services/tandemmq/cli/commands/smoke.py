"""`tandemmq smoke`: does the cluster take messages and give them back? The chart's `helm test` is this."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.cli.connection import ClusterChoice, ClusterConnection, own_credentials, with_cluster
from tandemmq.cli.ending import CommandError, Refused
from tandemmq.cli.options import parse_duration_s
from tandemmq.service.event_loop import SystemClock

if TYPE_CHECKING:
    from tandemmq.admin.cluster_state import BrokerState
    from tandemmq.admin.operations.operations import Operations
    from tandemmq.client import Producer, ReceivedMessage, SimpleConsumer
    from tandemmq.core.clock import Clock


# One round trip of many messages: sent, received, compared, acknowledged.

_BATCH_MESSAGES: Final = 32
# The least that a broker waits when it holds nothing.
_AWAIT_MS: Final = 5_000
_LEASE_MS: Final = 30_000
_RETRY_PAUSE_S: Final = 0.2


@dataclass(slots=True)
class SmokeCount:
    """How far the round trip has come."""

    # Bodies that were acknowledged and not received yet.
    missing: set[bytes] = field(default_factory=set)
    sent: int = 0
    received: int = 0
    # Received again; delivery is at least once.
    repeated: int = 0
    # Of an earlier run, acknowledged and left out.
    foreign: int = 0
    # Of this run, with a body that was never sent or that does not match its digest.
    damaged: int = 0
    failed_acks: int = 0
    groups: set[str] = field(default_factory=set)
    # Of the last call that failed.
    last_failure: str = ""
    sent_ms: int = 0
    received_ms: int = 0


def smoke_bodies(run: str, count: int) -> list[bytes]:
    """Bodies that no other run sends, of differing length."""
    return [f"{run} {number} {'.' * (number % 100)}".encode() for number in range(count)]


async def send_all(sender: Producer, topic: str, bodies: list[bytes], count: SmokeCount, clock: Clock) -> None:
    """Sends all at once, within the producer's own limit, each until it is stored: the caller has the limit of time.

    BrokerRefused, inside a group, when trying again cannot help.
    """
    from tandemmq.client import BrokerRefused, ClientError

    started_ms = clock.monotonic_ms()

    async def one(body: bytes) -> None:
        while True:
            try:
                receipt = await sender.send(topic, body)
            except ClientError as error:
                if isinstance(error, BrokerRefused) and not error.retryable:
                    raise
                # A cluster that has just come up, or a Service without endpoints for a moment.
                count.last_failure = str(error)
                await asyncio.sleep(_RETRY_PAUSE_S)
            else:
                count.groups.add(receipt.broker_name)
                count.sent += 1
                return

    # Before they are stored: a receiver is as fast as an acknowledgement.
    count.missing.update(bodies)
    async with asyncio.TaskGroup() as tasks:
        for body in bodies:
            tasks.create_task(one(body))
    count.sent_ms = clock.monotonic_ms() - started_ms


async def receive_and_compare(
    receiver: SimpleConsumer,
    run: str,
    bodies: list[bytes],
    count: SmokeCount,
    *,
    parallel: int,
    done: Callable[[], bool],
) -> None:
    """Receives on `parallel` calls until `done()`. What is foreign is acknowledged and forgotten."""
    from tandemmq.client import ClientError

    expected = frozenset(bodies)
    prefix = f"{run} ".encode()

    async def take(message: ReceivedMessage) -> None:
        try:
            await receiver.ack(message)
        except ClientError as error:
            count.failed_acks += 1
            count.last_failure = str(error)
        if not message.body.startswith(prefix) and message.intact:
            count.foreign += 1
        elif message.body not in expected or not message.intact:
            count.damaged += 1
        elif message.body in count.missing:
            count.missing.discard(message.body)
            count.received += 1
        else:
            count.repeated += 1

    async def receive() -> None:
        while not done():
            try:
                messages = await receiver.receive(_BATCH_MESSAGES, invisible_ms=_LEASE_MS, await_ms=_AWAIT_MS)
            except ClientError as error:
                count.last_failure = str(error)
                await asyncio.sleep(_RETRY_PAUSE_S)
                continue
            for message in messages:
                await take(message)

    async with asyncio.TaskGroup() as tasks:
        receives = [tasks.create_task(receive()) for _ in range(parallel)]
        while not done() and not all(task.done() for task in receives):
            await asyncio.wait(receives, timeout=0.02, return_when=asyncio.FIRST_COMPLETED)
        # Some hold an empty long poll; nothing they could still bring is wanted.
        for task in receives:
            task.cancel()


_NAME: Final = "tandemmq-smoke"
# While a cluster comes up: between looks at what is not there yet.
_STATUS_PAUSE_S: Final = 0.5
_POLL_S: Final = 0.05
# One waits at each broker group while others bring what the others have.
_PARALLEL_RECEIVES_MIN: Final = 4


@with_cluster
def smoke(
    cluster: ClusterChoice,
    access_point: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT;…", help="Where clients ask for routes. Default: every master itself."),
    ] = None,
    topic: Annotated[str, typer.Option(help="Topic; it is created if it is missing, and stays.")] = _NAME,
    group: Annotated[
        str, typer.Option(help="Consumer group. Runs at the same time need one each: members share the messages.")
    ] = _NAME,
    count: Annotated[int, typer.Option(min=1, max=100_000, help="Messages.")] = 100,
    timeout: Annotated[
        float, typer.Option(parser=parse_duration_s, metavar="DURATION", help="Limit of the whole: 90s, 5m.")
    ] = "60s",  # type: ignore[assignment]
) -> None:
    """Send messages, receive them, compare and acknowledge them; one line says how long it took.

    Exit code 0: every message came back as it was sent. 1: not, with what was missing. 2: wrong arguments.

    Examples:

      tandemmq smoke

      tandemmq smoke --namesrv mq-nameserver-0.mq-nameserver:9876 --access-point mq-broker:8081 --count 1000
    """
    from tandemmq.client import AccessPointInvalid, parse_access_points

    try:
        access_points = parse_access_points(access_point) if access_point else ()
    except AccessPointInvalid as error:
        raise Refused(
            f"--access-point {access_point!r} is no address",
            cause=str(error),
            remedy="write host:port, the port of the client API (8081)",
        ) from error
    typer.echo(
        cluster.run(lambda connection: _round_trip(connection, access_points, topic, group, count, limit_s=timeout))
    )


async def _round_trip(
    connection: ClusterConnection,
    access_points: tuple[str, ...],
    topic: str,
    group: str,
    message_count: int,
    *,
    limit_s: float,
) -> str:
    """The line to print. CommandError when a message is missing, damaged or not acknowledged in time."""
    from tandemmq.client import ClientOptions, Producer, SimpleConsumer

    clock, counts = SystemClock(), SmokeCount()
    started_ms = clock.monotonic_ms()
    step = "no topic yet"
    # What an earlier run left behind is told apart by it.
    run = f"smoke-{clock.wall_ms():x}-{secrets.token_hex(4)}"
    bodies = smoke_bodies(run, message_count)
    try:
        async with asyncio.timeout(limit_s):
            masters = await _topic_everywhere(connection, topic, limit_s=limit_s)
            await refuse_disabled(await connection.operations(), group)
            step = "no connection to the access point yet"
            options = ClientOptions(
                access_points=access_points or tuple(each.client_endpoint for each in masters),
                dial=connection.dial,
                credentials=own_credentials(),
            )
            consumer = SimpleConsumer(options, clock, group=group, subscriptions={topic: "*"})
            async with Producer(options, clock) as producer, consumer, asyncio.TaskGroup() as tasks:
                receiving = tasks.create_task(
                    receive_and_compare(
                        consumer,
                        run,
                        bodies,
                        counts,
                        parallel=max(_PARALLEL_RECEIVES_MIN, 2 * len(masters)),
                        done=lambda: counts.sent == message_count and not counts.missing,
                    )
                )
                await _until_opened(connection, masters, group, topic)
                step = "sending"
                sending_ms = clock.monotonic_ms()
                await send_all(producer, topic, bodies, counts, clock)
                step = "receiving"
                await receiving
                counts.received_ms = clock.monotonic_ms() - sending_ms
    except TimeoutError:
        raise CommandError(
            f"smoke: {counts.received} of {message_count} messages came back within {limit_s:g} s ({step}; "
            f"{counts.sent} were acknowledged)",
            cause=counts.last_failure,
            remedy="`tandemmq doctor` says what is wrong",
        ) from None
    except ExceptionGroup as failures:
        raise _first_failure(failures) from failures
    if counts.damaged or counts.failed_acks:
        raise CommandError(
            f"smoke: {counts.damaged} message(s) damaged, {counts.failed_acks} acknowledgement(s) failed",
            cause=counts.last_failure,
            remedy="check the brokers' disks; `tandemmq doctor` says what is wrong",
        )
    return (
        f"smoke: {message_count} sent in {counts.sent_ms} ms to {', '.join(sorted(counts.groups))}, "
        f"{counts.received} received, compared and acknowledged in {counts.received_ms} ms"
        + (f", {counts.repeated} repeated" if counts.repeated else "")
        + f"; {(clock.monotonic_ms() - started_ms) / 1_000:.1f} s in all"
    )


async def _topic_everywhere(connection: ClusterConnection, topic: str, *, limit_s: float) -> list[BrokerState]:
    """The masters, once all of them have the topic. Waits for a cluster that is still coming up."""
    from tandemmq.admin.operations.questions import OperationFailed
    from tandemmq.admin.operations.values import TopicChange

    last: CommandError | OperationFailed | None = None
    while True:
        try:
            state = await connection.read_state()
            operations = await connection.operations()
            masters = [broker for broker in state.brokers if broker.is_master]
            if not masters:
                raise CommandError("the cluster has no master", remedy="`tandemmq status` shows what is there")
            if not await _held_by(operations, topic) >= {master.broker_name for master in masters}:
                await operations.put_topic(TopicChange(topic))
            return masters
        except (CommandError, OperationFailed) as error:
            if last is None:
                cause = error.cause.splitlines()[0] if error.cause else ""
                problem = f"{error.problem} ({cause})" if cause else error.problem
                typer.echo(f"smoke: {problem}; waiting for it, up to {limit_s:g} s", err=True)
            last = error
        try:
            await asyncio.sleep(_STATUS_PAUSE_S)
        except asyncio.CancelledError:
            # The limit of the whole; what is missing says more than the limit does.
            raise last from None


async def refuse_disabled(operations: Operations, group: str) -> None:
    """CommandError for a group that is given no messages: all would be sent, and none come back."""
    from tandemmq.admin.operations.questions import FailureKind, OperationFailed

    try:
        found = await operations.group(group)
    except OperationFailed as failure:
        if failure.kind is not FailureKind.NOT_FOUND:
            raise
        return
    if not found.summary.enabled:
        raise CommandError(
            f"smoke: consumer group {group} is disabled: it is given no messages; nothing was sent",
            remedy=f"tandemmq group create {group} --enable, or name another group with --group",
        )


async def _held_by(operations: Operations, topic: str) -> set[str]:
    """Names of the broker groups that have the topic."""
    from tandemmq.admin.operations.questions import FailureKind, OperationFailed

    try:
        return {broker.broker_name for broker in (await operations.topic(topic)).summary.brokers}
    except OperationFailed as failure:
        if failure.kind is not FailureKind.NOT_FOUND:
            raise
        return set()


async def _until_opened(connection: ClusterConnection, masters: list[BrokerState], group: str, topic: str) -> None:
    """Returns once every master knows the group on the topic.

    A new group starts at the newest message of a broker, at the moment that broker sees its first receive.
    """
    from tandemmq.admin.operations.questions import OperationFailed

    operations = await connection.operations()
    wanted = {master.broker_name for master in masters}
    while True:
        with contextlib.suppress(OperationFailed):
            progress = (await operations.group(group)).progress
            if {each.broker_name for each in progress if each.topic == topic} >= wanted:
                return
        await asyncio.sleep(_POLL_S)


def _first_failure(failures: ExceptionGroup[Exception]) -> CommandError:
    import grpc.aio

    from tandemmq.admin.operations.questions import OperationFailed
    from tandemmq.client import ClientError

    found: Exception = failures
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    if isinstance(found, CommandError):
        return found
    if isinstance(found, OperationFailed):
        return CommandError(f"smoke: {found.problem}", cause=found.cause, remedy=found.remedy)
    if isinstance(found, ClientError | grpc.aio.AioRpcError):
        return CommandError(
            "smoke: a message was refused", cause=str(found), remedy="`tandemmq doctor` says what is wrong"
        )
    raise failures
