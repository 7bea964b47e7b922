"""A page of messages while it is being filled: what makes it full, and where the next one begins."""

from __future__ import annotations

from typing import Final

from broker.queries.criteria import WantedMessages
from broker.queries.page_token import token_of
from broker.queries.stored_records import StoredRecords
from broker.queries.values import MessagePage, QueriedMessage
from mqcore.clock import Clock
from mqcore.message.properties import decode_properties
from mqcore.message.property_names import PROPERTY_TAGS
from mqcore.message.record_decoder import RecordOutline

__all__ = ["SLICE_RECORDS", "FoundPage"]

SLICE_RECORDS: Final = 24
"""Records read in one turn of the event loop: a millisecond."""
_SCANNED_MAX: Final = 5_000
"""Records looked at for one page."""
_PAGE_BYTES_MAX: Final = 3 << 20
"""Of bodies and properties: an answer stays below the 4 MiB that gRPC's clients take by default."""
_MESSAGE_BYTES: Final = 400
"""What a message takes beside them."""
_TIME_LIMIT_MS: Final = 3_000
"""Then the page ends with what was found: most callers wait for 10 s, and may have had to wait for their turn."""


class FoundPage:
    """Messages are offered in the order of the query; `is_full` then says when to stop."""

    def __init__(self, records: StoredRecords, wanted: WantedMessages, *, clock: Clock) -> None:
        self._records = records
        self._wanted = wanted
        self._clock = clock
        self._deadline_ms = clock.monotonic_ms() + _TIME_LIMIT_MS
        self._messages: list[QueriedMessage] = []
        self._bytes = 0
        self.scanned_count = 0

    @property
    def room(self) -> int:
        """Messages that are still wanted; 0 when enough was looked at."""
        if self.scanned_count >= _SCANNED_MAX or self._clock.monotonic_ms() >= self._deadline_ms:
            return 0
        return self._wanted.limit - len(self._messages)

    async def offer(self, outline: RecordOutline) -> bool:
        """Takes the message if it has a wanted tag; False: it is wanted and there is no room for it."""
        properties = decode_properties(outline.properties)
        if self._wanted.tags and properties.get(PROPERTY_TAGS, "") not in self._wanted.tags:
            return True
        if len(self._messages) >= self._wanted.limit:
            return False
        body = await self._records.body(outline, max_bytes=self._wanted.body_bytes)
        size = _MESSAGE_BYTES + len(outline.properties) + len(body.data)
        if self._messages and self._bytes + size > _PAGE_BYTES_MAX:
            return False
        self._bytes += size
        self._messages.append(QueriedMessage(outline, properties, body))
        return True

    def ended(self, next_position: int | None) -> MessagePage:
        """As it is now. `next_position` None: there is no next page."""
        token = b"" if next_position is None else token_of(self._wanted, next_position)
        return MessagePage(tuple(self._messages), token, self.scanned_count)
