"""What a request must look like, checked in RocketMQ's order before anything is done for it.

Each check returns None, or the `Outcome` to refuse the request with; `a or b or c` therefore reads as a list of rules.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tandemmq.broker.client_api.message_translation import is_internal
from tandemmq.broker.client_api.sent_message import NO_PRIORITY, SentMessage
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.lease_terms import MAX_INVISIBLE_MS, MIN_INVISIBLE_MS
from tandemmq.core.delivery.sql_filter import ENTRY_CHARACTERS, BadSql, known_sql, parse_sql
from tandemmq.core.delivery.subscription import MessageFilter, TagFilter
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig, SubscriptionGroupTable
from tandemmq.core.metadata.topic_table import group_name_problem, topic_name_problem
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.service.rpc import CLIENT_ID_CHARACTERS_MAX, CLIENT_ID_HEADER, Call

if TYPE_CHECKING:
    from tandemmq.broker.client_api.services import BrokerServices


# What the broker decided, as a client of RocketMQ's API is told: the one table of codes.
#
# Business outcomes travel in `Status`, while the gRPC call itself ends OK; clients look for nothing else.

Code = definition.Code


class Outcome(NamedTuple):
    """A code of the client API and the text that goes with it."""

    code: definition.Code
    text: str
    # Whether the same request may succeed later or at another broker group. For readers and metrics: on the wire the
    # code alone tells.
    retryable: bool = False
    # The answer is held back for so long: clients differ in how long they wait by themselves, and some do not.
    pause_ms: int = 0


OK: Final = Outcome(Code.OK, "OK")

# "Stored" in the text of a failure is a promise to the operator: the message is in the CommitLog and may be delivered,
# the sender was only not assured of all the copies it asked for.
PUT_OUTCOMES: Final[Mapping[PutStatus, Outcome]] = MappingProxyType(
    {
        PutStatus.PUT_OK: OK,
        PutStatus.FLUSH_DISK_TIMEOUT: Outcome(
            Code.MASTER_PERSISTENCE_TIMEOUT, "stored, but the flush to disk did not finish in time", retryable=True
        ),
        PutStatus.FLUSH_SLAVE_TIMEOUT: Outcome(
            Code.SLAVE_PERSISTENCE_TIMEOUT, "stored, but too few slaves confirmed it in time", retryable=True
        ),
        PutStatus.SLAVE_NOT_AVAILABLE: Outcome(
            Code.HA_NOT_AVAILABLE, "stored on the master only: too few slaves are in sync", retryable=True
        ),
        PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: Outcome(
            Code.HA_NOT_AVAILABLE, "not stored: fewer members in sync than inSyncReplicas asks for", retryable=True
        ),
        PutStatus.SERVICE_NOT_AVAILABLE: Outcome(
            Code.INTERNAL_SERVER_ERROR,
            "not stored: the broker takes no messages now (stopping, recovering, or its disk failed)",
            retryable=True,
        ),
        PutStatus.DISK_FULL: Outcome(
            Code.INTERNAL_SERVER_ERROR,
            "not stored: the broker's disk is full; `tandemmq status` says what its files are kept for",
            retryable=True,
        ),
        PutStatus.CREATE_MAPPED_FILE_FAILED: Outcome(
            Code.INTERNAL_SERVER_ERROR, "not stored: no room for another CommitLog file", retryable=True
        ),
        PutStatus.MESSAGE_ILLEGAL: Outcome(
            Code.PAYLOAD_TOO_LARGE, "not stored: the message, or the request's messages together, are too large"
        ),
        PutStatus.PROPERTIES_SIZE_EXCEEDED: Outcome(
            Code.MESSAGE_PROPERTIES_TOO_LARGE, "not stored: the properties need more than 32767 bytes"
        ),
        PutStatus.OS_PAGE_CACHE_BUSY: Outcome(
            Code.TOO_MANY_REQUESTS, "not stored: the log cannot keep up", retryable=True
        ),
        PutStatus.UNKNOWN_ERROR: Outcome(Code.INTERNAL_SERVER_ERROR, "not stored: unexpected failure", retryable=True),
    }
)

_OK_STATUS: Final = definition.Status(code=Code.OK, message="OK")


def ok_status() -> definition.Status:
    """The status of success. Shared: for building responses, which copy it; never to be changed."""
    return _OK_STATUS


def status_of(outcome: Outcome) -> definition.Status:
    return _OK_STATUS if outcome is OK else definition.Status(code=outcome.code, message=outcome.text)


def common_status(outcomes: Iterable[Outcome]) -> definition.Status:
    """The overall status of a request with several entries: their common code, or MULTIPLE_RESULTS."""
    first: Outcome | None = None
    for outcome in outcomes:
        if first is None:
            first = outcome
        elif outcome.code != first.code:
            return definition.Status(code=Code.MULTIPLE_RESULTS, message="the entries have different results")
    assert first is not None, "a response has at least one entry"
    return status_of(first)


def check_namespace(namespace: str) -> Outcome | None:
    """Of a topic that a receive waits for: it is kept, and repeated with each message."""
    if len(namespace) <= _NAMESPACE_CHARACTERS_MAX:
        return None
    text = f"topic: its namespace has {len(namespace)} characters, the limit is {_NAMESPACE_CHARACTERS_MAX}"
    return Outcome(Code.BAD_REQUEST, text)


_NAMESPACE_CHARACTERS_MAX: Final = 512


def check_settings_size(settings: definition.Settings) -> Outcome | None:
    """Before anything else is looked at."""
    subscriptions = settings.subscription.subscriptions
    count = max(len(settings.publishing.topics), len(subscriptions))
    if count > SETTINGS_TOPICS_MAX:
        return _too_much_said(count, "topics", SETTINGS_TOPICS_MAX)
    expressions = [entry.expression for entry in subscriptions]
    count = sum([len(one.expression) for one in expressions])
    if count > SETTINGS_CHARACTERS_MAX:
        return _too_much_said(count, "characters of filters", SETTINGS_CHARACTERS_MAX)
    count = len({one.expression for one in expressions if one.type == definition.SQL})
    return _too_much_said(count, "SQL92 filters", SETTINGS_SQL_MAX) if count > SETTINGS_SQL_MAX else None


def _too_much_said(count: int, what: str, limit: int) -> Outcome:
    return Outcome(Code.BAD_REQUEST, f"settings: {count} {what}, the limit is {limit}; use more clients")


SETTINGS_TOPICS_MAX: Final = 16_384
"""That a client publishes or subscribes to. Each takes two bytes of a request, and is looked at by the loop."""
SETTINGS_CHARACTERS_MAX: Final = 128 << 10
SETTINGS_SQL_MAX: Final = 256
TAGS_CHARACTERS_MAX: Final = 64 << 10
"""Of a filter by tags; the loop looks at each of them."""
_PROPERTY_COUNT_MAX: Final = 128
_PROPERTY_BYTES_MAX: Final = 16_384
_MESSAGE_GROUP_BYTES_MAX: Final = 63
_RECOVERY_MAX_MS: Final = 3_600_000

# Kinds of messages: a module's global is cheaper than an attribute of protobuf's module.
_NORMAL: Final[int] = definition.NORMAL
_FIFO: Final[int] = definition.FIFO
_PRIORITY: Final[int] = definition.PRIORITY
_DELAY: Final[int] = definition.DELAY
_LITE: Final[int] = definition.LITE
_DECLARED_TYPES: Final[frozenset[int]] = frozenset((definition.TRANSACTION, definition.LITE, definition.PRIORITY))

# Tags, and names of properties, that were found good, as far as they are short: most messages have one of a few. Each
# forgets everything when it is full.
_GOOD_TAGS_MAX: Final = 4_096
_GOOD_NAMES_MAX: Final = 4_096
_GOOD_CHARACTERS_MAX: Final = 128
_good_tags: Final[set[str]] = set()
_good_names: Final[set[str]] = set()

# Java's Character.isISOControl.
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_client_id(call: Call) -> Outcome | None:
    """Every client names itself; the id is opaque."""
    client_id = call.header(CLIENT_ID_HEADER)
    if 0 < len(client_id) <= CLIENT_ID_CHARACTERS_MAX and not client_id.isspace():
        return None
    if len(client_id) > CLIENT_ID_CHARACTERS_MAX:
        return Outcome(
            Code.BAD_REQUEST,
            f"{CLIENT_ID_HEADER}: {len(client_id)} characters; use {CLIENT_ID_CHARACTERS_MAX} at most",
        )
    return Outcome(Code.CLIENT_ID_REQUIRED, f"the request has no {CLIENT_ID_HEADER} header")


def check_topic(topic: str) -> Outcome | None:
    """A topic's name, whether or not there is such a topic."""
    problem = topic_name_problem(topic)
    return None if problem is None else Outcome(Code.ILLEGAL_TOPIC, problem)


