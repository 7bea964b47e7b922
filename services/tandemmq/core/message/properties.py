"""The property string of a record, the names in it, and Java's `String.hashCode` for its tags and keys.

A property string is `name 0x01 value 0x02`, pair after pair, in UTF-8. RocketMQ writes the last 0x02 from 5.2.0 on and
leaves it out before. Both are read here, and the newer form is written. The order of pairs means nothing, but a record
that is written again keeps the bytes it was read with.

The hash goes into ConsumeQueues (tags) and IndexFiles (keys): h = sum of unit[i] * 31**(n - 1 - i) over the n UTF-16
code units, modulo 2**32, read as a signed i32. It runs for every key of every message. Keys mostly count upwards, so a
key differs from the one before in its last digits only. Therefore the last two characters are looked up, and the hash
of what comes before them is remembered. A text seen for the first time is one sum of products, without a loop in Python
and in floats: a product of floats costs half of what integers beyond 30 bits do. Every sum stays below 2**53, so the
floats are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from operator import mul
from string import ascii_letters, digits
from struct import unpack
from typing import Final


class InvalidProperty(ValueError):
    """A property cannot be stored: its name or value holds a separator (0x01, 0x02). The sender is at fault."""


_MASK: Final = 0xFFFF_FFFF
_SIGN: Final = 0x8000_0000
_ASCII_UNITS: Final = 128
"""Longest ASCII text hashed in one go: 128 * 127 * 2**32 < 2**46."""
_CHUNK_UNITS: Final = 32
"""Any other text goes chunk by chunk: 32 * 65535 * 2**32 < 2**53."""

_SHIFT: Final[tuple[int, ...]] = tuple(pow(31, length, 1 << 32) for length in range(_ASCII_UNITS + 1))
"""_SHIFT[n] moves a hash n units to the left."""

_WEIGHTS: Final[tuple[tuple[float, ...], ...]] = tuple(
    tuple(map(float, _SHIFT[:length][::-1])) for length in range(_ASCII_UNITS + 1)
)
"""_WEIGHTS[n] are those of a text of n units: 31**(n-1) ... 31**0, modulo 2**32."""

_ENDINGS: Final = {
    first + second: 31 * ord(first) + ord(second)
    for first in digits + ascii_letters
    for second in digits + ascii_letters
}
"""Hashes of the last two characters of nearly every key."""

_HEADS_MAX: Final = 1024
"""Beginnings remembered, some 300 bytes each: those of as many clients that send at the same time."""
_heads: Final[dict[str, tuple[int, int]]] = {}
"""By the text before an ending: its own share in the hash of the whole text, and by how much it moves what is before.
It forgets everything when it is full: keys without order then cost an entry each, and no search for the oldest."""


def java_hash(text: str) -> int:
    """`text.hashCode()` as Java computes it: a signed 32-bit integer."""
    return extend_hash(0, text)


def tags_code(tag: str | None) -> int:
    """Java's hash of the tag, 0 without one. Equal codes do not mean equal tags: the consumer compares the text."""
    if not tag:
        return 0
    # One in a filter may be megabytes long, and thousands are remembered.
    return _known_tags_code(tag) if len(tag) <= _KNOWN_TAG_CHARACTERS_MAX else java_hash(tag)


_KNOWN_TAG_CHARACTERS_MAX: Final = 256


@lru_cache(maxsize=4096)
def _known_tags_code(tag: str) -> int:
    return java_hash(tag)


