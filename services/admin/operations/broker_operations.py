"""Settings and events of brokers, and dead letters of their groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tandemmq.admin.v1 import broker_operations_service_pb2 as pb

from admin.cluster_state import BrokerState
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.members import Members
from admin.operations.questions import Answer, Questions, unseen_of
from admin.operations.topic_messages import moment_ms
from admin.operations.values import (
    BrokerSettings,
    ConfigChange,
    DeadLetterResult,
    EventLine,
    Setting,
    Unseen,
)

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
        settings = tuple(
            Setting(view.key, view.value, view.default_value, view.origin, view.changeable, view.description)
            for view in answer.settings
        )
        return BrokerSettings(broker, settings)

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
        return tuple(ConfigChange(broker, one.key, one.from_value, one.to_value) for one in answer.changes)

    async def events(self, *, limit: int) -> tuple[list[EventLine], list[Unseen]]:
        """Of all brokers together, newest first."""
        limit = max(1, min(limit, _EVENTS_MAX))
        brokers, silent = self._members.answering()
        answers = await self._questions.brokers(brokers, lambda planes: planes.operations.events(limit=limit))
        lines = [
            EventLine(moment_ms(event.time), answer.subject, event.level, event.event, dict(event.fields))
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
            results += [
                DeadLetterResult(
                    broker_name, one.queue_offset, one.topic, one.new_queue_offset, one.message_id, one.problem
                )
                for one in answer.value.letters
            ]
        return results

    async def _resent(
        self, master: BrokerState, request: pb.ResendDeadLettersRequest
    ) -> Answer[pb.ResendDeadLettersResponse]:
        [answer] = await self._questions.brokers(
            [master], lambda planes: planes.operations.resend_dead_letters(request)
        )
        return answer
