"""The route table of this process, with its clock, its log and its watchers; and the file that keeps its group memory.

The memory is evidence for brokers, and no broker waits for it. A change is on disk within about a second, the mere
growth of logs within five. What a power cut takes from it is asked of other NameServers and of the replicas.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

from tandemmq.core.clock import Clock
from tandemmq.core.quotas import address_of_peer
from tandemmq.core.routing.group_memory import GroupMemory, GroupMemoryDamaged, GroupMemoryImage
from tandemmq.core.routing.route_table import HeartbeatAnswer, Registered, RegistrationRefused, RouteTable
from tandemmq.core.routing.values import (
    BrokerIdentity,
    GroupMemoryAnswer,
    Heartbeat,
    RegisteredBroker,
    Registration,
    ReplicaMemory,
    TopicRoute,
)
from tandemmq.service.logging import LineRoom

# The file of the group memory, which outlives the process:
#
#     DIR/groupMemory.json               the memory, replaced as a whole; a reader sees the old or the new one
#     DIR/groupMemory.json.damaged-<ms>  one that could not be read, kept for people
#     DIR/lock                           locked while a NameServer runs there

FILE_NAME: Final = "groupMemory.json"
_WRITE_INTERVAL_S: Final = 1.0
# Ends of logs move all the time and are only a hint of how far a replica was.
_PROGRESS_INTERVAL_MS: Final = 5_000
_SAID_CHARACTERS_MAX: Final = 300
"""Of what a caller says, in a line: it may be megabytes."""


class StoreFolderError(Exception):
    """storePathRootDir cannot be used: the operator names another folder."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"storePathRootDir={folder}: {reason}")


class GroupMemoryFile:
    """One folder, from `load` until `close`; `keep` writes meanwhile, off the loop."""

    def __init__(self, folder: Path, *, clock: Clock, log: FilteringBoundLogger) -> None:
        self._folder = folder
        self._path = folder / FILE_NAME
        self._clock = clock
        self._log = log
        self._lock_fd = -1
        # What of the memory is on disk.
        self._changes = 0
        self._progress = 0
        self._progress_written_ms = clock.monotonic_ms()
        self._error = ""
        self._stopping = asyncio.Event()

    def load(self) -> GroupMemory | None:
        """Takes the folder and reads what is there; None if that is nothing, or nothing that can be read.

        `StoreFolderError` when the folder cannot be used.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock()
            text = self._path.read_text(encoding="utf-8")
            return GroupMemory.restored(text)
        except FileNotFoundError:
            return None
        except (GroupMemoryDamaged, UnicodeDecodeError) as damage:
            kept = self._path.with_name(f"{FILE_NAME}.damaged-{self._clock.wall_ms()}")
            self._path.rename(kept)
            self._log.error("group_memory_damaged", error=str(damage), kept_as=str(kept))
            return None
        except OSError as error:
            raise StoreFolderError(self._folder, f"{error.strerror}; name a folder that can be written") from error

    async def keep(self, memory: GroupMemory) -> None:
        """Writes what changed until `stop`, and then once more."""
        # At once: a new memory counts its age from its file.
        await self._write(memory)
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_WRITE_INTERVAL_S):
                    await self._stopping.wait()
            if self._is_due(memory):
                await self._write(memory)
        # It may have changed while the last write was under way.
        if self._is_due(memory):
            await self._write(memory)

    def stop(self) -> None:
        """Makes `keep` end."""
        self._stopping.set()

    def close(self) -> None:
        """Leaves the folder to others."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _is_due(self, memory: GroupMemory) -> bool:
        if memory.changes != self._changes:
            return True
        is_late = self._clock.monotonic_ms() - self._progress_written_ms >= _PROGRESS_INTERVAL_MS
        return memory.progress != self._progress and (is_late or self._stopping.is_set())

    async def _write(self, memory: GroupMemory) -> None:
        changes, progress = memory.changes, memory.progress
        if await asyncio.to_thread(self._write_logged, memory.image()):
            self._changes, self._progress = changes, progress
            self._progress_written_ms = self._clock.monotonic_ms()

    def _write_logged(self, image: GroupMemoryImage) -> bool:
        """False if it failed, which is logged once for each cause and tried again."""
        try:
            _replace_file(self._path, image.text().encode())
        except OSError as error:
            if str(error) != self._error:
                self._log.error("group_memory_not_written", path=str(self._path), error=str(error))
            self._error = str(error)
            return False
        self._error = ""
        return True

    def _lock(self) -> None:
        self._lock_fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise StoreFolderError(
                self._folder, "another NameServer uses this folder; give each one of its own"
            ) from None


