"""Lite topics; transactions that nobody has decided, and ending them; what clients are told over their streams."""

from __future__ import annotations

from typing import Final

from tandemmq.admin.operations.questions import FailureKind, Members, OperationFailed, Questions, unseen_of
from tandemmq.admin.operations.values import ClientReply, LiteTopic, LiteTopicPage, Transaction, TransactionPage
from tandemmq.admin.protobuf import as_value
from tandemmq.core.delivery.half_messages import BadTransactionId, TransactionId
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb

__all__ = ["CLIENT_COMMANDS", "TRANSACTION_ENDS", "TransactionOperations"]

TRANSACTION_ENDS: Final = {"commit": pb.TRANSACTION_END_COMMIT, "rollback": pb.TRANSACTION_END_ROLLBACK}
CLIENT_COMMANDS: Final = {
    "print-stack": pb.CLIENT_COMMAND_PRINT_STACK,
    "verify-message": pb.CLIENT_COMMAND_VERIFY_MESSAGE,
    "reconnect": pb.CLIENT_COMMAND_RECONNECT,
}
_TRANSACTIONS_MAX: Final = 1_000


_LITE_TOPICS_MAX: Final = 1_000


class TransactionOperations:
    """Asks masters, and for clients all brokers."""

    def __init__(self, members: Members, questions: Questions) -> None:
        self._members = members
        self._questions = questions

    async def transactions(self, *, topic: str, limit: int) -> TransactionPage:
        """Of all masters together, the oldest first."""
        limit = max(1, min(limit, _TRANSACTIONS_MAX))
        request = pb.ListTransactionsRequest(topic=topic, limit=limit)
        readers = self._members.masters()
        answers = await self._questions.brokers(readers.brokers, lambda planes: planes.operations.transactions(request))
        found = [
            as_value(Transaction, view, broker_name=answer.broker_name)
            for answer in answers
            if answer.value is not None
            for view in answer.value.transactions
        ]
        found.sort(key=lambda one: one.store_ms)
        total = sum(answer.value.total_count for answer in answers if answer.value is not None)
        return TransactionPage(tuple(found[:limit]), total, (*readers.unseen, *unseen_of(answers)))

    async def lite_topics(self, topic: str, *, search: str, limit: int) -> LiteTopicPage:
        """Of all masters together, by name."""
        limit = max(1, min(limit, _LITE_TOPICS_MAX))
        request = pb.ListLiteTopicsRequest(topic=topic, search=search, limit=limit)
        readers = self._members.masters()
        answers = await self._questions.brokers(readers.brokers, lambda planes: planes.operations.lite_topics(request))
        found = [
            as_value(LiteTopic, view, broker_name=answer.broker_name)
            for answer in answers
            if answer.value is not None
            for view in answer.value.lite_topics
        ]
        texts = {answer.failure.text for answer in answers if answer.failure is not None}
        if answers and all(answer.value is None for answer in answers):
            raise OperationFailed(
                FailureKind.REFUSED,
                f"no master tells lite topics of {topic}",
                cause="\n".join(sorted(texts)),
                remedy="name a topic of the type LITE; `tandemmq topic list` shows types",
            )
        found.sort(key=lambda one: (one.lite_topic, one.broker_name))
        total = sum(answer.value.total_count for answer in answers if answer.value is not None)
        return LiteTopicPage(tuple(found[:limit]), total, (*readers.unseen, *unseen_of(answers)))

    async def resolve(self, transaction_id: str, end: str, *, dry_run: bool) -> Transaction:
        """Ends one, or says which it would be."""
        if end not in TRANSACTION_ENDS:
            raise OperationFailed(FailureKind.INVALID, f"end: {end!r}", remedy="choose commit or rollback")
        try:
            broker_name = TransactionId.parse(transaction_id).broker_name
        except BadTransactionId as error:
            raise OperationFailed(
                FailureKind.INVALID, str(error), remedy="`tandemmq transaction list` shows those there are"
            ) from error
        [master] = self._members.masters_to_change([broker_name])
        request = pb.ResolveTransactionRequest(
            transaction_id=transaction_id, end=TRANSACTION_ENDS[end], dry_run=dry_run
        )
        answer = await self._questions.broker(
            master,
            lambda planes: planes.operations.resolve_transaction(request),
            problem="the transaction was not ended",
        )
        return as_value(Transaction, answer.transaction, broker_name=broker_name)

    async def command_client(
        self, client_id: str, command: str, *, broker_name: str, topic: str, queue_id: int, queue_offset: int
    ) -> tuple[ClientReply, ...]:
        """What it said to each broker that it is connected to; to one master, if that is named."""
        if command not in CLIENT_COMMANDS:
            raise OperationFailed(
                FailureKind.INVALID, f"command: {command!r}", remedy=f"choose one of {', '.join(CLIENT_COMMANDS)}"
            )
        if command == "verify-message" and not (broker_name and topic):
            raise OperationFailed(
                FailureKind.INVALID,
                "which message is to be verified?",
                remedy="name its broker group, topic, queue and offset; the client must be connected to that group",
            )
        brokers = self._members.masters_to_change([broker_name]) if broker_name else self._members.answering()[0]
        request = pb.CommandClientRequest(
            client_id=client_id,
            command=CLIENT_COMMANDS[command],
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
        )
        answers = await self._questions.brokers(brokers, lambda planes: planes.operations.command_client(request))
        replies = tuple(
            as_value(ClientReply, answer.value, broker=answer.subject) for answer in answers if answer.value is not None
        )
        if not replies:
            texts = {answer.failure.text for answer in answers if answer.failure is not None}
            raise OperationFailed(
                FailureKind.NOT_FOUND,
                f"client {client_id} was not told",
                cause="\n".join(sorted(texts)) or "no broker answers",
                remedy="`tandemmq clients` shows who is connected",
            )
        return replies
