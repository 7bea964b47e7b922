"""Transactions in a store that a Java broker wrote: what it left undecided is ended here."""

from __future__ import annotations

import random

from support import store_samples as samples
from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from support.transactions import bodies_in, end
from tandemmq.core.storage.options import StoreOptions
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

_TOPIC = "sample-tx"


def _taken_over() -> BrokerAssembly:
    disk = SimulatedDisk(random.Random(0))
    for path in samples.STORE.rglob("*"):
        if path.is_file():
            disk.write_file(str(path.relative_to(samples.STORE)), path.read_bytes())
    time = ManualTime(wall_ms=1_795_260_000_000)
    options = StoreOptions(
        commit_log_file_bytes=samples.COMMIT_LOG_FILE_BYTES,
        consume_queue_file_bytes=samples.CONSUME_QUEUE_FILE_BYTES,
        index_slot_count=samples.INDEX_SLOT_COUNT,
        index_entry_count=samples.INDEX_ENTRY_COUNT,
    )
    broker = BrokerAssembly(clock=time, timers=time, disk=disk, store_options=options)
    broker.add_topic(_TOPIC, queue_count=2, message_type="TRANSACTION")
    return broker


def test_what_its_producers_did_not_decide_is_undecided_and_can_be_committed() -> None:
    broker = _taken_over()
    undecided = list(broker.api.transactions.undecided())
    # "transaction UNKNOW" of the remoting client, and the gRPC client's that was left alone.
    assert [half.queue_offset for half, _ in undecided] == [2, 5]
    before = bodies_in(broker, _TOPIC)
    for half, transaction_id in undecided:
        entry = pb.SendResultEntry(message_id=half.message_id, transaction_id=transaction_id)
        assert end(broker, entry, definition.COMMIT, topic=_TOPIC).code == definition.OK
    added = bodies_in(broker, _TOPIC)[len(before) :]
    assert added[0] == b"transaction UNKNOW"
    assert len(added) == 2
    broker.close()


def test_where_it_had_got_to_is_believed() -> None:
    broker = _taken_over()
    for _ in broker.api.transactions.recovery(from_offset=4):
        pass
    assert [half.queue_offset for half, _ in broker.api.transactions.undecided()] == [5]
    broker.close()
