"""Whether a starting master may serve with the log it has, or has to ask its slaves for more first (ADR 4).

Theory of operation. `recovery_wait_ms` says how long to wait for slaves; 0: serve at once. Each slave that answers is a
`SlaveCopy`; `best_copy` names the one to fetch [our end, its end) from before serving, None: none holds more. A slave
that is never heard within the limit is a warning for the operator, not a reason to stay away: what it has more than us
it keeps aside as a file when it follows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mqcore.replication.log_extent import LogExtent

__all__ = ["SlaveCopy", "best_copy", "recovery_wait_ms"]

# An empty SYNC_MASTER may be brand-new or wiped. Slaves of a wiped one are there already and answer within this time.
EMPTY_LOG_WAIT_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class SlaveCopy:
    """A slave's log as it answered; `extends_ours` is True when our whole log is a prefix of it, by digest."""

    endpoint: str
    broker_id: int
    extent: LogExtent
    extends_ours: bool


def recovery_wait_ms(
    *, log_is_empty: bool, clean_stop: bool, same_boot: bool, needed_slaves: int, recovery_timeout_ms: int
) -> int:
    """How long to wait for the slaves' answers before serving; 0: do not ask.

    After a clean stop everything was flushed. After a kill on the same boot the page cache has all that was sent, and
    nothing is sent before it is there. Only a lost page cache, or a lost disk, can leave the slaves ahead.
    """
    if needed_slaves == 0:
        return 0
    if log_is_empty:
        return min(EMPTY_LOG_WAIT_MS, recovery_timeout_ms)
    if clean_stop or same_boot:
        return 0
    return recovery_timeout_ms


def best_copy(our_end_offset: int, copies: Sequence[SlaveCopy]) -> SlaveCopy | None:
    """The slave to fetch our missing tail from: the longest log that extends ours, or None when none is longer."""
    longer = [copy for copy in copies if copy.extends_ours and copy.extent.end_offset > our_end_offset]
    return max(longer, key=lambda copy: (copy.extent.end_offset, -copy.broker_id), default=None)
