"""A round trip counts what came back, and is not fooled."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.manual_time import ManualTime
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.cli.commands.smoke import SmokeCount, receive_and_compare, refuse_disabled, send_all, smoke_bodies
from tandemmq.cli.ending import CommandError
from tandemmq.client import BrokerRefused, ClientError, ReceivedMessage, SendReceipt

_RUN = "smoke-1"
_BODIES = smoke_bodies(_RUN, 3)
_MESSAGE = ReceivedMessage(
    topic="t",
    body=b"",
    tag=None,
    keys=(),
    properties={},
    message_id="1",
    message_group=None,
    born_timestamp_ms=0,
    store_timestamp_ms=0,
    queue_id=0,
    queue_offset=0,
    delivery_attempt=1,
    receipt_handle="h",
    endpoint="e",
    intact=True,
)


class _Cluster:
    """Gives out what it was told to, then holds every receive; sends and receives can be made to fail."""

    def __init__(self, *bodies: bytes) -> None:
        self.messages = [replace(_MESSAGE, body=body) for body in bodies]
        self.acked: list[bytes] = []
        self.sent: list[bytes] = []
        self.failures: list[ClientError] = []
        self.ack_failure: ClientError | None = None

    async def send(self, topic: str, body: bytes) -> SendReceipt:
        if self.failures:
            raise self.failures.pop()
        self.sent.append(body)
        return SendReceipt("1", "broker-a", 0, 1)

    async def receive(
        self, max_messages: int = 32, *, invisible_ms: int = 0, await_ms: int | None = None
    ) -> list[ReceivedMessage]:
        if self.failures:
            raise self.failures.pop()
        if self.messages:
            return [self.messages.pop(0)]
        await asyncio.sleep(60)
        return []

    async def ack(self, message: ReceivedMessage) -> None:
        if self.ack_failure is not None:
            raise self.ack_failure
        self.acked.append(message.body)


async def _received(cluster: Any) -> SmokeCount:
    count = SmokeCount(missing=set(_BODIES))
    await receive_and_compare(cluster, _RUN, _BODIES, count, parallel=2, done=lambda: not count.missing)
    return count


def test_bodies_differ_within_a_run_and_between_runs() -> None:
    bodies = smoke_bodies("a", 500)
    assert len(set(bodies) | set(smoke_bodies("b", 500))) == 1_000


async def test_everything_sent_is_received_and_acknowledged() -> None:
    cluster = _Cluster(*reversed(_BODIES))
    count = await _received(cluster)
    assert (count.received, count.repeated, count.foreign, count.damaged) == (3, 0, 0, 0)
    assert sorted(cluster.acked) == sorted(_BODIES)


async def test_repeated_foreign_and_damaged_messages_are_told_apart_and_acknowledged() -> None:
    cluster = _Cluster(_BODIES[0], _BODIES[0], b"smoke-0 1 .", f"{_RUN} 17 never sent".encode(), *_BODIES[1:])
    count = await _received(cluster)
    assert (count.received, count.repeated, count.foreign, count.damaged) == (3, 1, 1, 1)
    assert len(cluster.acked) == 6


async def test_message_that_does_not_match_its_digest_does_not_count() -> None:
    cluster = _Cluster(*_BODIES)
    cluster.messages.insert(0, replace(_MESSAGE, body=_BODIES[0], intact=False))
    count = await _received(cluster)
    assert (count.received, count.damaged) == (3, 1)


async def test_failed_receive_is_tried_again() -> None:
    cluster = _Cluster(*_BODIES)
    cluster.failures = [ClientError("away")]
    count = await _received(cluster)
    assert (count.received, count.last_failure) == (3, "away")


async def test_failed_acknowledgement_is_counted() -> None:
    cluster = _Cluster(*_BODIES)
    cluster.ack_failure = ClientError("too late")
    assert (await _received(cluster)).failed_acks == 3


async def test_send_is_tried_until_it_is_stored() -> None:
    cluster, count = _Cluster(), SmokeCount()
    cluster.failures = [ClientError("no endpoints yet")]
    await send_all(cast("Any", cluster), "t", _BODIES, count, ManualTime())
    assert sorted(cluster.sent) == sorted(_BODIES)
    assert (count.sent, count.groups, count.missing) == (3, {"broker-a"}, set(_BODIES))


async def test_send_that_no_retry_can_help_ends_it() -> None:
    cluster, count = _Cluster(), SmokeCount()
    cluster.failures = [BrokerRefused("e", "SendMessage", 40004, "ILLEGAL_TOPIC", "", retryable=False)]
    with pytest.raises(ExceptionGroup) as failure:
        await send_all(cast("Any", cluster), "t", _BODIES, count, ManualTime())
    assert failure.group_contains(BrokerRefused)


@pytest.mark.parametrize("enabled", [True, False])
async def test_group_that_is_given_no_messages_is_refused_before_anything_is_sent(enabled: bool) -> None:
    summary = SimpleNamespace(enabled=enabled)

    async def group(_name: str) -> object:
        return SimpleNamespace(summary=summary)

    operations = cast("Any", SimpleNamespace(group=group))
    if enabled:
        await refuse_disabled(operations, "readers")
        return
    with pytest.raises(CommandError, match="group readers is disabled") as refused:
        await refuse_disabled(operations, "readers")
    assert "tandemmq group create readers --enable" in refused.value.remedy


async def test_new_group_is_no_disabled_one() -> None:
    async def group(_name: str) -> object:
        raise OperationFailed(FailureKind.NOT_FOUND, "no group")

    await refuse_disabled(cast("Any", SimpleNamespace(group=group)), "readers")