def check_group(group: str) -> Outcome | None:
    """A consumer group's name."""
    problem = group_name_problem(group)
    return None if problem is None else Outcome(Code.ILLEGAL_CONSUMER_GROUP, problem)


def admit_group(services: BrokerServices, group: str, call: Call) -> Outcome | None:
    """Lets a group consume; creates it when it is new and the settings say so. A new one is not durable yet."""
    config = services.groups.get(group)
    if config is None:
        if not services.options.auto_create_subscription_group:
            return Outcome(
                Code.CONSUMER_GROUP_NOT_FOUND,
                f"consumer group {group} does not exist; create it, or set autoCreateSubscriptionGroup=true",
            )
        refusal = services.create_group(group, call)
        if refusal is not None:
            return Outcome(Code.TOO_MANY_REQUESTS, f"consumer group {group} was not created: {refusal}", retryable=True)
        return None
    return _disabled(config)


def admitted_still(groups: SubscriptionGroupTable, group: str) -> Outcome | None:
    """Why a group that was let in when its receive began to wait may not consume any more; None: it may."""
    config = groups.get(group)
    if config is None:
        return Outcome(Code.CONSUMER_GROUP_NOT_FOUND, f"consumer group {group} was removed meanwhile")
    return _disabled(config)


def _disabled(config: SubscriptionGroupConfig) -> Outcome | None:
    if config.consume_enable:
        return None
    return Outcome(Code.FORBIDDEN, f"consumer group {config.group_name} is disabled (consumeEnable=false)")


