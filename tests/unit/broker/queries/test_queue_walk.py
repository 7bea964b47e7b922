"""An id tells from when on to look."""

from __future__ import annotations

from support.stores import ManualClock
from tandemmq.broker.queries.queue_walk import earliest_store_ms
from tandemmq.client.messages import MessageIdSource


def test_an_id_tells_from_when_on_to_look() -> None:
    clock = ManualClock()
    made = MessageIdSource(clock).next_id()
    assert clock.now_ms - 3_601_000 <= earliest_store_ms(made) <= clock.now_ms - 3_599_000
    # RocketMQ 4's, and what is none.
    for other in ("7F0000010A1C18B4AAC2123456780001", "", "01" + "Z" * 32, "02" + "0" * 32):
        assert earliest_store_ms(other) == 0
