"""Messages and dead letters at the command line, on a cluster in memory."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace

import pytest

from support.cli_cluster import FakeCluster
from tandemmq.admin.operations.values import MessageSummary
from tandemmq.cli.commands.messages import message_line
from tandemmq.cli.ending import EXIT_FAILED, EXIT_REFUSED


def _first(cluster: FakeCluster, topic: str = "orders") -> MessageSummary:
    return next(message for message in cluster.operations.cluster.messages if message.topic == topic)


def test_messages_are_searched_page_by_page() -> None:
    cluster = FakeCluster()
    first = json.loads(cluster.run("message", "query", "payments", "--limit", "4", "-o", "json"))
    assert len(first["messages"]) == 4
    assert base64.b64decode(first["messages"][0]["body"]) == b'{"paid": true}'
    assert first["messages"][0]["body_text"] == '{"paid": true}'
    more = ("message", "query", "payments", "--limit", "4", "--page", first["next_page_token"])
    assert len(cluster.run(*more).splitlines()) == 1 + 2
    assert "--page 4" in cluster.invoke("message", "query", "payments", "--limit", "4").stderr


def test_queue_needs_its_broker() -> None:
    assert FakeCluster().failure("message", "query", "orders", "--queue", "0").exit_code == EXIT_REFUSED


def test_no_message_found_is_said() -> None:
    assert FakeCluster().run("message", "query", "orders", "--key", "nobody") == "no such message\n"


def test_message_is_found_by_id_and_shown_by_each_of_its_names() -> None:
    cluster = FakeCluster()
    message = _first(cluster)
    assert message.message_id in cluster.run("message", "find", message.message_id)
    place = ("--broker", message.broker_name)
    queue = ("--topic", "orders", "--queue", str(message.queue_id), "--offset", str(message.queue_offset))
    for words in (
        (message.message_id,),
        (*place, "--physical-offset", str(message.physical_offset)),
        (*place, *queue),
    ):
        output = cluster.run("message", "show", *words)
        assert '"note": "fragile"' in output
        assert "holds the same bytes" in output
        assert f"tandemmq trace {message.message_id}" in output


def test_body_is_shown_in_the_form_asked_for() -> None:
    cluster = FakeCluster()
    output = cluster.run("message", "show", _first(cluster).message_id, "--body", "hex")
    assert "00000000  7b 22 6f 72" in output


def test_message_must_be_named_in_one_way() -> None:
    cluster = FakeCluster()
    assert cluster.failure("message", "show").exit_code == EXIT_REFUSED
    assert cluster.failure("message", "show", "ID", "--broker", "a", "--physical-offset", "0").exit_code == EXIT_REFUSED
    assert cluster.failure("message", "show", "ID", "--queue", "0", "--offset", "0").exit_code == EXIT_REFUSED


def test_unknown_message_fails_and_says_why_that_may_be() -> None:
    cluster = FakeCluster()
    failure = cluster.failure("message", "find", "01NONE")
    assert (failure.exit_code, "expired" in failure.cause) == (EXIT_FAILED, True)
    result = cluster.invoke("message", "find", "01NONE", "-o", "json")
    assert (result.stdout.strip(), result.exit_code) == ("[]", EXIT_FAILED)


def test_terminal_is_safe_from_what_clients_wrote() -> None:
    cluster = FakeCluster()
    cluster.operations.cluster.messages[:] = [
        replace(
            message,
            message_id=f"{message.message_id}\x1b[2J;x",
            tag="\x1b[2J",
            keys=("a\x07",),
            body=b"\x1b]0;x\x07",
            properties={"\x1b[1m": "\x9b2J"},
        )
        for message in cluster.operations.cluster.messages
    ]
    message = _first(cluster)
    for words in (
        ("message", "show", message.message_id),
        ("message", "query", "orders"),
        ("queryMsgById", "-t", "orders", "-i", message.message_id),
        ("printMsg", "-t", "payments"),
        ("message", "show", message.message_id, "-o", "json"),
        ("message", "show", message.message_id, "-o", "yaml"),
    ):
        output = cluster.run(*words)
        assert not set(output) & {"\x1b", "\x07", "\x9b"}, words
    assert not set(message_line(message)) & {"\x1b", "\x07", "\x9b"}
    shown = cluster.run("message", "show", message.message_id)
    assert re.search(r"tandemmq trace '[^'\n]*;x'", shown), "what is pasted into a shell is one word"


def test_terminal_is_safe_from_what_clients_call_themselves() -> None:
    cluster = FakeCluster()
    cluster.operations.cluster.clients[:] = [
        replace(client, client_id=f"{client.client_id}\x9b2J\nb", version="\x1b[2J", subscriptions={"orders": "\x07"})
        for client in cluster.operations.cluster.clients
    ]
    client = cluster.operations.cluster.clients[0]
    for words in (
        ("clients",),
        ("clients", "-o", "json"),
        ("clients", "-o", "yaml"),
        ("consumerConnection", "-g", "billing"),
        ("consumerStatus", "-g", "billing"),
        ("consumerStatus", "-g", "billing", "-i", client.client_id),
        ("producerConnection", "-g", "any", "-t", "orders"),
    ):
        output = cluster.run(*words)
        assert not set(output) & {"\x1b", "\x07", "\x9b"}, words
        assert "b" not in output.splitlines(), "nothing of theirs is a line of ours"
    told = json.loads(cluster.run("clients", "-o", "json"))
    assert client.client_id in [each["client_id"] for each in told["items"]], "programs read what there is"


def test_tail_prints_what_comes_until_it_has_enough() -> None:
    cluster = FakeCluster()
    message = _first(cluster)
    for _ in range(3):
        cluster.operations.arrive(message)
    lines = cluster.run("tail", "orders", "--count", "2").splitlines()
    assert len(lines) == 2
    assert message.message_id in lines[0]
    cluster.operations.arrive(message)
    cluster.operations.tail_ends()
    assert json.loads(cluster.run("tail", "orders", "-o", "json").splitlines()[0])["topic"] == "orders"


def test_message_is_sent_from_argument_and_from_standard_input() -> None:
    cluster = FakeCluster()
    words = ("send", "orders", "hello", "--key", "a", "--key", "b", "--tag", "t", "--property", "x=y=z")
    assert "stored on broker-a, queue 0" in cluster.run(*words)
    sent = cluster.operations.cluster.sent[0]
    assert (sent.body, sent.keys, sent.tag, sent.properties) == (b"hello", ("a", "b"), "t", {"x": "y=z"})
    cluster.run("send", "orders", stdin=b"\x00\xff")
    assert cluster.operations.cluster.sent[1].body == b"\x00\xff"
    assert "NAME=VALUE" in cluster.failure("send", "orders", "x", "--property", "y").remedy
    assert "FIFO" in cluster.failure("send", "payments", "x").cause


def test_dead_letters_are_listed_shown_and_sent_again() -> None:
    cluster = FakeCluster()
    assert cluster.run("dlq", "list").splitlines()[1].split() == ["billing", "3"]
    assert len(cluster.run("dlq", "show", "billing").splitlines()) == 1 + 3
    assert cluster.run("dlq", "show", "shipping") == "group shipping has no dead letters\n"
    assert cluster.failure("dlq", "show", "nobody").problem == "there is no group nobody"
    planned = json.loads(cluster.run("dlq", "resend", "billing", "--all", "--dry-run", "-o", "json"))
    assert [each["problem"] for each in planned] == ["", "", ""]
    assert not cluster.operations.cluster.resent
    cluster.run("dlq", "resend", "billing", "--broker", "broker-a", "--offset", "0", "--yes")
    assert [each.queue_offset for each in cluster.operations.cluster.resent] == [0]


def test_dead_letter_that_is_not_there_fails_the_command() -> None:
    cluster = FakeCluster()
    result = cluster.invoke("dlq", "resend", "billing", "--broker", "broker-a", "--offset", "99", "--yes")
    assert result.exit_code == EXIT_FAILED
    assert "there is no such dead letter" in result.stdout


@pytest.mark.parametrize("words", [(), ("--all", "--broker", "broker-a", "--offset", "1"), ("--broker", "broker-a")])
def test_which_dead_letters_must_be_said_in_one_way(words: tuple[str, ...]) -> None:
    assert FakeCluster().failure("dlq", "resend", "billing", *words).exit_code == EXIT_REFUSED
