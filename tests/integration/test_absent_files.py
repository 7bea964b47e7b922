"""A broker starts on a folder in which one small file is gone, empty, zeros, or a folder: it tells, or refuses with the
remedy. No message is lost, and none that was not acknowledged is passed over."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from support.messages import outgoing_message
from support.running_time import PATIENCE_S
from tandemmq.broker.broker import Broker
from tandemmq.broker.settings import BrokerSettings
from tandemmq.core.delivery.subscription import EVERY_TAG
from tandemmq.core.message.record import Host
from tandemmq.core.metadata.metadata_store import ROCKETMQ_FILES, MetadataFile
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig
from tandemmq.core.metadata.topic_table import TopicConfig
from tandemmq.core.storage.disk import MOVE_ASIDE, DiskError
from tandemmq.service.event_loop import LoopMeter, SystemClock
from tandemmq.service.settings import load_settings

GROUP, TOPIC, MESSAGES, ACKNOWLEDGED = "group", "topic", 800, 10
FAULTS: Final = ("gone", "empty", "zeros", "folder")
_TABLES: Final = {f"config/{file.value}": "metadata_damaged" for file in ROCKETMQ_FILES}
_TOLD: Final[dict[str, dict[str, str]]] = {
    "checkpoint": dict.fromkeys(("gone", "empty", "zeros"), "checkpoint_lost"),
    "config/leaseClock.json": {"zeros": "lease_clock_unreadable"},
    "config/leases-0000000002.journal": dict.fromkeys(("gone", "zeros"), "leases_incomplete"),
    "config/leases-0000000002.snapshot": {
        "gone": "leases_incomplete",
        "empty": "leases_incomplete",
        "zeros": "leases_restored",
    },
    "epochFileCheckpoint": dict.fromkeys(("gone", "empty", "zeros"), "epoch_file_damaged"),
    "index/1": dict.fromkeys(("gone", "empty", "zeros"), "index_file_missing"),
    "index/2": dict.fromkeys(("gone", "empty", "zeros"), "index_file_missing"),
    "logEnd": {"gone": "log_end_mark_missing"},
    "replica.json": dict.fromkeys(("gone", "empty", "zeros"), "replica_record_damaged"),
    **{path: dict.fromkeys(("gone", "empty", "zeros"), event) for path, event in _TABLES.items()},
    # As tableVersions.json has it nobody ever changed this one.
    "config/delayOffset.json": dict.fromkeys(("gone", "empty", "zeros"), "metadata_missing"),
}
"""What is told above the level of information. Of the others nothing is lost: they are made again."""
_SILENT: Final = (
    "config/retentionClock.json",
    "config/topics.json.bak",
    "consumequeue-ends",
    "lock",
    "tableVersions.json",
)


class _Run:
    """A broker that runs until the block ends; `error` is what kept it from it."""

    def __init__(self, folder: Path) -> None:
        settings = load_settings(
            BrokerSettings,
            environ={},
            overrides=(
                f"storePathRootDir={folder}",
                "mappedFileSizeCommitLog=1048576",
                "maxMessageSize=65536",
                "maxHashSlotNum=100",
                "maxIndexNum=300",
                "listenPort=0",
                "haListenPort=0",
                "grpcServerPort=0",
                "namesrvAddr=",
                "masterRecoveryTimeout=300",
                "totalReplicas=1",
                "consumeFromEarliest=true",
            ),
        )
        self.broker = Broker(
            settings, clock=SystemClock(), store_host=Host.parse("127.0.0.1", 10_911), loop_meter=LoopMeter()
        )
        self.parts: Any = self.broker._parts
        self.error: BaseException | None = None

    async def __aenter__(self) -> _Run:
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self.broker.run(self._stop))
        async with asyncio.timeout(PATIENCE_S):
            while not (self._task.done() or self.parts.role.is_serving or self.parts.role.recovery.waiting is not None):
                await asyncio.sleep(0.01)
        if self._task.done():
            self.error = self._task.exception()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        if self.error is None:
            await self._task

    def consume(self, count: int, *, acknowledges: bool) -> set[int]:
        """Queue offsets of what the group gets."""
        parts, found = self.parts, set[int]()
        while len(found) < count:
            received = parts.leases.receive(
                group=GROUP,
                topic=TOPIC,
                queue_ids=[0],
                tag_filter=EVERY_TAG,
                batch_size=min(32, count - len(found)),
                invisible_ms=60_000,
                now_ms=parts.clock.monotonic_ms(),
                max_attempts=17,
                auto_renew=False,
                client_id="c",
            )
            if not received.deliveries:
                return found
            for delivery in received.deliveries:
                found.add(delivery.queue_offset)
                if acknowledges:
                    parts.leases.acknowledge(
                        group=GROUP, topic=TOPIC, handle=delivery.handle, now_ms=parts.clock.monotonic_ms()
                    )
        return found


async def _work(folder: Path) -> None:
    """One run: half of the messages, half of the acknowledgements."""
    async with _Run(folder) as run:
        assert run.error is None
        parts = run.parts
        parts.tables.put_topic(TopicConfig(TOPIC, 1, 1))
        parts.tables.put_group(SubscriptionGroupConfig(GROUP))
        await parts.tables.written()
        for number in range(MESSAGES // 2):
            parts.store.put(outgoing_message(topic=TOPIC, queue_id=0, body=b"b" * 1_000, keys=(f"key-{number}",)))
        parts.store.write_appended()
        run.consume(ACKNOWLEDGED // 2, acknowledges=True)
        parts.role.persist_leases()
        parts.tables.collect_progress(parts.leases)
        parts.tables.put_topic(TopicConfig(TOPIC, 2, 2))
        await parts.tables.written()
        await run.broker._retention.look()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a broker left in order."""
    folder = tmp_path_factory.mktemp("absent") / "made"
    for _ in range(2):
        asyncio.run(_work(folder))
    return folder


