"""What a message must look like: each rule at its border."""

from __future__ import annotations

import hashlib
import zlib

import pytest

from support.api_requests import message
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from tandemmq.broker.client_api.sent_message import SentMessage
from tandemmq.broker.client_api.validation import (
    Outcome,
    check_lease,
    check_message,
    check_settings_size,
    declared_type,
    parsed_filter,
)
from tandemmq.core.delivery.sql_filter import SqlFilter
from tandemmq.core.delivery.subscription import EVERY_TAG, TagFilter
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition

Code = definition.Code
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def code_of(checked: definition.Message) -> int:
    outcome = check_message(SentMessage.of(checked), 100, 24 * HOUR_MS, ManualTime(wall_ms=NOW_MS))
    return Code.OK if outcome is None else outcome.code


def with_property(name: str, value: str) -> definition.Message:
    checked = message()
    checked.user_properties[name] = value
    return checked


def with_properties_of(total_bytes: int) -> definition.Message:
    checked = message(tag="tag", keys=["key"])
    checked.user_properties["name"] = "v" * (total_bytes - len("tag" + "key" + "name"))
    return checked


@pytest.mark.parametrize(
    ("checked", "code"),
    [
        (message(body=b"x" * 100), Code.OK),
        (message(body=b"x" * 101), Code.MESSAGE_BODY_TOO_LARGE),
        (message(body=b""), Code.MESSAGE_BODY_EMPTY),
        (message(message_id=" "), Code.ILLEGAL_MESSAGE_ID),
        (message(tag="a b"), Code.OK),
        (message(tag="  "), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="a\x7f"), Code.ILLEGAL_MESSAGE_TAG),
        (message(keys=["a", "b c"]), Code.OK),
        (message(keys=["a", " "]), Code.ILLEGAL_MESSAGE_KEY),
        (message(keys=["a\n"]), Code.ILLEGAL_MESSAGE_KEY),
        (message(message_group="ü" * 31 + "x"), Code.OK),
        (message(message_group="ü" * 32), Code.ILLEGAL_MESSAGE_GROUP),
        (message(message_group=" "), Code.ILLEGAL_MESSAGE_GROUP),
        (message(message_group="a\x00"), Code.ILLEGAL_MESSAGE_GROUP),
        (with_property("color", "blue"), Code.OK),
        (with_property("KEYS", "a"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_property("__RMQ.TRANSIENT.x", "a"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_property("a\x01", "b"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_property("a", "b\x85"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_properties_of(16_384), Code.OK),
        (with_properties_of(16_385), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)
def test_message_rules(checked: definition.Message, code: int) -> None:
    assert code_of(checked) == code


@pytest.mark.parametrize(("count", "code"), [(128, Code.OK), (129, Code.MESSAGE_PROPERTIES_TOO_LARGE)])
def test_number_of_properties_is_limited(count: int, code: int) -> None:
    checked = message()
    checked.user_properties.update({f"p{number}": "v" for number in range(count)})
    assert code_of(checked) == code


@pytest.mark.parametrize(
    ("delay_ms", "code"), [(-300_000, Code.OK), (24 * HOUR_MS, Code.OK), (25 * HOUR_MS, Code.ILLEGAL_DELIVERY_TIME)]
)
def test_delivery_time_is_limited(delay_ms: int, code: int) -> None:
    checked = message()
    checked.system_properties.delivery_timestamp.FromMilliseconds(NOW_MS + delay_ms)
    assert code_of(checked) == code


@pytest.mark.parametrize(("recovery_ms", "code"), [(HOUR_MS, Code.OK), (HOUR_MS + 1, Code.BAD_REQUEST)])
def test_transaction_recovery_time_is_limited(recovery_ms: int, code: int) -> None:
    checked = message()
    checked.system_properties.orphaned_transaction_recovery_duration.FromMilliseconds(recovery_ms)
    assert code_of(checked) == code


@pytest.mark.parametrize(
    ("kind", "checksum"),
    [
        (definition.CRC32, f"{zlib.crc32(b'hello'):X}"),
        (definition.CRC32, f"{zlib.crc32(b'hello'):08X}"),
        (definition.MD5, hashlib.md5(b"hello").hexdigest().upper()),
        (definition.SHA1, hashlib.sha1(b"hello").hexdigest()),
    ],
)
def test_body_digest_must_match(kind: definition.DigestType, checksum: str) -> None:
    intact, damaged = message(), message(body=b"hallo")
    for checked in (intact, damaged):
        checked.system_properties.body_digest.CopyFrom(definition.Digest(type=kind, checksum=checksum))
    assert code_of(intact) == Code.OK
    assert code_of(damaged) == Code.MESSAGE_CORRUPTED


def test_kind_follows_from_what_the_message_carries() -> None:
    delayed, both, prioritised = message(), message(message_group="g"), message()
    delayed.system_properties.delivery_timestamp.FromMilliseconds(NOW_MS)
    both.system_properties.message_type = definition.TRANSACTION
    prioritised.system_properties.message_type = definition.PRIORITY
    kinds = [
        declared_type(SentMessage.of(checked))
        for checked in (message(), message(message_group="g"), delayed, both, prioritised)
    ]
    assert kinds == [
        definition.NORMAL,
        definition.FIFO,
        definition.DELAY,
        definition.TRANSACTION,
        definition.PRIORITY,
    ]


@pytest.mark.parametrize(
    ("invisible_ms", "allowed"), [(9_999, False), (10_000, True), (12 * HOUR_MS, True), (13 * HOUR_MS, False)]
)
def test_lease_of_a_receive(invisible_ms: int, allowed: bool) -> None:
    assert (check_lease(invisible_ms) is None) is allowed


@pytest.mark.parametrize(("invisible_ms", "allowed"), [(-1, False), (0, True), (12 * HOUR_MS + 1, False)])
def test_changed_lease(invisible_ms: int, allowed: bool) -> None:
    assert (check_lease(invisible_ms, min_ms=0) is None) is allowed


def test_filters() -> None:
    time = ManualTime()
    broker = BrokerAssembly(clock=time, timers=time)

    def parsed(expression: str, kind: definition.FilterType = definition.TAG) -> object:
        return parsed_filter(broker, definition.FilterExpression(type=kind, expression=expression), FakeCall())

    assert parsed("*") == parsed("") == EVERY_TAG
    assert isinstance(parsed("a || b"), TagFilter)
    assert isinstance(parsed("x > 3", definition.SQL), SqlFilter)
    for refused in (parsed("a | b"), parsed("", definition.SQL), parsed("x >", definition.SQL)):
        assert getattr(refused, "code", None) == Code.ILLEGAL_FILTER_EXPRESSION
    assert "at character 3: '|'" in getattr(parsed("x | y AND", definition.SQL), "text", "")


def _consumer(expressions: list[tuple[int, str]]) -> definition.Settings:
    settings = definition.Settings()
    for kind, text in expressions:
        settings.subscription.subscriptions.add(
            topic=definition.Resource(name="orders"),
            expression=definition.FilterExpression(type=kind, expression=text),  # type: ignore[arg-type]
        )
    return settings


@pytest.mark.parametrize(
    ("expressions", "what"),
    [
        ([(definition.TAG, "x" * 65_536)] * 2, ""),
        ([(definition.TAG, "x" * 65_536)] * 2 + [(definition.TAG, "x")], "131073 characters of filters"),
        ([(definition.SQL, f"a > {number}") for number in range(256)], ""),
        ([(definition.SQL, f"a > {number}") for number in range(257)], "257 SQL92 filters"),
        ([(definition.SQL, "a > 1")] * 5_000, ""),
        ([(definition.TAG, "")] * 16_385, "16385 topics"),
    ],
)
def test_settings_say_no_more_than_the_loop_looks_at_in_a_moment(expressions: list[tuple[int, str]], what: str) -> None:
    refused = check_settings_size(_consumer(expressions))
    assert (refused.text if refused else "").startswith(f"settings: {what}, the limit is" if what else "")
    assert (refused is None) is (what == "")


def test_a_filter_by_tags_has_an_end() -> None:
    time = ManualTime()
    broker = BrokerAssembly(clock=time, timers=time)
    for length, is_refused in ((65_536, False), (65_537, True)):
        expression = definition.FilterExpression(type=definition.TAG, expression="t" * length)
        parsed = parsed_filter(broker, expression, FakeCall())
        assert isinstance(parsed, Outcome) is is_refused
