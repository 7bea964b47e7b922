"""Metrics leave a process: over HTTP, and to a receiver that takes, refuses or hangs."""

from __future__ import annotations

import asyncio
import errno
import gzip
import http.client
import socket
import socketserver
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from types import SimpleNamespace
from typing import NoReturn

import pytest
import structlog
from prometheus_client import parser

from support.otlp_receiver import Manner, OtlpReceiver
from support.running_time import PATIENCE_S, running_time, until
from tandemmq.service import metrics
from tandemmq.service.metrics import (
    ExporterType,
    LoopSnapshot,
    MetricExports,
    MetricFamily,
    MetricInfo,
    MetricKind,
    MetricSamples,
    MetricsOptions,
    PrometheusEndpoint,
)
from tandemmq.service.rpc import ListenError

SIZE = MetricInfo("size", MetricKind.GAUGE, "By", "A size.", ("topic",))
# A call that hangs is given up after so long here: what waited for it would be later than half of it on any machine.
CALL_LIMIT_S = 60.0
RESOURCE = {"service.name": "tandemmq-broker"}


async def collect() -> list[MetricFamily]:
    samples = MetricSamples((SIZE,))
    samples.add("size", 7, "orders")
    return samples.families()


@pytest.fixture(autouse=True)
def _calls_hang_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CALL_LIMIT_S", CALL_LIMIT_S)


@asynccontextmanager
async def exporting(*types: ExporterType, target: str = "", interval_ms: int = 20) -> AsyncIterator[MetricExports]:
    options = MetricsOptions(types=frozenset(types), target=target, interval_ms=interval_ms)
    exports = MetricExports(options, collect=collect, resource=RESOURCE)
    await exports.start()
    try:
        yield exports
    finally:
        await exports.close()


def get_from(address: str, port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S, source_address=(address, 0))
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def get(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers.get("Content-Type", ""), response.read()
    finally:
        connection.close()


async def test_a_scrape_gets_what_the_loop_tells_and_the_process_too() -> None:
    async with exporting(ExporterType.PROM) as exports:
        status, content_type, body = await asyncio.to_thread(get, exports.port)
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    metrics = {metric.name: metric for metric in parser.text_string_to_metric_families(body.decode())}
    assert metrics["size"].samples[0].value == 7
    assert metrics["process_resident_memory_bytes"].samples[0].value > 1 << 20


async def test_open_metrics_and_gzip_are_given_to_who_takes_them() -> None:
    headers = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "Accept-Encoding": "gzip"}
    async with exporting(ExporterType.PROM) as exports:
        status, content_type, body = await asyncio.to_thread(get, exports.port, **headers)
    assert (status, content_type) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert gzip.decompress(body).endswith(b"# EOF\n")


async def test_other_paths_are_told_where_metrics_are() -> None:
    async with exporting(ExporterType.PROM) as exports:
        assert (await asyncio.to_thread(get, exports.port, "/"))[0] == 404


async def test_a_port_that_is_taken_keeps_the_process_from_starting() -> None:
    async with exporting(ExporterType.PROM) as exports:
        options = MetricsOptions(types=frozenset({ExporterType.PROM}), port=exports.port)
        with pytest.raises(ListenError):
            await MetricExports(options, collect=collect, resource=RESOURCE).start()


async def test_a_loop_that_is_held_up_costs_the_scrape_and_nothing_else() -> None:
    async def never() -> list[MetricFamily]:
        await asyncio.sleep(60)
        return []

    snapshot = LoopSnapshot(never, loop=asyncio.get_running_loop(), limit_s=0.1)
    endpoint = PrometheusEndpoint("127.0.0.1", 0, read=snapshot.take)
    try:
        status, _, body = await asyncio.to_thread(get, endpoint.port)
    finally:
        await asyncio.to_thread(endpoint.close)
    assert (status, body) == (503, b"the event loop did not answer within 0.1 s\n")


async def test_the_end_ends_a_scrape_too() -> None:
    begun, ends = asyncio.Event(), []

    async def long() -> list[MetricFamily]:
        begun.set()
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        return []

    options = MetricsOptions(types=frozenset({ExporterType.PROM}))
    exports = MetricExports(options, collect=long, resource=RESOURCE)
    await exports.start()
    scrape = asyncio.create_task(asyncio.to_thread(get, exports.port))
    await begun.wait()
    await exports.close()
    assert ends == ["cancelled"]
    assert (await scrape)[0] == 503


