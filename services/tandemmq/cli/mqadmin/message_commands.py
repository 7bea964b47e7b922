"""queryMsgById, queryMsgByKey, queryMsgByOffset, queryMsgByUniqueKey, printMsg and sendMessage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.admin.operations.bodies import BodyForm, body_view
from tandemmq.cli.commands.brokers import operations_in
from tandemmq.cli.connection import ClusterChoice, ClusterConnection, with_cluster
from tandemmq.cli.ending import CommandError, Refused, one_line
from tandemmq.cli.mqadmin.options import (
    ClusterNameOption,
    Columns,
    TopicOption,
    TrueFalse,
    emit_lines,
    human_time,
    note_ignored,
)
from tandemmq.cli.options import OutputOption, parse_moment_ms
from tandemmq.cli.output import OutputFormat, printable_text, tell_unseen
from tandemmq.service.event_loop import SystemClock

if TYPE_CHECKING:
    from tandemmq.admin.operations.operations import Operations
    from tandemmq.admin.operations.values import (
        Extent,
        Message,
        MessageDetail,
        MessageQuery,
        MessageSummary,
    )

_FOUND: Final = Columns(("#Message ID", 50), ("#QID", -4), ("#Offset", -40))
_SENT: Final = Columns(("#Broker Name", 32), ("#QID", 4), ("#Send Result", 20), ("  #MsgId", 0))
_BODY_BYTES: Final = 1 << 20
_PRINTED_BODY_BYTES: Final = 65_536
_PAGE: Final = 100
_SHOWN_MAX: Final = 32
_RULER: Final = "-" * 56

_FormatOption = Annotated[
    str, typer.Option("--bodyFormat", "-f", help="Character set of the body; what it does not fit is shown in hex.")
]
_ConsumerGroupOption = Annotated[
    str | None, typer.Option("--consumerGroup", "-g", help="Refused: nothing is pushed to one consumer.")
]
_ClientOption = Annotated[
    str | None, typer.Option("--clientId", "-d", help="Refused: nothing is pushed to one consumer.")
]


@with_cluster
def query_msg_by_id(
    cluster: ClusterChoice,
    message_id: Annotated[str, typer.Option("--msgId", "-i", help="Offset message id, or a client's message id.")],
    topic: TopicOption,
    group: _ConsumerGroupOption = None,
    client_id: _ClientOption = None,
    resend: Annotated[str, typer.Option("--sendMessage", "-s", help="Refused: see `tandemmq send`.")] = "",
    unit_name: Annotated[str, typer.Option("--unitName", "-u", help="Ignored.")] = "",
    body_format: _FormatOption = "",
    cluster_name: ClusterNameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a message by its id. It cannot be pushed to a single consumer (-g, -d): clients fetch what they get.

    Example: mqadmin queryMsgById -t orders -i 7F00000100002A9F0000000000001234
    """
    if group or client_id or resend:
        raise Refused(
            "a message is not pushed to one client, nor sent again, from here",
            remedy="tandemmq group reset has a group consume again; tandemmq dlq resend sends dead letters again",
        )
    note_ignored([("-u", unit_name)], "there are no units here")
    detail = cluster.run(lambda connection: _by_id(connection, topic, message_id, cluster_name))[0]
    emit_lines(output, detail, _message_lines(detail, body_format))
    tell_unseen(detail.unseen)


