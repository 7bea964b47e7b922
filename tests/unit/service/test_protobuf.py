"""Each value that the API answers goes to its message and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.admin.operations import values
from tandemmq.admin.operations.topics import CATEGORIES
from tandemmq.admin.operations.values import GroupChange, TopicChange
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as broker_pb
from tandemmq.proto.admin.v1 import cluster_operations_service_pb2 as pb
from tandemmq.service.protobuf import as_message, as_value

_KEPT_TAIL = values.KeptTail("broker-a:1", "tail", 0, 1, 0, "")

# The value, its message, and what the message does not say.
_ANSWERS: tuple[tuple[Any, type[Message], dict[str, object]], ...] = (
    (values.Unseen, pb.Unseen, {}),
    (values.ChangeResult, pb.PutClusterTopicResponse, {}),
    (values.TopicSummary, pb.TopicSummary, {}),
    (values.TopicDetail, pb.GetClusterTopicResponse, {}),
    (values.GroupSummary, pb.GroupSummary, {}),
    (values.GroupDetail, pb.GetClusterGroupResponse, {}),
    (values.Client, pb.ClusterClient, {}),
    (values.OffsetReset, pb.GroupOffsetMove, {}),
    (values.DeadLetterResult, broker_pb.ResentDeadLetter, {"broker_name": "broker-a"}),
    (values.MessageSummary, pb.ClusterMessage, {}),
    (values.Message, pb.ClusterMessage, {}),
    (values.MessagePage, pb.SearchMessagesResponse, {}),
    (values.MessageDetail, pb.InspectMessageResponse, {}),
    (values.TestReceipt, pb.SendTestMessageResponse, {}),
    (values.KeptTail, pb.ClusterKeptTail, {}),
    (values.TailResult, pb.RestoreKeptTailResponse, {"tail": _KEPT_TAIL, "dry_run": True}),
    (values.AcceptedLoss, pb.AcceptGroupLossResponse, {"dry_run": True}),
    (values.HandOver, pb.FailOverGroupResponse, {"dry_run": True}),
    (values.BrokerSettings, pb.GetBrokerSettingsResponse, {"broker": "broker-a:0"}),
    (values.ConfigChange, broker_pb.SettingChange, {"broker": "broker-a:0"}),
    (values.EventLine, pb.ClusterEvent, {}),
)


def _values_of_type(value_type: Any, **fixed: object) -> st.SearchStrategy[Any]:
    """Values of a dataclass, with these attributes fixed."""
    hints = get_type_hints(value_type)
    parts = {
        field.name: st.just(fixed[field.name]) if field.name in fixed else _of_hint(field.name, hints[field.name])
        for field in fields(value_type)
    }
    return st.builds(value_type, **parts)


def _of_hint(name: str, hint: Any) -> st.SearchStrategy[Any]:
    if is_dataclass(hint):
        return _values_of_type(hint)
    if get_origin(hint) is Sequence:
        return st.lists(_of_hint(name, get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) is Mapping:
        return st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
    if get_origin(hint) is UnionType:
        return st.one_of(*(_of_hint(name, each) for each in get_args(hint)))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    plain: dict[Any, Callable[[], st.SearchStrategy[Any]]] = {
        int: lambda: st.integers(0 if name == "body_crc" else -1, 1 << (40 if name.endswith("_ms") else 30)),
        str: lambda: st.sampled_from(CATEGORIES) if name == "category" else st.text(max_size=5),
        float: lambda: st.integers(0, 1 << 30).map(lambda us: us / 1_000),
        bool: st.booleans,
        bytes: lambda: st.binary(max_size=5),
        type(None): st.none,
    }
    return plain[hint]()


@pytest.mark.parametrize(
    ("value_type", "message_type", "unsaid"), _ANSWERS, ids=lambda each: getattr(each, "__name__", "")
)
@settings(max_examples=30)
@given(data=st.data())
def test_an_answer_goes_there_and_back(
    value_type: type, message_type: type[Message], unsaid: dict[str, object], data: st.DataObject
) -> None:
    value = data.draw(_values_of_type(value_type, **unsaid))
    message = message_type.FromString(as_message(message_type, value).SerializeToString())
    assert as_value(value_type, message, **unsaid) == value


def test_what_is_not_known_is_left_out() -> None:
    never = as_message(pb.TopicExtent, values.Extent("broker-a", 0, 0, 0))
    assert never.HasField("queue")
    assert not never.queue.HasField("oldest_store_time")
    copy = as_message(pb.MessageCopy, values.ReplicaCopy("broker-a:0", True, "ab", None, True, "holds it"))
    assert not copy.HasField("equal")


def test_a_question_that_leaves_something_out_has_its_default() -> None:
    assert as_value(GroupChange, pb.PutClusterGroupRequest(name="g", enabled=False)) == GroupChange("g", enabled=False)
    assert as_value(TopicChange, pb.PutClusterTopicRequest(name="t")) == TopicChange("t")


def test_a_kind_of_topic_that_the_message_does_not_know_is_unspecified() -> None:
    summary = as_message(pb.TopicSummary, values.TopicSummary("t", "new kind", ()))
    assert (summary.category, as_value(values.TopicSummary, summary).category) == (pb.TOPIC_CATEGORY_UNSPECIFIED, "")


def test_what_a_caller_gives_stands_in() -> None:
    page = values.Page((values.Unseen("a", "b"),), 1, 50, 7)
    answer = as_message(pb.ListClusterTopicsResponse, page, topics=(), next_page_token="2")
    assert (answer.total_count, answer.next_page_token) == (7, "2")
    assert as_value(values.Unseen, pb.Unseen(subject="a"), reason="away") == values.Unseen("a", "away")
