"""Where the CPU of a sync-replicated send goes: HTTP/2 bytes in, HTTP/2 bytes out, without sockets and without a slave.

The bytes of a client are made beforehand and fed to the front's state machine in reads of so many requests each; the
broker's own handler, write path and replication run behind it, and a slave that reports at once is played by eight
bytes. A step's figure is the whole chain up to that step, less the chain up to the step before.

python benchmarks/send_path.py                    # build/bench-send.json
python benchmarks/send_path.py --batch 32 --profile
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import itertools
import json
import pstats
import random
import statistics
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any, Final
from uuid import uuid4

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from hpack import Encoder

from support.api_requests import message, send_request
from support.broker_assembly import BrokerAssembly
from support.simulated_disk import SimulatedDisk
from tandemmq.broker.access_changes import AccessChanges
from tandemmq.broker.client_api.access import ClientAccess, SignatureZones
from tandemmq.broker.client_api.client_api import ClientApi
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.broker.put import PutMeter
from tandemmq.broker.tracing.send_tracer import BrokerTracing, SendTracer
from tandemmq.broker.write_path import WritePath
from tandemmq.core.access.sealed_secrets import SecretKeys
from tandemmq.core.access.signature import sign
from tandemmq.core.access.users_and_policies import Decision, PolicyEntry, Resource, actions_of, source_ips_of
from tandemmq.core.replication.frames import MasterOptions
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.storage.options import FlushDiskType, StoreOptions
from tandemmq.http2 import frames
from tandemmq.http2.connection import Connection
from tandemmq.http2.errors import Limits
from tandemmq.http2.stream import MESSAGE_HEAD, Stream
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.http2_front import Http2Front
from tandemmq.service.rpc import Call, MethodTable, UnaryMethod

TOPIC: Final = "orders"
NANOSECONDS_PER_MICROSECOND: Final = 1_000
# Of the fastest tenth of reads: what the code costs when no stranger is in the way.
FAST_SHARE: Final = 10


USER: Final = "ann"
SECRET: Final = "a secret of ann's"


class PlayedSlave:
    """Stands for `HaListener`: takes what the master has for its one slave and reports it at once."""

    def __init__(self, replica: MasterReplica, clock: SystemClock, after_input: Callable[[], None]) -> None:
        self._replica = replica
        self._clock = clock
        self._after_input = after_input
        self._link = replica.slave_connected("127.0.0.1:50000", now_ms=clock.monotonic_ms())
        self._report(0)

    def pump(self) -> None:
        """See `HaListener.pump`."""
        transfers = self._replica.take_transfers(self._link, budget_bytes=1 << 20, now_ms=self._clock.monotonic_ms())
        if transfers:
            self._report(transfers[-1].start_offset + transfers[-1].length)

    def close_link(self, link: int, reason: str) -> None:
        raise AssertionError("the played slave is never wrong")

    def tell(self, write: Callable[..., object], event: str, link_id: int | None, **values: object) -> None:
        write(event, link=link_id, **values)

    def _report(self, offset: int) -> None:
        self._replica.receive_data(self._link, struct.pack(">q", offset), now_ms=self._clock.monotonic_ms())
        self._after_input()


class ReplicatingBroker(BrokerAssembly):
    """A SYNC_MASTER on a real disk with the broker's own write path, unless somebody wants another."""

    def __init__(
        self,
        folder: Path,
        *,
        meter: PutMeter | None = None,
        tracing: BrokerTracing | None = None,
        tracer: SendTracer | None = None,
        write_path: type[WritePath] = WritePath,
    ) -> None:
        clock = SystemClock()
        self.send_tracer = tracer
        super().__init__(
            clock=clock,
            timers=asyncio.get_running_loop(),
            disk=PosixDisk(folder),
            store_options=StoreOptions(commit_log_file_bytes=256 << 20),
            tracing=tracing,
        )
        replica = MasterReplica(self.store, MasterOptions(needed_slaves=1))
        self._write_path = write_path(
            store=self.store,
            replica=replica,
            clock=clock,
            flush_disk_type=FlushDiskType.ASYNC_FLUSH,
            waits_for_slaves=True,
            kick_flush=lambda: None,
            appended=self.api.message_arrived,
            answered=lambda: None,
            refusal=lambda: None,
            failed=_raise,
            meter=meter,
            tracer=tracer,
        )
        self._write_path.attach(PlayedSlave(replica, clock, self._write_path.collect))
        self.put = self._write_path.put  # type: ignore[method-assign]  # as the broker has it

    def guard(self) -> None:
        """From now on callers sign in, and `USER` may send."""
        keys = SecretKeys([b"k" * 32])
        timers = asyncio.get_running_loop()
        tables = MetadataTables(SimulatedDisk(random.Random(1)), self.clock, topics_changed=lambda: None)
        changes = AccessChanges(tables, keys=keys, clock=self.clock)
        changes.put_user(USER, secret=SECRET)
        entry = PolicyEntry(Resource.parse("Topic:*"), actions_of("Pub"), Decision.ALLOW, source_ips_of(""))
        changes.put_entries(f"User:{USER}", [entry])
        access = ClientAccess(
            users=tables.users,
            acls=tables.acls,
            keys=keys,
            authorizes=True,
            zones=SignatureZones((0,), with_local=False),
            clock=self.clock,
            timers=timers,
            revoked=lambda: None,
        )
        self.api = ClientApi(self, None, access, source_of=access.sources.source)


