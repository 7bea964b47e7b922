"""Quotas of clients: how much one user, one client address or one topic may have of a broker.

The rules are text, as the setting `clientQuotas` holds it: entries separated by `;`, each a subject and its limits.

    topic:orders sentMessages=500 sentBytes=1000000; address:* connections=100; user:reports polls=20

`*` gives each name a quota of its own; an entry with a name goes before it, and without limits lifts it.

A rate is a debt that time pays: whoever owes less than a second of his rate is served, whole, however large the request
is. So a rate of n lets n pass at once and n a second in the long run, and never starves what is larger than n. What is
paid leaves no trace: memory is for names that were busy in the last second, and for `NAMES_MAX` of them at most.
Beyond that new names share one debt, so that nobody escapes by inventing names.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from tandemmq.core.routing.values import peer_host

KeyT = TypeVar("KeyT")

ANY_NAME: Final = "*"
NAMES_MAX: Final = 16_384
"""Names of one rule that are told apart; each costs some 200 bytes."""
# The sum of all names beyond; no topic, address or user is called so.
_OTHERS: Final = ""
# So much of a rate may pass at once.
_BURST_MS: Final = 1_000
ANSWER_MAX_MS: Final = 1_500
"""A refusal is told after so long at the latest: below every client's own time limit, which is 3 s."""
# The first of those who are refused together is told so early at least; also where counts do not tell when there will
# be room.
_PAUSE_MS: Final = 1_000
# Between two of them, at most.
_SPREAD_MAX_MS: Final = 25
# Leases that one receive looks after; it takes half as many at most, so that looking keeps up.
_LOOKS: Final = 64


class QuotaKind(StrEnum):
    """Of what there is one for each name."""

    USER = "user"
    ADDRESS = "address"
    TOPIC = "topic"


class Quantity(StrEnum):
    """What is limited. Messages and bytes are by the second, the others at a time."""

    SENT_MESSAGES = "sentMessages"
    SENT_BYTES = "sentBytes"
    RECEIVED_MESSAGES = "receivedMessages"
    RECEIVED_BYTES = "receivedBytes"
    CONNECTIONS = "connections"
    POLLS = "polls"
    LEASES = "leases"


_SENT: Final = (Quantity.SENT_MESSAGES, Quantity.SENT_BYTES)
_RECEIVED: Final = (Quantity.RECEIVED_MESSAGES, Quantity.RECEIVED_BYTES)


class QuotaRule(NamedTuple):
    """One entry of the text."""

    kind: QuotaKind
    name: str
    limits: Mapping[Quantity, int]

    def __str__(self) -> str:
        return " ".join([f"{self.kind}:{self.name}", *(f"{key}={value}" for key, value in self.limits.items())])


class OverQuota(NamedTuple):
    """Why something is refused, and when it is worth another try."""

    kind: QuotaKind
    name: str
    quantity: Quantity
    limit: int
    pause_ms: int
    answered_ms: int
    """After which the refusal is told: whoever asks again then finds room, or waits for little."""

    @property
    def counter(self) -> str:
        """The name it is counted by."""
        return f"quota_{self.kind}_{self.quantity}"

    def __str__(self) -> str:
        per = " a second" if self.quantity in (*_SENT, *_RECEIVED) else ""
        name = self.name or "others"
        return (
            f"over the quota of {self.kind} {name}: {self.quantity} is {self.limit}{per}; retry in {self.pause_ms} ms"
        )


class QuotaRules:
    def __init__(self, rules: tuple[QuotaRule, ...] = ()) -> None:
        self.rules: Final = rules
        self._by_name: Final = {(rule.kind, rule.name): rule.limits for rule in rules}
        self._kinds: Final[dict[Quantity, tuple[QuotaKind, ...]]] = {
            quantity: tuple(kind for kind in QuotaKind if any(r.kind is kind and quantity in r.limits for r in rules))
            for quantity in Quantity
        }

    def __bool__(self) -> bool:
        return bool(self.rules)

    def __str__(self) -> str:
        return "; ".join(map(str, self.rules))

    def kinds(self, quantity: Quantity) -> tuple[QuotaKind, ...]:
        """Those that limit it, for whatever name."""
        return self._kinds[quantity]

    def limits_any(self, *quantities: Quantity) -> bool:
        """Somebody has a limit of one of them."""
        return any(self._kinds[quantity] for quantity in quantities)

    def limit(self, kind: QuotaKind, name: str, quantity: Quantity) -> int | None:
        """Of this name; None: none."""
        limits = self._by_name.get((kind, name))
        if limits is None:
            limits = self._by_name.get((kind, ANY_NAME), _NO_LIMITS)
        return limits.get(quantity)


