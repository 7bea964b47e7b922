from __future__ import annotations

import pytest

from tandemmq.core.routing.route_table import QueuePermission, external_route, queue_rows
from tandemmq.core.routing.values import (
    Address,
    AddressScheme,
    BrokerData,
    BrokerEndpoints,
    QueueData,
    TopicRoute,
    host_of,
    host_port,
    parse_address,
    peer_host,
)

READ, WRITE, BOTH = QueuePermission.READ, QueuePermission.WRITE, QueuePermission.READ_WRITE


def group(broker_name: str, *broker_ids: int) -> BrokerData:
    endpoints = {broker_id: BrokerEndpoints(f"{broker_name}-{broker_id}:8081") for broker_id in broker_ids}
    return BrokerData("DefaultCluster", broker_name, endpoints)


def route(queues: QueueData, *broker_ids: int) -> TopicRoute:
    return TopicRoute("orders", (queues,), (group(queues.broker_name, *broker_ids),))


def permissions(read_count: int, write_count: int, permission: int) -> list[QueuePermission]:
    return [row.permission for row in queue_rows(route(QueueData("a", read_count, write_count, permission), 0))]


def test_only_the_masters_rows_are_listed() -> None:
    rows = queue_rows(route(QueueData("a", 2, 2, 6), 0, 1))
    assert [(row.queue_id, row.broker_id, row.address.host) for row in rows] == [(0, 0, "a-0"), (1, 0, "a-0")]


def test_group_without_a_master_has_no_rows() -> None:
    assert queue_rows(route(QueueData("a", 2, 2, 6), 1, 2)) == []


def test_an_address_that_stays_goes_before_the_masters_own_and_stands_alone() -> None:
    members = {
        broker_id: BrokerEndpoints(
            f"10.0.0.{broker_id}:8081", client_external="out:1", forwards=True, client_group="a:8081"
        )
        for broker_id in (1, 2)
    }
    found = TopicRoute("orders", (QueueData("a", 1, 1, 6),), (BrokerData("DefaultCluster", "a", members, master_id=2),))
    (row,) = queue_rows(found)
    assert (row.address.host, row.stand_ins) == ("a", ())
    (row,) = queue_rows(external_route(found))
    assert row.address.host == "out"


def test_a_group_without_a_master_is_read_from_the_slave_that_says_so_and_never_written() -> None:
    endpoints = {
        2: BrokerEndpoints("10.0.0.2:8081", reads=True, forwards=True),
        1: BrokerEndpoints("10.0.0.1:8081", forwards=True),
    }
    alone = BrokerData("DefaultCluster", "a", endpoints)
    rows = queue_rows(TopicRoute("orders", (QueueData("a", 2, 3, 6),), (alone,)))
    assert [(row.queue_id, row.broker_id, row.permission) for row in rows] == [(0, 0, READ), (1, 0, READ)]
    assert [(row.address.host, [each.host for each in row.stand_ins]) for row in rows] == 2 * [
        ("10.0.0.2", ["10.0.0.1"])
    ]
    # A slave that has not heard of the master yet.
    led = BrokerData("DefaultCluster", "a", {**endpoints, 0: BrokerEndpoints("10.0.0.3:8081")}, master_id=0)
    rows = queue_rows(TopicRoute("orders", (QueueData("a", 1, 1, 6),), (led,)))
    assert [(row.address.host, row.permission) for row in rows] == [("10.0.0.3", BOTH)]


def test_external_route_names_external_endpoints_and_leaves_out_who_has_none() -> None:
    outside = BrokerEndpoints("a-0:8081", "a-0:10911", "a-0:10912", "mq.example.org:30081")
    found = external_route(
        TopicRoute(
            "orders",
            (QueueData("a", 1, 1, 6), QueueData("b", 1, 1, 6)),
            (BrokerData("DefaultCluster", "a", {0: outside}), group("b", 0, 1)),
        )
    )
    assert [(row.broker_name, row.address.host, row.address.port) for row in queue_rows(found)] == [
        ("a", "mq.example.org", 30081)
    ]
    assert [len(broker_group.endpoints) for broker_group in found.brokers] == [1, 0]


@pytest.mark.parametrize("host", ["mq-0.mq.ns.svc", "10.0.0.1", "fd00::1"])
def test_host_and_port_are_read_as_they_were_written(host: str) -> None:
    address = parse_address(host_port(host, 8081))
    assert address is not None
    assert (address.host, address.port) == (host, 8081)


def test_neighbouring_rows_are_of_different_groups() -> None:
    both = TopicRoute("orders", (QueueData("a", 2, 2, 6), QueueData("b", 3, 3, 6)), (group("a", 0), group("b", 0)))
    assert [f"{row.broker_name}{row.queue_id}" for row in queue_rows(both)] == ["a0", "b0", "a1", "b1", "b2"]


@pytest.mark.parametrize(
    ("read_count", "write_count", "permission", "expected"),
    [
        (2, 2, 6, [BOTH, BOTH]),
        (3, 1, 6, [READ, READ, BOTH]),
        (1, 3, 6, [WRITE, WRITE, BOTH]),
        (2, 3, 4, [READ, READ]),
        (2, 3, 2, [WRITE, WRITE, WRITE]),
        (2, 2, 0, []),
        (2, 2, 1, []),
    ],
)
def test_permission_of_each_row(
    read_count: int, write_count: int, permission: int, expected: list[QueuePermission]
) -> None:
    assert permissions(read_count, write_count, permission) == expected


@pytest.mark.parametrize(
    ("message_type", "expected"),
    [
        ("", ("NORMAL",)),
        ("FIFO", ("FIFO",)),
        ("fifo", ("NORMAL",)),
        ("MIXED", ("NORMAL", "FIFO", "DELAY", "TRANSACTION")),
    ],
)
def test_accepted_types_are_never_empty(message_type: str, expected: tuple[str, ...]) -> None:
    rows = queue_rows(route(QueueData("a", 1, 1, 6, message_type=message_type), 0))
    assert rows[0].accept_types == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:8081", Address("10.0.0.1", 8081, AddressScheme.IPV4)),
        ("[fd00::1]:8081", Address("fd00::1", 8081, AddressScheme.IPV6)),
        ("broker-a-0.broker-a:8081", Address("broker-a-0.broker-a", 8081, AddressScheme.DOMAIN_NAME)),
        ("", None),
        ("broker", None),
        (":8081", None),
        ("broker:0", None),
        ("broker:65536", None),
        ("broker:8o81", None),
        ("fd00::1:8081", None),
        ("http://broker:80", None),
    ],
)
def test_address(text: str, expected: Address | None) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("ipv6:[fd00::1]:5000", "fd00::1"),
        ("ipv6:%5Bfd00::1%5D:5000", "fd00::1"),
        ("ipv6:[fe80::1%eth0]:5000", "fe80::1%eth0"),
        ("ipv6:[::ffff:10.0.0.1]:5000", "::ffff:10.0.0.1"),
        ("unix:", ""),
        ("unix:/run/a:5000", ""),
        ("", ""),
    ],
)
def test_the_host_of_a_grpc_peer(peer: str, host: str) -> None:
    assert peer_host(peer) == host


def test_the_host_of_an_address() -> None:
    assert [host_of(text) for text in ("a-0.a:10912", "[::1]:10912", "10.0.0.1:1", "")] == [
        "a-0.a",
        "::1",
        "10.0.0.1",
        "",
    ]
