"""Forms of a consumer group: its settings, and where it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from admin.api.forms import Form
from admin.moments import MomentUnreadable, read_moment
from admin.operations.values import GroupChange, GroupSummary, ResetTarget
from mqcore.metadata.topic_table import group_name_problem

__all__ = [
    "GroupForm",
    "ResetForm",
    "blank_group",
    "blank_reset",
    "group_form_of",
    "read_group_form",
    "read_reset_form",
]

_ATTEMPTS_MAX: Final = 1_000
_DEFAULT_ATTEMPTS: Final = 16
_TOPICS_CHOSEN_FROM: Final = 200
_TARGETS: Final = {
    "time": "with the first message stored at",
    "earliest": "with the oldest message that is held",
    "latest": "behind the newest message",
}


@dataclass(frozen=True, slots=True)
class GroupForm:
    """The settings as they were filled in."""

    is_new: bool
    name: str
    retry_max_times: str
    ordered: bool
    enabled: bool
    # True: the button that enables or disables; nothing else changes.
    only_enabled: bool = False
    # By field: name, retry_max_times.
    errors: Mapping[str, str] = field(default_factory=dict)
    # What the change means, for its second step.
    notes: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """What the second step posts again: a check box that is not checked is not sent."""
        if self.only_enabled:
            return (("only", "enabled"), ("enabled", "true" if self.enabled else ""))
        return (
            ("retry_max_times", self.retry_max_times),
            ("ordered", "true" if self.ordered else ""),
            ("enabled", "true" if self.enabled else ""),
        )

    @property
    def change(self) -> GroupChange:
        """What is asked for; only of a form without errors."""
        if self.only_enabled:
            return GroupChange(self.name, enabled=self.enabled)
        return GroupChange(
            self.name, ordered=self.ordered, retry_max_times=int(self.retry_max_times or 0), enabled=self.enabled
        )


@dataclass(frozen=True, slots=True)
class ResetForm:
    """Where a group is to go on, as it was filled in."""

    group: str
    topic: str
    # Topics it has read: value and text; empty without any, or with too many to choose from.
    topics: tuple[tuple[str, str], ...]
    # time, earliest or latest.
    target: str
    # As typed, and as understood.
    time: str
    time_ms: int | None = None
    # By field: topic, target, time.
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def target_text(self) -> str:
        """In words; a moment follows."""
        return _TARGETS[self.target]

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """What the second step posts again; the moment written out, since `2h` ago moves on."""
        time = str(self.time_ms) if self.time_ms is not None else ""
        return (("topic", self.topic), ("target", self.target), ("time", time))

    @property
    def reset(self) -> ResetTarget:
        """What is asked for; only of a form without errors."""
        return ResetTarget(time_ms=self.time_ms, earliest=self.target == "earliest", latest=self.target == "latest")


def blank_group() -> GroupForm:
    """The form of a new group."""
    return GroupForm(True, "", str(_DEFAULT_ATTEMPTS), False, True)


def group_form_of(group: GroupSummary) -> GroupForm:
    """The form of a group as it is."""
    return GroupForm(False, group.name, str(group.retry_max_times), group.ordered, group.enabled)


def read_group_form(form: Form, *, before: GroupSummary | None = None) -> GroupForm:
    """A posted form; `before` of a group that is there."""
    enabled = form.text("enabled") == "true"
    if before is not None and form.text("only") == "enabled":
        only = replace(group_form_of(before), enabled=enabled, only_enabled=True)
        return replace(only, notes=tuple(_notes(only, before)))
    name = form.text("name") if before is None else before.name
    attempts = form.text("retry_max_times")
    errors = {}
    if before is None and (problem := group_name_problem(name)) is not None:
        errors["name"] = f"{problem[0].upper()}{problem[1:]}."
    if not (attempts.isascii() and attempts.isdecimal() and len(attempts) <= 6 and 1 <= int(attempts) <= _ATTEMPTS_MAX):
        errors["retry_max_times"] = f"Write a number from 1 to {_ATTEMPTS_MAX:,}."
    filled = GroupForm(
        is_new=before is None,
        name=name,
        retry_max_times=attempts,
        ordered=form.text("ordered") == "true",
        enabled=enabled,
        errors=errors,
    )
    if errors or before is None:
        return filled
    return replace(filled, notes=tuple(_notes(filled, before)))


def blank_reset(group: str, topics: Sequence[str], topic: str = "") -> ResetForm:
    """The form as it is shown first."""
    return ResetForm(group, topic, _choices(topics), "time", "")


def read_reset_form(form: Form, *, group: str, topics: Sequence[str], now_ms: int) -> ResetForm:
    """A posted form."""
    topic, target, time = form.text("topic"), form.text("target"), form.text("time")
    errors = {}
    time_ms = None
    if not topic:
        errors["topic"] = "Name a topic."
    if target not in _TARGETS:
        errors["target"] = "Choose one."
    elif target == "time":
        try:
            time_ms = read_moment(time, now_ms=now_ms)
        except MomentUnreadable as error:
            errors["time"] = str(error) if time else "Write a moment for this choice."
    return ResetForm(group, topic, _choices(topics), target, time, time_ms, errors)


def _choices(topics: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((topic, topic) for topic in topics) if len(topics) <= _TOPICS_CHOSEN_FROM else ()


def _notes(form: GroupForm, before: GroupSummary) -> Iterable[str]:
    if before.enabled and not form.enabled:
        members = f"Its {before.member_count} members receive" if before.member_count else "Its consumers receive"
        yield f"{members} nothing until it is enabled again. Its progress stays."
    if before.ordered != form.ordered:
        yield "Consumers that run may go on as before until they connect anew: restart them."
    if int(form.retry_max_times or 0) < before.retry_max_times:
        yield "Messages that were tried more often than the new limit become dead letters at their next failure."
