"""The metadata tables of one broker, their files, and who is told when they change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import structlog

from broker.api.metadata_servicer import ChangeSignal, VersionedTable
from broker.slave.metadata_pull import FollowedTable
from mqcore.clock import Clock
from mqcore.delivery import LeaseTable
from mqcore.metadata import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    LoadedFrom,
    MetadataFile,
    MetadataStore,
    MetadataTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicTable,
    system_subscription_groups,
    system_topics,
)
from mqcore.storage import Disk

__all__ = ["KeptTable", "MetadataTables"]

log = structlog.get_logger(__name__)


class KeptTable(MetadataTable, VersionedTable, FollowedTable, Protocol):
    """What each table offers: to be kept in a file, served to slaves, and taken from a master."""


class MetadataTables:
    """Topics, groups and offsets. Topics and groups are durable before a change returns, offsets on a timer.

    `topics_changed` is told after every change of the topic table, so that the routes follow.
    """

    def __init__(self, disk: Disk, clock: Clock, *, topics_changed: Callable[[], None]) -> None:
        self._files = MetadataStore(disk)
        self._clock = clock
        self._topics_changed = topics_changed
        self.topics = TopicTable()
        self.groups = SubscriptionGroupTable()
        self.consumer_offsets = ConsumerOffsetTable()
        self.delay_offsets = DelayOffsetTable()
        self.by_file: Final[dict[MetadataFile, KeptTable]] = {
            MetadataFile.TOPICS: self.topics,
            MetadataFile.SUBSCRIPTION_GROUPS: self.groups,
            MetadataFile.CONSUMER_OFFSETS: self.consumer_offsets,
            MetadataFile.DELAY_OFFSETS: self.delay_offsets,
        }
        self.changes = ChangeSignal()

    def load(self, *, cluster: str, broker_name: str, auto_create_topic: bool) -> None:
        """Reads the files and adds what every broker has from its first boot. MetadataCorrupt: nothing was changed."""
        for file, table in self.by_file.items():
            if self._files.load(file, table) is LoadedFrom.BACKUP:
                log.warning("metadata_from_backup", file=file.value)
        now_ms = self._clock.wall_ms()
        for topic in system_topics(cluster=cluster, broker_name=broker_name, auto_create_topic=auto_create_topic):
            if self.topics.get(topic.topic_name) is None:
                self.topics.put(topic, now_ms=now_ms)
        for group in system_subscription_groups():
            if self.groups.get(group.group_name) is None:
                self.groups.put(group, now_ms=now_ms)
        self.persist_all()

    def put_topic(self, config: TopicConfig) -> None:
        """Adds or changes a topic of the broker's own accord, durably. Raises InvalidTopic."""
        if self.topics.put(config, now_ms=self._clock.wall_ms()):
            self.topics_edited()
            log.info("topic_created", by="broker", topic=config.topic_name, write_queues=config.write_queue_count)

    def put_group(self, config: SubscriptionGroupConfig) -> None:
        """Adds or changes a group of the broker's own accord, durably. Raises InvalidGroup."""
        if self.groups.put(config, now_ms=self._clock.wall_ms()):
            self.groups_edited()
            log.info("consumer_group_created", by="broker", group=config.group_name)

    def topics_edited(self) -> None:
        """The topic table was changed in place."""
        self.persist(MetadataFile.TOPICS)
        self._topics_changed()
        self.changes.notify()

    def groups_edited(self) -> None:
        """The group table was changed in place."""
        self.persist(MetadataFile.SUBSCRIPTION_GROUPS)
        self.changes.notify()

    def applied_from_master(self, file: MetadataFile) -> None:
        """A slave took its master's table."""
        self.persist(file)
        if file is MetadataFile.TOPICS:
            self._topics_changed()

    def remove_group(self, group: str) -> bool:
        """Removes a group and its progress, durably; False when there is no such group. Progress goes in any case.

        And it goes first: a group that is still there after a crash can be removed again, while progress without its
        group would be found by nobody until a group of that name came back to it.
        """
        now_ms = self._clock.wall_ms()
        self.consumer_offsets.remove_group(group, now_ms=now_ms)
        self._offsets_edited()
        is_removed = self.groups.remove(group, now_ms=now_ms)
        if is_removed:
            self.groups_edited()
        return is_removed

    def forget_progress_in(self, topic: str) -> None:
        """Removes the progress of all groups in a deleted topic, durably."""
        self.consumer_offsets.remove_topic(topic, now_ms=self._clock.wall_ms())
        self._offsets_edited()

    def collect_progress(self, leases: LeaseTable) -> None:
        """Moves the groups' progress into the offset table and its file, and tells the slaves."""
        resets, moves = leases.take_reset_offsets(), leases.take_moved_offsets()
        if not resets and not moves:
            return
        now_ms = self._clock.wall_ms()
        self.consumer_offsets.reset_all(resets, now_ms=now_ms)
        for kept in self.consumer_offsets.commit_all(moves, now_ms=now_ms):
            log.warning("consumer_offset_kept", notice=str(kept))
        self._offsets_edited()

    def _offsets_edited(self) -> None:
        if self.persist(MetadataFile.CONSUMER_OFFSETS):
            self.changes.notify()

    def persist(self, file: MetadataFile) -> bool:
        """Writes one table's file; False when it is unchanged."""
        return self._files.persist(file, self.by_file[file].to_json())

    def persist_all(self) -> None:
        """Writes every file that changed."""
        for file in self.by_file:
            self.persist(file)