def _raise(error: Exception) -> None:
    raise error


def reads(
    *,
    count: int,
    requests: int,
    batch: int,
    body_bytes: int,
    path: str,
    topics: Sequence[str] = (TOPIC,),
    signed: bool = False,
) -> list[bytes]:
    """`count` reads of `requests` calls each, as a Go client sends them: 15 headers, two of them new every time, or 16
    with the signature of `USER`, whose date is now. Each is for the next of the topics."""
    encoder = Encoder()
    numbers = itertools.count()
    rounds = itertools.cycle(topics)
    body = b"x" * body_bytes
    signature = _signature() if signed else {}
    return [
        b"".join(
            _request(encoder, next(numbers), body, batch=batch, path=path, topic=next(rounds), signature=signature)
            for _ in range(requests)
        )
        for _ in range(count)
    ]


def _signature() -> dict[str, str]:
    date = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    signature = sign(SECRET.encode(), date).hex()
    text = f"MQv2-HMAC-SHA1 Credential={USER}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"authorization": text, "x-mq-date-time": date}


def _request(
    encoder: Encoder, number: int, body: bytes, *, batch: int, path: str, topic: str, signature: dict[str, str]
) -> bytes:
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "127.0.0.1:8081"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.70.0"),
        ("te", "trailers"),
        ("grpc-timeout", f"{2_999_000 + number % 900}u"),
        ("x-mq-language", "GOLANG"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", "5.1.3"),
        ("x-mq-client-id", "host@4711@1@0"),
        ("x-mq-request-id", str(uuid4())),
        ("x-mq-namespace", ""),
        *({"x-mq-date-time": "20261121T150000Z"} | signature).items(),
    ]
    stream_id = 2 * number + 1
    messages = [message(topic, body, tag="red", keys=[f"key-{number}-{i}"]) for i in range(batch)]
    data = send_request(*messages).SerializeToString()
    prefixed = MESSAGE_HEAD.pack(0, len(data)) + data
    pieces = [prefixed[start : start + 16_384] for start in range(0, len(prefixed), 16_384)]
    return frames.headers(stream_id, encoder.encode(headers), end_stream=False) + b"".join(
        frames.frame(frames.DATA, frames.END_STREAM if piece is pieces[-1] else 0, stream_id, piece) for piece in pieces
    )


