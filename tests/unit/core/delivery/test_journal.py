"""The lease journal as bytes."""

from __future__ import annotations

import pytest

from tandemmq.core.delivery.journal import (
    EntryKind,
    GrantEntry,
    LeaseJournal,
    QueueEntryAt,
    SubscriptionEntry,
    read_frames,
)
from tandemmq.core.delivery.queue_progress import Lease, QueueProgress
from tandemmq.core.delivery.subscription import Subscription


def queue() -> QueueProgress:
    return QueueProgress(Subscription(7, "Gruppe ä", "T"), 3, 0)


def lease(offsets: list[int]) -> Lease:
    return Lease(
        queue(), offsets, nonce=2**64 - 1, attempt=2, granted_ms=5, deadline_ms=9, client_id="c", auto_renew=True
    )


def written(*frames: int) -> bytes:
    """Frames of so many FINISH entries each."""
    journal = LeaseJournal()
    data = b""
    for number in frames:
        for offset in range(number):
            journal.finish(queue(), offset)
        data += journal.take()
    return data


def test_every_entry_is_read_as_it_was_written() -> None:
    journal = LeaseJournal()
    journal.subscription(queue().subscription)
    for kind in (EntryKind.POSITION, EntryKind.SKIP, EntryKind.TRIM, EntryKind.TRUNCATE):
        journal.at(kind, queue(), 2**63 - 1)
    journal.grant(lease([4, 5, 6]), [4, 5, 6], 7)
    journal.grant(lease([4, 5, 9]), [4, 9], 10)
    journal.finish(queue(), 4)
    journal.forget(queue().subscription)
    data = journal.take()
    entries, valid_bytes = read_frames(data)
    assert valid_bytes == len(data)
    assert entries == [
        SubscriptionEntry(EntryKind.SUBSCRIPTION, 7, "Gruppe ä", "T"),
        *(
            QueueEntryAt(kind, 7, 3, 2**63 - 1)
            for kind in (EntryKind.POSITION, EntryKind.SKIP, EntryKind.TRIM, EntryKind.TRUNCATE)
        ),
        GrantEntry(7, 3, 2**64 - 1, 5, 9, 2, True, 7, "c", [4, 5, 6]),
        GrantEntry(7, 3, 2**64 - 1, 5, 9, 2, True, 10, "c", [4, 9]),
        QueueEntryAt(EntryKind.FINISH, 7, 3, 4),
        SubscriptionEntry(EntryKind.FORGET, 7, "", ""),
    ]


def test_an_acknowledgement_is_seventeen_bytes() -> None:
    journal = LeaseJournal()
    journal.finish(queue(), 258)
    data = journal.take()
    assert data.hex() == "00000011090cbc820400000007000000030000000000000102"
    assert journal.take() == b""


def test_a_torn_end_is_cut_at_every_byte() -> None:
    whole = written(2, 1)
    data = written(2, 1, 3)
    for end in range(len(whole), len(data)):
        entries, valid_bytes = read_frames(data[:end])
        assert (len(entries), valid_bytes) == (3, len(whole))


@pytest.mark.parametrize("position", range(0, 42, 3))
def test_a_changed_byte_ends_the_journal_before_its_frame(position: int) -> None:
    data = bytearray(written(1, 2))
    first_bytes = len(written(1))
    data[first_bytes + position] ^= 0x40
    entries, valid_bytes = read_frames(bytes(data))
    assert (len(entries), valid_bytes) == (1, first_bytes)


def test_zeros_behind_the_journal_are_no_frames() -> None:
    data = written(1)
    assert read_frames(data + bytes(4096))[1] == len(data)