_NO_LIMITS: Final[Mapping[Quantity, int]] = MappingProxyType({})


def parse_quotas(text: str) -> QuotaRules:
    """Rules of their text. ValueError names the entry and what to write instead."""
    rules: dict[tuple[QuotaKind, str], QuotaRule] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        subject, *limits = entry.split()
        kind_text, _, name = subject.partition(":")
        try:
            kind = QuotaKind(kind_text)
        except ValueError:
            raise ValueError(f"'{subject}' is not user:NAME, address:IP or topic:NAME; * stands for any name") from None
        if not name:
            raise ValueError(f"'{subject}' has no name; write {kind}:* for each one")
        if kind is QuotaKind.ADDRESS and name != ANY_NAME:
            try:
                name = _counted_address(name)
            except ValueError:
                raise ValueError(f"'{name}' is no IP address; write one, or address:* for each one") from None
        if (kind, name) in rules:
            raise ValueError(f"'{kind}:{name}' stands there twice; write all its limits in one entry")
        rules[kind, name] = QuotaRule(kind, name, MappingProxyType(dict(_limits(kind, limits))))
    return QuotaRules(tuple(rules.values()))


def _limits(kind: QuotaKind, texts: list[str]) -> Iterator[tuple[Quantity, int]]:
    seen = set()
    for text in texts:
        key, _, value = text.partition("=")
        try:
            quantity = Quantity(key)
        except ValueError:
            raise ValueError(f"'{text}' is no limit; write one of {', '.join(Quantity)} as NAME=NUMBER") from None
        if quantity is Quantity.CONNECTIONS and kind is not QuotaKind.ADDRESS:
            raise ValueError(f"'{text}' of a {kind}: connections are limited by address; write it there")
        if not value.isdecimal() or not 1 <= int(value) <= 1 << 50:
            raise ValueError(f"'{text}': write a whole number from 1; without the limit there is none")
        if quantity in seen:
            raise ValueError(f"'{text}' is the second {quantity} of one entry; write one")
        seen.add(quantity)
        yield quantity, int(value)


def _counted_address(text: str) -> str:
    """An address as it is counted: of IPv6 its /64, the least that one host is given. ValueError: it is no address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False).network_address)
    return str(address)


def counted_host(host: str) -> str:
    """The same of what may be no address, which is counted as it is."""
    try:
        return _counted_address(host)
    except ValueError:
        return host


_PEERS_MAX: Final = 4_096
_peers: Final[dict[str, str]] = {}


def address_of_peer(peer: str) -> str:
    """The address a peer of gRPC's is counted by (`ipv4:10.0.0.1:5000`, `ipv6:[::1]:5000`); of others "local"."""
    known = _peers.get(peer)
    if known is None:
        if len(_peers) >= _PEERS_MAX:
            _peers.clear()
        try:
            known = _counted_address(peer_host(peer))
        except ValueError:
            known = "local"
        _peers[peer] = known
    return known


@dataclass(slots=True)
class _Debt:
    """What one name owes of one rate; times are monotonic ms."""

    paid_at: float = 0.0
    """By then time has paid it."""
    took_ms: float = 0.0
    """How long time pays for what was taken last."""
    answered_at: float = 0.0
    """When the next one who is refused is told so."""

    def wait_ms(self, now_ms: int) -> int:
        """How long until whatever it is passes; 0: it does now."""
        owed = self.paid_at - now_ms
        return 0 if owed < _BURST_MS else int(owed - _BURST_MS) + 1

    def refused(self, now_ms: int) -> int:
        """After how many ms one more who is refused is told so.

        Those who are refused together would ask again together, and be refused again, all but one. So one after the
        other is told, each when there is room for it if that is soon; beyond `ANSWER_MAX_MS` they begin again, but
        late, as there is no room for them any time soon.
        """
        answered_at = max(self.answered_at, min(self.paid_at - _BURST_MS + 1, now_ms + _PAUSE_MS))
        if answered_at > now_ms + ANSWER_MAX_MS:
            answered_at = now_ms + _PAUSE_MS
        self.answered_at = answered_at + min(self.took_ms, _SPREAD_MAX_MS)
        return int(answered_at - now_ms)


