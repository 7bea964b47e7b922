"""A record in bytes, for those who read one in part and those who read it in place."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from support.messages import STORE_HOST, outgoing_message
from tandemmq.core.message.record import Host, encode_record

PHYSICAL_OFFSET: Final = 4_096
ADDRESSES = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)


def record(*, topic: str = "orders", body: bytes = b"body", store_host: Host = STORE_HOST) -> bytes:
    """At `PHYSICAL_OFFSET` of the log, with a tag and two keys."""
    message = outgoing_message(topic=topic, queue_id=3, body=body, tag="red", keys=("id", "key"))
    return encode_record(
        message,
        queue_offset=7,
        physical_offset=PHYSICAL_OFFSET,
        store_timestamp_ms=1_700_000_000_001,
        store_host=store_host,
    )
