"""ClusterService over a call in the test's hands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pydantic import SecretStr

from support.admin_readings import cached
from support.cluster_states import healthy_cluster, master, with_broker
from support.fake_call import FakeCall
from tandemmq.admin.api.access import Access, AccessRules
from tandemmq.admin.api.cluster_grpc import ClusterServicer, guarded
from tandemmq.admin.cluster_state import BrokerStatus, ClusterState
from tandemmq.admin.settings import AdminSettings
from tandemmq.proto.admin.v1 import cluster_service_pb2 as pb
from tandemmq.service.http2_front import reflection_table
from tandemmq.service.protobuf import as_value
from tandemmq.service.rpc import BidiMethod, MethodTable, ServerStreamMethod, StatusCode, UnaryMethod
from tandemmq.service.settings import load_settings

# What the message tells in other words.
_BESIDE: Final[dict[str, Any]] = {"loop_stall_count": 0, "longest_loop_stall_ms": 0, "problems": ()}


class _Call(FakeCall):
    """Watches are kept by call."""

    __hash__ = object.__hash__


def _get(table: MethodTable, call: FakeCall) -> FakeCall:
    method = table.methods["GetClusterState"]
    assert isinstance(method, UnaryMethod)
    method.handler(pb.GetClusterStateRequest(), call)
    return call


def _watch(table: MethodTable, call: FakeCall) -> FakeCall:
    method = table.methods["WatchClusterState"]
    assert isinstance(method, ServerStreamMethod)
    method.handler(pb.WatchClusterStateRequest(), call)
    return call


async def test_state_is_unavailable_before_the_first_reading() -> None:
    cluster, _, clock = cached()
    assert _get(ClusterServicer(cluster, clock=clock).method_table(), _Call()).code is StatusCode.UNAVAILABLE


async def test_state_has_everything_the_reading_has() -> None:
    lost = replace(master("broker-b"), status=None, error="UNAVAILABLE: gone", registered=False)
    cluster, _, clock = cached(with_broker(healthy_cluster(), lost))
    await cluster.read_once()
    clock.advance(700)
    call = _get(ClusterServicer(cluster, clock=clock).method_table(), _Call())
    state = call.only(pb.GetClusterStateResponse).state
    assert (state.healthy, state.revision, state.age.ToMilliseconds()) == (False, 1, 700)
    assert state.read_time.ToMilliseconds() == clock.wall_ms() - 700
    assert state.findings[0].severity == pb.SEVERITY_PROBLEM
    assert [server.address for server in state.name_servers] == ["127.0.0.1:9876", "127.0.0.1:9877"]
    leader, follower, silent = state.brokers
    assert (leader.status.role, leader.status.slaves[0].lag_bytes, leader.status.put_counts["PUT_OK"]) == (
        "SYNC_MASTER",
        67,
        90,
    )
    told = master().status
    assert told is not None
    assert leader.status.broker_name == "broker-a"
    assert as_value(BrokerStatus, leader.status, **_BESIDE) == replace(told, **_BESIDE)
    assert not leader.status.HasField("master_link")
    assert follower.status.master_link.state == "transfer"
    assert (silent.registered, silent.HasField("status"), silent.error) == (False, False, "UNAVAILABLE: gone")


async def test_watch_gives_what_is_there_and_every_later_reading() -> None:
    cluster, _, clock = cached()
    await cluster.read_once()
    call = _watch(ClusterServicer(cluster, clock=clock).method_table(), _Call())
    await cluster.read_once()
    assert [_revision(message) for message in call.sent] == [1, 2]
    call.cancel()
    assert cluster.listener_count == 0


async def test_watches_end_when_the_service_stops() -> None:
    cluster, _, clock = cached()
    servicer = ClusterServicer(cluster, clock=clock)
    call = _watch(servicer.method_table(), _Call())
    servicer.end_watches()
    assert (call.code, cluster.listener_count) == (StatusCode.UNAVAILABLE, 0)


async def test_watches_are_limited_in_number() -> None:
    cluster, _, clock = cached()
    table = ClusterServicer(cluster, clock=clock).method_table()
    calls = [_watch(table, _Call()) for _ in range(101)]
    assert [call.code for call in calls[:100]] == [None] * 100
    assert calls[100].code is StatusCode.RESOURCE_EXHAUSTED


async def test_other_hosts_are_refused_without_the_token() -> None:
    cluster, _, clock = cached(ClusterState(name_servers=(), brokers=()))
    await cluster.read_once()
    access = Access(SecretStr("correct-horse-battery"))
    table = guarded(ClusterServicer(cluster, clock=clock).method_table(), access)
    stranger = "ipv4:10.0.0.7:50000"
    refused = _get(table, _Call(peer=stranger))
    assert refused.code is StatusCode.UNAUTHENTICATED
    assert "kubectl port-forward" in refused.detail
    assert _watch(table, _Call(peer=stranger)).code is StatusCode.UNAUTHENTICATED
    token = {"authorization": "Bearer correct-horse-battery"}
    assert _get(table, _Call(peer=stranger, metadata=token)).code is StatusCode.OK
    assert _get(table, _Call()).code is StatusCode.OK


async def test_a_proxys_word_about_its_users_is_not_taken_over_grpc() -> None:
    cluster, _, clock = cached(ClusterState(name_servers=(), brokers=()))
    await cluster.read_once()
    settings = load_settings(AdminSettings, environ={}, overrides=["trustedProxies=10.0.0.7/32"])
    access = Access(SecretStr("correct-horse-battery"), AccessRules.of(settings))
    table = guarded(ClusterServicer(cluster, clock=clock).method_table(), access)
    forged = _Call(peer="ipv4:10.0.0.7:50000", metadata={"x-forwarded-user": "ada"})
    assert _get(table, forged).code is StatusCode.UNAUTHENTICATED


async def test_reflection_is_guarded_too() -> None:
    table = guarded(reflection_table(["some.Service"]), Access(SecretStr("correct-horse-battery")))
    method = table.methods["ServerReflectionInfo"]
    assert isinstance(method, BidiMethod)
    call = _Call(peer="ipv4:10.0.0.7:50000")
    method.handler(call).half_closed()
    assert call.code is StatusCode.UNAUTHENTICATED


def _revision(message: Any) -> int:
    return int(message.state.revision)
