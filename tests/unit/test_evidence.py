"""What the demo and the tests read from a broker's files."""

from __future__ import annotations

from pathlib import Path

from demo.evidence import compare_logs, logged_message_ids
from support.messages import outgoing_message
from support.stores import flush_all, new_store
from tandemmq.broker.posix_disk import PosixDisk


def test_file_that_is_being_made_is_no_part_of_the_log(tmp_path: Path) -> None:
    store = new_store(PosixDisk(tmp_path))
    store.load()
    store.put(outgoing_message(keys=("id-1",)))
    flush_all(store)
    end_offset = store.end_offset
    (tmp_path / "commitlog" / f"{1 << 40:020d}.unfinished").write_bytes(bytes(100))
    assert logged_message_ids(tmp_path) == {"id-1"}
    assert compare_logs(tmp_path, tmp_path, end_offset=end_offset).differing_bytes == 0
    store.close()