async def test_metrics_that_cannot_be_read_are_an_error_of_the_scrape() -> None:
    async def broken() -> list[MetricFamily]:
        raise ValueError("a mistake")

    snapshot = LoopSnapshot(broken, loop=asyncio.get_running_loop(), limit_s=5)
    endpoint = PrometheusEndpoint("127.0.0.1", 0, read=snapshot.take)
    try:
        assert (await asyncio.to_thread(get, endpoint.port))[0] == 500
    finally:
        await asyncio.to_thread(endpoint.close)


async def test_metrics_that_cannot_be_written_are_one_too() -> None:
    def wrong() -> list[MetricFamily]:
        return [MetricFamily(SIZE, [(("orders",), None)])]  # type: ignore[list-item]  # a mistake

    endpoint = PrometheusEndpoint("127.0.0.1", 0, read=wrong)
    try:
        with structlog.testing.capture_logs() as lines:
            assert (await asyncio.to_thread(get, endpoint.port))[0] == 500
    finally:
        await asyncio.to_thread(endpoint.close)
    assert [line["event"] for line in lines] == ["metrics_unreadable"]


async def test_without_a_file_descriptor_left_the_thread_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []

    def accept(_: socketserver.TCPServer) -> NoReturn:
        attempts.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socketserver.TCPServer, "get_request", accept)
    endpoint = PrometheusEndpoint("127.0.0.1", 0, read=list)
    with socket.create_connection(("127.0.0.1", endpoint.port)):
        await until(lambda: attempts)
        await asyncio.sleep(0.5)
    await asyncio.to_thread(endpoint.close)
    assert len(attempts) < 20


async def test_places_of_scrapes_that_found_no_thread_are_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    endpoint = PrometheusEndpoint("127.0.0.1", 0, read=list)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(socketserver.ThreadingMixIn, "process_request", refuse)
            for _ in range(10):
                with pytest.raises((http.client.HTTPException, ConnectionError)):
                    await asyncio.to_thread(get, endpoint.port)
        assert (await asyncio.to_thread(get, endpoint.port))[0] == 200
    finally:
        await asyncio.to_thread(endpoint.close)


async def test_whoever_asks_without_a_pause_takes_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is read on the event loop, which has others to serve."""
    monkeypatch.setattr(metrics, "_AHEAD_S", 1.0)
    read: list[float] = []

    def slowly() -> list[MetricFamily]:
        read.append(time.monotonic())
        time.sleep(0.02)
        samples = MetricSamples((SIZE,))
        samples.add("size", len(read), "orders")
        return samples.families()

    endpoint = PrometheusEndpoint("127.0.0.1", 0, read=slowly)
    try:
        began = time.monotonic()
        answers = [await asyncio.to_thread(get, endpoint.port) for _ in range(100)]
        took = time.monotonic() - began
        assert {status for status, _, _ in answers} == {200}
        assert 1 <= len(read) <= 7 + 5 * took
        # Who asks now and then is told of now.
        await asyncio.sleep(1.5)
        told = len(read)
        _, _, body = await asyncio.to_thread(get, endpoint.port)
        assert f'{{topic="orders"}} {told + 1}' in body.decode()
    finally:
        await asyncio.to_thread(endpoint.close)


async def test_whoever_asks_for_one_form_without_a_pause_leaves_no_old_figures_to_who_asks_for_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """curl asks for plain text, Prometheus for OpenMetrics."""
    now_s, made_s = 1_000.0, 0.0

    def slowly() -> list[MetricFamily]:
        nonlocal now_s, made_s
        now_s, made_s = now_s + 1.0, now_s
        samples = MetricSamples((SIZE,))
        samples.add("size", made_s, "orders")
        return samples.families()

    def age_s(*, open_metrics: bool) -> float:
        asked_s = now_s
        text = endpoint._server.text(open_metrics=open_metrics).decode()
        return asked_s - float(text.partition('"orders"} ')[2].split()[0])

    endpoint = PrometheusEndpoint("127.0.0.1", 0, read=slowly)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep))
            for second in range(600):
                now_s += 1.0
                assert age_s(open_metrics=False) < 15
                if second % 15 == 0:
                    assert age_s(open_metrics=True) < 15
            # What was made for its age is not owed for ever: a while later who asks every ten seconds is told of now.
            now_s += 30.0
            ages: list[float] = []
            for _ in range(20):
                ages.append(age_s(open_metrics=True))
                now_s += 10.0
            assert not any(ages)
    finally:
        await asyncio.to_thread(endpoint.close)


async def _drip(port: int, ended: list[int]) -> None:
    """Sends a request that never ends, a byte at a time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        writer.write(b"GET /metrics HTTP/1.1\r\nx: ")
        while not reader.at_eof():
            writer.write(b"x")
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await reader.read(1)
    ended.append(1)
    writer.close()


