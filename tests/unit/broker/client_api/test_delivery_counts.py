"""What the handlers count of deliveries."""

from __future__ import annotations

from support.api_requests import call, message, receive, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime


def test_deliveries_are_counted_by_topic_and_group(broker: BrokerAssembly, time: ManualTime) -> None:
    call(broker, "SendMessage", send_request(message(body=b"a" * 1_000)))
    call(broker, "SendMessage", send_request(message(body=b"b" * 1_000)))
    receive(broker, receive_request(group="billing", batch_size=1))
    receive(broker, receive_request(group="stock"))

    counts = broker.api.delivery_meter.counts
    assert {pair: one.messages for pair, one in counts.items()} == {("orders", "billing"): 1, ("orders", "stock"): 2}
    assert 1_000 < counts[("orders", "billing")].bytes < 2_000
    assert counts[("orders", "billing")].redelivered_messages == 0


def test_redeliveries_are_counted_beside_all(broker: BrokerAssembly, time: ManualTime) -> None:
    call(broker, "SendMessage", send_request(message()))
    receive(broker, receive_request(invisible_ms=10_000))
    time.advance(10_001)
    call(broker, "SendMessage", send_request(message()))
    assert len(receive(broker, receive_request()).messages) == 2

    counts = broker.api.delivery_meter.of("orders", "group")
    assert (counts.messages, counts.redelivered_messages) == (3, 1)
    assert counts.redelivered_bytes * 2 < counts.bytes


def test_dead_letters_are_counted_where_they_came_from(broker: BrokerAssembly, time: ManualTime) -> None:
    broker.add_group("group", retry_max_times=0)
    call(broker, "SendMessage", send_request(message()))
    receive(broker, receive_request(invisible_ms=10_000))
    time.advance(10_001)
    assert call(broker, "ReceiveMessage", receive_request()).code is None

    assert broker.api.delivery_meter.of("orders", "group").dead_letters == 1


def test_nothing_delivered_counts_nothing(broker: BrokerAssembly) -> None:
    call(broker, "ReceiveMessage", receive_request())
    assert not broker.api.delivery_meter.counts
