"""What `make audit-check` stands on: damage reaches the groups it is meant for, and the judge is not fooled."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from support.damaged_groups import GroupFolder, link_store
from support.planted_damage import Planted, judge
from support.store_damage import DAMAGES, Expected
from tandemmq.core.audit.findings import Finding, FindingKind, Verdict

EXPECTED: Final = Expected(
    kinds=frozenset({FindingKind.BODY_CRC}), broker_id=1, message_ids=("id",), ranges=((100, 200),), topic="orders"
)
RIGHT: Final = Finding(
    kind=FindingKind.BODY_CRC,
    group="g",
    verdict=Verdict.MAJORITY,
    detail="",
    broker_id=1,
    start_offset=100,
    end_offset=200,
    topic="orders",
    message_id="id",
)


@pytest.fixture
def originals(tmp_path: Path) -> list[Path]:
    """Two folders that look like stores."""
    stores = [tmp_path / "originals" / str(broker_id) for broker_id in range(2)]
    for store in stores:
        for name in ("commitlog/0", "commitlog/1", "config/topics.json", "lock"):
            (store / name).parent.mkdir(parents=True, exist_ok=True)
            (store / name).write_text(f"{name} as it was")
    # A copy made within the same tick of the clock would look untouched.
    for path in (path for store in stores for path in store.rglob("*")):
        os.utime(path, (1, 1))
    return stores


def test_a_change_reaches_one_group_alone_and_copies_no_other_file(originals: list[Path], tmp_path: Path) -> None:
    maker = GroupFolder(tmp_path / "groups", originals, workshop=tmp_path / "workshop")

    def damage(stores: list[Path]) -> None:
        (stores[1] / "commitlog/0").write_text("damaged")
        (stores[1] / "commitlog/1").unlink()

    maker.add_changed("damaged", damage, replicas=2)
    maker.add("sound", replicas=2)

    damaged, sound = tmp_path / "groups" / "damaged" / "1", tmp_path / "groups" / "sound" / "1"
    assert (damaged / "commitlog/0").read_text() == "damaged"
    assert not (damaged / "commitlog/1").exists()
    assert (damaged / "config/topics.json").samefile(originals[1] / "config/topics.json")
    assert (originals[1] / "commitlog/0").read_text() == "commitlog/0 as it was"
    assert {path.name for path in sound.rglob("*") if path.is_file()} == {"0", "1", "topics.json"}
    assert (sound / "commitlog/0").read_text() == "commitlog/0 as it was"


def test_the_next_damage_starts_from_a_sound_copy(originals: list[Path], tmp_path: Path) -> None:
    maker = GroupFolder(tmp_path / "groups", originals, workshop=tmp_path / "workshop")
    maker.add_changed("first", lambda stores: (stores[0] / "commitlog/0").unlink(), replicas=2)

    seen = maker.add_changed("second", lambda stores: (stores[0] / "commitlog/0").read_text(), replicas=2)

    assert seen == "commitlog/0 as it was"


def test_a_linked_store_may_lack_files(originals: list[Path], tmp_path: Path) -> None:
    link_store(originals[0], tmp_path / "linked", without=("commitlog/0",))

    assert [path.name for path in (tmp_path / "linked" / "commitlog").iterdir()] == ["1"]


def test_the_judge_asks_for_kind_replica_and_message() -> None:
    planted = Planted("g-3x", DAMAGES["flipped-body-bit"], 3, EXPECTED)

    assert judge(planted, [RIGHT], {}).problem == ""
    assert judge(planted, [], {}).problem == "not found"
    assert "instead of 1" in judge(planted, [replace(RIGHT, broker_id=2)], {}).problem
    assert "not named" in judge(planted, [replace(RIGHT, message_id="another")], {}).problem
    assert "too much" in judge(planted, [RIGHT, replace(RIGHT, kind=FindingKind.TORN)], {}).problem
    assert "topic" in judge(planted, [replace(RIGHT, topic="another")], {}).problem
    assert "nothing is said" in judge(planted, [replace(RIGHT, start_offset=300, end_offset=400)], {}).problem


def test_the_judge_lets_nobody_be_named_only_where_nobody_can_know() -> None:
    undecided = replace(RIGHT, kind=FindingKind.FIELD_DIFFERS, verdict=Verdict.UNDECIDED, broker_id=None)
    expected = replace(EXPECTED, kinds=frozenset({FindingKind.FIELD_DIFFERS}), undecidable=True)
    damage = DAMAGES["flipped-born-host"]

    assert judge(Planted("g-2x", damage, 2, expected), [undecided], {}).problem == ""
    certain = replace(expected, undecidable=False)
    assert judge(Planted("g-3x", damage, 3, certain), [undecided], {}).problem == "nobody is named"


def test_the_judge_wants_harmless_differences_counted_and_not_reported() -> None:
    planted = Planted("g-2x", DAMAGES["other-padding"], 2, Expected(benign=True))

    assert judge(planted, [], {"padding": 1}).problem == ""
    assert judge(planted, [], {}).problem == "not noticed"
    assert judge(planted, [RIGHT], {"padding": 1}).problem == "false alarm"
