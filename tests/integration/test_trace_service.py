"""A broker's TraceService and the reader that asks for it, over real connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio
import pytest

from support.span_samples import MESSAGE_ID, TOPIC, TRACE_ID, delivery_spans, send_spans, slave_spans
from tandemmq.admin.cluster_state import BrokerState
from tandemmq.admin.rpc import Channels, TraceCalls
from tandemmq.admin.trace_reader import TraceReader
from tandemmq.admin.trace_trees import copy_facts, trace_trees, unanswered
from tandemmq.broker.peer_api.lookups import TraceServicer
from tandemmq.broker.queries.message_queries import FoundMessage, Holding
from tandemmq.core.message.record import Host, RecordOutline
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.tracing.recent_spans import RecentSpans
from tandemmq.core.tracing.span_data import RetainedFor, SpanData, SpanKind, TraceContext, TraceOptions
from tandemmq.proto.admin.v1 import trace_service_pb2_grpc


@dataclass
class _Broker:
    state: BrokerState
    recent: RecentSpans


@asynccontextmanager
async def _serving(
    broker_id: int, *, traces: bool = True, breaks: bool = False, born_timestamp_ms: int = 1_795_309_199_997
) -> AsyncIterator[_Broker]:
    recent = RecentSpans(limit_bytes=1 << 20)

    async def find(message_id: str, topic: str) -> list[FoundMessage]:
        if breaks:
            raise OSError("the index cannot be read")
        found = _found(broker_id, born_timestamp_ms=born_timestamp_ms)
        return [found] if message_id == MESSAGE_ID and topic in ("", TOPIC) else []

    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(
        TraceServicer(
            identity=BrokerIdentity("DefaultCluster", "broker-a", broker_id),
            recent=recent if traces else None,
            options=TraceOptions(sample_rate=0.5, slow_ms=200) if traces else None,
            find_message=find,
            min_offset=lambda: 0,
            is_indexed=True,
        ),
        server,
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield _Broker(_state(broker_id, f"127.0.0.1:{port}"), recent)
    finally:
        await server.stop(None)


def _state(broker_id: int, address: str) -> BrokerState:
    return BrokerState("DefaultCluster", "broker-a", broker_id, "", address, "", True, None, None)


def _found(broker_id: int, *, born_timestamp_ms: int = 1_795_309_199_997) -> FoundMessage:
    host = Host.parse("10.0.0.7", 51_234)
    record = RecordOutline(
        total_size=412,
        body_crc=0,
        queue_id=3,
        flag=0,
        queue_offset=1_042,
        physical_offset=18_274_112,
        sys_flag=0,
        born_timestamp_ms=born_timestamp_ms,
        born_host=host,
        store_timestamp_ms=1_795_309_200_000,
        store_host=host,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body_offset=18_274_200,
        body_bytes=0,
        topic=TOPIC,
        properties=b"",
    )
    properties = {"UNIQ_KEY": MESSAGE_ID, "TAGS": "paid", "KEYS": "order-1"}
    return FoundMessage(record, properties, flushed=True, slaves=(Holding(1, 0),) if broker_id == 0 else ())


@asynccontextmanager
async def _reader() -> AsyncIterator[TraceReader]:
    channels = Channels()
    try:
        yield TraceReader(channels)
    finally:
        await channels.close()


async def test_a_message_is_joined_from_master_and_slave() -> None:
    async with _serving(0) as master, _serving(1) as slave, _reader() as reader:
        sent, copied, delivered = send_spans(), slave_spans(), delivery_spans()
        master.recent.add([*sent, *delivered])
        slave.recent.add(copied)
        brokers = [master.state, slave.state]
        by_message = await reader.find(brokers, MESSAGE_ID)
        by_trace = await reader.find(brokers, f"00-{TRACE_ID:032x}-{0x11:016x}-01")

    for found in (by_message, by_trace):
        assert sorted((one.broker, one.span.name) for one in found.spans) == sorted(
            [("broker-a:0", span.name) for span in (*sent, *delivered)] + [("broker-a:1", span.name) for span in copied]
        )
        assert [(copy.broker, copy.tag, copy.physical_offset) for copy in found.copies] == [
            ("broker-a:0", "paid", 18_274_112),
            ("broker-a:1", "paid", 18_274_112),
        ]
        assert found.message_id == MESSAGE_ID
    spans = {one.span.name: one.span for one in by_message.spans}
    # Attributes in any order, everything else as it was.
    for span in (*sent, *copied):
        assert spans[span.name] == span
    assert len(trace_trees(by_message.spans)) == 3


async def test_who_does_not_answer_and_who_does_not_trace_are_told() -> None:
    async with _serving(0, traces=False) as master, _reader() as reader:
        found = await reader.find([master.state, _state(1, "127.0.0.1:1"), _state(2, "")], MESSAGE_ID)
    silent, gone, nowhere = found.brokers
    assert (silent.broker, silent.tracing, silent.error) == ("broker-a:0", False, "")
    assert gone.error.startswith("UNAVAILABLE")
    assert nowhere.error == "its address is not known"
    assert len(found.copies) == 1
    assert found.spans == ()


async def test_an_older_broker_knows_nothing_of_traces() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with _reader() as reader:
        found = await reader.find([_state(0, f"127.0.0.1:{port}")], MESSAGE_ID)
    await server.stop(None)
    assert found.brokers[0].error == "knows nothing of traces: its version is older"


async def test_a_broker_that_cannot_search_its_store_is_told_of() -> None:
    async with _serving(0, breaks=True) as master, _reader() as reader:
        master.recent.add(send_spans())
        found = await reader.find([master.state], MESSAGE_ID)
    assert len(found.spans) == 4
    assert found.brokers[0].error == ""
    (unsearched,) = found.unsearched
    assert unsearched.broker == "broker-a:0"
    assert "did not say whether it holds the message" in unanswered(found.brokers, found.unsearched)[0]


@pytest.mark.parametrize("born_timestamp_ms", [-(1 << 60), 1 << 60])
async def test_a_client_with_no_clock_at_all_has_its_message_found(born_timestamp_ms: int) -> None:
    async with _serving(0, born_timestamp_ms=born_timestamp_ms) as master, _reader() as reader:
        found = await reader.find([master.state], MESSAGE_ID)
    assert found.unsearched == ()
    assert len(found.copies) == 1
    assert copy_facts(found.copies)


async def test_nothing_is_known_of_an_unknown_id() -> None:
    async with _serving(0) as master, _reader() as reader:
        by_message = await reader.find([master.state], "01FF")
        by_trace = await reader.find([master.state], f"{0xABC5:032x}")
    assert (by_message.message_id, by_message.spans, by_message.copies) == ("01FF", (), ())
    assert (by_trace.trace_id, by_trace.spans, by_trace.copies) == (0xABC5, (), ())
    (state,) = by_message.brokers
    assert (state.tracing, state.sample_rate, state.slow_threshold_ms, state.oldest_ms) == (True, 0.5, 200, None)


async def test_the_newest_of_all_brokers_slow_and_failed_first() -> None:
    async with _serving(0) as master, _serving(1) as slave, _reader() as reader:
        master.recent.add(send_spans(trace_id=1, message_id="A", retained_for=RetainedFor.SAMPLED))
        master.recent.add(send_spans(trace_id=2, message_id="B"))
        master.recent.add(send_spans(trace_id=3, message_id="C", failure="FLUSH_SLAVE_TIMEOUT", start_ns=1))
        slave.recent.add(slave_spans(trace_id=2, message_id="B"))
        brokers = [master.state, slave.state]
        everything = await reader.newest(brokers, count=10)
        notable = await reader.newest(brokers, count=10, notable_only=True)
    assert [(line.trace_id, line.message_ids) for line in everything.lines] == [(2, ("B",)), (3, ("C",)), (1, ("A",))]
    assert everything.lines[1].failure == "FLUSH_SLAVE_TIMEOUT"
    assert everything.lines[0].duration_ms == 7.37
    assert everything.brokers[0].trace_count == 3
    assert [line.trace_id for line in notable.lines] == [2, 3]


async def test_every_kind_of_attribute_survives() -> None:
    attributes: dict[str, str | int | float | bool | tuple[str, ...]] = {
        "text": "a",
        "empty": "",
        "whole": -(2**40),
        "part": 0.25,
        "no": False,
        "list": ("a", "b"),
    }
    span = SpanData("x", TraceContext(7, 8, True), 9, SpanKind.CONSUMER, 3, 4, attributes, parent_is_remote=True)
    async with _serving(0) as master, _reader() as reader:
        master.recent.add([span])
        found = await reader.of_trace([master.state], 7)
    assert found.spans[0].span == span


async def test_requests_without_a_key_are_refused() -> None:
    async with _serving(0) as master:
        channels = Channels()
        calls = TraceCalls(channels, master.state.metadata_endpoint)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await calls.find(message_id="")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as empty:
            await calls.message(message_id="", topic="")
        assert empty.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await channels.close()