@with_cluster
def query_msg_by_unique_key(
    cluster: ClusterChoice,
    message_id: Annotated[str, typer.Option("--msgId", "-i", help="Message id of the client.")],
    topic: TopicOption,
    group: _ConsumerGroupOption = None,
    client_id: _ClientOption = None,
    show_all: Annotated[bool, typer.Option("--showAll", "-a", help=f"All with this id, {_SHOWN_MAX} at most.")] = False,
    cluster_name: ClusterNameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a message by the id its client gave it. It cannot be pushed to a single consumer (-g, -d).

    Example: mqadmin queryMsgByUniqueKey -t orders -i 01A2B3C4D5E6F70001061C2F5A00000001
    """
    if group or client_id:
        raise Refused("a message is not pushed to one client from here", remedy="see tandemmq group reset")
    details = cluster.run(lambda connection: _by_id(connection, topic, message_id, cluster_name, all_of_them=show_all))
    lines = [line for detail in details for line in (*_message_lines(detail, ""), "")]
    emit_lines(output, details, lines)


@with_cluster
def query_msg_by_offset(
    cluster: ClusterChoice,
    topic: TopicOption,
    broker_name: Annotated[str, typer.Option("--brokerName", "-b", help="Broker group.")],
    queue_id: Annotated[int, typer.Option("--queueId", "-i", min=0, help="Queue.")],
    offset: Annotated[int, typer.Option("--offset", "-o", min=0, help="Offset in the queue.")],
    body_format: _FormatOption = "",
    output: Annotated[OutputFormat, typer.Option("--output", help="table, json or yaml.")] = OutputFormat.TABLE,
) -> None:
    """Show a message by its place in a queue.

    Example: mqadmin queryMsgByOffset -t orders -b broker-a -i 3 -o 17
    """
    detail = cluster.ask(
        lambda operations: operations.message_at(broker_name, topic, queue_id, offset, body_bytes=_BODY_BYTES)
    )
    emit_lines(output, detail, _message_lines(detail, body_format))


@with_cluster
def query_msg_by_key(
    cluster: ClusterChoice,
    topic: TopicOption,
    key: Annotated[str, typer.Option("--msgKey", "-k", help="Message key.")],
    begin: Annotated[str, typer.Option("--beginTimestamp", "-b", help="Stored then or later.")] = "",
    end: Annotated[str, typer.Option("--endTimestamp", "-e", help="Stored before then.")] = "",
    limit: Annotated[int, typer.Option("--maxNum", "-m", min=1, max=1_000, help="At most so many.")] = 64,
    cluster_name: ClusterNameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Find messages by their key.

    Example: mqadmin queryMsgByKey -t orders -k order-4711
    """
    from tandemmq.admin.operations.values import MessageQuery

    start_ms, end_ms = _moment(begin), _moment(end)

    async def read(connection: ClusterConnection) -> list[MessageSummary]:
        operations = await operations_in(connection, cluster_name)
        query = MessageQuery(topic, key=key, start_ms=start_ms, end_ms=end_ms, limit=limit)
        page = await operations.search(query)
        tell_unseen(page.unseen)
        return list(page.messages)

    found = cluster.run(read)
    rows = [(each.message_id or each.offset_message_id, each.queue_id, each.queue_offset) for each in found]
    emit_lines(output, found, _FOUND.lines(rows))


@with_cluster
def print_msg(
    cluster: ClusterChoice,
    topic: TopicOption,
    charset: Annotated[str, typer.Option("--charsetName", "-c", help="Character set of bodies.")] = "UTF-8",
    expression: Annotated[str, typer.Option("--subExpression", "-s", help="Tags, joined by ||; * for all.")] = "*",
    begin: Annotated[str, typer.Option("--beginTimestamp", "-b", help="Stored then or later.")] = "",
    end: Annotated[str, typer.Option("--endTimestamp", "-e", help="Stored before then.")] = "",
    print_body: Annotated[
        TrueFalse, typer.Option("--printBody", "-d", case_sensitive=False, help="Bodies, 64 KiB of each.")
    ] = TrueFalse.TRUE,
) -> None:
    """Print all messages of a topic, queue by queue, the oldest first. Nothing is consumed.

    Example: mqadmin printMsg -t orders -b 2026-11-22#04:00:00:000 -s "created || paid"
    """
    from tandemmq.admin.operations.values import MessageQuery, SearchOrder

    start_ms, end_ms = _moment(begin), _moment(end)
    tags = tuple(tag for tag in (part.strip() for part in expression.split("||")) if tag and tag != "*")

    async def read(operations: Operations) -> None:
        for extent in (await operations.topic(topic)).extents:
            queue = f"MessageQueue [topic={topic}, brokerName={extent.broker_name}, queueId={extent.queue_id}]"
            typer.echo(f"minOffset={extent.min_offset}, maxOffset={extent.max_offset}, {queue}")
            query = MessageQuery(
                topic,
                queue_id=extent.queue_id,
                start_offset=extent.min_offset,
                broker_name=extent.broker_name,
                start_ms=start_ms,
                end_ms=end_ms,
                order=SearchOrder.OLDEST,
                tags=tags,
                limit=_PAGE,
                body_bytes=_PRINTED_BODY_BYTES if print_body.truth else 0,
            )
            async for message in _all_of(operations, query, extent):
                typer.echo(_printed(message, _text(message.body, charset) if print_body.truth else "NOT PRINT BODY"))
            typer.echo(_RULER)

    cluster.ask(read)


@with_cluster
def send_message(
    cluster: ClusterChoice,
    topic: TopicOption,
    body: Annotated[str, typer.Option("--body", "-p", help="Text of the message.")],
    key: Annotated[str, typer.Option("--key", "-k", help="Keys, separated by blanks.")] = "",
    tags: Annotated[str, typer.Option("--tags", "-c", help="Tag.")] = "",
    broker: Annotated[str, typer.Option("--broker", "-b", help="Refused: clients choose the queue.")] = "",
    queue_id: Annotated[str, typer.Option("--qid", "-i", help="Refused, likewise.")] = "",
    trace: Annotated[str, typer.Option("--msgTraceEnable", "-m", help="Ignored: brokers trace.")] = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Send one message.

    Example: mqadmin sendMessage -t orders -p "hello" -k order-17 -c created
    """
    from tandemmq.admin.operations.values import TestMessage

    if broker or queue_id:
        raise Refused("the queue cannot be chosen", cause="clients of the 5.x API do not", remedy="leave out -b and -i")
    note_ignored([("-m", trace)], "brokers trace by their traceSampleRate")
    message = TestMessage(topic, body.encode(), tag=tags, keys=tuple(key.split()))
    receipt = cluster.ask(lambda operations: operations.send(message))
    row = (receipt.broker_name, receipt.queue_id, "SEND_OK", "  " + receipt.message_id)
    emit_lines(output, receipt, _SENT.lines([row]))


async def _by_id(
    connection: ClusterConnection,
    topic: str,
    message_id: str,
    cluster_name: str | None,
    *,
    all_of_them: bool = False,
) -> list[MessageDetail]:
    operations = await operations_in(connection, cluster_name)
    found = await operations.find_message(message_id, topic=topic)
    if not found:
        raise CommandError("Message not found!", cause=f"no broker that answers has {message_id} in topic {topic}")
    chosen = found[:_SHOWN_MAX] if all_of_them else found[:1]
    return [await operations.message(each.broker_name, each.physical_offset, body_bytes=_BODY_BYTES) for each in chosen]


async def _all_of(operations: Operations, query: MessageQuery, extent: Extent) -> AsyncIterator[MessageSummary]:
    """What the query finds below the queue's end as it was, page after page."""
    token = ""
    while True:
        page = await operations.search(replace(query, page_token=token))
        for message in page.messages:
            if message.queue_offset >= extent.max_offset:
                return
            yield message
        token = page.next_page_token
        if not token:
            return


def _message_lines(detail: MessageDetail, body_format: str) -> list[str]:
    message = detail.message
    facts: Sequence[tuple[str, object]] = (
        ("OffsetID:", message.offset_message_id),
        ("Topic:", message.topic),
        ("Tags:", f"[{one_line(message.tag) or 'null'}]"),
        ("Keys:", f"[{one_line(' '.join(message.keys)) or 'null'}]"),
        ("Queue ID:", message.queue_id),
        ("Queue Offset:", message.queue_offset),
        ("CommitLog Offset:", message.physical_offset),
        ("Reconsume Times:", message.reconsume_times),
        ("Born Timestamp:", human_time(message.born_ms)),
        ("Store Timestamp:", human_time(message.store_ms)),
        ("Born Host:", message.born_host),
        ("Store Host:", message.store_host),
        ("System Flag:", message.sys_flag),
        ("Properties:", _java_map(message)),
        ("Message Body:", message.body_problem or _text(message.body, body_format or "UTF-8")),
    )
    lines = [f"{name:<20} {value}" for name, value in facts]
    tracks = [
        f"MessageTrack [consumerGroup={group}, trackType={state}, exceptionDesc=null]"
        for group, state in sorted(detail.consumption.items())
    ]
    return [*lines, "", *(tracks or ["WARN: No Consumer"])]


def _java_map(message: Message) -> str:
    return "{" + ", ".join(one_line(f"{name}={value}") for name, value in sorted(message.properties.items())) + "}"


def _printed(message: MessageSummary, body: str) -> str:
    facts = (
        f"queueId={message.queue_id}, storeSize={message.record_bytes}, queueOffset={message.queue_offset}, "
        f"bornTimestamp={message.born_ms}, bornHost={message.born_host}, storeTimestamp={message.store_ms}, "
        f"storeHost={message.store_host}, msgId={message.offset_message_id}, "
        f"commitLogOffset={message.physical_offset}, reconsumeTimes={message.reconsume_times}, "
        f"topic={message.topic}, tags={one_line(message.tag)}, keys={one_line(' '.join(message.keys))}"
    )
    return f"MSGID: {one_line(message.message_id) or message.offset_message_id} MessageExt [{facts}] BODY: {body}"


def _text(body: bytes, charset: str) -> str:
    """The text, or hex lines for what is none or would move a terminal's cursor."""
    try:
        text = body.decode(charset)
    except LookupError:
        raise Refused(f"there is no character set {charset}", remedy="try UTF-8") from None
    except UnicodeDecodeError:
        text = None
    if text is not None and printable_text(text.encode()) is not None:
        return text
    return "\n" + body_view(body, wanted=BodyForm.HEX).text


def _moment(text: str) -> int:
    return parse_moment_ms(text, now_ms=SystemClock().wall_ms()) if text else -1
