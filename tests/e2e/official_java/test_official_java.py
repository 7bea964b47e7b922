"""The client API's conformance scenarios with the official Java client."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from e2e.client_conformance import MASTER, ClientConformance
from support.cluster_processes import ProcessCluster
from support.running_time import PATIENCE_S
from support.topic_admin import create_topic
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_operations_service_pb2_grpc

_NAME = "told_by_the_operator"


class TestOfficialJava(ClientConformance):
    language = "java"

    def test_59_a_client_does_what_the_operator_tells_it(
        self, command: list[str], cluster: ProcessCluster, logs: Path
    ) -> None:
        with self._driver(command, cluster, logs / f"{_NAME}.log") as driver:
            driver.start(_NAME)
            driver.wait_waiting(_NAME, limit_s=PATIENCE_S)
            replies = asyncio.run(_told(cluster.brokers[MASTER].ports["listenPort"]))
            driver.resume(_NAME)
            driver.passed(_NAME, limit_s=PATIENCE_S)
        stack, verified, anew = replies
        assert stack.code == "OK"
        assert "OfficialScenarios" in stack.text
        assert verified.code == "OK", verified.text
        assert anew.code == "SENT"

    def test_lite_topics_are_pushed_in_order(self, command: list[str], cluster: ProcessCluster, logs: Path) -> None:
        name = "lite_push"
        asyncio.run(create_topic(cluster.brokers[MASTER], name, queues=4, message_type="LITE"))
        with self._driver(command, cluster, logs / f"{name}.log") as driver:
            driver.start(name)
            driver.passed(name, limit_s=PATIENCE_S)


async def _told(port: int) -> list[pb.CommandClientResponse]:
    """What the push consumer says to each command."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = broker_operations_service_pb2_grpc.BrokerOperationsServiceStub(channel)
        [client] = (await stub.ListClients(pb.ListClientsRequest(group=_NAME), timeout=PATIENCE_S)).clients
        return [
            await stub.CommandClient(
                pb.CommandClientRequest(client_id=client.client_id, command=command, topic=_NAME), timeout=PATIENCE_S
            )
            for command in (
                pb.CLIENT_COMMAND_PRINT_STACK,
                pb.CLIENT_COMMAND_VERIFY_MESSAGE,
                pb.CLIENT_COMMAND_RECONNECT,
            )
        ]
