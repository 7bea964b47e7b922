"""Topics, groups and clients at the command line, on a cluster in memory."""

from __future__ import annotations

import json

import pytest
import yaml

from support.cli_cluster import FakeCluster
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import Unseen
from tandemmq.cli.ending import EXIT_FAILED, EXIT_REFUSED


def test_topics_are_listed_as_table_json_and_yaml() -> None:
    cluster = FakeCluster()
    lines = cluster.run("topic", "list").splitlines()
    assert lines[0].split()[:4] == ["topic", "category", "type", "permission"]
    assert any(line.split()[0] == "payments" and "FIFO" in line for line in lines)
    assert not any("%DLQ%" in line for line in lines)
    document = json.loads(cluster.run("topic", "list", "--search", "PAY", "-o", "json"))
    assert [topic["name"] for topic in document["items"]] == ["payments"]
    assert document["items"][0]["brokers"][0]["broker_name"] == "broker-a"
    assert yaml.safe_load(cluster.run("topic", "list", "--search", "PAY", "-o", "yaml")) == document


def test_long_list_is_cut_and_says_so() -> None:
    cluster = FakeCluster()
    result = cluster.invoke("topic", "list", "--limit", "2")
    assert "6 more; --limit 0 shows all" in result.stderr
    assert len(cluster.run("topic", "list", "--limit", "0", "--system").splitlines()) == 1 + 13


def test_whom_the_answer_lacks_is_told_beside_it() -> None:
    cluster = FakeCluster()
    cluster.operations.unseen = (Unseen("broker-b:0", "UNAVAILABLE: refused"),)
    result = cluster.invoke("topic", "list", "-o", "json")
    assert json.loads(result.stdout)["unseen"] == [{"subject": "broker-b:0", "reason": "UNAVAILABLE: refused"}]
    assert "not seen: broker-b:0: UNAVAILABLE: refused" in result.stderr


def test_topic_is_described_with_queues_routes_and_readers() -> None:
    output = FakeCluster().run("topic", "describe", "orders")
    assert "every NameServer that answers gives the same route" in output
    assert "ago)" in output
    assert any(line.split()[0] == "billing" for line in output.splitlines() if line)


def test_routes_show_who_says_what() -> None:
    output = FakeCluster().run("topic", "routes", "half-changed")
    assert output.count("10.0.0.1:9876") == 2
    assert output.count("10.0.0.2:9876") == 1
    refusal = FakeCluster().failure("topic", "routes", "absent")
    assert (refusal.problem, refusal.exit_code) == ("no NameServer routes to topic absent", EXIT_FAILED)


