"""What can go wrong with files beside a replica's log, with any replica's tables, and with several replicas at once.

Done as in `store_damage`; the stores of tests have all of these files.
"""

from __future__ import annotations

import json
import random
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from support.store_damage import (
    Damage,
    Expected,
    Victim,
    any_replica,
    change_everywhere,
    metadata_path,
    queue_entry_of,
    remove_paths,
    rewrite,
    write_at,
)
from tandemmq.core.access.users_and_policies import Decision
from tandemmq.core.audit.findings import FindingKind
from tandemmq.core.delivery.journal import LeaseReplay
from tandemmq.core.delivery.queue_progress import QueueProgress
from tandemmq.core.delivery.timer_queue import TimerQueue
from tandemmq.core.message.record import TIMER_TOPIC
from tandemmq.core.message.record_layout import CRC_MASK
from tandemmq.core.metadata.metadata_store import MetadataFile, read_java_json, write_java_json
from tandemmq.core.replication.log_history import EPOCH_FILE, REPLICA_FILE, Epoch, LogHistory, ReplicaRecord

_ENTRY_BYTES: Final = 20


# What lies beside log and tables; the stores of tests have all of it


def _lose_or_tear(path: Path, chance: random.Random) -> None:
    """Gone, of no length, cut, or with another byte in it."""
    data = path.read_bytes()
    path.unlink()
    match chance.randrange(4):
        case 0:
            return
        case 1:
            path.write_bytes(b"")
        case 2:
            path.write_bytes(data[: chance.randrange(1, max(2, len(data) // 2))])
        case _:
            path.write_bytes(chance.randbytes(len(data)))


def _named(victim: int, *kinds: FindingKind, **more: object) -> Expected:
    return Expected(kinds=frozenset(kinds), broker_id=victim, **more)  # type: ignore[arg-type]  # fields by name


def _damage_disk_id(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = chance.randrange(len(folders))
    _lose_or_tear(folders[victim] / REPLICA_FILE, chance)
    return _named(victim, FindingKind.DISK_ID_WRONG)


def _copy_disk_id(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A replica has another one's file."""
    victim, other = chance.sample(range(len(folders)), 2)
    path = folders[victim] / REPLICA_FILE
    path.unlink()
    shutil.copyfile(folders[other] / REPLICA_FILE, path)
    return _named(victim, FindingKind.DISK_ID_WRONG)


def _older_disk_id(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = chance.randrange(len(folders))
    path = folders[victim] / REPLICA_FILE
    record = ReplicaRecord.from_json(path.read_text())
    rewrite(path, replace(record, run=chance.randrange(record.run)).to_json())
    return _named(victim, FindingKind.DISK_ID_WRONG, needs_memory=len(folders) == 1)


def _damage_epochs(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = chance.randrange(len(folders))
    _lose_or_tear(folders[victim] / EPOCH_FILE, chance)
    return _named(victim, FindingKind.EPOCHS_WRONG)


def _older_epochs(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Without the last master, and its checksum is right."""
    victim = chance.randrange(len(folders))
    path = folders[victim] / EPOCH_FILE
    history = LogHistory.from_text(path.read_text())
    rewrite(path, LogHistory(history.epochs[: chance.randrange(1, len(history.epochs))]).to_text())
    return _named(victim, FindingKind.EPOCHS_WRONG, needs_memory=len(folders) == 1)


def _moved_epoch(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = chance.randrange(len(folders))
    path = folders[victim] / EPOCH_FILE
    epochs = [*LogHistory.from_text(path.read_text()).epochs]
    moved = chance.randrange(1, len(epochs))
    low = epochs[moved - 1].start_offset + 1
    epochs[moved] = epochs[moved]._replace(start_offset=chance.randrange(low, epochs[moved].start_offset))
    rewrite(path, LogHistory.of(epochs).to_text())
    return _named(victim, FindingKind.EPOCHS_WRONG, undecidable=True, needs_memory=len(folders) == 1)


def _fewer_homes(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Gone, empty or with a broker group less: of one replica alone nobody can tell the last."""
    victim = chance.randrange(len(folders))
    path = folders[victim] / "config" / "messageGroupHomes.json"
    homes = json.loads(path.read_text())
    topic = chance.choice(sorted(homes))
    homes[topic].remove(chance.choice(homes[topic]))
    path.unlink()
    if chance.random() < 0.6 or len(folders) == 1:
        path.write_text(chance.choice(("", "[]", '{"orders": [')) if len(folders) == 1 else json.dumps(homes))
    kinds = (FindingKind.MESSAGE_GROUP_HOMES_DIFFER, FindingKind.METADATA_UNREADABLE)
    return _named(victim, *kinds)


def _damage_clock(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = chance.randrange(len(folders))
    path = folders[victim] / "config" / chance.choice(("leaseClock.json", "retentionClock.json"))
    rewrite(path, chance.choice(("", path.read_text()[:-2], "null")))
    return _named(victim, FindingKind.METADATA_UNREADABLE)


def _damage_timers(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Torn, or of a log that went further than this one."""
    victim = chance.randrange(len(folders))
    path = folders[victim] / "config" / f"{TIMER_TOPIC}.state"
    data = path.read_bytes()
    if chance.random() < 0.3:
        queue = TimerQueue()
        queue.timer_next = chance.randrange(1, 1 << 30)
        changed = queue.state().to_bytes()
    elif chance.random() < 0.5:
        changed = data[: chance.randrange(len(data))]
    else:
        place = chance.randrange(len(data))
        changed = data[:place] + bytes((data[place] ^ 1 << chance.randrange(8),)) + data[place + 1 :]
    path.unlink()
    path.write_bytes(changed)
    return _named(victim, FindingKind.METADATA_UNREADABLE, FindingKind.OFFSET_BEYOND_END)


def _damage_kept(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = chance.randrange(len(folders))
    files = [path for name in ("kept-tails", "kept-repairs") for path in sorted((folders[victim] / name).iterdir())]
    path = chance.choice(files)
    data = path.read_bytes()
    path.unlink()
    is_cut = chance.random() < 0.5
    if path.suffix == ".json":
        path.write_bytes(data[: len(data) // 2])
    elif is_cut:
        path.write_bytes(data[:-1])
    else:
        path.write_bytes(data[:7] + bytes((data[7] ^ 1,)) + data[8:])
    # What was cut off has no digest in its name.
    is_silent = path.suffix == ".log" and not is_cut
    return _named(victim, FindingKind.KEPT_BYTES_DAMAGED, needs_memory=is_silent)


def _leases_beyond_end(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = chance.randrange(len(folders))
    path = max((folders[victim] / "config").glob("leases-*.snapshot"))
    replay = LeaseReplay.of_files(path.read_bytes(), b"")
    for subscription in replay.subscriptions.values():
        for queue_id in subscription.queues:
            place = 1_000_000 + chance.randrange(1 << 30)
            subscription.queues[queue_id] = QueueProgress(subscription, queue_id, place)
    path.unlink()
    path.write_bytes(replay.to_snapshot())
    return _named(victim, FindingKind.OFFSET_BEYOND_END)


def _damage_leases(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = chance.randrange(len(folders))
    path = max((folders[victim] / "config").glob("leases-*.snapshot"))
    data = path.read_bytes()
    path.unlink()
    place = chance.randrange(len(data))
    is_emptied = chance.random() < 0.4
    path.write_bytes(b"" if is_emptied else data[:place] + bytes((data[place] ^ 0x10,)) + data[place + 1 :])
    return _named(victim, FindingKind.LEASES_MISSING, needs_memory=is_emptied and len(folders) == 1)


# Tables of any replica, its master's among them


_TABLE_FILES: Final = (MetadataFile.TOPICS, MetadataFile.SUBSCRIPTION_GROUPS, MetadataFile.CONSUMER_OFFSETS)


def _empty_table_file(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Of no length, or half of it, with its .bak or without."""
    victim = chance.randrange(len(folders))
    path = folders[victim] / "config" / chance.choice([*_TABLE_FILES, MetadataFile.DELAY_OFFSETS]).value
    text = path.read_text()
    if chance.random() < 0.5:
        (path.parent / f"{path.name}.bak").write_text(text)
    rewrite(path, chance.choice(("", text[: len(text) // 2])))
    return _named(victim, FindingKind.METADATA_UNREADABLE)


_ENTRIES: Final = {MetadataFile.TOPICS: "topicConfigTable", MetadataFile.SUBSCRIPTION_GROUPS: "subscriptionGroupTable"}


def _without_entries(path: Path, file: MetadataFile, chance: random.Random, *, older: bool) -> None:
    fields = read_java_json(path.read_text())
    entries = fields.raw(_ENTRIES[file])
    for name in chance.sample(sorted(entries), chance.randrange(1, len(entries))):
        del entries[name]
    version = fields.raw("dataVersion")
    if older:
        version |= {"counter": 1, "timestamp": 1_600_000_000_000}
    rewrite(path, write_java_json({"dataVersion": version, _ENTRIES[file]: entries}))


_OF_TABLES: Final = {
    MetadataFile.TOPICS: (FindingKind.TOPIC_MISSING, FindingKind.TABLE_OLDER),
    MetadataFile.SUBSCRIPTION_GROUPS: (FindingKind.GROUP_MISSING, FindingKind.TABLE_OLDER),
}


def _entries_gone(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A table of any replica without some of its entries: of the same version, or an older one."""
    victim = chance.randrange(len(folders))
    file = chance.choice(sorted(_ENTRIES, key=lambda own: own.value))
    _without_entries(folders[victim] / "config" / file.value, file, chance, older=chance.random() < 0.5)
    return _named(victim, *_OF_TABLES[file], needs_memory=len(folders) == 1)


def _entries_gone_everywhere(folders: Sequence[Path], chance: random.Random) -> Expected:
    file = chance.choice(sorted(_ENTRIES, key=lambda own: own.value))
    _without_entries(folders[0] / "config" / file.value, file, chance, older=chance.random() < 0.5)
    for folder in folders[1:]:
        rewrite(folder / "config" / file.value, (folders[0] / "config" / file.value).read_text())
    kinds = frozenset({*_OF_TABLES[file], FindingKind.TOPIC_DIFFERS})
    return Expected(kinds=kinds, everywhere=True, needs_memory=True)


def _older_offsets(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A master's offsets are those of an hour ago."""
    path = metadata_path(Victim(folders, 0), MetadataFile.CONSUMER_OFFSETS)
    fields = read_java_json(path.read_text())
    offsets = {name: fields.object("offsetTable").offsets(name) for name in fields.object("offsetTable")}
    older = {
        name: {queue: offset // chance.randrange(2, 9) for queue, offset in own.items()}
        for name, own in offsets.items()
    }
    version = fields.raw("dataVersion")
    version["timestamp"] = int(str(version["timestamp"])) - 3_600_000
    rewrite(path, write_java_json({"dataVersion": version, "offsetTable": older}))
    return _named(0, FindingKind.CONSUMER_OFFSET_STALE)


# Several replicas at one place, and logs of two masters


def _flip_both_sides(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Another bit of one body on each replica."""
    victims = [Victim(folders, broker_id) for broker_id in range(len(folders))]
    record = victims[0].choose(chance)
    start, size = record.start_offset + victims[0].body_start(record), victims[0].body_bytes(record)
    for victim, place in zip(victims, chance.sample(range(size), len(victims))):
        victim.flip_bit(start + place, chance.randrange(8))
    return Expected(
        kinds=frozenset({FindingKind.BODY_CRC}),
        message_ids=(record.message_id,),
        ranges=((record.start_offset, record.end_offset),),
        topic=record.topic,
        everywhere=True,
    )


def _truncate_everywhere(folders: Sequence[Path], chance: random.Random) -> Expected:
    """The last messages are gone from every log; ConsumeQueues still know them, or the members do."""
    victims = [Victim(folders, broker_id) for broker_id in range(len(folders))]
    end = victims[0].store.facts.end_offset
    file_start = end - end % victims[0].store.facts.segment_bytes
    inner = [own for own in victims[0].records[-30:] if own.start_offset > file_start]
    lost = chance.choice(inner)
    has_queues = chance.random() < 0.5
    for victim in victims:
        victim.write(lost.start_offset, bytes(end - lost.start_offset))
        if not has_queues:
            remove_paths(victim.folder, "consumequeue", "index")
    consequences = {FindingKind.CHECKPOINT_IMPOSSIBLE, FindingKind.QUEUE_ENTRY_EXTRA, FindingKind.OFFSET_BEYOND_END}
    consequences |= {FindingKind.QUEUE_ENTRY_MISSING, FindingKind.INDEX_ENTRY_MISSING, FindingKind.INDEX_ENTRY_WRONG}
    consequences.add(FindingKind.CHANGED_EVERYWHERE)
    return Expected(
        kinds=frozenset({FindingKind.TAIL_MISSING}),
        ranges=((lost.start_offset, end),),
        everywhere=True,
        consequences=frozenset(consequences),
        findings_max=3 if has_queues else 6,
        needs_memory=not has_queues and len(folders) == 1,
    )


def _fork(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A replica was master and went on by itself; the group went on otherwise, under a later master."""
    victim = any_replica(folders, chance)
    inner = victim.records[-40:-2]
    first = chance.choice(inner)
    epochs = [*LogHistory.from_text((victim.folder / EPOCH_FILE).read_text()).epochs]
    for broker_id, folder in enumerate(folders):
        own = epochs if broker_id == victim.broker_id else [*epochs, Epoch(7, first.start_offset)]
        rewrite(folder / EPOCH_FILE, LogHistory.of(own).to_text())
    for record in victim.records[victim.records.index(first) :]:
        size = victim.body_bytes(record)
        start = record.start_offset + victim.body_start(record)
        body = bytes(byte ^ 0x11 for byte in victim.read(start, size))
        victim.write(start, body)
        victim.write(record.start_offset + 8, (zlib.crc32(body) & CRC_MASK).to_bytes(4, "big"))
    return Expected(
        kinds=frozenset({FindingKind.TAIL_EXTRA}),
        broker_id=victim.broker_id,
        ranges=((first.start_offset, victim.store.facts.end_offset),),
    )


# Users and policies, marks of operators, files where none belong, and a log that breaks off


def _other_access(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A user or what it may do: gone, of another secret, allowed what was denied, or half of the file."""
    victim = chance.randrange(len(folders))
    config = folders[victim] / "config"
    users, acls = config / MetadataFile.USERS.value, config / MetadataFile.ACLS.value
    kinds = frozenset({FindingKind.ACCESS_DIFFERS, FindingKind.METADATA_UNREADABLE, FindingKind.TABLE_OLDER})
    match chance.randrange(5):
        case 0:
            rewrite(users, users.read_text().replace("c2VhbGVk", "c2VhbGVL", 1))
            is_changed = True
        case 1:
            rewrite(acls, acls.read_text().replace(f'"{Decision.DENY.value}"', f'"{Decision.ALLOW.value}"', 1))
            is_changed = True
        case 2:
            fields = read_java_json(users.read_text())
            held = fields.raw("userTable")
            del held[chance.choice(sorted(held))]
            rewrite(users, write_java_json({"dataVersion": fields.raw("dataVersion"), "userTable": held}))
            is_changed = False
        case 3:
            path = chance.choice((users, acls))
            rewrite(path, path.read_text()[: path.stat().st_size // 2])
            return Expected(kinds=kinds, broker_id=victim)
        case _:
            chance.choice((users, acls)).unlink()
            is_changed = False
    return Expected(kinds=kinds, broker_id=victim, undecidable=is_changed, needs_memory=len(folders) == 1)


def _lost_marks(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A slave does not know any more what operators removed."""
    victim = chance.randrange(1, len(folders))
    path = folders[victim] / "config" / MetadataFile.TOPICS.value
    fields = read_java_json(path.read_text())
    rewrite(path, write_java_json({name: fields.raw(name) for name in ("dataVersion", "topicConfigTable")}))
    return _named(victim, FindingKind.TOPIC_DIFFERS)


def _stray_file(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A CommitLog file between two others, far behind the end, too short, or of what is elsewhere."""
    victim = any_replica(folders, chance)
    paths = sorted((victim.folder / "commitlog").iterdir())
    length = victim.store.facts.segment_bytes
    last = int(paths[-1].name)
    start, content = chance.choice(
        (
            (int(paths[0].name) + chance.randrange(1, length), paths[0].read_bytes()),
            (last + chance.randrange(2, 9) * length, bytes(length)),
            (last + length, bytes(chance.randrange(1, length))),
            (last + length, paths[0].read_bytes()),
            (last, paths[0].read_bytes()),
        )
    )
    # Beside the last file, if it is that: its number without zeros.
    paths[0].with_name(str(start) if start == last else f"{start:020d}").write_bytes(content)
    return _named(victim.broker_id, FindingKind.SEGMENT_EXTRA)


def _index_twice(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A copy of an IndexFile under a later name."""
    victim = chance.randrange(len(folders))
    path = chance.choice(sorted((folders[victim] / "index").iterdir()))
    path.with_name(f"{int(path.name) + 1:017d}").write_bytes(path.read_bytes())
    return _named(victim, FindingKind.INDEX_ENTRY_WRONG)


def _broken_end(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A record near the end is zeros on the disk of a replica that was killed and has no queues."""
    victim = any_replica(folders, chance)
    end = victim.store.facts.end_offset
    file_start = end - end % victim.store.facts.segment_bytes
    lost = chance.choice([own for own in victim.records[-40:-2] if own.start_offset > file_start])
    victim.write(lost.start_offset, bytes(lost.end_offset - lost.start_offset))
    remove_paths(victim.folder, "consumequeue", "index")
    (victim.folder / "abort").touch()
    kinds = {FindingKind.TAIL_MISSING, FindingKind.ZEROED, FindingKind.RECORD_MISSING}
    # A killed slave may be behind, and who is alone has nobody to tell.
    is_told = len(folders) > 1 and not victim.broker_id
    return Expected(
        kinds=frozenset(kinds if is_told else {*kinds, FindingKind.QUEUE_ENTRY_MISSING}),
        broker_id=victim.broker_id,
        consequences=frozenset({FindingKind.QUEUE_ENTRY_MISSING, FindingKind.INDEX_ENTRY_MISSING}),
        findings_max=3,
        needs_memory=not is_told,
    )


def _queue_of_unknown_topic(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Nobody knows the topic any more, and one of its queues is damaged besides."""
    victim = any_replica(folders, chance)
    record, path, position = queue_entry_of(victim, chance)
    change_everywhere(folders, MetadataFile.TOPICS, lambda text: text.replace(f'"{record.topic}"', '"another"'))
    write_at(path, position, chance.randbytes(_ENTRY_BYTES))
    kinds = {FindingKind.QUEUE_ENTRY_WRONG, FindingKind.QUEUE_ENTRY_MISSING, FindingKind.QUEUE_ENTRY_EXTRA}
    kinds |= {FindingKind.TOPIC_MISSING, FindingKind.TABLE_OLDER}
    return Expected(kinds=frozenset(kinds), everywhere=True)


SIDE_DAMAGES: Final[dict[str, Damage]] = {
    damage.name: damage
    for damage in (
        Damage("damaged-disk-id", "replica.json is gone, empty, cut or something else", _damage_disk_id),
        Damage("copied-disk-id", "a replica has another one's replica.json", _copy_disk_id),
        Damage("older-disk-id", "replica.json counts fewer starts", _older_disk_id),
        Damage("damaged-epochs", "epochFileCheckpoint is gone, empty, cut or something else", _damage_epochs),
        Damage("older-epochs", "epochFileCheckpoint lacks the last masters", _older_epochs),
        Damage("moved-epoch", "an epoch begins elsewhere", _moved_epoch),
        Damage("fewer-homes", "message groups have fewer homes", _fewer_homes),
        Damage("damaged-clock", "the clock of leases or retention cannot be read", _damage_clock),
        Damage("damaged-timers", "the saved state of timers is damaged, or of another log", _damage_timers),
        Damage("damaged-kept-bytes", "what was kept aside is something else", _damage_kept),
        Damage("damaged-leases", "a snapshot of leases is empty, or has another bit", _damage_leases),
        Damage("leases-beyond-end", "a group has received more than there is", _leases_beyond_end),
        Damage("emptied-table", "a metadata file of any replica is empty, or half of it", _empty_table_file),
        Damage("entries-gone", "a table of any replica has fewer entries", _entries_gone),
        Damage("entries-gone-everywhere", "a table has fewer entries on all replicas", _entries_gone_everywhere),
        Damage("older-offsets", "a master's consumer offsets are of an hour ago", _older_offsets),
        Damage("flipped-both-sides", "another bit of one body on each replica", _flip_both_sides),
        Damage("truncated-everywhere", "the last messages are gone from every replica", _truncate_everywhere),
        Damage("fork", "a replica went on by itself, and the group under a later master", _fork),
        Damage("other-access", "a user or policy of any replica is another one, or gone", _other_access),
        Damage("lost-marks", "a slave does not know what operators removed", _lost_marks),
        Damage("stray-file", "a CommitLog file lies where none belongs", _stray_file),
        Damage("index-twice", "a copy of an IndexFile lies beside it", _index_twice),
        Damage("broken-end", "a record near the end is zeros, and the queues are gone", _broken_end),
        Damage("queue-of-unknown-topic", "a queue of a topic that nobody knows is damaged", _queue_of_unknown_topic),
    )
}
"""By name: of what lies beside the log, of any replica's tables, and of several replicas at once. They need all files
that `audit_stores.make_group` makes."""