def extend_hash(prefix_hash: int, text: str) -> int:
    """The hash of `prefix + text`, given `java_hash(prefix)`; signed 32 bits.

    Topics repeat and keys do not: an index keeps the hash of "topic#" and extends it by each key.
    """
    ending = _ENDINGS.get(text[-2:])
    head_text = text[:-2]
    head = _heads.get(head_text)
    if head is not None and ending is not None:
        value = (prefix_hash * head[1] + head[0] + ending) & _MASK
    elif len(text) <= _ASCII_UNITS and text.isascii():
        shift = _SHIFT[len(text)]
        own_value = int(sum(map(mul, _WEIGHTS[len(text)], text.encode())))
        if ending is not None:
            if len(_heads) >= _HEADS_MAX:
                _heads.clear()
            _heads[head_text] = (own_value - ending) & _MASK, shift
        value = (prefix_hash * shift + own_value) & _MASK
    else:
        value = _extend_chunk_by_chunk(prefix_hash, text) & _MASK
    return value - (_MASK + 1) if value & _SIGN else value


def _extend_chunk_by_chunk(value: int, text: str) -> int:
    units = _utf16_units(text)
    for start in range(0, len(units), _CHUNK_UNITS):
        chunk = units[start : start + _CHUNK_UNITS]
        value = (value * _SHIFT[len(chunk)] + int(sum(map(mul, _WEIGHTS[len(chunk)], chunk)))) & _MASK
    return value


def _utf16_units(text: str) -> tuple[int, ...]:
    """Java's view of a text: characters beyond the basic plane are two units."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    return unpack(f">{len(encoded) // 2}H", encoded)


# Property strings.

MAX_PROPERTIES_BYTES: Final = 32767
"""Length is stored as i16. Longer is PROPERTIES_SIZE_EXCEEDED, which the store answers before anything is written."""

_NAME_END: Final = "\x01"
_PAIR_END: Final = "\x02"
_SHORTEST_PAIR: Final = 3


def encode_properties(pairs: Iterable[tuple[str, str]]) -> bytes:
    """The stored form of `pairs`, in their order. Raises InvalidProperty if a separator hides in a name or value.

    A hidden separator would let a sender forge properties of the broker's own, such as REAL_TOPIC.
    """
    parts = [f"{name}\x01{value}\x02" for name, value in pairs]
    text = "".join(parts)
    if text.count(_NAME_END) != len(parts) or text.count(_PAIR_END) != len(parts):
        raise InvalidProperty("the name or the value of a property contains the byte 0x01 or 0x02")
    return text.encode("utf-8", "replace")


def decode_properties(raw: bytes) -> dict[str, str]:
    """Names and values in stored order; like RocketMQ's reader it drops a pair without name or without value."""
    properties: dict[str, str] = {}
    for pair in raw.decode("utf-8", "replace").split(_PAIR_END):
        if len(pair) < _SHORTEST_PAIR:
            continue
        name, _, value = pair.partition(_NAME_END)
        if name and value:
            properties[name] = value
    return properties


def raw_property(properties: bytes, name: bytes) -> bytes:
    """The value of one property of a stored string, empty without it; a tenth of what `decode_properties` takes."""
    start = len(name) + 1
    if not properties.startswith(name + b"\x01"):
        start += properties.find(b"\x02" + name + b"\x01") + 1
        if start == len(name) + 1:
            return b""
    end = properties.find(b"\x02", start)
    return properties[start:] if end < 0 else properties[start:end]


def index_terms(properties: dict[str, str]) -> tuple[str | None, tuple[str, ...]]:
    """What a message is found by: its tag, and the keys to index (the unique key, then each word of KEYS)."""
    unique_key = properties.get(PROPERTY_UNIQUE_KEY)
    words = properties.get(PROPERTY_KEYS)
    keys = [unique_key] if unique_key else []
    if words:
        keys += [word for word in words.split(" ") if word]
    return properties.get(PROPERTY_TAGS), tuple(keys)


def java_map_order(names: Iterable[str], *, capacity: int) -> list[str]:
    """`names` in the order in which a Java HashMap of `capacity` buckets (a power of two) walks them.

    RocketMQ 5.x writes properties in this order: 128 buckets where the broker rebuilt the string, 16 for small maps
    encoded as built. Only needed to reproduce its bytes.
    """
    return sorted(names, key=lambda name: _bucket(name, capacity))