def test_topic_is_created_changed_and_deleted() -> None:
    cluster = FakeCluster()
    planned = cluster.run("topic", "create", "fresh", "--queues", "3", "--type", "FIFO", "--dry-run")
    assert planned.startswith("broker-a:0: planned: created")
    assert "fresh" not in cluster.operations.cluster.topics
    cluster.run("topic", "create", "fresh", "--queues", "3", "--type", "FIFO", "--permission", "r")
    made = cluster.operations.cluster.topics["fresh"].brokers[0]
    assert (made.read_queue_count, made.write_queue_count, made.permission, made.message_type) == (3, 3, 4, "FIFO")
    cluster.run("topic", "create", "fresh", "--write-queues", "1")
    assert cluster.operations.cluster.topics["fresh"].brokers[0].read_queue_count == 3
    assert cluster.operations.cluster.topics["fresh"].brokers[0].write_queue_count == 1
    cluster.run("topic", "delete", "fresh", "--dry-run")
    assert "fresh" in cluster.operations.cluster.topics
    cluster.run("topic", "delete", "fresh", "--yes")
    assert "fresh" not in cluster.operations.cluster.topics


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "delete", "orders"),
        ("group", "delete", "newcomer"),
        ("group", "reset", "billing", "orders", "--to", "earliest"),
        ("broker", "config", "set", "broker-a", "fileReservedTime=1"),
        ("broker", "write-permission", "broker-a", "off"),
        ("dlq", "resend", "billing", "--all"),
        ("deleteTopic", "-t", "orders"),
        ("deleteSubGroup", "-g", "newcomer"),
        ("resetOffsetByTime", "-g", "billing", "-t", "orders", "-s", "now"),
        ("updateBrokerConfig", "-b", "broker-a", "-k", "fileReservedTime", "-v", "1"),
        ("wipeWritePerm", "-b", "broker-a"),
        ("addWritePerm", "-b", "broker-a"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_taken_back_is_asked_for(words: tuple[str, ...]) -> None:
    cluster = FakeCluster()
    before = repr(vars(cluster.operations.cluster))
    refusal = cluster.failure(*words)
    assert refusal.exit_code == EXIT_REFUSED
    assert "--yes" in refusal.remedy
    assert cluster.invoke(*words, "--dry-run").exit_code == 0
    assert repr(vars(cluster.operations.cluster)) == before


def test_question_names_the_cluster_and_no_means_no(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    asked: list[str] = []

    def answer(question: str) -> bool:
        asked.append(question)
        return len(asked) > 1

    monkeypatch.setattr("tandemmq.cli.listing.typer.confirm", answer)
    monkeypatch.setattr("tandemmq.cli.listing.at_terminal", lambda: True)
    assert "you said no" in cluster.failure("topic", "delete", "orders", "-n", "10.0.0.1:9876").problem
    assert asked[0].endswith("(the cluster at 10.0.0.1:9876)")
    assert "orders" in cluster.operations.cluster.topics
    cluster.run("topic", "delete", "orders", "-n", "10.0.0.1:9876")
    assert "orders" not in cluster.operations.cluster.topics


def test_wrong_choices_are_refused_before_anything_is_asked() -> None:
    cluster = FakeCluster()
    assert "FIFO" in cluster.failure("topic", "create", "orders", "--type", "fifo").remedy
    assert "rw" in cluster.failure("topic", "create", "orders", "--permission", "x").remedy
    assert "how long ago" in cluster.failure("group", "reset", "billing", "orders", "--to", "yesterday").remedy
    assert "fileReservedTime=VALUE" in cluster.failure("broker", "config", "set", "broker-a", "fileReservedTime").remedy
    assert not cluster.targets


@pytest.mark.parametrize(
    ("kind", "code"), [(FailureKind.INVALID, EXIT_REFUSED), (FailureKind.UNAVAILABLE, EXIT_FAILED)]
)
def test_operation_that_fails_says_problem_cause_and_remedy(kind: FailureKind, code: int) -> None:
    cluster = FakeCluster()
    cluster.operations.failures["put_topic"] = OperationFailed(kind, "it is bad", cause="why", remedy="mend it")
    failure = cluster.failure("topic", "create", "fresh")
    assert (failure.problem, failure.cause, failure.remedy, failure.exit_code) == ("it is bad", "why", "mend it", code)


def test_groups_are_listed_described_changed_and_deleted() -> None:
    cluster = FakeCluster()
    assert any(line.split()[:2] == ["billing", "2"] for line in cluster.run("group", "list").splitlines())
    described = cluster.run("group", "describe", "billing")
    assert "tandemmq dlq show billing" in described
    assert "SIMPLE_CONSUMER" in described
    assert json.loads(cluster.run("group", "list", "--group", "billing", "-o", "json"))[0]["group"] == "billing"
    cluster.run("group", "create", "fresh", "--ordered", "--retries", "5")
    cluster.run("group", "create", "fresh", "--disable")
    made = cluster.operations.cluster.groups["fresh"]
    assert (made.ordered, made.retry_max_times, made.enabled) == (True, 5, False)
    cluster.run("group", "create", "fresh", "--retries", "0")
    assert cluster.operations.cluster.groups["fresh"].retry_max_times == 0
    assert "members" in cluster.failure("group", "delete", "billing", "--yes").problem
    cluster.run("group", "delete", "billing", "--with-members", "--yes")
    assert "billing" not in cluster.operations.cluster.groups


def test_reset_says_what_comes_again_and_what_is_skipped() -> None:
    cluster = FakeCluster()
    planned = cluster.run("group", "reset", "billing", "orders", "--to", "earliest", "--dry-run")
    assert "come again" in planned
    assert "in clients' hands may come twice" in planned
    assert not cluster.operations.cluster.resets
    cluster.run("group", "reset", "billing", "orders", "--to", "latest", "--yes")
    moves = cluster.operations.cluster.resets["billing", "orders"]
    assert all(move.to_offset == move.max_offset for move in moves)
    cluster.run("group", "reset", "billing", "orders", "--to", "2h", "--yes")


def test_clients_are_listed_by_group() -> None:
    cluster = FakeCluster()
    assert len(cluster.run("clients", "--group", "billing").splitlines()) == 3
    assert json.loads(cluster.run("clients", "-o", "json"))["total"] == 4
