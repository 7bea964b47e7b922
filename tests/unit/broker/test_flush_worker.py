"""The thread that waits for the disk: group commit, pauses, and a disk that fails."""

from __future__ import annotations

import asyncio
import threading

import pytest
from structlog.testing import capture_logs

from support.running_time import PATIENCE_S
from tandemmq.broker import flush_worker
from tandemmq.broker.flush_worker import FlushWorker, with_room
from tandemmq.core.storage.disk import DiskError, DiskFull


class Job:
    """Waits until the test lets it go."""

    def __init__(self, *, error: DiskError | None = None) -> None:
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.error = error

    def run(self) -> None:
        self.started.set()
        assert self.go_on.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error


class Harness:
    """A worker with the jobs it will take and what became of them."""

    def __init__(self, *jobs: Job) -> None:
        self.jobs = list(jobs)
        self.finished: list[Job] = []
        self.failures: list[DiskError] = []
        self.worker = FlushWorker("test", take=self._take, finished=self.finished.append, failed=self.failures.append)

    def _take(self) -> Job | None:
        return self.jobs.pop(0) if self.jobs else None


async def started(job: Job) -> None:
    await asyncio.to_thread(job.started.wait, 10)


async def test_kicks_during_a_job_become_one_more_job() -> None:
    first, second, third = Job(), Job(), Job()
    harness = Harness(first, second, third)
    task = asyncio.create_task(harness.worker.run())
    harness.worker.kick()
    await started(first)
    harness.worker.kick()
    harness.worker.kick()
    second.go_on.set()
    first.go_on.set()
    await started(second)
    async with harness.worker.paused():
        assert harness.finished == [first, second]
        assert harness.jobs == [third]
    third.go_on.set()
    await harness.worker.close()
    await asyncio.wait_for(task, PATIENCE_S)


async def test_pause_waits_for_the_running_job_and_holds_back_the_next() -> None:
    first, second = Job(), Job()
    harness = Harness(first, second)
    task = asyncio.create_task(harness.worker.run())
    harness.worker.kick()
    await started(first)
    first.go_on.set()
    second.go_on.set()
    async with harness.worker.paused():
        assert harness.finished == [first]
        harness.worker.kick()
        await asyncio.sleep(0.01)
        assert harness.jobs == [second]
    await started(second)
    await harness.worker.close()
    await asyncio.wait_for(task, PATIENCE_S)


async def test_failed_sync_is_told_and_nothing_is_finished_after_it() -> None:
    broken, never = Job(error=DiskError("commitlog/0", "sync failed")), Job()
    harness = Harness(broken, never)
    broken.go_on.set()
    task = asyncio.create_task(harness.worker.run())
    harness.worker.kick()
    await asyncio.wait_for(task, PATIENCE_S)
    harness.worker.kick()
    assert len(harness.failures) == 1
    assert harness.finished == []
    assert harness.jobs == [never]
    await harness.worker.close()


async def test_close_finishes_the_job_that_is_out() -> None:
    job = Job()
    harness = Harness(job)
    task = asyncio.create_task(harness.worker.run())
    harness.worker.kick()
    await started(job)
    closing = asyncio.create_task(harness.worker.close())
    await asyncio.sleep(0)
    job.go_on.set()
    await asyncio.wait_for(closing, PATIENCE_S)
    assert harness.finished == [job]
    await asyncio.wait_for(task, PATIENCE_S)


class Full:
    """A disk that has room the third time."""

    def __init__(self) -> None:
        self.tries = 0

    def run(self) -> None:
        self.tries += 1
        if self.tries < 3:
            raise DiskFull("disk full: config/topics.json")


@pytest.mark.parametrize(("waits_for_room", "tries"), [(True, 3), (False, 1)])
async def test_a_job_without_room_is_run_again_where_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, waits_for_room: bool, tries: int
) -> None:
    monkeypatch.setattr("tandemmq.broker.flush_worker.ROOM_PAUSE_S", 0)
    job = Full()
    jobs = [job]
    ended: asyncio.Future[Full | DiskError] = asyncio.get_running_loop().create_future()
    worker = FlushWorker[Full](
        "test",
        take=lambda: jobs.pop() if jobs else None,
        finished=ended.set_result,
        failed=ended.set_result,
        waits_for_room=waits_for_room,
    )
    task = asyncio.create_task(worker.run())
    worker.kick()
    end = await asyncio.wait_for(ended, PATIENCE_S)
    assert (job.tries, end is job) == (tries, waits_for_room)
    await worker.close()
    await asyncio.wait_for(task, PATIENCE_S)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush_worker, "ROOM_PAUSE_S", 0.0)


@pytest.mark.usefixtures("pauses")
async def test_a_step_of_a_start_that_finds_no_room_is_taken_again_and_tells_what_is_full() -> None:
    answers = iter([DiskFull("disk full: kept-tails"), DiskFull("disk full: kept-tails"), None])

    def step() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "done"

    with capture_logs() as logs:
        assert await with_room(step, stop=asyncio.Event()) == "done"
    [told] = [line for line in logs if line["event"] == "disk_full"]
    assert (told["reason"], "make room" in told["remedy"]) == ("disk full: kept-tails", True)


async def test_a_start_that_finds_no_room_ends_when_the_broker_does() -> None:
    def step() -> None:
        raise DiskFull("disk full: kept-tails")

    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, stop.set)
    with pytest.raises(DiskFull):
        await with_room(step, stop=stop)
