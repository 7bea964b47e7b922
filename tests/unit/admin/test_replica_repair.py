"""`tandemmq repair`: what brokers are asked, in which order, and when nothing more is asked."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tandemmq.admin.replica_repair import Repair, ReplicaKey, StepOutcome, StepResult, blocks_the_rest
from tandemmq.cli.app import app
from tandemmq.cli.commands.repair import plan_table, read_plan
from tandemmq.cli.ending import EXIT_REFUSED, CommandError
from tandemmq.core.audit.repair_plan import RepairAction, RepairPlan, RepairStep
from tandemmq.proto.broker.v1 import replica_reader_service_pb2 as reader_pb
from tandemmq.proto.broker.v1 import replica_repair_service_pb2 as repair_pb

_COPY = RepairStep(
    number=1,
    action=RepairAction.COPY_RANGE,
    group="broker-a",
    target_broker_id=1,
    reason="body does not match its checksum",
    source_broker_id=0,
    start_offset=1_000,
    end_offset=2_200,
    target_digest="0a" * 16,
    source_digest="0b" * 16,
)
_REWRITE = RepairStep(
    number=2,
    action=RepairAction.REWRITE_QUEUE_ENTRIES,
    group="broker-a",
    target_broker_id=1,
    reason="a ConsumeQueue entry is wrong",
    topic="orders",
    queue_id=3,
    first_queue_offset=10,
    end_queue_offset=12,
)
_TABLE = RepairStep(
    number=4,
    action=RepairAction.REWRITE_TABLE,
    group="broker-a",
    target_broker_id=1,
    reason="a topic is missing",
    source_broker_id=0,
    table="topics.json",
)
_MANUAL = RepairStep(
    number=3,
    action=RepairAction.MANUAL,
    group="broker-a",
    target_broker_id=1,
    reason="remove the [index] folder",
)


class _Broker:
    """A broker that keeps what it was asked; ranges and entries are wrong until they are repaired."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refused: dict[str, tuple[grpc.StatusCode, str]] = {}
        self.repaired: set[str] = set()
        self.timeout_s = 0.0

    def _answer(self, what: str, *, dry_run: bool) -> bool:
        self.asked.append(f"{what} dry" if dry_run else what)
        if what in self.refused:
            code, details = self.refused[what]
            metadata = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(code, metadata, metadata, details=details, debug_error_string=details)
        if what in self.repaired:
            return False
        if not dry_run:
            self.repaired.add(what)
        return True

    async def describe(self) -> reader_pb.DescribeReplicaResponse:
        return reader_pb.DescribeReplicaResponse(audit_read_rate_bytes=1_000)

    async def repair_range(
        self, request: repair_pb.RepairRangeRequest, *, timeout_s: float
    ) -> repair_pb.RepairRangeResponse:
        assert (request.range.start_offset, request.range.end_offset, request.source_broker_id) == (1_000, 2_200, 0)
        assert (request.target_digest, request.source_digest) == (b"\x0a" * 16, b"\x0b" * 16)
        self.timeout_s = timeout_s
        if not self._answer("copy", dry_run=request.dry_run):
            return repair_pb.RepairRangeResponse()
        changed = repair_pb.RepairRangeResponse(changed_bytes=1, record_count=3)
        changed.changed_ranges.add(start_offset=0, end_offset=4_096)
        return changed

    async def rewrite_queue_entries(
        self, request: repair_pb.RewriteQueueEntriesRequest, *, timeout_s: float
    ) -> repair_pb.RewriteQueueEntriesResponse:
        verb = "restore" if request.undo else "rewrite"
        what = f"{verb} {request.first_queue_offset}..{request.end_queue_offset}"
        count = request.end_queue_offset - request.first_queue_offset
        if self._answer(what, dry_run=request.dry_run):
            return repair_pb.RewriteQueueEntriesResponse(changed_count=1, sound_count=count - 1)
        return repair_pb.RewriteQueueEntriesResponse(sound_count=count)

    async def rewrite_table(
        self, request: repair_pb.RewriteTableRequest, *, timeout_s: float
    ) -> repair_pb.RewriteTableResponse:
        is_changed = self._answer(f"{'back' if request.undo else 'table'} {request.table}", dry_run=request.dry_run)
        return repair_pb.RewriteTableResponse(changed=is_changed, kept_path="kept-repairs/x" if is_changed else "")


def _attempt(broker: _Broker, *steps: RepairStep, dry_run: bool) -> list[StepResult]:
    told: list[StepResult] = []
    work = Repair(lambda key: cast("Any", broker))
    results = asyncio.run(work.attempt_all(steps, dry_run=dry_run, told=told.append))
    assert told == results
    return results


def test_tables_are_written_again_and_put_back_as_entries_are() -> None:
    broker = _Broker()
    plan = RepairPlan("run-1", "cluster", (_REWRITE, _TABLE))
    (first,) = _attempt(broker, _TABLE, dry_run=False)
    assert (first.outcome, "kept-repairs/x" in first.text) == (StepOutcome.CHANGED, True)
    (again,) = _attempt(broker, _TABLE, dry_run=True)
    assert again.outcome is StepOutcome.SOUND
    _attempt(broker, *plan.undone().steps, dry_run=False)
    assert broker.asked == ["table topics.json", "table topics.json dry", "back topics.json", "restore 10..12"]


