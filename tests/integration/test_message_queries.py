"""Messages searched and read on a real master and its slave, over the wire, while they serve."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from support.cluster_processes import ProcessCluster, ServiceProcess
from support.running_time import PATIENCE_S
from support.topic_admin import broker_status, create_topic
from tandemmq.client import ClientOptions, Producer, ReceivedMessage, SimpleConsumer
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as operations_pb
from tandemmq.proto.admin.v1 import broker_operations_service_pb2_grpc, message_query_service_pb2_grpc
from tandemmq.proto.admin.v1 import message_query_service_pb2 as pb
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2, service_pb2_grpc
from tandemmq.service.event_loop import SystemClock

TOPIC = "orders"
COUNT = 60
CLOCK = SystemClock()
METADATA = (("x-mq-client-id", "test"), ("x-mq-language", "PYTHON"))


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    """A SYNC_MASTER and its slave, which hold COUNT messages."""
    with ProcessCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.add_name_server()
        small = {
            "mappedFileSizeCommitLog": str(1 << 20),
            "maxMessageSize": str(500 << 10),
            "consumeFromEarliest": "true",
        }
        master, slave = cluster.add_broker(settings=small), cluster.add_broker(broker_id=1, settings=small)
        asyncio.run(_fill(master, slave))
        yield master, slave


async def _fill(master: ServiceProcess, slave: ServiceProcess) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not any(one.in_sync for one in (await broker_status(master)).slaves):
            await asyncio.sleep(0.05)
    await _create(master, TOPIC, queues=4)
    async with _producer(master) as producer:
        for number in range(COUNT):
            await producer.send(
                TOPIC,
                b'{"number": %d}' % number + b" " * (60_000 if number % 3 == 0 else 10),
                tag="paid" if number % 2 else "open",
                keys=(f"order-{number}", "all"),
                properties={"colour": "grün"},
            )
    # Acknowledged means that the slave has the bytes; a moment later it has made its queues of them.
    async with _asking(slave) as stub, asyncio.timeout(PATIENCE_S):
        while len(await _all(stub, pb.QueryMessagesRequest(topic=TOPIC, time=pb.TimeRange(), limit=500))) < COUNT:
            await asyncio.sleep(0.05)


async def _create(master: ServiceProcess, topic: str, *, queues: int) -> None:
    """Creates a topic, which has a route when this returns."""
    await create_topic(master, topic, queues=queues)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{master.ports['grpcServerPort']}") as channel:
        stub = service_pb2_grpc.MessagingServiceStub(channel)
        port = master.ports["grpcServerPort"]
        endpoints = definition.Endpoints(
            scheme=definition.IPv4, addresses=[definition.Address(host="127.0.0.1", port=port)]
        )
        request = service_pb2.QueryRouteRequest(topic=definition.Resource(name=topic), endpoints=endpoints)
        async with asyncio.timeout(PATIENCE_S):
            while (await stub.QueryRoute(request, metadata=METADATA, timeout=PATIENCE_S)).status.code != definition.OK:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def _producer(broker: ServiceProcess) -> AsyncIterator[Producer]:
    async with Producer(
        ClientOptions((f"127.0.0.1:{broker.ports['grpcServerPort']}",), request_timeout_ms=30_000), CLOCK
    ) as producer:
        yield producer


@asynccontextmanager
async def _asking(
    broker: ServiceProcess,
) -> AsyncIterator[message_query_service_pb2_grpc.MessageQueryServiceStub]:
    # The limits are gRPC's own: an answer must fit.
    async with grpc.aio.insecure_channel(f"127.0.0.1:{broker.ports['listenPort']}") as channel:
        yield message_query_service_pb2_grpc.MessageQueryServiceStub(channel)


async def _all(
    stub: message_query_service_pb2_grpc.MessageQueryServiceStub, request: pb.QueryMessagesRequest
) -> list[pb.MessageView]:
    messages = []
    while True:
        answer = await stub.QueryMessages(request, timeout=PATIENCE_S)
        messages += answer.messages
        if not answer.next_page_token:
            return messages
        request.page_token = answer.next_page_token


def _numbers(messages: list[pb.MessageView]) -> list[int]:
    return [int(message.keys[0].removeprefix("order-")) for message in messages]


async def test_both_replicas_tell_the_same(group: tuple[ServiceProcess, ServiceProcess]) -> None:
    answers = []
    for broker in group:
        async with _asking(broker) as stub:
            queues = await stub.ListQueues(pb.ListQueuesRequest(topic=TOPIC), timeout=PATIENCE_S)
            newest = pb.QueryMessagesRequest(
                topic=TOPIC, time=pb.TimeRange(newest_first=True), limit=7, body_bytes=100_000
            )
            messages = await _all(stub, newest)
            answers.append((queues, messages))
    (queues, messages), of_slave = answers
    assert (queues, messages) == of_slave
    assert [queue.queue_id for queue in queues.queues] == [0, 1, 2, 3]
    assert sum(queue.max_offset for queue in queues.queues) == COUNT
    assert _numbers(messages) == list(range(COUNT))[::-1]
    one = messages[1]
    assert (one.topic, one.tag, list(one.keys), one.properties["colour"]) == (
        TOPIC,
        "open",
        ["order-58", "all"],
        "grün",
    )
    assert one.body.startswith(b'{"number": 58}')
    assert (one.body_size, len(one.body), one.body_problem, one.compression) == (24, 24, "", "")
    assert one.message_id == one.properties["UNIQ_KEY"]
    assert one.offset_message_id.endswith(f"{one.physical_offset:016X}")
    assert abs(one.store_time.ToMilliseconds() - CLOCK.wall_ms()) < 600_000


async def test_a_message_is_found_by_its_key_its_id_and_its_places(
    group: tuple[ServiceProcess, ServiceProcess],
) -> None:
    master, slave = group
    for broker in (slave, master):
        async with _asking(broker) as stub:
            by_key = pb.QueryMessagesRequest(topic=TOPIC, key=pb.KeyQuery(key="order-17"), body_bytes=1_000)
            (found,) = await _all(stub, by_key)
            by_id = pb.QueryMessagesRequest(topic=TOPIC, key=pb.KeyQuery(key=found.message_id), body_bytes=1_000)
            assert await _all(stub, by_id) == [found]
            at = await stub.GetMessage(
                pb.GetMessageRequest(physical_offset=found.physical_offset, body_bytes=1_000), timeout=PATIENCE_S
            )
            place = pb.QueuePlace(topic=TOPIC, queue_id=found.queue_id, queue_offset=found.queue_offset)
            in_queue = await stub.GetMessage(pb.GetMessageRequest(queue=place, body_bytes=1_000), timeout=PATIENCE_S)
            assert (at.message, in_queue.message) == (found, found)
            every = pb.QueryMessagesRequest(topic=TOPIC, key=pb.KeyQuery(key="all"), limit=8)
            assert _numbers(await _all(stub, every)) == list(range(COUNT))[::-1]
            tagged = pb.QueryMessagesRequest(topic=TOPIC, time=pb.TimeRange(), tags=["paid"], limit=9)
            assert _numbers(await _all(stub, tagged)) == list(range(1, COUNT, 2))


async def test_a_search_goes_on_at_the_other_replica(group: tuple[ServiceProcess, ServiceProcess]) -> None:
    async with _asking(group[0]) as master, _asking(group[1]) as slave:
        for newest_first in (False, True):
            request = pb.QueryMessagesRequest(topic=TOPIC, time=pb.TimeRange(newest_first=newest_first), limit=20)
            first = await master.QueryMessages(request, timeout=PATIENCE_S)
            request.page_token = first.next_page_token
            numbers = _numbers([*first.messages, *await _all(slave, request)])
            assert numbers == (list(range(COUNT))[::-1] if newest_first else list(range(COUNT)))


async def test_a_time_is_an_offset_in_each_queue(group: tuple[ServiceProcess, ServiceProcess]) -> None:
    async with _asking(group[0]) as stub:
        messages = await _all(stub, pb.QueryMessagesRequest(topic=TOPIC, time=pb.TimeRange(), limit=500))
        moment = messages[30].store_time
        found = await stub.FindOffsets(pb.FindOffsetsRequest(topic=TOPIC, time=moment), timeout=PATIENCE_S)
        for one in found.offsets:
            queue = [message for message in messages if message.queue_id == one.queue_id]
            later = [
                message.queue_offset
                for message in queue
                if message.store_time.ToNanoseconds() >= moment.ToNanoseconds()
            ]
            assert one.offset == (later[0] if later else len(queue))
        stretch = pb.TimeRange(start_time=moment, end_time=messages[40].store_time)
        between = await _all(stub, pb.QueryMessagesRequest(topic=TOPIC, time=stretch))
        assert _numbers(between) == [
            number
            for number, message in enumerate(messages)
            if moment.ToNanoseconds() <= message.store_time.ToNanoseconds() < messages[40].store_time.ToNanoseconds()
        ]


async def test_records_whose_bytes_agree_have_one_digest(
    group: tuple[ServiceProcess, ServiceProcess], tmp_path: Path
) -> None:
    async with _asking(group[0]) as master, _asking(group[1]) as slave:
        (found,) = await _all(master, pb.QueryMessagesRequest(topic=TOPIC, key=pb.KeyQuery(key="order-57")))
        request = pb.DigestRecordRequest(physical_offset=found.physical_offset, size=found.record_bytes)
        of_master = await master.DigestRecord(request, timeout=PATIENCE_S)
        of_slave = await slave.DigestRecord(request, timeout=PATIENCE_S)
        file_bytes = 1 << 20
        log_file = Path(group[0].settings["storePathRootDir"]) / "commitlog"
        start = found.physical_offset - found.physical_offset % file_bytes
        with (log_file / f"{start:020d}").open("rb") as file:
            file.seek(found.physical_offset - start)
            assert of_master.sha256 == hashlib.sha256(file.read(found.record_bytes)).digest()
        assert of_master.held
        assert of_slave.sha256 == of_master.sha256
        beyond = await slave.DigestRecord(pb.DigestRecordRequest(physical_offset=1 << 40, size=10), timeout=PATIENCE_S)
        assert (beyond.held, beyond.sha256) == (False, b"")
        # Two files.
        whole = pb.DigestRecordRequest(physical_offset=0, size=of_master.end_offset)
        assert (await master.DigestRecord(whole, timeout=PATIENCE_S)).sha256 == (
            await slave.DigestRecord(whole, timeout=PATIENCE_S)
        ).sha256


async def test_cold_records_are_read_while_the_loop_goes_on(group: tuple[ServiceProcess, ServiceProcess]) -> None:
    slave = group[1]
    for path in sorted((Path(slave.settings["storePathRootDir"]) / "commitlog").iterdir()):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    async with _asking(slave) as stub:
        request = pb.QueryMessagesRequest(topic=TOPIC, time=pb.TimeRange(), limit=500, body_bytes=1 << 20)
        messages = await _all(stub, request)
    assert all(message.body.startswith(b'{"number": %d}' % number) for number, message in enumerate(messages))
    assert not any(message.body_problem for message in messages)


async def _first_found(
    stub: message_query_service_pb2_grpc.MessageQueryServiceStub, request: pb.QueryMessagesRequest
) -> pb.QueryMessagesResponse:
    """The answer once there are messages. A slave may hear of a new topic after its messages."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                answer: pb.QueryMessagesResponse = await stub.QueryMessages(request, timeout=PATIENCE_S)
                if answer.messages:
                    return answer
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.NOT_FOUND:
                    raise
            await asyncio.sleep(0.02)


