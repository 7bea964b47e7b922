"""The file of the first users: what it says is made, or said to be wrong. Nothing in it is passed over."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from tandemmq.broker.access_changes import AccessChanges, SeedsUnreadable, read_seeds
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.core.access.sealed_secrets import SecretKeys

SECRET = "a secret of {}"


def _entries(resources: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"resource": name, "actions": ["Pub"], "decision": decision} for name, decision in resources]


def _changes(path: Path, document: Any) -> AccessChanges:
    path.write_text(json.dumps(document))
    seeds, time = read_seeds(str(path)), ManualTime()
    tables = MetadataTables(SimulatedDisk(random.Random(1)), time, topics_changed=lambda: None)
    changes = AccessChanges(tables, keys=SecretKeys([b"k" * 32]), clock=time)
    changes.sow(seeds)
    return changes


_USERS = st.lists(st.sampled_from(["ann", "bob", "eve"]), max_size=4)
_RESOURCES = st.lists(
    st.tuples(st.sampled_from(["Topic:orders", "Topic:*", "*"]), st.sampled_from(["Allow", "Deny"])),
    min_size=1,
    max_size=3,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(users=_USERS, acls=st.lists(st.tuples(st.sampled_from(["ann", "bob"]), _RESOURCES), max_size=3))
def test_what_a_file_says_is_made_or_the_file_is_refused(
    tmp_path: Path, users: list[str], acls: list[tuple[str, list[tuple[str, str]]]]
) -> None:
    """A Deny that is passed over lets somebody in."""
    document = {
        "users": [{"username": name, "password": SECRET.format(name)} for name in users],
        "acls": [{"subject": f"User:{name}", "policies": [{"entries": _entries(said)}]} for name, said in acls],
    }
    of_subject = {name: dict(said) for name, said in acls}
    counts = [Counter(users), Counter(name for name, _ in acls)]
    counts += [Counter(resource for resource, _ in set(said)) for _, said in acls]
    if any(count > 1 for counted in counts for count in counted.values()):
        with pytest.raises(SeedsUnreadable, match=r"stands there twice|has two entries") as refused:
            _changes(tmp_path / "seeds.json", document)
        assert "secret" not in str(refused.value)
        return
    with structlog.testing.capture_logs() as lines:
        changes = _changes(tmp_path / "seeds.json", document)
    told = {line["subject"] for line in lines if line["event"] == "acl_not_created"}
    assert told == {f"User:{name}" for name in of_subject if name not in users}
    assert {user.username for user in changes.users()} == set(users)
    made = {acl.subject: {one.resource.key: one.decision.value for one in acl.entries} for acl in changes.acls()}
    assert made == {f"User:{name}": said for name, said in of_subject.items() if name in users}


def test_what_of_a_file_never_counts_is_told(tmp_path: Path) -> None:
    said = [("Topic:orders", "Allow"), ("Topic:%RETRY%billing", "Deny"), ("Topic:ord\u0435rs", "Deny")]
    document = {
        "users": [{"username": name, "password": SECRET.format(name)} for name in ("ann", "bob")],
        "acls": [
            {"subject": "User:ann", "policies": [{"entries": _entries(said)}]},
            {"subject": "User:bob", "policies": [{"entries": _entries(said[:1])}]},
        ],
    }
    with structlog.testing.capture_logs() as lines:
        changes = _changes(tmp_path / "seeds.json", document)
    told = [line for line in lines if line["event"] == "acl_never_counts"]
    assert [line["subject"] for line in told] == ["User:ann"]
    assert {acl.subject: len(acl.entries) for acl in changes.acls()} == {"User:ann": 3, "User:bob": 1}
