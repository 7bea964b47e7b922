"""A cluster as the twenty tasks need it: what comes before them in the document, done as it is written there."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Final, Self

from e2e.admin.brokers import Brokers
from e2e.admin.shell import Shell
from e2e.admin.twenty_tasks import preparation
from e2e.live_cluster import LiveCluster
from support.cluster_processes import wait_until
from support.running_time import PATIENCE_S

# Leaves its master once before anything is looked at, so that there is something to say about why.
_SLAVE: Final = "broker-a-s"


class Stage:
    """A context manager; the cluster and what sends to it run while the block does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        more = ("--set", "admin:refreshInterval=1000")
        self.cluster = LiveCluster(folder / "data", preset="2m-2s-sync", more=more)
        self.brokers = Brokers(self.cluster)
        self.shell = Shell(folder)

    def __enter__(self) -> Self:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with contextlib.ExitStack() as parts:
            parts.enter_context(self.cluster)
            parts.enter_context(self.shell)
            self.lose_slave_for_a_moment()
            for line in preparation():
                answer = self.shell.run(line)
                assert answer.code == 0, f"{line}\n{answer.output}"
            wait_until(self._has_dead_letters, limit_s=PATIENCE_S, what="fraud-check has dead letters")
            self._parts = parts.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()

    def lose_slave_for_a_moment(self) -> None:
        """A slave dies and comes back; returns when it is in sync."""
        self.cluster.kill(_SLAVE)
        self.cluster.start_again(_SLAVE)
        wait_until(self.is_healthy, limit_s=PATIENCE_S, what="the slave is back")

    def move_archive_away(self) -> None:
        """Puts the group `archive` at the end of `orders`, so that setting it back has something to do."""
        answer = self.shell.run("tandemmq group reset archive orders --to latest --yes")
        assert answer.code == 0, answer.output

    def put_setting_back(self) -> None:
        """Gives `fileReservedTime` of broker-a a value that the script does not."""
        answer = self.shell.run("tandemmq broker config set broker-a fileReservedTime=36 --yes")
        assert answer.code == 0, answer.output

    def is_healthy(self) -> bool:
        """Whether every master has its slave in sync, and the admin says so."""
        try:
            return bool(self.cluster.status()["healthy"])
        except OSError:
            return False

    def _has_dead_letters(self) -> bool:
        found = self.brokers.topic("%DLQ%fraud-check").values()
        return any(queue.max_offset > queue.min_offset for topic in found for queue in topic.queues)