async def test_a_tail_is_followed(group: tuple[ServiceProcess, ServiceProcess]) -> None:
    master, slave = group
    await _create(master, "tailed", queues=1)
    async with _producer(master) as producer, _asking(slave) as stub:
        await producer.send("tailed", b"before")
        following = 1
        seen: list[bytes] = []
        for number in range(3):
            receipt = await producer.send("tailed", b"%d" % number)
            stretch = pb.QueueRange(queue_id=0, start_offset=following)
            request = pb.QueryMessagesRequest(topic="tailed", queue=stretch, body_bytes=10)
            answer = await _first_found(stub, request)
            assert not answer.next_page_token
            seen += [message.body for message in answer.messages]
            following = receipt.queue_offset + 1
    assert seen == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (pb.QueryMessagesRequest(topic=TOPIC), grpc.StatusCode.INVALID_ARGUMENT, "query:"),
        (pb.QueryMessagesRequest(topic="nobody", time=pb.TimeRange()), grpc.StatusCode.NOT_FOUND, "nobody"),
        (
            pb.QueryMessagesRequest(topic=TOPIC, time=pb.TimeRange(), page_token=b"forged"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "page_token",
        ),
        (pb.QueryMessagesRequest(topic=TOPIC, key=pb.KeyQuery()), grpc.StatusCode.INVALID_ARGUMENT, "key:"),
        (
            pb.QueryMessagesRequest(topic=TOPIC, queue=pb.QueueRange(start_offset=-1)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "queue:",
        ),
        (
            pb.QueryMessagesRequest(topic=TOPIC, time=pb.TimeRange(start_time=Timestamp(seconds=1 << 50))),
            grpc.StatusCode.INVALID_ARGUMENT,
            "start_time:",
        ),
        (
            pb.QueryMessagesRequest(topic=TOPIC, time=pb.TimeRange(), limit=-1),
            grpc.StatusCode.INVALID_ARGUMENT,
            "limit:",
        ),
    ],
)
async def test_what_cannot_be_answered_is_refused(
    group: tuple[ServiceProcess, ServiceProcess],
    request_: pb.QueryMessagesRequest,
    code: grpc.StatusCode,
    text: str,
) -> None:
    async with _asking(group[0]) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.QueryMessages(request_, timeout=PATIENCE_S)
        assert refused.value.code() is code
        assert text in (refused.value.details() or "")


