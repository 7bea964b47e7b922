"""What one message's page shows. Pure; the template only lays it out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from admin.body_views import HEX_BYTES_MAX, BodyForm, BodyView, body_view
from admin.operations.topic_names import DEAD_LETTER_PREFIX, DELAYED_TOPIC, HALF_TOPIC, RETRY_PREFIX
from admin.operations.values import Message, MessageDetail, ReplicaCopy, Unseen
from admin.quantities import bytes_text, count_text
from admin.web.page_addresses import (
    dead_letters_address,
    group_address,
    message_address,
    messages_address,
    place_address,
    topic_address,
    trace_address,
)
from mqcore.message import property_names as names

__all__ = ["BODY_BYTES", "MessageView", "QueuePlace", "message_view"]

_FORM_NAMES: Final = {BodyForm.JSON: "JSON", BodyForm.TEXT: "Text", BodyForm.HEX: "Hex"}
BODY_BYTES: Final = 65_536
"""As much of a body is shown; a download has more."""

# What the system itself writes; the rest is the sender's.
_SYSTEM_PROPERTIES: Final = frozenset(
    value for name, value in vars(names).items() if name.startswith("PROPERTY_") and isinstance(value, str)
)
# Those that name a topic get its page.
_TOPIC_PROPERTIES: Final = frozenset(
    {names.PROPERTY_REAL_TOPIC, names.PROPERTY_RETRY_TOPIC, names.PROPERTY_DEAD_LETTER_ORIGIN_TOPIC}
)
_MESSAGE_PROPERTIES: Final = frozenset({names.PROPERTY_ORIGIN_MESSAGE_ID, names.PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID})


@dataclass(frozen=True, slots=True)
class Fact:
    """A line about a message; `address` may be empty."""

    label: str
    text: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class CopyRow:
    """One replica's copy."""

    broker: str
    # ok, warning or bad.
    tone: str
    state: str
    verdict: str
    flushed: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ConsumptionRow:
    """What one group has done with it."""

    group: str
    address: str
    state: str
    dead_letters_address: str


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A place in a queue, whether a message is there or not."""

    broker_name: str
    topic: str
    queue_id: int
    queue_offset: int

    @property
    def topic_address(self) -> str:
        """The topic's page."""
        return topic_address(self.topic)

    @property
    def onward_address(self) -> str:
        """Messages of the queue from there on, or from the first that is held."""
        return messages_address(
            topic=self.topic, broker=self.broker_name, queue=self.queue_id, offset=self.queue_offset
        )

    @property
    def before_address(self) -> str:
        """The message before; empty at the queue's beginning."""
        if self.queue_offset == 0:
            return ""
        return place_address(self.broker_name, self.topic, self.queue_id, self.queue_offset - 1)


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message's page."""

    message_id: str
    topic: str
    topic_address: str
    store_ms: int
    born_ms: int
    facts: tuple[Fact, ...]
    keys: tuple[tuple[str, str], ...]
    tag: str
    body: BodyView | None
    # What is said of the body: its size, that it is cut or compressed, why it is missing.
    body_about: str
    body_problem: str
    download_address: str
    # Form, address, whether it is the one shown.
    body_forms: tuple[tuple[str, str, bool], ...]
    own_properties: tuple[Fact, ...]
    system_properties: tuple[Fact, ...]
    copies: tuple[CopyRow, ...]
    # One sentence, ok / warning / bad.
    copies_verdict: str
    copies_tone: str
    consumption: tuple[ConsumptionRow, ...]
    trace_address: str
    previous_address: str
    next_address: str
    resend_address: str
    # Group whose dead letter or retry it is.
    owner: str
    owner_address: str
    kind_note: str
    unseen: tuple[Unseen, ...]


def message_view(detail: MessageDetail, *, wanted: BodyForm | None = None) -> MessageView:
    """All of a message's page."""
    message = detail.message
    body = None if message.body_problem else body_view(message.body, wanted=wanted)
    address = message_address(message.broker_name, message.physical_offset)
    verdict, tone = _copies_verdict(detail.copies)
    owner = _owner(message.topic)
    is_dead = message.topic.startswith(DEAD_LETTER_PREFIX)
    return MessageView(
        message_id=message.message_id,
        topic=message.topic,
        topic_address=topic_address(message.topic),
        store_ms=message.store_ms,
        born_ms=message.born_ms,
        facts=tuple(_facts(message)),
        keys=tuple((key, messages_address(topic=message.topic, key=key)) for key in message.keys),
        tag=message.tag,
        body=body,
        body_about=_body_about(message, body),
        body_problem=message.body_problem,
        download_address=address.replace("/message?", "/message/body?"),
        body_forms=_body_forms(body, address),
        own_properties=_properties(message, system=False),
        system_properties=_properties(message, system=True),
        copies=tuple(_copy_row(copy) for copy in detail.copies),
        copies_verdict=verdict,
        copies_tone=tone,
        consumption=tuple(
            ConsumptionRow(group, group_address(group), state, dead_letters_address(group))
            for group, state in sorted(detail.consumption.items())
        ),
        trace_address=trace_address(message.message_id) if message.message_id else "",
        previous_address=_place(message).before_address,
        next_address=place_address(message.broker_name, message.topic, message.queue_id, message.queue_offset + 1),
        resend_address=dead_letters_address(owner) if is_dead else "",
        owner=owner,
        owner_address=group_address(owner) if owner else "",
        kind_note=_kind_note(message, owner),
        unseen=tuple(detail.unseen),
    )


