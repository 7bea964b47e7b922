"""The mapper makes the same bytes of every answer as the functions written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.admin.api import operations_answers as answers
from tandemmq.admin.operations import values
from tandemmq.admin.protobuf import as_message
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as broker_pb
from tandemmq.proto.admin.v1 import cluster_operations_service_pb2 as pb
from unit.admin.test_protobuf import values_of_type


def _loss(loss: values.AcceptedLoss) -> Message:
    missing = [replace(one, last_seen_ms=one.last_seen_ms or -1) for one in loss.missing]
    return as_message(pb.AcceptGroupLossResponse, replace(loss, missing=missing))


def _tail(result: values.TailResult) -> Message:
    messages = [replace(one, queue_id=max(0, one.queue_id), store_ms=max(0, one.store_ms)) for one in result.messages]
    return as_message(pb.RestoreKeptTailResponse, replace(result, messages=messages))


@pytest.mark.parametrize(
    ("value_type", "old", "new"),
    [
        (values.ChangeResult, answers.change_report, lambda v: as_message(pb.ChangeReport, v)),
        (values.TopicDetail, answers.topic_answer, lambda v: as_message(pb.GetClusterTopicResponse, v)),
        (values.GroupDetail, answers.group_answer, lambda v: as_message(pb.GetClusterGroupResponse, v)),
        (values.OffsetReset, answers.offset_move, lambda v: as_message(pb.GroupOffsetMove, v)),
        (values.DeadLetterResult, answers.resent_letter, lambda v: as_message(broker_pb.ResentDeadLetter, v)),
        (values.AcceptedLoss, answers.accepted_loss, _loss),
        (values.TailResult, answers.restored_tail, _tail),
        (values.MessagePage, answers.message_page, lambda v: as_message(pb.SearchMessagesResponse, v)),
        (values.Message, answers.cluster_message, lambda v: as_message(pb.ClusterMessage, v)),
        (values.MessageDetail, answers.inspected_message, lambda v: as_message(pb.InspectMessageResponse, v)),
        (values.TestReceipt, answers.receipt, lambda v: as_message(pb.SendTestMessageResponse, v)),
        (values.Setting, answers.setting_view, lambda v: as_message(broker_pb.SettingView, v)),
        (values.EventLine, answers.cluster_event, lambda v: as_message(pb.ClusterEvent, v)),
    ],
)
@given(data=st.data())
def test_bytes_are_the_same(value_type: type, old: Any, new: Any, data: st.DataObject) -> None:
    value = data.draw(values_of_type(value_type))
    by_hand, mapped = old(value), new(value)
    assert type(by_hand) is type(mapped)
    assert by_hand.SerializeToString(deterministic=True) == mapped.SerializeToString(deterministic=True)


@given(
    topics=st.lists(values_of_type(values.TopicSummary), max_size=3),
    groups=st.lists(values_of_type(values.GroupSummary), max_size=3),
    clients=st.lists(values_of_type(values.Client), max_size=3),
    number=st.integers(1, 3),
    unseen=st.lists(values_of_type(values.Unseen), max_size=2),
)
def test_pages_are_the_same(
    topics: list[Any], groups: list[Any], clients: list[Any], number: int, unseen: list[Any]
) -> None:
    def page(items: list[Any]) -> values.Page[Any]:
        return values.Page(items, number, 2, 6, unseen)

    token = str(number + 1) if number < 3 else ""
    pairs: list[tuple[Message, Message]] = [
        (
            answers.topic_list(page(topics)),
            as_message(pb.ListClusterTopicsResponse, page(topics), topics=topics, next_page_token=token),
        ),
        (
            answers.group_list(page(groups)),
            as_message(pb.ListClusterGroupsResponse, page(groups), groups=groups, next_page_token=token),
        ),
        (
            answers.client_list(page(clients)),
            as_message(pb.ListClusterClientsResponse, page(clients), clients=clients),
        ),
    ]
    for by_hand, mapped in pairs:
        assert by_hand.SerializeToString(deterministic=True) == mapped.SerializeToString(deterministic=True)


@given(
    tails=st.lists(values_of_type(values.KeptTail, kept_ms=7), max_size=3),
    unseen=st.lists(values_of_type(values.Unseen)),
)
def test_kept_tails_are_the_same(tails: list[Any], unseen: list[Any]) -> None:
    mapped = as_message(pb.ListClusterKeptTailsResponse, tails=tails, unseen=unseen)
    assert answers.kept_tail_list(tails, unseen) == mapped
