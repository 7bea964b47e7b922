"""Counters of what consumers were given."""

from __future__ import annotations

from tandemmq.broker.put import DeliveryMeter
from tandemmq.service.metrics import OTHER


def test_a_pair_keeps_its_counters() -> None:
    meter = DeliveryMeter()
    meter.of("orders", "billing").messages += 2
    meter.of("orders", "billing").messages += 1
    meter.of("orders", "stock").dead_letters += 1

    assert {pair: (counts.messages, counts.dead_letters) for pair, counts in meter.counts.items()} == {
        ("orders", "billing"): (3, 0),
        ("orders", "stock"): (0, 1),
    }


def test_pairs_beyond_the_limit_share_their_counters() -> None:
    meter = DeliveryMeter(pairs_max=1)
    for topic in ("orders", "refunds", "returns", "orders"):
        meter.of(topic, "billing").messages += 1

    assert meter.counts[("orders", "billing")].messages == 2
    assert meter.counts[(OTHER, OTHER)].messages == 2
    assert len(meter.counts) == 2
