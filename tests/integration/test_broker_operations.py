"""What operators do to a broker group, over real processes: offsets, groups, topics, settings, events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.api_requests import ack_request, message, receive_request, send_request
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.running_time import PATIENCE_S
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.proto.admin.v1 import broker_admin_service_pb2_grpc, broker_operations_service_pb2_grpc
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2, service_pb2_grpc

TOPIC, GROUP = "orders", "billing"
OFFSETS_INTERVAL = {"flushConsumerOffsetInterval": "200", "consumeFromEarliest": "true"}


class Operator:
    """One broker's admin plane."""

    def __init__(self, process: ServiceProcess) -> None:
        self._process = process
        self._channel = grpc.insecure_channel(f"127.0.0.1:{process.ports['listenPort']}")
        self.admin = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(self._channel)
        self.operations = broker_operations_service_pb2_grpc.BrokerOperationsServiceStub(self._channel)

    def committed(self, group: str = GROUP, topic: str = TOPIC) -> dict[int, int]:
        """Progress by queue id."""
        request = admin_pb.ListSubscriptionGroupsRequest(groups=[group])
        answer = self.admin.ListSubscriptionGroups(request, timeout=PATIENCE_S)
        return {
            progress.queue_id: progress.committed_offset
            for status in answer.groups
            for progress in status.progress
            if progress.topic == topic
        }

    def has_slave_in_sync(self) -> bool:
        """Whether sends are acknowledged."""
        status = self.admin.GetBrokerStatus(admin_pb.GetBrokerStatusRequest(), timeout=PATIENCE_S)
        return any(slave.in_sync for slave in status.slaves)

    def has_group(self, group: str = GROUP) -> bool:
        request = admin_pb.ListSubscriptionGroupsRequest(groups=[group], without_progress=True)
        return bool(self.admin.ListSubscriptionGroups(request, timeout=PATIENCE_S).groups)

    def reset(self, **target: object) -> list[tuple[int, int, int, int, int]]:
        request = pb.ResetOffsetsRequest(group=GROUP, topic=TOPIC, **target)  # type: ignore[arg-type]
        return [
            (move.queue_id, move.from_offset, move.to_offset, move.max_offset, move.inflight_count)
            for move in self.operations.ResetOffsets(request, timeout=PATIENCE_S).moves
        ]

    def create_topic(self, *, queues: int = 1) -> None:
        request = admin_pb.UpdateTopicRequest(topic=TOPIC, read_queue_count=queues, write_queue_count=queues)
        self.admin.UpdateTopic(request, timeout=PATIENCE_S)

    def setting(self, key: str) -> pb.SettingView:
        answer: pb.GetConfigResponse = self.operations.GetConfig(pb.GetConfigRequest(), timeout=PATIENCE_S)
        return next(setting for setting in answer.settings if setting.key == key)


class Client:
    def __init__(self, process: ServiceProcess, client_id: str = "client-1") -> None:
        self._stub = service_pb2_grpc.MessagingServiceStub(
            grpc.insecure_channel(f"127.0.0.1:{process.ports['grpcServerPort']}")
        )
        self._metadata = (("x-mq-client-id", client_id),)

    def send(self, *bodies: bytes) -> list[int]:
        """Status codes."""
        codes = []
        for body in bodies:
            answer = self._stub.SendMessage(
                send_request(message(TOPIC, body)), metadata=self._metadata, timeout=PATIENCE_S
            )
            codes.append(answer.status.code)
        return codes

    def receive(self, count: int = 32, *, group: str = GROUP) -> tuple[int, list[definition.Message]]:
        """Status code and messages; waits for a second at most."""
        request = receive_request(TOPIC, group=group, batch_size=count, poll_ms=1_000, invisible_ms=60_000)
        elements = list(self._stub.ReceiveMessage(request, metadata=self._metadata, timeout=PATIENCE_S))
        return elements[0].status.code, [one.message for one in elements if one.WhichOneof("content") == "message"]

    def acknowledge(self, messages: list[definition.Message]) -> int:
        """The overall status code."""
        handles = [one.system_properties.receipt_handle for one in messages]
        request = ack_request(*handles, topic=TOPIC, group=GROUP)
        answer: service_pb2.AckMessageResponse = self._stub.AckMessage(
            request, metadata=self._metadata, timeout=PATIENCE_S
        )
        return answer.status.code


@contextmanager
def refused(code: grpc.StatusCode, text: str) -> Iterator[None]:
    """The call inside ends with that code and says so much."""
    with pytest.raises(grpc.RpcError) as error:
        yield
    failure: Any = error.value
    assert failure.code() is code
    assert text in failure.details()


