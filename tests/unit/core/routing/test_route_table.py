from __future__ import annotations

from dataclasses import replace

from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.routing.route_table import (
    ORDER_TOPIC_NAMESPACE,
    HeartbeatAnswer,
    HeartbeatStatus,
    Registered,
    RegistrationRefused,
    RouteTable,
)
from tandemmq.core.routing.values import (
    BrokerEndpoints,
    BrokerIdentity,
    Heartbeat,
    RegisteredBroker,
    Registration,
    ReplicaMemory,
    TopicQueues,
)

MASTER = BrokerIdentity("DefaultCluster", "broker-a", 0)
SLAVE = BrokerIdentity("DefaultCluster", "broker-a", 1)
SECOND_SLAVE = BrokerIdentity("DefaultCluster", "broker-a", 2)
OTHER_MASTER = BrokerIdentity("DefaultCluster", "broker-b", 0)
ORDERS = TopicQueues("orders", 4, 4, 6)
BILLS = TopicQueues("bills", 4, 4, 6)


def registration(
    identity: BrokerIdentity,
    *topics: TopicQueues,
    address: str = "",
    incarnation: int = 100,
    version: int = 1,
    timeout_ms: int = 1_000,
    disk_id: str = "",
    run: int = 0,
    epoch: int = 0,
    recovering: str = "",
) -> Registration:
    client = address or f"{identity.broker_name}-{identity.broker_id}:8081"
    return Registration(
        identity,
        BrokerEndpoints(client, client.replace(":8081", ":10911"), "ha:10912"),
        incarnation,
        timeout_ms,
        DataVersion(0, 0, version),
        topics,
        disk_id,
        run,
        epoch,
        recovering=recovering,
    )


def refused(table: RouteTable, announced: Registration, *, now_ms: int = 0) -> RegistrationRefused:
    answer = table.register(announced, now_ms=now_ms)
    assert isinstance(answer, RegistrationRefused), answer
    return answer


def register(table: RouteTable, announced: Registration, *, now_ms: int = 0) -> Registered:
    answer = table.register(announced, now_ms=now_ms)
    assert isinstance(answer, Registered), answer
    return answer


def beat(
    table: RouteTable,
    identity: BrokerIdentity,
    *,
    now_ms: int = 0,
    connection: int = 7,
    incarnation: int = 100,
    version: int = 1,
) -> HeartbeatStatus:
    beat = Heartbeat(identity, incarnation, DataVersion(0, 0, version))
    return table.heartbeat(beat, connection=connection, now_ms=now_ms).status


def heartbeat(table: RouteTable, *, epoch: int, end_offset: int = 0) -> HeartbeatAnswer:
    beat = Heartbeat(MASTER, 100, DataVersion(0, 0, 1), epoch, end_offset)
    return table.heartbeat(beat, connection=7, now_ms=0)


def identities(brokers: list[RegisteredBroker]) -> list[BrokerIdentity]:
    return [broker.identity for broker in brokers]


def permission(table: RouteTable, topic: str = "orders") -> int:
    route = table.route(topic)
    assert route is not None
    return route.queues[0].permission


# Routes


def test_route_names_queues_and_all_live_members() -> None:
    table = RouteTable()
    register(table, registration(OTHER_MASTER, ORDERS))
    register(table, registration(MASTER, ORDERS))
    register(table, registration(SLAVE))
    route = table.route("orders")
    assert route is not None
    assert [queues.broker_name for queues in route.queues] == ["broker-a", "broker-b"]
    assert [list(group.endpoints) for group in route.brokers] == [[0, 1], [0]]


def test_unknown_topic_has_no_route() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    assert table.route("bills") is None


def test_snapshot_agrees_with_single_routes_and_is_built_once_per_revision() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, BILLS))
    register(table, registration(OTHER_MASTER, ORDERS))
    snapshot = table.snapshot()
    assert snapshot.routes == {"bills": table.route("bills"), "orders": table.route("orders")}
    assert identities(list(snapshot.brokers)) == [MASTER, OTHER_MASTER]
    assert table.snapshot() is snapshot


def test_renewal_changes_no_revision() -> None:
    table = RouteTable()
    assert register(table, registration(MASTER, ORDERS)).is_change
    revision = table.revision
    answer = register(table, registration(MASTER, ORDERS), now_ms=500)
    assert (answer.is_new, answer.is_change) == (False, False)
    assert beat(table, MASTER) is HeartbeatStatus.ACCEPTED
    assert table.revision == revision


# Topic tables


def test_topic_table_of_a_slave_is_not_taken() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    register(table, registration(SLAVE, ORDERS, BILLS))
    assert table.route("bills") is None


