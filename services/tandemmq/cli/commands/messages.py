"""`tandemmq message …`, `tandemmq tail`, `tandemmq send`, `tandemmq dlq …`, `tandemmq transaction …` and `tandemmq
client …`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.admin.operations.bodies import BODY_BYTES_MAX, BodyForm, body_preview, body_view
from tandemmq.cli.connection import ClusterChoice, with_cluster
from tandemmq.cli.ending import EXIT_FAILED, CommandError, Refused, one_line
from tandemmq.cli.listing import collect, confirmed, tell_rest
from tandemmq.cli.options import (
    MOMENT_HELP,
    DryRunOption,
    GroupArgument,
    LimitOption,
    OutputOption,
    SearchOption,
    TopicArgument,
    YesOption,
    aged_text,
    at_terminal,
    complete_broker_group,
    complete_topic,
    input_bytes,
    moment_text,
    parse_moment_ms,
)
from tandemmq.cli.output import (
    OutputFormat,
    Shown,
    bad,
    emit,
    emit_line,
    new_table,
    or_text,
    plain_row,
    styled,
    tell_unseen,
)
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.texts import age_text, bytes_text

if TYPE_CHECKING:
    from rich.table import Table

    from tandemmq.admin.operations.operations import Operations
    from tandemmq.admin.operations.values import (
        DeadLetterResult,
        Message,
        MessageDetail,
        MessagePage,
        MessageSummary,
        ReplicaCopy,
        TestReceipt,
        Transaction,
        TransactionPage,
    )


# Messages on a terminal: lists, one message with its copies, and bodies that cannot do harm to a terminal.


def messages_table(messages: Iterable[MessageSummary], *, now_ms: int) -> Table:
    """One line a message; as much of its body as was asked for, on one line."""
    table = new_table("stored", "topic", "broker", "queue", "offset", "tag", "keys", "bytes", "message id", "body")
    for message in messages:
        plain_row(
            table,
            aged_text(message.store_ms, now_ms=now_ms),
            message.topic,
            message.broker_name,
            str(message.queue_id),
            str(message.queue_offset),
            message.tag or "-",
            " ".join(message.keys) or "-",
            f"{message.body_size:,}",
            message.message_id or message.offset_message_id,
            body_preview(message.body),
        )
    return table


def message_line(message: MessageSummary) -> str:
    """One line of a tail: when, where, which, and the beginning of its body."""
    marks = [f"tag={one_line(message.tag)}"] if message.tag else []
    marks += [f"keys={one_line(','.join(message.keys))}"] if message.keys else []
    where = f"{message.broker_name}:{message.queue_id}:{message.queue_offset}"
    head = " ".join([moment_text(message.store_ms), where, one_line(message.message_id) or "-", *marks])
    return f"{head} {body_preview(message.body)}".rstrip()


def message_view(detail: MessageDetail, *, form: BodyForm | None, now_ms: int) -> Shown:
    """One message whole: where it lies, what it says of itself, its copies, who consumed it, its body."""
    from rich.table import Table

    message = detail.message
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(message, now_ms=now_ms):
        plain_row(facts, styled(name, "bold"), value)
    parts: list[Shown] = [facts, ""]
    if message.properties:
        properties = new_table("property", "value")
        for name, value in sorted(message.properties.items()):
            plain_row(properties, name, value)
        parts += [properties, ""]
    parts += [copies_table(detail.copies), ""]
    if detail.consumption:
        consumption = new_table("group", "consumption")
        for group, state in sorted(detail.consumption.items()):
            plain_row(consumption, group, state)
        parts += [consumption, ""]
    return [*parts, *_body(message, form)]


def copies_table(copies: Sequence[ReplicaCopy]) -> Table:
    table = new_table("replica", "holds it", "same bytes", "on disk", "verdict", "SHA-256")
    for copy in copies:
        same = "-" if copy.equal is None else "yes" if copy.equal else bad("no")
        plain_row(
            table,
            copy.broker,
            "yes" if copy.held else "no",
            same,
            "yes" if copy.flushed else "no",
            copy.verdict,
            copy.sha256 or "-",
        )
    return table


def receipt_text(receipt: TestReceipt) -> str:
    return (
        f"{receipt.message_id} stored on {place_text(receipt.broker_name, receipt.queue_id, receipt.queue_offset)} "
        f"in {receipt.duration_ms:.1f} ms"
    )


def place_text(broker_name: str, queue_id: int, queue_offset: int) -> str:
    """broker-a, queue 3, offset 17."""
    return f"{broker_name}, queue {queue_id}, offset {queue_offset}"


def resend_table(results: Iterable[DeadLetterResult]) -> Table:
    table = new_table("broker", "dead letter", "to topic", "new offset", "message id", "problem")
    for result in results:
        plain_row(
            table,
            result.broker_name,
            str(result.queue_offset),
            result.topic or "-",
            str(result.new_queue_offset) if result.new_queue_offset >= 0 else "-",
            result.message_id or "-",
            bad(result.problem),
        )
    return table


def _facts(message: Message, *, now_ms: int) -> Iterable[tuple[str, str]]:
    yield "topic", message.topic
    yield "place", place_text(message.broker_name, message.queue_id, message.queue_offset)
    yield "CommitLog", f"{message.physical_offset:,}, {message.record_bytes:,} bytes"
    yield "message id", message.message_id or "-"
    yield "offset id", message.offset_message_id
    yield "tag", message.tag or "-"
    yield "keys", " ".join(message.keys) or "-"
    yield "born", f"{aged_text(message.born_ms, now_ms=now_ms)} at {message.born_host}"
    yield "stored", f"{aged_text(message.store_ms, now_ms=now_ms)} at {message.store_host}"
    yield "redelivered", f"{message.reconsume_times} times"
    yield "flags", f"system {message.sys_flag:#x}, application {message.flag}"
    packed = f", packed with {message.compression}" if message.compression else ""
    yield "body", f"{bytes_text(message.body_size)}{packed}, CRC {message.body_crc & 0xFFFF_FFFF:08x}"
    if message.message_id:
        yield "trace", f"tandemmq trace {quote(message.message_id)}"


def _body(message: Message, form: BodyForm | None) -> Iterable[Shown]:
    if message.body_problem:
        yield bad(f"the body cannot be shown: {message.body_problem}")
        return
    if not message.body:
        yield styled("the body is empty" if not message.body_size else "the body was not asked for", "dim")
        return
    view = body_view(message.body, wanted=form)
    yield view.text
    if form is not None and view.form is not form:
        yield styled(f"it is no {form}; shown as {view.form}", "dim")
    if view.shown_bytes < len(message.body):
        yield styled(f"shown: the first {bytes_text(view.shown_bytes)}; --body-bytes and -o json give more", "dim")
    elif not message.compression and len(message.body) < message.body_size:
        yield styled(f"shown: the first {bytes_text(len(message.body))} of {bytes_text(message.body_size)}", "dim")


message_app = typer.Typer(no_args_is_help=True, help="Find and read messages where they lie, without consuming them.")

_BODY_BYTES: Final = 65_536
_PREVIEW_BYTES: Final = 400
_NOT_GIVEN: Final = -1

_BrokerOption = Annotated[
    str,
    typer.Option(
        "--broker", "-b", metavar="NAME", help="Only this broker group.", autocompletion=complete_broker_group
    ),
]
_FormOption = Annotated[
    BodyForm | None, typer.Option("--body", help="How to show the body. Default: JSON or text if it is that, else hex.")
]
_BodyBytesOption = Annotated[
    int, typer.Option("--body-bytes", min=0, max=BODY_BYTES_MAX, help="At most so many bytes of the body.")
]


@message_app.command("query")
@with_cluster
def message_query(
    cluster: ClusterChoice,
    topic: TopicArgument,
    key: Annotated[str, typer.Option("--key", "-k", help="Only messages with this key.")] = "",
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Only messages with this tag; repeatable.")] = None,
    since: Annotated[str, typer.Option(metavar="MOMENT", help=f"Stored then or later: {MOMENT_HELP}.")] = "",
    until: Annotated[str, typer.Option(metavar="MOMENT", help="Stored before then.")] = "",
    broker: _BrokerOption = "",
    queue: Annotated[int, typer.Option(min=_NOT_GIVEN, help="Only this queue of --broker.")] = _NOT_GIVEN,
    offset: Annotated[int, typer.Option(min=0, help="Of --queue: from this offset on.")] = 0,
    text: Annotated[
        str, typer.Option(metavar="TEXT", help="Only with this in body, tag or keys; looks at 2,000 messages a page.")
    ] = "",
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="Else the newest come first.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="At most so many.")] = 20,
    page: Annotated[str, typer.Option(metavar="TOKEN", help="Go on where the answer before ended.")] = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Search a topic by key, time, tag, text or queue. Nothing is consumed.

    Examples:

      tandemmq message query orders --since 10m

      tandemmq message query orders --key order-4711 -o json

      tandemmq message query orders --since 1h --text "card declined"

      tandemmq message query orders --broker broker-a --queue 3 --offset 1000 --oldest-first
    """
    from tandemmq.admin.operations.values import MessageQuery, SearchOrder

    now_ms = SystemClock().wall_ms()
    if queue >= 0 and not broker:
        raise Refused("--queue needs --broker", remedy="each broker group has a queue of that number: name one")
    query = MessageQuery(
        topic,
        key=key,
        queue_id=queue,
        start_offset=offset,
        broker_name=broker,
        start_ms=parse_moment_ms(since, now_ms=now_ms) if since else _NOT_GIVEN,
        end_ms=parse_moment_ms(until, now_ms=now_ms) if until else _NOT_GIVEN,
        order=SearchOrder.OLDEST if oldest_first else SearchOrder.NEWEST,
        tags=tuple(tags or ()),
        text=text,
        limit=limit,
        body_bytes=_PREVIEW_BYTES,
        page_token=page,
    )
    found = cluster.ask(lambda operations: operations.search(query))
    emit(output, found, or_text(messages_table(found.messages, now_ms=now_ms), "no such message"))
    if found.next_page_token and output is OutputFormat.TABLE:
        typer.echo(f"{found.scanned:,} looked at; more with --page {found.next_page_token}", err=True)
    tell_unseen(found.unseen)


