"""The remedy for a wrong ConsumeQueue or index, as `KINDS` words it."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.audit_stores import make_master, open_store
from support.stores import ManualClock, keys_in, messages_by_key, queue_contents
from tandemmq.core.message.properties import decode_properties, index_terms
from tandemmq.core.storage.message_store import MessageStore


def _findable(store: MessageStore) -> int:
    """Keys, of every 37th, under which their message is found."""
    found = 0
    for topic, key, offset in keys_in(store)[::37]:
        records = messages_by_key(store, topic, key, begin_ms=0, end_ms=1 << 60, max_count=1 << 20)
        assert all(key in index_terms(decode_properties(record.properties))[1] for record in records)
        found += any(record.physical_offset == offset for record in records)
    return found


def test_without_derived_files_and_checkpoint_a_store_marked_unclean_builds_them_again(tmp_path: Path) -> None:
    make_master(tmp_path, messages=900)
    store = open_store(tmp_path, ManualClock())
    queues, findable = queue_contents(store), _findable(store)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "abort").write_bytes(b"")

    store = open_store(tmp_path, ManualClock())

    assert queue_contents(store) == queues
    assert _findable(store) == findable > 0
    store.close()
