"""Spans as a broker makes them, for tests: one send on a master, its slave's part, and a delivery."""

from __future__ import annotations

from tandemmq.core.tracing import span_data as names
from tandemmq.core.tracing.span_data import RetainedFor, SpanData, SpanEvent, SpanKind, SpanLink, TraceContext

TRACE_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736
MESSAGE_ID = "01A2B3C4D5E6F70001061C2F5A00000001"
TOPIC = "shop.orders"
SLAVE = "broker-a:1"
START_NS = 1_795_309_200_000_000_000
_US = 1_000

_SERVER, _APPEND, _FLUSH, _WAIT, _REPLY = 0x11, 0x12, 0x13, 0x14, 0x15


def send_spans(
    *,
    trace_id: int = TRACE_ID,
    message_id: str = MESSAGE_ID,
    start_ns: int = START_NS,
    wait_us: int = 7_000,
    retained_for: RetainedFor = RetainedFor.SLOW,
    failure: str = "",
    slave: str = SLAVE,
    sync_flush: bool = False,
    parent_span_id: int = 0,
) -> list[SpanData]:
    """A send that waited for one slave, in the order in which a broker gives its spans."""

    def at(microseconds: int) -> int:
        return start_ns + microseconds * _US

    def context(span_id: int) -> TraceContext:
        return TraceContext(trace_id, span_id, True)

    answered = 150 + wait_us
    events = [SpanEvent("sent", at(180), {names.SLAVE: slave, names.LAG_BYTES: 412})]
    if not failure:
        events.append(SpanEvent("acknowledged", at(answered), {names.SLAVE: slave, names.LAG_BYTES: 0}))
    spans = [
        SpanData(
            "apache.rocketmq.v2.MessagingService/SendMessage",
            context(_SERVER),
            parent_span_id,
            SpanKind.SERVER,
            at(0),
            at(answered + 220),
            {
                names.MESSAGING_SYSTEM: names.MESSAGING_SYSTEM_ROCKETMQ,
                names.MESSAGING_OPERATION_NAME: "send",
                names.MESSAGING_DESTINATION_NAME: TOPIC,
                names.MESSAGING_DESTINATION_PARTITION_ID: "3",
                names.MESSAGING_MESSAGE_ID: message_id,
                names.MESSAGING_MESSAGE_BODY_SIZE: 128,
                names.BROKER_GROUP: "broker-a",
                names.PHYSICAL_OFFSET: 18_274_112,
                names.QUEUE_OFFSET: 1_042,
                names.STORED_BYTES: 412,
                names.PUT_STATUS: failure or "PUT_OK",
                names.RETAINED_FOR: retained_for,
                **({names.ERROR_TYPE: failure} if failure else {}),
            },
            failure=failure,
            parent_is_remote=bool(parent_span_id),
        ),
        SpanData(
            "commitlog append",
            context(_APPEND),
            _SERVER,
            SpanKind.INTERNAL,
            at(90),
            at(150),
            {names.STORED_BYTES: 412, names.PHYSICAL_OFFSET: 18_274_112},
        ),
        SpanData(
            "replicate wait",
            context(_WAIT),
            _SERVER,
            SpanKind.INTERNAL,
            at(150),
            at(answered),
            {
                names.ACK_POLICY: "SYNC_REPLICATION",
                names.ACKS_REQUIRED: 1,
                names.ACKS_RECEIVED: 0 if failure else 1,
                names.LAG_BYTES: 412,
            },
            events=tuple(events),
            failure=failure,
        ),
        SpanData("reply", context(_REPLY), _SERVER, SpanKind.INTERNAL, at(answered), at(answered + 220)),
    ]
    if sync_flush:
        spans.insert(
            2, SpanData("flush wait", context(_FLUSH), _SERVER, SpanKind.INTERNAL, at(150), at(150 + wait_us // 2))
        )
    return spans


def slave_spans(
    *,
    trace_id: int = TRACE_ID,
    message_id: str = MESSAGE_ID,
    start_ns: int = START_NS,
    wait_us: int = 7_000,
    clock_ahead_us: int = 0,
    slave: str = SLAVE,
) -> list[SpanData]:
    """What the slave made of the same send, on its own clock."""

    def at(microseconds: int) -> int:
        return start_ns + (microseconds + clock_ahead_us) * _US

    return [
        SpanData(
            "replica append",
            TraceContext(trace_id ^ 0xFFFF, 0x21, True),
            0,
            SpanKind.INTERNAL,
            at(320),
            at(wait_us),
            {
                names.MESSAGING_DESTINATION_NAME: TOPIC,
                names.MESSAGING_MESSAGE_ID: message_id,
                names.SLAVE: slave,
                names.PHYSICAL_OFFSET: 18_274_112,
            },
            links=(SpanLink(TraceContext(trace_id, _WAIT, True)),),
            events=(
                SpanEvent("received", at(320)),
                SpanEvent("appended", at(410)),
                SpanEvent("reported", at(wait_us)),
            ),
        )
    ]


def delivery_spans(
    *, trace_id: int = TRACE_ID, message_id: str = MESSAGE_ID, start_ns: int = START_NS, later_us: int = 40_000
) -> list[SpanData]:
    """Its delivery to a consumer and the acknowledgement, each a trace of its own that links to the send."""

    def at(microseconds: int) -> int:
        return start_ns + (later_us + microseconds) * _US

    link = SpanLink(TraceContext(trace_id, _SERVER, True), {names.MESSAGING_MESSAGE_ID: message_id})
    about: dict[str, str | int] = {
        names.MESSAGING_DESTINATION_NAME: TOPIC,
        names.MESSAGING_CONSUMER_GROUP_NAME: "billing",
        names.RETAINED_FOR: RetainedFor.SAMPLED,
    }
    receive = TraceContext(trace_id + 1, 0x31, True)
    return [
        SpanData(
            "apache.rocketmq.v2.MessagingService/ReceiveMessage",
            receive,
            0,
            SpanKind.SERVER,
            at(-30_000),
            at(0),
            {names.MESSAGING_OPERATION_NAME: "receive", **about},
            links=(link,),
        ),
        SpanData("poll wait", TraceContext(trace_id + 1, 0x32, True), 0x31, SpanKind.INTERNAL, at(-29_900), at(-300)),
        SpanData("lease", TraceContext(trace_id + 1, 0x33, True), 0x31, SpanKind.INTERNAL, at(-300), at(-40)),
        SpanData(
            "apache.rocketmq.v2.MessagingService/AckMessage",
            TraceContext(trace_id + 2, 0x41, True),
            0,
            SpanKind.SERVER,
            at(12_000),
            at(12_600),
            {names.MESSAGING_OPERATION_NAME: "settle", **about},
            links=(link,),
        ),
    ]
