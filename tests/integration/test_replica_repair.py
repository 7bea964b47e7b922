"""A replica repaired while it serves: planted damage goes, and every guard refuses what it is there for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest
import xxhash

from support.acknowledged_sends import AcknowledgedSender
from support.cluster_processes import ProcessCluster, ServiceProcess, commit_log_bytes, wait_until
from support.running_time import PATIENCE_S
from support.topic_admin import broker_status, create_topic
from tandemmq.core.message.record import Blank, RecordFound, scan_record
from tandemmq.proto.broker.v1 import replica_reader_service_pb2 as reader_pb
from tandemmq.proto.broker.v1 import (
    replica_reader_service_pb2_grpc,
    replica_repair_service_pb2_grpc,
)
from tandemmq.proto.broker.v1 import replica_repair_service_pb2 as pb
from tandemmq.proto.broker.v1.replica_service_pb2 import LogRange

TOPIC = "repaired"
SETTINGS = {"auditReadRate": str(4 << 30), "mappedFileSizeCommitLog": str(8 << 20)}
SEGMENT_BYTES = 8 << 20


@dataclass
class Replica:
    """One member and its files."""

    process: ServiceProcess
    folder: Path

    def __post_init__(self) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.process.ports['listenPort']}")
        self.reader = replica_reader_service_pb2_grpc.ReplicaReaderServiceStub(self.channel)
        self.repair = replica_repair_service_pb2_grpc.ReplicaRepairServiceStub(self.channel)

    def facts(self) -> reader_pb.DescribeReplicaResponse:
        answer: reader_pb.DescribeReplicaResponse = self.reader.DescribeReplica(
            reader_pb.DescribeReplicaRequest(), timeout=PATIENCE_S
        )
        return answer

    def bytes_at(self, start: int, end: int) -> bytes:
        pieces = []
        for file_start in range(start - start % SEGMENT_BYTES, end, SEGMENT_BYTES):
            data = (self.folder / "commitlog" / f"{file_start:020d}").read_bytes()
            pieces.append(data[max(0, start - file_start) : end - file_start])
        return b"".join(pieces)

    def digest(self, start: int, end: int) -> bytes:
        return xxhash.xxh3_128(self.bytes_at(start, end)).digest()

    def write(self, path: str, offset: int, data: bytes) -> None:
        """As a bad disk would: behind the broker's back."""
        descriptor = os.open(self.folder / path, os.O_WRONLY)
        os.pwrite(descriptor, data, offset)
        os.close(descriptor)

    def flip(self, offset: int, count: int = 1) -> None:
        start = offset - offset % SEGMENT_BYTES
        damaged = bytes(byte ^ 0x40 for byte in self.bytes_at(offset, offset + count))
        self.write(f"commitlog/{start:020d}", offset - start, damaged)

    def repair_range(
        self,
        start: int,
        end: int,
        *,
        source: int,
        target_digest: bytes,
        source_digest: bytes,
        dry_run: bool = False,
    ) -> pb.RepairRangeResponse:
        answer: pb.RepairRangeResponse = self.repair.RepairRange(
            pb.RepairRangeRequest(
                range=LogRange(start_offset=start, end_offset=end),
                source_broker_id=source,
                target_digest=target_digest,
                source_digest=source_digest,
                dry_run=dry_run,
            ),
            timeout=PATIENCE_S,
        )
        return answer

    def rewrite(
        self, queue_id: int, first: int, end: int, *, dry_run: bool = False, undo: bool = False
    ) -> pb.RewriteQueueEntriesResponse:
        answer: pb.RewriteQueueEntriesResponse = self.repair.RewriteQueueEntries(
            pb.RewriteQueueEntriesRequest(
                topic=TOPIC,
                queue_id=queue_id,
                first_queue_offset=first,
                end_queue_offset=end,
                dry_run=dry_run,
                undo=undo,
            ),
            timeout=PATIENCE_S,
        )
        return answer

    def rewrite_table(self, table: str, *, dry_run: bool = False, undo: bool = False) -> pb.RewriteTableResponse:
        answer: pb.RewriteTableResponse = self.repair.RewriteTable(
            pb.RewriteTableRequest(table=table, dry_run=dry_run, undo=undo), timeout=PATIENCE_S
        )
        return answer


