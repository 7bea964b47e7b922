"""Texts that clients put into headers and requests, before anybody knows who they are: each is read or refused, by a
value, whatever it is; and what is read means the same when it is written again.

    make fuzz ONLY=client_texts      # coverage-guided, by atheris: build/fuzz.json
    python -m fuzz.client_texts      # a few thousand cases of one seed, without atheris

The first byte names the reader, the rest is the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import structlog.testing

from fuzz.source import Source, any_bytes, run_all
from tandemmq.broker.client_api.access import ClientAccess, SignatureZones
from tandemmq.broker.client_api.send import RecallHandle
from tandemmq.core.access.sealed_secrets import SecretKeys
from tandemmq.core.access.signature import date_problem, is_signed, parse_authorization
from tandemmq.core.access.users_and_policies import AclTable, UserTable
from tandemmq.core.delivery.lease_terms import broker_of_handle, read_handle
from tandemmq.core.delivery.sql_filter import BadSql, parse_sql
from tandemmq.core.message.properties import encode_properties
from tandemmq.core.quotas import address_of_peer, parse_quotas
from tandemmq.service.event_loop import SystemClock

INPUT_BYTES_MAX: Final = 300
_ZONES: Final = (-480, 0, 60, 330)
_PROPERTIES: Final = (b"", encode_properties([("a", "1"), ("b", "text"), ("c", "true"), ("d", "-0.5")]))


def run_one(data: bytes) -> None:
    """One input. AssertionError, or whatever escapes, is a finding."""
    source = Source(data)
    reader = _READERS[source.below(len(_READERS))]
    rest = source.rest()
    # A header's bytes are each a character; a field of a message is UTF-8.
    reader(rest.decode("latin-1"))
    reader(rest.decode("utf-8", errors="ignore"))


def _authorization(text: str) -> None:
    credential = parse_authorization(text)
    if isinstance(credential, str):
        assert credential, text
        return
    assert credential.username, text
    assert not is_signed(b"a secret", text, credential.signature), text


def _date(text: str) -> None:
    date_problem(text, now_ms=1_700_000_000_000, zones=_ZONES)


class _HeadersOnly:
    """A call as far as the guard looks at it before it knows who calls."""

    peer: Final = "ipv4:10.0.0.7:5000"

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    def header(self, name: str) -> str:
        return self._headers.get(name, "")


def _guard(text: str) -> None:
    """The headers of a call, each on a line of its own: a stranger's, wherever it says that it is from."""
    headers = dict(zip(_GUARD_HEADERS, text.split("\n"), strict=False))
    call: Any = _HeadersOnly(headers)
    access = ClientAccess(
        users=UserTable(),
        acls=AclTable(),
        keys=SecretKeys([b"k" * 32]),
        authorizes=True,
        zones=SignatureZones(_ZONES, with_local=False),
        clock=SystemClock(),
        timers=_NO_TIMERS,
        revoked=lambda: None,
    )
    assert access.sources.source(call) == "10.0.0.7", text
    with structlog.testing.capture_logs():
        assert access.refusal(call, "Heartbeat", ()) is not None, text


_GUARD_HEADERS: Final = ("x-tandemmq-caller", "authorization", "x-mq-date-time", "x-mq-client-id")
_NO_TIMERS: Final[Any] = None


def _receipt_handle(text: str) -> None:
    assert read_handle(text) is not None or broker_of_handle(text) is None, text


def _recall_handle(text: str) -> None:
    handle = RecallHandle.decode(text)
    if handle is not None:
        assert RecallHandle.decode(handle.encode()) == handle, text


def _sql(text: str) -> None:
    found = parse_sql(text)
    if isinstance(found, BadSql):
        assert str(found.problem), text
        return
    for properties in _PROPERTIES:
        found.matches(properties)


def _peer(text: str) -> None:
    assert address_of_peer(text), text


def _quotas(text: str) -> None:
    try:
        rules = parse_quotas(text)
    except ValueError:
        return
    assert str(parse_quotas(str(rules))) == str(rules), text


_READERS: Final[tuple[Callable[[str], None], ...]] = (
    _authorization,
    _date,
    _receipt_handle,
    _recall_handle,
    _sql,
    _peer,
    _quotas,
    _guard,
)
_SEEDS: Final = (
    (_authorization, "MQv2-HMAC-SHA1 Credential=ann/region, SignedHeaders=x-mq-date-time, Signature=00ff"),
    (_date, "20261125T153000Z"),
    (_guard, f"10.1.2.3 1700000000000 {'0' * 64}\nMQv2-HMAC-SHA1 Credential=ann, Signature=00\n20261125T153000Z\nc@1"),
    (_recall_handle, RecallHandle("orders", "broker-a", 1_700_000_000_000, "01F5").encode()),
    (_sql, "a > 1 AND (b IN ('text', 'x') OR NOT c) AND d BETWEEN -1 AND 0.5 AND e IS NOT NULL"),
    (_peer, "ipv6:%5B2001:db8::1%5D:5000"),
    (_quotas, "topic:orders sentMessages=5; address:* connections=2 polls=7"),
)


def seeds(count: int, *, seed: int = 5) -> Iterator[bytes]:
    """Inputs to begin with."""
    for reader, text in _SEEDS:
        yield bytes([_READERS.index(reader)]) + text.encode()
    yield from any_bytes(count, seed=seed, bytes_max=INPUT_BYTES_MAX)


if __name__ == "__main__":
    run_all(run_one, seeds(5_000))
