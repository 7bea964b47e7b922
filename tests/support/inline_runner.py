"""Runs the consistency job's tasks where they are asked for, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from tandemmq.consistency.settings import TasksFailed
from tandemmq.consistency.tasks import Task, TaskAnswer, encode_task, run_tasks


class InlineRunner:
    """`TaskRunner`; what passes to Spark's executors as text passes as text here too."""

    slots = 2

    def __init__(self) -> None:
        self.performed: list[Task] = []
        """All tasks, in order."""
        self.before_run: Callable[[Sequence[Task]], None] = lambda tasks: None
        """For tests to change the world between two questions, or to break."""

    def run(self, tasks: Sequence[Task], *, label: str) -> list[TaskAnswer]:
        self.before_run(tasks)
        self.performed += tasks
        answers = [TaskAnswer(**json.loads(text)) for text in run_tasks(encode_task(task) for task in tasks)]
        if len(answers) != len(tasks):
            raise TasksFailed(f"{len(answers)} answers to {len(tasks)} tasks of {label}")
        return answers

    def expect(self, byte_count: int) -> None:
        pass

    def cancel(self) -> None:
        pass

    def bytes_done(self) -> int:
        return 0