@dataclass
class Pair:
    """A master and its slave, which hold the same messages; `sender` goes on sending."""

    cluster: ProcessCluster
    master: Replica
    slave: Replica
    flushed_offset: int

    def records(self) -> list[RecordFound]:
        """All that both have on disk."""
        log = self.master.bytes_at(0, self.flushed_offset)
        records = []
        offset = 0
        while offset < len(log):
            limit = min(len(log), offset - offset % SEGMENT_BYTES + SEGMENT_BYTES)
            found = scan_record(log, offset, limit, physical_offset=offset)
            if isinstance(found, Blank):
                offset += found.size
                continue
            if not isinstance(found, RecordFound):
                break
            records.append(found)
            offset += found.size
        return records


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker(settings=SETTINGS | {"maxMessageSize": "1000000"})
        slave = cluster.add_broker(broker_id=1, settings=SETTINGS | {"maxMessageSize": "1000000"})
        asyncio.run(create_topic(master, TOPIC, queues=2))
        wait_until(
            lambda: any(item.in_sync for item in asyncio.run(broker_status(master)).slaves),
            limit_s=120,
            what="the slave is in sync",
        )
        replicas = [Replica(process, cluster.store_folder(process.name)) for process in (master, slave)]
        with AcknowledgedSender(master, TOPIC, body_bytes=20_000):
            wait_until(lambda: replicas[0].facts().end_offset > 10 << 20, limit_s=120, what="messages are there")
        end_offset = replicas[0].facts().end_offset
        wait_until(
            lambda: all(min(at.flushed_offset, at.queues_offset) >= end_offset for at in (r.facts() for r in replicas)),
            limit_s=120,
            what="everything is on disk on both",
        )
        running = Pair(cluster, replicas[0], replicas[1], flushed_offset=end_offset)
        yield running
        for replica in replicas:
            replica.channel.close()


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value.code(), str(refused.value.details())


def test_flipped_bytes_go_from_slave_and_master_while_messages_flow(pair: Pair) -> None:
    records = pair.records()
    with AcknowledgedSender(pair.master.process, TOPIC, first_number=1_000_000) as sender:
        for target, source, source_id, number in (
            (pair.slave, pair.master, 0, 20),
            (pair.master, pair.slave, 1, 40),
        ):
            first, last = records[number], records[number + 3]
            start, end = first.physical_offset, last.physical_offset + last.size
            sound = target.bytes_at(start, end)
            # In a body, over a page's end, and in a head.
            target.flip(start + 5_000, 3)
            target.flip(last.physical_offset + 60)
            step = partial(
                target.repair_range,
                start,
                end,
                source=source_id,
                target_digest=target.digest(start, end),
                source_digest=source.digest(start, end),
            )
            planned = step(dry_run=True)
            assert (planned.changed_bytes, planned.record_count) == (4, 4)
            assert target.bytes_at(start, end) != sound, "a dry run has written"

            done = step()
            assert done.changed_bytes == 4
            assert 2 <= len(done.changed_ranges) <= 3
            assert all(part.end_offset - part.start_offset <= 8192 for part in done.changed_ranges)
            assert target.bytes_at(start, end) == sound
            assert step().changed_bytes == 0
        count = len(sender.acknowledged)
        wait_until(lambda: len(sender.acknowledged) > count + 100, limit_s=120, what="messages flow on")
        assert sender.failed == 0
    assert not (pair.slave.folder / "repair.unfinished").exists()
    assert pair.master.process.stop() == 0
    assert pair.slave.process.stop() == 0
    ours, theirs = (commit_log_bytes(replica.folder) for replica in (pair.master, pair.slave))
    assert all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())


def test_a_range_over_two_files_that_is_all_zeros_is_repaired(pair: Pair) -> None:
    records = [record for record in pair.records() if record.physical_offset < SEGMENT_BYTES]
    start, end = records[-40].physical_offset, SEGMENT_BYTES + 4_000
    sound = pair.slave.bytes_at(start, end)
    pair.slave.write(f"commitlog/{0:020d}", start, bytes(SEGMENT_BYTES - start))
    pair.slave.write(f"commitlog/{SEGMENT_BYTES:020d}", 0, bytes(4_000))
    done = pair.slave.repair_range(
        start,
        end,
        source=0,
        target_digest=pair.slave.digest(start, end),
        source_digest=pair.master.digest(start, end),
    )
    assert done.changed_bytes > 500_000
    assert pair.slave.bytes_at(start, end) == sound


