"""Every damage is found and named, with two replicas and with three; and nothing else is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from support.audit_stores import copy_group, open_group
from support.folder_audit import audit_folders, whole_digests
from support.store_damage import DAMAGES, Damage, Expected
from tandemmq.core.audit.comparison import PADDING_BENIGN
from tandemmq.core.audit.findings import Finding, FindingKind, Verdict

_FINDINGS_MAX: Final = 4
"""One thing is wrong: nobody should have to read more."""


def _names(finding: Finding, expected: Expected) -> bool:
    return finding.message_id in expected.message_ids or finding.last_message_id in expected.message_ids


def _reaches_into(finding: Finding, start: int, end: int) -> bool:
    if finding.start_offset is None or finding.end_offset is None:
        return False
    return finding.start_offset < end and start < finding.end_offset


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_found_and_named(damage: Damage, replicas: int, equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:replicas], tmp_path)
    expected = damage.apply(folders, random.Random(damage.name))

    audit = audit_folders(folders)

    findings = audit.findings
    kinds = {finding.kind for finding in findings}
    assert kinds <= expected.kinds | expected.consequences, findings
    assert bool(kinds & expected.kinds) == bool(expected.kinds)
    assert len(findings) <= _FINDINGS_MAX, findings
    for start, end in expected.ranges:
        assert any(_reaches_into(finding, start, end) for finding in findings)
    if expected.message_ids:
        assert any(_names(finding, expected) for finding in findings), findings
    if expected.topic:
        assert any(finding.topic == expected.topic for finding in findings)
    if expected.undecidable and findings[0].verdict is Verdict.UNDECIDED:
        assert findings[0].broker_id is None
    elif expected.everywhere:
        assert {finding.broker_id for finding in findings} == set(range(replicas))
    elif expected.kinds:
        assert {finding.broker_id for finding in findings} == {expected.broker_id}
    assert bool(audit.benign.get(PADDING_BENIGN)) == expected.benign


@pytest.mark.parametrize("name", ["flipped-header-field", "flipped-born-host", "rewritten-body"])
def test_digests_of_an_earlier_run_decide_between_two(name: str, equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:2], tmp_path)
    earlier = whole_digests(open_group(folders)[0])
    expected = DAMAGES[name].apply(folders, random.Random(1))

    findings = audit_folders(folders, earlier=earlier).findings

    assert [finding.kind for finding in findings] == [FindingKind.FIELD_DIFFERS]
    assert findings[0].verdict is Verdict.STORED_DIGEST
    assert findings[0].broker_id == expected.broker_id


@pytest.mark.parametrize("replicas", [2, 3])
def test_nothing_is_found_in_equal_replicas(replicas: int, equal_group: list[Path]) -> None:
    audit = audit_folders(equal_group[:replicas])
    assert not audit.findings
    assert not audit.benign
