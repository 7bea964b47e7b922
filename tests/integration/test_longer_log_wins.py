"""No member that comes back with less takes anything from the others: one round of each fault, with real processes.

`make loss-rounds` plays 20 rounds of each, and those that take too long for here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.group_faults import FAULTS, Fault, play_round


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.is_short], ids=lambda fault: fault.name)
def test_nothing_acknowledged_is_lost(fault: Fault, tmp_path: Path) -> None:
    with fault.group(tmp_path) as group:
        verdict = play_round(fault, group, seed=1, messages=100)
        assert verdict.holds, f"{verdict}\n{group.log_ends(20)}"