def _bucket(name: str, capacity: int) -> int:
    unsigned = java_hash(name) & 0xFFFF_FFFF
    return (unsigned ^ (unsigned >> 16)) & (capacity - 1)


# Names of the properties the broker reads or writes itself, as in RocketMQ's MessageConst; others are the user's.

# What a message is filtered and found by.
PROPERTY_TAGS: Final = "TAGS"
"""One tag; the source of the ConsumeQueue's tags code."""
PROPERTY_KEYS: Final = "KEYS"
"""Business keys, separated by one space; each is indexed."""
PROPERTY_UNIQUE_KEY: Final = "UNIQ_KEY"
"""The client's unique message id; indexed."""
PROPERTY_SHARDING_KEY: Final = "__SHARDINGKEY"
"""Message group of a FIFO message."""
PROPERTY_PRIORITY: Final = "_SYS_MSG_PRIORITY_"
"""Priority of a message in a PRIORITY topic: 0 or more, larger is more urgent."""

PROPERTY_LITE_TOPIC: Final = "__LITE_TOPIC"
"""Lite topic of a message in a LITE topic."""
PROPERTY_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
"""Name of the logical queue that the message is in as well: `%LMQ%$topic$lite topic`."""
PROPERTY_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
"""Its offset there."""

# Where and when it was born, and how it is stored.
PROPERTY_WAIT: Final = "WAIT"
""""false": the sender waits neither for the disk nor for a slave. Absent means true."""
PROPERTY_BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
PROPERTY_BORN_HOST: Final = "__BORNHOST"
PROPERTY_CLUSTER: Final = "CLUSTER"
PROPERTY_REGION: Final = "MSG_REGION"
PROPERTY_TRACE_ON: Final = "TRACE_ON"
PROPERTY_INNER_COUNT: Final = "INNER_NUM"
"""Messages in an inner batch: by so much its queue offset advances."""
PROPERTY_INNER_BASE: Final = "INNER_BASE"

# Delayed delivery.
PROPERTY_DELAY_LEVEL: Final = "DELAY"
"""Delay level, 1 is first. A request at put time only: the delivered copy still carries it."""
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
"""Where a delayed, timer or half message belongs."""
PROPERTY_REAL_QUEUE_ID: Final = "REAL_QID"
PROPERTY_TIMER_DELAY_S: Final = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
PROPERTY_TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
PROPERTY_TIMER_OUT_MS: Final = "TIMER_OUT_MS"
"""Due time the broker computed from one of the three above."""
PROPERTY_TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
PROPERTY_TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
PROPERTY_TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
"""How often a timer was put again because its record grew old."""

# Transactions.
PROPERTY_TRANSACTION_PREPARED: Final = "TRAN_MSG"
""""true" on a half message and on the message its commit writes."""
PROPERTY_PRODUCER_GROUP: Final = "PGROUP"
PROPERTY_TRANSACTION_ID: Final = "__transactionId__"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PROPERTY_CHECK_IMMUNITY_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_TRANSACTION_RESOLUTION: Final = "TRAN_RESOLUTION"
"""On a record that ends a half message: how. Our own, as the next; RocketMQ writes neither and passes over both."""
PROPERTY_TRANSACTION_UNDECIDED_FROM: Final = "TRAN_UNDECIDED_FROM"
"""On the same: below this place in the half topic all have ended."""

# Retries and dead letters.
PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
"""Original topic, set when a message is first sent back."""
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_RECONSUME_TIME: Final = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
PROPERTY_DEAD_LETTER_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"

# Never stored or removed from what a client sends.
PROPERTY_CRC32: Final = "__CRC32#"
"""Checksum over the record (RocketMQ's `enabledAppendPropCRC`); kept as read, removed from what a client sends."""
TRANSIENT_PROPERTY_PREFIX: Final = "__RMQ.TRANSIENT."
"""Properties that begin so live in memory only."""
