from __future__ import annotations

import pytest

from tandemmq.core.message.properties import tags_code
from tandemmq.core.message.record import SCHEDULE_TOPIC, delay_tags_code, record_tags_code

LEVELS_MS = (1000, 5000, 10_000)


def test_tags_code_is_the_signed_hash_and_zero_without_a_tag() -> None:
    assert tags_code("TagA") == 2_598_919
    assert tags_code("polygenelubricants") == -(2**31)
    assert tags_code(None) == tags_code("") == 0


@pytest.mark.parametrize(("level", "due_ms"), [(1, 51_000), (3, 60_000), (4, 60_000), (99, 60_000)])
def test_due_time_is_store_time_plus_delay_of_the_level_capped_at_the_last(level: int, due_ms: int) -> None:
    assert delay_tags_code(level, store_timestamp_ms=50_000, delay_levels_ms=LEVELS_MS) == due_ms


def test_level_without_a_delay_is_due_after_a_second() -> None:
    assert delay_tags_code(1, store_timestamp_ms=50_000, delay_levels_ms=()) == 51_000


@pytest.mark.parametrize(
    ("topic", "properties", "code"),
    [
        (SCHEDULE_TOPIC, {"DELAY": "2", "TAGS": "TagA"}, 55_000),
        (SCHEDULE_TOPIC, {"DELAY": "0", "TAGS": "TagA"}, 2_598_919),
        (SCHEDULE_TOPIC, {"DELAY": "soon", "TAGS": "TagA"}, 2_598_919),
        (SCHEDULE_TOPIC, {"TAGS": "TagA"}, 2_598_919),
        ("delivered", {"DELAY": "2", "TAGS": "TagA"}, 2_598_919),
        ("plain", {}, 0),
    ],
)
def test_only_the_schedule_topic_holds_due_times(topic: str, properties: dict[str, str], code: int) -> None:
    assert record_tags_code(topic, properties, store_timestamp_ms=50_000, delay_levels_ms=LEVELS_MS) == code
