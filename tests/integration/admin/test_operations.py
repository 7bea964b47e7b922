"""What an operator asks of and does to a live cluster, through `Operations`: two groups, one with a slave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest

from support.acknowledged_sends import METADATA
from support.cluster_processes import ProcessCluster
from support.running_time import PATIENCE_S, until
from tandemmq.admin.cluster_reader import ClusterReader
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.operations.operations import Operations
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import (
    GroupChange,
    MessageQuery,
    MessageSummary,
    PageRequest,
    ResetTarget,
    SearchOrder,
    TestMessage,
    TestReceipt,
    TopicChange,
)
from tandemmq.admin.rpc import Channels
from tandemmq.client import ClientOptions, Producer, ReceivedMessage, SimpleConsumer
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.proto.rocketmq.v2 import service_pb2_grpc
from tandemmq.service.event_loop import SystemClock


@dataclass
class Operator:
    """Operations on a cluster, and the reading they go by."""

    operations: Operations
    reader: ClusterReader
    state: ClusterState

    async def look_again(self) -> ClusterState:
        """A new reading."""
        self.state = await self.reader.read(())
        return self.state


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("operations")) as running:
        running.add_name_server()
        running.add_name_server()
        # A send is answered when the slave has it as well: copies can be compared at once.
        running.add_broker("broker-a")
        running.add_broker("broker-a", broker_id=1)
        running.add_broker("broker-b", settings={"brokerRole": "ASYNC_MASTER"})
        yield running


@asynccontextmanager
async def operator(cluster: ProcessCluster) -> AsyncIterator[Operator]:
    channels, clock = Channels(), SystemClock()
    reader = ClusterReader(channels, cluster.namesrv_addr.split(";"))
    found: list[Operator] = []
    try:
        operations = Operations(
            channels,
            members=lambda: found[0].state,
            send_client=lambda points: Producer(ClientOptions(access_points=points, request_timeout_ms=30_000), clock),
            clock=clock,
        )
        found.append(Operator(operations, reader, await reader.read(())))
        async with asyncio.timeout(PATIENCE_S):
            while not _is_complete(await found[0].look_again()):
                await asyncio.sleep(0.1)
        yield found[0]
    finally:
        await channels.close()


def _is_complete(state: ClusterState) -> bool:
    return len(state.brokers) == 3 and all(
        broker.status is not None
        and sum(slave.in_sync for slave in broker.status.slaves) >= broker.status.needed_slave_count
        for broker in state.brokers
    )


async def create(who: Operator, topic: str, **changes: object) -> None:
    change = TopicChange(topic, read_queue_count=2, write_queue_count=2)
    await who.operations.put_topic(replace(change, **changes))  # type: ignore[arg-type]


async def send(who: Operator, topic: str, count: int) -> list[TestReceipt]:
    return [
        await who.operations.send(
            TestMessage(
                topic,
                json.dumps({"number": number}).encode(),
                tag=("even", "odd")[number % 2],
                keys=[f"key-{number}"],
                properties={"tenant": "acme"},
            )
        )
        for number in range(count)
    ]


def place(message: MessageSummary | TestReceipt) -> tuple[str, int, int]:
    return message.broker_name, message.queue_id, message.queue_offset


async def test_a_topic_is_made_changed_and_removed_on_all_masters(cluster: ProcessCluster) -> None:
    async with operator(cluster) as who:
        ask = who.operations
        change = TopicChange("lifecycle", read_queue_count=4, write_queue_count=4)
        planned = await ask.put_topic(change, dry_run=True)
        assert [one.subject for one in planned.changes] == ["broker-a:0", "broker-b:0"]
        with pytest.raises(OperationFailed) as missing:
            await ask.topic("lifecycle")
        assert missing.value.kind is FailureKind.NOT_FOUND
        made = await ask.put_topic(change)
        assert made.changes == planned.changes
        assert not made.warnings
        detail = await ask.topic("lifecycle")
        assert [(one.broker_name, one.read_queue_count) for one in detail.summary.brokers] == [
            ("broker-a", 4),
            ("broker-b", 4),
        ]
        assert (len(detail.extents), len(detail.routes), detail.routes_agree) == (8, 2, True)
        assert detail.routes[0].brokers.keys() == {"broker-a:0", "broker-a:1", "broker-b:0"}
        # What is not named stays as it is, and an existing topic is not reset to the broker's defaults.
        changed = await ask.put_topic(TopicChange("lifecycle", permission=4, broker_names=["broker-b"]))
        assert [one.what for one in changed.changes] == ["read and write → read only"]
        detail = await ask.topic("lifecycle")
        assert [(one.write_queue_count, one.permission) for one in detail.summary.brokers] == [(4, 6), (4, 4)]
        removed = await ask.delete_topic("lifecycle")
        assert removed.changes[0].what == "removed; it holds no messages"
        routes, unseen = await ask.topic_routes("lifecycle")
        assert not unseen
        assert [route.queues for route in routes] == [(), ()]
        found = await ask.topics(search="lifecycle")
        assert found.total == 0


async def test_topics_are_listed_by_pages_with_counts(cluster: ProcessCluster) -> None:
    async with operator(cluster) as who:
        for number in range(5):
            await create(who, f"listed-{number}")
        await send(who, "listed-3", 3)
        page = await who.operations.topics(search="LISTED", page=PageRequest(number=2, size=3))
        assert ([topic.name for topic in page.items], page.total) == (["listed-3", "listed-4"], 5)
        assert [(topic.held, topic.stored) for topic in page.items] == [(3, 3), (0, 0)]
        system = await who.operations.topics(categories=("system",), page=PageRequest(size=200))
        assert {"SCHEDULE_TOPIC_XXXX", "broker-a", "broker-b"} <= {topic.name for topic in system.items}
        with pytest.raises(OperationFailed) as refused:
            await who.operations.delete_topic("broker-a", dry_run=True)
        assert refused.value.kind is FailureKind.INVALID


async def test_messages_are_found_by_time_key_queue_and_id(cluster: ProcessCluster) -> None:
    async with operator(cluster) as who:
        ask = who.operations
        await create(who, "searched")
        receipts = await send(who, "searched", 25)
        assert {receipt.broker_name for receipt in receipts} == {"broker-a", "broker-b"}
        seen: list[MessageSummary] = []
        query = MessageQuery("searched", limit=7, body_bytes=64)
        while True:
            page = await ask.search(query)
            assert not page.unseen
            seen += page.messages
            if not page.next_page_token:
                break
            query = replace(query, page_token=page.next_page_token)
            # What comes in meanwhile shifts nothing.
            await ask.send(TestMessage("searched", b"later"))
        assert [message.message_id for message in seen] == [receipt.message_id for receipt in reversed(receipts)]
        assert [place(message) for message in seen] == [place(receipt) for receipt in reversed(receipts)]
        assert seen[-1].body == b'{"number": 0}'
        oldest = await ask.search(MessageQuery("searched", order=SearchOrder.OLDEST, tags=["odd"], limit=2))
        assert [message.keys for message in oldest.messages] == [("key-1",), ("key-3",)]
        [by_key] = (await ask.search(MessageQuery("searched", key="key-17"))).messages
        assert by_key.message_id == receipts[17].message_id
        first = seen[-1]
        in_queue = await ask.search(
            MessageQuery("searched", queue_id=first.queue_id, broker_name=first.broker_name, start_offset=0, limit=1)
        )
        assert [place(message) for message in in_queue.messages] == [(first.broker_name, first.queue_id, 0)]
        for topic in ("", "searched"):
            assert [place(one) for one in await ask.find_message(first.message_id, topic=topic)] == [place(first)]
            # Brokers that were given any free port write port 0 into their records: such an id may be that of several.
            by_place = await ask.find_message(first.offset_message_id, topic=topic)
            assert place(first) in [place(one) for one in by_place]
            assert {one.offset_message_id for one in by_place} == {first.offset_message_id}
        assert await ask.find_message("01" + "0" * 32) == []
        with pytest.raises(OperationFailed) as unknown:
            await ask.search(MessageQuery("no-such-topic"))
        assert unknown.value.kind is FailureKind.NOT_FOUND
        with pytest.raises(OperationFailed, match="page token"):
            await ask.search(MessageQuery("searched", page_token="e30"))


async def test_a_message_is_shown_with_its_copies_and_readers(cluster: ProcessCluster) -> None:
    async with operator(cluster) as who:
        ask = who.operations
        await create(who, "shown", broker_names=["broker-a"])
        [receipt] = await send(who, "shown", 1)
        detail = await ask.message_at("broker-a", "shown", receipt.queue_id, receipt.queue_offset)
        message = detail.message
        assert (message.message_id, message.tag, message.body) == (receipt.message_id, "even", b'{"number": 0}')
        assert message.properties["tenant"] == "acme"
        assert [(copy.broker, copy.held, copy.equal) for copy in detail.copies] == [
            ("broker-a:0", True, True),
            ("broker-a:1", True, True),
        ]
        assert "same bytes" in detail.copies[1].verdict
        assert (await ask.message("broker-a", message.physical_offset)).message == message
        with pytest.raises(OperationFailed) as nothing:
            await ask.message("broker-a", message.physical_offset + 1)
        assert nothing.value.kind is FailureKind.NOT_FOUND
        await ask.put_group(GroupChange("shown-readers"))
        # Else a new group begins with what comes after it.
        await ask.reset_offsets("shown-readers", "shown", ResetTarget(earliest=True))
        options = ClientOptions(access_points=(who.state.brokers[0].client_endpoint,), request_timeout_ms=30_000)
        async with SimpleConsumer(
            options, SystemClock(), group="shown-readers", subscriptions={"shown": "*"}
        ) as consumer:
            received = await consumer.receive(1, invisible_ms=20_000, await_ms=5_000)
            detail = await ask.message("broker-a", message.physical_offset)
            assert detail.consumption == {"shown-readers": "in flight or waiting"}
            clients = await ask.clients(group="shown-readers")
            assert [(client.client_type, client.language) for client in clients.items] == [
                ("SIMPLE_CONSUMER", "PYTHON")
            ]
            group = await ask.group("shown-readers")
            assert (group.summary.member_count, group.summary.lag, group.summary.inflight) == (1, 1, 1)
            with pytest.raises(OperationFailed) as refused:
                await ask.delete_group("shown-readers")
            assert refused.value.kind is FailureKind.REFUSED
            await consumer.ack(received[0])
        # What all groups lack is remembered for 2 s.
        async with asyncio.timeout(PATIENCE_S):
            while [(one.group, one.lag) for one in (await ask.topic("shown")).groups] != [("shown-readers", 0)]:
                await asyncio.sleep(0.2)


async def test_a_group_is_made_reset_and_removed(cluster: ProcessCluster) -> None:
    async with operator(cluster) as who:
        ask = who.operations
        await create(who, "reread")
        await send(who, "reread", 8)
        made = await ask.put_group(GroupChange("rereaders", retry_max_times=3))
        assert made.changes[0].what == "created, not ordered, 3 retries, enabled"
        assert [group.name for group in (await ask.groups(search="reread")).items] == ["rereaders"]
        changed = await ask.put_group(GroupChange("rereaders", enabled=False))
        assert changed.changes[0].what == "disabled: it is given no messages"
        group = await ask.group("rereaders")
        assert (group.summary.retry_max_times, group.summary.enabled) == (3, False)
        await ask.put_group(GroupChange("rereaders", retry_max_times=0))
        assert (await ask.group("rereaders")).summary.retry_max_times == 0
        planned = await ask.reset_offsets("rereaders", "reread", ResetTarget(latest=True), dry_run=True)
        assert sum(move.to_offset for move in planned) == 8
        assert (await ask.group("rereaders")).progress == []
        moved = await ask.reset_offsets("rereaders", "reread", ResetTarget(latest=True))
        assert moved == planned
        assert (await ask.group("rereaders")).summary.lag == 0
        back = await ask.reset_offsets("rereaders", "reread", ResetTarget(time_ms=0))
        assert {move.to_offset for move in back} == {0}
        assert (await ask.group("rereaders")).summary.lag == 8
        removed = await ask.delete_group("rereaders")
        assert "progress in reread forgotten" in removed.changes[0].what
        with pytest.raises(OperationFailed) as gone:
            await ask.group("rereaders")
        assert gone.value.kind is FailureKind.NOT_FOUND


async def test_dead_letters_are_found_and_sent_again(cluster: ProcessCluster) -> None:
    async with operator(cluster) as who:
        ask = who.operations
        await create(who, "jobs", broker_names=["broker-a"])
        await ask.put_group(GroupChange("workers"))
        await ask.reset_offsets("workers", "jobs", ResetTarget(earliest=True))
        [receipt] = await send(who, "jobs", 1)
        address = who.state.brokers[0].client_endpoint
        async with SimpleConsumer(
            ClientOptions((address,), request_timeout_ms=30_000),
            SystemClock(),
            group="workers",
            subscriptions={"jobs": "*"},
        ) as consumer:
            [received] = await consumer.receive(1, invisible_ms=20_000, await_ms=5_000)
            await _bury(address, received, "workers")
        assert (await ask.group("workers")).dead_letters == 1
        [topic] = (await ask.topics(categories=("dead letter",))).items
        assert (topic.name, topic.held) == ("%DLQ%workers", 1)
        [letter] = (await ask.search(MessageQuery("%DLQ%workers"))).messages
        planned = await ask.resend_dead_letters("workers", "broker-a", [letter.queue_offset, 99], dry_run=True)
        assert [(one.topic, one.new_queue_offset, bool(one.problem)) for one in planned] == [
            ("jobs", -1, False),
            ("", -1, True),
        ]
        [sent] = await ask.resend_dead_letters("workers", "broker-a", [letter.queue_offset])
        assert (sent.message_id, sent.problem) == (receipt.message_id, "")
        # The message, its dead letter and the message again.
        found = await ask.find_message(receipt.message_id)
        assert [message.topic for message in found] == ["jobs", "%DLQ%workers", "jobs"]


async def test_a_tail_gives_what_comes_in(cluster: ProcessCluster) -> None:
    async with operator(cluster) as who:
        await create(who, "tailed")
        await send(who, "tailed", 4)
        found: list[MessageSummary] = []

        async def look() -> None:
            async for message in who.operations.tail("tailed", tags=["odd"]):
                found.append(message)  # noqa: PERF401  # looked at meanwhile

        looking = asyncio.create_task(look())
        # Where it begins is asked for first: what was sent before that is not told.
        before: list[TestReceipt] = []
        async with asyncio.timeout(PATIENCE_S):
            while not found:
                before += await send(who, "tailed", 2)
                await asyncio.sleep(0.1)
            receipts = await send(who, "tailed", 6)
            wanted = {receipt.message_id for receipt in receipts[1::2]}
            await until(lambda: wanted <= {message.message_id for message in found})
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        assert {message.message_id for message in found} <= wanted | {receipt.message_id for receipt in before[1::2]}
        assert all(message.body.startswith(b'{"number"') for message in found)


async def test_settings_change_until_the_next_start(cluster: ProcessCluster) -> None:
    async with operator(cluster) as who:
        ask = who.operations
        before = {each.key: each for each in (await ask.broker_settings("broker-b:0")).settings}
        assert (before["brokerName"].value, before["brokerName"].changeable) == ("broker-b", False)
        [change] = await ask.update_settings("broker-b:0", {"fileReservedTime": "24"}, dry_run=True)
        assert change.to_value == "24"
        await ask.update_settings("broker-b:0", {"fileReservedTime": "24"})
        after = {each.key: each for each in (await ask.broker_settings("broker-b:0")).settings}
        assert (after["fileReservedTime"].value, after["fileReservedTime"].origin) == ("24", "changed")
        with pytest.raises(OperationFailed) as refused:
            await ask.update_settings("broker-b:0", {"brokerName": "x"})
        assert refused.value.kind is FailureKind.INVALID
        with pytest.raises(OperationFailed) as unknown:
            await ask.broker_settings("broker-z:0")
        assert unknown.value.kind is FailureKind.NOT_FOUND
        lines, unseen = await ask.events(limit=100)
        assert not unseen
        assert {line.source for line in lines} == {"broker-a:0", "broker-a:1", "broker-b:0"}
        assert [line.time_ms for line in lines] == sorted((line.time_ms for line in lines), reverse=True)


async def test_write_permission_is_taken_and_given_back(cluster: ProcessCluster) -> None:
    async with operator(cluster) as who:
        ask = who.operations
        await create(who, "drained")
        planned = await ask.set_write_permission("broker-b", writable=False, dry_run=True)
        wiped = await ask.set_write_permission("broker-b", writable=False)
        assert [one.what for one in planned.changes] == [one.what for one in wiped.changes]
        assert "write permission taken away for" in wiped.changes[0].what
        again = await ask.set_write_permission("broker-b", writable=False, dry_run=True)
        assert {one.what for one in again.changes} == {"no change"}
        routes, _ = await ask.topic_routes("drained")
        assert [[row.permission for row in route.queues] for route in routes] == [[6, 4], [6, 4]]
        receipts = await send(who, "drained", 4)
        assert {receipt.broker_name for receipt in receipts} == {"broker-a"}
        await ask.set_write_permission("broker-b", writable=True)
        routes, _ = await ask.topic_routes("drained")
        assert [[row.permission for row in route.queues] for route in routes] == [[6, 6], [6, 6]]


async def test_what_is_refused_says_why(cluster: ProcessCluster) -> None:
    async with operator(cluster) as who:
        ask = who.operations
        with pytest.raises(OperationFailed) as nameless:
            await ask.put_topic(TopicChange("no blanks", read_queue_count=5_000, message_type="ODD"))
        assert nameless.value.cause.count("\n") == 2
        await create(who, "fifo-topic", message_type="FIFO")
        with pytest.raises(OperationFailed) as refused:
            await ask.send(TestMessage("fifo-topic", b"without a group"))
        assert refused.value.kind is FailureKind.REFUSED
        assert (await ask.send(TestMessage("fifo-topic", b"x", message_group="g"))).queue_id >= 0
        with pytest.raises(OperationFailed) as absent:
            await ask.send(TestMessage("absent-topic", b"x"))
        assert absent.value.kind is FailureKind.NOT_FOUND


async def _table_sizes(who: Operator, broker_name: str) -> set[tuple[int, int]]:
    """How many topics and groups the members have; one pair when the slave has what the master has."""
    members = [broker for broker in (await who.look_again()).brokers if broker.broker_name == broker_name]
    return {(each.status.topic_count, each.status.group_count) for each in members if each.status is not None}


async def test_half_a_cluster_is_read_from_and_not_changed(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        cluster.add_name_server()
        cluster.add_broker("broker-a")
        cluster.add_broker("broker-a", broker_id=1)
        cluster.add_broker("broker-b", settings={"brokerRole": "ASYNC_MASTER"})
        async with operator(cluster) as who:
            ask = who.operations
            await create(who, "halved")
            receipts = await send(who, "halved", 10)
            await ask.put_group(GroupChange("halved-readers"))
            # The slave copies its master's tables every two seconds: what it has not copied it cannot tell of.
            async with asyncio.timeout(60):
                while len(await _table_sizes(who, "broker-a")) > 1:
                    await asyncio.sleep(0.1)
            last_known = [broker for broker in who.state.brokers if broker.key == "broker-a:0"]
            cluster.brokers["broker-a-0"].kill()
            cluster.name_servers[1].kill()
            async with asyncio.timeout(PATIENCE_S):
                while (await who.look_again()).name_servers[1].error is None:
                    await asyncio.sleep(0.1)
            silent = replace(last_known[0], status=None, error="UNAVAILABLE: connection refused")
            others = [broker for broker in who.state.brokers if broker.key != silent.key]
            who.state = replace(who.state, brokers=tuple(sorted([*others, silent], key=lambda one: one.key)))
            page = await ask.search(MessageQuery("halved"))
            assert {message.message_id for message in page.messages} == {receipt.message_id for receipt in receipts}
            assert [(each.subject, "broker-a:1 was asked instead" in each.reason) for each in page.unseen] == [
                ("broker-a:0", True)
            ]
            detail = await ask.topic("halved")
            assert len(detail.summary.brokers) == 2
            assert {each.subject for each in detail.unseen} == {"broker-a:0", who.state.name_servers[1].address}
            on_a = next(message for message in page.messages if message.broker_name == "broker-a")
            copies = (await ask.message("broker-a", on_a.physical_offset)).copies
            assert [(copy.broker, copy.held, copy.equal) for copy in copies] == [
                ("broker-a:0", False, None),
                ("broker-a:1", True, None),
            ]
            assert (await ask.group("halved-readers")).unseen[0].subject == "broker-a:0"
            for change in (
                ask.put_topic(TopicChange("halved", read_queue_count=9)),
                ask.delete_topic("halved"),
                ask.put_group(GroupChange("halved-readers", enabled=False)),
                ask.delete_group("halved-readers"),
                ask.reset_offsets("halved-readers", "halved", ResetTarget(earliest=True)),
            ):
                with pytest.raises(OperationFailed, match="broker-a:0 does not answer") as refused:
                    await change
                assert refused.value.kind is FailureKind.REFUSED
            wiped = await ask.set_write_permission("broker-b", writable=False)
            assert len(wiped.changes) == 1
            assert who.state.name_servers[1].address in wiped.warnings[0]
            who.state = replace(who.state, brokers=(silent,))
            with pytest.raises(OperationFailed, match="no broker answers"):
                await ask.topics()


async def _bury(address: str, message: ReceivedMessage, group: str) -> None:
    """As a push consumer does when it has tried often enough."""
    request = service.ForwardMessageToDeadLetterQueueRequest(
        group=definition.Resource(name=group),
        topic=definition.Resource(name=message.topic),
        receipt_handle=message.receipt_handle,
        message_id=message.message_id,
        delivery_attempt=16,
        max_delivery_attempts=16,
    )
    async with grpc.aio.insecure_channel(address) as channel:
        stub = service_pb2_grpc.MessagingServiceStub(channel)
        answer = await stub.ForwardMessageToDeadLetterQueue(request, metadata=METADATA, timeout=PATIENCE_S)
    assert answer.status.code == definition.OK
