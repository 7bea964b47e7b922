"""Values as answers of ClusterOperationsService. The edge: nothing deeper knows protobuf."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from tandemmq.admin.operations.values import (
    AcceptedLoss,
    ChangeResult,
    Client,
    DeadLetterResult,
    EventLine,
    Extent,
    GroupDetail,
    GroupSummary,
    HoldingState,
    KeptTail,
    Message,
    MessageDetail,
    MessagePage,
    MessageSummary,
    OffsetReset,
    Page,
    Progress,
    Route,
    Setting,
    TailResult,
    TestReceipt,
    TopicDetail,
    TopicSummary,
    Unseen,
)
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as broker_pb
from tandemmq.proto.admin.v1 import cluster_operations_service_pb2 as pb
from tandemmq.proto.admin.v1 import message_query_service_pb2 as query_pb

__all__ = [
    "accepted_loss",
    "change_report",
    "client_list",
    "cluster_event",
    "cluster_message",
    "group_answer",
    "group_list",
    "inspected_message",
    "kept_tail_list",
    "message_page",
    "offset_move",
    "receipt",
    "resent_letter",
    "restored_tail",
    "setting_view",
    "topic_answer",
    "topic_list",
    "unseen_messages",
]

_CATEGORIES: Final = {
    "topic": pb.TOPIC_CATEGORY_TOPIC,
    "retry": pb.TOPIC_CATEGORY_RETRY,
    "dead letter": pb.TOPIC_CATEGORY_DEAD_LETTER,
    "system": pb.TOPIC_CATEGORY_SYSTEM,
}


def unseen_messages(unseen: Iterable[Unseen]) -> list[pb.Unseen]:
    """Who could not be asked."""
    return [pb.Unseen(subject=each.subject, reason=each.reason) for each in unseen]


def change_report(result: ChangeResult) -> pb.ChangeReport:
    """What an operation changed."""
    return pb.ChangeReport(
        changes=[pb.SubjectChange(subject=change.subject, what=change.what) for change in result.changes],
        dry_run=result.dry_run,
        warnings=result.warnings,
    )


# Topics


def topic_list(page: Page[TopicSummary]) -> pb.ListClusterTopicsResponse:
    """A page of topics."""
    return pb.ListClusterTopicsResponse(
        topics=[_topic(topic) for topic in page.items],
        next_page_token=_next_page(page),
        total_count=page.total,
        unseen=unseen_messages(page.unseen),
    )


def topic_answer(topic: TopicDetail) -> pb.GetClusterTopicResponse:
    """One topic."""
    return pb.GetClusterTopicResponse(
        summary=_topic(topic.summary),
        extents=[_extent(extent) for extent in topic.extents],
        routes=[_route(route) for route in topic.routes],
        routes_agree=topic.routes_agree,
        groups=[_progress(progress) for progress in topic.groups],
        unseen=unseen_messages(topic.unseen),
    )


def _topic(topic: TopicSummary) -> pb.TopicSummary:
    return pb.TopicSummary(
        name=topic.name,
        category=_CATEGORIES.get(topic.category, pb.TOPIC_CATEGORY_UNSPECIFIED),
        brokers=[
            pb.BrokerTopic(
                broker_name=broker.broker_name,
                read_queue_count=broker.read_queue_count,
                write_queue_count=broker.write_queue_count,
                permission=broker.permission,
                message_type=broker.message_type,
            )
            for broker in topic.brokers
        ],
        held_count=topic.held,
        stored_count=topic.stored,
    )


def _extent(extent: Extent) -> pb.TopicExtent:
    queue = query_pb.QueueStatus(
        queue_id=extent.queue_id,
        min_offset=extent.min_offset,
        max_offset=extent.max_offset,
        oldest_store_time=_time(extent.oldest_store_ms),
        newest_store_time=_time(extent.newest_store_ms),
    )
    return pb.TopicExtent(broker_name=extent.broker_name, queue=queue)


def _route(route: Route) -> pb.NameServerRoute:
    return pb.NameServerRoute(
        name_server=route.name_server,
        queues=[
            pb.RouteQueues(
                broker_name=queues.broker_name,
                read_queue_count=queues.read_queue_count,
                write_queue_count=queues.write_queue_count,
                permission=queues.permission,
            )
            for queues in route.queues
        ],
        brokers=route.brokers,
    )


# Groups and clients


def group_list(page: Page[GroupSummary]) -> pb.ListClusterGroupsResponse:
    """A page of groups."""
    return pb.ListClusterGroupsResponse(
        groups=[_group(group) for group in page.items],
        next_page_token=_next_page(page),
        total_count=page.total,
        unseen=unseen_messages(page.unseen),
    )


def group_answer(group: GroupDetail) -> pb.GetClusterGroupResponse:
    """One group."""
    return pb.GetClusterGroupResponse(
        summary=_group(group.summary),
        progress=[_progress(progress) for progress in group.progress],
        members=[_client(client) for client in group.members],
        dead_letter_count=group.dead_letters,
        unseen=unseen_messages(group.unseen),
    )


def client_list(page: Page[Client]) -> pb.ListClusterClientsResponse:
    """Clients."""
    return pb.ListClusterClientsResponse(
        clients=[_client(client) for client in page.items],
        total_count=page.total,
        unseen=unseen_messages(page.unseen),
    )


def offset_move(reset: OffsetReset) -> pb.GroupOffsetMove:
    """One queue's move."""
    move = broker_pb.OffsetMove(
        queue_id=reset.queue_id,
        from_offset=reset.from_offset,
        to_offset=reset.to_offset,
        max_offset=reset.max_offset,
        inflight_count=reset.inflight,
    )
    return pb.GroupOffsetMove(broker_name=reset.broker_name, move=move)


