"""Brokers in memory behind the operations' questions: what each answers is a method of a test's own object."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from tandemmq.admin.cluster_state import BrokerState
from tandemmq.admin.operations.questions import Answer, BrokerPlanes, CallFailure, Questions
from tandemmq.admin.rpc import Channels

AnswerT = TypeVar("AnswerT")


def rpc_error(code: grpc.StatusCode, details: str = "") -> grpc.aio.AioRpcError:
    """What a failed call raises."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, None)


class FakeQuestions(Questions):
    """Asks `planes` instead: by broker key an object with `admin`, `operations`, `messages` or `traces`, as needed."""

    def __init__(self, planes: Mapping[str, Any]) -> None:
        super().__init__(Channels())
        self._planes = planes

    async def brokers(
        self, brokers: Iterable[BrokerState], question: Callable[[BrokerPlanes], Awaitable[AnswerT]]
    ) -> list[Answer[AnswerT]]:
        async def ask(broker: BrokerState) -> Answer[AnswerT]:
            planes = self._planes[broker.key]
            planes.broker = broker
            try:
                return Answer(broker.key, broker.broker_name, await question(cast("BrokerPlanes", planes)))
            except grpc.aio.AioRpcError as error:
                return Answer(broker.key, broker.broker_name, None, CallFailure.of(error))

        return list(await asyncio.gather(*(ask(broker) for broker in brokers)))
