"""Values as protobuf messages and back, field by field: what a message says is what the value of that name is.

A field of a message is the value's attribute of the same name. The few other names follow rules:

| field                      | attribute        | what it is                                           |
|----------------------------|------------------|------------------------------------------------------|
| `lag_count`                | `lag` or `lags`  |                                                      |
| `store_time`, `time`       | `store_ms`, …    | a moment; -1, in the message its absence: not known  |
| `silent_for`, `oldest_age` | `silent_ms`, …   | a duration in milliseconds, a float to the µs        |
| `physical_offset`          | `offset`         |                                                      |

An enum is its constant's name in lower case: `dead letter` is TOPIC_CATEGORY_DEAD_LETTER; a text that none has is 0. A
message in a message that no attribute is named after holds attributes of the same value: of a `MessageSummary` the
`ClusterMessage` has `broker_name`, and the view in it the rest. None leaves a field out, and so does an attribute that
the value has not. What a caller gives by name stands in for the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound=Message)
ValueT = TypeVar("ValueT")

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_DURATION: Final = "google.protobuf.Duration"
_UNKNOWN_MS: Final = -1


def as_message(message_type: type[MessageT], value: object = None, **given: object) -> MessageT:
    """The value as a message of this type; `given` are fields of the message that it has not, or not so. What is given
    may be a message already."""
    message = message_type()
    if value is not None:
        _fill(message, value, given)
    for name, found in given.items():
        if found is not None:
            _writer(message.DESCRIPTOR.fields_by_name[name])(message, found)
    return message


def as_value(value_type: type[ValueT], message: Message, **given: object) -> ValueT:
    """The message as a value of this type; `given` are attributes of the value that it has not, or not so."""
    return value_type(**_read(value_type, message, given) | given)


class _Pair(NamedTuple):
    """A field of a message, and the attribute that it is; None: the field is a message about the same value."""

    field: FieldDescriptor
    attribute: str | None


@cache
def _pairs(value_type: type, descriptor: Descriptor) -> tuple[_Pair, ...]:
    attributes = {field.name for field in fields(value_type)}
    found = ((field, next((name for name in _names(field) if name in attributes), None)) for field in descriptor.fields)
    return tuple(_Pair(field, name) for field, name in found if name is not None or _is_inner(field))


def _names(field: FieldDescriptor) -> Iterator[str]:
    """What the attribute may be called."""
    if _type_name(field) in (_TIMESTAMP, _DURATION):
        yield field.name.removesuffix("_time").removesuffix("_for") + "_ms"
        return
    yield field.name
    yield field.name.removeprefix("physical_")
    if field.name.endswith("_count"):
        yield field.name.removesuffix("_count")
        yield field.name.removesuffix("_count") + "s"


def _is_inner(field: FieldDescriptor) -> bool:
    return _type_name(field) not in ("", _TIMESTAMP, _DURATION) and not field.is_repeated


def _type_name(field: FieldDescriptor) -> str:
    """Of a message; empty for a field that holds none."""
    return field.message_type.full_name if field.message_type is not None else ""


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


# To messages

_Write = Callable[[Message, Any], None]


def _fill(message: Message, value: Any, but: Container[str] = ()) -> None:
    if isinstance(value, Message):
        message.CopyFrom(value)
        return
    for name, attribute, write in _writers(value.__class__, message.DESCRIPTOR):
        found = value if attribute is None else getattr(value, attribute)
        if found is not None and name not in but:
            write(message, found)


@cache
def _writers(value_type: type, descriptor: Descriptor) -> tuple[tuple[str, str | None, _Write], ...]:
    return tuple((field.name, attribute, _writer(field)) for field, attribute in _pairs(value_type, descriptor))


@cache
def _writer(field: FieldDescriptor) -> _Write:
    """Sets a field to what is not None."""
    name, type_name = field.name, _type_name(field)

    def write(message: Message, found: Any) -> None:
        setattr(message, name, found)

    def write_enum(message: Message, found: str) -> None:
        setattr(message, name, _numbers(field.enum_type).get(found, 0))

    def write_all(message: Message, found: Any) -> None:
        getattr(message, name).extend(found)

    def write_map(message: Message, found: Any) -> None:
        getattr(message, name).update(found)

    def write_messages(message: Message, found: Any) -> None:
        for each in found:
            _fill(getattr(message, name).add(), each)

    def write_moment(message: Message, found: int) -> None:
        if found >= 0:
            getattr(message, name).FromMilliseconds(found)

    def write_duration(message: Message, found: float) -> None:
        getattr(message, name).FromMicroseconds(round(found * 1_000))

    def write_message(message: Message, found: Any) -> None:
        inner = getattr(message, name)
        inner.SetInParent()
        _fill(inner, found)

    if field.is_repeated:
        return write_map if _is_map(field) else write_messages if type_name else write_all
    if type_name:
        return {_TIMESTAMP: write_moment, _DURATION: write_duration}.get(type_name, write_message)
    return write_enum if field.enum_type is not None else write


# To values


class _Readers(NamedTuple):
    """How the fields of a message are read, each by its name and attribute."""

    # As they are: most fields, so they are apart. Lists have tens of thousands of them.
    plain: tuple[tuple[str, str], ...]
    # Made into something else, or perhaps absent; then the last of the four is read. None: never absent.
    others: tuple[tuple[str, str, Callable[[Any], Any], dict[str, Any] | None], ...]
    # Messages about the same value.
    inner: tuple[str, ...]


def _read(value_type: type, message: Message, but: Container[str]) -> dict[str, Any]:
    """Attributes that the message has. One that it leaves out is missing here, or None if it has no default."""
    plain, others, inner = _readers(value_type, message.DESCRIPTOR)
    found = {attribute: getattr(message, name) for name, attribute in plain}
    for name, attribute, of, absent in others:
        if attribute in but:
            continue
        if absent is None or message.HasField(name):
            found[attribute] = of(getattr(message, name))
        else:
            found |= absent
    for name in inner:
        found |= _read(value_type, getattr(message, name), but)
    return found


@cache
def _readers(value_type: type, descriptor: Descriptor) -> _Readers:
    pairs, hints = _pairs(value_type, descriptor), get_type_hints(value_type)
    has_default = {
        each.name: each.default is not MISSING or each.default_factory is not MISSING for each in fields(value_type)
    }
    plain, others = [], []
    for field, attribute in pairs:
        if attribute is None:
            continue
        if not (field.has_presence or field.is_repeated or field.enum_type is not None):
            plain.append((field.name, attribute))
            continue
        absent: dict[str, Any] | None = None
        if _type_name(field) == _TIMESTAMP:
            absent = {attribute: _UNKNOWN_MS}
        elif field.has_presence:
            absent = {} if has_default[attribute] else {attribute: None}
        others.append((field.name, attribute, _of(field, hints[attribute]), absent))
    return _Readers(tuple(plain), tuple(others), tuple(field.name for field, attribute in pairs if attribute is None))


def _of(field: FieldDescriptor, hint: Any) -> Callable[[Any], Any]:
    """What a field holds as an attribute of the type `hint`."""
    type_name = _type_name(field)
    if field.is_repeated:
        if _is_map(field):
            return dict
        if not type_name:
            return tuple
        item_type = get_args(hint)[0]
        return lambda messages: tuple(as_value(item_type, each) for each in messages)
    if type_name == _TIMESTAMP:
        return lambda moment: int(moment.ToMilliseconds())
    if type_name == _DURATION:
        is_whole = hint is int
        return lambda span: span.ToMilliseconds() if is_whole else span.ToMicroseconds() / 1_000
    if type_name:
        # `MasterLink | None` is one that may be absent.
        value_type = next((each for each in get_args(hint) if each is not type(None)), hint)
        return lambda inner: as_value(value_type, inner)
    if field.enum_type is not None:
        texts = {number: hint(text) for text, number in _numbers(field.enum_type).items()}
        return lambda number: texts.get(number, "")
    return lambda plain: plain


@cache
def _numbers(enum: EnumDescriptor) -> dict[str, int]:
    """By `dead letter` of TOPIC_CATEGORY_DEAD_LETTER. 0 of all has no such name."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    named = (each for each in enum.values if each.number)
    return {each.name.removeprefix(prefix).lower().replace("_", " "): each.number for each in named}
