"""Where the CPU of a receive and its acknowledgements goes: the handlers, driven without sockets.

A store on a real disk is filled, then drained through ReceiveMessage and AckMessage by one group after the other.
Requests are parsed from bytes and responses encoded to bytes, as a front does; HTTP/2 itself is left out. Figures are
user + system time of this process, medians over the groups.

python benchmarks/receive_path.py                    # build/bench-receive.json
python benchmarks/receive_path.py --messages 50000 --body-bytes 100
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time_ns
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from google.protobuf.message import Message

from support.api_requests import message, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from tandemmq.broker.client_api.sent_message import SendRequest
from tandemmq.broker.client_api.settle import AckRequest
from tandemmq.broker.leases import LeaseStorage
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.broker.queue_reader import StoreQueueReader
from tandemmq.core.delivery.subscription import EVERY_TAG
from tandemmq.core.storage.options import StoreOptions
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.rpc import ServerStreamMethod, StatusCode, UnaryHandler, UnaryMethod

TOPIC: Final = "orders"
BATCH: Final = 32
# Acknowledgements a read of a connection brings when a client has some in flight.
ACKS_PER_TURN: Final = 8
WAITING_RECEIVES: Final = 1_000
NANOSECONDS_PER_MICROSECOND: Final = 1_000


@dataclass(slots=True)
class EncodedCall:
    """Satisfies `tandemmq.service.rpc.Call`; keeps what a front would write."""

    metadata: Mapping[str, str] = field(default_factory=lambda: {"x-mq-client-id": "bench@1@0@0"})
    peer: str = "ipv4:127.0.0.1:50000"
    deadline_ms: int | None = None
    received_ns: int = 0
    request_data: bytes = b""
    is_crowded_out: bool = False
    sent: list[bytes] = field(default_factory=list)
    code: StatusCode | None = None

    def header(self, name: str) -> str:
        return self.metadata.get(name, "")

    def keep_request(self) -> None: ...

    def send(self, message: Message) -> None:
        self.sent.append(message.SerializeToString())

    def send_encoded(self, data: bytes) -> None:
        self.sent.append(data)

    def send_all_encoded(self, messages: list[bytes]) -> None:
        self.sent += messages

    def respond(self, data: bytes) -> None:
        self.send_encoded(data)
        self.finish()

    def finish(self, code: StatusCode = StatusCode.OK, detail: str = "") -> None:
        self.code = code

    def on_cancel(self, callback: Callable[[], None]) -> None: ...

    def on_undelivered(self, callback: Callable[[], None]) -> None: ...

    def on_unread(self, callback: Callable[[], None]) -> None: ...


class Turns:
    """Satisfies `tandemmq.broker.client_api.services.Timers`; a turn ends when the benchmark says so; no later time
    comes."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> Turns:
        return self

    def cancel(self) -> None: ...

    def end(self) -> None:
        """What the event loop does between two reads."""
        while self._soon:
            callbacks, self._soon = self._soon, []
            for callback in callbacks:
                callback()


class JournaledBroker(BrokerAssembly):
    """With a lease journal on the disk."""

    def __init__(self, folder: Path, turns: Turns, *, log_file_bytes: int) -> None:
        disk = PosixDisk(folder)
        super().__init__(
            clock=SystemClock(),
            timers=turns,
            disk=disk,
            store_options=StoreOptions(commit_log_file_bytes=log_file_bytes),
        )
        self._journal = LeaseStorage(disk, self.leases, self.clock)
        self._journal.load()
        self.turns = turns

    def persist_leases(self) -> None:
        self._journal.persist()

    def handler(self, method: str) -> UnaryHandler[Any]:
        """What serves a method of the client API."""
        entry = self.api.method_table().methods[method]
        assert isinstance(entry, UnaryMethod | ServerStreamMethod), method
        return entry.handler


class Stopwatch:
    """CPU time of what happens between `start` and `stop`, summed up by name."""

    def __init__(self) -> None:
        self.nanoseconds: dict[str, int] = {}
        self._started = 0

    def start(self) -> None:
        self._started = process_time_ns()

    def stop(self, name: str) -> None:
        passed = process_time_ns() - self._started
        self.nanoseconds[name] = self.nanoseconds.get(name, 0) + passed


