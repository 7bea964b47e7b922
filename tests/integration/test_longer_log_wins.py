"""No member that comes back with less takes anything from the others: one round of each fault, with real processes.

`make loss-rounds` plays 20 rounds of each, and those that take too long for here. With asynchronous replication a
master starts as it does with synchronous one, so only the faults that differ in what was acknowledged are played here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.group_faults import FAULTS, Fault, play_round
from support.group_under_fault import BrokerGroup


class _OneGroup:
    """The group that came through the test before, or a new one where the next test needs another kind."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._group: BrokerGroup | None = None
        self._kind: object = None

    def of(self, fault: Fault) -> BrokerGroup:
        if self._kind != fault.kind:
            self.end()
        if self._group is None:
            self._group = fault.group(Path(self._folders.mktemp("group")))
            self._group.__enter__()
            self._kind = fault.kind
        return self._group

    def end(self) -> None:
        if self._group is not None:
            self._group.__exit__(None, None, None)
        self._group = None


@pytest.fixture(scope="module")
def one_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_OneGroup]:
    group = _OneGroup(tmp_path_factory)
    try:
        yield group
    finally:
        group.end()


_ASYNC: Final = (
    "async: master's disk empty",
    "async: master's disk empty, slave 6 s late",
    "async: a live copy of the master's disk",
    "async: a second master with an empty disk, first one stays",
)

# Those of a kind one after the other.
_SHORT: Final = sorted(
    (fault for fault in FAULTS if fault.is_short and (fault.sync or fault.name in _ASYNC)),
    key=lambda fault: str(fault.kind),
)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault", _SHORT, ids=lambda fault: str(fault.name))
def test_nothing_acknowledged_is_lost(fault: Fault, one_group: _OneGroup) -> None:
    group = one_group.of(fault)
    goes_on = False
    try:
        verdict = play_round(fault, group, seed=1, messages=100)
        assert verdict.holds, f"{verdict}\n{group.log_ends(20)}"
        goes_on = not fault.wears_out
    finally:
        if not goes_on:
            one_group.end()
