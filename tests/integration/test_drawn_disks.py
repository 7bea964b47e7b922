"""Groups of real processes start on disks of which parts are older, gone, or another member's; see `DrawnDisks`."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Final

import pytest

from support.drawn_disks import Case, DrawnDisks

SEEDS: Final = range(int(os.environ.get("DRAWN_SEEDS", "2")))
"""More of them: DRAWN_SEEDS=100."""
LIVES: Final = range((len(SEEDS) + 2) // 3)
NAMED: Final = {
    "the master's tables are older": Case([("0", "config", "later")], pause_s=8.0),
    "the slave's log is older, and what is derived from it is not": Case(
        [("1", "commitlog", "early"), ("1", "checkpoint", "early")], order=(1, 0)
    ),
    "the authority keeps no record": Case([("authority", "all", "spoilt")]),
    "the authority is empty, and the home master's disk new": Case(
        [("authority", "all", "gone"), ("0", "all", "gone")]
    ),
}


@pytest.fixture(scope="module", params=["fixed roles", "fails over"])
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrawnDisks]:
    with DrawnDisks(tmp_path_factory.mktemp("drawn"), fails_over=request.param == "fails over") as group:
        yield group


@pytest.mark.parametrize("name", [*NAMED, *(f"drawn {seed}" for seed in SEEDS)])
def test_nothing_is_missing_without_a_word(name: str, group: DrawnDisks) -> None:
    """Nothing that was acknowledged, and no topic, group, progress, half or delayed message: it is there, or nobody
    serves and `tandemmq status` says what to do, which is then done."""
    case = NAMED.get(name) or group.draw(random.Random(name))
    outcome = group.play(case)
    told = "\n".join(outcome.told)
    assert not outcome.wrong, f"{case}, {outcome.state}: {outcome.wrong}\n{told}"


@pytest.mark.parametrize("name", [f"life {seed}" for seed in LIVES])
def test_nothing_is_missing_after_a_life_of_other_settings(name: str, group: DrawnDisks) -> None:
    """Roles are fixed and fail over by turns, members come alone, and one of them loses parts of its disk."""
    phases = group.draw_life(random.Random(name))
    outcome = group.live(phases)
    told = "\n".join(outcome.told)
    assert not outcome.wrong, f"{phases}, {outcome.state}: {outcome.wrong}\n{told}"
