"""The two files that tell the next start how this run ended: RocketMQ's `abort`, and a `boot` of our own.

| file  | content                       | written                      | removed                        |
|-------|-------------------------------|------------------------------|--------------------------------|
| abort | process id, decimal           | when the store begins to run | last step of an orderly stop   |
| boot  | Disk.boot_id() of the machine | before `abort`               | before `abort`                 |

An `abort` file at start means that the last run was not ended. If `boot` names this very run of the machine, the kernel
still has all that the killed process wrote; if it is missing (a Java broker ran) or names another, pages may be lost.

A store that may have lost pages stays without `boot` until its owner says that nothing is missing any more: the answer
to "was anything lost?" must survive a kill, and an orderly stop, in the middle of fetching what was lost.
"""

from __future__ import annotations

from typing import Final

from mqcore.storage.consume_queue_loading import StopKind
from mqcore.storage.disk import Disk

__all__ = ["clear_run_marks", "read_stop_kind", "set_doubtful_run_marks", "set_run_marks"]

_ABORT_PATH: Final = "abort"
_BOOT_PATH: Final = "boot"


def read_stop_kind(disk: Disk) -> StopKind:
    """How the last run ended."""
    if disk.read_file(_ABORT_PATH) is None:
        return StopKind.CLEAN
    if disk.read_file(_BOOT_PATH) == disk.boot_id().encode():
        return StopKind.KILLED
    return StopKind.POWER_LOST


def set_run_marks(disk: Disk, *, process_id: int) -> None:
    """The store runs from now on. Only after a recovery is complete and durable: a crash in it must not look harmless.

    `boot` first. A crash between the two after an orderly stop finds a store nothing was added to; after a crash
    `abort` is still there, and what `boot` says is true by then.
    """
    disk.write_file(_BOOT_PATH, disk.boot_id().encode())
    disk.write_file(_ABORT_PATH, str(process_id).encode())


def set_doubtful_run_marks(disk: Disk, *, process_id: int) -> None:
    """The store runs, but pages that were lost before may be missing: the next start is to ask the same question."""
    disk.remove(_BOOT_PATH)
    disk.write_file(_ABORT_PATH, str(process_id).encode())


def clear_run_marks(disk: Disk) -> None:
    """The store has stopped in order; everything is durable."""
    disk.remove(_BOOT_PATH)
    disk.remove(_ABORT_PATH)