def stored_offsets(cluster: ProcessCluster, key: str) -> str:
    return (cluster.store_folder(key) / "config" / "consumerOffset.json").read_text()


def test_a_group_is_moved_and_removed_on_master_and_slave(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker(settings=OFFSETS_INTERVAL)
        slave = cluster.add_broker(broker_id=1)
        operator, witness, client = Operator(master), Operator(slave), Client(master)
        operator.create_topic()
        wait_until(operator.has_slave_in_sync, limit_s=PATIENCE_S, what="the slave is in sync")
        assert client.send(b"0", b"1", b"2", b"3", b"4") == [definition.OK] * 5
        assert client.acknowledge(client.receive(3)[1]) == definition.OK
        wait_until(lambda: witness.committed() == {0: 3}, limit_s=PATIENCE_S, what="the slave has the progress")

        # Reset by time while the rest is in the client's hands.
        held = client.receive()[1]
        assert [one.body for one in held] == [b"3", b"4"]
        (known,) = operator.operations.ListClients(pb.ListClientsRequest(group=GROUP), timeout=PATIENCE_S).clients
        assert (known.client_id, known.group) == ("client-1", GROUP)
        assert known.address.startswith("127.0.0.1:")
        moves = [(0, 3, 0, 5, 2)]
        assert operator.reset(time={"seconds": int(time.time()) - 3_600}, dry_run=True) == moves
        assert operator.committed() == {0: 3}
        assert operator.reset(time={"seconds": int(time.time()) - 3_600}) == moves
        assert client.acknowledge(held) == definition.INVALID_RECEIPT_HANDLE
        wait_until(lambda: witness.committed() == {0: 0}, limit_s=PATIENCE_S, what="the slave went back too")
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "slave"):
            witness.reset(earliest=True)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "holds 0 to 5"):
            operator.reset(offsets={"by_queue": {0: 6}})
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "name a time"):
            operator.reset()
        with refused(grpc.StatusCode.NOT_FOUND, "nobody"):
            request = pb.ResetOffsetsRequest(group="nobody", topic=TOPIC, latest=True)
            operator.operations.ResetOffsets(request, timeout=PATIENCE_S)

        master.kill()
        master.start()
        operator, client = Operator(master), Client(master)
        assert operator.committed() == {0: 0}
        again = client.receive()[1]
        assert [one.body for one in again] == [b"0", b"1", b"2", b"3", b"4"]
        assert {one.system_properties.delivery_attempt for one in again} == {1}

        # Removal while its consumer is connected.
        removal = pb.DeleteSubscriptionGroupRequest(group=GROUP)
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "client-1"):
            operator.operations.DeleteSubscriptionGroup(removal, timeout=PATIENCE_S)
        removal.even_with_members = True
        for removal.dry_run in (True, False):
            assert operator.has_group()
            answer = operator.operations.DeleteSubscriptionGroup(removal, timeout=PATIENCE_S)
            assert (answer.existed, list(answer.topics), answer.inflight_count) == (True, [TOPIC], 5)
        assert not operator.operations.DeleteSubscriptionGroup(removal, timeout=PATIENCE_S).existed
        assert client.acknowledge(again) == definition.INVALID_RECEIPT_HANDLE
        wait_until(lambda: not witness.has_group(), limit_s=PATIENCE_S, what="the slave removed it too")
        wait_until(
            lambda: f'"{TOPIC}@{GROUP}":{{' not in stored_offsets(cluster, "broker-a-1"),
            limit_s=PATIENCE_S,
            what="its progress too",
        )
        for process in (master, slave):
            assert process.stop() == 0
            process.start()
        assert not Operator(master).has_group()
        assert not Operator(slave).has_group()
        assert Operator(master).committed() == {}
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "belongs to the system"):
            removal.group = "TOOLS_CONSUMER"
            Operator(master).operations.DeleteSubscriptionGroup(removal, timeout=PATIENCE_S)