class NewFilters:
    """Long filters of one user, or address, that were not read lately: the longest takes the event loop 20 ms, and who
    named fifty others a second would have all of it. Event loop only."""

    def __init__(self) -> None:
        # Until when each has paid for what was read of it, in monotonic ms; who was heard of last at the end.
        self._paid_until_ms: OrderedDict[str, float] = OrderedDict()
        # Long ones by tag, the one used last at the end.
        self._tags: OrderedDict[str, TagFilter] = OrderedDict()
        self._tags_bytes = 0

    def refusal(self, characters: int, whose: str, *, now_ms: int) -> Outcome | None:
        """Why they are not read; None: they are, and counted."""
        paid_until_ms = max(float(now_ms), self._paid_until_ms.get(whose, 0.0))
        if paid_until_ms - now_ms > _NEW_FILTERS_AHEAD_MS:
            return Outcome(
                Code.TOO_MANY_REQUESTS,
                f"filters: {whose} names more than {_NEW_FILTER_CHARACTERS_PER_S} characters a second of "
                "filters that were not used lately; use the same filter again",
                retryable=True,
            )
        self._paid_until_ms[whose] = paid_until_ms + characters * 1_000 / _NEW_FILTER_CHARACTERS_PER_S
        self._paid_until_ms.move_to_end(whose)
        if len(self._paid_until_ms) > _NEW_FILTERS_HOLDERS_MAX:
            self._paid_until_ms.popitem(last=False)
        return None

    def known_tags(self, text: str) -> TagFilter | None:
        found = self._tags.get(text)
        if found is not None:
            self._tags.move_to_end(text)
        return found

    def remember_tags(self, text: str, found: TagFilter) -> None:
        self._tags[text] = found
        self._tags_bytes += _bytes_of(text, found)
        while self._tags_bytes > _LONG_FILTERS_BYTES_MAX:
            self._tags_bytes -= _bytes_of(*self._tags.popitem(last=False))


