"""Changes of groups reach all masters or none; where they end half way, that is said."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest

from support.cluster_states import healthy_cluster, master, slave, with_broker
from support.fake_brokers import FakeQuestions, rpc_error
from support.manual_time import ManualTime
from tandemmq.admin.operations.groups import GroupOperations
from tandemmq.admin.operations.questions import FailureKind, Members, OperationFailed
from tandemmq.admin.operations.values import GroupChange, PageRequest, ResetTarget
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb


class Master:
    """Its groups by name, and what was done to it."""

    def __init__(self, *groups: str) -> None:
        self.held = list(groups)
        self.retries = 16
        self.done: list[str] = []
        # By method: raised by the real call, or already by the dry run.
        self.failure: grpc.aio.AioRpcError | None = None
        self.refusal: grpc.aio.AioRpcError | None = None
        self.admin = self.operations = self

    async def groups(
        self, *, names: tuple[str, ...] = (), without_progress: bool = False
    ) -> list[admin_pb.SubscriptionGroupStatus]:
        wanted = names or self.held
        return [
            admin_pb.SubscriptionGroupStatus(
                group=name,
                retry_max_times=self.retries,
                consume_enable=True,
                progress=[] if without_progress else [admin_pb.GroupProgress(topic="t", max_offset=5)],
            )
            for name in self.held
            if name in wanted
        ]

    async def update_group(self, request: admin_pb.UpdateSubscriptionGroupRequest) -> None:
        self._do("update", dry_run=False)
        self.retries = request.retry_max_times

    async def delete_group(self, request: pb.DeleteSubscriptionGroupRequest) -> pb.DeleteSubscriptionGroupResponse:
        self._do("delete", dry_run=request.dry_run)
        return pb.DeleteSubscriptionGroupResponse(existed=request.group in self.held)

    async def reset_offsets(self, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
        self._do("reset", dry_run=request.dry_run)
        return pb.ResetOffsetsResponse(moves=[pb.OffsetMove(to_offset=3, max_offset=5)])

    async def clients(self, _request: pb.ListClientsRequest) -> pb.ListClientsResponse:
        return pb.ListClientsResponse()

    def _do(self, what: str, *, dry_run: bool) -> None:
        if self.refusal is not None:
            raise self.refusal
        if not dry_run:
            if self.failure is not None:
                raise self.failure
            self.done.append(what)


def _groups(a: Master, b: Master) -> GroupOperations:
    state = with_broker(healthy_cluster(), master("broker-b"))
    questions = FakeQuestions({"broker-a:0": a, "broker-b:0": b})
    return GroupOperations(Members(lambda: state), questions, clock=ManualTime())


async def test_a_removal_that_one_master_refuses_is_not_begun() -> None:
    a, b = Master("g"), Master("g")
    b.refusal = rpc_error(grpc.StatusCode.FAILED_PRECONDITION, "it has members")
    with pytest.raises(OperationFailed, match="nothing was changed") as refused:
        await _groups(a, b).delete_group("g", even_with_members=False, dry_run=False)
    assert (refused.value.kind, refused.value.cause) == (FailureKind.REFUSED, "broker-b:0: it has members")
    assert (a.done, b.done) == ([], [])


async def test_a_removal_that_ends_half_way_says_who_has_it() -> None:
    a, b = Master("g"), Master("g")
    b.failure = rpc_error(grpc.StatusCode.UNAVAILABLE, "gone")
    with pytest.raises(OperationFailed, match="done on 1 of 2") as partial:
        await _groups(a, b).delete_group("g", even_with_members=False, dry_run=False)
    assert partial.value.kind is FailureKind.PARTIAL
    assert partial.value.cause.splitlines() == ["broker-b:0: UNAVAILABLE: gone", "broker-a:0: done"]


async def test_a_group_that_one_master_has_is_removed_there() -> None:
    a, b = Master(), Master("g")
    result = await _groups(a, b).delete_group("g", even_with_members=False, dry_run=True)
    assert [change.what for change in result.changes] == ["no change", "removed"]
    assert (a.done, b.done) == ([], [])
    with pytest.raises(OperationFailed) as missing:
        await _groups(Master(), Master()).delete_group("g", even_with_members=False, dry_run=False)
    assert missing.value.kind is FailureKind.NOT_FOUND


async def test_no_retries_are_none_and_not_the_default() -> None:
    a, b = Master("g"), Master("g")
    result = await _groups(a, b).put_group(GroupChange("g", retry_max_times=0), dry_run=False)
    assert [change.what for change in result.changes] == ["retries 16 → 0"] * 2
    assert (a.retries, b.retries) == (0, 0)
    await _groups(a, b).put_group(GroupChange("g", ordered=True), dry_run=False)
    assert (a.retries, b.retries) == (0, 0)
    result = await _groups(a, b).put_group(GroupChange("new", retry_max_times=0), dry_run=True)
    assert "0 retries" in result.changes[0].what


async def test_what_a_change_does_not_name_stays_as_each_master_has_it() -> None:
    a, b = Master("g"), Master("g")
    a.retries = 3
    result = await _groups(a, b).put_group(GroupChange("g", enabled=False), dry_run=False)
    assert {change.what for change in result.changes} == {"disabled: it is given no messages"}
    assert (a.retries, b.retries) == (3, 16)
    with pytest.raises(OperationFailed) as refused:
        await _groups(a, b).put_group(GroupChange("g", retry_max_times=-1), dry_run=False)
    assert (refused.value.kind, refused.value.problem) == (FailureKind.INVALID, "group 'g' is refused")


async def test_a_reset_leaves_out_masters_without_the_topic_but_not_a_queue_that_is_named() -> None:
    a, b = Master("g"), Master("g")
    b.refusal = rpc_error(grpc.StatusCode.NOT_FOUND, "no such topic")
    moves = await _groups(a, b).reset_offsets("g", "t", ResetTarget(earliest=True), dry_run=False)
    assert [(move.broker_name, move.to_offset) for move in moves] == [("broker-a", 3)]
    assert a.done == ["reset"]
    target = ResetTarget(offsets={("broker-a", 0): 3, ("broker-b", 0): 3})
    with pytest.raises(OperationFailed) as missing:
        await _groups(a, b).reset_offsets("g", "t", target, dry_run=False)
    assert missing.value.kind is FailureKind.NOT_FOUND
    assert a.done == ["reset"]


async def test_a_reset_of_what_nobody_has_says_where_to_look() -> None:
    a, b = Master("g"), Master("g")
    a.refusal = b.refusal = rpc_error(grpc.StatusCode.NOT_FOUND, "this broker has no h")
    with pytest.raises(OperationFailed) as missing:
        await _groups(a, b).reset_offsets("h", "t", ResetTarget(earliest=True), dry_run=False)
    assert missing.value.kind is FailureKind.NOT_FOUND
    assert "lists of groups and topics" in missing.value.remedy
    assert len(missing.value.cause.splitlines()) == 2


@pytest.mark.parametrize(
    "target",
    [
        ResetTarget(),
        ResetTarget(time_ms=0, latest=True),
        ResetTarget(offsets={}),
        ResetTarget(offsets={("broker-a", -1): 0}),
        ResetTarget(offsets={("broker-a", 0): -1}),
    ],
)
async def test_a_reset_without_a_clear_target_is_refused(target: ResetTarget) -> None:
    with pytest.raises(OperationFailed) as refused:
        await _groups(Master("g"), Master("g")).reset_offsets("g", "t", target, dry_run=True)
    assert refused.value.kind is FailureKind.INVALID


async def test_groups_are_listed_with_their_lag_and_without_the_systems() -> None:
    ask = _groups(Master("billing", "TOOLS_CONSUMER"), Master("audit"))
    page = await ask.groups(search="", page=PageRequest(size=1))
    assert (page.total, [(group.name, group.lag, group.topics) for group in page.items]) == (2, [("audit", 5, ("t",))])
    for wrong in (PageRequest(0), PageRequest(size=0), PageRequest(size=1_001)):
        with pytest.raises(OperationFailed) as refused:
            await ask.groups(search="", page=wrong)
        assert refused.value.kind is FailureKind.INVALID


async def test_who_reads_what_lies_far_behind_is_told_and_has_bounds() -> None:
    result = await _groups(Master("g"), Master("g")).put_group(GroupChange("g", slow_broker_id=2), dry_run=True)
    assert {change.what for change in result.changes} == {"far reads by broker 0 → 2"}
    for broker_id in (-1, 1 << 31):
        with pytest.raises(OperationFailed) as refused:
            await _groups(Master("g"), Master("g")).put_group(GroupChange("g", slow_broker_id=broker_id), dry_run=False)
        assert refused.value.kind is FailureKind.INVALID


async def test_a_priority_factor_is_told_and_has_bounds() -> None:
    result = await _groups(Master("g"), Master("g")).put_group(GroupChange("g", priority_factor=60), dry_run=True)
    assert {change.what for change in result.changes} == {"priority factor 0 → 60"}
    with pytest.raises(OperationFailed) as refused:
        await _groups(Master("g"), Master("g")).put_group(GroupChange("g", priority_factor=101), dry_run=False)
    assert (refused.value.kind, refused.value.cause) == (FailureKind.INVALID, "priority factor 101: from 0 to 100")


async def test_attributes_are_told_and_unknown_ones_refused() -> None:
    change = GroupChange("g", attributes={"lite.bind.topic": "sessions", "lite.sub.model": ""})
    result = await _groups(Master("g"), Master()).put_group(change, dry_run=True)
    told = {change.subject: change.what for change in result.changes}
    assert told["broker-a:0"] == "lite.bind.topic not set → sessions"
    assert "lite.bind.topic sessions" in told["broker-b:0"]
    with pytest.raises(OperationFailed) as refused:
        await _groups(Master("g"), Master("g")).put_group(GroupChange("g", attributes={"lite": "1"}), dry_run=False)
    assert refused.value.kind is FailureKind.INVALID
    assert "lite.sub.client.quota" in str(refused.value.cause)


async def test_a_slave_that_is_away_leaves_no_doubt_of_what_its_master_tells() -> None:
    """Pages of topics and groups ask all members for their clients, and name whom they could not ask."""
    state = healthy_cluster()
    for member in (slave(), master("broker-b")):
        state = with_broker(state, replace(member, status=None, error="refused"))
    questions = FakeQuestions({"broker-a:0": Master("g")})
    page = await GroupOperations(Members(lambda: state), questions, clock=ManualTime()).clients(
        group="g", topic="", limit=10
    )
    reasons = {each.subject: each.reason for each in page.unseen}
    assert sorted(reasons) == ["broker-a:1", "broker-b:0"]
    assert reasons["broker-a:1"].endswith("; only clients that were connected to it are missing")
    assert "only clients" not in reasons["broker-b:0"]