@message_app.command("find")
@with_cluster
def message_find(
    cluster: ClusterChoice,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Message id of a client, or offset message id.")],
    topic: Annotated[str, typer.Option("--topic", "-t", help="Only in this topic: quicker.")] = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Say where a message lies, by its id. Exit code 1: nowhere.

    Example: tandemmq message find 01A2B3C4D5E6F70001061C2F5A00000001
    """
    found = cluster.ask(lambda operations: operations.find_message(message_id, topic=topic))
    if not found and output is OutputFormat.TABLE:
        raise _no_such(message_id)
    emit(output, found, messages_table(found, now_ms=SystemClock().wall_ms()))
    if not found:
        raise typer.Exit(1)


@message_app.command("show")
@with_cluster
def message_show(
    cluster: ClusterChoice,
    message_id: Annotated[str, typer.Argument(metavar="[ID]", help="Message id; or say its place.")] = "",
    topic: Annotated[str, typer.Option("--topic", "-t", help="Topic it is in.")] = "",
    broker: _BrokerOption = "",
    queue: Annotated[int, typer.Option(min=_NOT_GIVEN, help="Its queue, with --topic, --broker and --offset.")] = -1,
    offset: Annotated[int, typer.Option(min=_NOT_GIVEN, help="Its offset in the queue.")] = _NOT_GIVEN,
    physical_offset: Annotated[
        int, typer.Option(min=_NOT_GIVEN, help="Its offset in the CommitLog, with --broker.")
    ] = _NOT_GIVEN,
    form: _FormOption = None,
    body_bytes: _BodyBytesOption = _BODY_BYTES,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show one message whole: its properties and body, which replicas hold it and whether their bytes agree, and which
    groups consumed it.

    Examples:

      tandemmq message show 01A2B3C4D5E6F70001061C2F5A00000001

      tandemmq message show --topic orders --broker broker-a --queue 3 --offset 17 --body hex

      tandemmq message show --broker broker-a --physical-offset 1048576 -o json
    """
    by_queue = bool(topic and broker and queue >= 0 and offset >= 0)
    by_log = bool(broker and physical_offset >= 0)
    by_place = bool(broker) or max(queue, offset, physical_offset) >= 0
    if sum((bool(message_id), by_queue, by_log)) != 1 or (message_id and by_place):
        raise Refused(
            "one message is to be named in one way",
            remedy="give its ID; or --topic, --broker, --queue and --offset; or --broker and --physical-offset",
        )

    async def find(operations: Operations) -> MessageDetail:
        if by_log:
            return await operations.message(broker, physical_offset, body_bytes=body_bytes)
        if by_queue:
            return await operations.message_at(broker, topic, queue, offset, body_bytes=body_bytes)
        found = await operations.find_message(message_id, topic=topic)
        if not found:
            raise _no_such(message_id)
        if len(found) > 1:
            typer.echo(f"{len(found)} messages have this id; shown: the newest", err=True)
        return await operations.message(found[0].broker_name, found[0].physical_offset, body_bytes=body_bytes)

    detail = cluster.ask(find)
    emit(output, detail, message_view(detail, form=form, now_ms=SystemClock().wall_ms()))
    tell_unseen(detail.unseen)


@with_cluster
def tail(
    cluster: ClusterChoice,
    topic: TopicArgument,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Only messages with this tag; repeatable.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print messages as they come in, from now on, until Ctrl-C. Nothing is consumed.

    A busy topic is shown in part: what comes faster than can be read is left out.

    Examples:

      tandemmq tail orders

      tandemmq tail orders --tag paid --count 10 -o json
    """
    from tandemmq.service.settings import stop_requested

    async def follow(operations: Operations) -> None:
        seen = 0
        with stop_requested() as stop:
            stopped = asyncio.ensure_future(stop.wait())
            stream = aiter(operations.tail(topic, tags=tuple(tags or ())))
            try:
                while count is None or seen < count:
                    following = asyncio.ensure_future(anext(stream, None))
                    await asyncio.wait((following, stopped), return_when=asyncio.FIRST_COMPLETED)
                    if not following.done():
                        following.cancel()
                        await asyncio.wait((following,))
                        return
                    if (message := following.result()) is None:
                        return
                    emit_line(output, message, message_line(message))
                    seen += 1
            finally:
                stopped.cancel()

    cluster.ask(follow)


@with_cluster
def send(
    cluster: ClusterChoice,
    topic: TopicArgument,
    body: Annotated[
        str | None, typer.Argument(metavar="[BODY]", help="Text of the message; - or nothing: standard input, bytes.")
    ] = None,
    tag: Annotated[str, typer.Option(help="Tag.")] = "",
    keys: Annotated[list[str] | None, typer.Option("--key", "-k", help="Key; repeatable.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-p", metavar="NAME=VALUE", help="Property; repeatable.")
    ] = None,
    message_group: Annotated[str, typer.Option(help="Message group; a FIFO topic needs one.")] = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Send one message, as a client would, and say where it was stored. For many, see `tandemmq produce`.

    Examples:

      tandemmq send orders '{"order": 17}' --key order-17 --tag created

      tandemmq send payments paid --message-group customer-3

      tandemmq send images < picture.png
    """
    from tandemmq.admin.operations.values import TestMessage

    message = TestMessage(
        topic,
        _body_bytes(body),
        tag=tag,
        keys=tuple(keys or ()),
        properties=dict(_property(each) for each in properties or ()),
        message_group=message_group,
    )
    receipt = cluster.ask(lambda operations: operations.send(message))
    emit(output, receipt, receipt_text(receipt))


def _body_bytes(text: str | None) -> bytes:
    if text is not None and text != "-":
        return _not_empty(text.encode())
    if at_terminal():
        typer.echo("the message is read from here; Ctrl-D ends it", err=True)
    data = input_bytes(BODY_BYTES_MAX + 1)
    if len(data) > BODY_BYTES_MAX:
        raise Refused(
            "the body is too large",
            cause=f"more than {BODY_BYTES_MAX:,} bytes came",
            remedy="send it in parts, or by a client of your own, up to the brokers' maxMessageSize",
        )
    return _not_empty(data)


def _not_empty(body: bytes) -> bytes:
    if not body:
        raise Refused(
            "the message has no body, and brokers take none without",
            remedy="give it behind the topic, or on standard input: echo hello | tandemmq send TOPIC",
        )
    return body


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Refused(f"{text!r} is no property", remedy="write NAME=VALUE")
    return name, value


def _no_such(message_id: str) -> CommandError:
    return CommandError(
        f"no broker that answers knows message {message_id}",
        cause="it has expired, was never stored, or lies on a broker that is away",
        remedy="see `tandemmq status` for who is away; `tandemmq message query` searches by key and time",
    )


# `tandemmq transaction …` and `tandemmq client …`: ending transactions nobody decided, and talking to clients.

transaction_app = typer.Typer(no_args_is_help=True, help="Transactions that nobody has committed or rolled back.")
client_app = typer.Typer(no_args_is_help=True, help="Tell a connected client something.")


@transaction_app.command("list")
@with_cluster
def transaction_list(
    cluster: ClusterChoice,
    topic: Annotated[
        str, typer.Option("--topic", "-t", help="Only those of this topic.", autocompletion=complete_topic)
    ] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="At most so many.")] = 200,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List undecided transactions, the oldest first.

    Example: tandemmq transaction list --topic payments
    """
    page = cluster.ask(lambda operations: operations.transactions(topic=topic, limit=limit))
    emit(output, page, or_text(_table(page.transactions), "no transaction is undecided"))
    _tell_rest(page, output)


@transaction_app.command("resolve")
@with_cluster
def transaction_resolve(
    cluster: ClusterChoice,
    transaction_id: Annotated[str, typer.Argument(metavar="ID", help="As `transaction list -o json` shows it.")],
    commit: Annotated[
        bool | None, typer.Option("--commit/--rollback", help="Make its message visible, or drop it: one is needed.")
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Commit a transaction, or roll it back, in its producer's place. It cannot be undone.

    Example: tandemmq transaction resolve djEg… --rollback
    """
    if commit is None:
        raise Refused("nothing is said about its end", remedy="give --commit or --rollback")
    end = "commit" if commit else "rollback"
    result = confirmed(
        cluster,
        lambda dry: cluster.ask(lambda operations: operations.resolve_transaction(transaction_id, end, dry_run=dry)),
        lambda planned: emit(output if dry_run else OutputFormat.TABLE, planned, _table([planned])),
        f"{end.capitalize()} it?",
        dry_run=dry_run,
        yes=yes,
    )
    if result is not None:
        emit(output, result, _table([result]))


@client_app.command("stack")
@with_cluster
def client_stack(
    cluster: ClusterChoice,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT", help="Client id, see `tandemmq clients`.")],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the stacks of a client's threads. Java and Go clients have them.

    Example: tandemmq client stack host@123@1@abc
    """
    _tell(cluster, client_id, "print-stack", output)


@client_app.command("reconnect")
@with_cluster
def client_reconnect(
    cluster: ClusterChoice,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT", help="Client id, see `tandemmq clients`.")],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Have a client connect anew. Java and Node clients do.

    Example: tandemmq client reconnect host@123@1@abc
    """
    _tell(cluster, client_id, "reconnect", output)


@client_app.command("verify")
@with_cluster
def client_verify(
    cluster: ClusterChoice,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT", help="A push consumer, see `tandemmq clients`.")],
    broker: Annotated[
        str,
        typer.Option("--broker", "-b", metavar="NAME", help="Broker group.", autocompletion=complete_broker_group),
    ],
    topic: Annotated[str, typer.Option("--topic", "-t", help="Topic.", autocompletion=complete_topic)],
    queue: Annotated[int, typer.Option("--queue", min=0, help="Queue of the message.")],
    offset: Annotated[int, typer.Option("--offset", min=0, help="Its offset there.")],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Hand a stored message to a client's listener and tell what came of it. Nothing is acknowledged.

    Example: tandemmq client verify host@123@1@abc -b broker-a -t orders --queue 0 --offset 7
    """
    _tell(cluster, client_id, "verify-message", output, broker_name=broker, topic=topic, queue=queue, offset=offset)


def _tell(
    cluster: ClusterChoice,
    client_id: str,
    command: str,
    output: OutputFormat,
    *,
    broker_name: str = "",
    topic: str = "",
    queue: int = 0,
    offset: int = 0,
) -> None:
    replies = cluster.ask(
        lambda operations: operations.command_client(
            client_id, command, broker_name=broker_name, topic=topic, queue_id=queue, queue_offset=offset
        )
    )
    table = new_table("broker", "answer", "")
    for reply in replies:
        plain_row(table, reply.broker, reply.code, reply.text)
    emit(output, replies, table)


def _table(transactions: Sequence[Transaction]) -> Table:
    now_ms = SystemClock().wall_ms()
    table = new_table("transaction", "broker", "topic", "message", "age", "asked", "producer", "size")
    for one in transactions:
        plain_row(
            table,
            one.transaction_id,
            one.broker_name,
            one.topic or "has ended before",
            one.message_id,
            age_text(max(0, now_ms - one.store_ms)) if one.store_ms > 0 else "-",
            f"{one.checks} times",
            one.producer or "-",
            bytes_text(one.body_bytes),
        )
    return table


def _tell_rest(page: TransactionPage, output: OutputFormat) -> None:
    rest = page.total - len(page.transactions)
    if rest > 0 and output is OutputFormat.TABLE:
        typer.echo(f"and {rest:,} more; see --limit and --topic", err=True)
    tell_unseen(page.unseen)


# `tandemmq dlq …`: what consumers could not consume, and giving it to them again.

dead_letter_app = typer.Typer(no_args_is_help=True, help="Dead letters: what a group could not consume.")

# A broker takes so many at once.
_RESEND_BATCH: Final = 100
_RESEND_MAX: Final = 10_000
_SEARCH_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class _Letters:
    group: str
    topic: str
    # Held by the masters that answered; -1: not known.
    dead_letters: int


@dead_letter_app.command("list")
@with_cluster
def dead_letter_list(
    cluster: ClusterChoice,
    search: SearchOption = "",
    limit: LimitOption = 1_000,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the groups that have dead letters.

    Example: tandemmq dlq list
    """
    from tandemmq.admin.operations.topics import DEAD_LETTER, DEAD_LETTER_PREFIX
    from tandemmq.admin.operations.values import Page

    topics = cluster.ask(
        lambda operations: collect(
            lambda page: operations.topics(search=search, categories=(DEAD_LETTER,), page=page), limit=limit
        )
    )
    lines = [_Letters(each.name.removeprefix(DEAD_LETTER_PREFIX), each.name, each.held) for each in topics.items]
    table = new_table("group", "dead letters")
    for line in lines:
        plain_row(table, line.group, f"{line.dead_letters:,}" if line.dead_letters >= 0 else "?")
    found = Page(lines, topics.number, topics.size, topics.total, topics.unseen)
    emit(output, found, or_text(table, "no group has dead letters"))
    tell_rest(topics)


@dead_letter_app.command("show")
@with_cluster
def dead_letter_show(
    cluster: ClusterChoice,
    group: GroupArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="At most so many.")] = 20,
    page: Annotated[str, typer.Option(metavar="TOKEN", help="Go on where the answer before ended.")] = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a group's dead letters, the newest first.

    Example: tandemmq dlq show billing --limit 50
    """
    from tandemmq.admin.operations.operations import refuse_unknown_group
    from tandemmq.admin.operations.topics import dead_letter_topic
    from tandemmq.admin.operations.values import MessageQuery

    query = MessageQuery(dead_letter_topic(group), limit=limit, body_bytes=_PREVIEW_BYTES, page_token=page)

    async def letters(operations: Operations) -> MessagePage:
        found = await operations.search(query)
        if not (found.messages or found.unseen or page):
            await refuse_unknown_group(operations, group)
        return found

    found = cluster.ask(letters)
    table = messages_table(found.messages, now_ms=SystemClock().wall_ms())
    emit(output, found, or_text(table, f"group {group} has no dead letters"))
    if found.next_page_token and output is OutputFormat.TABLE:
        typer.echo(f"more with --page {found.next_page_token}", err=True)
    tell_unseen(found.unseen)


@dead_letter_app.command("resend")
@with_cluster
def dead_letter_resend(
    cluster: ClusterChoice,
    group: GroupArgument,
    broker: Annotated[
        str,
        typer.Option(
            "--broker",
            "-b",
            metavar="NAME",
            help="With --offset: broker group it lies on.",
            autocompletion=complete_broker_group,
        ),
    ] = "",
    offsets: Annotated[
        list[int] | None, typer.Option("--offset", min=0, help="Offset of a dead letter on --broker; repeatable.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help=f"All of them, {_RESEND_MAX:,} at most.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Put dead letters back into the topics they came from, as new messages; all groups that read those topics get
    them. The dead letters themselves stay until their files expire.

    Exit code 0: all were sent. 1: some were not, each with its reason.

    Examples:

      tandemmq dlq resend billing --broker broker-a --offset 3 --offset 4 --dry-run

      tandemmq dlq resend billing --all --yes
    """
    if every == bool(broker and offsets):
        raise Refused("which dead letters?", remedy="give --broker and --offset, or --all")
    wanted = {broker: list(offsets or ())} if not every else cluster.ask(lambda operations: _all_of(operations, group))
    results = confirmed(
        cluster,
        lambda dry: cluster.ask(lambda operations: _resend(operations, group, wanted, dry_run=dry)),
        lambda planned: emit(output if dry_run else OutputFormat.TABLE, planned, resend_table(planned)),
        lambda planned: f"Send {sum(not each.problem for each in planned):,} of {len(planned):,} again?",
        dry_run=dry_run,
        yes=yes,
    )
    if results is None:
        return
    emit(output, results, resend_table(results))
    if any(each.problem for each in results):
        raise typer.Exit(EXIT_FAILED)


async def _resend(
    operations: Operations, group: str, wanted: dict[str, list[int]], *, dry_run: bool
) -> list[DeadLetterResult]:
    results: list[DeadLetterResult] = []
    for broker_name, offsets in wanted.items():
        for start in range(0, len(offsets), _RESEND_BATCH):
            batch: Sequence[int] = offsets[start : start + _RESEND_BATCH]
            results += await operations.resend_dead_letters(group, broker_name, batch, dry_run=dry_run)
    return results


async def _all_of(operations: Operations, group: str) -> dict[str, list[int]]:
    """Offsets of all dead letters of a group by broker name, oldest first."""
    from tandemmq.admin.operations.topics import dead_letter_topic
    from tandemmq.admin.operations.values import MessageQuery

    found: dict[str, list[int]] = {}
    token, count = "", 0
    while True:
        page = await operations.search(MessageQuery(dead_letter_topic(group), limit=_SEARCH_PAGE, page_token=token))
        for message in page.messages:
            found.setdefault(message.broker_name, []).append(message.queue_offset)
        count += len(page.messages)
        token = page.next_page_token
        if not token:
            return {name: sorted(offsets) for name, offsets in sorted(found.items())}
        if count >= _RESEND_MAX:
            raise Refused(
                f"group {group} has more than {_RESEND_MAX:,} dead letters",
                remedy="send them in parts, with --broker and --offset",
            )
