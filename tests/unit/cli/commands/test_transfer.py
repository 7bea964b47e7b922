"""Every line is accounted for, whatever the brokers do."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from support.fake_operations import FakeOperations
from tandemmq.admin.operations.values import GroupChange, TopicChange
from tandemmq.cli.commands import transfer
from tandemmq.cli.commands.transfer import (
    ConsumeCount,
    ConsumeOptions,
    LineOptions,
    ProduceCount,
    UnacknowledgedLine,
    consume_lines,
    line_key,
    order_of_group,
    produce_lines,
    read_lines,
)
from tandemmq.cli.ending import EXIT_REFUSED, OutputClosed
from tandemmq.client import BrokerRefused, ClientError, ReceivedMessage, SendReceipt

_OPTIONS = LineOptions(topic="logs", tag="t", key_field="1", inflight=4)


class _Sender:
    """Acknowledges every line but those it is told to fail."""

    def __init__(self, failing: frozenset[bytes] = frozenset(), failure: ClientError | None = None) -> None:
        self.sent: list[tuple[bytes, list[str]]] = []
        self._failing = failing
        self._failure = failure or ClientError("no broker took it")

    async def send(self, topic: str, body: bytes, *, tag: str | None, keys: list[str]) -> SendReceipt:
        await asyncio.sleep(0)
        if body in self._failing:
            raise self._failure
        self.sent.append((body, keys))
        return SendReceipt(message_id="", broker_name="broker-a", queue_offset=0, attempts=1)


class _Receiver:
    """Hands out prepared answers, then nothing."""

    def __init__(self, answers: list[list[ReceivedMessage] | ClientError]) -> None:
        self._answers = answers
        self.acknowledged: list[str] = []
        self.failing_acks: set[str] = set()

    async def receive(self, max_messages: int, *, invisible_ms: int, await_ms: int | None) -> list[ReceivedMessage]:
        if not self._answers:
            await asyncio.sleep((await_ms or 0) / 1_000)
            return []
        answer = self._answers.pop(0)
        if isinstance(answer, ClientError):
            raise answer
        return answer[:max_messages]

    async def ack(self, message: ReceivedMessage) -> None:
        if message.message_id in self.failing_acks:
            raise ClientError("lease has ended")
        self.acknowledged.append(message.message_id)


def _message(number: int, *, attempt: int = 1, intact: bool = True) -> ReceivedMessage:
    return ReceivedMessage(
        topic="logs",
        body=f"line {number}".encode(),
        tag=None,
        keys=(),
        properties={},
        message_id=str(number),
        message_group=None,
        born_timestamp_ms=0,
        store_timestamp_ms=0,
        queue_id=0,
        queue_offset=number,
        delivery_attempt=attempt,
        receipt_handle=f"handle-{number}",
        endpoint="127.0.0.1:8081",
        intact=intact,
    )


async def _lines(*lines: bytes) -> AsyncIterator[bytes]:
    for line in lines:
        yield line


async def _consume(receiver: Any, options: ConsumeOptions) -> tuple[ConsumeCount, bytes]:
    count, out = ConsumeCount(), io.BytesIO()
    await consume_lines(receiver, options, count, write=out.write, stop=asyncio.Event())
    return count, out.getvalue()


async def test_every_line_is_acknowledged_failed_or_empty() -> None:
    sender, count, failed = _Sender(frozenset({b"3"})), ProduceCount(), io.BytesIO()
    await produce_lines(cast("Any", sender), _lines(b"1", b"2", b"", b"3", b"4"), _OPTIONS, count, failed=failed.write)
    assert sorted(sender.sent) == [(b"1", ["1"]), (b"2", ["2"]), (b"4", ["4"])]
    assert (count.acknowledged, count.unacknowledged, count.empty) == (3, 1, 1)
    assert count.failures == [UnacknowledgedLine(4, "no broker took it")]
    assert failed.getvalue() == b"3\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [(b"a\nb\n", [b"a", b"b"]), (b"a\nb", [b"a", b"b"]), (b"", []), (b"a\r\n", [b"a\r"]), (b"\n\n", [b"", b""])],
)
async def test_input_is_split_at_line_ends_only(text: bytes, lines: list[bytes]) -> None:
    assert [line async for line in read_lines(io.BytesIO(text))] == lines


async def test_lines_across_chunks_stay_whole() -> None:
    text = b"\n".join(b"%06d" % number for number in range(50_000))
    assert b"\n".join([line async for line in read_lines(io.BytesIO(text))]) == text


@pytest.mark.parametrize(
    ("line", "field", "key"),
    [
        (b"2026-01-01 install bash", "2", "install"),
        (b"short", "2", None),
        (b'{"id": 7, "name": "a b"}', "id", "7"),
        (b'{"id": 7, "name": "a b"}', "name", "a_b"),
        (b"no json", "id", None),
        (b'{"id": null}', "id", None),
        (b"[1]", "id", None),
    ],
)
def test_key_of_a_line(line: bytes, field: str, key: str | None) -> None:
    assert line_key(line, field) == key


async def test_consume_stops_at_the_count_and_acknowledges_what_it_wrote() -> None:
    receiver = _Receiver([[_message(1), _message(2)], [_message(3, attempt=2), _message(4)]])
    count, out = await _consume(receiver, ConsumeOptions(count=3, idle_timeout_s=None))
    assert out == b"line 1\nline 2\nline 3\n"
    assert sorted(receiver.acknowledged) == ["1", "2", "3"]
    assert (count.received, count.acknowledged, count.redelivered) == (3, 3, 1)


async def test_consume_stops_when_nothing_comes() -> None:
    count, out = await _consume(_Receiver([]), ConsumeOptions(count=None, idle_timeout_s=0.01))
    assert (count.received, out) == (0, b"")


async def test_failed_acknowledgement_is_counted_not_raised() -> None:
    receiver = _Receiver([[_message(1), _message(2, intact=False)]])
    receiver.failing_acks = {"1"}
    count, _ = await _consume(receiver, ConsumeOptions(count=2, idle_timeout_s=None))
    assert (count.received, count.acknowledged, count.damaged) == (2, 1, 1)
    assert count.last_failure == "lease has ended"


async def test_refusal_that_cannot_pass_ends_the_consumer() -> None:
    refusal = BrokerRefused("127.0.0.1:8081", "ReceiveMessage", 40003, "ILLEGAL_CONSUMER_GROUP", "", retryable=False)
    with pytest.raises(ExceptionGroup) as raised:
        await _consume(_Receiver([refusal]), ConsumeOptions(count=1, idle_timeout_s=None))
    assert raised.value.exceptions == (refusal,)


async def test_refusal_that_may_pass_is_told_once_when_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_RETRY_PAUSE_S", 0.001)
    monkeypatch.setattr(transfer, "_TOLD_AFTER_S", 0.02)
    refusal = BrokerRefused("127.0.0.1:8081", "ReceiveMessage", 40300, "FORBIDDEN", "it is disabled", retryable=True)
    told: list[str] = []
    options = ConsumeOptions(count=None, idle_timeout_s=0.3)
    receiver = _Receiver([refusal] * 10_000)
    await consume_lines(
        cast("Any", receiver), options, ConsumeCount(), write=bytes, stop=asyncio.Event(), tell=told.append
    )
    assert told == [str(refusal)]


async def test_lines_that_nobody_reads_are_not_acknowledged_and_end_the_consumer() -> None:
    receiver = _Receiver([[_message(1)], [_message(2)], [_message(3)]])
    count, out = ConsumeCount(), io.BytesIO()

    def write(lines: bytes) -> None:
        if out.getvalue():
            raise OutputClosed
        out.write(lines)

    options = ConsumeOptions(count=None, idle_timeout_s=None)
    await consume_lines(cast("Any", receiver), options, count, write=write, stop=asyncio.Event())
    assert count.output_closed
    assert len(receiver.acknowledged) == count.received == 1


async def test_line_that_no_broker_will_ever_take_is_counted_as_refused() -> None:
    refusal = BrokerRefused("127.0.0.1:8081", "SendMessage", 40014, "CONFLICT", "FIFO only", retryable=False)
    busy = BrokerRefused("127.0.0.1:8081", "SendMessage", 42900, "TOO_MANY_REQUESTS", "", retryable=True)
    for failure, refused in ((refusal, 1), (busy, 0), (ClientError("no broker took it"), 0)):
        count = ProduceCount()
        sender = _Sender(frozenset({b"1"}), failure)
        await produce_lines(cast("Any", sender), _lines(b"1"), _OPTIONS, count, failed=None)
        assert (count.unacknowledged, count.refused) == (1, refused)


def _produce(rest: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command, with options and redirections as a shell reads them."""
    command = (sys.executable, "-m", "tandemmq.cli", "produce", "logs", "--namesrv", "127.0.0.1:1")
    shell = ("sh", "-c", f'exec "$@" {rest}', "sh", *command)
    return subprocess.run(shell, cwd=folder, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        ("<&-", "standard input is closed"),
        ("--unacknowledged lines <lines", "lines is the input, and would be emptied before it is read"),
        ("--unacknowledged absent/kept <lines", "absent/kept cannot be written"),
        ("--key-field 0 <lines", "there is no column 0"),
    ],
)
def test_what_would_lose_lines_is_refused_before_one_is_read(rest: str, problem: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    refused = _produce(rest, tmp_path)
    assert (refused.returncode, lines.read_text()) == (EXIT_REFUSED, "one\n")
    assert refused.stderr.splitlines()[0] == f"problem: {problem}"


@pytest.mark.parametrize(
    "words",
    ["send logs", "topic delete logs --namesrv 127.0.0.1:1", "user update ann --password-file -", "repair --plan -"],
)
def test_standard_input_that_is_closed_is_no_traceback(words: str) -> None:
    shell = ("sh", "-c", f"exec {sys.executable} -m tandemmq.cli {words} <&-")
    refused = subprocess.run(shell, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert refused.stderr.startswith("problem: ")
    assert refused.returncode in (1, EXIT_REFUSED)


async def test_new_group_of_a_fifo_topic_is_ordered() -> None:
    operations = FakeOperations()
    await operations.put_topic(TopicChange("payments", message_type="FIFO"))
    assert "created, ordered" in await order_of_group(operations, "payments", "fresh")
    assert operations.cluster.groups["fresh"].ordered
    assert await order_of_group(operations, "payments", "fresh") == ""


async def test_group_of_a_fifo_topic_that_is_not_ordered_is_told_and_left() -> None:
    operations = FakeOperations()
    await operations.put_topic(TopicChange("payments", message_type="FIFO"))
    await operations.put_group(GroupChange("unordered", ordered=False))
    assert "tandemmq group create unordered --ordered" in await order_of_group(operations, "payments", "unordered")
    assert not operations.cluster.groups["unordered"].ordered


async def test_group_of_another_topic_is_left_to_the_broker() -> None:
    operations = FakeOperations()
    await operations.put_topic(TopicChange("plain"))
    assert await order_of_group(operations, "plain", "fresh") == ""
    assert "fresh" not in operations.cluster.groups
