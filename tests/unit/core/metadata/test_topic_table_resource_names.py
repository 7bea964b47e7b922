from __future__ import annotations

import pytest

from tandemmq.core.metadata.topic_table import group_name_problem, topic_name_problem


@pytest.mark.parametrize("name", ["orders", "%RETRY%billing", "%DLQ%billing", "a|b", "x" * 127])
def test_usable_topic_names(name: str) -> None:
    assert topic_name_problem(name) is None


@pytest.mark.parametrize("name", ["", "x" * 128, "a.b", "a b", "größe", "orders\n", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x"])
def test_refused_topic_names(name: str) -> None:
    assert topic_name_problem(name) is not None


@pytest.mark.parametrize("name", ["billing", "x" * 120, "rmq_sys_x"])
def test_usable_group_names(name: str) -> None:
    assert group_name_problem(name) is None


@pytest.mark.parametrize("name", ["", "x" * 121, "a/b", "CID_RMQ_SYS_TRANS"])
def test_refused_group_names(name: str) -> None:
    assert group_name_problem(name) is not None
