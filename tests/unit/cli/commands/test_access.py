"""`tandemmq user` and `tandemmq acl`: a secret is made and told once, or read, and never an argument."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.cli_cluster import FakeCluster
from tandemmq.cli.connection import own_credentials
from tandemmq.cli.ending import EXIT_REFUSED, CommandError


def test_a_secret_is_made_and_told_once() -> None:
    cluster = FakeCluster()
    output = cluster.run("user", "create", "ann")
    assert output.splitlines()[:2] == ["broker-a:0: created", "broker-b:0: created"]
    secret = output.splitlines()[2].removeprefix("secret key of ann: ")
    assert len(secret) >= 32
    assert secret not in cluster.run("user", "list") + cluster.run("user", "list", "-o", "json")
    assert "secret key" not in cluster.run("user", "create", "bob", "--dry-run")


def test_a_secret_is_read_from_a_file_or_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "secret.txt"
    file.write_text("planted-secret\n")
    cluster = FakeCluster()
    assert "planted" not in cluster.run("user", "create", "ann", "--type", "Super", "--password-file", str(file))
    assert cluster.operations.users_by_name["ann"].user_type == "Super"
    cluster.run("user", "update", "ann", "--password-file", "-", stdin="another-secret\n")
    (tmp_path / "binary").write_bytes(b"\xff\n")
    for wrong in (tmp_path / "none", tmp_path, tmp_path / "binary", "-"):
        failure = cluster.failure("user", "update", "ann", "--password-file", str(wrong))
        assert failure.exit_code == EXIT_REFUSED
        assert "--password-file" in failure.remedy
        assert not re.search("Errno|codec", failure.cause)


@pytest.mark.timeout(20)
def test_a_secret_is_not_read_without_an_end() -> None:
    cluster = FakeCluster()
    cluster.run("user", "create", "ann", "--password-file", "/dev/zero")


def test_a_user_is_disabled_and_deleted() -> None:
    cluster = FakeCluster()
    cluster.run("user", "update", "billing", "--status", "disable")
    assert cluster.operations.users_by_name["billing"].user_status == "disable"
    assert "planned: deleted" in cluster.run("user", "delete", "billing", "--dry-run")
    cluster.run("user", "delete", "billing", "--yes")
    assert "billing" not in cluster.operations.users_by_name


def test_policies_are_put_listed_and_deleted() -> None:
    cluster = FakeCluster()
    cluster.run("acl", "put", "shop", "Topic:orders-*", "--actions", "Pub", "--source-ips", "10.0.0.0/8,192.168.0.1")
    [acl] = json.loads(cluster.run("acl", "list", "--subject", "shop", "-o", "json"))
    assert acl["subject"] == "User:shop"
    assert acl["entries"][0]["resource"] == "Topic:orders-*"
    assert acl["entries"][0]["source_ips"] == ["10.0.0.0/8", "192.168.0.1"]
    cluster.run("acl", "put", "User:shop", "Topic:orders-*", "--actions", "Pub,Sub", "--decision", "deny")
    assert "Deny" in cluster.run("acl", "list")
    cluster.run("acl", "delete", "shop", "Topic:orders-*", "--yes")
    assert "User:shop" not in cluster.run("acl", "list")


def test_policies_are_copied() -> None:
    assert "billing on broker-b:0: copied" in FakeCluster().run("user", "copy", "broker-a", "broker-b")


def test_own_credentials_come_from_the_environment_both_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TANDEMMQ_ACCESS_KEY", "TANDEMMQ_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert own_credentials() is None
    monkeypatch.setenv("TANDEMMQ_ACCESS_KEY", "ann")
    with pytest.raises(CommandError) as failed:
        own_credentials()
    assert "TANDEMMQ_SECRET_KEY" in failed.value.cause
    monkeypatch.setenv("TANDEMMQ_SECRET_KEY", "planted-secret")
    credentials = own_credentials()
    assert credentials is not None
    assert "planted-secret" not in repr(credentials)
    assert dict(credentials.headers(wall_ms=0))["x-mq-date-time"] == "19700101T000000Z"