async def test_places_without_a_message(group: tuple[ServiceProcess, ServiceProcess]) -> None:
    async with _asking(group[0]) as stub:
        for request, code in [
            (pb.GetMessageRequest(), grpc.StatusCode.INVALID_ARGUMENT),
            (pb.GetMessageRequest(physical_offset=1), grpc.StatusCode.NOT_FOUND),
            (pb.GetMessageRequest(physical_offset=-5), grpc.StatusCode.NOT_FOUND),
            (pb.GetMessageRequest(queue=pb.QueuePlace(topic=TOPIC, queue_offset=10_000)), grpc.StatusCode.NOT_FOUND),
        ]:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetMessage(request, timeout=PATIENCE_S)
            assert refused.value.code() is code
        for size in (0, -1, 9 << 20):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.DigestRecord(pb.DigestRecordRequest(physical_offset=0, size=size), timeout=PATIENCE_S)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_many_searches_at_once_do_not_stop_the_broker(group: tuple[ServiceProcess, ServiceProcess]) -> None:
    async with _asking(group[0]) as stub:
        request = pb.QueryMessagesRequest(topic=TOPIC, time=pb.TimeRange(), limit=500, body_bytes=1 << 20)
        searches = [asyncio.ensure_future(stub.QueryMessages(request, timeout=PATIENCE_S)) for _ in range(30)]
        answers = await asyncio.gather(*searches)
    assert all(len(answer.messages) == len(answers[0].messages) > 0 for answer in answers)
    assert (await broker_status(group[0])).broker_name == "broker-a"


