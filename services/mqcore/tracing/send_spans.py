"""The spans of one send, derived from what was noted of it and of the log.

A send's own note has five times: read, put begun, appended, released, written. What it waited for in between is not
noted with the send: a flush and a slave's report say how far they came, for all sends at once (`OffsetTimeline`). So
every send can be traced after its answer is known, and one that is not costs next to nothing.

    received      begun   appended                      released  written
    |-- decode ---|--append--|-------- flush wait ----|      |--reply--|
                             |-------- replicate wait -------|

Whoever changes what a span says here changes `mqservice.telemetry.send_encoding`, which writes the same without it.
"""

from __future__ import annotations

from typing import Final

from mqcore.tracing import attributes as names
from mqcore.tracing.attributes import text_of
from mqcore.tracing.peer_attributes import peer_attributes
from mqcore.tracing.resolved_send import ResolvedSend
from mqcore.tracing.span_data import AttributeValue, SpanData, SpanEvent, SpanKind, SpanLink
from mqcore.tracing.trace_context import TraceContext

__all__ = ["RPC_METHOD", "send_spans", "sender_attributes", "wait_attributes"]

RPC_METHOD: Final = "apache.rocketmq.v2.MessagingService/SendMessage"


def send_spans(send: ResolvedSend) -> list[SpanData]:
    """All spans of a send in the order of their beginnings, the server's first."""
    note, source = send.send, send.source
    spans = [_server(send)]
    if send.append_id:
        spans.append(_append(send))
    if send.flush_wait_id:
        spans.append(
            _child(
                send,
                "flush wait",
                send.flush_wait_id,
                note.appended_ns,
                send.flush_wait_end_ns,
                {names.ACK_POLICY: source.policy_name},
                failure=note.put_status if note.put_status == "FLUSH_DISK_TIMEOUT" else "",
            )
        )
    if send.replicate_wait_id:
        spans.append(_replicate(send))
    if send.reply_id:
        spans.append(_child(send, "reply", send.reply_id, note.released_ns, note.written_ns, {}))
    return spans


def sender_attributes(send: ResolvedSend) -> dict[str, AttributeValue]:
    """Of the server's span those that are the same in most sends of a client. They come first."""
    note, source = send.send, send.source
    said: dict[str, AttributeValue] = {
        names.RPC_SYSTEM_NAME: "grpc",
        names.RPC_METHOD: RPC_METHOD,
        names.MESSAGING_SYSTEM: names.MESSAGING_SYSTEM_ROCKETMQ,
        names.MESSAGING_DESTINATION_NAME: note.topic,
        names.MESSAGING_CLIENT_ID: note.client_id,
        **peer_attributes(note.peer),
        **source.broker,
        names.ACK_POLICY: source.policy_name if note.waits else "ASYNC",
        names.RETAINED_FOR: text_of(note.retained_for),
    }
    if note.tag:
        said[names.MESSAGING_ROCKETMQ_MESSAGE_TAG] = note.tag
    if note.put_status:
        said[names.PUT_STATUS] = note.put_status
    return said


def wait_attributes(send: ResolvedSend) -> dict[str, AttributeValue]:
    """The first ones of the wait for slaves, which are the same in most sends."""
    return {
        names.ACK_POLICY: send.source.policy_name,
        names.ACKS_REQUIRED: send.source.policy.needed_slaves,
        names.ACKS_RECEIVED: send.acks_received,
        names.SLAVES_CONNECTED: send.slaves_connected,
    }


def _server(send: ResolvedSend) -> SpanData:
    note = send.send
    said = sender_attributes(send)
    if note.queue_id >= 0:
        said[names.MESSAGING_DESTINATION_PARTITION_ID] = str(note.queue_id)
    said[names.MESSAGING_MESSAGE_BODY_SIZE] = note.body_bytes
    if note.message_count == 1:
        said[names.MESSAGING_MESSAGE_ID] = note.message_ids[0]
    else:
        said[names.MESSAGING_BATCH_MESSAGE_COUNT] = note.message_count
        said[names.MESSAGE_IDS] = note.message_ids
    if note.failure:
        said[names.ERROR_TYPE] = note.failure
    flushed = (SpanEvent("flushed", send.flushed_ns + send.wall_offset_ns),) if send.flushed_ns >= 0 else ()
    return SpanData(
        name=RPC_METHOD,
        context=note.context,
        parent_span_id=0 if note.parent is None else note.parent.span_id,
        kind=SpanKind.SERVER,
        start_ns=note.received_ns + send.wall_offset_ns,
        end_ns=send.end_ns + send.wall_offset_ns,
        attributes=said,
        links=tuple([SpanLink(context) for context in note.linked]),
        events=flushed,
        failure=note.failure,
        parent_is_remote=note.parent is not None,
    )


def _append(send: ResolvedSend) -> SpanData:
    note = send.send
    if not note.is_stored:
        return _child(
            send, "commitlog append", send.append_id, note.begun_ns, note.released_ns, {}, failure=note.failure
        )
    place: dict[str, AttributeValue] = {
        names.PHYSICAL_OFFSET: note.start_offset,
        names.STORED_BYTES: note.end_offset - note.start_offset,
        names.QUEUE_OFFSET: note.queue_offset,
    }
    return _child(send, "commitlog append", send.append_id, note.begun_ns, note.appended_ns, place)


def _replicate(send: ResolvedSend) -> SpanData:
    """From the append until enough slaves have it."""
    note = send.send
    said = wait_attributes(send)
    if send.lag_bytes >= 0:
        said[names.LAG_BYTES] = send.lag_bytes
    events = []
    for mark in send.marks:
        part: dict[str, AttributeValue] = {names.SLAVE: mark.slave, names.PHYSICAL_OFFSET: mark.offset}
        if mark.lag_bytes >= 0:
            part[names.LAG_BYTES] = mark.lag_bytes
        events.append(SpanEvent(mark.name, mark.at_ns + send.wall_offset_ns, part))
    return _child(
        send,
        "replicate wait",
        send.replicate_wait_id,
        note.appended_ns,
        send.replicate_wait_end_ns,
        said,
        events=tuple(events),
        failure=note.put_status if send.failed_replication else "",
    )


def _child(
    send: ResolvedSend,
    name: str,
    span_id: int,
    start_ns: int,
    end_ns: int,
    attributes: dict[str, AttributeValue],
    *,
    events: tuple[SpanEvent, ...] = (),
    failure: str = "",
) -> SpanData:
    parent = send.send.context
    return SpanData(
        name=name,
        context=TraceContext(parent.trace_id, span_id, True),
        parent_span_id=parent.span_id,
        kind=SpanKind.INTERNAL,
        start_ns=start_ns + send.wall_offset_ns,
        end_ns=max(start_ns, end_ns) + send.wall_offset_ns,
        attributes=attributes,
        events=events,
        failure=failure,
    )
