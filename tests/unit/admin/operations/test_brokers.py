"""What a master is told to give up, and what a caller hears who had nothing to give up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from support.cluster_states import master, slave
from support.fake_brokers import FakeQuestions
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.operations.brokers import BrokerOperations, newest_first
from tandemmq.admin.operations.questions import FailureKind, Members, OperationFailed
from tandemmq.admin.operations.values import EventLine
from tandemmq.proto.broker.v1 import replica_service_pb2 as pb

_AWAY = pb.RememberedReplica(broker_id=1, disk_id="d1", end_offset=4_096)


class _Replica:
    """Answers AcceptLoss as a broker does."""

    def __init__(self, answer: pb.AcceptLossResponse) -> None:
        self.given_up: list[str] = []
        self._answer = answer

    async def accept_loss(self, request: pb.AcceptLossRequest) -> pb.AcceptLossResponse:
        if not request.dry_run:
            self.given_up += request.disk_ids
        return self._answer


def _operations(replica: _Replica) -> BrokerOperations:
    state = ClusterState(name_servers=(), brokers=(master("broker-a"),))
    return BrokerOperations(Members(lambda: state), FakeQuestions({"broker-a:0": SimpleNamespace(replica=replica)}))


@pytest.mark.parametrize(
    ("answer", "told", "cause"),
    [
        (
            pb.AcceptLossResponse(serving=True),
            "broker-a:0 serves and waits for nothing; nothing was given up",
            "",
        ),
        (
            pb.AcceptLossResponse(waits_for="the replicas of its group: it asks them"),
            "what broker-a:0 waits for cannot be given up",
            "the replicas of its group: it asks them",
        ),
    ],
)
async def test_who_has_nothing_to_give_up_is_refused(answer: pb.AcceptLossResponse, told: str, cause: str) -> None:
    replica = _Replica(answer)
    with pytest.raises(OperationFailed) as refused:
        await _operations(replica).accept_loss("broker-a", names=["d1"])
    assert refused.value.kind is FailureKind.REFUSED
    assert told in str(refused.value)
    assert refused.value.cause == cause
    assert not replica.given_up


async def test_a_master_that_serves_forgets_the_members_that_were_named() -> None:
    replica = _Replica(pb.AcceptLossResponse(serving=True, missing=[_AWAY]))
    operations = _operations(replica)
    planned = await operations.accept_loss("broker-a", dry_run=True)
    assert (planned.serving, planned.waits_for, planned.names) == (True, "", ("d1",))
    with pytest.raises(OperationFailed, match="serves, and forgot nobody"):
        await operations.accept_loss("broker-a", names=["d2"])
    await operations.accept_loss("broker-a", names=planned.names)
    assert replica.given_up == ["d1"]


async def test_the_master_is_asked_and_not_broker_0_which_follows_it() -> None:
    """Of three members of a group that failed over: broker 2 is gone for good."""
    replica = _Replica(pb.AcceptLossResponse(serving=True, missing=[_AWAY]))
    brokers = (
        replace(slave("broker-a"), broker_id=0, named_master=False),
        replace(master("broker-a"), broker_id=1, named_master=True),
    )
    state = ClusterState(name_servers=(), brokers=brokers)
    operations = BrokerOperations(
        Members(lambda: state), FakeQuestions({"broker-a:1": SimpleNamespace(replica=replica)})
    )
    await operations.accept_loss("broker-a", names=["d1"])
    assert replica.given_up == ["d1"]


@pytest.mark.parametrize("offset", [-1, 1 << 63])
async def test_a_dead_letter_at_no_offset_is_refused(offset: int) -> None:
    with pytest.raises(OperationFailed) as refused:
        await _operations(_Replica(pb.AcceptLossResponse())).resend_dead_letters(
            "g", "broker-a", [offset], dry_run=True
        )
    assert refused.value.kind is FailureKind.INVALID


def _lines(source: str, *times_ms: int) -> list[EventLine]:
    """In the order in which they were told, the newest first."""
    return [EventLine(time_ms, source, "info", "told", {}) for time_ms in times_ms]


def test_events_of_all_sources_by_time() -> None:
    found = newest_first([_lines("a:0", 50, 30, 30, 10), [], _lines("b:0", 40, 30)])
    assert [(line.source, line.time_ms) for line in found] == [
        ("a:0", 50),
        ("b:0", 40),
        ("a:0", 30),
        ("a:0", 30),
        ("b:0", 30),
        ("a:0", 10),
    ]


def test_a_clock_that_was_set_back_hides_no_event() -> None:
    """Two hours back: what came since is the newest, of this source and beside others."""
    hour = 3_600_000
    set_back = _lines("a:0", 8 * hour + 2, 8 * hour + 1, 10 * hour, 9 * hour)
    found = newest_first([set_back, _lines("b:0", 8 * hour + 3, 7 * hour)])
    assert found[0].source == "b:0"
    assert found[1:5] == set_back
    # As the console does it, with what operators did beside.
    assert newest_first([found, _lines("admin", 8 * hour + 4)])[1:] == found