def _bytes_of(text: str, found: TagFilter) -> int:
    return len(text) + _TAG_BYTES * len(found.tags or ())


_NEW_FILTER_CHARACTERS_PER_S: Final = 16 << 10
"""Less than a tenth of the event loop."""
_NEW_FILTERS_AHEAD_MS: Final = 8_000
"""All filters of one client's settings at once."""
_NEW_FILTERS_HOLDERS_MAX: Final = 10_000
_LONG_FILTERS_BYTES_MAX: Final = 64 << 20
"""Ten thousand of twenty tags each."""
_TAG_BYTES: Final = 300
"""Measured: the tag, its code, and their places in two sets."""


def parsed_filter(
    services: BrokerServices, expression: definition.FilterExpression, call: Call
) -> MessageFilter | Outcome:
    if expression.type == definition.SQL:
        parsed = known_sql(expression.expression)
        if parsed is None:
            characters, now_ms = len(expression.expression) + ENTRY_CHARACTERS, services.clock.monotonic_ms()
            if refused := services.new_filters.refusal(characters, services.whose(call), now_ms=now_ms):
                return refused
            parsed = parse_sql(expression.expression)
        if isinstance(parsed, BadSql):
            return Outcome(
                Code.ILLEGAL_FILTER_EXPRESSION, f"SQL92 filter {expression.expression[:200]!r}: {parsed.problem}"
            )
        return parsed
    text = expression.expression
    tag_filter = TagFilter.parse(text) if len(text) <= _SHORT_TAGS_CHARACTERS else _long_tags(services, text, call)
    if isinstance(tag_filter, Outcome):
        return tag_filter
    if tag_filter is None:
        return Outcome(
            Code.ILLEGAL_FILTER_EXPRESSION,
            f"filter {expression.expression[:200]!r} is neither * nor tags joined by ||",
        )
    return tag_filter


def _long_tags(services: BrokerServices, text: str, call: Call) -> TagFilter | Outcome | None:
    """Of twenty thousand tags a filter is megabytes, and each receive that waits has one: those of one text share it,
    and new ones come as slowly as SQL92's."""
    if len(text) > TAGS_CHARACTERS_MAX:
        return Outcome(
            Code.ILLEGAL_FILTER_EXPRESSION, f"filter: {len(text)} characters, the limit is {TAGS_CHARACTERS_MAX}"
        )
    filters = services.new_filters
    found = filters.known_tags(text)
    if found is None:
        if refused := filters.refusal(len(text), services.whose(call), now_ms=services.clock.monotonic_ms()):
            return refused
        found = TagFilter.parse(text)
        if found is not None:
            filters.remember_tags(text, found)
    return found


_SHORT_TAGS_CHARACTERS: Final = 256


