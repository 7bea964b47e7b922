"""What comes of a change of master on purpose, and why there is none."""

from __future__ import annotations

from types import SimpleNamespace

import grpc
import grpc.aio
import pytest

from support.cluster_states import master, slave
from support.fake_brokers import FakeQuestions, rpc_error
from support.manual_time import ManualTime
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.operations.brokers import FailoverOperations
from tandemmq.admin.operations.questions import FailureKind, Members, OperationFailed
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.proto.broker.v1 import failover_service_pb2 as pb


class _Group:
    """Two brokers and their record."""

    def __init__(self, *, acting: int | None = 0, refusal: str = "", fails_over: bool = True) -> None:
        self.acting = acting
        self.epoch = 1
        self.handed_over: list[int] = []
        self.refusal = refusal
        self.fails_over = fails_over

    def state(self, broker_id: int) -> pb.GetFailoverStateResponse:
        return pb.GetFailoverStateResponse(epoch=self.epoch, acts=broker_id == self.acting, problem=self.refusal)

    def operations(self) -> FailoverOperations:
        planes = {
            f"broker-a:{broker_id}": SimpleNamespace(failover=_Failover(self, broker_id), admin=_Admin(self, broker_id))
            for broker_id in (0, 1)
        }
        members = Members(lambda: ClusterState(name_servers=(), brokers=(master(), slave())))
        return FailoverOperations(members, FakeQuestions(planes), clock=ManualTime())


class _Failover:
    def __init__(self, group: _Group, broker_id: int) -> None:
        self._group = group
        self._broker_id = broker_id

    async def state(self) -> pb.GetFailoverStateResponse:
        if not self._group.fails_over:
            raise _refused("failoverAuthority: it is not set")
        return self._group.state(self._broker_id)

    async def hand_over(self, request: pb.HandOverRequest) -> pb.HandOverResponse:
        if self._group.refusal:
            raise _refused(self._group.refusal)
        to = request.to_broker_id if request.HasField("to_broker_id") else 1 - self._broker_id
        if not request.dry_run:
            self._group.handed_over.append(to)
            self._group.acting, self._group.epoch = to, self._group.epoch + 1
        return pb.HandOverResponse(to_broker_id=to)


class _Admin:
    def __init__(self, group: _Group, broker_id: int) -> None:
        self._group = group
        self._broker_id = broker_id

    async def status(self) -> admin_pb.GetBrokerStatusResponse:
        return admin_pb.GetBrokerStatusResponse(failover=self._group.state(self._broker_id))


def _refused(text: str) -> grpc.aio.AioRpcError:
    return rpc_error(grpc.StatusCode.FAILED_PRECONDITION, text)


async def test_the_master_hands_over_and_the_new_one_serves() -> None:
    group = _Group()
    done = await group.operations().hand_over("broker-a", to=None, dry_run=False)
    assert (done.from_broker, done.to_broker, done.epoch, done.changed) == ("broker-a:0", "broker-a:1", 2, True)
    assert group.handed_over == [1]


async def test_a_dry_run_only_tells() -> None:
    group = _Group()
    planned = await group.operations().hand_over("broker-a", to=1, dry_run=True)
    assert (planned.to_broker, planned.epoch, planned.changed) == ("broker-a:1", 1, False)
    assert not group.handed_over


async def test_who_is_the_master_already_stays_it() -> None:
    group = _Group()
    done = await group.operations().hand_over("broker-a", to=0, dry_run=False)
    assert done.from_broker == done.to_broker == "broker-a:0"
    assert not group.handed_over


@pytest.mark.parametrize(
    ("group", "to", "kind", "told"),
    [
        (_Group(), 7, FailureKind.NOT_FOUND, "choose one of 0, 1"),
        (_Group(fails_over=False), None, FailureKind.REFUSED, "set failoverAuthority"),
        (_Group(acting=None), None, FailureKind.REFUSED, "tandemmq ha status"),
        (_Group(refusal="no other member in the in-sync set [0]"), 1, FailureKind.REFUSED, "in-sync set [0]"),
    ],
    ids=["no such broker", "does not fail over", "no master", "nobody can take over"],
)
async def test_why_nobody_takes_over(group: _Group, to: int | None, kind: FailureKind, told: str) -> None:
    with pytest.raises(OperationFailed) as refused:
        await group.operations().hand_over("broker-a", to=to, dry_run=False)
    assert refused.value.kind is kind
    assert told in f"{refused.value.cause} {refused.value.remedy}"
    assert not group.handed_over