def resent_letter(result: DeadLetterResult) -> broker_pb.ResentDeadLetter:
    """What came of one dead letter."""
    return broker_pb.ResentDeadLetter(
        queue_offset=result.queue_offset,
        topic=result.topic,
        new_queue_offset=result.new_queue_offset,
        message_id=result.message_id,
        problem=result.problem,
    )


_HOLDING_STATES: Final = {
    HoldingState.HELD: broker_pb.HOLDING_STATE_HELD,
    HoldingState.MISSING: broker_pb.HOLDING_STATE_MISSING,
    HoldingState.UNKNOWN: broker_pb.HOLDING_STATE_UNKNOWN,
}


def kept_tail_list(tails: Iterable[KeptTail], unseen: Iterable[Unseen]) -> pb.ListClusterKeptTailsResponse:
    """What was cut off, and kept."""
    answer = pb.ListClusterKeptTailsResponse(unseen=unseen_messages(unseen))
    for tail in tails:
        view = answer.tails.add(broker=tail.broker).tail
        view.name, view.reason = tail.name, tail.reason
        view.start_offset, view.end_offset = tail.start_offset, tail.end_offset
        view.kept_time.FromMilliseconds(tail.kept_ms)
    return answer


def accepted_loss(loss: AcceptedLoss) -> pb.AcceptGroupLossResponse:
    """What a master that waits gives up."""
    answer = pb.AcceptGroupLossResponse(
        broker=loss.broker,
        waits_for=loss.waits_for,
        end_offset=loss.end_offset,
        lost_bytes=loss.lost_bytes,
        serving=loss.serving,
    )
    for one in loss.missing:
        replica = answer.missing.add(
            broker=one.broker,
            disk_id=one.disk_id,
            run=one.run,
            epoch=one.epoch,
            end_offset=one.end_offset,
            metadata_endpoint=one.metadata_endpoint,
        )
        if one.last_seen_ms:
            replica.last_seen_time.FromMilliseconds(one.last_seen_ms)
    for table in loss.damaged_tables:
        answer.damaged_tables.add(file=table.file, problem=table.problem)
    return answer


def restored_tail(result: TailResult) -> pb.RestoreKeptTailResponse:
    """What came of a part of a kept tail."""
    answer = pb.RestoreKeptTailResponse(next_page_token=result.next_page_token)
    for message in result.messages:
        one = answer.messages.add(
            physical_offset=message.offset,
            held_by=message.held_by,
            result=broker_pb.RestoredMessage(
                message_id=message.message_id,
                topic=message.topic,
                state=_HOLDING_STATES[message.state],
                queue_id=max(0, message.queue_id),
                new_queue_offset=message.new_queue_offset,
                problem=message.problem,
            ),
        )
        one.store_time.FromMilliseconds(max(0, message.store_ms))
    for part in result.unreadable:
        answer.unreadable.add(start_offset=part.start_offset, end_offset=part.end_offset, reason=part.reason)
    return answer