def _facts(message: Message) -> Iterable[Fact]:
    place = f"{message.broker_name}, queue {message.queue_id}, offset {count_text(message.queue_offset)}"
    yield Fact("place", place, _place(message).onward_address)
    yield Fact("in the CommitLog", f"{count_text(message.physical_offset)}, {bytes_text(message.record_bytes)}")
    yield Fact("message id", message.message_id or "none")
    if message.offset_message_id and message.offset_message_id != message.message_id:
        yield Fact("id by address", message.offset_message_id)
    yield Fact("sent from", message.born_host or "not known")
    yield Fact("stored by", message.store_host or "not known")
    if message.reconsume_times:
        yield Fact("deliveries before", count_text(message.reconsume_times))
    yield Fact("body CRC-32", f"{message.body_crc:08x}")
    yield Fact("flags", f"system {message.sys_flag:#x}, sender's {message.flag:#x}")


def _place(message: Message) -> QueuePlace:
    return QueuePlace(message.broker_name, message.topic, message.queue_id, message.queue_offset)


def _body_about(message: Message, body: BodyView | None) -> str:
    stored = bytes_text(message.body_size)
    packed = f", compressed with {message.compression}" if message.compression else ""
    if body is None or message.body_size == 0:
        return f"{stored}{packed}"
    cut_by_reading = len(message.body) < message.body_size if not message.compression else False
    cut_by_limit = len(message.body) >= BODY_BYTES and (bool(message.compression) or cut_by_reading)
    if body.shown_bytes < len(message.body):
        return f"{stored}{packed}; the first {bytes_text(HEX_BYTES_MAX)} are shown"
    if cut_by_reading or cut_by_limit:
        return f"{stored}{packed}; the first {bytes_text(len(message.body))} are shown"
    unpacked = f", {bytes_text(len(message.body))} unpacked" if message.compression else ""
    return f"{stored}{packed}{unpacked}"


def _body_forms(body: BodyView | None, address: str) -> tuple[tuple[str, str, bool], ...]:
    if body is None:
        return ()
    return tuple((_FORM_NAMES[form], f"{address}&view={form.value}", form is body.form) for form in body.forms)


def _properties(message: Message, *, system: bool) -> tuple[Fact, ...]:
    return tuple(
        Fact(name, value, _property_address(name, value))
        for name, value in sorted(message.properties.items())
        if (name in _SYSTEM_PROPERTIES) == system
    )


def _property_address(name: str, value: str) -> str:
    if name in _TOPIC_PROPERTIES and value:
        return topic_address(value)
    if name in _MESSAGE_PROPERTIES and value:
        return messages_address(id=value).replace("/messages?", "/message?")
    return ""


def _copy_row(copy: ReplicaCopy) -> CopyRow:
    if not copy.held:
        tone, state = "warning", "not held"
    elif copy.equal is False:
        tone, state = "bad", "different bytes"
    elif copy.broker.endswith(":0"):
        tone, state = "ok", "the master's"
    else:
        tone, state = ("ok", "same bytes") if copy.equal else ("warning", "not compared")
    return CopyRow(
        broker=copy.broker,
        tone=tone,
        state=state,
        verdict=copy.verdict,
        flushed=("yes" if copy.flushed else "not yet") if copy.held else "–",
        sha256=copy.sha256,
    )


def _copies_verdict(copies: Iterable[ReplicaCopy]) -> tuple[str, str]:
    found = list(copies)
    held = [copy for copy in found if copy.held]
    if any(copy.equal is False for copy in held):
        return "The copies differ. Run the consistency job before anything else: it tells which one is right.", "bad"
    if not held:
        return "No replica that answered holds it.", "bad"
    others = [copy for copy in found if not copy.broker.endswith(":0")]
    if not others:
        return "There is one copy: this broker group has no slave.", "ok"
    if len(held) == len(found) and all(copy.equal for copy in others):
        return f"All {len(found)} replicas hold the same bytes.", "ok"
    return f"{len(held)} of {len(found)} replicas hold it.", "warning"


def _owner(topic: str) -> str:
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return ""


def _kind_note(message: Message, owner: str) -> str:
    if message.topic.startswith(DEAD_LETTER_PREFIX):
        times = "once" if message.reconsume_times == 1 else f"{message.reconsume_times} times"
        return f"A dead letter of {owner}: it was delivered {times} without success."
    if owner:
        return f"Waits here for another delivery to {owner}."
    if message.topic == DELAYED_TOPIC:
        return "A delayed message of a store taken over from RocketMQ. This version does not deliver delayed messages."
    if message.topic == HALF_TOPIC:
        return "A half message of a store taken over from RocketMQ. This version does not finish transactions."
    return ""
