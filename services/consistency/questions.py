"""Asks replicas through tasks, and keeps the account: what was read of whom, and who stopped answering."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from consistency.group_store import GroupStore
from consistency.progress import Progress
from consistency.spark_runner import TaskRunner
from consistency.tasks import Task, TaskAnswer

__all__ = ["Questions"]


class Questions:
    """What is asked about one group in one run. For one thread."""

    def __init__(self, group: str, runner: TaskRunner, store: GroupStore, progress: Progress) -> None:
        self.problems: Final[dict[int, str]] = {}
        """By broker id: why a replica is not read any further."""
        self.bytes_read: Final[dict[int, int]] = {}
        self.cpu_seconds = 0.0
        self._group = group
        self._runner = runner
        self._store = store
        self._progress = progress
        self._remembered: Mapping[str, TaskAnswer] | None = None

    @property
    def slots(self) -> int:
        """Tasks that run at once."""
        return self._runner.slots

    def ask(self, tasks: Sequence[Task]) -> list[TaskAnswer]:
        """The answers, in order. The first problem of a replica is its last. Raises TasksFailed."""
        answers = self._runner.run(tasks, label=self._group)
        for task, answer in zip(tasks, answers):
            self._progress.read(task.expected_bytes)
            self._account(task, answer)
        return answers

    def ask_once(self, tasks: Sequence[Task]) -> list[TaskAnswer]:
        """The same, but what was answered before the run was cut off is not asked again."""
        if self._remembered is None:
            self._remembered = self._store.load_answers(now_s=time.time())
        known = {task.key: self._remembered[task.key] for task in tasks if task.key in self._remembered}
        open_tasks = [task for task in tasks if task.key not in known]
        self._progress.read(sum(task.expected_bytes for task in tasks if task.key in known))
        fresh = self.ask(open_tasks)
        # What is wrong now may be mended when the next run asks.
        worth_keeping = [answer for answer in fresh if not answer.problem and not answer.values.get("findings")]
        if worth_keeping:
            self._store.save_answers(worth_keeping, now_s=time.time())
        known |= {task.key: answer for task, answer in zip(open_tasks, fresh)}
        return [known[task.key] for task in tasks]

    def _account(self, task: Task, answer: TaskAnswer) -> None:
        self.cpu_seconds += answer.cpu_seconds
        for broker_id in task.broker_ids:
            self.bytes_read[broker_id] = self.bytes_read.get(broker_id, 0) + answer.bytes_read // len(task.broker_ids)
        if answer.problem and len(task.broker_ids) == 1:
            self.problems.setdefault(task.broker_ids[0], answer.problem)