def test_a_topic_made_again_has_no_progress_and_an_update_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        settings = {"brokerRole": "ASYNC_MASTER", "flushConsumerOffsetInterval": "200"}
        master = cluster.add_broker(settings=settings)
        operator, client = Operator(master), Client(master)
        operator.create_topic(queues=4)
        client.receive(group=GROUP)
        client.send(b"0", b"1")
        assert client.acknowledge(client.receive()[1]) == definition.OK
        wait_until(
            lambda: f"{TOPIC}@{GROUP}" in stored_offsets(cluster, "broker-a-0"), limit_s=PATIENCE_S, what="stored"
        )
        operator.admin.DeleteTopic(admin_pb.DeleteTopicRequest(topic=TOPIC), timeout=PATIENCE_S)
        assert operator.committed() == {}
        offsets = json.loads(stored_offsets(cluster, "broker-a-0").replace("\t", ""))
        assert offsets["offsetTable"] == {}
        operator.create_topic(queues=4)
        assert operator.committed() == {}

        request = admin_pb.UpdateTopicRequest(topic=TOPIC, write_queue_count=2, message_type="FIFO")
        operator.admin.UpdateTopic(request, timeout=PATIENCE_S)
        operator.admin.UpdateTopic(admin_pb.UpdateTopicRequest(topic=TOPIC, permission=4), timeout=PATIENCE_S)
        listing = admin_pb.ListTopicsRequest(
            topics=[TOPIC, "nowhere", "TBW102", "SELF_TEST_TOPIC"], without_queues=True
        )
        status, own = reversed(operator.admin.ListTopics(listing, timeout=PATIENCE_S).topics)
        assert own.topic == "SELF_TEST_TOPIC"
        assert (status.read_queue_count, status.write_queue_count, status.permission) == (4, 2, 4)
        assert (status.message_type, list(status.queues)) == ("FIFO", [])
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "use one of NORMAL"):
            operator.admin.UpdateTopic(
                admin_pb.UpdateTopicRequest(topic=TOPIC, message_type="PLAIN"), timeout=PATIENCE_S
            )
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "1025 read queues"):
            operator.admin.UpdateTopic(
                admin_pb.UpdateTopicRequest(topic=TOPIC, read_queue_count=1_025), timeout=PATIENCE_S
            )


def test_settings_change_while_the_broker_runs_and_end_with_it(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker(settings={"brokerRole": "ASYNC_MASTER", "fileReservedTime": "48"})
        operator, client = Operator(master), Client(master)
        operator.create_topic()
        setting = operator.setting("fileReservedTime")
        assert (setting.value, setting.default_value, setting.origin, setting.changeable) == (
            "48",
            "72",
            "configured",
            True,
        )
        operator.operations.UpdateConfig(pb.UpdateConfigRequest(values={"logLevel": "ERROR"}), timeout=PATIENCE_S)
        values = {"maxMessageSize": "10", "autoCreateSubscriptionGroup": "false", "fileReservedTime": "48"}
        for dry_run in (True, False):
            assert operator.setting("maxMessageSize").origin == "configured"
            changes = operator.operations.UpdateConfig(
                pb.UpdateConfigRequest(values=values, dry_run=dry_run), timeout=PATIENCE_S
            ).changes
            assert [(change.key, change.to_value) for change in changes] == [
                ("autoCreateSubscriptionGroup", "false"),
                ("maxMessageSize", "10"),
            ]
        assert operator.setting("maxMessageSize").origin == "changed"
        assert client.send(b"0123456789", b"0123456789a") == [definition.OK, definition.MESSAGE_BODY_TOO_LARGE]
        assert client.receive(group="newcomers")[0] == definition.CONSUMER_GROUP_NOT_FOUND
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "brokerName: cannot change"):
            operator.operations.UpdateConfig(
                pb.UpdateConfigRequest(values={"brokerName": "x", "maxMessageSize": "20"}), timeout=PATIENCE_S
            )
        assert operator.setting("maxMessageSize").value == "10"

        events = operator.operations.ListEvents(pb.ListEventsRequest(limit=500), timeout=PATIENCE_S)
        by_name = {event.event: event for event in events.events}
        assert by_name["settings_changed"].fields["by"] == "operator"
        written = {line["event"] for line in master.events()}
        assert "settings_changed" not in written, "remembered, although not written"
        assert by_name["topic_created"].fields["topic"] == TOPIC
        assert by_name["broker_serving"].level == "info"
        assert events.last_sequence == events.events[-1].sequence
        assert events.process_start_time.ToSeconds() > time.time() - 600
        newest = operator.operations.ListEvents(
            pb.ListEventsRequest(after_sequence=events.last_sequence - 1, limit=500), timeout=PATIENCE_S
        )
        assert len(newest.events) == 1
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "limit"):
            operator.operations.ListEvents(pb.ListEventsRequest(limit=501), timeout=PATIENCE_S)

        assert master.stop() == 0
        master.start()
        assert Operator(master).setting("maxMessageSize").origin == "configured"
        assert Client(master).send(b"0123456789a") == [definition.OK]