async def test_whoever_holds_all_connections_with_requests_that_never_end_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight of them would keep Prometheus out for as long as somebody likes."""
    ended: list[int] = []
    endpoint = PrometheusEndpoint("127.0.0.1", 0, read=list)
    drips = [asyncio.create_task(_drip(endpoint.port, ended)) for _ in range(12)]
    try:
        await until(lambda: len(ended) >= 4)
        assert (await asyncio.to_thread(get_from, "127.0.0.2", endpoint.port))[0] == 200
        monkeypatch.setattr(metrics, "_CONNECTION_LIMIT_S", 0.5)
        await until(lambda: len(ended) >= 12)
        assert (await asyncio.to_thread(get, endpoint.port))[0] == 200
    finally:
        for drip in drips:
            drip.cancel()
        await asyncio.to_thread(endpoint.close)


async def test_a_receiver_is_sent_the_same_metrics_again_and_again() -> None:
    with OtlpReceiver() as receiver:
        async with exporting(ExporterType.OTLP_GRPC, target=receiver.target):
            await asyncio.to_thread(receiver.wait_until, lambda receiver: len(receiver.metrics("size")) >= 2)
        (first, *_) = receiver.metrics("size")
    assert first.metric.gauge.data_points[0].as_int == 7
    assert first.resource["service.name"] == "tandemmq-broker"
    assert receiver.metrics("process_resident_memory_bytes")


async def test_the_last_figures_are_sent_at_the_end() -> None:
    with OtlpReceiver() as receiver:
        async with exporting(ExporterType.OTLP_GRPC, target=receiver.target, interval_ms=60_000):
            pass
        assert len(receiver.metrics("size")) == 1


@pytest.mark.parametrize("manner", [Manner.HANGS, Manner.REFUSES, Manner.FORBIDS])
async def test_a_bad_receiver_holds_up_neither_the_loop_nor_the_end(manner: Manner) -> None:
    with OtlpReceiver(manner=manner) as receiver, ExitStack() as ending:
        async with exporting(ExporterType.OTLP_GRPC, target=receiver.target):
            await asyncio.to_thread(receiver.wait_until, lambda receiver: receiver.call_count >= 1)
            longest_s = await longest_turn_s(0.3)
            seconds = ending.enter_context(running_time())
        assert seconds() < CALL_LIMIT_S / 2
    assert longest_s < CALL_LIMIT_S / 2


async def test_a_receiver_that_is_not_there_holds_up_nothing() -> None:
    with ExitStack() as ending:
        async with exporting(ExporterType.OTLP_GRPC, target="127.0.0.1:1"):
            assert await longest_turn_s(0.3) < CALL_LIMIT_S / 2
            seconds = ending.enter_context(running_time())
        assert seconds() < CALL_LIMIT_S / 2


async def test_an_export_that_is_set_up_wrongly_is_told_of_and_keeps_nobody_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "zip")
    with OtlpReceiver() as receiver, structlog.testing.capture_logs() as lines:
        async with exporting(ExporterType.OTLP_GRPC, target=receiver.target):
            await until(lambda: lines)
            monkeypatch.delenv("OTEL_EXPORTER_OTLP_COMPRESSION")
            await asyncio.to_thread(receiver.wait_until, lambda receiver: bool(receiver.metrics("size")))
    assert lines[0]["event"] == "metrics_export_failing"
    assert "OTEL_EXPORTER_OTLP_COMPRESSION" in lines[0]["problem"]


async def longest_turn_s(duration_s: float) -> float:
    """How long the loop let a timer wait at most."""
    longest_s = 0.0
    with running_time() as seconds:
        while (before := seconds()) < duration_s:
            await asyncio.sleep(0.001)
            longest_s = max(longest_s, seconds() - before)
    return longest_s
