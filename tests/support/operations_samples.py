"""What a cluster holds in tests of pages, API and command line: ordinary things, and awkward ones of each kind."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Final

from tandemmq.admin.operations.values import (
    BrokerTopic,
    Client,
    EventLine,
    Extent,
    GroupSummary,
    Message,
    Progress,
    Setting,
    TopicSummary,
)

NOW_MS: Final = 1_795_320_000_000
"""2026-11-22, the moment the samples are made for."""

MASTERS: Final = ("broker-a", "broker-b")
BROKERS: Final = ("broker-a:0", "broker-a:1", "broker-b:0", "broker-b:1")
LONGEST_NAME: Final = "a-name-of-127-characters-" + "x" * 102
READ_TOPICS: Final = ("orders", "payments")
RECEIPTS: Final = "receipts|eu%2024"
"""A topic whose name needs quoting in an address."""


def _topic(
    name: str, category: str = "topic", *, queues: int = 4, kind: str = "NORMAL", on: tuple[str, ...] = MASTERS
) -> TopicSummary:
    return TopicSummary(name, category, tuple(BrokerTopic(broker, queues, queues, 6, kind) for broker in on))


TOPICS: Final = {
    topic.name: topic
    for topic in (
        _topic("orders"),
        _topic("payments", kind="FIFO", queues=2),
        _topic("reminders", kind="DELAY"),
        # Nothing was ever sent to it.
        _topic("never-used", queues=8),
        _topic("only-on-b", on=("broker-b",)),
        # Its masters disagree: a change reached only one of them.
        replace(
            _topic("half-changed"),
            brokers=(BrokerTopic("broker-a", 16, 8, 6, "NORMAL"), BrokerTopic("broker-b", 4, 4, 4, "NORMAL")),
        ),
        _topic(RECEIPTS),
        _topic(LONGEST_NAME, queues=1),
        _topic("%RETRY%billing", "retry", queues=1),
        _topic("%DLQ%billing", "dead letter", queues=1),
        _topic("SCHEDULE_TOPIC_XXXX", "system", queues=18),
        _topic("RMQ_SYS_TRANS_HALF_TOPIC", "system", queues=1),
        _topic("DefaultCluster", "system", queues=16),
    )
}

GROUPS: Final = {
    group.name: group
    for group in (
        GroupSummary("billing", False, 16, True, 2),
        GroupSummary("shipping", True, 3, False, 0),
        # Has never read anything.
        GroupSummary("newcomer", False, 16, True, 0),
        GroupSummary("audit|eu%1", False, 16, True, 0),
    )
}


def bulk_topics(count: int) -> dict[str, TopicSummary]:
    """As many topics more."""
    return {name: _topic(name) for name in (f"bulk-{number:05}" for number in range(count))}


def messages(now_ms: int = NOW_MS) -> list[Message]:
    """All messages of the cluster, oldest first. `orders` has every kind of body."""
    bodies = [
        b'{"order": 17, "items": [{"sku": "A-1", "count": 2}], "note": "fragile"}',
        b"plain text, two lines\nof it",
        b"",
        b"\x00\x01\xfe\xffbinary",
        b"<script>alert('from a message')</script>",
        "Grüße, 你好, \u202eright to left".encode(),
        b"0123456789abcdef" * 8_192,
        b'{"order": 18, "state": "paid"}',
    ]
    found = [
        _message("orders", place, body, now_ms - 60_000 * (len(bodies) * 4 - place))
        for place, body in enumerate(bodies * 4)
    ]
    found[9] = replace(found[9], compression="zlib", sys_flag=1, body_size=len(zlib.compress(found[9].body)))
    found[10] = replace(found[10], compression="lz4", body=b"", body_problem="the compressed body is damaged")
    found += [_message("payments", place, b'{"paid": true}', now_ms - 9_000 + place) for place in range(6)]
    found += [
        replace(
            _message("%DLQ%billing", place, b'{"order": 3}', now_ms - 3_600_000 + place * 1_000),
            reconsume_times=16,
            properties={"REAL_TOPIC": "orders", "DLQ_ORIGIN_TOPIC": "orders", "KEYS": f"order-{place}"},
        )
        for place in range(3)
    ]
    return sorted(found, key=lambda message: (message.store_ms, message.physical_offset))


def _message(topic: str, place: int, body: bytes, store_ms: int) -> Message:
    queues = 1 if topic.startswith("%") else 2
    broker = MASTERS[place % len(MASTERS)]
    place_in_broker = place // len(MASTERS)
    message_id = f"01AABBCCDDEEFF{zlib.crc32(topic.encode()) & 0xFFFF:04X}0B27A3C0{place:08X}"
    tag = ("created", "paid", "")[place % 3]
    keys = (f"order-{place}", "eu") if place % 4 else ()
    return Message(
        topic=topic,
        broker_name=broker,
        queue_id=place_in_broker % queues,
        queue_offset=place_in_broker // queues,
        physical_offset=zlib.crc32(topic.encode()) % 1_000 * 100_000 + place * 1_000,
        record_bytes=len(body) + 220,
        message_id=message_id,
        offset_message_id=f"7F00000100002A9F{place * 1_000:016X}",
        tag=tag,
        keys=keys,
        born_ms=store_ms - 3,
        born_host="10.1.2.3:50112",
        store_ms=store_ms,
        store_host="10.1.0.7:10911",
        reconsume_times=0,
        body_size=len(body),
        body=body,
        properties={"UNIQ_KEY": message_id, "TAGS": tag, "KEYS": " ".join(keys), "tenant": "<b>acme</b> & co"},
        body_crc=zlib.crc32(body) & 0x7FFFFFFF,
    )


def progress(extents: list[Extent], topic: str) -> list[Progress]:
    """How far `billing` and `shipping` are in a topic of these extents."""
    if topic not in READ_TOPICS:
        return []
    return [
        Progress(
            group,
            topic,
            extent.broker_name,
            extent.queue_id,
            max(extent.min_offset, extent.max_offset - behind),
            extent.max_offset,
            inflight=min(behind, 2) if group == "billing" else 0,
            oldest_age_ms=180_000 if behind and extent.held else 0,
        )
        for group, behind in (("billing", 3), ("shipping", 0))
        for extent in extents
    ]


def clients() -> list[Client]:
    """Consumers and a producer; one has said nothing of itself yet."""
    return [
        Client(
            "billing-7d9f@4711@1", "SIMPLE_CONSUMER", "billing", "JAVA", "5.0.7", "10.1.2.9:40112", 800,
            {"orders": "created || paid"}, ("broker-a:0", "broker-b:0"),
        ),
        Client(
            "billing-7d9f@4712@1", "PUSH_CONSUMER", "billing", "GO", "5.1.0", "10.1.2.10:40113", 1_200,
            {"orders": "*", "payments": "*"}, ("broker-a:0",),
        ),
        Client("shop@1@1", "PRODUCER", "", "PYTHON", "0.1.0", "[fd00::7]:40114", 90, {"orders": ""}, ("broker-b:0",)),
        Client("silent@9", "", "", "", "", "10.1.2.11:40115", 61_000, {}, ("broker-a:0",)),
    ]  # fmt: skip


def settings(broker: str) -> list[Setting]:
    """A broker's settings: defaults, configured ones, one changed, one secret."""
    return [
        Setting("brokerName", broker.partition(":")[0], "broker-a", "configured", False, "Name of the broker group."),
        Setting("fileReservedTime", "48", "72", "configured", True, "Hours before a file is deleted."),
        Setting("traceSampleRate", "0.01", "0.01", "default", True, "Share of sends that are traced."),
        Setting("maxMessageSize", "8388608", "4194304", "changed", True, "Largest message in bytes."),
        Setting("flushDiskType", "ASYNC_FLUSH", "ASYNC_FLUSH", "default", False, "When a send is on disk."),
        Setting("haToken", "********", "", "configured", False, "What slaves prove themselves with."),
    ]


def events(now_ms: int = NOW_MS) -> list[EventLine]:
    """Newest first."""
    return [
        EventLine(now_ms - 5_000, "admin", "info", "operator_change", {"who": "local", "what": "put_topic orders"}),
        EventLine(now_ms - 60_000, "broker-a:0", "info", "slave_connected", {"slave": "10.1.0.8:40000"}),
        EventLine(now_ms - 90_000, "broker-a:0", "warning", "slave_lost", {"reason": "timed out", "lag": "3120"}),
        EventLine(now_ms - 600_000, "broker-b:1", "error", "master_unreachable", {"error": "<refused> & gone"}),
    ]