def filled_broker(folder: Path, *, messages: int, body_bytes: int, queues: int) -> JournaledBroker:
    """A broker with so many messages in one topic, each with a key and a tag."""
    broker = JournaledBroker(folder, Turns(), log_file_bytes=256 << 20)
    broker.add_topic(TOPIC, queue_count=queues)
    send = broker.handler("SendMessage")
    body = b"x" * body_bytes
    for number in range(0, messages, BATCH):
        request = send_request(*(message(TOPIC, body, tag="red", keys=[f"key-{number + i}"]) for i in range(BATCH)))
        call = EncodedCall()
        send(SendRequest.FromString(request.SerializeToString()), call)
        response = pb.SendMessageResponse.FromString(call.sent[0])
        assert response.status.code == 20_000, response.status
    broker.turns.end()
    # As the broker's own process does before it serves.
    gc.collect()
    gc.freeze()
    return broker


def drain(broker: JournaledBroker, group: str, *, entries_per_ack: int, watch: Stopwatch) -> int:
    """Receives and acknowledges everything as `group`; returns how many messages."""
    receive, ack = broker.handler("ReceiveMessage"), broker.handler("AckMessage")
    encoded_receive = receive_request(TOPIC, group=group, batch_size=BATCH, invisible_ms=60_000).SerializeToString()
    ack_step = f"ack_of_{entries_per_ack}"
    count = 0
    while True:
        call = EncodedCall()
        watch.start()
        receive(pb.ReceiveMessageRequest.FromString(encoded_receive), call)
        broker.turns.end()
        watch.stop("receive")
        if call.code is None:
            return count
        delivered = [pb.ReceiveMessageResponse.FromString(data).message for data in call.sent[1:-1]]
        count += len(delivered)
        encoded_acks = [
            pb.AckMessageRequest(
                group={"name": group},
                topic={"name": TOPIC},
                entries=[
                    pb.AckMessageEntry(
                        message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle
                    )
                    for one in delivered[start : start + entries_per_ack]
                ],
            ).SerializeToString()
            for start in range(0, len(delivered), entries_per_ack)
        ]
        calls = [EncodedCall() for _ in encoded_acks]
        watch.start()
        for start in range(0, len(calls), ACKS_PER_TURN):
            for encoded_ack, call in zip(
                encoded_acks[start : start + ACKS_PER_TURN], calls[start : start + ACKS_PER_TURN]
            ):
                ack(AckRequest.FromString(encoded_ack), call)
            broker.turns.end()
        watch.stop(ack_step)
        for call in calls:
            assert call.code is StatusCode.OK
            assert pb.AckMessageResponse.FromString(call.sent[0]).status.code == 20_000


def lease_only(broker: JournaledBroker, group: str, *, queues: int, watch: Stopwatch) -> int:
    """The lease table alone, records read included."""
    count = 0
    while True:
        watch.start()
        received = broker.leases.receive(
            group=group,
            topic=TOPIC,
            queue_ids=range(queues),
            tag_filter=EVERY_TAG,
            batch_size=BATCH,
            invisible_ms=60_000,
            now_ms=broker.clock.monotonic_ms(),
            max_attempts=17,
            auto_renew=False,
            client_id="bench@1@0@0",
        )
        broker.persist_leases()
        watch.stop("lease")
        if not received.deliveries:
            return count
        count += len(received.deliveries)


def read_only(broker: JournaledBroker, *, queues: int, watch: Stopwatch) -> int:
    """The records alone, as the lease table reads them."""
    reader = StoreQueueReader(broker.store)
    count = 0
    for queue_id in range(queues):
        end = reader.max_offset(TOPIC, queue_id)
        watch.start()
        for offset in range(0, end, BATCH):
            entries = reader.entries(TOPIC, queue_id, offset, BATCH)
            reader.messages(TOPIC, queue_id, range(offset, offset + BATCH), entries)
        watch.stop("read")
        count += end
    return count