def _group(group: GroupSummary) -> pb.GroupSummary:
    return pb.GroupSummary(
        name=group.name,
        ordered=group.ordered,
        retry_max_times=group.retry_max_times,
        enabled=group.enabled,
        member_count=group.member_count,
        lag_count=group.lag,
        inflight_count=group.inflight,
        topics=group.topics,
    )


def _progress(progress: Progress) -> pb.QueueProgress:
    message = pb.QueueProgress(
        group=progress.group,
        topic=progress.topic,
        broker_name=progress.broker_name,
        queue_id=progress.queue_id,
        committed_offset=progress.committed_offset,
        max_offset=progress.max_offset,
        inflight_count=progress.inflight,
    )
    message.oldest_age.FromMilliseconds(progress.oldest_age_ms)
    return message


def _client(client: Client) -> pb.ClusterClient:
    view = broker_pb.ClientView(
        client_id=client.client_id,
        client_type=client.client_type,
        group=client.group,
        language=client.language,
        version=client.version,
        address=client.address,
        subscriptions=client.subscriptions,
    )
    view.silent_for.FromMilliseconds(client.silent_ms)
    return pb.ClusterClient(client=view, brokers=client.brokers)


# Messages


def message_page(page: MessagePage) -> pb.SearchMessagesResponse:
    """A page of messages."""
    return pb.SearchMessagesResponse(
        messages=[cluster_message(message) for message in page.messages],
        next_page_token=page.next_page_token,
        scanned_count=page.scanned,
        unseen=unseen_messages(page.unseen),
    )


def cluster_message(message: MessageSummary) -> pb.ClusterMessage:
    """A message of a list, or whole."""
    view = query_pb.MessageView(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        record_bytes=message.record_bytes,
        message_id=message.message_id,
        offset_message_id=message.offset_message_id,
        tag=message.tag,
        keys=message.keys,
        born_time=_time(message.born_ms),
        born_host=message.born_host,
        store_time=_time(message.store_ms),
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        body_size=message.body_size,
        body=message.body,
    )
    if isinstance(message, Message):
        view.sys_flag = message.sys_flag
        view.flag = message.flag
        view.body_crc = message.body_crc
        view.properties.update(message.properties)
        view.compression = message.compression
        view.body_problem = message.body_problem
    return pb.ClusterMessage(broker_name=message.broker_name, message=view)


def inspected_message(detail: MessageDetail) -> pb.InspectMessageResponse:
    """A message, its copies, and what groups did with it."""
    return pb.InspectMessageResponse(
        message=cluster_message(detail.message),
        copies=[
            pb.MessageCopy(
                broker=copy.broker,
                held=copy.held,
                sha256=copy.sha256,
                equal=copy.equal,
                flushed=copy.flushed,
                verdict=copy.verdict,
            )
            for copy in detail.copies
        ],
        consumption=detail.consumption,
        unseen=unseen_messages(detail.unseen),
    )


def receipt(sent: TestReceipt) -> pb.SendTestMessageResponse:
    """Where a message went."""
    message = pb.SendTestMessageResponse(
        message_id=sent.message_id,
        broker_name=sent.broker_name,
        queue_id=sent.queue_id,
        queue_offset=sent.queue_offset,
    )
    message.duration.FromMicroseconds(round(sent.duration_ms * 1_000))
    return message


# Brokers


def setting_view(setting: Setting) -> broker_pb.SettingView:
    """One setting."""
    return broker_pb.SettingView(
        key=setting.key,
        value=setting.value,
        default_value=setting.default_value,
        origin=setting.origin,
        changeable=setting.changeable,
        description=setting.description,
    )


def cluster_event(line: EventLine) -> pb.ClusterEvent:
    """Something that happened."""
    return pb.ClusterEvent(
        time=_time(line.time_ms), source=line.source, level=line.level, event=line.event, fields=line.fields
    )


def _time(moment_ms: int) -> Timestamp | None:
    """None, which leaves a field out, for a moment that is not known."""
    if moment_ms < 0:
        return None
    time = Timestamp()
    time.FromMilliseconds(moment_ms)
    return time


def _next_page(page: Page[Any]) -> str:
    return str(page.number + 1) if page.number < page.last_number else ""
