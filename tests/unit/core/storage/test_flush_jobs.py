from __future__ import annotations

import random

import pytest

from support.simulated_disk import SimulatedDisk
from tandemmq.core.storage.flush_jobs import StoreCheckpoint

CHECKPOINT = StoreCheckpoint(
    physic_message_timestamp_ms=1,
    logics_message_timestamp_ms=2,
    index_message_timestamp_ms=3,
    master_flushed_offset=4,
    confirm_physical_offset=5,
    logics_physical_offset=6,
)


def test_file_is_one_page_with_the_fields_in_order() -> None:
    encoded = CHECKPOINT.encode()
    assert encoded == b"".join(value.to_bytes(8, "big") for value in range(1, 7)) + bytes(4048)
    assert StoreCheckpoint.decode(encoded) == CHECKPOINT


def test_saved_checkpoint_survives_a_power_loss() -> None:
    disk = SimulatedDisk(random.Random(0))
    CHECKPOINT.save(disk)
    disk.crash(power_loss=True)
    assert StoreCheckpoint.load(disk) == CHECKPOINT


@pytest.mark.parametrize("content", [None, b"", bytes(47)])
def test_missing_or_short_file_says_nothing_is_known(content: bytes | None) -> None:
    disk = SimulatedDisk(random.Random(0))
    if content is not None:
        disk.write_file("checkpoint", content)
    assert StoreCheckpoint.load(disk) == StoreCheckpoint()


def test_min_timestamp_is_three_seconds_before_the_older_of_the_two() -> None:
    checkpoint = StoreCheckpoint(physic_message_timestamp_ms=10_000, logics_message_timestamp_ms=9_000)
    assert checkpoint.min_timestamp_ms == 6_000
    assert StoreCheckpoint().min_timestamp_ms == 0
