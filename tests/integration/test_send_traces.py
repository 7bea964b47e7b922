"""Traces of sends over real processes: a SYNC_MASTER and its slave export to one receiver."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest

from support.acknowledged_sends import METADATA
from support.api_requests import message, send_request
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.otlp_receiver import OtlpReceiver, ReceivedSpan
from support.running_time import PATIENCE_S
from support.topic_admin import broker_status, create_topic
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.proto.rocketmq.v2 import service_pb2_grpc

TOPIC = "traced"
SERVER = "apache.rocketmq.v2.MessagingService/SendMessage"
# Two processes of one machine have one clock, whose reading and the monotonic one's are some time apart in each.
CLOCK_TOLERANCE_NS = 2_000_000


@dataclass
class Pair:
    """What a test needs of the cluster."""

    receiver: OtlpReceiver
    master: ServiceProcess
    slave: ServiceProcess

    def send(self, *messages: definition.Message, traceparent: str = "") -> definition.Code:
        metadata = [*METADATA, *([("traceparent", traceparent)] if traceparent else [])]
        with grpc.insecure_channel(f"127.0.0.1:{self.master.ports['grpcServerPort']}") as channel:
            stub = service_pb2_grpc.MessagingServiceStub(channel)
            answer: service.SendMessageResponse = stub.SendMessage(
                send_request(*messages), metadata=metadata, timeout=PATIENCE_S
            )
        return answer.status.code

    def spans_of(self, message_id: str) -> dict[str, ReceivedSpan]:
        """The master's by name, and the slave's with `slave: ` before it; empty until both told of the message."""
        spans = self.receiver.spans()
        servers = [span for span in spans if span.attributes.get("messaging.message.id") == message_id]
        trace_ids = {span.trace_id for span in servers}
        found = {}
        for span in spans:
            if span.trace_id in trace_ids:
                is_slave = span.resource["tandemmq.broker_id"] == 1
                found["slave: " * is_slave + span.name.rpartition("/")[2]] = span
        # The last ones of each: a batch may end between two spans.
        return found if {"SendMessage", "reply", "slave: report"} <= set(found) else {}

    def wait_for(self, message_id: str) -> dict[str, ReceivedSpan]:
        self.receiver.wait_until(lambda _: bool(self.spans_of(message_id)), limit_s=PATIENCE_S)
        return self.spans_of(message_id)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with OtlpReceiver() as receiver, ProcessCluster(tmp_path_factory.mktemp("traces")) as cluster:
        settings = {
            "traceEnable": "true",
            "traceSampleRate": "0",
            "traceSlowThreshold": "10000",
            "traceExporterTarget": receiver.target,
            "slaveTimeout": "3000",
            "flushDiskType": "SYNC_FLUSH",
        }
        cluster.add_name_server()
        master = cluster.add_broker("broker-a", settings=settings)
        slave = cluster.add_broker("broker-a", broker_id=1, settings=settings)
        asyncio.run(create_topic(master, TOPIC))
        wait_until(
            lambda: any(slave.in_sync for slave in asyncio.run(broker_status(master)).slaves),
            limit_s=PATIENCE_S,
            what="the slave is in sync",
        )
        yield Pair(receiver, master, slave)


def test_a_traced_send_shows_its_time_on_both_replicas(pair: Pair) -> None:
    traced = message(TOPIC, message_id="traced-1")
    traced.user_properties["traceparent"] = "00-000000000000000000000000000000aa-00000000000000bb-01"
    assert pair.send(traced) == definition.OK
    spans = pair.wait_for("traced-1")
    assert set(spans) == {
        "SendMessage",
        "commitlog append",
        "flush wait",
        "replicate wait",
        "reply",
        "slave: replica append",
        "slave: commitlog append",
        "slave: flush wait",
        "slave: report",
    }
    server, wait, copy = spans["SendMessage"], spans["replicate wait"], spans["slave: replica append"]
    assert (server.trace_id, server.parent_span_id, server.kind) == (0xAA, 0xBB, "SERVER")
    assert server.attributes["tandemmq.trace.retained_for"] == "sampled"
    assert [(link.trace_id, link.span_id) for link in copy.links] == [(0xAA, wait.span_id)]
    for name in ("commitlog append", "flush wait", "replicate wait", "reply"):
        child = spans[name]
        assert child.parent_span_id == server.span_id
        assert server.start_ns <= child.start_ns <= child.end_ns <= server.end_ns
    assert spans["commitlog append"].end_ns == wait.start_ns == spans["flush wait"].start_ns
    assert spans["reply"].start_ns >= max(wait.end_ns, spans["flush wait"].end_ns)
    assert [event.name for event in wait.events] == ["sent", "acknowledged"]
    sent, acknowledged = wait.events
    assert wait.end_ns == acknowledged.at_ns
    assert sent.at_ns - CLOCK_TOLERANCE_NS <= copy.start_ns
    assert copy.end_ns <= acknowledged.at_ns + CLOCK_TOLERANCE_NS
    assert (wait.attributes["tandemmq.ack.policy"], wait.attributes["tandemmq.ack.received"]) == (
        "SYNC_REPLICATION+SYNC_FLUSH",
        1,
    )


def test_the_header_of_a_call_does_for_messages_without_a_context(pair: Pair) -> None:
    traceparent = "00-000000000000000000000000000000cc-00000000000000dd-01"
    assert pair.send(message(TOPIC, message_id="traced-2"), traceparent=traceparent) == definition.OK
    server = pair.wait_for("traced-2")["SendMessage"]
    assert (server.trace_id, server.parent_span_id) == (0xCC, 0xDD)


def test_a_send_that_failed_is_traced_and_its_slave_tells_its_part_when_it_is_back(pair: Pair) -> None:
    assert pair.send(message(TOPIC, message_id="not-traced")) == definition.OK
    os.kill(pair.slave.pid, signal.SIGSTOP)
    try:
        assert pair.send(message(TOPIC, message_id="failed-1")) == definition.SLAVE_PERSISTENCE_TIMEOUT
    finally:
        os.kill(pair.slave.pid, signal.SIGCONT)
    spans = pair.wait_for("failed-1")
    server, wait, copy = spans["SendMessage"], spans["replicate wait"], spans["slave: replica append"]
    assert server.failed
    assert wait.failed
    assert server.attributes["error.type"] == server.attributes["tandemmq.put_status"] == "FLUSH_SLAVE_TIMEOUT"
    assert server.attributes["tandemmq.trace.retained_for"] == "failed"
    assert not spans["flush wait"].failed
    assert wait.attributes["tandemmq.ack.received"] == 0
    # Limits are kept in whole milliseconds.
    assert wait.end_ns - wait.start_ns > 2_999_000_000
    assert copy.end_ns > wait.end_ns
    assert not [span for span in pair.receiver.spans() if span.attributes.get("messaging.message.id") == "not-traced"]


def test_a_refused_request_is_traced(pair: Pair) -> None:
    assert pair.send(message("no-such-topic", message_id="refused-1")) == definition.TOPIC_NOT_FOUND
    pair.receiver.wait_until(
        lambda receiver: any(
            span.attributes.get("messaging.message.id") == "refused-1" for span in receiver.spans(SERVER)
        )
    )
    [server] = [
        span for span in pair.receiver.spans(SERVER) if span.attributes.get("messaging.message.id") == "refused-1"
    ]
    assert server.attributes["error.type"] == "TOPIC_NOT_FOUND"
