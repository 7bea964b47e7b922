"""Runs tasks on this machine, without Spark: `python -m tandemmq.consistency.local_runner` is one of its processes.

Java and Spark take 5 to 12 s of CPU before the first byte is read; a cluster of some gigabytes is proven equal by then.
Threads do what waits: reading, hashing, asking brokers. What computes in Python and is worth it goes to processes of
its own, one beside each thread. Either does what Spark's executors do: `run_tasks`, a task's JSON in and its answer's
JSON out. So a run finds the same, whatever runs its tasks.

`Engine` chooses: it begins here, and goes on with Spark when there turns out to be more than one machine should read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from tandemmq.consistency.settings import TasksFailed, TooLarge
from tandemmq.consistency.tasks import Task, TaskAnswer, TaskRunner, encode_task, run_tasks

_PROCESS_KINDS: Final = frozenset({"check", "compare", "name"})
"""They hold Python's lock while they work; the others wait for disks and networks, or hash."""
_WORTH_PROCESSES_BYTES: Final = 128 << 20
"""A process is there after half a second of CPU."""
_ASKED_AT_ONCE: Final = 8
"""Tasks that wait for brokers, which do the work."""
_LOOK_S: Final = 0.2
"""So soon a run that was cancelled ends."""
_GB: Final = 1_000_000_000


