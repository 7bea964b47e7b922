"""Small groups of real replicas for tests of the audit: every kind of record, written by the store's own code.

The master is written by puts; slaves append its bytes and dispatch them, as they do in a cluster. All are ended in
order, with their metadata.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

import xxhash

from support.messages import BORN_HOST, STORE_HOST, changed
from support.replica_folders import open_replica
from support.stores import ManualClock
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.core.access.users_and_policies import (
    Acl,
    AclTable,
    Action,
    Decision,
    PolicyEntry,
    Resource,
    User,
    UserTable,
)
from tandemmq.core.audit.replica_store import ReplicaStore
from tandemmq.core.delivery.journal import LeaseReplay
from tandemmq.core.delivery.queue_progress import QueueProgress
from tandemmq.core.delivery.subscription import Subscription
from tandemmq.core.delivery.timer_queue import TimerQueue
from tandemmq.core.message.properties import encode_properties, tags_code
from tandemmq.core.message.record import SCHEDULE_TOPIC, TIMER_TOPIC, Host, OutgoingMessage
from tandemmq.core.message.record_layout import (
    INNER_BATCH,
    NEED_UNWRAP,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from tandemmq.core.metadata.metadata_store import MetadataFile, MetadataStore
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable, DelayOffsetTable, GroupOffset
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig, SubscriptionGroupTable
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable, system_topics
from tandemmq.core.replication.log_history import EPOCH_FILE, REPLICA_FILE, LogHistory, ReplicaRecord
from tandemmq.core.routing.values import ReplicaMemory
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions

GROUP: Final = "broker-a"
AUDIT_OPTIONS: Final = StoreOptions(
    commit_log_file_bytes=256 << 10,
    consume_queue_file_bytes=4000,
    index_slot_count=500,
    index_entry_count=2000,
    disk_max_used_ratio=1.0,
    disk_clean_forcibly_ratio=1.0,
    disk_warning_ratio=1.0,
)
"""A few files of everything, and how full the machine's disk is decides nothing."""

_TOPICS: Final = {"orders": 4, "payments": 1, "logs": 2}
_IPV6_HOST: Final = Host.parse("2001:db8::7", 40_002)
_LONG_TOPIC: Final = "%RETRY%" + "g" * 140
"""Longer than a V1 record can hold."""


def _message(number: int, chance: random.Random) -> OutgoingMessage:
    topic = chance.choice(list(_TOPICS))
    pairs = [("UNIQ_KEY", f"7F0000010000{number:020X}")]
    keys: tuple[str, ...] = (pairs[0][1],)
    if number % 3:
        pairs.append(("KEYS", f"order-{number} customer-{number % 17}"))
        keys = (*keys, f"order-{number}", f"customer-{number % 17}")
    tag = chance.choice((None, "created", "paid", "shipped"))
    if tag:
        pairs.append(("TAGS", tag))
    size = 20_000 if number % 97 == 0 else chance.randrange(40, 1500)
    return OutgoingMessage(
        topic=topic,
        queue_id=chance.randrange(_TOPICS[topic]),
        body=chance.randbytes(size),
        properties=encode_properties(pairs),
        tags_code=tags_code(tag),
        index_keys=keys,
        tag=tag,
        born_timestamp_ms=1_700_000_000_000 + number,
        born_host=_IPV6_HOST if number % 11 == 0 else BORN_HOST,
    )


def _uncommon(message: OutgoingMessage, number: int) -> OutgoingMessage:
    """Every so often a record of a rarer sort."""
    match number % 40:
        case 5:
            pairs = [("REAL_TOPIC", message.topic), ("DELAY", "3"), ("UNIQ_KEY", message.index_keys[0])]
            return changed(
                message,
                topic=SCHEDULE_TOPIC,
                queue_id=2,
                properties=encode_properties(pairs),
                index_keys=message.index_keys[:1],
                tag=None,
                tags_code=0,
            )
        case 11:
            return changed(message, sys_flag=TRANSACTION_PREPARED)
        case 17:
            return changed(message, sys_flag=TRANSACTION_COMMIT, prepared_transaction_offset=128)
        case 23:
            return changed(message, sys_flag=TRANSACTION_ROLLBACK)
        case 29:
            pairs = [("INNER_NUM", "3"), ("INNER_BASE", "0"), ("UNIQ_KEY", message.index_keys[0])]
            return changed(
                message,
                topic="batched",
                queue_id=0,
                sys_flag=INNER_BATCH | NEED_UNWRAP,
                properties=encode_properties(pairs),
                index_keys=message.index_keys[:1],
                tag=None,
                tags_code=0,
            )
        case 35:
            return changed(message, topic=_LONG_TOPIC, queue_id=0)
    return message


