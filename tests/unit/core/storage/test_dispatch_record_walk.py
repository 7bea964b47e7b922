"""Record boundaries, as a resynchronisation needs them."""

from __future__ import annotations

import itertools
import random

from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import new_store
from tandemmq.core.storage.dispatch import record_boundaries, record_boundary_before
from tandemmq.core.storage.message_store import MessageStore


def filled_store(count: int = 40) -> tuple[MessageStore, list[int]]:
    """A store over several files, and where its records begin."""
    store = new_store(SimulatedDisk(random.Random(1)))
    store.load()
    starts = [store.put(outgoing_message(body=bytes(100 + number))).physical_offset for number in range(count)]
    return store, starts


def test_every_record_begins_at_a_boundary() -> None:
    store, starts = filled_store()
    found = record_boundaries(store, 0, store.end_offset)
    assert set(starts) | {store.end_offset} <= set(found)
    assert found == sorted(set(found))


def test_boundaries_are_limited_to_the_range() -> None:
    store, starts = filled_store()
    assert record_boundaries(store, starts[3], starts[5]) == starts[3:6]
    assert record_boundaries(store, starts[3] + 1, starts[5] - 1) == [starts[4]]


def test_boundary_before_an_offset_inside_a_record_is_its_start() -> None:
    store, starts = filled_store()
    for start, following in itertools.pairwise(starts):
        if following % store.segment_bytes:
            assert record_boundary_before(store, following - 1) == start
        assert record_boundary_before(store, start) == start
    assert record_boundary_before(store, store.end_offset) == store.end_offset
    assert record_boundary_before(store, 0) == 0
