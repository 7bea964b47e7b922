"""PullMessage, and the progress of a group by number: GetOffset, UpdateOffset, QueryOffset.

No official client calls these; tools do, and applications with stubs of their own. A pull reads by offset, leases
nothing and moves nobody's progress. UpdateOffset lives beside leases as an operator's reset does: the group goes on at
the offset, forward or back, and what it has in hand of that queue is void. It is answered once every member that may
become master knows it.

Nobody is shown what a change of master might take away: to pulls, and to QueryOffset, a queue ends before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from tandemmq.broker.client_api.delivery_encoding import DeliveryEncoder
from tandemmq.broker.client_api.receive import ReceiveHandler, WaitingPull, poll_end_ms
from tandemmq.broker.client_api.services import BrokerServices
from tandemmq.broker.client_api.sessions import RECEIVE_BATCH_MAX
from tandemmq.broker.client_api.validation import (
    OK,
    Code,
    Outcome,
    admit_group,
    check_client_id,
    check_group,
    check_namespace,
    check_topic,
    moment_ms,
    parsed_filter,
    status_of,
)
from tandemmq.core.delivery.subscription import MessageFilter
from tandemmq.core.quotas import Share
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import Call

if TYPE_CHECKING:
    from tandemmq.broker.dead_letters import DeadLetterQueues

_NOT_FOUND: Final = Outcome(Code.MESSAGE_NOT_FOUND, "no message from this offset on")


class OffsetHandler:
    """Serves the four RPCs. Event loop only."""

    def __init__(self, services: BrokerServices, receive: ReceiveHandler, dead_letters: DeadLetterQueues) -> None:
        self._services = services
        self._receive = receive
        self._dead_letters = dead_letters
        self._numbers = itertools.count(1)

    def pull_message(self, request: pb.PullMessageRequest, call: Call) -> None:
        """One status, the messages, where to go on. Without a time to wait it is answered at once."""
        if self._passed_on("PullMessage", request.message_queue, call, partial(_end_pull, call, next_offset=None)):
            return
        tag_filter = parsed_filter(self._services, request.filter_expression, call)
        now_ms = self._services.clock.monotonic_ms()
        until_ms: int | Outcome = now_ms
        if request.HasField("long_polling_timeout") and request.long_polling_timeout.ToMilliseconds() > 0:
            until_ms = poll_end_ms(request, call, now_ms)
        refused = self._refused_queue(request.message_queue, call) or self._refused_group(request.group.name, call)
        if refused is None:
            refused = next((one for one in (tag_filter, until_ms) if isinstance(one, Outcome)), None)
        if refused is not None or isinstance(tag_filter, Outcome) or isinstance(until_ms, Outcome):
            _end_pull(call, refused or _NOT_FOUND, None)
            return
        share: Share | None = None
        if self._receive.is_limited:
            quotas = self._receive.quotas
            share = quotas.share_of(call, request.message_queue.topic.name)
            if over := quotas.refused_receive(share):
                quotas.hold(call, over, partial(_end_pull, call, over, None))
                return
        pull = _Pull(self, request, call, tag_filter, until_ms, f"\x00pull {next(self._numbers)}", share)
        call.on_cancel(pull.cancel)
        pull.look()

    def get_offset(self, request: pb.GetOffsetRequest, call: Call) -> None:
        """The group's progress in one queue."""
        queue, group = request.message_queue, request.group.name
        if self._passed_on("GetOffset", queue, call, partial(_end_get, call)):
            return
        offset: int | None = None
        outcome = self._refused_queue(queue, call) or check_group(group)
        if outcome is None:
            offset = self._services.leases.progress_offset(group, queue.topic.name, queue.id)
            if offset is None:
                outcome = Outcome(
                    Code.OFFSET_NOT_FOUND,
                    f"consumer group {group} has no progress in queue {queue.id} of topic {queue.topic.name}",
                )
        _end_get(call, outcome or OK, offset or 0)

    def update_offset(self, request: pb.UpdateOffsetRequest, call: Call) -> None:
        """The group goes on at the offset."""
        queue, group = request.message_queue, request.group.name
        if self._passed_on("UpdateOffset", queue, call, partial(_end_update, call)):
            return
        outcome = self._refused_queue(queue, call)
        if outcome is None and (reason := self._services.refusal) is not None:
            outcome = Outcome(Code.FORBIDDEN, reason, retryable=True)
        if outcome is None:
            outcome = self._refused_offset(queue, request.offset) or self._refused_group(group, call)
        if outcome is not None:
            _end_update(call, outcome)
            return
        self._services.when_group_written(group, partial(self._update, group, queue, request.offset, call))

    def query_offset(self, request: pb.QueryOffsetRequest, call: Call) -> None:
        """The first offset of a queue, the one past its last message, or the first that was stored at a time."""
        queue, policy = request.message_queue, request.query_offset_policy
        if self._passed_on("QueryOffset", queue, call, partial(_end_query, call)):
            return
        offset = 0
        outcome = self._refused_queue(queue, call)
        if outcome is None and policy not in definition.QueryOffsetPolicy.values():
            outcome = Outcome(Code.BAD_REQUEST, f"query_offset_policy: {policy}; use one of QueryOffsetPolicy")
        elif outcome is None and policy == definition.TIMESTAMP and not request.HasField("timestamp"):
            outcome = Outcome(Code.BAD_REQUEST, "query_offset_policy TIMESTAMP needs a timestamp")
        elif outcome is None:
            begin, end = self._services.leases.bounds(queue.topic.name, queue.id)
            if policy == definition.TIMESTAMP:
                time_ms = moment_ms(request.timestamp)
                if time_ms is None:
                    outcome = Outcome(Code.BAD_REQUEST, "timestamp: it is no time between the years 1 and 9999")
                else:
                    offset = self._services.leases.offset_at(queue.topic.name, queue.id, time_ms)
            else:
                offset = end if policy == definition.END else begin
        _end_query(call, outcome or OK, offset)

    def _update(self, group: str, queue: definition.MessageQueue, offset: int, call: Call) -> None:
        services, topic = self._services, queue.topic.name
        config = services.topics.get(topic)
        if config is not None:
            services.leases.open(group, topic, range(config.read_queue_count))
        services.leases.reset(group=group, topic=topic, queue_id=queue.id, offset=offset)
        self._dead_letters.forget(group, topic)
        services.when_resets_spread(partial(_updated, call))
        self._receive.wake_visible()

    # Checks

    def _passed_on(
        self, method: str, queue: definition.MessageQueue, call: Call, refused: Callable[[Outcome], object]
    ) -> bool:
        """Whether the queue is another broker group's, which answers the call. Nobody answers for a group that is away:
        an offset of its queue is none of this broker's."""
        owner = queue.broker.name
        if owner in ("", self._services.identity.broker_name):
            return False
        self._services.group_calls.pass_on(method, call, broker_name=owner, refused=refused)
        return True

    def _refused_queue(self, queue: definition.MessageQueue, call: Call) -> Outcome | None:
        topic = queue.topic.name
        refused = (
            check_client_id(call)
            or check_topic(topic)
            or check_namespace(queue.topic.resource_namespace)
            or self._receive.refused_topic(topic)
        )
        config = self._services.topics.get(topic)
        if refused is None and config is not None and not 0 <= queue.id < config.read_queue_count:
            return Outcome(
                Code.BAD_REQUEST,
                f"message_queue: topic {topic} has no queue {queue.id} here; its last one is "
                f"{config.read_queue_count - 1}",
            )
        return refused

    def _refused_group(self, group: str, call: Call) -> Outcome | None:
        if refused := check_group(group):
            return refused
        if self._services.reads_only:
            return None
        return admit_group(self._services, group, call)

    def _refused_offset(self, queue: definition.MessageQueue, offset: int) -> Outcome | None:
        begin, end = self._services.leases.bounds(queue.topic.name, queue.id)
        return None if begin <= offset <= end else _outside(queue, offset, begin, end)

    # One pull

    def look(self, pull: _Pull) -> None:
        """Answers the pull with what is there, or lets it wait."""
        queue = pull.queue
        topic, offset = queue.topic.name, pull.offset
        refused = self._refused_queue(queue, pull.call)
        if refused is not None:
            _end_pull(pull.call, refused, None)
            return
        begin, end = self._services.leases.bounds(topic, queue.id)
        if not begin <= offset <= end:
            _end_pull(pull.call, _outside(queue, offset, begin, end), begin if offset < begin else end)
            return
        wanted = pull.batch_size
        pulled = self._services.leases.pull(
            topic=topic,
            queue_id=queue.id,
            offset=offset,
            message_filter=pull.message_filter,
            batch_size=wanted if 0 < wanted < RECEIVE_BATCH_MAX else RECEIVE_BATCH_MAX,
        )
        pull.offset = pulled.next_offset
        if not pulled.records:
            if pulled.more or self._services.clock.monotonic_ms() < pull.until_ms:
                if (over := self._one_more_poll(pull)) is not None:
                    self._receive.quotas.hold(pull.call, over, partial(pull.end, over))
                    return
                self._receive.wait_for(pull, look_again=pulled.more)
            else:
                pull.end(_NOT_FOUND)
            return
        pull.call.send(pb.PullMessageResponse(status=status_of(OK)))
        encoder = DeliveryEncoder(topic=queue.topic, invisible_ms=0)
        encoded_bytes = 0
        for record in pulled.records:
            encoded = encoder.encode(record, handle="", attempt=1)
            encoded_bytes += len(encoded)
            element = pb.PullMessageResponse.FromString(encoded)
            # It is no delivery: there is nothing to acknowledge, and nothing is counted.
            for name in ("receipt_handle", "invisible_duration", "delivery_attempt"):
                element.message.system_properties.ClearField(name)
            pull.call.send(element)
        pull.call.send(pb.PullMessageResponse(next_offset=pulled.next_offset))
        pull.call.finish()
        self.poll_over(pull)
        if pull.share is not None:
            self._receive.quotas.pulled(pull.share, len(pulled.records), encoded_bytes)

    def left(self, pull: _Pull) -> None:
        self.poll_over(pull)
        self._receive.wait_no_longer(pull)

    def _one_more_poll(self, pull: _Pull) -> Outcome | None:
        if pull.share is None or pull.is_counted:
            return None
        over = self._receive.quotas.refused_poll(pull.share)
        pull.is_counted = over is None
        return over

    def poll_over(self, pull: _Pull) -> None:
        """It does not wait any more."""
        if pull.is_counted and pull.share is not None:
            pull.is_counted = False
            self._receive.quotas.poll_ended(pull.share)


