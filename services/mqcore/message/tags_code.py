"""The third field of a ConsumeQueue entry: by what a consumer's broker filters, or when a delayed message is due."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from mqcore.message.java_string import java_hash
from mqcore.message.property_names import PROPERTY_DELAY_LEVEL, PROPERTY_TAGS

__all__ = ["SCHEDULE_TOPIC", "delay_tags_code", "record_tags_code", "tags_code"]

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Internal topic of messages waiting for their delay level; queue id = level - 1."""

_UNKNOWN_LEVEL_DELAY_MS: Final = 1000
"""RocketMQ's ScheduleMessageService.computeDeliverTimestamp for a level that has no delay configured."""


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """Java's hash of the tag, 0 without one. Equal codes do not mean equal tags: the consumer compares the text."""
    return java_hash(tag) if tag else 0


def delay_tags_code(level: int, *, store_timestamp_ms: int, delay_levels_ms: Sequence[int]) -> int:
    """Wall-clock time in ms at which a message of the schedule topic is due. `level` is 1-based, capped at the last."""
    capped = min(level, len(delay_levels_ms))
    delay_ms = delay_levels_ms[capped - 1] if capped > 0 else _UNKNOWN_LEVEL_DELAY_MS
    return store_timestamp_ms + delay_ms


def record_tags_code(
    topic: str, properties: dict[str, str], *, store_timestamp_ms: int, delay_levels_ms: Sequence[int]
) -> int:
    """The tags code of a stored record, computed from the record alone as every broker of a group does for itself."""
    if topic == SCHEDULE_TOPIC:
        level = _delay_level(properties)
        if level > 0:
            return delay_tags_code(level, store_timestamp_ms=store_timestamp_ms, delay_levels_ms=delay_levels_ms)
    return tags_code(properties.get(PROPERTY_TAGS))


def _delay_level(properties: dict[str, str]) -> int:
    try:
        return int(properties.get(PROPERTY_DELAY_LEVEL, "0"))
    except ValueError:
        return 0
