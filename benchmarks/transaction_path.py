"""CPU of a transaction beside a send's: a half message and its end, from the decoded request to the encoded answer.

A SYNC_MASTER on a real disk with a slave that is played, 32 calls a turn of the loop, no sockets and no HTTP/2.

    python benchmarks/transaction_path.py                              # interpreted
    PYTHONPATH=build/compiled python benchmarks/transaction_path.py    # after make compiled, as images have it
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import process_time
from typing import Final

import structlog
from google.protobuf.message import Message

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from send_path import ReplicatingBroker
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import StatusCode, UnaryMethod

CALLS: Final = 32
ROUNDS: Final = 200
REPEATS: Final = 5
BODY: Final = b"x" * 1_024


class _Call:
    """Of a client that waits for ever; keeps its answer."""

    peer = "ipv4:127.0.0.1:50000"
    deadline_ms = None
    received_ns = 0
    metadata: Mapping[str, str] = {"x-mq-client-id": "client@1"}

    def __init__(self) -> None:
        self.answer = b""
        self.has_ended = False

    def header(self, name: str) -> str:
        return self.metadata.get(name, "")

    def send(self, message: Message) -> None:
        self.answer = message.SerializeToString()

    def send_encoded(self, data: bytes) -> None:
        self.answer = data

    def respond(self, data: bytes) -> None:
        self.answer, self.has_ended = data, True

    def finish(self, code: StatusCode = StatusCode.OK, detail: str = "") -> None:
        self.has_ended = True

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """It stays."""


class _Bench:
    def __init__(self, broker: ReplicatingBroker) -> None:
        self._methods = broker.api.method_table().methods
        self._numbers = itertools.count()

    def sent(self, topic: str, message_type: definition.MessageType) -> bytes:
        """An encoded request with one message."""
        system = definition.SystemProperties(
            message_id=f"01{next(self._numbers):032X}",
            tag="tag",
            keys=["key"],
            message_type=message_type,
            body_encoding=definition.IDENTITY,
            born_host="host",
        )
        system.born_timestamp.FromMilliseconds(1_700_000_000_000)
        message = definition.Message(topic=definition.Resource(name=topic), system_properties=system, body=BODY)
        return pb.SendMessageRequest(messages=[message]).SerializeToString()

    async def run(self, method: str, rounds: list[list[bytes]]) -> tuple[float, list[_Call]]:
        """CPU µs a call, and the calls."""
        entry = self._methods[method]
        assert isinstance(entry, UnaryMethod)
        done: list[_Call] = []
        began = process_time()
        for requests in rounds:
            calls = [_Call() for _ in requests]
            for data, call in zip(requests, calls, strict=True):
                entry.handler(entry.request_type.FromString(data), call)  # type: ignore[arg-type]
            while not all(call.has_ended for call in calls):
                await asyncio.sleep(0)
            done += calls
        return (process_time() - began) * 1e6 / len(done), done


def _rounds(requests: list[bytes]) -> list[list[bytes]]:
    return [requests[start : start + CALLS] for start in range(0, len(requests), CALLS)]


async def _measure() -> dict[str, float]:
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        broker = ReplicatingBroker(Path(folder))
        broker.add_topic("orders", queue_count=8)
        broker.add_topic("payments", queue_count=8, message_type="TRANSACTION")
        bench = _Bench(broker)
        for _ in range(REPEATS):
            plain = [bench.sent("orders", definition.NORMAL) for _ in range(CALLS * ROUNDS)]
            halves = [bench.sent("payments", definition.TRANSACTION) for _ in range(CALLS * ROUNDS)]
            found = {"send": (await bench.run("SendMessage", _rounds(plain)))[0]}
            found["half"], answers = await bench.run("SendMessage", _rounds(halves))
            ends = [_end(call.answer, number % 2) for number, call in enumerate(answers)]
            found["commit"], _ = await bench.run("EndTransaction", _rounds(ends[::2]))
            found["rollback"], _ = await bench.run("EndTransaction", _rounds(ends[1::2]))
            assert broker.api.transactions.undecided_count == 0
            best = {name: min(value, best.get(name, value)) for name, value in found.items()}
        broker.close()
    return {name: round(value, 1) for name, value in best.items()}


def _end(answer: bytes, is_rollback: int) -> bytes:
    [entry] = pb.SendMessageResponse.FromString(answer).entries
    return pb.EndTransactionRequest(
        topic=definition.Resource(name="payments"),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=definition.ROLLBACK if is_rollback else definition.COMMIT,
    ).SerializeToString()


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    cpu_us = asyncio.run(_measure())
    print(json.dumps({"cpu_us": cpu_us, "transaction": round(cpu_us["half"] + cpu_us["commit"], 1)}))


if __name__ == "__main__":
    main()
