"""What of a broker follows which setting."""

from __future__ import annotations

import logging
import random

import pytest

from support.messages import outgoing_message
from support.queue_memory import QueueMemory
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, new_store
from tandemmq.broker.client_api.services import ApiOptions
from tandemmq.broker.runtime_settings import RuntimeSettings, SettingsRefused, master_setting_appliers, setting_appliers
from tandemmq.broker.send_room import SendRoom
from tandemmq.broker.settings import BrokerSettings
from tandemmq.broker.tracing.observability import BrokerObservability
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import copy_of_record
from tandemmq.core.quotas import QuotaRules
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.service.logging import LevelSwitch
from tandemmq.service.settings import load_settings


class Parts:
    """Parts of a broker that follow settings."""

    def __init__(self, *overrides: str) -> None:
        settings = load_settings(BrokerSettings, environ={}, overrides=overrides)
        self.disk = SimulatedDisk(random.Random(1))
        self.store = new_store(self.disk)
        self.store.load()
        self.queues = QueueMemory()
        self.leases = LeaseTable(self.queues, options=DeliveryOptions(), broker_name="broker-a", nonce=lambda: 1)
        self.api_options = ApiOptions()
        self.read_rates: list[int] = []
        self.quotas: list[QuotaRules] = []
        self.room = SendRoom(lambda _delay_s, _callback: None)
        self.observability = BrokerObservability(
            settings, identity=BrokerIdentity("cluster", "broker-a", 0), clock=ManualClock()
        )
        self.log_level = LevelSwitch("WARNING")
        appliers = setting_appliers(
            store=self.store,
            observability=self.observability,
            audit_read_rate=self.read_rates.append,
            client_quotas=self.quotas.append,
            send_room=self.room,
            log_level=self.log_level,
        )
        if settings.is_master:
            appliers |= master_setting_appliers(store=self.store, leases=self.leases, options=self.api_options)
        self.settings = RuntimeSettings(settings, lambda: appliers)

    def change(self, **values: str) -> None:
        assert len(self.settings.change(values)) == len(values)

    def changeable(self) -> set[str]:
        """Keys that can change."""
        return {state.key for state in self.settings.all() if state.changeable}


def test_a_slave_follows_what_is_its_own_and_traces_only_where_there_are_some() -> None:
    slaves = {
        "auditReadRate",
        "clientQuotas",
        "clockJumpMax",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "fileReservedTime",
        "logLevel",
        "unacknowledgedSendsMax",
    }
    assert Parts("brokerRole=SLAVE", "brokerId=1", "namesrvAddr=localhost:9876").changeable() == slaves
    masters = slaves | {
        "autoCreateSubscriptionGroup",
        "consumeFromEarliest",
        "deduplicationIdsMax",
        "defaultTopicQueueNums",
        "deleteUnreadWhenFull",
        "maxDelayTimeMills",
        "maxInflightPerQueue",
        "maxLiteSubscriptionCount",
        "maxLmqConsumeQueueNum",
        "maxMessageSize",
        "timerMaxDelaySec",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionTimeOut",
        "transactionsMax",
        "unreadReservedTime",
        "unreplicatedReservedTime",
    }
    assert Parts().changeable() == masters
    assert Parts("traceEnable=true").changeable() == masters | {"traceSampleRate", "traceSlowThreshold"}


def test_topics_that_clients_make_have_as_many_queues_as_is_set_now() -> None:
    parts = Parts("autoCreateTopicEnable=true")
    parts.change(defaultTopicQueueNums="3")
    assert parts.api_options.auto_create_topic_queues == 3


def test_larger_messages_are_refused_at_once_and_those_taken_before_are_stored_again() -> None:
    """Delayed messages, halves and dead letters: refused, they would hold up others of their batch, too."""
    parts = Parts()
    taken = parts.store.put(outgoing_message(body=b"12345"))
    parts.change(maxMessageSize="4")
    assert parts.api_options.max_message_bytes == 4
    record = parts.store.message_at(taken.physical_offset)
    copy = copy_of_record(record, "later", 0, decode_properties(record.properties), reconsume_times=0)
    results = parts.store.put_batch([outgoing_message(body=b"1234"), copy])
    assert [result.status for result in results] == [PutStatus.PUT_OK, PutStatus.PUT_OK]


def test_the_store_refuses_a_fuller_disk_at_once() -> None:
    parts = Parts()
    assert parts.store.put(outgoing_message()).status is PutStatus.PUT_OK
    used = parts.disk.usage().used_ratio
    assert 0 < used < 0.5
    low = str(used / 2)
    parts.change(diskMaxUsedSpaceRatio=low, diskSpaceCleanForciblyRatio=low, diskSpaceWarningLevelRatio=low)
    assert parts.store.refusal is not None
    parts.change(diskSpaceWarningLevelRatio="0.9")
    assert parts.store.refusal is None


def test_quotas_follow_and_bad_ones_are_refused_with_what_is_wrong() -> None:
    parts = Parts()
    parts.change(clientQuotas="topic:orders sentMessages=5; address:* connections=2")
    [rules] = parts.quotas
    assert str(rules) == "topic:orders sentMessages=5; address:* connections=2"
    with pytest.raises(SettingsRefused, match=r"clientQuotas.*'messages=5' is no limit; write one of sentMessages"):
        parts.settings.change({"clientQuotas": "topic:orders messages=5"})
    assert len(parts.quotas) == 1


def test_a_group_starts_where_the_setting_says_now() -> None:
    parts = Parts()
    parts.queues.put("T", 0)
    parts.leases.open("before", "T", [0])
    parts.change(consumeFromEarliest="true")
    parts.leases.open("after", "T", [0])
    assert parts.leases.committed("before", "T", 0) == 1
    assert parts.leases.committed("after", "T", 0) == 0


def test_traces_follow() -> None:
    parts = Parts("traceEnable=true")
    tracing, tracer = parts.observability.tracing, parts.observability.send_tracer
    assert tracing is not None
    assert tracer is not None
    parts.change(traceSampleRate="1", traceSlowThreshold="7")
    assert tracing.sampler.takes()
    assert tracer.slow_ns == 7_000_000
    assert parts.observability.trace_options is tracing.options
    parts.change(traceSlowThreshold="0")
    assert tracer.slow_ns > 1 << 60


def test_the_rest_follows() -> None:
    parts = Parts()
    before = logging.getLogger().level
    try:
        parts.change(
            auditReadRate="5", autoCreateSubscriptionGroup="false", logLevel="ERROR", defaultTopicQueueNums="3"
        )
        assert logging.getLogger().level == logging.ERROR
        parts.change(logLevel="")
        assert logging.getLogger().level == logging.WARNING
    finally:
        logging.getLogger().setLevel(before)
    assert parts.read_rates == [5]
    assert not parts.api_options.auto_create_subscription_group
    assert parts.settings.current.default_topic_queue_nums == 3