def _spoil(folder: Path, name: str, fault: str) -> Path:
    path = sorted(folder.glob("index/*"))[int(name[-1]) - 1] if name.startswith("index/") else folder / name
    size = path.stat().st_size
    path.unlink()
    match fault:
        case "empty":
            path.touch()
        case "zeros":
            path.write_bytes(bytes(size))
        case "folder":
            path.mkdir()
    return path


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", [*_TOLD, *_SILENT])
def test_what_is_absent_is_told_or_refused(name: str, fault: str, made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(made, folder)
    spoiled = _spoil(folder, name, fault)
    before = set(folder.rglob("*"))

    async def start() -> tuple[BaseException | None, set[int], bool]:
        async with _Run(folder) as run:
            if run.error is not None:
                return run.error, set(), False
            if run.parts.role.recovery.waiting is not None:
                return None, set(), True
            return None, run.consume(MESSAGES, acknowledges=False), False

    with capture_logs() as lines:
        error, got, waits = asyncio.run(start())
    told = {line["event"] for line in lines if line["log_level"] in ("warning", "error")}
    if fault == "folder":
        assert isinstance(error, DiskError)
        assert str(error).startswith(os.path.relpath(spoiled, folder))
        assert MOVE_ASIDE in str(error)
        assert set(folder.rglob("*")) == before, "nothing was changed"
        return
    assert error is None
    expected = _TOLD.get(name, {}).get(fault)
    assert expected in told if expected else not told, told
    if not waits:
        assert got >= set(range(ACKNOWLEDGED, MESSAGES)), "no message is passed over"
    else:
        assert name in _TABLES


def test_what_a_slave_kept_is_no_problem_of_the_master_it_becomes(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(made, folder)

    async def start() -> int:
        run = _Run(folder)
        run.parts.tables.kept[MetadataFile.TOPICS] = ["topic-1"]
        async with run:
            return run.broker._report.problem_count

    assert asyncio.run(start()) == 0


@pytest.mark.parametrize("beyond", [0, 5])
def test_a_master_that_lacks_what_groups_have_got_says_so(beyond: int, made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(made, folder)

    async def start() -> list[str]:
        run = _Run(folder)
        run.parts.tables.note_cut(TOPIC, 0, MESSAGES + beyond)
        async with run:
            return [problem.problem for problem in run.broker._report.status().problems]

    problems = asyncio.run(start())
    assert len(problems) == (beyond > 0)
    if beyond:
        assert "lost at least 5 messages that groups have got already" in problems[0]
        assert f"800 to 804 of {TOPIC} queue 0" in problems[0]


@pytest.mark.parametrize(("gone", "expected"), [("", set()), ("abort", {"abort_missing"})])
def test_a_kill_is_one_whatever_is_gone_of_its_marks(gone: str, expected: set[str], made: Path, tmp_path: Path) -> None:
    folder, killed = tmp_path / "store", tmp_path / "killed"
    shutil.copytree(made, folder)

    async def run_until_killed() -> None:
        async with _Run(folder) as run:
            run.parts.store.put(outgoing_message(topic=TOPIC, queue_id=0, body=b"the last one"))
            run.parts.store.write_appended()
            shutil.copytree(folder, killed)

    async def start() -> set[int]:
        async with _Run(killed) as run:
            return run.consume(MESSAGES + 1, acknowledges=False)

    asyncio.run(run_until_killed())
    if gone:
        (killed / gone).unlink()
    with capture_logs() as lines:
        got = asyncio.run(start())
    assert {line["event"] for line in lines if line["log_level"] in ("warning", "error")} == expected
    recovered = [line for line in lines if line["event"] == "store_recovered"]
    assert [(line["clean"], line["same_boot"]) for line in recovered] == [(False, True)]
    assert got == set(range(ACKNOWLEDGED, MESSAGES + 1))


def _why_it_waits(folder: Path) -> str:
    """Of a master on this disk, with nobody else there; its log tells of the damage."""

    async def start() -> str:
        async with _Run(folder) as run:
            assert run.parts.role.recovery.waiting is not None
            return str(run.parts.role.recovery.waiting.reason)

    with capture_logs() as lines:
        reason = asyncio.run(start())
    assert "metadata_damaged" in {line["event"] for line in lines}
    return reason


def test_an_older_copy_of_all_tables_is_told_and_waited_with(made: Path, tmp_path: Path) -> None:
    """What somebody restores is `config/` with its `.bak` files, and nothing in it says that it is old."""
    folder, older = tmp_path / "store", tmp_path / "older"
    asyncio.run(_work(older))
    shutil.copytree(older, folder)
    asyncio.run(_work(folder))
    shutil.rmtree(folder / "config")
    shutil.copytree(older / "config", folder / "config")

    reason = _why_it_waits(folder)
    for file in (MetadataFile.TOPICS, MetadataFile.CONSUMER_OFFSETS):
        assert f"{file.value} (config/{file.value}: it is an older copy" in reason


@pytest.mark.parametrize("file", [file for file in ROCKETMQ_FILES if file is not MetadataFile.DELAY_OFFSETS])
def test_an_older_copy_of_one_table_is_told_and_waited_with(file: MetadataFile, made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(made, folder)
    path = folder / "config" / file.value
    newest, before = path.read_text(), path.with_name(f"{path.name}.bak").read_text()
    older = re.sub(r'"counter":(\d+)', lambda match: f'"counter":{int(match[1]) - 1}', before, count=1)
    older = re.sub(r'"timestamp":(\d+)', lambda match: f'"timestamp":{int(match[1]) - 1_000}', older, count=1)
    assert older not in (newest, before)
    path.write_text(older)

    reason = _why_it_waits(folder)
    assert f"{file.value} (config/{file.value}: it is an older copy" in reason
    assert path.read_text() == older