def _replace_file(path: Path, content: bytes) -> None:
    """Replaces a file durably; a crash leaves the old or the new one."""
    unfinished = path.with_name(path.name + ".new")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd)
    unfinished.replace(path)
    folder_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)


# What one NameServer did since it started: plain counters, read when somebody asks.


class Activity:
    """Event loop only. Keys are those of the labels in `name_server.py`."""

    def __init__(self) -> None:
        self.registrations: Counter[str] = Counter()
        self.heartbeats = 0
        self.brokers_lost: Counter[str] = Counter()
        self.route_queries: Counter[str] = Counter()
        self.access_refused: Counter[str] = Counter()
        # Open now.
        self.watchers = 0


class RouteRegistry:
    """Performs what `RouteTable` decides: tells it the time, logs who came and went, wakes who watches.

    Event loop only. Reads go to `table` directly.
    """

    def __init__(self, *, clock: Clock, log: FilteringBoundLogger, memory: GroupMemory | None = None) -> None:
        """`memory` is of an earlier process, or new."""
        self.table = RouteTable(memory or GroupMemory(made_wall_ms=clock.wall_ms()))
        self._is_memory_restored = memory is not None
        self._started_ms = clock.monotonic_ms()
        self.activity = Activity()
        self._clock = clock
        self._log = log
        self._last_connection = 0
        self._changed = asyncio.Event()
        self._is_closed = False
        self._refusals = LineRoom()

    def tell_refused(self, identity: BrokerIdentity, reason: str, *, peer: str, **more: object) -> None:
        """A broker that is not taken comes again each second or two, and a stranger as often as it likes."""
        host = address_of_peer(peer)
        names = _identity_keys(identity)
        kind = (host, *map(str, names.values()))
        not_told = self._refusals.take(kind, host, self._clock.monotonic_ms())
        if not_told is not None:
            reason = reason[:_SAID_CHARACTERS_MAX]
            self._log.warning("registration_refused", **names, peer=peer, reason=reason, **more, **not_told.fields())

    def register(self, registration: Registration, *, peer: str = "") -> Registered | RegistrationRefused:
        answer = self.table.register(registration, now_ms=self._clock.monotonic_ms(), wall_ms=self._clock.wall_ms())
        log = self._log.bind(**_identity_keys(registration.identity), incarnation=registration.incarnation)
        if isinstance(answer, RegistrationRefused):
            self.activity.registrations["refused"] += 1
            self.tell_refused(
                registration.identity,
                answer.reason,
                peer=peer,
                incarnation=registration.incarnation,
                superseded=answer.is_superseded,
            )
            return answer
        for broker in answer.replaced:
            log.info("broker_replaced", former_broker_id=broker.identity.broker_id, former=broker.endpoints.client)
        outcome = "new" if answer.is_new else "change" if answer.is_change else "unchanged"
        self.activity.registrations[outcome] += 1
        if registration.recovering and answer.is_change:
            log.info("broker_recovering", waits_for=registration.recovering)
        elif answer.is_new:
            log.info("broker_registered", endpoint=registration.endpoints.client, topics=len(registration.topics))
        elif answer.is_change:
            log.info("broker_changed", endpoint=registration.endpoints.client, topics=len(registration.topics))
        self._tell_watchers(is_change=answer.is_change)
        return answer

    def open_connection(self) -> int:
        """A number for a new heartbeat stream."""
        self._last_connection += 1
        return self._last_connection

    def heartbeat(self, beat: Heartbeat, *, connection: int) -> HeartbeatAnswer:
        self.activity.heartbeats += 1
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        answer = self.table.heartbeat(beat, connection=connection, now_ms=now_ms, wall_ms=wall_ms)
        self._tell_watchers(is_change=answer.is_change)
        return answer

    def connection_lost(self, connection: int) -> None:
        # When this process ends it breaks the streams itself; nobody is lost.
        if not self._is_closed:
            self._brokers_lost(self.table.connection_lost(connection), cause="heartbeat_stream_ended")

    def route(self, topic: str) -> TopicRoute | None:
        """One route, for who asks for no other; None when no live broker has the topic."""
        route = self.table.route(topic)
        self.activity.route_queries["missing" if route is None else "found"] += 1
        return route

    def unregister(
        self,
        identity: BrokerIdentity,
        *,
        incarnation: int,
        disk_id: str = "",
        run: int = 0,
        end_offset: int | None = None,
    ) -> None:
        """A broker says goodbye, or where its log ends after it did."""
        broker = self.table.unregister(
            identity, incarnation=incarnation, disk_id=disk_id, run=run, end_offset=end_offset
        )
        if broker is not None:
            self._log.info("broker_unregistered", **_identity_keys(identity), endpoint=broker.endpoints.client)
            self._tell_watchers(is_change=True)

    def wipe_write_permission(self, broker_name: str) -> int:
        """A drain begins; returns the number of topics changed."""
        return self._write_permission(
            "write_permission_wiped", broker_name, self.table.wipe_write_permission(broker_name)
        )

    def add_write_permission(self, broker_name: str) -> int:
        """A drain ends; returns the number of topics changed."""
        return self._write_permission(
            "write_permission_added", broker_name, self.table.add_write_permission(broker_name)
        )

    def put_kv(self, namespace: str, key: str, value: str) -> None:
        self.table.put_kv(namespace, key, value)
        self._log.info("kv_config_put", namespace=namespace, key=key)
        self._tell_watchers(is_change=True)

    def delete_kv(self, namespace: str, key: str) -> None:
        self.table.delete_kv(namespace, key)
        self._log.info("kv_config_deleted", namespace=namespace, key=key)
        self._tell_watchers(is_change=True)

    def group_memory(self, cluster: str, broker_name: str) -> GroupMemoryAnswer:
        """All replicas that a group ever had."""
        memory = self.table.memory
        age_ms = self._clock.monotonic_ms() - self._started_ms
        if self._is_memory_restored:
            # An earlier process wrote it, and only a wall clock outlives a process.
            age_ms = max(age_ms, self._clock.wall_ms() - memory.made_wall_ms)
        return GroupMemoryAnswer(memory.replicas((cluster, broker_name)), age_ms)

    def forget_replicas(
        self, cluster: str, broker_name: str, *, broker_id: int | None, disk_id: str
    ) -> tuple[ReplicaMemory, ...]:
        """An operator gives replicas up; returns them."""
        forgotten = self.table.memory.forget((cluster, broker_name), broker_id=broker_id, disk_id=disk_id)
        for replica in forgotten:
            self._log.warning(
                "replica_forgotten",
                **_identity_keys(BrokerIdentity(cluster, broker_name, replica.broker_id)),
                disk_id=replica.disk_id,
                epoch=replica.epoch,
                end_offset=replica.end_offset,
            )
        return forgotten

    def last_seen_wall_ms(self, identity: BrokerIdentity) -> int:
        """Wall clock of a live broker's last sign of life, for people to read."""
        now_ms = self._clock.monotonic_ms()
        last_seen_ms = self.table.last_seen_ms(identity)
        silent_ms = now_ms - last_seen_ms if last_seen_ms is not None else 0
        return self._clock.wall_ms() - silent_ms

    async def revision_other_than(self, revision: int) -> None:
        """Returns once the table has another revision; at once if it has."""
        while self.table.revision == revision:
            await self._changed.wait()

    async def expire_silent_brokers(self, *, interval_ms: int) -> None:
        """Looks for brokers that were silent too long, until cancelled."""
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            self._brokers_lost(self.table.expire(now_ms=self._clock.monotonic_ms()), cause="silent")

    def close(self) -> None:
        """From here on a heartbeat stream that ends means nothing."""
        self._is_closed = True

    def _brokers_lost(self, brokers: Sequence[RegisteredBroker], *, cause: str) -> None:
        self.activity.brokers_lost[cause] += len(brokers)
        for broker in brokers:
            self._log.warning(
                "broker_lost", **_identity_keys(broker.identity), endpoint=broker.endpoints.client, cause=cause
            )
        self._tell_watchers(is_change=bool(brokers))

    def _write_permission(self, event: str, broker_name: str, topic_count: int) -> int:
        self._log.info(event, broker_name=broker_name, topics=topic_count)
        self._tell_watchers(is_change=True)
        return topic_count

    def _tell_watchers(self, *, is_change: bool) -> None:
        if is_change:
            # Each event wakes who waits now; later waiters get the next one.
            self._changed.set()
            self._changed = asyncio.Event()


def _identity_keys(identity: BrokerIdentity) -> dict[str, str | int]:
    cluster, name = (text[:_SAID_CHARACTERS_MAX] for text in (identity.cluster, identity.broker_name))
    return {"cluster": cluster, "broker_name": name, "broker_id": identity.broker_id}
