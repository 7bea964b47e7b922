"""What is noted of a send whose trace is wanted, and of the slaves it may have waited for."""

from __future__ import annotations

from dataclasses import dataclass, field

from mqcore.tracing.attributes import RetainedFor
from mqcore.tracing.offset_timeline import OffsetTimeline
from mqcore.tracing.trace_context import TraceContext

__all__ = ["AckPolicy", "LinkTimeline", "TracedSend"]


@dataclass(frozen=True, slots=True)
class AckPolicy:
    """What a send waits for, by the broker's settings."""

    needed_slaves: int
    waits_for_slaves: bool
    sync_flush: bool

    @property
    def name(self) -> str:
        """For people."""
        if self.waits_for_slaves and self.needed_slaves > 0:
            return "SYNC_REPLICATION+SYNC_FLUSH" if self.sync_flush else "SYNC_REPLICATION"
        return "SYNC_FLUSH" if self.sync_flush else "ASYNC"


@dataclass(slots=True)
class LinkTimeline:
    """One connection of a slave: what it was sent and what it acknowledged, when."""

    peer: str
    broker_id: int | None = None
    # When the connection ended; 0 while it has not.
    gone_ns: int = 0
    sent: OffsetTimeline = field(default_factory=OffsetTimeline)
    acknowledged: OffsetTimeline = field(default_factory=OffsetTimeline)

    @property
    def name(self) -> str:
        """The slave's broker id where it is known, else its address: a slave of another make does not tell."""
        return str(self.broker_id) if self.broker_id is not None else self.peer


@dataclass(init=False, slots=True)
class TracedSend:
    """One request whose spans are wanted. Times are monotonic ns, 0 for what did not come to pass."""

    # Of the server's span.
    context: TraceContext
    parent: TraceContext | None
    # Contexts of the messages of a batch whose senders do not agree on one.
    linked: tuple[TraceContext, ...]
    retained_for: RetainedFor
    topic: str
    # Of the first messages, if there are many.
    message_ids: tuple[str, ...]
    message_count: int
    body_bytes: int
    client_id: str
    peer: str
    received_ns: int
    begun_ns: int
    appended_ns: int
    released_ns: int
    written_ns: int
    # Empty when everything asked for was had; else a name for why not.
    failure: str
    put_status: str
    tag: str
    queue_id: int
    queue_offset: int
    # Bytes of the CommitLog, [start, end); -1 if nothing was stored.
    start_offset: int
    end_offset: int
    # False for a message that said it waits for nothing.
    waits: bool

    # Written out for the compiler, which leaves a dataclass's own to the interpreter.
    def __init__(
        self,
        context: TraceContext,
        parent: TraceContext | None,
        linked: tuple[TraceContext, ...],
        retained_for: RetainedFor,
        topic: str,
        message_ids: tuple[str, ...],
        message_count: int,
        body_bytes: int,
        client_id: str,
        peer: str,
        received_ns: int,
        begun_ns: int = 0,
        appended_ns: int = 0,
        released_ns: int = 0,
        written_ns: int = 0,
        failure: str = "",
        put_status: str = "",
        tag: str = "",
        queue_id: int = -1,
        queue_offset: int = -1,
        start_offset: int = -1,
        end_offset: int = -1,
        waits: bool = True,
    ) -> None:
        self.context = context
        self.parent = parent
        self.linked = linked
        self.retained_for = retained_for
        self.topic = topic
        self.message_ids = message_ids
        self.message_count = message_count
        self.body_bytes = body_bytes
        self.client_id = client_id
        self.peer = peer
        self.received_ns = received_ns
        self.begun_ns = begun_ns
        self.appended_ns = appended_ns
        self.released_ns = released_ns
        self.written_ns = written_ns
        self.failure = failure
        self.put_status = put_status
        self.tag = tag
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.waits = waits

    @property
    def is_stored(self) -> bool:
        """Whether it is in the CommitLog, whatever its sender was told."""
        return self.end_offset >= 0