def test_changed_topic_table_replaces_the_former_one() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    register(table, registration(MASTER, BILLS, version=2))
    assert table.route("orders") is None
    assert table.route("bills") is not None


def test_topic_table_of_the_same_version_is_not_read_again() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    register(table, registration(MASTER, BILLS))
    assert table.route("bills") is None


def test_smallest_slave_stands_in_while_there_was_no_master() -> None:
    table = RouteTable()
    register(table, registration(SLAVE, ORDERS))
    register(table, registration(SECOND_SLAVE, BILLS))
    assert table.route("orders") is not None
    assert table.route("bills") is None
    register(table, registration(SLAVE, ORDERS, BILLS, version=2))
    assert table.route("bills") is not None


def test_master_replaces_the_table_of_the_slave_that_stood_in() -> None:
    table = RouteTable()
    register(table, registration(SLAVE, ORDERS))
    register(table, registration(MASTER, BILLS))
    assert table.route("orders") is None
    assert table.route("bills") is not None


def test_topics_stay_when_the_master_goes_and_a_slave_does_not_replace_them() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    register(table, registration(SLAVE))
    table.unregister(MASTER, incarnation=100)
    register(table, registration(SLAVE, BILLS, version=2))
    route = table.route("orders")
    assert route is not None
    assert list(route.brokers[0].endpoints) == [1]
    assert table.route("bills") is None


def test_last_members_departure_removes_the_topics() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    register(table, registration(SLAVE))
    table.unregister(MASTER, incarnation=100)
    table.unregister(SLAVE, incarnation=100)
    assert table.route("orders") is None
    assert table.snapshot().routes == {}


# Identity


def test_later_process_replaces_the_earlier_one_at_another_address() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    answer = register(table, registration(MASTER, ORDERS, address="new-host:8081", incarnation=200))
    assert identities(list(answer.replaced)) == [MASTER]
    assert answer.master is not None
    assert answer.master.endpoints.client == "new-host:8081"


def test_earlier_process_cannot_push_out_a_live_later_one() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, incarnation=200))
    revision = table.revision
    answer = table.register(registration(MASTER, ORDERS, address="old-host:8081", incarnation=100), now_ms=0)
    assert isinstance(answer, RegistrationRefused)
    assert "broker-a-0:8081" in answer.reason
    assert table.revision == revision


def test_restart_with_a_clock_set_back_is_taken_at_the_same_address() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, incarnation=200))
    assert register(table, registration(MASTER, ORDERS, incarnation=100)).is_new


def test_wall_clock_set_back_does_not_keep_a_restarted_broker_out() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, incarnation=200, disk_id="disk", run=7))
    later = registration(MASTER, ORDERS, address="new-host:8081", incarnation=100, disk_id="disk", run=8)
    assert register(table, later).is_new
    # And the former process does not come back by its later clock.
    reason = refused(table, registration(MASTER, ORDERS, incarnation=300, disk_id="disk", run=7)).reason
    assert "copy" in reason


def test_one_that_recovers_does_not_push_out_one_that_serves_from_the_same_disk() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, disk_id="disk", run=7))
    copied = registration(MASTER, address="other:8081", incarnation=300, disk_id="disk", run=8, recovering="asks")
    assert "copy" in refused(table, copied).reason
    assert table.route("orders") is not None
    table.expire(now_ms=1_000)
    assert register(table, copied, now_ms=1_000).is_new


def test_master_on_a_copy_of_the_disk_stops_when_the_other_is_in_a_later_epoch() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, disk_id="disk", run=7, epoch=4))
    copied = registration(MASTER, ORDERS, address="other:8081", incarnation=300, disk_id="disk", run=6, epoch=3)
    answer = refused(table, copied)
    assert "copy" in answer.reason
    assert answer.is_superseded


def test_another_disk_waits_until_the_live_broker_has_gone() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, disk_id="disk-1", run=7, epoch=3))
    second = registration(MASTER, ORDERS, address="other:8081", incarnation=300, disk_id="disk-2", run=1, epoch=3)
    answer = refused(table, second)
    assert not answer.is_superseded
    for word in ("broker-a-0:8081", "disk-1", "other:8081", "disk-2", "Stop one of them"):
        assert word in answer.reason
    table.expire(now_ms=1_000)
    assert register(table, second, now_ms=1_000).is_new