class Echo(Stream):
    """The front alone: each request is answered with bytes at hand."""

    def half_closed(self) -> None:
        self.respond(b"x" * 100)


def echo_call(request: pb.SendMessageRequest, call: Call) -> None:
    """A handler that does nothing."""
    call.send_encoded(b"x" * 100)
    call.finish()


async def timed(connection: Connection, data: list[bytes], *, profile: cProfile.Profile | None = None) -> list[int]:
    """Nanoseconds of each read, its answers included."""
    connection.receive(frames.PREFACE + frames.settings({}) + frames.window_update(0, 1 << 30), monotonic())
    connection.take_output()  # the greeting
    durations = []
    gc.collect()
    gc.freeze()
    if profile is not None:
        profile.enable()
    for read in data:
        started = perf_counter_ns()
        connection.receive(read, monotonic())
        while connection.open_streams:
            await asyncio.sleep(0)  # the end of the turn ships to the slave
        connection.take_output()
        durations.append(perf_counter_ns() - started)
    if profile is not None:
        profile.disable()
    return durations


async def measured(options: argparse.Namespace) -> dict[str, list[int]]:
    """Durations of the reads of each chain."""
    path = "/apache.rocketmq.v2.MessagingService/SendMessage"
    data = reads(
        count=options.reads, requests=options.requests, batch=options.batch, body_bytes=options.body_bytes, path=path
    )
    chains: dict[str, list[int]] = {}
    chains["front"] = await timed(Connection(Echo, limits=Limits(), now=0.0), data)
    idle = Http2Front("127.0.0.1", 0, clock=SystemClock())
    idle.add(MethodTable(path[1:].rpartition("/")[0], {"SendMessage": UnaryMethod(echo_call, pb.SendMessageRequest)}))
    chains["decode"] = await timed(connection_of(idle), data)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        broker = ReplicatingBroker(Path(folder))
        broker.add_topic(TOPIC, queue_count=8)
        front = Http2Front("127.0.0.1", 0, clock=SystemClock())
        front.add(broker.api.method_table())
        profile = cProfile.Profile() if options.profile else None
        chains["send"] = await timed(connection_of(front), data, profile=profile)
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        broker.close()
    return chains


def connection_of(front: Http2Front) -> Connection:
    """A connection as the front's port makes them."""
    return Connection(front.new_call, limits=Limits(), now=monotonic(), peer="ipv4:127.0.0.1:50000")


def main() -> None:
    """Prints the table and writes build/bench-send.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=1_000, help="of the connection (default %(default)s)")
    parser.add_argument("--requests", type=int, default=32, help="in each read (default %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="messages of a request (default %(default)s)")
    parser.add_argument("--body-bytes", type=int, default=1_024, help="of each message (default %(default)s)")
    parser.add_argument("--profile", action="store_true", help="print where the time of the whole chain goes")
    options = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    chains = asyncio.run(measured(options))
    messages = options.requests * options.batch
    rows: list[dict[str, Any]] = []
    for kind, pick in (("fast", _fast), ("median", statistics.median)):
        before = 0.0
        for step, durations in chains.items():
            total = pick(durations) / messages / NANOSECONDS_PER_MICROSECOND
            rows.append(_row(f"send_path_{step}_{kind}", total - before))
            before = total
        rows.append(_row(f"send_path_total_{kind}", before))
    for row in rows:
        print(f"{row['name']:<28}{row['value']:>8} {row['unit']}")
    (ROOT / "build" / "bench-send.json").write_text(json.dumps(rows, indent=2) + "\n")


def _fast(durations: list[int]) -> float:
    return statistics.mean(sorted(durations)[: max(1, len(durations) // FAST_SHARE)])


def _row(name: str, value: float) -> dict[str, Any]:
    return {"name": name, "value": round(value, 2), "unit": "us/msg", "target": None, "holds": True}


if __name__ == "__main__":
    main()
