"""The metadata tables of one broker, their files, and who is told when they change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
from tandemmq.broker.v1 import metadata_service_pb2 as pb

from broker.api.metadata_servicer import ChangeSignal
from mqcore.clock import Clock
from mqcore.delivery import LeaseTable
from mqcore.metadata import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    GroupOffset,
    LoadedFrom,
    MetadataFile,
    MetadataStore,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicTable,
    system_subscription_groups,
    system_topics,
)
from mqcore.storage import Disk

__all__ = ["MetadataTables"]

log = structlog.get_logger(__name__)

_FILES: Final = {
    pb.METADATA_TABLE_TOPICS: MetadataFile.TOPICS,
    pb.METADATA_TABLE_SUBSCRIPTION_GROUPS: MetadataFile.SUBSCRIPTION_GROUPS,
    pb.METADATA_TABLE_CONSUMER_OFFSETS: MetadataFile.CONSUMER_OFFSETS,
    pb.METADATA_TABLE_DELAY_OFFSETS: MetadataFile.DELAY_OFFSETS,
}


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
        self.by_kind = {
            pb.METADATA_TABLE_TOPICS: self.topics,
            pb.METADATA_TABLE_SUBSCRIPTION_GROUPS: self.groups,
            pb.METADATA_TABLE_CONSUMER_OFFSETS: self.consumer_offsets,
            pb.METADATA_TABLE_DELAY_OFFSETS: self.delay_offsets,
        }
        self.changes = ChangeSignal()

    def load(self, *, cluster: str, broker_name: str, auto_create_topic: bool) -> None:
        """Reads the files and adds what every broker has from its first boot. MetadataCorrupt: nothing was changed."""
        for kind, table in self.by_kind.items():
            if self._files.load(_FILES[kind], table) is LoadedFrom.BACKUP:
                log.warning("metadata_from_backup", file=_FILES[kind].value)
        now_ms = self._clock.wall_ms()
        for topic in system_topics(cluster=cluster, broker_name=broker_name, auto_create_topic=auto_create_topic):
            if self.topics.get(topic.topic_name) is None:
                self.topics.put(topic, now_ms=now_ms)
        for group in system_subscription_groups():
            if self.groups.get(group.group_name) is None:
                self.groups.put(group, now_ms=now_ms)
        self.persist_all()

    def put_topic(self, config: TopicConfig) -> None:
        """Adds or changes a topic, durably. Raises InvalidTopic."""
        if self.topics.put(config, now_ms=self._clock.wall_ms()):
            self.topics_edited()

    def put_group(self, config: SubscriptionGroupConfig) -> None:
        """Adds or changes a group, durably. Raises InvalidGroup."""
        if self.groups.put(config, now_ms=self._clock.wall_ms()):
            self.groups_edited()

    def topics_edited(self) -> None:
        """The topic table was changed in place."""
        self.persist(pb.METADATA_TABLE_TOPICS)
        self._topics_changed()
        self.changes.notify()

    def groups_edited(self) -> None:
        """The group table was changed in place."""
        self.persist(pb.METADATA_TABLE_SUBSCRIPTION_GROUPS)
        self.changes.notify()

    def applied_from_master(self, kind: int) -> None:
        """A slave took its master's table."""
        self.persist(kind)
        if kind == pb.METADATA_TABLE_TOPICS:
            self._topics_changed()

    def collect_progress(self, leases: LeaseTable) -> None:
        """Moves the groups' progress into the offset table and its file, and tells the slaves."""
        kept = self.consumer_offsets.commit_all(
            (GroupOffset(*item) for item in leases.committed_offsets()), now_ms=self._clock.wall_ms()
        )
        for offset in kept:
            log.warning("consumer_offset_kept", notice=str(offset))
        if self.persist(pb.METADATA_TABLE_CONSUMER_OFFSETS):
            self.changes.notify()

    def persist(self, kind: int) -> bool:
        """Writes one table's file; False when it is unchanged."""
        table = self.by_kind[pb.MetadataTable.ValueType(kind)]
        return self._files.persist(_FILES[pb.MetadataTable.ValueType(kind)], table.to_json())

    def persist_all(self) -> None:
        """Writes every file that changed."""
        for kind in self.by_kind:
            self.persist(kind)
