"""What an operator's change makes of a consumer group."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.peer_api.admin import changed_group
from tandemmq.core.metadata.metadata_store import InvalidGroup
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as pb

NAMES = st.sampled_from(["lite.bind.topic", "lite.sub.model", "lite.sub.client.quota", "priority.factor"])
ATTRIBUTES = st.dictionaries(NAMES, st.sampled_from(["", "1", "sessions", "Exclusive"]))


@given(before=ATTRIBUTES, asked=ATTRIBUTES, factor=st.none() | st.integers(0, 100))
def test_attributes_that_are_not_named_stay_and_empty_ones_go(
    before: dict[str, str], asked: dict[str, str], factor: int | None
) -> None:
    before = {name: value for name, value in before.items() if value}
    group = SubscriptionGroupConfig("g", retry_max_times=3, attributes=MappingProxyType(before))
    request = pb.UpdateSubscriptionGroupRequest(group="g", attributes=asked, priority_factor=factor)
    after = changed_group(group, request)
    wanted = before | ({} if factor is None else {"priority.factor": str(factor)}) | asked
    assert after.attributes == {name: value for name, value in wanted.items() if value}
    assert after.retry_max_times == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("lite.sub.model", "shared"), ("lite.sub.client.quota", "0"), ("lite.sub.client.quota", "many")],
)
def test_bad_attributes_name_themselves(name: str, value: str) -> None:
    request = pb.UpdateSubscriptionGroupRequest(group="g", attributes={name: value})
    with pytest.raises(InvalidGroup, match=name):
        changed_group(SubscriptionGroupConfig("g"), request).check()
