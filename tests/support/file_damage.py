"""What happens to whole files of a store, whatever they hold: cut in their unused room, emptied, exchanged, older, a
folder or other content in their place. The folders are those of `audit_stores.make_group`, ended in order.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from support.audit_stores import make_group, make_master
from support.replica_folders import open_replica
from support.store_damage import Damage, Expected, write_at
from tandemmq.core.audit.findings import FindingKind
from tandemmq.core.metadata.metadata_store import read_java_json, write_java_json
from tandemmq.core.replication.log_history import EPOCH_FILE, REPLICA_FILE, LogHistory, ReplicaRecord
from tandemmq.core.storage.consume_queue_table import QUEUE_ENDS_FILE

_ENTRY_BYTES: Final = 20
_INDEX_SLOTS_END: Final = 40 + 500 * 4
_TABLES: Final = ("topics.json", "subscriptionGroup.json", "users.json", "acls.json")
_LARGEST_FIELD_BYTES: Final = 40


def _any(folders: Sequence[Path], chance: random.Random) -> tuple[int, Path]:
    broker_id = chance.randrange(len(folders))
    return broker_id, folders[broker_id]


def _cut(path: Path, length: int) -> None:
    """A copy is cut: the file may have other hard links."""
    data = path.read_bytes()[:length]
    path.unlink()
    path.write_bytes(data)


def _used_bytes(path: Path) -> int:
    return len(path.read_bytes().rstrip(b"\0"))


def _short_file(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Cut where nothing is written: no record and no entry is lost, and no broker starts with it."""
    broker_id, folder = _any(folders, chance)
    place, kind = chance.choice(
        (
            ("commitlog", FindingKind.SEGMENT_SIZE),
            ("consumequeue", FindingKind.QUEUE_ENTRY_WRONG),
            ("index", FindingKind.INDEX_ENTRY_WRONG),
        )
    )
    files = sorted(path for path in (folder / place).rglob("*") if path.is_file())
    with_room = [path for path in files if _used_bytes(path) + _LARGEST_FIELD_BYTES < path.stat().st_size]
    path = chance.choice(with_room)
    _cut(path, chance.randrange(_used_bytes(path) + _LARGEST_FIELD_BYTES, path.stat().st_size))
    return Expected(frozenset({kind}), broker_id, findings_max=1)