class LocalRunner:
    """`TaskRunner` of threads and processes of this machine. A context: its end ends the processes."""

    def __init__(self, *, slots: int = 0) -> None:
        """`slots`: tasks that compute at once; 0: as many as there are CPUs for this process."""
        self._slots = slots or len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        self._done_bytes: dict[int, int] = {}
        self._runs = 0
        self._is_cancelled = threading.Event()
        self._computing = threading.BoundedSemaphore(self._slots)
        self._idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_cancelled.set()
        with self._lock:
            processes, self._processes = self._processes, []
        for process in processes:
            _end(process)

    @property
    def slots(self) -> int:
        return self._slots

    def expect(self, byte_count: int) -> None:
        """See TaskRunner. Whoever wants all of it here gets it."""

    def run(self, tasks: Sequence[Task], *, label: str) -> list[TaskAnswer]:
        if not tasks:
            return []
        heavy = sum(task.expected_bytes for task in tasks if task.kind in _PROCESS_KINDS)
        with_processes = heavy >= _WORTH_PROCESSES_BYTES and self._slots > 1 and len(tasks) > 1
        todo: SimpleQueue[int] = SimpleQueue()
        for number in range(len(tasks)):
            todo.put(number)
        answers: SimpleQueue[tuple[int, TaskAnswer | BaseException]] = SimpleQueue()
        with self._lock:
            self._runs += 1
            run = self._runs
            self._done_bytes[run] = 0

        def work() -> None:
            while not self._is_cancelled.is_set():
                try:
                    number = todo.get_nowait()
                except Empty:
                    return
                try:
                    answers.put((number, self._perform(tasks[number], with_processes=with_processes)))
                except BaseException as error:
                    answers.put((number, error))
                    return
                with self._lock:
                    if run in self._done_bytes:
                        self._done_bytes[run] += tasks[number].expected_bytes

        for _ in range(min(len(tasks), max(self._slots, _ASKED_AT_ONCE))):
            # Daemons: whoever cancels a run does not wait for a broker that takes its time.
            threading.Thread(target=work, name=f"task-{label}", daemon=True).start()
        try:
            return self._collect(len(tasks), answers)
        finally:
            with self._lock:
                del self._done_bytes[run]

    def cancel(self) -> None:
        self._is_cancelled.set()

    def bytes_done(self) -> int:
        with self._lock:
            return sum(self._done_bytes.values())

    def _collect(self, count: int, answers: SimpleQueue[tuple[int, TaskAnswer | BaseException]]) -> list[TaskAnswer]:
        found: dict[int, TaskAnswer] = {}
        while len(found) < count:
            try:
                number, answer = answers.get(timeout=_LOOK_S)
            except Empty:
                if self._is_cancelled.is_set():
                    raise TasksFailed("the run was stopped") from None
                continue
            if isinstance(answer, TasksFailed):
                raise answer
            if isinstance(answer, BaseException):
                raise TasksFailed(f"{type(answer).__name__}: {answer}") from answer
            found[number] = answer
        return [found[number] for number in range(count)]

    def _perform(self, task: Task, *, with_processes: bool) -> TaskAnswer:
        text = encode_task(task)
        if all(spec.is_broker for spec in task.specs):
            return _without_cpu(next(run_tasks([text])))
        with self._computing:
            if with_processes and task.kind in _PROCESS_KINDS:
                return TaskAnswer(**json.loads(self._ask_process(text)))
            return _without_cpu(next(run_tasks([text])))

    def _ask_process(self, text: str) -> str:
        """What one of the processes answers. One that ends meanwhile has met a bug, or was killed."""
        try:
            process = self._idle.get_nowait()
        except Empty:
            process = self._start_process()
        assert process.stdin is not None, "made with pipes"
        assert process.stdout is not None, "made with pipes"
        try:
            process.stdin.write(f"{text}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except (BrokenPipeError, ValueError):
            answer = ""
        if not answer:
            raise TasksFailed(f"a process that reads for this one ended with {process.wait()}; its error is above")
        self._idle.put(process)
        return answer

    def _start_process(self) -> subprocess.Popen[str]:
        # A session of its own: Ctrl-C is for the run, which has a report to write. It ends with its standard input.
        process = subprocess.Popen(
            [sys.executable, "-m", "tandemmq.consistency.local_runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with self._lock:
            if not self._is_cancelled.is_set():
                self._processes.append(process)
                return process
        _end(process)
        raise TasksFailed("the run was stopped")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        # One that was killed leaves what it was not given.
        with suppress(BrokenPipeError):
            if pipe is not None:
                pipe.close()


def _without_cpu(text: str) -> TaskAnswer:
    """The answer of a task that ran in this process, whose CPU is counted as a whole."""
    return TaskAnswer(**(json.loads(text) | {"cpu_seconds": 0.0}))


class Engine:
    """`TaskRunner` that begins here and goes on with Spark when more than `limit_bytes` are to be read."""

    def __init__(
        self, local: LocalRunner, *, limit_bytes: int, start_spark: Callable[[], TaskRunner], is_spark_there: bool
    ) -> None:
        self._local = local
        self._limit_bytes = limit_bytes
        self._start_spark = start_spark
        self._is_spark_there = is_spark_there
        self._expected_bytes = 0
        self._lock = threading.Lock()
        self._runner: TaskRunner = local

    @property
    def slots(self) -> int:
        return self._runner.slots

    def expect(self, byte_count: int) -> None:
        """See TaskRunner. Raises TooLarge, and SparkUnusable."""
        with self._lock:
            self._expected_bytes += byte_count
            if self._expected_bytes <= self._limit_bytes or self._runner is not self._local:
                return
            if not self._is_spark_there:
                self._local.cancel()
                raise TooLarge(
                    f"{self._expected_bytes / _GB:,.1f} GB are to be read, and this machine alone reads up to "
                    f"{self._limit_bytes / _GB:,.1f} GB (localMaxBytes): pip install 'tandemmq[consistency]' for "
                    "Spark, verify group by group (--group), or have it done here all the same (--engine local)"
                )
            self._runner = self._start_spark()

    def run(self, tasks: Sequence[Task], *, label: str) -> list[TaskAnswer]:
        return self._runner.run(tasks, label=label)

    def cancel(self) -> None:
        self._local.cancel()
        if self._runner is not self._local:
            self._runner.cancel()

    def bytes_done(self) -> int:
        local = self._local.bytes_done()
        return local if self._runner is self._local else local + self._runner.bytes_done()


def main() -> int:
    """Answers line by line until there are no more tasks."""
    for answer in run_tasks(iter(sys.stdin.readline, "")):
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
