"""Changes of master on purpose: a group's master hands over to a member of its in-sync set."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from tandemmq.admin.cluster_reader import failover_state
from tandemmq.admin.cluster_state import BrokerState, FailoverState
from tandemmq.admin.operations.questions import Answer, FailureKind, Members, OperationFailed, Questions
from tandemmq.admin.operations.values import HandOver
from tandemmq.core.clock import Clock
from tandemmq.proto.broker.v1 import failover_service_pb2 as pb

__all__ = ["FailoverOperations"]

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
            raise OperationFailed(
                FailureKind.NOT_FOUND,
                f"{broker_name} has no broker {to}",
                remedy=f"choose one of {', '.join(map(str, sorted(by_id)))}",
            )
        master, epoch = await self._master(broker_name, members)
        if to == master.broker_id:
            return HandOver(broker_name, master.key, master.key, epoch, 0, dry_run)
        successor = await self._ask(master, to, dry_run=True)
        planned = HandOver(broker_name, master.key, f"{broker_name}:{successor}", epoch, 0, dry_run)
        if dry_run:
            return planned
        if successor not in by_id:
            raise OperationFailed(
                FailureKind.UNAVAILABLE, f"{planned.to_broker} is not known yet", remedy="ask again in some seconds"
            )
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
                f"{broker_name} has no broker {to}" if to is not None else "to: an unclean change names the new master",
                remedy=f"choose one of {', '.join(str(broker.broker_id) for broker in members)}",
            )
        state = failover_state(
            await self._questions.broker(
                candidate, lambda planes: planes.failover.state(), problem=f"{candidate.key} does not become master"
            )
        )
        before = f"{broker_name}:{state.master.broker_id}" if state.master is not None else "nobody"
        begun_ms = self._clock.monotonic_ms()
        claim = await self._questions.broker(
            candidate,
            lambda planes: planes.failover.claim_unclean(pb.ClaimUncleanRequest(dry_run=dry_run)),
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
        request = pb.HandOverRequest(to_broker_id=to, dry_run=dry_run)
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
            (broker, failover_state(one.value)) for broker, one in zip(members, answers, strict=True) if one.value
        ]
        if not states:
            raise _nobody_answers(broker_name, answers)
        acting = [(broker, state.epoch) for broker, state in states if state.acts]
        if not acting:
            raise OperationFailed(
                FailureKind.REFUSED,
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
        raise OperationFailed(
            FailureKind.UNAVAILABLE,
            f"{successor.key} was named the master, and does not serve after {_SERVES_LIMIT_MS // 1_000} s",
            remedy=_STATUS,
        )


def _stands(state: FailoverState) -> str:
    return state.problem or ("may be elected" if state.is_electable else "may not be elected, or waits for the lease")


def _nobody_answers(broker_name: str, answers: Sequence[Answer[pb.GetFailoverStateResponse]]) -> OperationFailed:
    refused = [answer for answer in answers if answer.failure and answer.failure.kind is FailureKind.REFUSED]
    cause = "\n".join(f"{one.subject}: {one.failure.text}" for one in refused or answers if one.failure is not None)
    if not refused:
        return OperationFailed(FailureKind.UNAVAILABLE, f"nobody of {broker_name} answers", cause=cause)
    return OperationFailed(
        FailureKind.REFUSED,
        f"{broker_name} does not fail over",
        cause=cause,
        remedy="set failoverAuthority to the same on all its members, and restart them",
    )
