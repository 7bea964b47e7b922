"""The form of a test message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from admin.api.forms import Form
from admin.operations.message_limits import BODY_BYTES_MAX
from admin.operations.values import TestMessage

__all__ = ["MessageForm", "blank_message", "read_message_form"]

_PROPERTIES_MAX: Final = 64
_FIFO: Final = "FIFO"


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The form as it was filled in."""

    topic: str
    is_fifo: bool
    body: str = ""
    tag: str = ""
    keys: str = ""
    message_group: str = ""
    properties: str = ""
    # By field.
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def message(self) -> TestMessage:
        """What is to be sent; only of a form without errors."""
        return TestMessage(
            topic=self.topic,
            # Lines end as they were typed, not as HTML sends them.
            body=self.body.replace("\r\n", "\n").encode(),
            tag=self.tag,
            keys=tuple(self.keys.split()),
            properties=_properties(self.properties),
            message_group=self.message_group,
        )


def blank_message(topic: str, message_type: str) -> MessageForm:
    """The form as it is shown first."""
    return MessageForm(topic, message_type == _FIFO)


def read_message_form(form: Form, *, topic: str, message_type: str) -> MessageForm:
    """A posted form."""
    is_fifo = message_type == _FIFO
    errors = {}
    body = form.raw("body")
    if len(body.encode(errors="replace")) > BODY_BYTES_MAX:
        errors["body"] = "The body is longer than 4 MiB."
    if any(character.isspace() or character == "|" for character in form.text("tag")):
        errors["tag"] = "A tag holds neither blanks nor |."
    if is_fifo and not form.text("message_group"):
        errors["message_group"] = "This topic is FIFO: name a message group."
    if problem := _properties_problem(form.raw("properties")):
        errors["properties"] = problem
    return MessageForm(
        topic=topic,
        is_fifo=is_fifo,
        body=body,
        tag=form.text("tag"),
        keys=form.text("keys"),
        message_group=form.text("message_group"),
        properties=form.raw("properties"),
        errors=errors,
    )


def _properties(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if line.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _properties_problem(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > _PROPERTIES_MAX:
        return f"At most {_PROPERTIES_MAX} properties."
    wrong = next((line for line in lines if not line.partition("=")[1] or not line.partition("=")[0].strip()), None)
    return f"“{wrong.strip()[:80]}” is no name=value." if wrong is not None else ""