def append_messages(store: MessageStore, clock: ManualClock, first: int, count: int, *, seed: int = 0) -> None:
    """Puts messages number `first` and on."""
    chance = random.Random(f"{seed}/{first}")
    for number in range(first, first + count):
        clock.now_ms += chance.randrange(0, 40)
        result = store.put(_uncommon(_message(number, chance), number))
        assert result.status.name == "PUT_OK", result


def open_store(folder: Path, clock: ManualClock) -> MessageStore:
    store = MessageStore(PosixDisk(folder), clock, AUDIT_OPTIONS, store_host=STORE_HOST, process_id=4711)
    store.load()
    return store


def make_master(folder: Path, *, messages: int = 900, seed: int = 0) -> None:
    """A master's store, ended in order."""
    clock = ManualClock()
    store = open_store(folder, clock)
    append_messages(store, clock, 0, messages, seed=seed)
    _write_metadata(folder, store, now_ms=clock.now_ms)
    store.close()


def replicate(master: Path, slave: Path, *, end_offset: int | None = None, from_offset: int = 0) -> None:
    """A slave's store with the master's bytes up to `end_offset`, dispatched, ended in order."""
    source = open_replica(master, segment_bytes=AUDIT_OPTIONS.commit_log_file_bytes)
    end = source.facts.end_offset if end_offset is None else end_offset
    store = open_store(slave, ManualClock())
    offset = max(from_offset, store.end_offset, source.facts.min_offset)
    while offset < end:
        piece_end = min(source.segment_end(offset), end)
        store.append_raw(offset, bytes(source.read_log(offset, piece_end)))
        while store.dispatch():
            pass
        offset = piece_end
    store.close()
    shutil.copytree(master / "config", slave / "config", dirs_exist_ok=True)
    if slave.name.isdigit() and (master / REPLICA_FILE).exists() and not (slave / REPLICA_FILE).exists():
        own = int(slave.name)
        record = ReplicaRecord(_disk_id(own), 5 + own, "test", GROUP, own, promised_epoch=4, promised_to=_disk_id(0))
        (slave / REPLICA_FILE).write_text(record.to_json())
        shutil.copyfile(master / EPOCH_FILE, slave / EPOCH_FILE)


def make_group(root: Path, *, replicas: int = 3, messages: int = 900, seed: int = 0) -> list[Path]:
    """Equal replicas, by broker id: <root>/<broker id>."""
    folders = [root / str(broker_id) for broker_id in range(replicas)]
    make_master(folders[0], messages=messages, seed=seed)
    for slave in folders[1:]:
        replicate(folders[0], slave)
    write_side_files(folders)
    return folders


