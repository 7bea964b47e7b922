"""The time by which files grow old: the wall clock, as long as it can be believed.

A wall clock that is four days ahead would make every file old enough to go. So believed time goes on with the monotonic
clock from what was believed last, within a run of the machine and, from what was saved, across runs of the broker. As
long as the wall clock is near it, believed time follows the wall clock. When it is not, it goes on as if nothing had
jumped, until the clock agrees again or an operator says that it is right (a larger `jump_max_ms`).

Across a reboot nobody counted the time in between. The wall clock must then be near the time that was saved, or that
the newest file was written: a machine that was off for longer than `jump_max_ms` is told apart from a wrong clock by
the operator alone, and files are kept for as much longer.

A file's age is counted from when it was seen to be complete. What the file system says of it, by whichever wall clock
there was, is asked only for files of before this run, and where it was wrong the next run is told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mqcore.storage.disk import FolderEntry

__all__ = ["BelievedTime", "SavedTime"]

_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class SavedTime:
    """What one run of the broker leaves the next one."""

    boot_id: str
    believed_ms: int
    """Believed time when the monotonic clock was at `monotonic_ms`."""
    monotonic_ms: int
    misdated: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Files by name with the time of their last change, as the file system tells it and as it is believed."""

    def to_json(self) -> bytes:
        """The text of the file."""
        fields = {"bootId": self.boot_id, "believedMs": self.believed_ms, "monotonicMs": self.monotonic_ms}
        return json.dumps(fields | {"misdated": self.misdated}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> SavedTime | None:
        """None for a text that is not one of these: nothing was saved then."""
        try:
            fields = json.loads(text)
            misdated = {str(name): (int(told), int(believed)) for name, (told, believed) in fields["misdated"].items()}
            return cls(str(fields["bootId"]), int(fields["believedMs"]), int(fields["monotonicMs"]), misdated)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


class BelievedTime:
    """See the module's docstring. All times are milliseconds."""

    def __init__(
        self,
        *,
        boot_id: str,
        saved: SavedTime | None,
        newest_ms: int,
        wall_ms: int,
        monotonic_ms: int,
        jump_max_ms: int,
    ) -> None:
        """`newest_ms`: when the newest file was changed, as the file system tells; 0 for an empty store."""
        self._boot_id: Final = boot_id
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms
        # By name of a complete file: the time the file system tells, and the believed one.
        self._changed: dict[str, tuple[int, int]] = {} if saved is None else dict(saved.misdated)
        self._has_aged = False
        self.now_ms = newest_ms or wall_ms
        """What may be believed, as of the last `look`."""
        self.jumped_ms = 0
        """How far the wall clock is ahead (below 0: behind) while it is not believed, else 0."""
        if saved is not None:
            self.now_ms = saved.believed_ms
            if saved.boot_id == boot_id:
                self.now_ms += max(0, monotonic_ms - saved.monotonic_ms)
        self.look(wall_ms=wall_ms, monotonic_ms=monotonic_ms, jump_max_ms=jump_max_ms)

    def look(self, *, wall_ms: int, monotonic_ms: int, jump_max_ms: int) -> None:
        """Some time has passed. To be called often: small jumps are believed, each."""
        self.now_ms += monotonic_ms - self._monotonic_ms
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms
        ahead_ms = wall_ms - self.now_ms
        if abs(ahead_ms) <= jump_max_ms:
            self.now_ms, self.jumped_ms = wall_ms, 0
        else:
            self.jumped_ms = ahead_ms

    def ages_ms(self, files: Sequence[FolderEntry]) -> list[int]:
        """How long ago each of all complete files was changed last, oldest first. To be asked after each `look`."""
        # A clock that is behind has stamped files too early, those of this time at least.
        behind_ms = max(0, self.now_ms - self._wall_ms)
        changed: dict[str, tuple[int, int]] = {}
        latest_ms = 0
        for file in files:
            known = self._changed.get(file.name)
            if known is not None and known[0] == file.modified_ms:
                believed_ms = known[1]
            elif self._has_aged:
                believed_ms = self.now_ms
            else:
                # Files are written one after the other: one that seems older than that before it is not.
                believed_ms = max(latest_ms, file.modified_ms + behind_ms)
            # What comes from the future is of now: it shall grow old, too.
            believed_ms = min(believed_ms, self.now_ms)
            latest_ms = max(latest_ms, believed_ms)
            changed[file.name] = file.modified_ms, believed_ms
        self._changed, self._has_aged = changed, True
        return [self.now_ms - believed_ms for _, believed_ms in changed.values()]

    def to_save(self) -> SavedTime:
        """As of the last look."""
        misdated = {
            name: (told_ms, believed_ms)
            for name, (told_ms, believed_ms) in self._changed.items()
            if abs(told_ms - believed_ms) > _HOUR_MS
        }
        return SavedTime(self._boot_id, self.now_ms, self._monotonic_ms, misdated)

    @property
    def problem(self) -> str | None:
        """What is wrong with the wall clock, and what to do; None when it is believed."""
        if not self.jumped_ms:
            return None
        hours = -(-abs(self.jumped_ms) // _HOUR_MS)
        where = "ahead of" if self.jumped_ms > 0 else "behind"
        return (
            f"the wall clock is {abs(self.jumped_ms) / _HOUR_MS:.1f} h {where} the time this broker counted; files do "
            "not grow old by it. Set the clock right; or, if it is right (the machine was off or asleep), "
            f"run tandemmq broker config set all clockJumpMax={hours + 1}"
        )
