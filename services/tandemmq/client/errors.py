"""What can go wrong for a user of this library. Every message says which address was asked and what it answered."""

from __future__ import annotations

__all__ = ["AccessPointInvalid", "BrokerRefused", "ClientError", "EndpointUnreachable", "SendFailed", "TopicNotFound"]


class ClientError(Exception):
    """Root of this library's errors. `endpoint` is the address at fault, None when none was asked."""

    endpoint: str | None = None


class AccessPointInvalid(ClientError):
    """The configured address is no `host:port`; the user's fault, nothing was sent."""


class EndpointUnreachable(ClientError):
    """No answer from `endpoint` within the time limit. Whether the request took effect is unknown."""

    def __init__(self, endpoint: str, call: str, reason: str) -> None:
        super().__init__(f"{call} at {endpoint}: {reason}")
        self.endpoint = endpoint


class BrokerRefused(ClientError):
    """`endpoint` answered with RocketMQ's `code`. `retryable` tells whether another try may succeed."""

    def __init__(self, endpoint: str, call: str, code: int, code_name: str, text: str, *, retryable: bool) -> None:
        super().__init__(f"{call} at {endpoint}: {code_name} ({code}) {text}".rstrip())
        self.endpoint = endpoint
        self.code = code
        self.code_name = code_name
        self.retryable = retryable


class TopicNotFound(BrokerRefused):
    """The topic has no route: it does not exist, or no broker that serves it is alive."""


class SendFailed(ClientError):
    """All attempts of one send failed. The message may be stored, possibly more than once, under `message_id`."""

    def __init__(self, topic: str, message_id: str, failures: list[ClientError]) -> None:
        tried = "; ".join(str(failure) for failure in failures)
        super().__init__(f"topic {topic}, message {message_id}: {len(failures)} attempts failed: {tried}")
        self.message_id = message_id
        self.failures = failures
