"""Which settings a running broker shows, which it changes, and what follows."""

from __future__ import annotations

import pytest

from tandemmq.broker.runtime_settings import RuntimeSettings, SettingChange, SettingsRefused
from tandemmq.broker.settings import BrokerSettings
from tandemmq.service.settings import load_settings


class Reached:
    """Settings as parts of a broker are told them."""

    def __init__(self, *overrides: str) -> None:
        self.store: list[int] = []
        self.sizes: list[int] = []
        settings = load_settings(BrokerSettings, environ={}, overrides=overrides)
        self.settings = RuntimeSettings(
            settings,
            lambda: {
                "fileReservedTime": self._to_store,
                "deleteWhen": self._to_store,
                "maxMessageSize": lambda changed: self.sizes.append(changed.max_message_size),
                "diskMaxUsedSpaceRatio": self._to_store,
                "autoCreateSubscriptionGroup": lambda _changed: None,
            },
        )

    def _to_store(self, settings: BrokerSettings) -> None:
        self.store.append(settings.file_reserved_time)

    def state(self, key: str) -> tuple[str, str, str, bool]:
        (one,) = (state for state in self.settings.all() if state.key == key)
        assert one.description
        return one.value, one.default_value, one.origin, one.changeable


def test_every_setting_is_shown_with_its_default_and_where_it_comes_from() -> None:
    reached = Reached("brokerName=broker-b", "fileReservedTime=24")
    assert len(reached.settings.all()) == len(BrokerSettings.model_fields)
    assert reached.state("brokerName") == ("broker-b", "broker-a", "configured", False)
    assert reached.state("fileReservedTime") == ("24", "72", "configured", True)
    assert reached.state("deleteWhen") == ("04", "04", "default", True)
    assert reached.state("inSyncReplicas") == ("", "", "default", False)
    assert reached.state("messageIndexEnable")[0] == "true"
    assert reached.state("brokerRole")[0] == "ASYNC_MASTER"


def test_a_change_reaches_its_part_once_and_says_what_it_was() -> None:
    reached = Reached()
    wanted = {"fileReservedTime": "24", "deleteWhen": "02;03", "autoCreateSubscriptionGroup": "false"}
    changes = [
        SettingChange("autoCreateSubscriptionGroup", "true", "false"),
        SettingChange("deleteWhen", "04", "02;03"),
        SettingChange("fileReservedTime", "72", "24"),
    ]
    assert reached.settings.changes(wanted) == changes
    assert reached.store == [], "a look changes nothing"
    assert reached.settings.change(wanted) == changes
    assert reached.store == [24]
    assert reached.state("fileReservedTime") == ("24", "72", "changed", True)
    assert reached.settings.change(wanted) == []
    assert reached.store == [24]
    reached.settings.change({"fileReservedTime": "72"})
    assert reached.state("fileReservedTime")[2] == "default", "as it was started"


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"fileReservedTimes": "3"}, "unknown key; did you mean fileReservedTime?"),
        ({"fileReservedTime": "many"}, "fileReservedTime=many (wanted): input should be a valid integer"),
        ({"deleteWhen": "25"}, "'25' is no hour of the day"),
        ({"brokerRole": "SYNC_MASTER"}, "brokerRole: cannot change while the broker runs"),
        ({"diskMaxUsedSpaceRatio": "0.89"}, "diskMaxUsedSpaceRatio <= diskSpaceCleanForciblyRatio"),
        ({"maxMessageSize": str(8 << 20)}, "it can be at most the 4194304 it was started with"),
        ({}, "name at least one setting"),
    ],
)
def test_all_or_nothing_is_changed(wanted: dict[str, str], problem: str) -> None:
    reached = Reached()
    with pytest.raises(SettingsRefused) as refused:
        reached.settings.change({"autoCreateSubscriptionGroup": "false", **wanted} if wanted else wanted)
    assert problem in str(refused.value)
    assert reached.store == []
    assert reached.state("autoCreateSubscriptionGroup")[0] == "true"


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(SettingsRefused) as refused:
        Reached().settings.change({"listenPort": "1", "brokerName": "other", "maxMessageSize": str(5 << 20)})
    assert str(refused.value).count("\n") == 2


def test_the_largest_message_may_shrink_and_grow_again_to_what_it_was() -> None:
    reached = Reached()
    reached.settings.change({"maxMessageSize": "1024"})
    reached.settings.change({"maxMessageSize": str(4 << 20)})
    assert reached.sizes == [1024, 4 << 20]


def test_messages_that_have_not_expired_are_not_deleted_by_a_setting() -> None:
    settings = load_settings(BrokerSettings, environ={}, overrides=())
    keys = ("diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio")
    reached: list[float] = []
    appliers = dict.fromkeys(keys, lambda changed: reached.append(changed.disk_space_clean_forcibly_ratio))
    runtime = RuntimeSettings(settings, lambda: appliers, disk_used_ratio=lambda: 0.6)
    with pytest.raises(SettingsRefused, match=r"the disk is 0\.60 used already"):
        runtime.change(dict.fromkeys(keys, "0.5"))
    runtime.change(dict.fromkeys(keys, "0.7"))
    runtime.change({"diskSpaceCleanForciblyRatio": "0.8"})
    assert reached == [0.7, 0.8]