def test_every_guard_refuses_and_changes_nothing(pair: Pair) -> None:
    master, slave = pair.master, pair.slave
    record = pair.records()[10]
    start, end = record.physical_offset, record.physical_offset + record.size
    slave.flip(start + 300)
    damaged, sound = slave.digest(start, end), master.digest(start, end)

    def step(
        target: Replica = slave,
        first: int = start,
        last: int = end,
        source: int = 0,
        target_digest: bytes = damaged,
        source_digest: bytes = sound,
    ) -> Callable[[], object]:
        return lambda: target.repair_range(
            first, last, source=source, target_digest=target_digest, source_digest=source_digest
        )

    code = grpc.StatusCode
    flushed = slave.facts().flushed_offset
    for call, expected, words in (
        (step(target_digest=bytes(16)), code.FAILED_PRECONDITION, "changed since"),
        (step(target_digest=b"short"), code.INVALID_ARGUMENT, "16 bytes"),
        (step(first=flushed - 10, last=flushed + 1), code.OUT_OF_RANGE, "on disk"),
        (step(first=end, last=end), code.OUT_OF_RANGE, "not within"),
        (step(source=7), code.FAILED_PRECONDITION, "no other member"),
        (step(source=1), code.FAILED_PRECONDITION, "not repaired here"),
        (step(source_digest=bytes(16)), code.DATA_LOSS, "verify again"),
    ):
        assert refusal(call)[0] is expected, words
        assert words in refusal(call)[1]
        assert slave.digest(start, end) == damaged

    # The source is damaged as well, and the plan was made from what it holds.
    master.flip(start + 301)
    unsound = master.digest(start, end)
    refused = refusal(step(source_digest=unsound))
    assert refused[0] is code.DATA_LOSS
    assert "body-crc" in refused[1]
    assert slave.digest(start, end) == damaged
    master.flip(start + 301)

    # Lost under the running broker.
    path = slave.folder / "commitlog" / f"{0:020d}"
    path.rename(slave.folder / "aside")
    refused = refusal(step())
    assert refused[0] is code.FAILED_PRECONDITION
    assert "stop it, copy the file" in refused[1]
    (slave.folder / "aside").rename(path)

    master.process.kill()
    wait_until(lambda: not slave.facts().serving, limit_s=120, what="the slave has missed its master")
    assert refusal(step())[0] is code.FAILED_PRECONDITION
    master.process.start()
    wait_until(lambda: slave.facts().serving, limit_s=120, what="the slave follows again")
    assert slave.repair_range(start, end, source=0, target_digest=damaged, source_digest=sound).changed_bytes == 1


def test_queue_entries_are_written_again_from_the_log(pair: Pair) -> None:
    folder = f"consumequeue/{TOPIC}/1"
    path = f"{folder}/{0:020d}"
    sound = (pair.slave.folder / path).read_bytes()
    pair.slave.write(path, 30 * 20, bytes(40 * 20))
    pair.slave.write(path, 5 * 20 + 7, b"\x77")
    planned = pair.slave.rewrite(1, 0, 100, dry_run=True)
    assert (planned.sound_count, planned.changed_count) == (59, 41)
    assert [change.queue_offset for change in planned.changes] == [5, *range(30, 70)]
    assert (pair.slave.folder / path).read_bytes() != sound
    damaged = (pair.slave.folder / path).read_bytes()
    assert refusal(lambda: pair.slave.rewrite(1, 0, 100, undo=True))[0] is grpc.StatusCode.NOT_FOUND
    done = pair.slave.rewrite(1, 0, 100)
    assert done.changed_count == 41
    assert (pair.slave.folder / path).read_bytes() == sound
    assert pair.slave.rewrite(1, 0, 100).changed_count == 0
    # What was overwritten can be put back, and be repaired again.
    assert pair.slave.rewrite(1, 0, 100, undo=True).changed_count == 41
    assert (pair.slave.folder / path).read_bytes() == damaged
    assert pair.slave.rewrite(1, 0, 100).changed_count == 41
    assert (pair.slave.folder / path).read_bytes() == sound

    code = grpc.StatusCode
    assert refusal(lambda: pair.slave.rewrite(9, 0, 1))[0] is code.NOT_FOUND
    assert refusal(lambda: pair.slave.rewrite(1, 5, 5))[0] is code.INVALID_ARGUMENT
    assert refusal(lambda: pair.slave.rewrite(1, 0, 1_000_000))[0] is code.OUT_OF_RANGE
    (pair.slave.folder / path).rename(pair.slave.folder / "aside")
    assert refusal(lambda: pair.slave.rewrite(1, 0, 10))[0] is code.FAILED_PRECONDITION
    (pair.slave.folder / "aside").rename(pair.slave.folder / path)
    # The record says another queue offset: no record of the queue has this one. Then it is no record any more.
    record = next(found for found in pair.records() if found.queue_id == 1 and found.queue_offset == 8)
    for field_offset, expected in ((20, code.NOT_FOUND), (28, code.FAILED_PRECONDITION)):
        pair.slave.flip(record.physical_offset + field_offset)
        assert refusal(lambda: pair.slave.rewrite(1, 0, 20))[0] is expected
        pair.slave.flip(record.physical_offset + field_offset)