class _Pull(WaitingPull):
    """One pull under way. Its own group in the poll table: an arrival wakes every pull of the topic."""

    def __init__(
        self,
        handler: OffsetHandler,
        request: pb.PullMessageRequest,
        call: Call,
        message_filter: MessageFilter,
        until_ms: int,
        name: str,
        share: Share | None,
    ) -> None:
        super().__init__(call, topic=request.message_queue.topic.name, name=name, until_ms=until_ms)
        self._handler = handler
        # A copy: a part of a request keeps all of it, up to 2 MiB.
        queue = request.message_queue
        topic = definition.Resource(name=queue.topic.name, resource_namespace=queue.topic.resource_namespace)
        self.queue = definition.MessageQueue(id=queue.id, topic=topic)
        self.batch_size: int = request.batch_size
        self.message_filter = message_filter
        self.offset: int = request.offset
        # Whose quotas it is charged to; None: nobody has one.
        self.share = share
        self.is_counted = False

    def look(self) -> None:
        self._handler.look(self)

    def end(self, outcome: Outcome) -> None:
        self._handler.poll_over(self)
        _end_pull(self.call, outcome, self.offset)

    def cancel(self) -> None:
        self._handler.left(self)


def _outside(queue: definition.MessageQueue, offset: int, begin: int, end: int) -> Outcome:
    return Outcome(
        Code.ILLEGAL_OFFSET,
        f"queue {queue.id} of topic {queue.topic.name} holds {begin} to {end}, not {offset}; choose one of these",
    )


def _end_pull(call: Call, outcome: Outcome, next_offset: int | None) -> None:
    call.send(pb.PullMessageResponse(status=status_of(outcome)))
    if next_offset is not None:
        call.send(pb.PullMessageResponse(next_offset=next_offset))
    call.finish()


def _end_get(call: Call, outcome: Outcome, offset: int = 0) -> None:
    call.send(pb.GetOffsetResponse(status=status_of(outcome), offset=offset))
    call.finish()


def _end_query(call: Call, outcome: Outcome, offset: int = 0) -> None:
    call.send(pb.QueryOffsetResponse(status=status_of(outcome), offset=offset))
    call.finish()


def _end_update(call: Call, outcome: Outcome) -> None:
    call.send(pb.UpdateOffsetResponse(status=status_of(outcome)))
    call.finish()


def _updated(call: Call, is_spread: bool) -> None:
    outcome = OK
    if not is_spread:
        text = "the offset is set here, but not on every member that may become master: set it again"
        outcome = Outcome(Code.INTERNAL_SERVER_ERROR, text, retryable=True)
    _end_update(call, outcome)