class _Debts:
    """What each name owes of one rate."""

    def __init__(self) -> None:
        self._of: dict[str, _Debt] = {}
        self._next_sweep_ms = 0

    def of(self, name: str, now_ms: int) -> _Debt | None:
        """None: it owes nothing."""
        return self._of.get(self._place(name, now_ms))

    def take(self, name: str, amount: int, per_second: int, now_ms: int) -> None:
        place = self._place(name, now_ms)
        debt = self._of.get(place)
        if debt is None:
            debt = self._of[place] = _Debt()
        debt.took_ms = amount * 1_000 / per_second
        debt.paid_at = max(debt.paid_at, now_ms) + debt.took_ms

    def pay_at(self, before: Callable[[str], int | None], after: Callable[[str], int | None], now_ms: int) -> None:
        """Rates are others now. Whoever has none any more owes nothing."""
        left: dict[str, _Debt] = {}
        for name, debt in self._of.items():
            old, new = before(name), after(name)
            if new is not None and debt.paid_at > now_ms:
                share = min(1.0, old / new) if old is not None else 1.0
                left[name] = _Debt(now_ms + (debt.paid_at - now_ms) * share, debt.took_ms * share)
        self._of = left

    def _place(self, name: str, now_ms: int) -> str:
        """Where its debt is kept. Who owes nothing is forgotten when room is needed, at most once a second."""
        if name in self._of or len(self._of) < NAMES_MAX:
            return name
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + _BURST_MS
            self._of = {known: debt for known, debt in self._of.items() if debt.paid_at > now_ms}
        return name if len(self._of) < NAMES_MAX else _OTHERS

    def __len__(self) -> int:
        return len(self._of)


class _Lease(NamedTuple):
    group: str
    topic: str
    handle: str


class Share(NamedTuple):
    """Who asks for something, and of which topic. `user` is None where nobody signs in."""

    user: str | None
    address: str
    topic: str

    def name(self, kind: QuotaKind) -> str | None:
        if kind is QuotaKind.USER:
            return self.user
        return self.address if kind is QuotaKind.ADDRESS else self.topic


