"""How long a receive may wait for messages."""

from __future__ import annotations

from typing import Final

from apache.rocketmq.v2 import service_pb2 as pb

from broker.api.status_codes import Code, Outcome

__all__ = ["poll_end_ms"]

# Limits of a long poll (RocketMQ's grpcClientConsumerMinLongPollingTimeoutMillis and its maximum).
_POLL_MIN_MS: Final = 5_000
_POLL_MAX_MS: Final = 20_000
# What a deadline loses on its way here: a call that was given 5 s arrives with a little less.
_TRANSIT_MS: Final = 500
# The empty answer must reach the client before its deadline does.
_ANSWER_MARGIN_MS: Final = 100
# Java's simple consumer: half of its request timeout of 3 s, when it does not say how long to wait.
_UNSAID_MARGIN_MS: Final = 1_500


def poll_end_ms(request: pb.ReceiveMessageRequest, deadline_ms: int | None, now_ms: int) -> int | Outcome:
    """When an empty receive is answered, monotonic (RocketMQ's ReceiveMessageActivity).

    The wait asked for is brought within its limits; a call that ends sooner waits shorter, but not below the least.
    """
    remaining_ms = _POLL_MAX_MS + _UNSAID_MARGIN_MS if deadline_ms is None else deadline_ms - now_ms
    if request.HasField("long_polling_timeout"):
        wanted_ms = request.long_polling_timeout.ToMilliseconds()
    else:
        wanted_ms = remaining_ms - _UNSAID_MARGIN_MS
    poll_ms = min(max(wanted_ms, _POLL_MIN_MS), _POLL_MAX_MS)
    if poll_ms > remaining_ms:
        if remaining_ms < _POLL_MIN_MS - _TRANSIT_MS:
            return Outcome(
                Code.ILLEGAL_POLLING_TIME,
                f"the call ends in {remaining_ms} ms, a receive may wait {_POLL_MIN_MS} ms: give it a later deadline",
            )
        poll_ms = remaining_ms
    return now_ms + min(poll_ms, remaining_ms - _ANSWER_MARGIN_MS)