def digest_only(broker: JournaledBroker, *, queues: int, watch: Stopwatch) -> int:
    """The MD5 digest every delivery carries, alone. 2 us for 1 KiB on a quiet core: more tells of a busy one."""
    reader = StoreQueueReader(broker.store)
    count = 0
    for queue_id in range(queues):
        for offset in range(0, reader.max_offset(TOPIC, queue_id), BATCH):
            entries = reader.entries(TOPIC, queue_id, offset, BATCH)
            messages = reader.messages(TOPIC, queue_id, range(offset, offset + BATCH), entries)
            watch.start()
            for one in messages:
                assert one is not None
                hashlib.md5(one.body, usedforsecurity=False).hexdigest()
            watch.stop("digest")
            count += len(messages)
    return count


def wake_with_many_waiting(broker: JournaledBroker, topic: str, *, sends: int, watch: Stopwatch) -> None:
    """One message at a time arrives at a topic on which a thousand receives of one group wait."""
    receive, send = broker.handler("ReceiveMessage"), broker.handler("SendMessage")
    broker.add_topic(topic, queue_count=8)
    encoded = receive_request(topic, group="waiting", poll_ms=20_000).SerializeToString()
    calls = [EncodedCall() for _ in range(WAITING_RECEIVES + sends)]
    for call in calls:
        receive(pb.ReceiveMessageRequest.FromString(encoded), call)
    broker.turns.end()
    for number in range(sends):
        send(SendRequest.FromString(send_request(message(topic, b"x")).SerializeToString()), EncodedCall())
        watch.start()
        broker.turns.end()
        watch.stop("wake")
        answered = sum(call.code is not None for call in calls)
        assert answered == number + 1, f"{answered} receives were answered by {number + 1} messages"


def measured(options: argparse.Namespace) -> dict[str, float]:
    """Microseconds per message of each step, medians of the rounds."""
    rounds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        broker = filled_broker(
            Path(folder), messages=options.messages, body_bytes=options.body_bytes, queues=options.queues
        )
        for number in range(options.rounds):
            watch = Stopwatch()
            counts = {
                "read": read_only(broker, queues=options.queues, watch=watch),
                "digest": digest_only(broker, queues=options.queues, watch=watch),
                "lease": lease_only(broker, f"lease-{number}", queues=options.queues, watch=watch),
                "ack_of_1": drain(broker, f"single-{number}", entries_per_ack=1, watch=watch),
                "ack_of_32": drain(broker, f"batch-{number}", entries_per_ack=BATCH, watch=watch),
                "wake": 100,
            }
            counts["receive"] = counts["ack_of_1"] + counts["ack_of_32"]
            wake_with_many_waiting(broker, f"awaited-{number}", sends=counts["wake"], watch=watch)
            broker.api.drain()
            for step, messages in counts.items():
                rounds.setdefault(step, []).append(watch.nanoseconds[step] / messages / NANOSECONDS_PER_MICROSECOND)
        broker.close()
    return {step: statistics.median(values) for step, values in rounds.items()}


def main() -> None:
    """Prints the table and writes build/bench-receive.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=32_000, help="in the topic (default %(default)s)")
    parser.add_argument("--body-bytes", type=int, default=1_024, help="of each message (default %(default)s)")
    parser.add_argument("--queues", type=int, default=8, help="of the topic (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="groups that drain it (default %(default)s)")
    options = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    steps = measured(options)
    targets = {"receive": 8.0, "ack_of_1": 8.0, "ack_of_32": 3.0}
    rows = [
        {
            "name": f"receive_path_{step}",
            "value": round(value, 2),
            "unit": "us/msg",
            "target": targets.get(step),
            "holds": value <= targets.get(step, value),
        }
        for step, value in sorted(steps.items())
    ]
    for row in rows:
        print(f"{row['name']:<26}{row['value']:>8} {row['unit']}   target {row['target'] or '-'}")
    (ROOT / "build" / "bench-receive.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