async def test_dead_letters_come_back(group: tuple[ServiceProcess, ServiceProcess]) -> None:
    master = group[0]
    address = f"127.0.0.1:{master.ports['grpcServerPort']}"
    await _create(master, "jobs", queues=1)
    async with _producer(master) as producer:
        receipt = await producer.send("jobs", b"job", keys=("job-1",))
    consumer = SimpleConsumer(
        ClientOptions((address,), request_timeout_ms=30_000),
        CLOCK,
        group="workers",
        subscriptions={"jobs": "*"},
        await_ms=5_000,
    )
    async with consumer:
        (received,) = await _received(consumer)
        await _bury(address, received.message_id, received.receipt_handle)
        async with _asking(master) as stub:
            (letter,) = await _all(stub, pb.QueryMessagesRequest(topic="%DLQ%workers", time=pb.TimeRange()))
        assert letter.properties["DLQ_ORIGIN_TOPIC"] == "jobs"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{master.ports['listenPort']}") as channel:
            operations = broker_operations_service_pb2_grpc.BrokerOperationsServiceStub(channel)
            request = operations_pb.ResendDeadLettersRequest(
                group="workers", queue_offsets=[letter.queue_offset, 99], dry_run=True
            )
            dry = await operations.ResendDeadLetters(request, timeout=PATIENCE_S)
            assert [(one.topic, bool(one.problem)) for one in dry.letters] == [("jobs", False), ("", True)]
            request.dry_run = False
            sent = await operations.ResendDeadLetters(request, timeout=PATIENCE_S)
        assert [(one.new_queue_offset, one.message_id) for one in sent.letters] == [(1, receipt.message_id), (-1, "")]
        (again,) = await _received(consumer)
        assert (again.body, again.message_id, again.keys, again.delivery_attempt) == (
            b"job",
            receipt.message_id,
            ("job-1",),
            1,
        )


async def _received(consumer: SimpleConsumer) -> list[ReceivedMessage]:
    async with asyncio.timeout(PATIENCE_S):
        while not (messages := await consumer.receive(max_messages=8, invisible_ms=30_000)):
            pass
    return messages


async def _bury(address: str, message_id: str, receipt_handle: str) -> None:
    """As a push consumer does when it has tried often enough."""
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await service_pb2_grpc.MessagingServiceStub(channel).ForwardMessageToDeadLetterQueue(
            service_pb2.ForwardMessageToDeadLetterQueueRequest(
                group=definition.Resource(name="workers"),
                topic=definition.Resource(name="jobs"),
                receipt_handle=receipt_handle,
                message_id=message_id,
                delivery_attempt=16,
                max_delivery_attempts=16,
            ),
            metadata=METADATA,
            timeout=PATIENCE_S,
        )
    assert answer.status.code == definition.OK
