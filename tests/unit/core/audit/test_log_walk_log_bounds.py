"""Where logs begin and end: lag is no finding, a tail that was there is."""

from __future__ import annotations

from pathlib import Path

from support.audit_stores import make_master, open_group, replicate
from tandemmq.core.audit.findings import FindingKind, Verdict
from tandemmq.core.audit.log_walk import common_range, extra_tails, missing_tails
from tandemmq.core.replication.log_history import LogRange


def shorter_slave(equal_group: list[Path], folder: Path) -> list[Path]:
    """A group whose slave holds half of the log."""
    replicate(equal_group[0], folder, end_offset=open_group(equal_group)[0].facts.end_offset // 2)
    return [equal_group[0], folder]


def test_common_range_is_what_all_hold(equal_group: list[Path], tmp_path: Path) -> None:
    stores = open_group(shorter_slave(equal_group, tmp_path / "1"))
    assert common_range(store.facts for store in stores.values()) == LogRange(0, stores[1].facts.end_offset)
    assert common_range([]) == LogRange(0, 0)


def test_slave_that_is_behind_is_no_finding(equal_group: list[Path], tmp_path: Path) -> None:
    stores = open_group(shorter_slave(equal_group, tmp_path / "1"))
    assert not missing_tails(stores)
    assert not missing_tails(stores, watermark=stores[1].facts.end_offset)
    assert not extra_tails(stores)


def test_log_that_ends_below_the_watermark_lost_its_tail(equal_group: list[Path], tmp_path: Path) -> None:
    stores = open_group(shorter_slave(equal_group, tmp_path / "1"))
    end = stores[1].facts.end_offset
    findings = missing_tails(stores, watermark=stores[0].facts.end_offset)
    assert {(found.kind, found.broker_id, found.source_broker_id) for found in findings} == {
        (FindingKind.TAIL_MISSING, 1, 0)
    }
    assert findings[0].start_offset == end
    assert findings[0].message_id is not None
    assert findings[-1].end_offset == stores[0].facts.end_offset
    assert sum(found.messages for found in findings) > 400
    assert len(findings) == 101


def test_slave_beyond_its_master(tmp_path: Path) -> None:
    make_master(tmp_path / "long", messages=120)
    make_master(tmp_path / "short", messages=100)
    stores = open_group([tmp_path / "short", tmp_path / "long"])
    findings = extra_tails(stores)
    assert {(found.kind, found.broker_id, found.verdict) for found in findings} == {
        (FindingKind.TAIL_EXTRA, 1, Verdict.MASTER_RULE)
    }
    assert len(findings) == 20
    assert findings[0].start_offset == stores[0].facts.end_offset


def test_master_is_not_always_the_one_with_id_0(tmp_path: Path) -> None:
    make_master(tmp_path / "long", messages=120)
    make_master(tmp_path / "short", messages=100)
    stores = open_group([tmp_path / "long", tmp_path / "short"])
    assert not extra_tails(stores)
    assert {found.broker_id for found in extra_tails(stores, master_id=1)} == {0}
    assert not extra_tails(stores, master_id=None)
