"""Settings and events of brokers, and dead letters of their groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tandemmq.admin.cluster_state import BrokerState
from tandemmq.admin.operations.questions import Answer, FailureKind, Members, OperationFailed, Questions, unseen_of
from tandemmq.admin.operations.values import (
    AcceptedLoss,
    BrokerSettings,
    ConfigChange,
    DeadLetterResult,
    EventLine,
    MissingReplica,
    Unseen,
)
from tandemmq.admin.protobuf import as_value
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb
from tandemmq.proto.broker.v1 import replica_service_pb2 as replica_pb

__all__ = ["BrokerOperations"]

_EVENTS_MAX: Final = 500
_LETTERS_AT_ONCE: Final = 100
"""As many as a broker takes in one call."""
_LETTERS_MAX: Final = 1_000


class BrokerOperations:
    """Asks single brokers, named `name:id`."""

    def __init__(self, members: Members, questions: Questions) -> None:
        self._members = members
        self._questions = questions

    async def settings(self, broker: str) -> BrokerSettings:
        """As they work now; secrets are masked by the broker."""
        problem = f"the settings of {broker} cannot be read"
        answer = await self._questions.broker(
            self._members.broker(broker), lambda planes: planes.operations.config(), problem=problem
        )
        return as_value(BrokerSettings, answer, broker=broker)

    async def update_settings(
        self, broker: str, values: Mapping[str, str], *, dry_run: bool
    ) -> tuple[ConfigChange, ...]:
        """Changes all or none, until the broker's next start."""
        if not values:
            raise OperationFailed(FailureKind.INVALID, "no setting is named", remedy="name a key and its new value")
        request = pb.UpdateConfigRequest(values=values, dry_run=dry_run)
        answer = await self._questions.broker(
            self._members.broker(broker),
            lambda planes: planes.operations.update_config(request),
            problem=f"the settings of {broker} were not changed",
        )
        return tuple(as_value(ConfigChange, one, broker=broker) for one in answer.changes)

    async def accept_loss(self, broker_name: str, *, names: Sequence[str] = (), dry_run: bool = False) -> AcceptedLoss:
        """Asks what the master waits for; and, unless `dry_run`, gives that up if it is what was named."""
        members = self._members.of_group(broker_name)
        waiting = (broker for broker in members if broker.status is not None and broker.status.start_wait is not None)
        master = self._members.broker(next(waiting, members[0]).key)
        problem = f"what {master.key} waits for cannot be given up"
        waits = await self._questions.broker(
            master,
            lambda planes: planes.replica.accept_loss(replica_pb.AcceptLossRequest(dry_run=True)),
            problem=f"{master.key} does not say what it waits for",
        )
        if not waits.waits_for and not waits.missing:
            raise OperationFailed(
                FailureKind.REFUSED,
                f"{master.key} {'serves and ' if waits.serving else ''}waits for nothing; nothing was given up",
                remedy="`tandemmq status` shows how it is",
            )
        loss = _loss(master, waits, dry_run=dry_run)
        if not loss.names:
            raise OperationFailed(
                FailureKind.REFUSED,
                problem,
                cause=loss.waits_for,
                remedy="nobody can give that up; wait, or remove the cause",
            )
        if dry_run:
            return loss
        whom = f"it waits for {', '.join(loss.names)}"
        if loss.serving:
            problem, whom = f"{master.key} serves, and forgot nobody", f"away are {', '.join(loss.names)}"
        if set(names) != set(loss.names):
            raise OperationFailed(
                FailureKind.REFUSED,
                problem,
                cause=f"{whom}; named was {', '.join(names) or 'nothing'}",
                remedy="look again with a dry run, and name what it tells",
            )
        request = replica_pb.AcceptLossRequest(
            disk_ids=[one.disk_id for one in loss.missing], damaged_tables=[one.file for one in loss.damaged_tables]
        )
        await self._questions.broker(master, lambda planes: planes.replica.accept_loss(request), problem=problem)
        return loss

    async def events(self, *, limit: int) -> tuple[list[EventLine], list[Unseen]]:
        """Of all brokers together, newest first."""
        limit = max(1, min(limit, _EVENTS_MAX))
        brokers, silent = self._members.answering()
        answers = await self._questions.brokers(brokers, lambda planes: planes.operations.events(limit=limit))
        lines = [
            as_value(EventLine, event, source=answer.subject)
            for answer in answers
            if answer.value is not None
            for event in reversed(answer.value.events)
        ]
        # Stable: events of one millisecond stay in their broker's order.
        lines.sort(key=lambda line: -line.time_ms)
        return lines[:limit], [*silent, *unseen_of(answers)]

    async def resend_dead_letters(
        self, group: str, broker_name: str, queue_offsets: Sequence[int], *, dry_run: bool
    ) -> list[DeadLetterResult]:
        """Sends them again, a hundred at a time. PARTIAL names the first offset of those not tried."""
        if not 0 < len(queue_offsets) <= _LETTERS_MAX:
            raise OperationFailed(
                FailureKind.INVALID,
                f"{len(queue_offsets):,} dead letters are named",
                remedy=f"name from 1 to {_LETTERS_MAX:,} at a time",
            )
        [master] = self._members.masters_to_change([broker_name])
        results: list[DeadLetterResult] = []
        for start in range(0, len(queue_offsets), _LETTERS_AT_ONCE):
            part = queue_offsets[start : start + _LETTERS_AT_ONCE]
            request = pb.ResendDeadLettersRequest(group=group, queue_offsets=part, dry_run=dry_run)
            answer = await self._resent(master, request)
            if answer.value is None:
                assert answer.failure is not None
                if not results or dry_run:
                    raise answer.failure.failed(answer.subject, f"dead letters of {group} were not sent again")
                raise OperationFailed(
                    FailureKind.PARTIAL,
                    f"{len(results):,} of {len(queue_offsets):,} dead letters of {group} were tried",
                    cause=f"{answer.subject}: {answer.failure.text}",
                    remedy=f"go on with offset {part[0]:,}; of the hundred from there on some may have been sent",
                )
            results += [as_value(DeadLetterResult, one, broker_name=broker_name) for one in answer.value.letters]
        return results

    async def _resent(
        self, master: BrokerState, request: pb.ResendDeadLettersRequest
    ) -> Answer[pb.ResendDeadLettersResponse]:
        [answer] = await self._questions.brokers(
            [master], lambda planes: planes.operations.resend_dead_letters(request)
        )
        return answer


def _loss(master: BrokerState, waits: replica_pb.AcceptLossResponse, *, dry_run: bool) -> AcceptedLoss:
    missing = tuple(
        as_value(
            MissingReplica,
            one,
            broker=f"{master.broker_name}:{one.broker_id}",
            last_seen_ms=one.last_seen_time.ToMilliseconds() if one.HasField("last_seen_time") else 0,
        )
        for one in waits.missing
    )
    return as_value(AcceptedLoss, waits, broker=master.key, missing=missing, dry_run=dry_run)