def write_side_files(folders: Sequence[Path]) -> None:
    """What brokers leave beside log and tables: who they are, who wrote the log, homes, clocks, leases, timers, and
    bytes that were kept aside."""
    store = open_replica(folders[0])
    end = store.facts.end_offset
    history = LogHistory.of([(1, 0), (2, end // 3), (4, end // 2)])
    leases = _leases(store)
    for broker_id, folder in enumerate(folders):
        others = [
            ReplicaMemory(
                broker_id=other,
                disk_id=_disk_id(other),
                run=5 + other,
                epoch=4,
                end_offset=end,
                left=True,
                master_epoch=4 if other == 0 else 0,
            )
            for other in range(len(folders))
            if other != broker_id
        ]
        record = ReplicaRecord(
            disk_id=_disk_id(broker_id),
            run=5 + broker_id,
            cluster="test",
            broker_name=GROUP,
            broker_id=broker_id,
            replicas=tuple(others),
            promised_epoch=4,
            promised_to=_disk_id(0),
        )
        kept = bytes(range(256)) * 9
        config = folder / "config"
        for path, content in (
            (folder / REPLICA_FILE, record.to_json().encode()),
            (folder / EPOCH_FILE, history.to_text().encode()),
            (config / "messageGroupHomes.json", b'{"orders": ["broker-a", "broker-b", "broker-c"]}'),
            (config / "leaseClock.json", b'{"bootId": "b", "offsetMs": 17}'),
            (config / "retentionClock.json", b'{"bootId": "b", "believedMs": 1, "monotonicMs": 1, "misdated": {}}'),
            (config / "leases-0000000007.snapshot", leases),
            (config / "leases-0000000007.journal", b""),
            (config / f"{TIMER_TOPIC}.state", TimerQueue().state().to_bytes()),
            (folder / "kept-tails" / f"{4096:020d}-1700000000000.log", kept),
            (
                folder / "kept-tails" / f"{4096:020d}-1700000000000.json",
                json.dumps(
                    {"reason": "cut", "startOffset": 4096, "endOffset": 4096 + len(kept), "crc32": crc32(kept)}
                ).encode(),
            ),
            (folder / "kept-repairs" / f"{0:020d}-{len(kept):020d}-{xxhash.xxh3_128_hexdigest(kept)}", kept),
        ):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)


def _disk_id(broker_id: int) -> str:
    return f"{broker_id:x}" * 32


def _leases(store: ReplicaStore) -> bytes:
    """A snapshot of one consumer group that has received the first messages of a queue."""
    replay = LeaseReplay.of_files(b"", b"")
    subscription = replay.subscriptions[1] = Subscription(1, "billing", "orders")
    subscription.queues[1] = QueueProgress(subscription, 1, 3)
    return replay.to_snapshot()


def copy_group(folders: Sequence[Path], root: Path) -> list[Path]:
    """The same somewhere else, to be damaged."""
    copies = [root / folder.name for folder in folders]
    for folder, copy in zip(folders, copies):
        shutil.copytree(folder, copy)
    return copies


def open_group(folders: Sequence[Path]) -> dict[int, ReplicaStore]:
    """Their stores by broker id, inspected."""
    return {
        broker_id: open_replica(folder, group=GROUP, broker_id=broker_id) for broker_id, folder in enumerate(folders)
    }


def _write_metadata(folder: Path, store: MessageStore, *, now_ms: int) -> None:
    topics, groups, offsets, delays = TopicTable(), SubscriptionGroupTable(), ConsumerOffsetTable(), DelayOffsetTable()
    users, acls = _access_tables(now_ms)
    for config in system_topics(cluster="test", broker_name=GROUP, auto_create_topic=True):
        topics.put(config, now_ms=now_ms)
    for name, count in (*_TOPICS.items(), ("batched", 1), (_LONG_TOPIC, 1)):
        topics.put(TopicConfig(name, count, count), now_ms=now_ms)
    topics.put(TopicConfig("removed", 1, 1), now_ms=now_ms)
    topics.remove("removed", now_ms=now_ms)
    for name in ("billing", "reports"):
        groups.put(SubscriptionGroupConfig(name), now_ms=now_ms)
        offsets.commit_all(
            [
                GroupOffset(name, queue.topic, queue.queue_id, queue.max_offset // 2)
                for queue in store.queues
                if queue.topic in _TOPICS
            ],
            now_ms=now_ms,
        )
    delays.advance(3, 2, now_ms=now_ms)
    files = MetadataStore(PosixDisk(folder))
    for file, text in (
        (MetadataFile.TOPICS, topics.to_json()),
        (MetadataFile.SUBSCRIPTION_GROUPS, groups.to_json()),
        (MetadataFile.CONSUMER_OFFSETS, offsets.to_json()),
        (MetadataFile.DELAY_OFFSETS, delays.to_json()),
        (MetadataFile.USERS, users.to_json()),
        (MetadataFile.ACLS, acls.to_json()),
    ):
        files.persist(file, text)


def _access_tables(now_ms: int) -> tuple[UserTable, AclTable]:
    users, acls = UserTable(), AclTable()
    for name in ("shop", "audit"):
        # Sealed secrets look like this; nobody here opens them.
        users.put(User(name, f"c2VhbGVk{name}"), now_ms=now_ms)
        entries = [
            PolicyEntry(Resource.parse(f"Topic:{resource}"), frozenset({Action.PUB, Action.SUB}), decision)
            for resource, decision in (("orders", Decision.ALLOW), ("pay*", Decision.DENY))
        ]
        acls.put(Acl(f"User:{name}", tuple(entries)), now_ms=now_ms)
    return users, acls
