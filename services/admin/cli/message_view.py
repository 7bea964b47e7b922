"""Messages on a terminal: lists, one message with its copies, and bodies that cannot do harm to a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from admin.body_views import BodyForm, body_preview, body_view
from admin.cli.plain_text import one_line
from admin.cli.status_view import new_table, plain_row
from admin.cli.time_option import aged_text, moment_text
from admin.operations.values import (
    DeadLetterResult,
    Message,
    MessageDetail,
    MessageSummary,
    ReplicaCopy,
    TestReceipt,
)
from admin.quantities import bytes_text

__all__ = [
    "copies_table",
    "message_line",
    "message_view",
    "messages_table",
    "place_text",
    "receipt_text",
    "resend_table",
]


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
    head = " ".join([moment_text(message.store_ms), where, message.message_id or "-", *marks])
    return f"{head} {body_preview(message.body)}".rstrip()


def message_view(detail: MessageDetail, *, form: BodyForm | None, now_ms: int) -> RenderableType:
    """One message whole: where it lies, what it says of itself, its copies, who consumed it, its body."""
    message = detail.message
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(message, now_ms=now_ms):
        facts.add_row(Text(name, style="bold"), Text(one_line(value)))
    parts: list[RenderableType] = [facts, ""]
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
    return Group(*parts, *_body(message, form))


def copies_table(copies: Sequence[ReplicaCopy]) -> Table:
    """One line a replica."""
    table = new_table("replica", "holds it", "same bytes", "on disk", "verdict", "SHA-256")
    for copy in copies:
        same = "-" if copy.equal is None else "yes" if copy.equal else Text("no", style="bold red")
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
    """One line."""
    return (
        f"{receipt.message_id} stored on {place_text(receipt.broker_name, receipt.queue_id, receipt.queue_offset)} "
        f"in {receipt.duration_ms:.1f} ms"
    )


def place_text(broker_name: str, queue_id: int, queue_offset: int) -> str:
    """broker-a, queue 3, offset 17."""
    return f"{broker_name}, queue {queue_id}, offset {queue_offset}"


def resend_table(results: Iterable[DeadLetterResult]) -> Table:
    """One line a dead letter."""
    table = new_table("broker", "dead letter", "to topic", "new offset", "message id", "problem")
    for result in results:
        plain_row(
            table,
            result.broker_name,
            str(result.queue_offset),
            result.topic or "-",
            str(result.new_queue_offset) if result.new_queue_offset >= 0 else "-",
            result.message_id or "-",
            Text(result.problem, style="bold red"),
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
        yield "trace", f"tandemmq trace {message.message_id}"


def _body(message: Message, form: BodyForm | None) -> Iterable[RenderableType]:
    if message.body_problem:
        yield Text(f"the body cannot be shown: {message.body_problem}", style="bold red")
        return
    if not message.body:
        yield Text("the body is empty" if not message.body_size else "the body was not asked for", style="dim")
        return
    view = body_view(message.body, wanted=form)
    yield Text(view.text)
    if form is not None and view.form is not form:
        yield Text(f"it is no {form}; shown as {view.form}", style="dim")
    if view.shown_bytes < len(message.body):
        yield Text(f"shown: the first {bytes_text(view.shown_bytes)}; --body-bytes and -o json give more", style="dim")
    elif not message.compression and len(message.body) < message.body_size:
        yield Text(f"shown: the first {bytes_text(len(message.body))} of {bytes_text(message.body_size)}", style="dim")
