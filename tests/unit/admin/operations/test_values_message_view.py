"""What a message's page says of its copies, its body and where it belongs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.operations_samples import messages
from tandemmq.admin.console.dead_letters import resend_lines
from tandemmq.admin.console.messages import BODY_BYTES, message_view
from tandemmq.admin.operations.values import DeadLetterResult, MessageDetail, ReplicaCopy

_MESSAGE = next(message for message in messages() if message.topic == "orders")
_MASTER = ReplicaCopy("broker-a:0", True, "ab", None, True, "holds it", master=True)
_SLAVE = ReplicaCopy("broker-a:1", True, "ab", True, True, "holds the same bytes")
_BEHIND = ReplicaCopy("broker-a:1", False, "", None, False, "3,120 bytes behind")
_OTHER = ReplicaCopy("broker-a:1", True, "cd", False, True, "holds other bytes")
_GONE = ReplicaCopy("broker-a:0", False, "", None, False, "does not answer: refused", master=True)


@pytest.mark.parametrize(
    ("copies", "verdict", "tone"),
    [
        ((_MASTER,), "There is one copy: this broker group has no slave.", "ok"),
        ((_MASTER, _SLAVE), "All 2 replicas hold the same bytes.", "ok"),
        ((_MASTER, _BEHIND), "1 of 2 replicas hold it.", "warning"),
        ((_MASTER, replace(_SLAVE, equal=None)), "2 of 2 replicas hold it.", "warning"),
        ((_MASTER, _OTHER), "The copies differ.", "bad"),
        ((_GONE, replace(_SLAVE, equal=None)), "1 of 2 replicas hold it.", "warning"),
        ((_GONE, _BEHIND), "No replica that answered holds it.", "bad"),
    ],
)
def test_verdict_on_copies(copies: tuple[ReplicaCopy, ...], verdict: str, tone: str) -> None:
    view = message_view(MessageDetail(_MESSAGE, copies, {}))
    assert view.copies_verdict.startswith(verdict)
    assert view.copies_tone == tone


@pytest.mark.parametrize(
    ("body", "size", "compression", "about"),
    [
        (b"abc", 3, "", "3 B"),
        (b"", 0, "", "0 B"),
        (b"a" * BODY_BYTES, 5 << 20, "", "5.0 MiB; the first 64.0 KiB are shown"),
        (b"a" * 3_000, 40, "zlib", "40 B, compressed with zlib, 2.9 KiB unpacked"),
        (b"a" * BODY_BYTES, 100, "zstd", "100 B, compressed with zstd; the first 64.0 KiB are shown"),
        (bytes(BODY_BYTES), BODY_BYTES, "", "64.0 KiB; the first 16.0 KiB are shown"),
    ],
)
def test_what_is_said_of_a_body(body: bytes, size: int, compression: str, about: str) -> None:
    message = replace(_MESSAGE, body=body, body_size=size, compression=compression)
    assert message_view(MessageDetail(message, (), {})).body_about == about


def test_retries_and_taken_over_messages_say_what_they_are() -> None:
    def note(topic: str) -> str:
        return message_view(MessageDetail(replace(_MESSAGE, topic=topic), (), {})).kind_note

    assert note("%RETRY%billing") == "Waits here for another delivery to billing."
    assert "has delivery times only" in note("SCHEDULE_TOPIC_XXXX")
    assert "see Transactions" in note("RMQ_SYS_TRANS_HALF_TOPIC")
    assert note("orders") == ""


def test_lines_about_resent_letters_tell_failures_first() -> None:
    sent = DeadLetterResult("broker-a", 1, "orders", 7, "id", "")
    half = replace(sent, queue_offset=2, problem="no slave confirmed it")
    failed = replace(sent, queue_offset=3, new_queue_offset=-1, problem="there is no topic orders")
    assert resend_lines([sent, half, failed]) == (
        "broker-a, 2: sent, but: no slave confirmed it",
        "broker-a, 3: not sent: there is no topic orders",
        "2 sent to orders",
    )
    assert resend_lines([failed] * 25)[-1] == "and 5 more such letters"