def test_master_of_a_lower_epoch_is_superseded_after_its_successor_has_gone() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, disk_id="disk-2", run=1, epoch=4))
    table.expire(now_ms=1_000)
    answer = refused(table, registration(MASTER, ORDERS, incarnation=300, disk_id="disk-1", run=9, epoch=3))
    assert answer.is_superseded
    assert "disk-2" in answer.reason
    # It may recover, and then serve with a higher epoch; a slave is behind by nature.
    waiting = registration(MASTER, disk_id="disk-1", run=9, epoch=3, recovering="asks disk-2")
    assert register(table, waiting).master is not None
    assert register(table, registration(MASTER, ORDERS, disk_id="disk-1", run=9, epoch=5)).is_change
    assert register(table, registration(SLAVE, disk_id="disk-3", run=9, epoch=1)).is_new


def test_heartbeat_tells_a_master_that_it_is_superseded() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, disk_id="disk-1", run=9, epoch=3))
    assert heartbeat(table, epoch=3).superseded == ""
    # A slave met the later master before this NameServer did.
    later = ReplicaMemory(0, "disk-2", 1, 4, 100)
    register(table, replace(registration(SLAVE, disk_id="disk-3"), known_replicas=(later,)))
    assert "epoch 4 on disk disk-2" in heartbeat(table, epoch=3).superseded
    assert heartbeat(table, epoch=5).superseded == ""


def test_epoch_rises_by_heartbeat_and_a_growing_log_changes_no_revision() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, disk_id="disk-1", run=9, epoch=3))
    revision = table.revision
    assert not heartbeat(table, epoch=3, end_offset=900).is_change
    assert table.revision == revision
    assert heartbeat(table, epoch=4, end_offset=950).is_change
    [master] = table.brokers()
    assert (master.epoch, master.end_offset) == (4, 950)
    # A heartbeat tells no role: that it is master in epoch 4 is known from here on.
    assert register(table, registration(MASTER, ORDERS, disk_id="disk-1", run=9, epoch=4)).is_change
    assert not register(table, registration(MASTER, ORDERS, disk_id="disk-1", run=9, epoch=4)).is_change


# Recovery


def test_broker_that_recovers_is_listed_and_in_no_route() -> None:
    table = RouteTable()
    register(table, registration(SLAVE, ORDERS))
    answer = register(table, registration(MASTER, disk_id="disk-1", run=2, recovering="waits for its slave"))
    assert answer.master is not None
    assert (answer.master.recovering, answer.master.endpoints.ha) == ("waits for its slave", "")
    assert identities(table.brokers()) == [MASTER, SLAVE]
    route = table.route("orders")
    assert route is not None, "its empty topic table replaced the group's"
    assert list(route.brokers[0].endpoints) == [1]
    assert table.snapshot().routes == {"orders": route}
    served = register(table, registration(MASTER, ORDERS, BILLS, disk_id="disk-1", run=2))
    assert (served.is_new, served.is_change) == (False, True)
    assert table.route("bills") is not None


def test_group_of_brokers_that_recover_has_no_route() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, disk_id="disk-1", run=1))
    register(table, registration(MASTER, incarnation=200, disk_id="disk-1", run=2, recovering="asks"))
    assert table.route("orders") is None
    assert (table.snapshot().routes, table.topic_count) == ({}, 0)
    assert identities(table.brokers()) == [MASTER]


def test_brokers_without_an_address_yet_do_not_take_each_others_place() -> None:
    table = RouteTable()
    for identity, disk_id in ((MASTER, "disk-1"), (SLAVE, "disk-2")):
        waiting = registration(identity, disk_id=disk_id, recovering="asks")
        register(table, replace(waiting, endpoints=BrokerEndpoints("")))
    assert identities(table.brokers()) == [MASTER, SLAVE]


def test_role_switch_removes_the_entry_under_the_former_id() -> None:
    table = RouteTable()
    register(table, registration(SLAVE, ORDERS, address="host:8081"))
    answer = register(table, registration(MASTER, ORDERS, address="host:8081"))
    assert identities(list(answer.replaced)) == [SLAVE]
    assert identities(table.brokers()) == [MASTER]


def test_broker_name_belongs_to_one_cluster() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    answer = table.register(registration(BrokerIdentity("Other", "broker-a", 1)), now_ms=0)
    assert isinstance(answer, RegistrationRefused)
    assert "DefaultCluster" in answer.reason


def test_earlier_process_cannot_unregister_its_successor() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, incarnation=200))
    assert table.unregister(MASTER, incarnation=100) is None
    assert identities(table.brokers()) == [MASTER]
    assert table.unregister(MASTER, incarnation=0) is not None