def test_tables_are_written_again_by_master_and_slave(pair: Pair) -> None:
    for replica in (pair.master, pair.slave):
        path = replica.folder / "config" / "topics.json"
        wait_until(lambda: TOPIC in path.read_text(), limit_s=PATIENCE_S, what="the topic is in the file")  # noqa: B023
        sound = path.read_bytes()
        assert not replica.rewrite_table("topics.json").changed
        for damaged in (b"", sound[: len(sound) // 2], sound.replace(TOPIC.encode(), b"another")):
            path.write_bytes(damaged)
            assert replica.rewrite_table("topics.json", dry_run=True).changed
            assert path.read_bytes() == damaged, "a dry run has written"
            done = replica.rewrite_table("topics.json")
            assert done.changed
            assert (replica.folder / done.kept_path).read_bytes() == damaged
            assert path.read_bytes() == sound
        path.unlink()
        assert replica.rewrite_table("topics.json").changed
        assert path.read_bytes() == sound
        assert not replica.rewrite_table("consumerOffset.json", dry_run=True).changed
        assert refusal(lambda: replica.rewrite_table("leases"))[0] is grpc.StatusCode.INVALID_ARGUMENT  # noqa: B023


def test_repair_can_be_switched_off(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        broker = cluster.add_broker(
            settings={"brokerRole": "ASYNC_MASTER", "totalReplicas": "1", "enableRepair": "false"}
        )
        replica = Replica(broker, cluster.store_folder("broker-a-0"))
        assert not replica.facts().repair_enabled
        for call in (
            lambda: replica.rewrite(0, 0, 1),
            lambda: replica.rewrite_table("topics.json"),
            lambda: replica.repair_range(0, 1, source=1, target_digest=bytes(16), source_digest=bytes(16)),
        ):
            assert refusal(call) == (
                grpc.StatusCode.FAILED_PRECONDITION,
                "enableRepair is off here: stop the broker and repair its files",
            )
        replica.channel.close()


def test_small_files_are_written_again_and_put_back(pair: Pair) -> None:
    for replica in (pair.master, pair.slave):
        assert refusal(lambda: replica.rewrite_table("replica.json", undo=True))[0] is grpc.StatusCode.NOT_FOUND  # noqa: B023
        for path in ("replica.json", "epochFileCheckpoint", "config/messageGroupHomes.json", "checkpoint"):
            file, name = replica.folder / path, path.rpartition("/")[2]
            # Homes are written when the first is known, and there are none here.
            replica.rewrite_table(name)
            sound = file.read_bytes()
            assert not replica.rewrite_table(name, dry_run=True).changed
            for damaged in (b"", b"damaged", sound[: len(sound) // 2]):
                file.write_bytes(damaged)
                assert replica.rewrite_table(name, dry_run=True).changed
                assert file.read_bytes() == damaged, "a dry run has written"
                done = replica.rewrite_table(name)
                assert (replica.folder / done.kept_path).read_bytes() == damaged
                assert file.read_bytes() == sound
                assert replica.rewrite_table(name, undo=True).changed
                assert file.read_bytes() == damaged
                assert not replica.rewrite_table(name, undo=True).changed
                assert replica.rewrite_table(name).changed
                assert file.read_bytes() == sound


def test_a_table_that_was_written_again_can_be_put_back(pair: Pair) -> None:
    for replica in (pair.master, pair.slave):
        path = replica.folder / "config" / "topics.json"
        wait_until(lambda: TOPIC in path.read_text(), limit_s=PATIENCE_S, what="the topic is in the file")  # noqa: B023
        sound = path.read_bytes()
        # Not the same on both: a slave's repaired table is its master's.
        other = b"another" if replica is pair.master else b"a-third"
        path.write_bytes(sound.replace(TOPIC.encode(), other))
        assert replica.rewrite_table("topics.json").changed
        assert replica.rewrite_table("topics.json", undo=True).changed
        assert other in path.read_bytes()
        assert not replica.rewrite_table("topics.json", undo=True, dry_run=True).changed
        # As before once more, and this time what was kept is none that a broker could read.
        path.write_bytes(sound)
        if replica is pair.slave:
            assert replica.rewrite_table("topics.json").changed
            path.write_bytes(b"{")
            assert replica.rewrite_table("topics.json").changed
            refused = refusal(lambda: replica.rewrite_table("topics.json", undo=True))  # noqa: B023
            assert refused[0] is grpc.StatusCode.FAILED_PRECONDITION
            assert "kept-repairs" in refused[1]
