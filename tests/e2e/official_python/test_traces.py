"""A trace the official Python client's application began goes on in a broker process, and in what that exports."""

from __future__ import annotations

from pathlib import Path

from e2e.official_python.conftest import RunAt
from support.cluster_processes import ProcessCluster
from support.otlp_receiver import OtlpReceiver
from support.topic_admin import create_topic
from tandemmq.core.tracing.span_data import TraceContext

APPLICATION = TraceContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True)
_SERVICE = "apache.rocketmq.v2.MessagingService/"


async def test_applications_trace_goes_on_from_send_to_acknowledgement(tmp_path: Path, run_at: RunAt) -> None:
    with OtlpReceiver() as receiver, ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        broker = cluster.add_broker(
            settings={
                "brokerRole": "ASYNC_MASTER",
                "consumeFromEarliest": "true",
                "traceEnable": "true",
                "traceSampleRate": "0",
                "traceSlowThreshold": "0",
                "traceExporterTarget": receiver.target,
            }
        )
        await create_topic(broker, "orders")
        address = f"127.0.0.1:{broker.ports['grpcServerPort']}"
        [message_id] = (await run_at(address, "produce", "--count", "1", "--traceparent", APPLICATION.traceparent))[
            "message_ids"
        ]
        [received] = (await run_at(address, "consume"))["messages"]
        receiver.wait_until(lambda taken: bool(taken.spans(_SERVICE + "AckMessage") and taken.spans("reply")))

    assert received["properties"]["traceparent"] == APPLICATION.traceparent
    [send] = receiver.spans(_SERVICE + "SendMessage")
    assert (send.trace_id, send.parent_span_id) == (APPLICATION.trace_id, APPLICATION.span_id)
    [append] = receiver.spans("commitlog append")
    assert append.parent_span_id == send.span_id
    [receive] = receiver.spans(_SERVICE + "ReceiveMessage")
    [ack] = receiver.spans(_SERVICE + "AckMessage")
    for span in (receive, ack):
        link = span.links[0]
        assert (link.trace_id, link.span_id) == (APPLICATION.trace_id, APPLICATION.span_id)
        assert link.attributes["messaging.message.id"] == message_id
    assert send.start_ns <= append.start_ns <= append.end_ns <= send.end_ns <= receive.end_ns <= ack.end_ns
    assert send.resource["service.name"] == "tandemmq-broker"
