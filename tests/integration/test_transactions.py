"""Transactions of real processes: kills and changes of master lose no commit, double none, and show no rollback."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final, Self, TypeVar

import grpc
import pytest
from google.protobuf.message import Message

from support.cluster_processes import ProcessCluster, ServiceProcess, commit_log_bytes, wait_until
from support.failover_group import FailoverGroup
from support.running_time import PATIENCE_S
from support.topic_admin import create_topic
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import RecordFound, decode_record, scan_record
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

AnswerT = TypeVar("AnswerT", bound=Message)

TOPIC: Final = "payments"
COMMIT, ROLLBACK = definition.COMMIT, definition.ROLLBACK
_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_TRY_S: Final = 2.0


class _Payer:
    """A producer that makes one transaction after the other, and tries every member until an end is answered OK.

    `ended` holds how each ended for sure, `tried` what was asked for at all, by message id.
    """

    def __init__(self, brokers: list[ServiceProcess], *, seed: int) -> None:
        self._addresses = [f"{broker.host}:{broker.ports['grpcServerPort']}" for broker in brokers]
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="payer")
        self._numbers = itertools.count(seed << 64)
        self._metadata = [("x-mq-client-id", f"payer@{seed}")]
        self.ended: dict[str, int] = {}
        self.tried: dict[str, int] = {}
        self.problems: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the payer hangs"

    async def _run(self) -> None:
        options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
        self._channels = [grpc.aio.insecure_channel(address, options=options) for address in self._addresses]
        async with asyncio.TaskGroup() as payers:
            for _ in range(4):
                payers.create_task(self._pay())
        for channel in self._channels:
            await channel.close(grace=None)

    async def _pay(self) -> None:
        while not self._stopping.is_set():
            message_id = f"01{next(self._numbers):032X}"
            transaction_id = await self._send(message_id)
            if transaction_id is None:
                continue
            resolution = self._chance.choice((COMMIT, COMMIT, ROLLBACK))
            self.tried[message_id] = resolution
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                status = await self._end(message_id, transaction_id, resolution)
                if status is not None and status.code == definition.OK:
                    self.ended[message_id] = resolution
                    break
                if status is not None and status.code == definition.INVALID_TRANSACTION_ID:
                    # Its half was answered OK: no change of master may lose it.
                    self.problems.append(f"{message_id}: {status.message}")
                    break
                await asyncio.sleep(0.05)

    async def _send(self, message_id: str) -> str | None:
        system = definition.SystemProperties(
            message_id=message_id, message_type=definition.TRANSACTION, body_encoding=definition.IDENTITY
        )
        message = definition.Message(
            topic=definition.Resource(name=TOPIC), system_properties=system, body=message_id.encode()
        )
        answer = await self._call("SendMessage", pb.SendMessageRequest(messages=[message]), pb.SendMessageResponse)
        if answer is None or answer.status.code != definition.OK:
            await asyncio.sleep(0.05)
            return None
        return answer.entries[0].transaction_id

    async def _end(
        self, message_id: str, transaction_id: str, resolution: definition.TransactionResolution
    ) -> definition.Status | None:
        request = pb.EndTransactionRequest(
            topic=definition.Resource(name=TOPIC),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=resolution,
        )
        answer = await self._call("EndTransaction", request, pb.EndTransactionResponse)
        return None if answer is None else answer.status

    async def _call(self, name: str, request: Message, answer_type: type[AnswerT]) -> AnswerT | None:
        """The answer of any member; None: it gave none."""
        call = self._chance.choice(self._channels).unary_unary(
            _SERVICE + name, lambda message: message.SerializeToString(), answer_type.FromString
        )
        try:
            answer: AnswerT = await call(request, timeout=_TRY_S, metadata=self._metadata)
        except grpc.aio.AioRpcError:
            return None
        return answer


def _committed(store: Path) -> Counter[str]:
    """How often each message lies in the topic, by its id."""
    found: Counter[str] = Counter()
    for name, log in sorted(commit_log_bytes(store).items()):
        view, offset, base = memoryview(log), 0, int(Path(name).name)
        while isinstance(record := scan_record(view, offset, len(view), physical_offset=base + offset), RecordFound):
            whole = decode_record(view[offset : offset + record.size])
            if whole.topic == TOPIC:
                found[decode_properties(whole.properties)["UNIQ_KEY"]] += 1
            offset += record.size
    return found


def _check(payer: _Payer, found: Counter[str]) -> None:
    assert payer.problems == []
    assert [message_id for message_id, count in found.items() if count > 1] == []
    committed = {message_id for message_id, resolution in payer.ended.items() if resolution == COMMIT}
    assert committed <= found.keys(), "a commit that was answered OK is lost"
    may_be_there = {message_id for message_id, resolution in payer.tried.items() if resolution == COMMIT}
    assert found.keys() <= may_be_there, "a message is there that was not committed"


def test_a_killed_broker_knows_its_transactions_when_it_is_back(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        broker = cluster.add_broker(settings={"brokerRole": "ASYNC_MASTER"})
        asyncio.run(create_topic(broker, TOPIC, message_type="TRANSACTION"))
        with _Payer([broker], seed=1) as payer:
            for _ in range(3):
                ended = len(payer.ended)
                wait_until(lambda: len(payer.ended) > ended + 30, limit_s=120, what="transactions end")  # noqa: B023
                broker.kill()
                broker.start()
            ended = len(payer.ended)
            wait_until(lambda: len(payer.ended) > ended + 30, limit_s=120, what="transactions end")
        _check(payer, _committed(cluster.store_folder("broker-a-0")))


@pytest.mark.parametrize("kind", ["hand over", "kill, left dead", "kill, started again"])
def test_a_change_of_master_keeps_transactions(tmp_path: Path, kind: str) -> None:
    with FailoverGroup(tmp_path) as group:
        asyncio.run(create_topic(group.brokers[group.wait_master()], TOPIC, message_type="TRANSACTION"))
        with _Payer(group.brokers, seed=os.getpid()) as payer:
            for _ in range(2):
                ended = len(payer.ended)
                wait_until(lambda: len(payer.ended) > ended + 20, limit_s=120, what="transactions end")  # noqa: B023
                group.change(kind)
            ended = len(payer.ended)
            wait_until(lambda: len(payer.ended) > ended + 20, limit_s=120, what="transactions end")
        group.stop_senders()
        wait_until(group.are_equal, limit_s=120, what="the replicas are equal")
        for number in range(2):
            _check(payer, _committed(group.cluster.store_folder(f"broker-a-{number}")))
