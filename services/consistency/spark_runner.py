"""Runs tasks on Spark.

An RDD of strings, not a DataFrame: a task's JSON in, an answer's JSON out. Planning a query and starting Arrow in every
worker costs some 8 s of CPU before the first byte is read; neither has anything to plan or to move here.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from consistency.errors import TasksFailed
from consistency.tasks import Task, TaskAnswer, run_tasks

__all__ = ["SparkRunner", "TaskRunner", "encode_task"]


class TaskRunner(Protocol):
    """Whatever runs tasks."""

    @property
    def slots(self) -> int:
        """Tasks that run at once."""

    def run(self, tasks: Sequence[Task], *, label: str) -> list[TaskAnswer]:
        """The answers, in the order of the tasks. Blocks; may be called by several threads. Raises TasksFailed."""

    def bytes_done(self) -> int:
        """That the tasks which are running now are through with, about."""


def encode_task(task: Task) -> str:
    """What `run_tasks` reads."""
    return json.dumps({"kind": task.kind, "task": task.to_json()}, separators=(",", ":"))


class SparkRunner:
    """`TaskRunner` on a SparkContext, each task a partition."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._running: dict[str, tuple[int, int]] = {}
        """Job group: its tasks, their bytes."""
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    @property
    def slots(self) -> int:
        """See TaskRunner."""
        return max(1, int(self._context.defaultParallelism))

    def run(self, tasks: Sequence[Task], *, label: str) -> list[TaskAnswer]:
        """See TaskRunner."""
        if not tasks:
            return []
        job_group = f"{label}-{next(self._numbers)}"
        with self._lock:
            self._running[job_group] = (len(tasks), sum(task.expected_bytes for task in tasks))
        try:
            # Both are properties of this thread, which Spark's own thread for it follows.
            self._context.setJobGroup(job_group, label, interruptOnCancel=True)
            self._context.setLocalProperty("spark.scheduler.pool", label)
            texts = self._context.parallelize([encode_task(task) for task in tasks], len(tasks))
            answers = texts.mapPartitions(run_tasks).collect()
        except Exception as error:
            # Py4J's error carries the executor's whole traceback; the log has it too.
            raise TasksFailed(f"{type(error).__name__}: {_cause(error)}") from error
        finally:
            with self._lock:
                del self._running[job_group]
        return [TaskAnswer(**json.loads(answer)) for answer in answers]

    def cancel(self) -> None:
        """Ends all that runs: whoever waits for it gets TasksFailed."""
        self._context.cancelAllJobs()

    def bytes_done(self) -> int:
        """See TaskRunner. Spark tells how many tasks of a job are through; they are about equal."""
        with self._lock:
            running = dict(self._running)
        tracker = self._context.statusTracker()
        done = 0
        for job_group, (task_count, total_bytes) in running.items():
            infos = [tracker.getJobInfo(job_id) for job_id in tracker.getJobIdsForGroup(job_group)]
            stages = [tracker.getStageInfo(stage) for info in infos if info is not None for stage in info.stageIds]
            completed = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            done += total_bytes * min(completed, task_count) // task_count
        return done


def _cause(error: Exception) -> str:
    """The line that says what happened: the last one of the innermost traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line or "Exception" in line]
    return (named or lines or ["no reason was given"])[-1][:500]