def check_message(sent: SentMessage, max_body_bytes: int, max_delay_ms: int, clock: Clock) -> Outcome | None:
    """One message of a send, apart from its topic: what RocketMQ's GrpcValidator and SendMessageActivity check."""
    body_bytes = len(sent.body)
    if body_bytes == 0 or body_bytes > max_body_bytes:
        return _check_body(sent.body, max_body_bytes)
    if sent.has_digest and (refused := check_body_digest(sent.digest_type, sent.digest_checksum, sent.body)):
        return refused
    if refused := _check_properties(sent):
        return refused
    message_id = sent.message_id
    if not message_id or message_id.isspace():
        return Outcome(Code.ILLEGAL_MESSAGE_ID, "the message id is blank")
    if sent.delivery_timestamp is not None and (
        refused := _check_delay(sent.delivery_timestamp, clock.wall_ms(), max_delay_ms)
    ):
        return refused
    if sent.recovery_duration is not None and (refused := _check_recovery(sent.recovery_duration)):
        return refused
    return _check_message_group(sent.message_group) if sent.message_group else None


def declared_type(sent: SentMessage) -> int:
    """The kind of message, from what it carries; what it declares counts for the kinds that carry nothing."""
    message_type = sent.message_type
    if message_type > _FIFO and message_type in _DECLARED_TYPES:
        return message_type
    if sent.delivery_timestamp is not None:
        return _DELAY
    if sent.message_group:
        return _FIFO
    if sent.priority != NO_PRIORITY:
        return _PRIORITY
    return _LITE if sent.lite_topic else _NORMAL


def check_body_digest(kind: int, checksum: str, body: bytes) -> Outcome | None:
    """A digest that is sent must match. RocketMQ ignores it; a body damaged on the way is better found here."""
    actual = body_digest(kind, body)
    # CRC-32 is compared as a number: some clients pad it to eight digits and others do not.
    if actual is None or checksum.upper().lstrip("0") == actual.lstrip("0"):
        return None
    return Outcome(Code.MESSAGE_CORRUPTED, "the body does not match its digest")


def body_digest(kind: int, body: bytes) -> str | None:
    """The digest of a body in upper-case hexadecimal; None for a kind without one."""
    if kind == definition.CRC32:
        return f"{zlib.crc32(body):08X}"
    if kind == definition.MD5:
        return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    if kind == definition.SHA1:
        return hashlib.sha1(body, usedforsecurity=False).hexdigest().upper()
    return None


def check_lease(invisible_ms: int, *, min_ms: int = MIN_INVISIBLE_MS) -> Outcome | None:
    """A lease asked for: 10 s to 12 h at a receive, 0 to 12 h when it is changed."""
    if min_ms <= invisible_ms <= MAX_INVISIBLE_MS:
        return None
    return Outcome(
        Code.ILLEGAL_INVISIBLE_TIME,
        f"invisible duration of {invisible_ms} ms: choose {min_ms} to {MAX_INVISIBLE_MS} ms",
    )


def _check_body(body: bytes, max_body_bytes: int) -> Outcome | None:
    if 0 < len(body) <= max_body_bytes:
        return None
    if not body:
        return Outcome(Code.MESSAGE_BODY_EMPTY, "the message body is empty")
    return Outcome(
        Code.MESSAGE_BODY_TOO_LARGE, f"the message body has {len(body)} bytes, the limit is {max_body_bytes}"
    )


def _check_properties(sent: SentMessage) -> Outcome | None:
    """User properties, tag and keys: their names, their characters, their total size."""
    own_bytes = 0
    if sent.user_properties is not None:
        refused = _check_user_properties(sent.user_properties)
        if isinstance(refused, Outcome):
            return refused
        own_bytes = refused
    tag = sent.tag
    characters = len(tag)
    if tag and tag not in _good_tags and not _is_good_tag(tag):
        return Outcome(
            Code.ILLEGAL_MESSAGE_TAG, f"tag {tag!r}: it must not be blank nor contain '|' or a control character"
        )
    for key in sent.keys:
        if not key:
            continue
        if (not key.isprintable() and _CONTROL_CHARACTER.search(key) is not None) or key.isspace():
            return Outcome(
                Code.ILLEGAL_MESSAGE_KEY, f"key {key!r}: it must not be blank nor contain a control character"
            )
        characters += len(key)
    # No character has more than four bytes: few of them need not be counted.
    if own_bytes + 4 * characters <= _PROPERTY_BYTES_MAX:
        return None
    total_bytes = own_bytes + _byte_count(tag) + sum([_byte_count(key) for key in sent.keys])
    if total_bytes > _PROPERTY_BYTES_MAX:
        return Outcome(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys have {total_bytes} bytes, the limit is {_PROPERTY_BYTES_MAX}",
        )
    return None