def test_slave_is_told_its_master() -> None:
    table = RouteTable()
    assert register(table, registration(SLAVE)).master is None
    register(table, registration(MASTER, ORDERS))
    master = register(table, registration(SLAVE)).master
    assert master is not None
    assert master.identity == MASTER


# Liveness


def test_silent_member_expires_at_its_own_timeout() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, timeout_ms=1_000))
    register(table, registration(SLAVE, timeout_ms=5_000))
    assert table.expire(now_ms=999) == []
    assert identities(table.expire(now_ms=1_000)) == [MASTER]
    assert identities(table.brokers()) == [SLAVE]


def test_heartbeat_prolongs_life() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    assert beat(table, MASTER, now_ms=900) is HeartbeatStatus.ACCEPTED
    assert table.expire(now_ms=1_500) == []
    assert table.last_seen_ms(MASTER) == 900
    assert identities(table.expire(now_ms=1_900)) == [MASTER]


def test_heartbeat_of_an_unknown_or_earlier_process_is_no_sign_of_life() -> None:
    table = RouteTable()
    assert beat(table, MASTER) is HeartbeatStatus.BROKER_UNKNOWN
    register(table, registration(MASTER, ORDERS, incarnation=200))
    assert beat(table, MASTER, incarnation=100, now_ms=900) is HeartbeatStatus.BROKER_UNKNOWN
    assert identities(table.expire(now_ms=1_000)) == [MASTER]


def test_heartbeat_with_another_data_version_asks_for_the_table() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    assert beat(table, MASTER, version=2) is HeartbeatStatus.TABLE_UNKNOWN


def test_lost_stream_removes_its_members_at_once() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    beat(table, MASTER, connection=7)
    assert identities(table.connection_lost(7)) == [MASTER]
    assert table.route("orders") is None


def test_lost_stream_that_was_replaced_removes_nobody() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    beat(table, MASTER, connection=7)
    beat(table, MASTER, connection=8)
    assert table.connection_lost(7) == []


def test_lost_stream_of_a_former_process_does_not_touch_its_successor() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    beat(table, MASTER, connection=7)
    register(table, registration(MASTER, ORDERS, incarnation=200))
    assert table.connection_lost(7) == []


def test_renewed_registration_keeps_the_stream() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    beat(table, MASTER, connection=7)
    register(table, registration(MASTER, ORDERS, BILLS, version=2))
    assert identities(table.connection_lost(7)) == [MASTER]


# Write permission


def test_wiped_write_permission_returns_by_command() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS, TopicQueues("archive", 4, 4, 4)))
    assert table.wipe_write_permission("broker-a") == 1
    assert permission(table) == 4
    assert table.wipe_write_permission("broker-a") == 0
    assert table.add_write_permission("broker-a") == 1
    assert permission(table) == 6
    assert permission(table, "archive") == 4


def test_wipe_of_an_unknown_group_changes_nothing() -> None:
    table = RouteTable()
    assert table.wipe_write_permission("broker-x") == 0
    assert table.add_write_permission("broker-x") == 0
    assert table.revision == 0


def test_wipe_outlives_renewals_and_a_broken_connection() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    beat(table, MASTER, connection=7)
    table.wipe_write_permission("broker-a")
    register(table, registration(MASTER, ORDERS))
    assert permission(table) == 4
    table.connection_lost(7)
    register(table, registration(MASTER, ORDERS))
    assert permission(table) == 4


def test_changed_data_version_or_a_new_process_ends_a_wipe() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    table.wipe_write_permission("broker-a")
    register(table, registration(MASTER, ORDERS, version=2))
    assert permission(table) == 6
    table.wipe_write_permission("broker-a")
    register(table, registration(MASTER, ORDERS, version=2, incarnation=200))
    assert permission(table) == 6


# Key-value configuration


def test_key_value_configuration() -> None:
    table = RouteTable()
    table.put_kv("ns", "b", "2")
    table.put_kv("ns", "a", "1")
    assert table.list_kv("ns") == {"a": "1", "b": "2"}
    table.delete_kv("ns", "a")
    table.delete_kv("ns", "a")
    assert table.get_kv("ns", "a") is None
    assert table.revision == 0


def test_order_configuration_reaches_routes_and_registrants() -> None:
    table = RouteTable()
    register(table, registration(MASTER, ORDERS))
    revision = table.revision
    table.put_kv(ORDER_TOPIC_NAMESPACE, "orders", "broker-a:4")
    route = table.route("orders")
    assert route is not None
    assert route.order_topic_conf == "broker-a:4"
    assert table.revision > revision
    assert register(table, registration(MASTER, ORDERS)).order_topics == {"orders": "broker-a:4"}