def test_broker_is_asked_then_told_then_asked_again() -> None:
    broker = _Broker()
    assert [each.outcome for each in _attempt(broker, _COPY, _REWRITE, dry_run=True)] == [StepOutcome.CHANGED] * 2
    assert broker.repaired == set()
    done = _attempt(broker, _COPY, _REWRITE, dry_run=False)
    assert [each.text for each in done] == [
        "changed 1 byte in 1 place; 3 records proven sound",
        "wrote 1 entry; 1 right before",
    ]
    assert [each.outcome for each in _attempt(broker, _COPY, _REWRITE, dry_run=True)] == [StepOutcome.SOUND] * 2
    assert broker.asked[2:4] == ["copy", "rewrite 10..12"]


def test_slow_brokers_are_given_their_time() -> None:
    broker = _Broker()
    _attempt(broker, _COPY, dry_run=True)
    assert broker.timeout_s == 60 + 6 * 1.2


def test_first_refusal_ends_the_repair_and_no_dry_run() -> None:
    broker = _Broker()
    broker.refused["copy"] = grpc.StatusCode.FAILED_PRECONDITION, "the target's digest is another"
    asked = _attempt(broker, _COPY, _REWRITE, dry_run=True)
    assert [each.outcome for each in asked] == [StepOutcome.REFUSED, StepOutcome.CHANGED]
    assert asked[0].text == "refused: FAILED_PRECONDITION: the target's digest is another"
    done = _attempt(broker, _COPY, _REWRITE, dry_run=False)
    assert [each.step.number for each in done] == [1]


def test_many_entries_are_written_in_calls_of_a_million() -> None:
    broker = _Broker()
    _attempt(broker, replace(_REWRITE, first_queue_offset=0, end_queue_offset=2_500_000), dry_run=False)
    assert broker.asked == ["rewrite 0..1000000", "rewrite 1000000..2000000", "rewrite 2000000..2500000"]


def test_entries_whose_records_an_earlier_step_mends_may_be_refused_at_first() -> None:
    mended = StepResult(_COPY, StepOutcome.CHANGED, "")
    refused = StepResult(_REWRITE, StepOutcome.REFUSED, "NOT_FOUND: no record")
    assert not blocks_the_rest(refused, [mended])
    assert blocks_the_rest(refused, [])
    assert blocks_the_rest(refused, [replace(mended, step=replace(_COPY, target_broker_id=2))])
    assert blocks_the_rest(replace(refused, step=_COPY), [mended])
    assert not blocks_the_rest(mended, [])


def _written(folder: Path, *steps: RepairStep) -> Path:
    path = folder / "repair-plan.json"
    plan = RepairPlan(run_id="20261121T220000Z-1f3a", cluster="DefaultCluster", steps=steps)
    path.write_text(json.dumps(plan.to_json()), encoding="utf-8")
    return path


def test_plan_reads_as_what_will_be_done(tmp_path: Path) -> None:
    plan = read_plan(str(_written(tmp_path, _COPY, _REWRITE, _MANUAL)))
    console = Console(width=300)
    with console.capture() as captured:
        console.print(plan_table(plan, plan.steps))
    text = captured.get()
    for words in (
        "repair plan of run 20261121T220000Z-1f3a",
        "copy bytes 1,000 to 2,200 (1,200) from broker-a:0",
        "write ConsumeQueue orders queue 3, 10 to 11, again",
        "by hand",
        "remove the [index] folder",
    ):
        assert words in text


def _refusal(*arguments: str) -> CommandError:
    error = CliRunner().invoke(app, ["repair", *arguments]).exception
    assert isinstance(error, CommandError), error
    assert error.exit_code == EXIT_REFUSED
    assert error.remedy
    return error


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99, "run_id": "r", "cluster": "c", "steps": []}'])
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    assert "is no repair plan" in _refusal("--plan", str(tmp_path / "plan.json")).problem


def test_step_that_lacks_a_number_is_refused(tmp_path: Path) -> None:
    path = _written(tmp_path, replace(_COPY, source_digest=None))
    assert "lacks source_digest" in _refusal("--plan", str(path)).problem


def test_missing_plan_and_unknown_step_are_refused(tmp_path: Path) -> None:
    _refusal("--plan", str(tmp_path / "none.json"))
    assert "no step 9" in _refusal("--plan", str(_written(tmp_path, _COPY)), "--step", "9").problem


def test_plan_for_people_only_asks_nobody(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["repair", "--plan", str(_written(tmp_path, _MANUAL)), "--namesrv", "127.0.0.1:1"])
    assert result.exit_code == 0
    assert "1 of these steps need a person" in result.output
    assert "nothing is to be done by the brokers" in result.output


def test_key_of_a_replica_reads_like_everywhere() -> None:
    assert str(ReplicaKey("broker-a", 1)) == "broker-a:1"
