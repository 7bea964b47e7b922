"""One replica read over the wire while it serves: facts, files, digests and checks, against the files themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
import xxhash

from support.acknowledged_sends import AcknowledgedSender
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.running_time import PATIENCE_S, running_time
from support.topic_admin import create_topic
from tandemmq.broker.audit.store_files import prepare_descriptor
from tandemmq.proto.broker.v1 import replica_reader_service_pb2 as pb
from tandemmq.proto.broker.v1 import replica_reader_service_pb2_grpc
from tandemmq.proto.broker.v1.replica_service_pb2 import LogRange
from tandemmq.service.page_cache import resident_pages

TOPIC = "audited"
EXTENT_BYTES = 256 << 10
FAST = {"auditReadRate": str(4 << 30)}


class Reader:
    """The service of one broker."""

    def __init__(self, broker: ServiceProcess) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{broker.ports['listenPort']}")
        self.stub = replica_reader_service_pb2_grpc.ReplicaReaderServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def describe(self) -> pb.DescribeReplicaResponse:
        answer: pb.DescribeReplicaResponse = self.stub.DescribeReplica(pb.DescribeReplicaRequest(), timeout=PATIENCE_S)
        return answer

    def list(self, path: str) -> dict[str, int]:
        answer = self.stub.ListFolder(pb.ListFolderRequest(path=path), timeout=PATIENCE_S)
        return {entry.name: entry.size_bytes for entry in answer.entries}

    def read(self, path: str, offset: int = 0, length: int = 1 << 20) -> bytes:
        request = pb.ReadFileRequest(path=path, offset=offset, length_bytes=length)
        return b"".join(piece.data for piece in self.stub.ReadFile(request, timeout=PATIENCE_S))

    def digests(
        self,
        start: int,
        end: int,
        *,
        timeout: float = PATIENCE_S,
        extent_bytes: int = EXTENT_BYTES,
        algorithm: pb.DigestAlgorithm = pb.DIGEST_ALGORITHM_XXH3_128,
    ) -> dict[tuple[int, int], bytes]:
        request = pb.DigestExtentsRequest(
            range=LogRange(start_offset=start, end_offset=end), extent_bytes=extent_bytes, algorithm=algorithm
        )
        return {
            (extent.range.start_offset, extent.range.end_offset): extent.digest
            for answer in self.stub.DigestExtents(request, timeout=timeout)
            for extent in answer.extents
        }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path) as running:
        running.add_name_server()
        yield running


def filled(cluster: ProcessCluster, *, log_bytes: int = 3 << 20, **settings: str) -> tuple[ServiceProcess, Reader]:
    """A lone master that holds some messages, all of them in their files."""
    broker = cluster.add_broker(settings={"brokerRole": "ASYNC_MASTER", "totalReplicas": "1", **FAST, **settings})
    asyncio.run(create_topic(broker, TOPIC))
    reader = Reader(broker)
    with AcknowledgedSender(broker, TOPIC, body_bytes=4_000):
        wait_until(lambda: reader.describe().end_offset > log_bytes, limit_s=120, what="messages are there")
    end_offset = reader.describe().end_offset
    wait_until(lambda: reader.describe().queues_offset == end_offset, limit_s=120, what="queues are written")
    return broker, reader


def code_of(error: pytest.ExceptionInfo[grpc.RpcError]) -> grpc.StatusCode:
    code: grpc.StatusCode = error.value.code()
    return code


def helper_process_id(broker: ServiceProcess) -> int:
    started = [event for event in broker.events() if event.get("event") == "audit_helper_started"]
    return int(started[-1]["process_id"])


def test_files_lists_and_digests_are_those_of_the_folder(cluster: ProcessCluster) -> None:
    broker, reader = filled(cluster)
    folder = cluster.store_folder("broker-a-0")
    facts = reader.describe()
    assert (facts.broker_name, facts.broker_id, facts.serving) == ("broker-a", 0, True)
    assert facts.confirm_offset == facts.end_offset
    assert facts.index_offset == facts.end_offset
    assert facts.repair_enabled
    assert {"commitlog", "consumequeue", "config", "index", "checkpoint", "abort"} >= set(reader.list(""))
    assert reader.list("commitlog") == {
        path.name: path.stat().st_size for path in (folder / "commitlog").iterdir() if path.suffix != ".unfinished"
    }
    assert reader.list(f"consumequeue/{TOPIC}")["0"] == -1
    assert reader.list("consumequeue/nobody") == {}

    log = (folder / "commitlog" / f"{0:020d}").read_bytes()[: facts.end_offset]
    assert reader.read(f"commitlog/{0:020d}", 10, 32 << 20) == log[10:]
    queue = f"consumequeue/{TOPIC}/0/{0:020d}"
    assert reader.read(queue) == (folder / queue).read_bytes()
    assert reader.read("config/topics.json") == (folder / "config/topics.json").read_bytes()
    assert reader.read("config/nothing.json") == b""

    start, end = 1_000, facts.end_offset - 7
    digests = reader.digests(start, end)
    assert list(digests) == [
        (max(start, first), min(end, first + EXTENT_BYTES)) for first in range(0, end, EXTENT_BYTES)
    ]
    assert all(digest == xxhash.xxh3_128(log[first:last]).digest() for (first, last), digest in digests.items())
    assert set(map(len, reader.digests(0, end, algorithm=pb.DIGEST_ALGORITHM_BLAKE3).values())) == {32}
    reader.close()
    assert broker.stop() == 0


REFUSED_PATHS = (
    "../../etc/passwd",
    "commitlog/../lock",
    "/etc/passwd",
    "lock",
    "kept-tails/x",
    "commitlog",
    "commitlog//00000000000000000000",
    "config/link.json",
    "consumequeue/link/0/00000000000000000000",
)


def test_other_files_and_ranges_are_refused(cluster: ProcessCluster) -> None:
    _, reader = filled(cluster, log_bytes=1)
    folder = cluster.store_folder("broker-a-0")
    (folder / "config/link.json").symlink_to("/etc/hostname")
    (folder / "consumequeue/link").symlink_to("/etc")
    for path in REFUSED_PATHS:
        with pytest.raises(grpc.RpcError) as refused:
            reader.read(path)
        assert code_of(refused) is grpc.StatusCode.INVALID_ARGUMENT, path
    assert "link.json" not in reader.list("config")
    end = reader.describe().end_offset
    refusals: list[tuple[Callable[[], object], grpc.StatusCode]] = [
        (lambda: reader.digests(0, end + 1), grpc.StatusCode.OUT_OF_RANGE),
        (lambda: reader.digests(5, 4), grpc.StatusCode.OUT_OF_RANGE),
        (lambda: reader.digests(0, end, extent_bytes=1), grpc.StatusCode.INVALID_ARGUMENT),
        (
            lambda: reader.digests(0, end, algorithm=pb.DIGEST_ALGORITHM_UNSPECIFIED),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ]
    for call, code in refusals:
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert code_of(refused) is code
    reader.close()


def test_digests_keep_to_their_rate_and_end_with_their_caller(cluster: ProcessCluster) -> None:
    broker, reader = filled(cluster, auditReadRate=str(64 << 10))
    reader.digests(0, 64 << 10)
    started = time.monotonic()
    reader.digests(0, 128 << 10)
    assert time.monotonic() - started > 1
    with pytest.raises(grpc.RpcError) as ended:
        reader.digests(0, 3 << 20, timeout=0.3)
    assert code_of(ended) is grpc.StatusCode.DEADLINE_EXCEEDED
    with running_time() as seconds:
        reader.digests(0, 64 << 10)
        assert seconds() < 40, "the cancelled job, of 48 s, still runs"
    assert os.getpriority(os.PRIO_PROCESS, helper_process_id(broker)) == 19
    reader.close()


def test_a_killed_helper_is_replaced_and_the_broker_lives_on(cluster: ProcessCluster) -> None:
    broker, reader = filled(cluster, auditReadRate=str(2 << 20))
    reader.digests(0, EXTENT_BYTES)
    first = helper_process_id(broker)
    request = pb.DigestExtentsRequest(
        range=LogRange(start_offset=0, end_offset=3 << 20),
        extent_bytes=EXTENT_BYTES,
        algorithm=pb.DIGEST_ALGORITHM_XXH3_128,
    )
    answers = reader.stub.DigestExtents(request, timeout=PATIENCE_S)
    next(answers)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(grpc.RpcError) as gone:
        list(answers)
    assert code_of(gone) is grpc.StatusCode.UNAVAILABLE
    assert len(reader.digests(0, EXTENT_BYTES)) == 1
    second = helper_process_id(broker)
    assert second != first
    # Killed between two calls, nobody notices.
    os.kill(second, signal.SIGKILL)
    assert len(reader.digests(0, EXTENT_BYTES)) == 1
    reader.close()
    assert broker.stop() == 0
    wait_until(
        lambda: not Path(f"/proc/{helper_process_id(broker)}").exists(), limit_s=120, what="the helper has ended"
    )


def test_a_killed_broker_takes_its_helper_along(cluster: ProcessCluster) -> None:
    broker, reader = filled(cluster)
    reader.digests(0, EXTENT_BYTES)
    helper = helper_process_id(broker)
    reader.close()
    broker.kill()
    wait_until(lambda: not Path(f"/proc/{helper}").exists(), limit_s=120, what="the helper has ended")


def test_a_rate_of_nothing_refuses(cluster: ProcessCluster) -> None:
    _, reader = filled(cluster, log_bytes=1, auditReadRate="0")
    assert reader.describe().audit_read_rate_bytes == 0
    for call in (lambda: reader.digests(0, 1), lambda: reader.read("checkpoint")):
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert code_of(refused) is grpc.StatusCode.FAILED_PRECONDITION
    reader.close()


def checked(reader: Reader, start: int, end: int) -> tuple[list[pb.RecordFinding], list[pb.QueueSpan], pb.RecordTotals]:
    request = pb.CheckRecordsRequest(
        range=LogRange(start_offset=start, end_offset=end), with_queues=True, with_index=True
    )
    answers = list(reader.stub.CheckRecords(request, timeout=600))
    assert answers[-1].HasField("totals")
    return (
        [answer.finding for answer in answers if answer.HasField("finding")],
        [answer.queue_span for answer in answers if answer.HasField("queue_span")],
        answers[-1].totals,
    )


def test_records_are_checked_under_load_and_damage_is_named(cluster: ProcessCluster) -> None:
    broker, reader = filled(cluster)
    # With a rest between sends: a log that grows as fast as it can outgrows a check that is nice to everything else.
    with AcknowledgedSender(broker, TOPIC, body_bytes=4_000, first_number=1_000_000, pause_s=0.05):
        for _ in range(5):
            facts = reader.describe()
            findings, spans, totals = checked(reader, facts.min_offset, facts.end_offset)
            assert findings == []
            assert totals.record_count == sum(span.next_queue_offset - span.first_queue_offset for span in spans)
            assert totals.read_bytes > facts.end_offset
    log_path = cluster.store_folder("broker-a-0") / "commitlog" / f"{0:020d}"
    flip(log_path, 1_000)
    flip(cluster.store_folder("broker-a-0") / f"consumequeue/{TOPIC}/0/{0:020d}", 20 * 7 + 5)
    findings, _, _ = checked(reader, 0, reader.describe().end_offset)
    assert {finding.kind for finding in findings} == {"body-crc", "queue-entry-wrong"}
    damaged = next(finding for finding in findings if finding.kind == "body-crc")
    assert (damaged.group, damaged.topic, damaged.broker_id, damaged.verdict) == ("broker-a", TOPIC, 0, "checksum")
    assert damaged.start_offset <= 1_000 < damaged.end_offset
    assert damaged.message_id
    wrong = next(finding for finding in findings if finding.kind == "queue-entry-wrong")
    assert (wrong.queue_id, wrong.queue_offset, wrong.messages) == (0, 7, 1)
    reader.close()


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_reading_leaves_no_trace_in_the_page_cache(cluster: ProcessCluster) -> None:
    broker, reader = filled(cluster, log_bytes=18 << 20)  # More than one file.
    path = cluster.store_folder("broker-a-0") / "commitlog" / f"{0:020d}"
    broker.stop()
    reader.close()
    with path.open("rb") as file:
        prepare_descriptor(file.fileno())
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if any(resident_pages(file.fileno(), 0, 16 << 20)):
            pytest.skip("this file system keeps its pages, or does not tell")
        os.pread(file.fileno(), 4_096, 0)
        os.pread(file.fileno(), 2 << 20, 5 << 20)
        broker.start()
        reader = Reader(broker)
        # What a consumer may need stays, and wherever the start has been.
        before = resident_pages(file.fileno(), 0, 16 << 20)
        assert 256 <= before.count(1) < 3_000
        reader.digests(0, 16 << 20)
        reader.read(f"commitlog/{0:020d}", 100, 16 << 20)
        after = resident_pages(file.fileno(), 0, 16 << 20)
        # The kernel drops no page that it has in hand itself, as on a machine short of memory; all others go.
        brought = sum(is_there and not was_there for was_there, is_there in zip(before, after, strict=True))
        assert brought < before.count(0) // 2
        # It may take some back at any time; a reader that drops what it reads takes all.
        assert after.count(1) > before.count(1) // 2
    reader.close()
