"""Connected clients as tables show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from admin.operations.values import Client
from admin.quantities import age_text
from admin.web.page_addresses import group_address, topic_address

__all__ = ["ClientRow", "client_rows"]


@dataclass(frozen=True, slots=True)
class ClientRow:
    """A client; what it has not said is named so."""

    client_id: str
    # simple consumer, producer …
    kind: str
    group: str
    group_address: str
    library: str
    address: str
    heard: str
    brokers: str
    # Topic, its page, and the filter where it reads with one.
    subscriptions: tuple[tuple[str, str, str], ...]


def client_rows(clients: Iterable[Client], *, shown_topic: str = "") -> tuple[ClientRow, ...]:
    """In the order given. With `shown_topic` only what a client says of that topic."""
    return tuple(_client_row(client, shown_topic) for client in clients)


def _client_row(client: Client, shown_topic: str) -> ClientRow:
    return ClientRow(
        client_id=client.client_id,
        kind=client.client_type.replace("_", " ").lower() or "has not said yet",
        group=client.group,
        group_address=group_address(client.group) if client.group else "",
        library=" ".join(part for part in (client.language, client.version) if part) or "not known",
        address=client.address,
        heard=age_text(client.silent_ms),
        brokers=", ".join(client.brokers),
        subscriptions=tuple(
            (topic, topic_address(topic), expression)
            for topic, expression in sorted(client.subscriptions.items())
            if shown_topic in ("", topic)
        ),
    )
