"""Clients' quotas where the handlers meet them: who asks, what he is told, and when.

What is over a quota is answered TOO_MANY_REQUESTS. Official clients make little of that by themselves: of a send, Java
asks again after 10 ms, Python gives up at once; of a receive, Java asks again after 20 ms. So the answer itself waits
until the quota has room, a second or so at most, and whoever sends one request after another is slowed down to his
quota.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tandemmq.broker.client_api.held_answers import HeldAnswers
from tandemmq.broker.client_api.sent_message import SentMessage
from tandemmq.broker.client_api.validation import Code, Outcome
from tandemmq.core.clock import Clock
from tandemmq.core.quotas import OverQuota, Quantity, QuotaRules, Quotas, Share, address_of_peer, counted_host
from tandemmq.service.rpc import CALLER_HEADER, Call

if TYPE_CHECKING:
    from tandemmq.broker.client_api.services import Timers
    from tandemmq.core.delivery.lease_table import LeaseTable


class ClientQuotas:
    """`user_of` tells who signed a call; None: nobody did. `source_of` tells the address of a call that another broker
    passed on; None: nobody vouches for it. Event loop only.

    Handlers ask only while `limits_sends` or `limits_receives`.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        timers: Timers,
        leases: LeaseTable,
        user_of: Callable[[Call], str | None] | None = None,
        source_of: Callable[[Call], str] | None = None,
    ) -> None:
        self._clock = clock
        self._held: Final = HeldAnswers(clock=clock, timers=timers)
        self._user_of = user_of
        self._source_of = source_of
        self._quotas: Final = Quotas(
            lambda group, topic, handle: leases.is_leased(group, topic, handle, clock.monotonic_ms())
        )

    @property
    def rules(self) -> QuotaRules:
        return self._quotas.rules

    @property
    def refused(self) -> Mapping[str, int]:
        """Refusals by kind and quantity, such as `quota_topic_sentBytes`."""
        return self._quotas.refused

    @property
    def limits_sends(self) -> bool:
        return self.rules.limits_any(Quantity.SENT_MESSAGES, Quantity.SENT_BYTES)

    @property
    def limits_receives(self) -> bool:
        return self.rules.limits_any(
            Quantity.RECEIVED_MESSAGES, Quantity.RECEIVED_BYTES, Quantity.POLLS, Quantity.LEASES
        )

    def change(self, rules: QuotaRules) -> None:
        self._quotas.change(rules, now_ms=self._clock.monotonic_ms())

    def housekeep(self) -> None:
        """About once a second."""
        self._quotas.look_after()

    def share_of(self, call: Call, topic: str) -> Share:
        user = self._user_of(call) if self._user_of is not None else ""
        address = address_of_peer(call.peer)
        if self._source_of is not None and call.header(CALLER_HEADER):
            # Another broker passed it on: its own address is that of many.
            address = counted_host(self._source_of(call))
        return Share(user or None, address, topic)

    # Sends

    def refused_send(self, messages: Sequence[SentMessage], call: Call) -> Outcome | None:
        """Charges the request, or says why not. The topic exists: strangers' names are not counted."""
        share = self.share_of(call, messages[0].topic)
        body_bytes = sum([len(sent.body) for sent in messages])
        now_ms = self._clock.monotonic_ms()
        return _outcome(self._quotas.send(share, messages=len(messages), body_bytes=body_bytes, now_ms=now_ms))

    # Receives

    def refused_receive(self, share: Share) -> Outcome | None:
        return _outcome(self._quotas.receive(share, now_ms=self._clock.monotonic_ms()))

    def received(self, share: Share, group: str, handles: list[str], body_bytes: int) -> None:
        self._quotas.received(share, messages=len(handles), body_bytes=body_bytes, now_ms=self._clock.monotonic_ms())
        self._quotas.leased(share, group, handles)

    def pulled(self, share: Share, messages: int, body_bytes: int) -> None:
        """The same without leases."""
        self._quotas.received(share, messages=messages, body_bytes=body_bytes, now_ms=self._clock.monotonic_ms())

    def refused_poll(self, share: Share) -> Outcome | None:
        """One more that waits, until `poll_ended`."""
        return _outcome(self._quotas.poll(share))

    def poll_ended(self, share: Share) -> None:
        self._quotas.poll_ended(share)

    # Connections, by the peer's address as sockets have it

    def admits(self, peer: str) -> bool:
        return self._quotas.connect(address_of_peer(peer)) is None

    def connected(self, peer: str) -> None:
        self._quotas.connected(address_of_peer(peer))

    def disconnected(self, peer: str) -> None:
        self._quotas.disconnected(address_of_peer(peer))

    # Answers

    def hold(self, call: Call, outcome: Outcome, answer: Callable[[], object], *, kept_bytes: int = 0) -> None:
        """Answers when the pause of the refusal is over, as `HeldAnswers` does."""
        self._held.hold(outcome.pause_ms, answer, deadline_ms=call.deadline_ms, kept_bytes=kept_bytes)


def _outcome(over: OverQuota | None) -> Outcome | None:
    if over is None:
        return None
    return Outcome(Code.TOO_MANY_REQUESTS, str(over), retryable=True, pause_ms=over.answered_ms)