def _is_good_tag(tag: str) -> bool:
    if not tag.strip() or "|" in tag or _has_control_character(tag):
        return False
    if len(tag) <= _GOOD_CHARACTERS_MAX:
        if len(_good_tags) >= _GOOD_TAGS_MAX:
            _good_tags.clear()
        _good_tags.add(tag)
    return True


def _check_user_properties(properties: dict[str, str]) -> Outcome | int:
    """What is wrong with an application's own properties, or how many bytes they have."""
    if len(properties) > _PROPERTY_COUNT_MAX:
        return Outcome(
            Code.MESSAGE_PROPERTIES_TOO_LARGE, f"{len(properties)} properties, the limit is {_PROPERTY_COUNT_MAX}"
        )
    total_bytes = 0
    for name, value in properties.items():
        is_known = name in _good_names
        if not is_known and is_internal(name):
            return Outcome(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property '{name}' is reserved by the broker")
        if (not is_known and _has_control_character(name)) or _has_control_character(value):
            return Outcome(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r} contains a control character")
        if not is_known and len(name) <= _GOOD_CHARACTERS_MAX:
            if len(_good_names) >= _GOOD_NAMES_MAX:
                _good_names.clear()
            _good_names.add(name)
        total_bytes += _byte_count(name) + _byte_count(value)
    return total_bytes


def _has_control_character(text: str) -> bool:
    # Most text is printable, which is cheaper to tell; some that is not, such as U+00A0, is allowed all the same.
    return not text.isprintable() and _CONTROL_CHARACTER.search(text) is not None


def _byte_count(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def moment_ms(moment: Timestamp) -> int | None:
    """Since the epoch; None: it is no time between the years 1 and 9999."""
    try:
        return moment.ToMilliseconds()
    except ValueError:
        return None


def _check_delay(delivery: Timestamp, now_wall_ms: int, max_delay_ms: int) -> Outcome | None:
    delivery_ms = moment_ms(delivery)
    if delivery_ms is None:
        return Outcome(Code.ILLEGAL_DELIVERY_TIME, "delivery_timestamp: it is no time between the years 1 and 9999")
    delay_ms = delivery_ms - now_wall_ms
    if delay_ms <= max_delay_ms:
        return None
    return Outcome(
        Code.ILLEGAL_DELIVERY_TIME,
        f"delivery_timestamp: delivery in {delay_ms} ms, the limit is {max_delay_ms} ms; send it later, or have "
        "maxDelayTimeMills and timerMaxDelaySec raised",
    )


def _check_recovery(recovery: Duration) -> Outcome | None:
    recovery_ms = recovery.ToMilliseconds()
    if recovery_ms <= _RECOVERY_MAX_MS:
        return None
    return Outcome(Code.BAD_REQUEST, f"transaction recovery after {recovery_ms} ms, the limit is {_RECOVERY_MAX_MS} ms")


def _check_message_group(message_group: str) -> Outcome | None:
    if not message_group.strip() or _has_control_character(message_group):
        return Outcome(Code.ILLEGAL_MESSAGE_GROUP, "the message group is blank or contains a control character")
    if len(message_group.encode()) > _MESSAGE_GROUP_BYTES_MAX:
        return Outcome(Code.ILLEGAL_MESSAGE_GROUP, f"the message group has more than {_MESSAGE_GROUP_BYTES_MAX} bytes")
    return None
