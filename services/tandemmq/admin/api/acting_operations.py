"""Operations as one actor may do them: changes need an operator, and each leaves a line in the audit log.

Console, REST and gRPC reach the cluster through this alone, so that none of them can forget either.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from tandemmq.admin.api.actors import Actor
from tandemmq.admin.audit_log import AuditLog
from tandemmq.admin.operations.interface import Operations
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import (
    FIRST_PAGE,
    AcceptedLoss,
    BrokerSettings,
    ChangeResult,
    Client,
    ConfigChange,
    DeadLetterResult,
    EventLine,
    GroupChange,
    GroupDetail,
    GroupSummary,
    KeptTail,
    MessageDetail,
    MessagePage,
    MessageQuery,
    MessageSummary,
    OffsetReset,
    Page,
    PageRequest,
    ResetTarget,
    Route,
    TailMessage,
    TailResult,
    TestMessage,
    TestReceipt,
    TopicChange,
    TopicDetail,
    TopicSummary,
    Unseen,
)

__all__ = ["ActingOperations", "NotPermitted", "OperationsDesk"]

ResultT = TypeVar("ResultT")

# Each asks the brokers for new messages twice a second or so.
_TAILS_MAX: Final = 20


class NotPermitted(OperationFailed):
    """The actor may look and not change. Nothing was done."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(
            FailureKind.REFUSED,
            f"{actor.name} may look and not change",
            cause=f"the role is {actor.role.value}",
            remedy="ask an operator, or come with the admin token",
        )


class OperationsDesk:
    """Gives each actor its own operations. One for the process."""

    def __init__(self, operations: Operations, audit_log: AuditLog) -> None:
        self.operations = operations
        self.audit_log = audit_log
        self.tail_count = 0

    def acting_as(self, actor: Actor) -> Operations:
        """The operations, done in the name of `actor`."""
        return ActingOperations(self, actor)

    def open_tail(self) -> None:
        """Counts a tail; REFUSED when there are too many."""
        if self.tail_count >= _TAILS_MAX:
            raise OperationFailed(
                FailureKind.REFUSED,
                f"{_TAILS_MAX} tails are open already",
                remedy="end one of them, or search for the newest messages instead",
            )
        self.tail_count += 1

    def close_tail(self) -> None:
        """One less."""
        self.tail_count -= 1


