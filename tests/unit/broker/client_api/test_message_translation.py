"""Messages between the client API and the store."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from support.manual_time import ManualTime
from tandemmq.broker.client_api.delivery_encoding import DeliveryEncoder
from tandemmq.broker.client_api.message_translation import Peer, TopicTranslation, peer_of
from tandemmq.broker.client_api.sent_message import SentMessage
from tandemmq.core.message.properties import InvalidProperty, decode_properties, java_hash
from tandemmq.core.message.record import Host, OutgoingMessage, encode_record
from tandemmq.core.message.stored_message import StoredMessage, read_stored_message
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

PEER = Host.parse("127.0.0.1", 58_340)
STORE = Host.parse("10.0.0.1", 10_911)


def sent_message(**system: object) -> definition.Message:
    properties = definition.SystemProperties(
        message_id="0102FC000000015FD40B13183F00000001",
        message_type=definition.NORMAL,
        body_encoding=definition.IDENTITY,
        born_host="192.0.2.2",
        **system,  # type: ignore[arg-type]
    )
    properties.born_timestamp.FromMilliseconds(1_795_259_967_000)
    return definition.Message(
        topic=definition.Resource(name="sample-normal"), system_properties=properties, body=b"grpc tag keys props"
    )


def translated(message: definition.Message, topic: str = "sample-normal") -> OutgoingMessage:
    translation = TopicTranslation(topic, "DefaultCluster")
    return translation.outgoing(SentMessage.of(message), 1, Peer(PEER), ManualTime(wall_ms=1_795_259_967_508))


def stored(message: OutgoingMessage) -> StoredMessage:
    raw = encode_record(
        message, queue_offset=7, physical_offset=4_096, store_timestamp_ms=1_795_259_967_508, store_host=STORE
    )
    return read_stored_message(memoryview(raw), 0, len(raw), 4_096)


def delivered(message: StoredMessage) -> definition.Message:
    topic = definition.Resource(name="sample-normal", resource_namespace="ns")
    encoded = DeliveryEncoder(topic=topic, invisible_ms=10_500).encode(message, handle="handle", attempt=2)
    return pb.ReceiveMessageResponse.FromString(encoded).message


# Property strings of records that RocketMQ 5.5.0 stored for its gRPC client.
def test_properties_are_those_rocketmq_stores_in_its_order() -> None:
    message = sent_message(tag="GTag", keys=["gkey"])
    message.user_properties.update({"color": "blue", "n": "1"})
    assert translated(message).properties == (
        b"MSG_REGION\x01DefaultRegion\x02UNIQ_KEY\x010102FC000000015FD40B13183F00000001\x02"
        b"CLUSTER\x01DefaultCluster\x02PGROUP\x01sample-normal\x02RECONSUME_TIME\x010\x02TAGS\x01GTag\x02"
        b"color\x01blue\x02__BORNHOST\x01192.0.2.2\x02BORN_TIMESTAMP\x011795259967000\x02KEYS\x01gkey\x02"
        b"TRACE_ON\x01true\x02n\x011\x02"
    )


def test_fifo_properties_are_those_rocketmq_stores_in_its_order() -> None:
    message = sent_message(message_group="grp0")
    assert translated(message, "sample-fifo").properties == (
        b"MSG_REGION\x01DefaultRegion\x02__SHARDINGKEY\x01grp0\x02"
        b"UNIQ_KEY\x010102FC000000015FD40B13183F00000001\x02CLUSTER\x01DefaultCluster\x02PGROUP\x01sample-fifo\x02"
        b"RECONSUME_TIME\x010\x02__BORNHOST\x01192.0.2.2\x02BORN_TIMESTAMP\x011795259967000\x02TRACE_ON\x01true\x02"
    )


def test_tag_and_keys_are_what_the_message_is_found_by() -> None:
    outgoing = translated(sent_message(tag="GTag", keys=["one", "two words"]))
    assert outgoing.tags_code == java_hash("GTag")
    assert outgoing.tag == "GTag"
    assert outgoing.index_keys == ("0102FC000000015FD40B13183F00000001", "one", "two", "words")
    assert decode_properties(outgoing.properties)["KEYS"] == "one two words"


def test_birth_is_the_clients_time_and_the_connections_address() -> None:
    outgoing = translated(sent_message())
    assert outgoing.born_timestamp_ms == 1_795_259_967_000
    assert outgoing.born_host == PEER


def test_missing_birth_is_filled_in() -> None:
    message = sent_message()
    message.system_properties.ClearField("born_timestamp")
    message.system_properties.ClearField("born_host")
    outgoing = translated(message)
    assert outgoing.born_timestamp_ms == 1_795_259_967_508
    assert decode_properties(outgoing.properties)["__BORNHOST"] == "127.0.0.1"


def test_separator_hidden_in_the_message_id_cannot_forge_a_property() -> None:
    message = sent_message()
    message.system_properties.message_id = "id\x02REAL_TOPIC\x01other"
    with pytest.raises(InvalidProperty):
        translated(message)


def test_delivery_returns_what_was_sent() -> None:
    message = sent_message(tag="GTag", keys=["one", "two"], message_group="g", trace_context="00-trace")
    message.user_properties.update({"color": "grün"})
    result = delivered(stored(translated(message)))
    system = result.system_properties
    assert result.body == message.body
    assert dict(result.user_properties) == {"color": "grün"}
    assert (system.tag, list(system.keys)) == ("GTag", ["one", "two"])
    assert (system.message_group, system.message_type) == ("g", definition.FIFO)
    assert system.trace_context == "00-trace"
    assert system.message_id == message.system_properties.message_id
    assert system.born_timestamp == message.system_properties.born_timestamp
    assert system.born_host == "192.0.2.2"


def test_delivery_describes_itself() -> None:
    result = delivered(stored(translated(sent_message())))
    system = result.system_properties
    assert result.topic == definition.Resource(name="sample-normal", resource_namespace="ns")
    assert system.body_digest.type == definition.MD5
    assert system.body_digest.checksum == "1675D7FEBFFF062A9E313C8978C305AE"
    assert system.body_encoding == definition.IDENTITY
    assert system.message_type == definition.NORMAL
    assert system.store_host == "10.0.0.1:10911"
    assert system.store_timestamp.ToMilliseconds() == 1_795_259_967_508
    assert (system.queue_id, system.queue_offset) == (1, 7)
    assert (system.receipt_handle, system.delivery_attempt) == ("handle", 2)
    assert system.invisible_duration == Duration(seconds=10, nanos=500_000_000)
    assert not system.HasField("tag")
    assert not system.HasField("message_group")


def test_gzip_body_keeps_its_encoding() -> None:
    message = sent_message()
    message.system_properties.body_encoding = definition.GZIP
    assert delivered(stored(translated(message))).system_properties.body_encoding == definition.GZIP


def test_record_without_unique_key_is_named_by_its_place() -> None:
    outgoing = translated(sent_message())
    outgoing.properties = b""
    assert delivered(stored(outgoing)).system_properties.message_id == "0A00000100002A9F0000000000001000"


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.1.2.3:4567", Host(bytes([10, 1, 2, 3]), 4_567)),
        ("ipv6:%5B::1%5D:4567", Host(bytes(15) + b"\x01", 4_567)),
        ("ipv6:[fe80::1%25eth0]:4567", Host(b"\xfe\x80" + bytes(13) + b"\x01", 4_567)),
        ("unix:/run/broker.sock", Host(bytes(4), 0)),
    ],
)
def test_peer_becomes_the_born_host(peer: str, host: Host) -> None:
    assert peer_of(peer).host == host
