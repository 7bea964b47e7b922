"""`tandemmq down`: stops what runs in a data folder."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from rich.console import Console

from admin.cli.cluster_folder import ClusterFolder, MemberRecord
from admin.cli.failure import CommandError
from admin.cli.process_table import is_running

__all__ = ["bring_down"]

# Three waves of at most 20 s each, and some room.
_SUPERVISOR_LIMIT_S: Final = 75.0
_MEMBER_LIMIT_S: Final = 20.0
_POLL_S: Final = 0.1


def bring_down(folder: ClusterFolder, console: Console) -> None:
    """Stops the cluster through its `tandemmq up`, or member by member when that one is gone."""
    record = folder.read_record()
    if record is None:
        console.print(f"nothing runs in {folder.root}", soft_wrap=True)
        return
    if record.supervised:
        os.kill(record.supervisor_pid, signal.SIGTERM)
        if not _gone(record.supervisor_pid, record.supervisor_start_mark, limit_s=_SUPERVISOR_LIMIT_S):
            raise CommandError(
                f"tandemmq up (pid {record.supervisor_pid}) did not stop within {_SUPERVISOR_LIMIT_S:.0f} s",
                remedy=f"see its output; `kill -9 {record.supervisor_pid}` and `tandemmq down` again stops its members",
            )
    # The supervisor's order: masters, slaves, NameServers.
    for member in sorted(record.members, key=lambda member: (member.kind != "broker", member.role == "SLAVE")):
        if member.running:
            _stop(member, console)
    folder.remove_record()
    console.print(f"stopped the cluster in {folder.root}", soft_wrap=True)


def _stop(member: MemberRecord, console: Console) -> None:
    os.kill(member.pid, signal.SIGTERM)
    if not _gone(member.pid, member.start_mark, limit_s=_MEMBER_LIMIT_S):
        console.print(f"{member.name}: still running after {_MEMBER_LIMIT_S:.0f} s, killed", soft_wrap=True)
        os.kill(member.pid, signal.SIGKILL)
        _gone(member.pid, member.start_mark, limit_s=_MEMBER_LIMIT_S)


def _gone(pid: int, mark: str, *, limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while is_running(pid, mark):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
