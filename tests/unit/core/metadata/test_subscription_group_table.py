"""Consumer groups of a broker."""

from __future__ import annotations

import pytest

from tandemmq.core.metadata.metadata_store import DataVersion, InvalidGroup
from tandemmq.core.metadata.subscription_group_table import (
    SYSTEM_GROUPS,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    system_subscription_groups,
)


def test_a_file_of_rocketmq_4_gets_the_defaults_of_5() -> None:
    table = SubscriptionGroupTable()
    table.load_json(
        '{"dataVersion":{"counter":3,"timestamp":9},"subscriptionGroupTable":{"G":{"brokerId":0,'
        '"consumeBroadcastEnable":false,"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"G",'
        '"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":3,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}}}'
    )
    assert table.version == DataVersion(0, 9, 3)
    assert table.get("G") == SubscriptionGroupConfig("G", consume_broadcast_enable=False, retry_max_times=3)


def test_attempts_count_the_first_delivery() -> None:
    assert SubscriptionGroupConfig("G").max_attempts == 17


@pytest.mark.parametrize(
    "config",
    [
        SubscriptionGroupConfig(""),
        SubscriptionGroupConfig("a@b"),
        SubscriptionGroupConfig("g" * 256),
        SubscriptionGroupConfig("G", retry_max_times=-1),
    ],
)
def test_a_group_outside_the_limits_is_refused(config: SubscriptionGroupConfig) -> None:
    with pytest.raises(InvalidGroup):
        SubscriptionGroupTable().put(config, now_ms=0)


def test_changes_make_versions_and_a_slave_takes_everything() -> None:
    master, slave = SubscriptionGroupTable(), SubscriptionGroupTable()
    for group in system_subscription_groups():
        assert master.put(group, now_ms=1)
    assert not master.put(SubscriptionGroupConfig(SYSTEM_GROUPS[0]), now_ms=2)
    assert master.remove(SYSTEM_GROUPS[1], now_ms=3)
    assert not master.remove("none", now_ms=4)
    assert master.version == DataVersion(0, 3, 9)
    slave.put(SubscriptionGroupConfig(SYSTEM_GROUPS[1]), now_ms=9)
    assert slave.apply_from_master(master.to_json(), master.version) == []
    assert slave.to_json() == master.to_json()
    assert len(slave) == 7


def test_a_slave_keeps_groups_that_nobody_removed() -> None:
    master, slave = SubscriptionGroupTable(), SubscriptionGroupTable()
    slave.put(SubscriptionGroupConfig("G"), now_ms=9)
    notices = slave.apply_from_master(master.to_json(), master.version)
    assert notices == ["group G: kept, since the master lacks it and nobody deleted it"]
    assert slave.get("G") is not None


def test_the_forbidden_table_is_kept_for_java_readers() -> None:
    table = SubscriptionGroupTable()
    table.load_json('{"forbiddenTable":{"G":{"T":4}},"subscriptionGroupTable":{}}')
    assert '"forbiddenTable":{\n\t\t"G":{\n\t\t\t"T":4\n\t\t}\n\t}' in table.to_json()


@pytest.mark.parametrize(("text", "factor"), [(None, 100), ("0", 0), ("75", 75), ("soon", 100), ("900", 100)])
def test_the_priority_factor_is_a_percentage_whatever_a_file_says(text: str | None, factor: int) -> None:
    attributes = {} if text is None else {"priority.factor": text}
    assert SubscriptionGroupConfig("G", attributes=attributes).priority_factor == factor


def test_a_priority_factor_that_is_no_percentage_is_refused() -> None:
    with pytest.raises(InvalidGroup, match=r"priority\.factor 101"):
        SubscriptionGroupTable().put(SubscriptionGroupConfig("G", attributes={"priority.factor": "101"}), now_ms=1)
