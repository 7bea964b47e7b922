"""Real brokers trace one message: what both replicas export, what `tandemmq trace` shows, and what is left without."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.otlp_receiver import Manner, OtlpReceiver, ReceivedSpan
from support.running_time import run_program
from support.topic_admin import broker_status, create_topic
from tandemmq.client import ClientOptions, Producer
from tandemmq.client.messages import TopicNotFound
from tandemmq.service.event_loop import SystemClock

# The receiver never answers, and who waited for it would wait longer than this; a busy machine alone does not.
_HANG_S = 30.0
_TOPIC = "traced"
_LIMIT_S = 120.0


def _trace(cluster: ProcessCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tandemmq.cli", "trace", "--namesrv", cluster.namesrv_addr, *arguments]
    return run_program(command, limit_s=_LIMIT_S, stdin=subprocess.DEVNULL)


def _document(cluster: ProcessCluster, message_id: str) -> dict[str, Any]:
    found = _trace(cluster, message_id, "--json")
    assert found.returncode == 0, found.stderr
    document: dict[str, Any] = json.loads(found.stdout)
    return document


async def _send(master: ServiceProcess) -> str:
    options = ClientOptions((f"127.0.0.1:{master.ports['grpcServerPort']}",), request_timeout_ms=30_000)
    async with Producer(options, SystemClock()) as producer:
        async with asyncio.timeout(_LIMIT_S):
            while True:
                try:
                    return (await producer.send(_TOPIC, b"hello", tag="paid")).message_id
                except TopicNotFound:
                    # The broker tells the NameServer of a new topic in its own time.
                    await asyncio.sleep(0.1)


def _pair(cluster: ProcessCluster, settings: dict[str, str]) -> tuple[ServiceProcess, ServiceProcess]:
    cluster.add_name_server()
    master = cluster.add_broker(settings=settings)
    slave = cluster.add_broker(broker_id=1, settings=settings)
    asyncio.run(create_topic(master, _TOPIC, queues=1))
    wait_until(
        lambda: any(slave.in_sync for slave in asyncio.run(broker_status(master)).slaves),
        limit_s=_LIMIT_S,
        what="the slave is in sync",
    )
    return master, slave


def _is_whole(receiver: OtlpReceiver, message_id: str) -> bool:
    return {"SendMessage", "replicate wait", "replica append"} <= {
        span.name.rpartition("/")[2] for span in _of_message(receiver.spans(), message_id)
    }


def _of_message(spans: list[ReceivedSpan], message_id: str) -> list[ReceivedSpan]:
    traces = {span.trace_id for span in spans if span.attributes.get("messaging.message.id") == message_id}
    return [span for span in spans if span.trace_id in traces]


def test_one_send_is_seen_in_both_replicas_by_the_receiver_and_by_the_command(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver, ProcessCluster(tmp_path) as cluster:
        settings = {"traceEnable": "true", "traceSampleRate": "1.0", "traceExporterTarget": receiver.target}
        master, slave = _pair(cluster, settings)
        message_id = asyncio.run(_send(master))
        receiver.wait_until(lambda receiver: _is_whole(receiver, message_id), limit_s=_LIMIT_S)

        spans = _of_message(receiver.spans(), message_id)
        (copy,) = (span for span in spans if span.name == "replica append")
        (server,) = (span for span in spans if span.kind == "SERVER")
        children = [span for span in spans if span.parent_span_id == server.span_id]
        append, wait, reply = sorted(children, key=lambda span: span.start_ns)
        assert [append.name, wait.name, reply.name] == ["commitlog append", "replicate wait", "reply"]
        assert server.start_ns <= append.start_ns <= wait.start_ns <= wait.end_ns <= server.end_ns
        assert [(link.trace_id, link.span_id) for link in copy.links] == [(wait.trace_id, wait.span_id)]
        assert (server.resource["service.instance.id"], copy.resource["service.instance.id"]) == (
            "DefaultCluster/broker-a/0",
            "DefaultCluster/broker-a/1",
        )

        (send,) = _document(cluster, message_id)["operations"]
        waits = [child for child in send["span"]["children"] if child["name"] == "replicate wait"]
        (part,) = waits[0]["children"]
        assert (part["name"], part["broker"]) == ("replica append", "broker-a:1")
        printed = _trace(cluster, message_id).stdout
        assert "send to traced" in printed
        assert "replica append ⇠ broker-a:1" in printed
        assert message_id in _trace(cluster).stdout

        # What waits in a queue leaves with the process; the next start remembers nothing, and says so.
        last_id = asyncio.run(_send(master))
        assert master.stop() == 0
        assert any(span.name.endswith("SendMessage") for span in _of_message(receiver.spans(), last_id))
        assert slave.stop() == 0


def test_a_receiver_that_hangs_holds_up_neither_sends_nor_the_stop(tmp_path: Path) -> None:
    with OtlpReceiver(manner=Manner.HANGS) as receiver, ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        quick = {"brokerRole": "ASYNC_MASTER", "drainGracePeriod": "0"}
        tracing = {"traceEnable": "true", "traceSampleRate": "1.0", "traceExporterTarget": receiver.target}
        master = cluster.add_broker(settings={**quick, **tracing})
        asyncio.run(create_topic(master, _TOPIC, queues=1))
        asyncio.run(_send(master))
        receiver.wait_until(lambda receiver: receiver.call_count > 0)
        message_id = asyncio.run(asyncio.wait_for(_send(master), _HANG_S))
        # A send becomes a trace half a second after its answer.
        wait_until(lambda: _document(cluster, message_id)["operations"] != [], limit_s=_HANG_S, what="the send's trace")
        (send,) = _document(cluster, message_id)["operations"]
        assert send["span"]["attributes"]["tandemmq.put_status"] == "PUT_OK"
        # Waits for its end no longer than that either.
        assert master.stop() == 0


def test_without_traces_it_says_where_the_message_lies_and_who_holds_it(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        # Not forgotten by the NameServer nor by the master while it is stopped, however slow this machine is.
        master, slave = _pair(cluster, {"brokerNotActiveTimeoutMillis": "120000", "haHousekeepingInterval": "120000"})
        message_id = asyncio.run(_send(master))
        found = _document(cluster, message_id)
        assert {(copy["broker"], copy["physical_offset"]) for copy in found["stored"]} == {
            ("broker-a:0", 0),
            ("broker-a:1", 0),
        }
        assert found["stored"][0]["tag"] == "paid"
        assert found["notes"][0] == "broker-a:0 keeps no traces: traceEnable is off"

        os.kill(slave.pid, signal.SIGSTOP)
        try:
            printed = _trace(cluster, message_id).stdout
        finally:
            os.kill(slave.pid, signal.SIGCONT)
        assert "copy     broker-a:1, which has acknowledged it" in printed
        assert "note: broker-a:1 does not answer" in printed

        unknown = _trace(cluster, "01FF")
        assert unknown.returncode == 1
        assert "no broker that answers knows a message 01FF" in unknown.stdout
        assert _trace(cluster, "a b").returncode == 2