class ActingOperations:
    """`Operations` for one actor."""

    def __init__(self, desk: OperationsDesk, actor: Actor) -> None:
        self._desk = desk
        self._to = desk.operations
        self._actor = actor

    # What only looks

    async def topics(
        self, *, search: str = "", categories: Sequence[str] = ("topic",), page: PageRequest = FIRST_PAGE
    ) -> Page[TopicSummary]:
        """`Operations`'."""
        return await self._to.topics(search=search, categories=categories, page=page)

    async def topic(self, name: str) -> TopicDetail:
        """`Operations`'."""
        return await self._to.topic(name)

    async def topic_routes(self, name: str) -> tuple[Sequence[Route], Sequence[Unseen]]:
        """`Operations`'."""
        return await self._to.topic_routes(name)

    async def groups(self, *, search: str = "", page: PageRequest = FIRST_PAGE) -> Page[GroupSummary]:
        """`Operations`'."""
        return await self._to.groups(search=search, page=page)

    async def group(self, name: str) -> GroupDetail:
        """`Operations`'."""
        return await self._to.group(name)

    async def clients(self, *, group: str = "", topic: str = "", limit: int = 200) -> Page[Client]:
        """`Operations`'."""
        return await self._to.clients(group=group, topic=topic, limit=limit)

    async def search(self, query: MessageQuery) -> MessagePage:
        """`Operations`'."""
        return await self._to.search(query)

    async def find_message(self, message_id: str, *, topic: str = "") -> Sequence[MessageSummary]:
        """`Operations`'."""
        return await self._to.find_message(message_id, topic=topic)

    async def message(self, broker_name: str, physical_offset: int, *, body_bytes: int = 65_536) -> MessageDetail:
        """`Operations`'."""
        return await self._to.message(broker_name, physical_offset, body_bytes=body_bytes)

    async def message_at(
        self, broker_name: str, topic: str, queue_id: int, queue_offset: int, *, body_bytes: int = 65_536
    ) -> MessageDetail:
        """`Operations`'."""
        return await self._to.message_at(broker_name, topic, queue_id, queue_offset, body_bytes=body_bytes)

    async def tail(
        self, topic: str, *, tags: Sequence[str] = (), body_bytes: int = 4_096
    ) -> AsyncIterator[MessageSummary]:
        """`Operations`', for so many at once."""
        self._desk.open_tail()
        messages = self._to.tail(topic, tags=tags, body_bytes=body_bytes)
        try:
            async for message in messages:
                yield message
        finally:
            self._desk.close_tail()
            if isinstance(messages, AsyncGenerator):
                await messages.aclose()

    async def broker_settings(self, broker: str) -> BrokerSettings:
        """`Operations`'."""
        return await self._to.broker_settings(broker)

    async def events(self, *, limit: int = 200) -> tuple[Sequence[EventLine], Sequence[Unseen]]:
        """`Operations`', and what operators did here."""
        lines, unseen = await self._to.events(limit=limit)
        merged = sorted((*lines, *self._desk.audit_log.lines(limit=limit)), key=lambda line: -line.time_ms)
        return tuple(merged[:limit]), unseen

    # What changes something

    async def put_topic(self, change: TopicChange, *, dry_run: bool = False) -> ChangeResult:
        """`Operations`'."""
        fields = _set_fields(
            read_queue_count=change.read_queue_count,
            write_queue_count=change.write_queue_count,
            permission=change.permission,
            message_type=change.message_type,
            broker_names=",".join(change.broker_names),
        )
        return await self._changing(
            "put_topic", change.name, lambda: self._to.put_topic(change, dry_run=dry_run), fields, dry_run=dry_run
        )

    async def delete_topic(self, name: str, *, dry_run: bool = False) -> ChangeResult:
        """`Operations`'."""
        return await self._changing(
            "delete_topic", name, lambda: self._to.delete_topic(name, dry_run=dry_run), dry_run=dry_run
        )

    async def put_group(self, change: GroupChange, *, dry_run: bool = False) -> ChangeResult:
        """`Operations`'."""
        fields = _set_fields(
            ordered=_word(change.ordered), retry_max_times=change.retry_max_times, enabled=_word(change.enabled)
        )
        return await self._changing(
            "put_group", change.name, lambda: self._to.put_group(change, dry_run=dry_run), fields, dry_run=dry_run
        )

    async def delete_group(self, name: str, *, even_with_members: bool = False, dry_run: bool = False) -> ChangeResult:
        """`Operations`'."""
        return await self._changing(
            "delete_group",
            name,
            lambda: self._to.delete_group(name, even_with_members=even_with_members, dry_run=dry_run),
            _set_fields(even_with_members=even_with_members),
            dry_run=dry_run,
        )

    async def reset_offsets(
        self, group: str, topic: str, target: ResetTarget, *, dry_run: bool = False
    ) -> Sequence[OffsetReset]:
        """`Operations`'."""
        fields = {"topic": topic} | _set_fields(time_ms=target.time_ms, earliest=target.earliest, latest=target.latest)
        return await self._changing(
            "reset_offsets",
            group,
            lambda: self._to.reset_offsets(group, topic, target, dry_run=dry_run),
            fields,
            dry_run=dry_run,
        )

    async def send(self, message: TestMessage) -> TestReceipt:
        """`Operations`'. The log has the body's size only."""
        fields = {"body_bytes": str(len(message.body))} | _set_fields(
            tag=message.tag, keys=",".join(message.keys), message_group=message.message_group
        )
        return await self._changing("send_message", message.topic, lambda: self._to.send(message), fields)

    async def resend_dead_letters(
        self, group: str, broker_name: str, queue_offsets: Sequence[int], *, dry_run: bool = False
    ) -> Sequence[DeadLetterResult]:
        """`Operations`'."""
        fields = {"broker_name": broker_name, "queue_offsets": ",".join(map(str, queue_offsets))}
        return await self._changing(
            "resend_dead_letters",
            group,
            lambda: self._to.resend_dead_letters(group, broker_name, queue_offsets, dry_run=dry_run),
            fields,
            dry_run=dry_run,
        )

    async def kept_tails(self) -> tuple[Sequence[KeptTail], Sequence[Unseen]]:
        """`Operations`'."""
        return await self._to.kept_tails()

    async def restore_kept_tail(
        self, broker: str, name: str, *, page_token: str = "", dry_run: bool = False
    ) -> TailResult:
        """`Operations`'."""
        return await self._changing(
            "restore_kept_tail",
            f"{broker} {name}",
            lambda: self._to.restore_kept_tail(broker, name, page_token=page_token, dry_run=dry_run),
            dry_run=dry_run,
        )

    async def restore_records(
        self, broker_name: str, records: Sequence[tuple[int, bytes]], *, dry_run: bool = False
    ) -> Sequence[TailMessage]:
        """`Operations`'."""
        return await self._changing(
            "restore_records",
            broker_name,
            lambda: self._to.restore_records(broker_name, records, dry_run=dry_run),
            {"records": str(len(records))},
            dry_run=dry_run,
        )

    async def update_settings(
        self, broker: str, values: Mapping[str, str], *, dry_run: bool = False
    ) -> Sequence[ConfigChange]:
        """`Operations`'."""
        return await self._changing(
            "update_settings",
            broker,
            lambda: self._to.update_settings(broker, values, dry_run=dry_run),
            {"settings": ",".join(f"{key}={value}" for key, value in sorted(values.items()))},
            dry_run=dry_run,
        )

    async def set_write_permission(self, broker_name: str, *, writable: bool, dry_run: bool = False) -> ChangeResult:
        """`Operations`'."""
        return await self._changing(
            "set_write_permission",
            broker_name,
            lambda: self._to.set_write_permission(broker_name, writable=writable, dry_run=dry_run),
            {"writable": str(writable).lower()},
            dry_run=dry_run,
        )

    async def accept_loss(self, broker_name: str, *, names: Sequence[str] = (), dry_run: bool = False) -> AcceptedLoss:
        """`Operations`'."""
        return await self._changing(
            "accept_loss",
            broker_name,
            lambda: self._to.accept_loss(broker_name, names=names, dry_run=dry_run),
            {"names": ",".join(names)},
            dry_run=dry_run,
        )

    async def _changing(
        self,
        action: str,
        subject: str,
        change: Callable[[], Awaitable[ResultT]],
        fields: Mapping[str, str] | None = None,
        *,
        dry_run: bool = False,
    ) -> ResultT:
        """Does it if the actor may, and records what came of it. A change that was cut off is recorded as that."""
        outcome = "cut off"
        level = "warning"
        try:
            if not self._actor.may_change:
                raise NotPermitted(self._actor)
            result = await change()
            outcome, level = "done", "info"
            return result
        except OperationFailed as failure:
            outcome = f"{failure.kind.value}: {failure.problem}"
            raise
        except Exception as defect:
            outcome = f"failed unexpectedly: {type(defect).__name__}"
            raise
        finally:
            self._desk.audit_log.record(
                "operator_change",
                level=level,
                fields={
                    "who": self._actor.name,
                    "role": self._actor.role.value,
                    "address": self._actor.address,
                    "action": action,
                    "subject": subject,
                    **(fields or {}),
                    "dry_run": str(dry_run).lower(),
                    "outcome": outcome,
                },
            )


def _set_fields(**fields: str | int | bool | None) -> dict[str, str]:
    """Those that were given, as text. What is not given is None, empty or 0, as in the values."""
    return {key: "true" if value is True else str(value) for key, value in fields.items() if value}


def _word(value: bool | None) -> str:
    return "" if value is None else str(value).lower()
