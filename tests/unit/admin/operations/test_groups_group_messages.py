"""Groups and clients of several brokers put together."""

from __future__ import annotations

from tandemmq.admin.operations.groups import clients_together, group_summary, reset_request, topics_together
from tandemmq.admin.operations.values import Progress, ResetTarget
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb


def _client(client_id: str, silent_ms: int, *, kind: str = "PUSH_CONSUMER", **subscriptions: str) -> pb.ClientView:
    view = pb.ClientView(client_id=client_id, client_type=kind, group="g", subscriptions=subscriptions)
    view.silent_for.FromMilliseconds(silent_ms)
    return view


def test_a_client_of_several_brokers_is_one() -> None:
    found = clients_together(
        [
            ("broker-a:0", pb.ListClientsResponse(clients=[_client("one", 900, orders="*"), _client("two", 5)])),
            ("broker-b:0", pb.ListClientsResponse(clients=[_client("one", 100, payments="paid")])),
        ]
    )
    assert [(client.client_id, client.brokers, client.silent_ms) for client in found] == [
        ("two", ("broker-a:0",), 5),
        ("one", ("broker-a:0", "broker-b:0"), 100),
    ]
    assert found[1].subscriptions == {"orders": "*", "payments": "paid"}


def test_a_broker_that_knows_nothing_of_a_client_yet_hides_nothing() -> None:
    [client] = clients_together(
        [
            ("broker-a:0", pb.ListClientsResponse(clients=[_client("one", 900)])),
            ("broker-b:0", pb.ListClientsResponse(clients=[_client("one", 1, kind="")])),
        ]
    )
    assert (client.client_type, client.silent_ms) == ("PUSH_CONSUMER", 1)


def test_progress_is_summed_by_topic() -> None:
    def queue(topic: str, queue_id: int, committed: int, end: int) -> Progress:
        return Progress("g", topic, "broker-a", queue_id, committed, end, inflight=1, oldest_age_ms=queue_id)

    # A queue that was shortened below what is acknowledged takes nothing off what is lacking elsewhere.
    together = topics_together([queue("b", 0, 5, 9), queue("a", 1, 3, 3), queue("b", 1, 20, 10)])
    assert [(one.topic, one.lag, one.max_offset, one.inflight, one.oldest_age_ms) for one in together] == [
        ("a", 0, 3, 1, 1),
        ("b", 4, 19, 2, 1),
    ]


def test_masters_that_differ_are_shown_at_their_worst() -> None:
    def status(**values: object) -> admin_pb.SubscriptionGroupStatus:
        return admin_pb.SubscriptionGroupStatus(group="g", **values)  # type: ignore[arg-type]

    summary = group_summary(
        [
            status(retry_max_times=16, consume_enable=True, member_count=2),
            status(retry_max_times=3, consume_message_orderly=True, member_count=1),
        ]
    )
    assert (summary.retry_max_times, summary.ordered, summary.enabled, summary.member_count) == (16, True, False, 2)


def test_a_reset_names_one_target() -> None:
    def request(target: ResetTarget) -> pb.ResetOffsetsRequest:
        return reset_request("g", "t", target, broker_name="broker-a", dry_run=True)

    assert request(ResetTarget(time_ms=1_500)).time.ToMilliseconds() == 1_500
    assert request(ResetTarget(earliest=True)).WhichOneof("target") == "earliest"
    assert request(ResetTarget(latest=True)).WhichOneof("target") == "latest"
    offsets = {("broker-a", 1): 5, ("broker-b", 1): 6, ("broker-a", 0): 0}
    assert dict(request(ResetTarget(offsets=offsets)).offsets.by_queue) == {0: 0, 1: 5}