def _emptied_first_file(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Of the log; it looks as if retention had removed it, and no broker starts."""
    broker_id, folder = _any(folders, chance)
    _cut(min((folder / "commitlog").iterdir()), 0)
    kinds = frozenset({FindingKind.SEGMENT_SIZE, FindingKind.SEGMENT_MISSING})
    return Expected(kinds, broker_id, findings_max=2)


def _wild_chain(folders: Sequence[Path], chance: random.Random) -> Expected:
    """An index entry leads on to one that is not before it, or of another slot."""
    broker_id, folder = _any(folders, chance)
    path = min((folder / "index").iterdir())
    data = path.read_bytes()
    count = int.from_bytes(data[36:40], "big")

    def entry(number: int) -> bytes:
        place = _INDEX_SLOTS_END + number * _ENTRY_BYTES
        return data[place : place + _ENTRY_BYTES]

    number = chance.randrange(100, count)
    slot = int.from_bytes(entry(number)[:4], "big") % 500
    others = [other for other in range(1, number) if int.from_bytes(entry(other)[:4], "big") % 500 != slot]
    previous = chance.choice((number, chance.randrange(number, 1 << 30), chance.choice(others)))
    write_at(path, _INDEX_SLOTS_END + number * _ENTRY_BYTES + 16, previous.to_bytes(4, "big"))
    return Expected(frozenset({FindingKind.INDEX_ENTRY_WRONG}), broker_id, findings_max=1)


def _first_index_gone_alike(folders: Sequence[Path], _: random.Random) -> Expected:
    """The oldest IndexFile of all replicas: the next one begins in the middle of a record's keys."""
    name = min(path.name for path in (folders[0] / "index").iterdir())
    for folder in folders:
        (folder / "index" / name).unlink()
    return Expected(frozenset({FindingKind.INDEX_ENTRY_MISSING}), ranges=((0, 1),), everywhere=True, findings_max=1)


def _no_index_file(folders: Sequence[Path], chance: random.Random) -> Expected:
    broker_id, folder = _any(folders, chance)
    size = min((folder / "index").iterdir()).stat().st_size
    content = chance.choice((b"", bytes(4000), chance.randbytes(4000), chance.randbytes(size)))
    (folder / "index" / f"2023111422{chance.randrange(10**7):07d}").write_bytes(content)
    return Expected(frozenset({FindingKind.INDEX_ENTRY_WRONG}), broker_id, findings_max=2)


def _other_table(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A table has the content of another one: it can be read, and nothing is in it."""
    broker_id, folder = _any(folders, chance)
    name, other = chance.sample(_TABLES, 2)
    (folder / "config" / name).write_text((folder / "config" / other).read_text())
    return Expected(frozenset({FindingKind.METADATA_UNREADABLE}), broker_id, findings_max=1)


def _other_table_everywhere(folders: Sequence[Path], chance: random.Random) -> Expected:
    name, other = chance.sample(_TABLES, 2)
    for folder in folders:
        (folder / "config" / name).write_text((folder / "config" / other).read_text())
    kinds = frozenset({FindingKind.METADATA_UNREADABLE})
    return Expected(kinds, everywhere=True, findings_max=1)


def _table_set_back(folders: Sequence[Path], chance: random.Random) -> Expected:
    """The same entries in an older version: only who saw the newer one knows."""
    broker_id, folder = _any(folders, chance)
    for name in chance.sample(_TABLES, chance.randrange(1, 4)):
        path = folder / "config" / name
        table = read_java_json(path.read_text())
        fields = {key: table.raw(key) for key in table if key != "dataVersion"}
        version = table.raw("dataVersion") | {"timestamp": chance.randrange(1_600_000_000_000)}
        path.write_text(write_java_json({"dataVersion": version, **fields}))
    kinds = frozenset({FindingKind.TABLE_OLDER})
    return Expected(kinds, broker_id, findings_max=1 if len(folders) > 1 else 3, needs_memory=True)


def _damaged_ends(folders: Sequence[Path], chance: random.Random) -> Expected:
    """What the last stop wrote down of where queues end."""
    broker_id, folder = _any(folders, chance)
    path = folder / QUEUE_ENDS_FILE
    data = path.read_bytes()
    place = chance.randrange(len(data))
    match chance.randrange(4 if len(folders) > 1 else 3):
        case 0:
            path.write_bytes(data[:place])
        case 1:
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :])
        case 2:
            path.write_bytes(bytes(len(data)))
        case 3:
            path.unlink()
    return Expected(frozenset({FindingKind.CHECKPOINT_IMPOSSIBLE}), broker_id, findings_max=1)


def _zeroed_checkpoint(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A page of zeros, or something behind its fields."""
    broker_id, folder = _any(folders, chance)
    path = folder / "checkpoint"
    if chance.random() < 0.5:
        write_at(path, 0, bytes(4096))
    else:
        write_at(path, chance.randrange(64, 4096), b"\x08")
    return Expected(frozenset({FindingKind.CHECKPOINT_IMPOSSIBLE}), broker_id, findings_max=1)


def _no_file(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A folder, a link to nothing or a pipe in the place of any file: a reader of the pipe would wait for ever."""
    broker_id, folder = _any(folders, chance)
    kinds, pattern = chance.choice(
        (
            ({FindingKind.EPOCHS_WRONG}, EPOCH_FILE),
            ({FindingKind.DISK_ID_WRONG}, REPLICA_FILE),
            ({FindingKind.CHECKPOINT_IMPOSSIBLE}, QUEUE_ENDS_FILE),
            ({FindingKind.CHECKPOINT_IMPOSSIBLE}, "checkpoint"),
            ({FindingKind.METADATA_UNREADABLE}, "config/*[!t]"),
            ({FindingKind.KEPT_BYTES_DAMAGED}, "kept-*/*"),
            ({FindingKind.SEGMENT_MISSING, FindingKind.SEGMENT_EXTRA, FindingKind.TAIL_MISSING}, "commitlog/*"),
            ({FindingKind.QUEUE_ENTRY_MISSING}, "consumequeue/orders/*/*"),
            ({FindingKind.INDEX_ENTRY_MISSING}, "index/*"),
        )
    )
    path = chance.choice(sorted(own for own in folder.glob(pattern) if any(own.read_bytes())))
    path.unlink()
    match chance.randrange(3):
        case 0:
            path.mkdir()
        case 1:
            path.symlink_to("nowhere")
        case 2:
            os.mkfifo(path)
    return Expected(frozenset(kinds), broker_id, findings_max=2)


def _epochs_gone_everywhere(folders: Sequence[Path], chance: random.Random) -> Expected:
    content = chance.choice((b"", b"\xff" * 35, b"epochs"))
    for folder in folders:
        (folder / EPOCH_FILE).write_bytes(content)
    return Expected(frozenset({FindingKind.EPOCHS_WRONG}), everywhere=True, findings_max=1)


def _older_queues(folders: Sequence[Path], chance: random.Random) -> Expected:
    """All ConsumeQueues as they were some messages ago."""
    broker_id, folder = _any(folders, chance)
    facts = open_replica(folder).facts
    last = chance.randrange(facts.end_offset // 4, facts.end_offset * 3 // 4)
    for path in sorted((folder / "consumequeue").rglob("0*")):
        if path.is_file():
            data = bytearray(path.read_bytes())
            for place in range(0, len(data), _ENTRY_BYTES):
                if int.from_bytes(data[place : place + 8], "big") >= last:
                    data[place : place + _ENTRY_BYTES] = bytes(_ENTRY_BYTES)
            path.unlink()
            path.write_bytes(data)
    return Expected(frozenset({FindingKind.QUEUE_ENTRY_MISSING}), broker_id, findings_max=1)


def _exchanged_queues(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Two topics have each other's ConsumeQueues, or two queues."""
    broker_id, folder = _any(folders, chance)
    paths = (folder / "consumequeue").glob(chance.choice(("*", "*/*")))
    one, other = chance.sample(sorted(path for path in paths if any(path.rglob("0*"))), 2)
    one.rename(folder / "aside")
    other.rename(one)
    (folder / "aside").rename(other)
    kinds = {FindingKind.QUEUE_ENTRY_WRONG, FindingKind.QUEUE_ENTRY_MISSING, FindingKind.QUEUE_ENTRY_EXTRA}
    return Expected(frozenset(kinds), broker_id, findings_max=2)


def _other_log(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A replica has the store of another broker group, at its place in this one."""
    broker_id, folder = _any(folders, chance)
    other = folder.with_name("other")
    make_master(other, messages=800, seed=1 + chance.randrange(1 << 16))
    for place in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(folder / place)
        (other / place).rename(folder / place)
    shutil.rmtree(other)
    kinds = {FindingKind.RECORD_EXTRA, FindingKind.RECORD_MISSING, FindingKind.FIELD_DIFFERS, FindingKind.TAIL_MISSING}
    kinds |= {FindingKind.TAIL_EXTRA, FindingKind.CHECKPOINT_IMPOSSIBLE, FindingKind.CHANGED_EVERYWHERE}
    return Expected(frozenset(kinds), broker_id, undecidable=True, findings_max=8)


def _disk_of_another_group(folders: Sequence[Path], chance: random.Random) -> Expected:
    """All of a replica's folder is that of another broker group, and says so; perhaps only in its table of topics."""
    broker_id, folder = _any(folders, chance)
    others = make_group(folder.with_name("others"), replicas=len(folders), messages=chance.choice((300, 900)), seed=77)
    shutil.rmtree(folder)
    others[broker_id].rename(folder)
    record = ReplicaRecord.from_json((folder / REPLICA_FILE).read_text())
    (folder / REPLICA_FILE).write_text(replace(record, broker_name="broker-z", disk_id="e" * 32).to_json())
    if chance.random() < 0.5:
        (folder / REPLICA_FILE).unlink()
        (folder / EPOCH_FILE).unlink()
    topics = folder / "config" / "topics.json"
    topics.write_text(topics.read_text().replace("BROKER_MEMBER_broker-a", "BROKER_MEMBER_broker-z"))
    shutil.rmtree(folder.with_name("others"))
    return Expected(frozenset({FindingKind.SEGMENT_MISSING}), broker_id, findings_max=1)


def _disk_set_back(folders: Sequence[Path], chance: random.Random) -> Expected:
    """All of a replica's folder is as it was at an earlier stop, or of an earlier run as well."""
    broker_id, folder = _any(folders, chance)
    history = LogHistory.from_text((folder / EPOCH_FILE).read_text())
    olds = make_group(folder.with_name("olds"), replicas=len(folders), messages=chance.randrange(300, 880))
    shutil.rmtree(folder)
    olds[broker_id].rename(folder)
    shutil.rmtree(folder.with_name("olds"))
    # Each store of another length has its epochs elsewhere; an older copy has those of its group.
    (folder / EPOCH_FILE).write_text(history.up_to(open_replica(folder).facts.end_offset).to_text())
    record = ReplicaRecord.from_json((folder / REPLICA_FILE).read_text())
    (folder / REPLICA_FILE).write_text(replace(record, run=record.run - chance.randrange(3)).to_json())
    kinds = frozenset({FindingKind.TAIL_MISSING})
    return Expected(kinds, broker_id, findings_max=1, needs_memory=len(folders) == 1)


def _of_another_store(folders: Sequence[Path], chance: random.Random) -> Expected:
    """ConsumeQueues, the index or a file of it are those of another store, which is longer: on some replicas or all."""
    broker_ids = sorted(chance.sample(range(len(folders)), chance.randrange(1, len(folders) + 1)))
    other = folders[0].with_name("other")
    make_master(other, messages=chance.choice((900, 1000)), seed=1 + chance.randrange(1 << 16))
    place = chance.choice(("consumequeue", "index", "index file"))
    for broker_id in broker_ids:
        folder = folders[broker_id]
        if place == "index file":
            shutil.copyfile(min((other / "index").iterdir()), min((folder / "index").iterdir()))
        else:
            shutil.rmtree(folder / place)
            shutil.copytree(other / place, folder / place)
    shutil.rmtree(other)
    of_queues = {FindingKind.QUEUE_ENTRY_WRONG, FindingKind.QUEUE_ENTRY_MISSING, FindingKind.QUEUE_ENTRY_EXTRA}
    of_index = {FindingKind.INDEX_ENTRY_WRONG, FindingKind.INDEX_ENTRY_MISSING}
    return Expected(
        frozenset(of_queues if place == "consumequeue" else of_index),
        broker_ids[0] if len(broker_ids) < len(folders) else None,
        also=frozenset(broker_ids),
        everywhere=len(broker_ids) == len(folders),
        findings_max=2 * len(broker_ids),
    )


def _exchanged_alike(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Two topics, or two queues, have each other's ConsumeQueues, on all replicas."""
    paths = (folders[0] / "consumequeue").glob(chance.choice(("*", "*/*")))
    with_files = sorted(path for path in paths if any(path.rglob("0*")))
    one, other = (path.relative_to(folders[0]) for path in chance.sample(with_files, 2))
    for folder in folders:
        (folder / one).rename(folder / "aside")
        (folder / other).rename(folder / one)
        (folder / "aside").rename(folder / other)
    kinds = {FindingKind.QUEUE_ENTRY_WRONG, FindingKind.QUEUE_ENTRY_MISSING, FindingKind.QUEUE_ENTRY_EXTRA}
    return Expected(frozenset(kinds), everywhere=True, findings_max=2)


def _table_of_another_group(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Of any replica, and newer than its own: it is no later version of that one."""
    broker_id, folder = _any(folders, chance)
    version = {"counter": 9, "stateVersion": 0, "timestamp": chance.choice((1, 1_900_000_000_000))}
    if len(folders) == 1 or chance.random() < 0.5:
        topics = ("rmq_sys_SYNC_BROKER_MEMBER_broker-z", "broker-z", "SELF_TEST_TOPIC", "others")
        entries = {name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in topics}
        document: dict[str, object] = {"dataVersion": version, "topicConfigTable": entries}
        (folder / "config" / "topics.json").write_text(json.dumps(document))
        kinds = {FindingKind.TOPIC_MISSING, FindingKind.TOPIC_DIFFERS, FindingKind.TABLE_OLDER}
        return Expected(frozenset({*kinds, FindingKind.METADATA_UNREADABLE}), broker_id)
    document = {"dataVersion": version, "subscriptionGroupTable": {"others": {"groupName": "others"}}}
    (folder / "config" / "subscriptionGroup.json").write_text(json.dumps(document))
    kinds = {FindingKind.GROUP_MISSING, FindingKind.GROUP_DIFFERS, FindingKind.TABLE_OLDER}
    return Expected(frozenset(kinds), broker_id, undecidable=True)


def _config_gone(folders: Sequence[Path], chance: random.Random) -> Expected:
    broker_id, folder = _any(folders, chance)
    shutil.rmtree(folder / "config")
    if chance.random() < 0.5:
        (folder / "config").mkdir()
    kinds = frozenset({FindingKind.METADATA_UNREADABLE})
    return Expected(kinds, broker_id, findings_max=1)


def _null_entry(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A table can be read, and one of its entries has nothing in it."""
    broker_id, folder = _any(folders, chance)
    path = folder / "config" / chance.choice(_TABLES)
    document = json.loads(path.read_text())
    table = next(value for key, value in document.items() if key.endswith("Table") and value)
    table[chance.choice(sorted(table))] = chance.choice((None, 7, "entry", []))
    path.write_text(json.dumps(document))
    return Expected(frozenset({FindingKind.METADATA_UNREADABLE}), broker_id, findings_max=1)


def _no_json(folders: Sequence[Path], chance: random.Random) -> Expected:
    """What a JSON reader stumbles over in its own way: too deep, too long a number, none at all, no UTF-8."""
    broker_id, folder = _any(folders, chance)
    name = chance.choice((*_TABLES, "messageGroupHomes.json", "leaseClock.json", "retentionClock.json", REPLICA_FILE))
    path = folder / name if name == REPLICA_FILE else folder / "config" / name
    data = path.read_bytes().rstrip()
    inner = chance.choice((b"[" * 100_000, b"9" * 5_000, b'"\xff"', b"\xff"))
    path.write_bytes(data[:-1] + b',"more":' + inner + b"}")
    kind = FindingKind.DISK_ID_WRONG if name == REPLICA_FILE else FindingKind.METADATA_UNREADABLE
    return Expected(frozenset({kind}), broker_id, findings_max=1)


def _number_without_end(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Java has no number for it, and no column of a report."""
    broker_id, folder = _any(folders, chance)
    number = chance.choice((b"1e999", b"Infinity", b"9" * 20, b"-" + b"9" * 20))
    name = chance.choice(("consumerOffset.json", "delayOffset.json", REPLICA_FILE, EPOCH_FILE))
    if name == EPOCH_FILE:
        (folder / name).write_text("1\n0\n1-" + "9" * 20 + "\n")
        return Expected(frozenset({FindingKind.EPOCHS_WRONG}), broker_id, findings_max=1)
    path = folder / name if name == REPLICA_FILE else folder / "config" / name
    pattern = rb'("run": *)\d+' if name == REPLICA_FILE else rb'(\d"? *: *)\d+'
    changed = re.sub(pattern, rb"\g<1>" + number, path.read_bytes(), count=1)
    assert changed != path.read_bytes(), name
    path.write_bytes(changed)
    kind = FindingKind.DISK_ID_WRONG if name == REPLICA_FILE else FindingKind.METADATA_UNREADABLE
    return Expected(frozenset({kind}), broker_id, findings_max=1)


def _wild_offsets(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A consumer group's offset that no queue has, or that this one has not reached: further, and no better."""
    broker_ids = sorted(chance.sample(range(len(folders)), max(1, len(folders) - 1)))
    offset = chance.choice((10_000, chance.randrange(10_000, 1 << 40), 1 << 40, (1 << 63) - 1))
    for broker_id in broker_ids:
        path = folders[broker_id] / "config" / "consumerOffset.json"
        path.write_bytes(re.sub(rb"(\d\"? *: *)\d+", rb"\g<1>%d" % offset, path.read_bytes(), count=1))
    kinds = frozenset({FindingKind.OFFSET_BEYOND_END, FindingKind.CONSUMER_OFFSET_STALE})
    return Expected(kinds, broker_ids[0], also=frozenset(broker_ids[1:]), findings_max=len(broker_ids))


def _epoch_beyond_end(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A master began to write where no log ever was."""
    broker_id, folder = _any(folders, chance)
    path = folder / EPOCH_FILE
    history = LogHistory.from_text(path.read_text())
    end = open_replica(folder).facts.end_offset
    path.write_text(history.begun(7, end + chance.choice((1, 1000, 1 << 40))).to_text())
    for other in folders:
        record = ReplicaRecord.from_json((other / REPLICA_FILE).read_text())
        known = tuple(own for own in record.replicas if own.broker_id < len(folders))
        (other / REPLICA_FILE).write_text(replace(record, replicas=known).to_json())
    return Expected(frozenset({FindingKind.EPOCHS_WRONG}), broker_id, findings_max=1)


def _odd_queue_name(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Python reads a number in it, and it is no queue's."""
    broker_id, folder = _any(folders, chance)
    name = chance.choice(("01", "\N{ARABIC-INDIC DIGIT ONE}", "9" * 20, "-1", "1 "))
    path = folder / "consumequeue" / "orders" / name
    path.mkdir()
    if chance.random() < 0.5:
        source = folder / "consumequeue" / "orders" / "1" / f"{0:020d}"
        (path / source.name).write_bytes(source.read_bytes())
    return Expected(frozenset({FindingKind.QUEUE_ENTRY_EXTRA}), broker_id, findings_max=1)


def _unspellable_name(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A folder whose name is no UTF-8."""
    broker_id, folder = _any(folders, chance)
    os.mkdir(os.fsencode(folder / "consumequeue" / chance.choice(("", "orders"))) + b"/\xc3")
    return Expected(frozenset({FindingKind.QUEUE_ENTRY_EXTRA}), broker_id, findings_max=1)


def _other_homes(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Each list lacks a name that the other has."""
    broker_id, folder = _any(folders, chance)
    path = folder / "config" / "messageGroupHomes.json"
    homes = json.loads(path.read_text())
    homes["orders"][chance.randrange(3)] = f"broker-{chance.choice('xyz')}"
    path.write_text(json.dumps(homes))
    kinds = frozenset({FindingKind.MESSAGE_GROUP_HOMES_DIFFER})
    return Expected(kinds, broker_id, undecidable=True, findings_max=1)


def _no_values(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Small JSON files that can be read, and say what no broker writes."""
    broker_id, folder = _any(folders, chance)
    name = chance.choice(("messageGroupHomes.json", "leaseClock.json", "retentionClock.json"))
    path = folder / "config" / name
    values = json.loads(path.read_text())
    key = chance.choice(sorted(values))
    if name != "messageGroupHomes.json" and chance.random() < 0.5:
        del values[key]
    else:
        values[key] = chance.choice((None, [None], [], 1.5))
    path.write_text(json.dumps(values))
    return Expected(frozenset({FindingKind.METADATA_UNREADABLE}), broker_id, findings_max=1)


def _garbled_kept_tail(folders: Sequence[Path], chance: random.Random) -> Expected:
    broker_id, folder = _any(folders, chance)
    path = next((folder / "kept-tails").glob("*.log"))
    place = chance.randrange(path.stat().st_size - 64)
    write_at(path, place, bytes(byte ^ 0x11 for byte in path.read_bytes()[place : place + 64]))
    return Expected(frozenset({FindingKind.KEPT_BYTES_DAMAGED}), broker_id, findings_max=1)


def _emptied_kept_tail(folders: Sequence[Path], chance: random.Random) -> Expected:
    broker_id, folder = _any(folders, chance)
    path = next((folder / "kept-tails").glob("*.log"))
    _cut(path, chance.choice((0, chance.randrange(path.stat().st_size))))
    return Expected(frozenset({FindingKind.KEPT_BYTES_DAMAGED}), broker_id, findings_max=1)


def _emptied_queues(folders: Sequence[Path], chance: random.Random) -> Expected:
    """All files of ConsumeQueues, those of a topic or one of them, are there and hold nothing."""
    broker_id, folder = _any(folders, chance)
    pattern = chance.choice(("*/*/0*", "orders/*/0*", "logs/1/0*"))
    for path in sorted((folder / "consumequeue").glob(pattern)):
        _cut(path, 0)
    return Expected(frozenset({FindingKind.QUEUE_ENTRY_MISSING}), broker_id, findings_max=1)


def _renamed_files(folders: Sequence[Path], chance: random.Random) -> Expected:
    """All CommitLog files have names that are as much too high."""
    broker_id, folder = _any(folders, chance)
    files = sorted((folder / "commitlog").iterdir(), reverse=True)
    moved_bytes = chance.choice((1, files[0].stat().st_size, 3 * files[0].stat().st_size))
    for path in files:
        path.rename(path.with_name(f"{int(path.name) + moved_bytes:020d}"))
    return Expected(frozenset({FindingKind.SEGMENT_EXTRA}), broker_id, findings_max=1)


def _changed_name(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A letter of a topic's name, of a group's or a user's: where an entry begins, where it says it again, or both."""
    broker_id, folder = _any(folders, chance)
    kinds = {FindingKind.METADATA_UNREADABLE}
    file, name, kind = chance.choice(
        (
            ("topics.json", "orders", FindingKind.TOPIC_MISSING),
            ("topics.json", "logs", FindingKind.TOPIC_MISSING),
            ("subscriptionGroup.json", "billing", FindingKind.GROUP_MISSING),
            ("users.json", "shop", FindingKind.ACCESS_DIFFERS),
        )
    )
    path = folder / "config" / file
    # Of a single replica nothing else names groups and users.
    is_one = chance.random() < 0.5 or (len(folders) == 1 and file != "topics.json")
    text = path.read_text().replace(f'"{name}"', f'"{name[:-1]}~"', 1 if is_one else -1)
    path.write_text(text)
    kinds = kinds if is_one else {kind}
    return Expected(frozenset(kinds), broker_id, undecidable=not is_one, findings_max=1)


def _earlier_day(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Several tables of a slave are those of the day before: they lack what was made since."""
    broker_id = chance.randrange(1, len(folders))
    for name in ("topics.json", "subscriptionGroup.json"):
        path = folders[broker_id] / "config" / name
        document = json.loads(path.read_text())
        document["dataVersion"]["timestamp"] -= 86_400_000
        table = next(value for key, value in document.items() if key.endswith("Table") and value)
        for entry in chance.sample(sorted(set(table) & {"orders", "logs", "billing"}), 1):
            del table[entry]
        path.write_text(json.dumps(document))
    return Expected(frozenset({FindingKind.TOPIC_MISSING, FindingKind.GROUP_MISSING}), broker_id, findings_max=1)


def _same_topics_of_another_group(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A table of topics is that of another broker group of the cluster, which has the same ones."""
    broker_id, folder = _any(folders, chance)
    path = folder / "config" / "topics.json"
    path.write_text(path.read_text().replace("BROKER_MEMBER_broker-a", "BROKER_MEMBER_broker-z"))
    return Expected(frozenset({FindingKind.TOPIC_DIFFERS}), broker_id, findings_max=1)


def _renamed_queues(folders: Sequence[Path], chance: random.Random) -> Expected:
    """The folder of a topic or of a queue has another name, as of a file system without capitals."""
    broker_id, folder = _any(folders, chance)
    old, name = chance.choice((("orders", "ORDERS"), ("orders/1", "9"), ("logs/0", "7"), ("payments", "payment")))
    (folder / "consumequeue" / old).rename((folder / "consumequeue" / old).with_name(name))
    kinds = frozenset({FindingKind.QUEUE_ENTRY_MISSING})
    return Expected(kinds, broker_id, topic=old.partition("/")[0], findings_max=1)


def _long_name(place: str, *kinds: FindingKind) -> Callable[[Sequence[Path], random.Random], Expected]:
    """The number that a file is called by has a digit more."""

    def apply(folders: Sequence[Path], chance: random.Random) -> Expected:
        broker_id, folder = _any(folders, chance)
        path = chance.choice([own for own in sorted((folder / place).iterdir()) if any(own.read_bytes())])
        path.rename(path.with_name(f"0{path.name}"))
        return Expected(frozenset(kinds), broker_id, findings_max=1)

    return apply


def _log_file_aside(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A CommitLog file lies in a folder below its own, or has something behind its name: the first one of a master
    looks as if it had expired."""
    broker_id, folder = _any(folders, chance)
    path = chance.choice(sorted((folder / "commitlog").iterdir()))
    if chance.random() < 0.5:
        (path.parent / "old").mkdir()
        path.rename(path.parent / "old" / path.name)
    else:
        path.rename(path.with_name(f"{path.name}.bak"))
    kinds = frozenset({FindingKind.SEGMENT_MISSING, FindingKind.SEGMENT_EXTRA, FindingKind.TAIL_MISSING})
    return Expected(kinds, broker_id, findings_max=1)


def _disk_of_another_member(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A replica's bytes are right, and its disk says that it is that of another broker of the group."""
    broker_id, folder = _any(folders, chance)
    record = ReplicaRecord.from_json((folder / REPLICA_FILE).read_text())
    (folder / REPLICA_FILE).write_text(replace(record, broker_id=chance.choice((7, 8))).to_json())
    return Expected(frozenset({FindingKind.DISK_ID_WRONG}), broker_id, findings_max=1)


_APPLIED: Final[dict[str, Callable[[Sequence[Path], random.Random], Expected]]] = {
    "short-file": _short_file,
    "emptied-first-file": _emptied_first_file,
    "wild-chain": _wild_chain,
    "first-index-gone-alike": _first_index_gone_alike,
    "no-index-file": _no_index_file,
    "other-table": _other_table,
    "other-table-everywhere": _other_table_everywhere,
    "table-set-back": _table_set_back,
    "damaged-ends": _damaged_ends,
    "zeroed-checkpoint": _zeroed_checkpoint,
    "no-file": _no_file,
    "epochs-gone-everywhere": _epochs_gone_everywhere,
    "older-queues": _older_queues,
    "exchanged-queues": _exchanged_queues,
    "other-log": _other_log,
    "disk-of-another-group": _disk_of_another_group,
    "disk-set-back": _disk_set_back,
    "of-another-store": _of_another_store,
    "exchanged-alike": _exchanged_alike,
    "table-of-another-group": _table_of_another_group,
    "config-gone": _config_gone,
    "null-entry": _null_entry,
    "no-json": _no_json,
    "number-without-end": _number_without_end,
    "wild-offsets": _wild_offsets,
    "epoch-beyond-end": _epoch_beyond_end,
    "odd-queue-name": _odd_queue_name,
    "unspellable-name": _unspellable_name,
    "other-homes": _other_homes,
    "no-values": _no_values,
    "garbled-kept-tail": _garbled_kept_tail,
    "emptied-kept-tail": _emptied_kept_tail,
    "emptied-queues": _emptied_queues,
    "renamed-files": _renamed_files,
    "changed-name": _changed_name,
    "earlier-day": _earlier_day,
    "same-topics-of-another-group": _same_topics_of_another_group,
    "renamed-queues": _renamed_queues,
    "long-name": _long_name(
        "commitlog", FindingKind.SEGMENT_MISSING, FindingKind.SEGMENT_EXTRA, FindingKind.TAIL_MISSING
    ),
    "long-queue-name": _long_name(
        "consumequeue/orders/1", FindingKind.QUEUE_ENTRY_MISSING, FindingKind.QUEUE_ENTRY_WRONG
    ),
    "log-file-aside": _log_file_aside,
    "disk-of-another-member": _disk_of_another_member,
}
FILE_DAMAGES: Final = {name: Damage(name, name.replace("-", " "), apply) for name, apply in _APPLIED.items()}
"""By name."""
