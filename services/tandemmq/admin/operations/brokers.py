"""Settings and events of brokers, dead letters of their groups, and changes of master on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from tandemmq.admin.cluster_state import BrokerState, FailoverState
from tandemmq.admin.operations.questions import (
    Answer,
    FailureKind,
    Members,
    OperationFailed,
    Questions,
    check_offset,
    invalid,
    not_found,
    refused,
    unavailable,
    unseen_of,
)
from tandemmq.admin.operations.values import (
    AcceptedLoss,
    BrokerSettings,
    ConfigChange,
    DeadLetterResult,
    EventLine,
    HandOver,
    MissingReplica,
    Unseen,
)
from tandemmq.core.clock import Clock
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb
from tandemmq.proto.broker.v1 import failover_service_pb2 as failover_pb
from tandemmq.proto.broker.v1 import replica_service_pb2 as replica_pb
from tandemmq.service.protobuf import as_value

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
        """Settings of `name:id` as they work now; secrets are masked by the broker."""
        problem = f"the settings of {broker} cannot be read"
        answer = await self._questions.broker(
            self._members.broker(broker), lambda planes: planes.operations.config(), problem=problem
        )
        return as_value(BrokerSettings, answer, broker=broker)

    async def update_settings(
        self, broker: str, values: Mapping[str, str], *, dry_run: bool = False
    ) -> Sequence[ConfigChange]:
        """Changes settings of `name:id`, all or none, until its next start."""
        if not values:
            raise invalid("no setting is named", remedy="name a key and its new value")
        request = pb.UpdateConfigRequest(values=values, dry_run=dry_run)
        answer = await self._questions.broker(
            self._members.broker(broker),
            lambda planes: planes.operations.update_config(request),
            problem=f"the settings of {broker} were not changed",
        )
        return tuple(as_value(ConfigChange, one, broker=broker) for one in answer.changes)

    async def accept_loss(self, broker_name: str, *, names: Sequence[str] = (), dry_run: bool = False) -> AcceptedLoss:
        """Has the group's master, which waits at its start, serve without what it waits for: disks with messages, or
        damaged tables. `names` are all that a dry run told; REFUSED: it waits for nothing, for others by now, or for
        something that nobody can give up."""
        members = self._members.of_group(broker_name)
        master = self._members.broker(max(members, key=_may_have_lost).key)
        problem = f"what {master.key} waits for cannot be given up"
        waits = await self._questions.broker(
            master,
            lambda planes: planes.replica.accept_loss(replica_pb.AcceptLossRequest(dry_run=True)),
            problem=f"{master.key} does not say what it waits for",
        )
        if not waits.waits_for and not waits.missing:
            raise refused(
                f"{master.key} {'serves and ' if waits.serving else ''}waits for nothing; nothing was given up",
                remedy="`tandemmq status` shows how it is",
            )
        loss = _loss(master, waits, dry_run=dry_run)
        if not loss.names:
            raise refused(problem, cause=loss.waits_for, remedy="nobody can give that up; wait, or remove the cause")
        if dry_run:
            return loss
        whom = f"it waits for {', '.join(loss.names)}"
        if loss.serving:
            problem, whom = f"{master.key} serves, and forgot nobody", f"away are {', '.join(loss.names)}"
        if set(names) != set(loss.names):
            raise refused(
                problem,
                cause=f"{whom}; named was {', '.join(names) or 'nothing'}",
                remedy="look again with a dry run, and name what it tells",
            )
        request = replica_pb.AcceptLossRequest(
            disk_ids=[one.disk_id for one in loss.missing], damaged_tables=[one.file for one in loss.damaged_tables]
        )
        await self._questions.broker(master, lambda planes: planes.replica.accept_loss(request), problem=problem)
        return loss

    async def events(self, *, limit: int = 200) -> tuple[Sequence[EventLine], Sequence[Unseen]]:
        """What happened lately on all brokers, newest first; at most 500."""
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
        self, group: str, broker_name: str, queue_offsets: Sequence[int], *, dry_run: bool = False
    ) -> Sequence[DeadLetterResult]:
        """Puts dead letters, at most 1,000, back into the topics they came from, a hundred at a time. PARTIAL names the
        first offset of those not tried."""
        if not 0 < len(queue_offsets) <= _LETTERS_MAX:
            raise invalid(
                f"{len(queue_offsets):,} dead letters are named", remedy=f"name from 1 to {_LETTERS_MAX:,} at a time"
            )
        for offset in queue_offsets:
            check_offset(offset)
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


# Changes of master on purpose: a group's master hands over to a member of its in-sync set.

_SERVES_LIMIT_MS: Final = 15_000
"""More than two leases of the default: the successor is named, and claims at once."""
_POLL_S: Final = 0.05
_STATUS: Final = "`tandemmq ha status` shows what the group waits for"


class FailoverOperations:
    """Asks the members of one group, each for itself: the reading of the cluster may be older than the last change."""

    def __init__(self, members: Members, questions: Questions, *, clock: Clock) -> None:
        self._members = members
        self._questions = questions
        self._clock = clock

    async def hand_over(self, broker_name: str, *, to: int | None, dry_run: bool) -> HandOver:
        """See `Operations.failover`."""
        members = self._members.of_group(broker_name)
        by_id = {broker.broker_id: broker for broker in members}
        if to is not None and to not in by_id:
            raise not_found(
                f"{broker_name} has no broker {to}", remedy=f"choose one of {', '.join(map(str, sorted(by_id)))}"
            )
        master, epoch = await self._master(broker_name, members)
        if to == master.broker_id:
            return HandOver(broker_name, master.key, master.key, epoch, 0, dry_run)
        successor = await self._ask(master, to, dry_run=True)
        planned = HandOver(broker_name, master.key, f"{broker_name}:{successor}", epoch, 0, dry_run)
        if dry_run:
            return planned
        if successor not in by_id:
            raise unavailable(f"{planned.to_broker} is not known yet", remedy="ask again in some seconds")
        begun_ms = self._clock.monotonic_ms()
        await self._ask(master, successor, dry_run=False)
        new_epoch = await self._until_serving(by_id[successor], after_epoch=epoch, begun_ms=begun_ms)
        took_ms = self._clock.monotonic_ms() - begun_ms
        return HandOver(broker_name, master.key, planned.to_broker, new_epoch, took_ms, dry_run)

    async def claim_unclean(self, broker_name: str, *, to: int | None, dry_run: bool) -> HandOver:
        """See `Operations.failover`."""
        members = self._members.of_group(broker_name)
        candidate = next((broker for broker in members if broker.broker_id == to), None)
        if candidate is None:
            raise OperationFailed(
                FailureKind.NOT_FOUND if to is not None else FailureKind.INVALID,
                f"{broker_name} has no broker {to}"
                if to is not None
                else "an unclean change needs the new master named",
                remedy=f"choose one of {', '.join(str(broker.broker_id) for broker in members)}",
            )
        told = await self._questions.broker(
            candidate, lambda planes: planes.failover.state(), problem=f"{candidate.key} does not become master"
        )
        state = as_value(FailoverState, told)
        before = f"{broker_name}:{state.master.broker_id}" if state.master is not None else "nobody"
        begun_ms = self._clock.monotonic_ms()
        claim = await self._questions.broker(
            candidate,
            lambda planes: planes.failover.claim_unclean(failover_pb.ClaimUncleanRequest(dry_run=dry_run)),
            problem=f"{candidate.key} does not become master",
        )
        given_up = tuple(f"{broker_name}:{replica.broker_id}" for replica in claim.missing)
        epoch = state.epoch
        if not dry_run:
            epoch = await self._until_serving(candidate, after_epoch=state.epoch, begun_ms=begun_ms)
        return HandOver(
            broker_name,
            before,
            candidate.key,
            epoch,
            self._clock.monotonic_ms() - begun_ms,
            dry_run,
            given_up=given_up,
            lost_bytes=claim.lost_bytes,
        )

    async def _ask(self, master: BrokerState, to: int | None, *, dry_run: bool) -> int:
        request = failover_pb.HandOverRequest(to_broker_id=to, dry_run=dry_run)
        answer = await self._questions.broker(
            master,
            lambda planes: planes.failover.hand_over(request),
            problem=f"{master.key} stays the master" if dry_run else f"{master.key} did not hand over",
        )
        return answer.to_broker_id

    async def _master(self, broker_name: str, members: Sequence[BrokerState]) -> tuple[BrokerState, int]:
        """Who acts as the master, and its epoch."""
        answers = await self._questions.brokers(members, lambda planes: planes.failover.state())
        states = [
            (broker, as_value(FailoverState, one.value))
            for broker, one in zip(members, answers, strict=True)
            if one.value
        ]
        if not states:
            raise _nobody_answers(broker_name, answers)
        acting = [(broker, state.epoch) for broker, state in states if state.acts]
        if not acting:
            raise refused(
                f"{broker_name} has no master that could hand over",
                cause="\n".join(f"{broker.key}: {_stands(state)}" for broker, state in states),
                remedy=f"{_STATUS}; it elects one by itself when a member of its in-sync set is up",
            )
        return max(acting, key=lambda one: one[1])

    async def _until_serving(self, successor: BrokerState, *, after_epoch: int, begun_ms: int) -> int:
        """The new epoch, once the successor takes messages."""
        while self._clock.monotonic_ms() - begun_ms < _SERVES_LIMIT_MS:
            [answer] = await self._questions.brokers([successor], lambda planes: planes.admin.status())
            status = answer.value
            if status is not None and not status.write_refusal:
                state = status.failover
                if state.acts and state.epoch > after_epoch:
                    return state.epoch
            await asyncio.sleep(_POLL_S)
        raise unavailable(
            f"{successor.key} was named the master, and does not serve after {_SERVES_LIMIT_MS // 1_000} s",
            remedy=_STATUS,
        )


def _may_have_lost(broker: BrokerState) -> tuple[bool, bool]:
    """Who waits at its start goes before who serves as the master, which need not be broker 0."""
    status = broker.status
    return status is not None and status.start_wait is not None, status is not None and broker.is_master


def _stands(state: FailoverState) -> str:
    return state.problem or ("may be elected" if state.is_electable else "may not be elected, or waits for the lease")


def _nobody_answers(
    broker_name: str, answers: Sequence[Answer[failover_pb.GetFailoverStateResponse]]
) -> OperationFailed:
    refusals = [answer for answer in answers if answer.failure and answer.failure.kind is FailureKind.REFUSED]
    cause = "\n".join(f"{one.subject}: {one.failure.text}" for one in refusals or answers if one.failure is not None)
    if not refusals:
        return unavailable(f"nobody of {broker_name} answers", cause=cause)
    return refused(
        f"{broker_name} does not fail over",
        cause=cause,
        remedy="set failoverAuthority to the same on all its members, and restart them",
    )
