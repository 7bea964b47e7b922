"""The form of a topic: what was typed becomes a change, or a sentence beside the field that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from admin.api.forms import Form
from admin.operations.values import TopicChange, TopicSummary
from mqcore.metadata.topic_table import MAX_QUEUE_COUNT, topic_name_problem

__all__ = ["PERMISSIONS", "TopicForm", "blank_topic", "read_topic_form", "topic_form_of", "topic_types"]

PERMISSIONS: Final = (("6", "read and write"), ("4", "read only"), ("2", "write only"))
_READ_WRITE: Final = "6"
_CREATED_TYPES: Final = (
    ("NORMAL", "NORMAL"),
    ("FIFO", "FIFO, in order"),
    ("DELAY", "DELAY"),
    ("TRANSACTION", "TRANSACTION"),
)


@dataclass(frozen=True, slots=True)
class TopicForm:
    """The form as it was filled in."""

    is_new: bool
    name: str
    # Empty: the brokers' default, or as it is.
    read_queues: str
    write_queues: str
    # One of PERMISSIONS; empty: as it is.
    permission: str
    # Empty: as it is.
    message_type: str
    # Each known broker group, and whether the topic is or is to be on it.
    brokers: tuple[tuple[str, bool], ...]
    # By field: name, read_queues, write_queues, brokers.
    errors: Mapping[str, str]
    # What the change means, for its second step.
    notes: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """What the second step posts again."""
        return (
            ("read_queues", self.read_queues),
            ("write_queues", self.write_queues),
            ("permission", self.permission),
            ("message_type", self.message_type),
            *(("broker", name) for name, checked in self.brokers if checked),
        )

    @property
    def change(self) -> TopicChange:
        """What is asked for; only of a form without errors."""
        chosen = tuple(name for name, checked in self.brokers if checked)
        return TopicChange(
            name=self.name,
            read_queue_count=int(self.read_queues or 0),
            write_queue_count=int(self.write_queues or 0),
            permission=int(self.permission or 0),
            message_type=self.message_type,
            broker_names=() if len(chosen) == len(self.brokers) else chosen,
        )


def blank_topic(broker_names: Sequence[str]) -> TopicForm:
    """The form of a new topic: on all broker groups."""
    return TopicForm(True, "", "", "", _READ_WRITE, "NORMAL", tuple((name, True) for name in broker_names), {})


def topic_form_of(topic: TopicSummary, broker_names: Sequence[str]) -> TopicForm:
    """The form of a topic as it is. Where its masters differ the field is empty, and leaves each as it is."""
    on = {broker.broker_name for broker in topic.brokers}
    return TopicForm(
        is_new=False,
        name=topic.name,
        read_queues=_common(str(broker.read_queue_count) for broker in topic.brokers),
        write_queues=_common(str(broker.write_queue_count) for broker in topic.brokers),
        permission=_common(str(broker.permission & 6) for broker in topic.brokers),
        message_type=_common(broker.message_type for broker in topic.brokers),
        brokers=tuple((name, name in on) for name in sorted({*broker_names, *on})),
        errors={},
    )


def topic_types(form: TopicForm) -> tuple[tuple[str, str], ...]:
    """Choices of the type's field."""
    if form.is_new:
        return _CREATED_TYPES
    known = [value for value, _ in _CREATED_TYPES]
    others = ((form.message_type, form.message_type),) if form.message_type not in ("", *known) else ()
    return (("", "as it is"), *_CREATED_TYPES, *others)


def read_topic_form(
    form: Form, *, name: str = "", broker_names: Sequence[str], before: TopicSummary | None = None
) -> TopicForm:
    """A posted form; `name` and `before` of a topic that is there."""
    is_new = before is None
    name = form.text("name") if is_new else name
    chosen = set(form.all("broker"))
    on = {broker.broker_name for broker in before.brokers} if before is not None else set()
    known = sorted({*broker_names, *on})
    errors: dict[str, str] = {}
    if is_new and (problem := topic_name_problem(name)) is not None:
        errors["name"] = f"{problem[0].upper()}{problem[1:]}."
    for field in ("read_queues", "write_queues"):
        if problem := _count_problem(form.text(field)):
            errors[field] = problem
    if known and not chosen & set(known):
        errors["brokers"] = "Choose at least one."
    permission = form.text("permission")
    filled = TopicForm(
        is_new=is_new,
        name=name,
        read_queues=form.text("read_queues"),
        write_queues=form.text("write_queues"),
        permission=permission if permission in dict(PERMISSIONS) else "",
        message_type=form.text("message_type"),
        brokers=tuple((each, each in chosen) for each in known),
        errors=errors,
    )
    if errors or before is None:
        return filled
    return replace(filled, notes=tuple(_notes(filled.change, before)))


def _notes(change: TopicChange, before: TopicSummary) -> Iterable[str]:
    """What a change of `before` means for its clients."""
    on = {broker.broker_name for broker in before.brokers}
    added = sorted(set(change.broker_names) - on)
    left_alone = sorted(on - set(change.broker_names)) if change.broker_names else []
    changed = [broker for broker in before.brokers if broker.broker_name not in left_alone]
    if change.read_queue_count and any(broker.read_queue_count > change.read_queue_count for broker in changed):
        yield "Queues of higher numbers are no longer read: what waits there waits until they are added again."
    if change.write_queue_count and any(broker.write_queue_count > change.write_queue_count for broker in changed):
        yield "Fewer queues are written to: FIFO message groups move to other queues, out of order meanwhile."
    if change.permission and change.permission & 2 == 0 and any(broker.permission & 2 for broker in changed):
        yield "Producers can no longer send to it."
    if change.permission and change.permission & 4 == 0 and any(broker.permission & 4 for broker in changed):
        yield "Consumers can no longer read it."
    if change.message_type and any(broker.message_type != change.message_type for broker in changed):
        yield "Producers that send another type are refused from then on."
    if added:
        yield f"It is made on {', '.join(added)}, too."
    if left_alone:
        yield f"It stays as it is on {', '.join(left_alone)}: a topic is taken away from all broker groups, or none."


def _count_problem(text: str) -> str:
    if not text:
        return ""
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= MAX_QUEUE_COUNT):
        return f"Write a number from 1 to {MAX_QUEUE_COUNT:,}, or nothing."
    return ""


def _common(texts: Iterable[str]) -> str:
    different = set(texts)
    return different.pop() if len(different) == 1 else ""
