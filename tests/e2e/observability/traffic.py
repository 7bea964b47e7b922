"""An application in a process of its own, with OpenTelemetry set up: everything that a dashboard shows happens.

    python -m e2e.observability.traffic '{"endpoints": ["127.0.0.1:8081"], "otlp": "127.0.0.1:4317"}'

Orders and payments are sent, most are consumed; one consumer gives some messages up, so that they come again and go to
the dead letter queue; one group reads too slowly, so that it lags. Ends when its standard input does. Each line on its
standard output names a message that was sent, and its trace.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from support.running_time import PATIENCE_S

# Topic to its message type.
TOPICS: Final = {"shop-orders": "NORMAL", "shop-payments": "FIFO"}
GROUP: Final = "billing"
DLQ_GROUP: Final = "fraud-check"
LAGGING_GROUP: Final = "reports"
# Group to the options of `tandemmq group create`.
GROUPS: Final = {GROUP: (), DLQ_GROUP: ("--retries", "1"), LAGGING_GROUP: ()}

_TESTS: Final = Path(__file__).resolve().parents[2]
# A trickle: what is looked at is the cluster, not how fast it is.
_SEND_PAUSE_S: Final = 0.03
_REPORT_PAUSE_S: Final = 2.0


class Traffic:
    """Runs the application while the block does."""

    def __init__(self, endpoints: Sequence[str], *, otlp_target: str, log: Path) -> None:
        options = json.dumps({"endpoints": list(endpoints), "otlp": otlp_target})
        self._command = [sys.executable, "-m", "e2e.observability.traffic", options]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        environment = os.environ | {"PYTHONPATH": str(_TESTS)}
        with self._log.open("wb") as output, self._log.with_suffix(".err").open("wb") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=output, stderr=errors, env=environment
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def check_running(self) -> None:
        """AssertionError with its words when it ended."""
        assert self._process is not None
        assert self._process.poll() is None, self._log.with_suffix(".err").read_text(errors="replace")

    def sent(self) -> list[dict[str, Any]]:
        """What it sent so far: message_id, topic, trace_id, at_s."""
        lines = self._log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]


async def _run(options: dict[str, Any]) -> None:
    # The client library only knows OpenTelemetry's API; an application that wants traces sets up an SDK, as this does.
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from tandemmq.client import ClientError, ClientOptions, Producer, SimpleConsumer
    from tandemmq.service.event_loop import SystemClock

    provider = TracerProvider(resource=Resource.create({"service.name": "shop", "service.instance.id": "shop-0"}))
    exporter = OTLPSpanExporter(endpoint=options["otlp"], insecure=True)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("shop")
    client = ClientOptions(tuple(options["endpoints"]))
    clock = SystemClock()
    chance = random.Random(7)
    stopping = asyncio.Event()

    async def produce() -> None:
        number = 0
        async with Producer(client, clock) as producer:
            while not stopping.is_set():
                topic = "shop-payments" if number % 4 == 3 else "shop-orders"
                body = chance.randbytes(chance.choice((120, 400, 900, 4_000)))
                group = f"account-{number % 20}" if topic == "shop-payments" else None
                with tracer.start_as_current_span("checkout") as span:
                    try:
                        receipt = await producer.send(
                            topic,
                            body,
                            tag=chance.choice(("created", "paid")),
                            keys=[f"order-{number}"],
                            message_group=group,
                        )
                    except ClientError as error:
                        span.record_exception(error)
                    else:
                        context = f"{span.get_span_context().trace_id:032x}"
                        line = {
                            "message_id": receipt.message_id,
                            "topic": topic,
                            "trace_id": context,
                            "at_s": time.time(),
                        }
                        sys.stdout.write(f"{json.dumps(line)}\n")
                        sys.stdout.flush()
                number += 1
                await asyncio.sleep(_SEND_PAUSE_S)

    async def consume(group: str, topic: str, *, gives_up: bool = False, pause_s: float = 0.0, batch: int = 16) -> None:
        subscriptions = {topic: "*"}
        async with SimpleConsumer(client, clock, group=group, subscriptions=subscriptions, await_ms=5_000) as consumer:
            while not stopping.is_set():
                try:
                    for message in await consumer.receive(batch):
                        if gives_up and message.queue_offset % 10 == 0:
                            await consumer.change_invisible(message, 0)
                        else:
                            await consumer.ack(message)
                except ClientError:
                    await asyncio.sleep(0.2)
                await asyncio.sleep(pause_s)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce())
        tasks.create_task(consume(GROUP, "shop-payments"))
        tasks.create_task(consume(GROUP, "shop-orders"))
        tasks.create_task(consume(DLQ_GROUP, "shop-orders", gives_up=True))
        tasks.create_task(consume(LAGGING_GROUP, "shop-orders", pause_s=_REPORT_PAUSE_S, batch=4))
        await asyncio.to_thread(sys.stdin.read)
        stopping.set()
    provider.shutdown()


if __name__ == "__main__":
    asyncio.run(_run(json.loads(sys.argv[1])))
