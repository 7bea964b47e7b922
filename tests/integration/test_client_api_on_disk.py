"""What single RPCs promise of a real broker: progress that was set outlives kill -9, a topic is made when asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from support.api_requests import message, send_request
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.running_time import PATIENCE_S
from support.topic_admin import create_topic
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

Code = definition.Code
ResponseT = TypeVar("ResponseT", bound=Message)
GROUP = definition.Resource(name="tool")
QUEUE = definition.MessageQueue(topic=definition.Resource(name="numbers"))


def ask(broker: ServiceProcess, method: str, request: Message, response: type[ResponseT]) -> ResponseT:
    with grpc.insecure_channel(f"127.0.0.1:{broker.ports['grpcServerPort']}") as channel:
        call: grpc.UnaryUnaryMultiCallable[Message, ResponseT] = channel.unary_unary(
            f"/apache.rocketmq.v2.MessagingService/{method}",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return call(request, metadata=(("x-mq-client-id", "tool@1"),), timeout=PATIENCE_S, wait_for_ready=True)


def progress(broker: ServiceProcess) -> tuple[int, int]:
    answer = ask(broker, "GetOffset", pb.GetOffsetRequest(group=GROUP, message_queue=QUEUE), pb.GetOffsetResponse)
    return answer.status.code, answer.offset


def test_progress_that_was_set_outlives_a_kill(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        broker = cluster.add_broker(settings={"inSyncReplicas": "1", "brokerRole": "ASYNC_MASTER"})
        asyncio.run(create_topic(broker, "numbers", queues=1))
        for number in range(10):
            sent = ask(broker, "SendMessage", send_request(message("numbers", b"%d" % number)), pb.SendMessageResponse)
            assert sent.status.code == Code.OK
        assert progress(broker)[0] == Code.OFFSET_NOT_FOUND
        for offset in (7, 3):
            request = pb.UpdateOffsetRequest(group=GROUP, message_queue=QUEUE, offset=offset)
            assert ask(broker, "UpdateOffset", request, pb.UpdateOffsetResponse).status.code == Code.OK
            broker.kill()
            broker.start()
            wait_until(
                lambda: progress(broker)[0] != Code.FORBIDDEN, limit_s=PATIENCE_S, what="the broker serves again"
            )
            assert progress(broker) == (Code.OK, offset)


def test_a_topic_is_made_and_routed_by_the_first_question(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        settings = {"autoCreateTopicEnable": "true", "defaultTopicQueueNums": "3", "brokerRole": "ASYNC_MASTER"}
        broker = cluster.add_broker(settings=settings)
        request = pb.QueryRouteRequest(topic=definition.Resource(name="fresh"))
        request.endpoints.scheme = definition.IPv4
        request.endpoints.addresses.add(host="127.0.0.1", port=broker.ports["grpcServerPort"])
        answer = ask(broker, "QueryRoute", request, pb.QueryRouteResponse)
        assert answer.status.code == Code.OK
        assert [row.id for row in answer.message_queues] == [0, 1, 2]
        sent = ask(broker, "SendMessage", send_request(message("fresh")), pb.SendMessageResponse)
        assert sent.status.code == Code.OK