@dataclass(slots=True)
class Quotas:
    """What everybody has taken, under rules that may change. Times are monotonic ms; one thread.

    Whoever asks is told an `OverQuota`, or None, and what he then takes is charged: one and the same call for sends,
    whose size is known, and `received` and `leased` after a receive, whose size is not. `is_leased` tells whether a
    lease still runs.
    """

    is_leased: Callable[[str, str, str], bool] = lambda _group, _topic, _handle: True
    rules: QuotaRules = field(default_factory=QuotaRules)
    refused: Counter[str] = field(default_factory=Counter)
    """Refusals by `OverQuota.counter`."""
    _debts: dict[tuple[QuotaKind, Quantity], _Debts] = field(default_factory=dict)
    # Connections are counted whether or not they are limited: they last longer than rules.
    _connections: Counter[str] = field(default_factory=Counter)
    _polls: Counter[tuple[QuotaKind, str]] = field(default_factory=Counter)
    # The oldest lease that was not looked at first.
    _leases: dict[tuple[QuotaKind, str], deque[_Lease]] = field(default_factory=dict)

    def change(self, rules: QuotaRules, *, now_ms: int) -> None:
        """Other rules from now on. What was taken under rules that stay still counts, and is paid at the new rate where
        that is the higher one: who gave more room does not wait for hours until it is there."""
        before, self.rules = self.rules, rules
        kept = {(kind, quantity) for quantity in Quantity for kind in rules.kinds(quantity)}
        self._debts = {key: debts for key, debts in self._debts.items() if key in kept}
        for (kind, quantity), debts in self._debts.items():
            debts.pay_at(
                partial(before.limit, kind, quantity=quantity), partial(rules.limit, kind, quantity=quantity), now_ms
            )
        for key in [key for key in self._leases if (key[0], Quantity.LEASES) not in kept]:
            del self._leases[key]

    # Rates

    def send(self, share: Share, *, messages: int, body_bytes: int, now_ms: int) -> OverQuota | None:
        """All of a request, or nothing."""
        over = self._over_rate(share, _SENT, now_ms)
        if over is None:
            self._charge(share, _SENT, (messages, body_bytes), now_ms)
        return over

    def receive(self, share: Share, *, now_ms: int) -> OverQuota | None:
        """Whether a receive may look."""
        return self._over_rate(share, _RECEIVED, now_ms) or self._over_leases(share)

    def received(self, share: Share, *, messages: int, body_bytes: int, now_ms: int) -> None:
        self._charge(share, _RECEIVED, (messages, body_bytes), now_ms)

    def _over_rate(self, share: Share, quantities: tuple[Quantity, ...], now_ms: int) -> OverQuota | None:
        worst: tuple[int, _Debt, QuotaKind, str, Quantity, int] | None = None
        for kind, name, quantity, limit in self._limits(share, quantities):
            debts = self._debts.get((kind, quantity))
            debt = debts.of(name, now_ms) if debts is not None else None
            wait_ms = debt.wait_ms(now_ms) if debt is not None else 0
            if debt is not None and wait_ms and (worst is None or wait_ms > worst[0]):
                worst = wait_ms, debt, kind, name, quantity, limit
        if worst is None:
            return None
        wait_ms, debt, kind, name, quantity, limit = worst
        return self._told(OverQuota(kind, name, quantity, limit, wait_ms, debt.refused(now_ms)))

    def _charge(self, share: Share, quantities: tuple[Quantity, ...], amounts: tuple[int, ...], now_ms: int) -> None:
        for kind, name, quantity, limit in self._limits(share, quantities):
            debts = self._debts.setdefault((kind, quantity), _Debts())
            debts.take(name, amounts[quantities.index(quantity)], limit, now_ms)

    # Connections

    def connect(self, address: str) -> OverQuota | None:
        """Whether one more may be served; if so, `connected` counts it."""
        kind, quantity = QuotaKind.ADDRESS, Quantity.CONNECTIONS
        limit = self.rules.limit(kind, address, quantity)
        if limit is None or self._connections[address] < limit:
            return None
        return self._told(OverQuota(kind, address, quantity, limit, _PAUSE_MS, _PAUSE_MS))

    def connected(self, address: str) -> None:
        self._connections[address] += 1

    def disconnected(self, address: str) -> None:
        _take_one(self._connections, address)

    # Polls

    def poll(self, share: Share) -> OverQuota | None:
        """One more receive that waits; `poll_ended` with the same share ends it, unless it was refused."""
        for kind, name, quantity, limit in self._limits(share, (Quantity.POLLS,)):
            if self._polls[kind, name] >= limit:
                return self._told(OverQuota(kind, name, quantity, limit, _PAUSE_MS, _PAUSE_MS))
        for kind in QuotaKind:
            if (held_by := share.name(kind)) is not None:
                self._polls[kind, held_by] += 1
        return None

    def poll_ended(self, share: Share) -> None:
        for kind in QuotaKind:
            if (name := share.name(kind)) is not None:
                _take_one(self._polls, (kind, name))

    # Leases

    def leased(self, share: Share, group: str, handles: list[str]) -> None:
        """What a receive was given. Counted until `is_leased` denies it."""
        for kind, name, _, _ in self._limits(share, (Quantity.LEASES,)):
            is_other = (kind, name) not in self._leases and len(self._leases) >= NAMES_MAX
            held = self._leases.setdefault((kind, _OTHERS if is_other else name), deque())
            held.extend(_Lease(group, share.topic, handle) for handle in handles)

    def look_after(self, looks: int = 1_024) -> None:
        """Forgets leases that are over, of those who do not ask any more; about once a second."""
        for key in list(self._leases):
            if looks <= 0:
                return
            held = self._leases.pop(key)
            looks -= len(held) + 1
            self._look(held, min(len(held), 1_024))
            if held:
                self._leases[key] = held  # At the end: the others come first next time.

    def _over_leases(self, share: Share) -> OverQuota | None:
        for kind, name, quantity, limit in self._limits(share, (Quantity.LEASES,)):
            held = self._leases.get((kind, name)) or self._leases.get((kind, _OTHERS))
            if held is not None and len(held) >= limit:
                self._look(held, _LOOKS)
                if len(held) >= limit:
                    return self._told(OverQuota(kind, name, quantity, limit, _PAUSE_MS, _PAUSE_MS))
        return None

    def _look(self, held: deque[_Lease], looks: int) -> None:
        for _ in range(min(looks, len(held))):
            lease = held.popleft()
            if self.is_leased(*lease):
                held.append(lease)

    def _limits(self, share: Share, quantities: tuple[Quantity, ...]) -> Iterator[tuple[QuotaKind, str, Quantity, int]]:
        rules = self.rules
        for quantity in quantities:
            for kind in rules.kinds(quantity):
                name = share.name(kind)
                if name is not None and (limit := rules.limit(kind, name, quantity)) is not None:
                    yield kind, name, quantity, limit

    def _told(self, over: OverQuota | None) -> OverQuota | None:
        if over is not None:
            self.refused[over.counter] += 1
        return over


def _take_one(counts: Counter[KeyT], key: KeyT) -> None:
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]
