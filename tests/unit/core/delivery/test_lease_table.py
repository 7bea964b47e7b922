"""Delivery with leases, case by case."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from support.queue_memory import QueueMemory
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions, encode_broker_name, make_handles, read_handle
from tandemmq.core.delivery.queue_progress import Delivery, LeasedRecord, Received
from tandemmq.core.delivery.subscription import TagFilter

T0 = 1_700_000_000_000
LEASE_MS = 30_000


class Broker:
    """A lease table with its queues and what an answer would have written to disk."""

    def __init__(
        self,
        *,
        options: DeliveryOptions | None = None,
        stored_offset: Callable[[str, str, int], int | None] = lambda _group, _topic, _queue_id: None,
    ) -> None:
        self.options = options or DeliveryOptions(consume_from_earliest=True)
        self.stored_offset = stored_offset
        self.queues = QueueMemory()
        self.nonces = count(1)
        self.leases = self._table()
        self.journal = b""

    def _table(self) -> LeaseTable:
        return LeaseTable(
            self.queues,
            options=self.options,
            broker_name="broker-a",
            nonce=lambda: next(self.nonces),
            stored_offset=self.stored_offset,
        )

    def put(self, count: int = 1, *, queue_id: int = 0, tag: str | None = None) -> None:
        for _ in range(count):
            self.queues.put("T", queue_id, tag=tag)

    def receive(
        self,
        now_ms: int = T0,
        *,
        group: str = "G",
        queues: int = 1,
        batch: int = 32,
        tags: str = "*",
        max_attempts: int = 17,
        auto_renew: bool = False,
        client_id: str = "client",
        ordered: bool = False,
        attempt_id: str = "",
    ) -> Received:
        tag_filter = TagFilter.parse(tags)
        assert tag_filter is not None
        return self.leases.receive(
            group=group,
            topic="T",
            queue_ids=range(queues),
            tag_filter=tag_filter,
            batch_size=batch,
            invisible_ms=LEASE_MS,
            now_ms=now_ms,
            max_attempts=max_attempts,
            auto_renew=auto_renew,
            client_id=client_id,
            ordered=ordered,
            attempt_id=attempt_id,
        )

    def acknowledge(self, delivery: Delivery | LeasedRecord, now_ms: int = T0, *, group: str = "G") -> bool:
        return self.leases.acknowledge(group=group, topic="T", handle=delivery.handle, now_ms=now_ms)

    def change(self, delivery: Delivery, invisible_ms: int, now_ms: int = T0) -> str | None:
        return self.leases.change_invisible(
            group="G", topic="T", handle=delivery.handle, invisible_ms=invisible_ms, now_ms=now_ms
        )

    def committed(self, queue_id: int = 0) -> int | None:
        return self.leases.committed("G", "T", queue_id)

    def restart(self, *, now_ms: int = T0 + 86_400_000, is_killed: bool = False) -> None:
        """The next run; unless the broker was killed behind its last answer, it had ended in order."""
        self.journal += self.leases.take_journal() if is_killed else self.leases.end_journal()
        self.leases = self._table()
        report = self.leases.restore(b"", self.journal, now_ms=now_ms)
        assert report.torn_bytes == 0


def offsets(received: Received) -> list[int]:
    return [delivery.queue_offset for delivery in received.deliveries]


# Leases


def test_a_leased_message_is_given_to_nobody_else_in_its_group() -> None:
    broker = Broker()
    broker.put(3)
    assert offsets(broker.receive(batch=2)) == [0, 1]
    assert offsets(broker.receive(client_id="other")) == [2]
    assert offsets(broker.receive()) == []
    assert offsets(broker.receive(group="H")) == [0, 1, 2]


def test_a_message_comes_again_when_its_lease_ends() -> None:
    broker = Broker()
    broker.put()
    (first,) = broker.receive().deliveries
    assert broker.leases.next_visible_ms("G", "T") == T0 + LEASE_MS
    assert broker.receive(T0 + LEASE_MS - 1).deliveries == []
    (second,) = broker.receive(T0 + LEASE_MS).deliveries
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.handle != first.handle
    assert not broker.acknowledge(first, T0 + LEASE_MS)
    assert broker.acknowledge(second, T0 + LEASE_MS)


def test_an_acknowledgement_after_the_lease_is_invalid_even_before_redelivery() -> None:
    broker = Broker()
    broker.put()
    (delivery,) = broker.receive().deliveries
    assert not broker.acknowledge(delivery, T0 + LEASE_MS)
    broker.leases.expire(T0 + LEASE_MS)
    assert not broker.acknowledge(delivery, T0), "a clock set back revives no lease"
    assert broker.committed() == 0


def test_a_message_is_acknowledged_once_and_by_its_own_group_only() -> None:
    broker = Broker()
    broker.put()
    (delivery,) = broker.receive().deliveries
    broker.receive(group="H")
    assert not broker.acknowledge(delivery, group="H")
    assert not broker.acknowledge(delivery, group="unknown")
    assert broker.acknowledge(delivery)
    assert not broker.acknowledge(delivery)


@pytest.mark.parametrize("handle", ["", "x", "01" + "f" * 56 + ".YQ", "1.2.3"])
def test_a_handle_nobody_made_is_invalid(handle: str) -> None:
    broker = Broker()
    broker.put()
    broker.receive()
    assert not broker.leases.acknowledge(group="G", topic="T", handle=handle, now_ms=T0)
    assert broker.leases.change_invisible(group="G", topic="T", handle=handle, invisible_ms=1, now_ms=T0) is None
    assert broker.leases.leased(group="G", topic="T", handle=handle, now_ms=T0) is None


def test_a_guessed_nonce_is_invalid() -> None:
    broker = Broker()
    broker.put()
    (delivery,) = broker.receive().deliveries
    receipt = read_handle(delivery.handle)
    assert receipt is not None
    (guessed,) = make_handles(
        [0],
        queue_id=0,
        nonce=receipt.nonce + 1,
        deadline_ms=receipt.deadline_ms,
        encoded_broker_name=encode_broker_name("broker-a"),
    )
    assert not broker.leases.acknowledge(group="G", topic="T", handle=guessed, now_ms=T0)


def test_a_changed_lease_has_a_new_handle_and_the_old_one_stops_working() -> None:
    broker = Broker()
    broker.put()
    (delivery,) = broker.receive().deliveries
    handle = broker.change(delivery, 60_000)
    assert handle is not None
    assert not broker.acknowledge(delivery)
    assert broker.receive(T0 + 59_999).deliveries == []
    assert broker.leases.acknowledge(group="G", topic="T", handle=handle, now_ms=T0 + 59_999)


def test_zero_makes_a_message_visible_now() -> None:
    broker = Broker()
    broker.put()
    (delivery,) = broker.receive().deliveries
    handle = broker.change(delivery, 0)
    assert handle is not None
    assert broker.leases.next_visible_ms("G", "T") == 0
    assert broker.leases.take_visible() == [("G", "T")]
    assert not broker.leases.acknowledge(group="G", topic="T", handle=handle, now_ms=T0)
    assert [again.attempt for again in broker.receive().deliveries] == [2]
    assert broker.leases.next_visible_ms("G", "T") == T0 + LEASE_MS


def test_the_message_of_a_running_lease_can_be_read_again() -> None:
    broker = Broker()
    broker.put()
    (delivery,) = broker.receive().deliveries
    leased = broker.leases.leased(group="G", topic="T", handle=delivery.handle, now_ms=T0)
    assert leased is not None
    assert (leased.handle, leased.attempt, leased.queue_offset) == (delivery.handle, 1, delivery.queue_offset)
    assert leased.record.properties == delivery.record.properties
    assert broker.leases.leased(group="G", topic="T", handle=delivery.handle, now_ms=T0 + LEASE_MS) is None


def test_ends_of_leases_wake_their_group_at_their_time() -> None:
    broker = Broker()
    broker.put(2)
    broker.receive(T0, batch=1)
    broker.receive(T0 + 5, batch=1)
    assert broker.leases.next_deadline_ms() == T0 + LEASE_MS
    broker.leases.expire(T0 + LEASE_MS)
    assert broker.leases.take_visible() == [("G", "T")]
    assert broker.leases.next_deadline_ms() == T0 + LEASE_MS + 5
    broker.leases.expire(T0 + LEASE_MS + 4)
    assert broker.leases.take_visible() == []


def test_ends_of_finished_leases_do_not_pile_up() -> None:
    broker = Broker()
    for _ in range(2_000):
        broker.put()
        assert broker.acknowledge(broker.receive().deliveries[0])
    assert len(broker.leases._state.subscriptions["G", "T"]._ends) < 200


# Progress


def test_the_commit_is_the_lowest_unfinished_message() -> None:
    broker = Broker()
    broker.put(4)
    first, second, third, fourth = broker.receive().deliveries
    for delivery, committed in ((second, 0), (fourth, 0), (first, 2), (third, 4)):
        assert broker.acknowledge(delivery)
        assert broker.committed() == committed
    assert broker.leases.take_moved_offsets() == [("G", "T", 0, 4)]


def test_only_offsets_that_moved_are_told_and_only_once() -> None:
    broker = Broker()
    broker.put(2)
    first, second = broker.receive().deliveries
    assert broker.leases.take_moved_offsets() == [("G", "T", 0, 0)], "where the group begins"
    assert broker.acknowledge(second)
    assert broker.leases.take_moved_offsets() == []
    assert broker.acknowledge(first)
    assert broker.leases.take_moved_offsets() == [("G", "T", 0, 2)]
    assert broker.leases.take_moved_offsets() == []
    broker.restart()
    assert broker.leases.take_moved_offsets() == [("G", "T", 0, 2)], "who is told may have missed the last one"


def test_a_reset_is_told_apart_because_it_may_go_back() -> None:
    broker = Broker()
    broker.put(2)
    assert all(broker.acknowledge(delivery) for delivery in broker.receive().deliveries)
    broker.leases.reset(group="G", topic="T", queue_id=0, offset=1)
    assert broker.leases.take_reset_offsets() == [("G", "T", 0, 1)]
    assert broker.leases.take_reset_offsets() == []
    assert broker.leases.take_moved_offsets() == [("G", "T", 0, 1)]


def test_a_forgotten_topic_has_nothing_to_tell() -> None:
    broker = Broker()
    broker.put(1)
    broker.receive()
    broker.leases.reset(group="G", topic="T", queue_id=0, offset=1)
    broker.leases.forget_topic("T")
    assert broker.leases.take_reset_offsets() == []
    assert broker.leases.take_moved_offsets() == []


def test_a_batch_has_redeliveries_first_and_oldest_first() -> None:
    broker = Broker()
    broker.put(3)
    broker.receive(batch=1)
    deliveries = broker.receive(batch=2).deliveries
    for delivery in reversed(deliveries):
        broker.change(delivery, 0)
    broker.put()
    assert offsets(broker.receive()) == [1, 2, 3]


def test_each_receive_begins_with_another_queue() -> None:
    broker = Broker()
    for queue_id in range(3):
        broker.put(10, queue_id=queue_id)
    first = [broker.receive(queues=3, batch=2).deliveries[0].queue_id for _ in range(6)]
    assert first == [0, 1, 2, 0, 1, 2]


def test_a_new_group_starts_at_the_tail() -> None:
    broker = Broker(options=DeliveryOptions())
    broker.put(3, queue_id=0)
    assert broker.committed() is None
    assert broker.receive(queues=2).deliveries == []
    broker.put(1, queue_id=0)
    broker.put(1, queue_id=1)
    assert sorted(offsets(broker.receive(queues=2))) == [0, 3]


def test_queues_added_later_are_read_from_their_beginning() -> None:
    broker = Broker(options=DeliveryOptions())
    broker.receive(queues=1)
    broker.put(2, queue_id=1)
    assert offsets(broker.receive(queues=2)) == [0, 1]


def test_a_group_resumes_at_its_replicated_offset_after_a_failover() -> None:
    broker = Broker(options=DeliveryOptions(), stored_offset=lambda _group, _topic, queue_id: {0: 2}.get(queue_id))
    broker.put(4, queue_id=0)
    broker.put(1, queue_id=1)
    received = broker.receive(queues=2)
    assert sorted((got.queue_id, got.queue_offset) for got in received.deliveries) == [(0, 2), (0, 3), (1, 0)]


def test_an_operator_may_send_a_group_back_and_forth() -> None:
    broker = Broker()
    broker.put(5)
    deliveries = broker.receive().deliveries
    broker.leases.reset(group="G", topic="T", queue_id=0, offset=3)
    assert not broker.acknowledge(deliveries[4])
    assert broker.committed() == 3
    assert offsets(broker.receive()) == [3, 4]
    broker.leases.reset(group="G", topic="T", queue_id=0, offset=1)
    assert [got.attempt for got in broker.receive().deliveries] == [1, 1, 1, 1]
    assert next(broker.leases.progress())[:5] == ("G", "T", 0, 1, 5)


def test_a_deleted_topic_is_forgotten() -> None:
    broker = Broker()
    broker.put()
    broker.receive()
    broker.leases.forget_topic("T")
    broker.leases.expire(T0 + LEASE_MS)
    assert broker.leases.take_visible() == []
    assert broker.committed() is None
    broker.restart()
    assert broker.committed() is None


def test_expired_messages_are_skipped_delivered_or_not() -> None:
    broker = Broker()
    broker.put(6)
    deliveries = broker.receive(batch=3).deliveries
    broker.change(deliveries[0], 0)
    broker.change(deliveries[2], 0)
    broker.queues.expire("T", 0, 2)
    assert offsets(broker.receive(batch=1)) == [2]
    broker.queues.expire("T", 0, 5)
    assert offsets(broker.receive()) == [5]
    assert broker.committed() == 5
    assert broker.leases.next_visible_ms("G", "T") == T0 + LEASE_MS


def test_unfinished_messages_are_bounded_and_an_acknowledgement_makes_room() -> None:
    broker = Broker(options=DeliveryOptions(consume_from_earliest=True, max_inflight_per_queue=2))
    broker.put(4)
    first, _ = broker.receive().deliveries
    assert broker.leases.take_visible() == []
    assert broker.receive().deliveries == []
    assert broker.acknowledge(first)
    assert broker.leases.take_visible() == [("G", "T")]
    assert offsets(broker.receive()) == [2]


# Filters


def test_what_a_filter_does_not_want_is_finished_silently() -> None:
    broker = Broker()
    for tag in ("a", "b", None, "a", "b"):
        broker.put(tag=tag)
    deliveries = broker.receive(tags="a").deliveries
    assert [delivery.queue_offset for delivery in deliveries] == [0, 3]
    for delivery in deliveries:
        assert broker.acknowledge(delivery)
    assert broker.committed() == 5
    broker.put(3, tag="b")
    assert broker.receive(tags="a").deliveries == []
    assert broker.committed() == 8
    broker.restart()
    assert broker.committed() == 8


def test_equal_tag_hashes_are_told_apart_and_fillers_passed_over() -> None:
    broker = Broker()
    broker.put(tag="BB")
    broker.queues.put_filler("T", 0)
    broker.put(tag="Aa")
    assert offsets(broker.receive(tags="Aa")) == [2]


def test_a_filter_that_lets_little_pass_does_not_hold_the_loop() -> None:
    broker = Broker(options=DeliveryOptions(consume_from_earliest=True, max_scanned_per_receive=300))
    broker.put(700, tag="b")
    broker.put(tag="a")
    looks = [broker.receive(tags="a") for _ in range(3)]
    assert [look.more for look in looks] == [True, True, False]
    assert offsets(looks[2]) == [700]


# Attempts


def test_after_the_last_attempt_a_message_is_a_dead_letter_until_acknowledged() -> None:
    broker = Broker()
    broker.put()
    now_ms = T0
    for attempt in (1, 2):
        assert [got.attempt for got in broker.receive(now_ms, max_attempts=2).deliveries] == [attempt]
        now_ms += LEASE_MS
    for _ in range(2):
        received = broker.receive(now_ms, max_attempts=2)
        assert received.deliveries == []
        assert [got.attempt for got in received.dead_letters] == [3]
        now_ms += LEASE_MS
    (dead,) = broker.receive(now_ms, max_attempts=2).dead_letters
    assert broker.acknowledge(dead, now_ms)
    assert broker.committed() == 1


# Leases the server renews


def test_a_renewed_lease_holds_with_its_first_handle_while_the_client_lives() -> None:
    broker = Broker()
    broker.put()
    (delivery,) = broker.receive(auto_renew=True).deliveries
    for minute in range(1, 150):
        broker.leases.expire(T0 + minute * 60_000)
    assert broker.receive(T0 + 150 * 60_000).deliveries == []
    assert broker.acknowledge(delivery, T0 + 150 * 60_000)


def test_a_renewed_lease_ends_after_three_hours() -> None:
    broker = Broker()
    broker.put()
    (delivery,) = broker.receive(auto_renew=True).deliveries
    now_ms = T0
    while not broker.leases.take_visible():
        now_ms = broker.leases.next_deadline_ms() or 0
        broker.leases.expire(now_ms)
    assert now_ms == T0 + 3 * 3_600_000
    assert not broker.acknowledge(delivery, now_ms)


def test_the_messages_of_a_client_that_is_gone_come_back_after_a_second() -> None:
    broker = Broker()
    broker.put(3)
    finished, _ = broker.receive(auto_renew=True, client_id="gone", batch=2).deliveries
    broker.receive(auto_renew=True, client_id="here")
    assert broker.acknowledge(finished)
    broker.leases.client_gone("gone", T0 + 10)
    assert broker.leases.next_deadline_ms() == T0 + 1_010
    broker.leases.expire(T0 + 1_010)
    assert broker.leases.take_visible() == [("G", "T")]
    assert offsets(broker.receive(T0 + 1_010)) == [1]


def test_after_a_restart_living_clients_keep_their_leases_and_silent_ones_lose_them() -> None:
    broker = Broker()
    broker.put(3)
    (polling,) = broker.receive(auto_renew=True, client_id="polling", batch=1).deliveries
    (beating,) = broker.receive(auto_renew=True, client_id="beating", batch=1).deliveries
    (silent,) = broker.receive(auto_renew=True, client_id="silent", batch=1).deliveries
    broker.restart()
    up_ms = T0 + 600_000
    broker.leases.expire(up_ms)
    broker.receive(up_ms + 1, client_id="polling")
    broker.leases.client_seen("beating")
    now_ms = up_ms
    while not broker.leases.take_visible():
        now_ms = broker.leases.next_deadline_ms() or 0
        broker.leases.expire(now_ms)
    assert now_ms == up_ms + 120_000
    assert not broker.acknowledge(silent, now_ms)
    assert broker.acknowledge(polling, now_ms)
    assert broker.acknowledge(beating, now_ms)


def test_what_nobody_may_have_received_comes_again_though_its_client_lives() -> None:
    """An answer that its client never read is not told from one that it works on."""
    broker = Broker()
    broker.put(4)
    (old,) = broker.receive(T0, auto_renew=True, batch=1).deliveries
    (acknowledged,) = broker.receive(T0 + 5_000, auto_renew=True, batch=1).deliveries
    (unread,) = broker.receive(T0 + 19_000, auto_renew=True, batch=1).deliveries
    broker.receive(T0 + 20_000, auto_renew=True, batch=1, client_id="other")
    assert broker.acknowledge(acknowledged, T0 + 20_000)
    broker.restart(now_ms=T0 + 25_000, is_killed=True)
    up_ms = T0 + 25_000
    for client_id in ("client", "other"):
        broker.leases.client_seen(client_id)
    assert offsets(broker.receive(up_ms)) == []
    for now_ms in range(up_ms, up_ms + 60_000, 1_000):
        broker.leases.expire(now_ms)
    assert not broker.acknowledge(unread, up_ms + 60_000)
    assert offsets(broker.receive(up_ms + 60_000, batch=4)) == [2, 3]
    assert broker.acknowledge(old, up_ms + 60_000), "it was given twenty seconds before the last one, and read"


def test_leases_of_a_former_term_are_not_written_into_the_journal_of_the_next() -> None:
    broker = Broker()
    broker.put(2)
    former = broker.receive(auto_renew=True)
    broker.leases.clear()
    broker.leases.restore(b"", b"", now_ms=T0)
    broker.receive(group="H", batch=1)
    broker.leases.take_journal()
    broker.leases.doubt(former.leases)
    assert broker.leases.take_journal() == b""


def test_leases_in_doubt_run_out_also_after_a_restart_in_order() -> None:
    broker = Broker()
    broker.put(4)
    kept = broker.receive(auto_renew=True, batch=1)
    doubted = broker.receive(auto_renew=True, batch=2)
    simple = broker.receive()
    assert broker.acknowledge(doubted.deliveries[0])
    assert broker.acknowledge(simple.deliveries[0])
    broker.leases.doubt([*doubted.leases, *simple.leases])
    broker.restart(now_ms=T0 + 30_000)
    broker.leases.client_seen("client")
    broker.leases.expire(T0 + 30_000)
    assert offsets(broker.receive(T0 + 59_999, client_id="other")) == []
    broker.leases.expire(T0 + 60_000)
    assert offsets(broker.receive(T0 + 60_000, client_id="other")) == [2]
    assert broker.acknowledge(kept.deliveries[0], T0 + 60_000)


# Ordered groups


def test_who_asks_again_for_fewer_messages_gets_the_others_behind_them() -> None:
    broker = Broker()
    broker.put(5)
    broker.receive(ordered=True, auto_renew=True, attempt_id="lost")
    again = broker.receive(ordered=True, auto_renew=True, attempt_id="lost", batch=2)
    assert offsets(again) == [0, 1]
    assert offsets(broker.receive(ordered=True, client_id="other")) == []
    for delivery in again.deliveries:
        assert broker.acknowledge(delivery)
    broker.restart(now_ms=T0)
    behind = broker.receive(ordered=True)
    assert [(one.queue_offset, one.attempt) for one in behind.deliveries] == [(2, 1), (3, 1), (4, 1)]


def test_an_ordered_queue_gives_nothing_while_its_batch_is_leased() -> None:
    broker = Broker()
    broker.put(4)
    first, second = broker.receive(batch=2, ordered=True, attempt_id="a").deliveries
    assert broker.receive(ordered=True, attempt_id="b").deliveries == []
    assert broker.receive(ordered=True).deliveries == []
    assert broker.acknowledge(first)
    assert broker.leases.take_visible() == []
    assert broker.acknowledge(second)
    assert broker.leases.take_visible() == [("G", "T")]
    assert offsets(broker.receive(ordered=True, attempt_id="c")) == [2, 3]


def test_the_same_attempt_gets_the_unfinished_part_of_its_batch_again() -> None:
    broker = Broker()
    broker.put(4)
    deliveries = broker.receive(batch=3, ordered=True, attempt_id="a").deliveries
    assert broker.acknowledge(deliveries[1])
    again = broker.receive(batch=3, ordered=True, attempt_id="a").deliveries
    assert [(got.queue_offset, got.attempt) for got in again] == [(0, 1), (2, 1)]
    assert not broker.acknowledge(deliveries[0])
    assert broker.acknowledge(again[0])


def test_an_ordered_batch_restarts_at_its_first_unfinished_message() -> None:
    broker = Broker()
    broker.put(4)
    deliveries = broker.receive(batch=3, ordered=True, attempt_id="a").deliveries
    assert broker.acknowledge(deliveries[1])
    again = broker.receive(T0 + LEASE_MS, ordered=True, attempt_id="b").deliveries
    assert [(got.queue_offset, got.attempt) for got in again] == [(0, 2), (2, 2), (3, 1)]
    assert broker.receive(T0 + LEASE_MS, ordered=True, attempt_id="c").deliveries == []


def test_order_is_kept_per_queue() -> None:
    broker = Broker()
    broker.put(2, queue_id=0)
    broker.receive(queues=2, ordered=True, attempt_id="a")
    broker.put(2, queue_id=1)
    received = broker.receive(queues=2, ordered=True, attempt_id="b")
    assert [(got.queue_id, got.queue_offset) for got in received.deliveries] == [(1, 0), (1, 1)]


# Restart


def test_handles_and_attempts_outlive_the_broker() -> None:
    broker = Broker()
    broker.put(2)
    first, second = broker.receive().deliveries
    handle = broker.change(second, 0)
    assert handle is not None
    (second,) = broker.receive().deliveries
    assert second.attempt == 2
    broker.restart()
    assert broker.acknowledge(first)
    assert broker.committed() == 1
    (third,) = broker.receive(T0 + LEASE_MS).deliveries
    assert (third.queue_offset, third.attempt) == (1, 3)


def test_a_lost_log_tail_takes_progress_back_to_the_end_of_the_queue() -> None:
    broker = Broker()
    broker.put(5)
    deliveries = broker.receive().deliveries
    for delivery in deliveries[1:]:
        assert broker.acknowledge(delivery)
    broker.queues.cut("T", 0, 2)
    broker.restart()
    broker.put(2)
    assert offsets(broker.receive()) == [2, 3]
    assert broker.acknowledge(deliveries[0])
    assert broker.committed() == 2


def test_a_queue_that_becomes_shorter_while_serving_is_followed() -> None:
    broker = Broker()
    broker.put(5)
    broker.change(broker.receive().deliveries[4], 0)
    broker.queues.cut("T", 0, 2)
    assert broker.receive().deliveries == []
    broker.put(1)
    assert offsets(broker.receive()) == [2]
    assert broker.committed() == 0


def test_replicated_progress_ahead_of_the_journal_is_believed() -> None:
    broker = Broker(stored_offset=lambda _group, _topic, _queue_id: 3)
    broker.put(2)
    broker.receive()
    broker.put(3)
    broker.restart()
    assert broker.committed() == 3
    assert offsets(broker.receive()) == [3, 4]


def test_a_damaged_snapshot_is_not_half_believed() -> None:
    broker = Broker()
    broker.put(2)
    broker.receive()
    broker.leases.take_journal()
    snapshot = broker.leases.snapshot()
    broker.receive(T0 + LEASE_MS)
    journal = broker.leases.take_journal()
    damaged = snapshot[:-1] + bytes([snapshot[-1] ^ 1])
    table = broker._table()
    report = table.restore(damaged, journal, now_ms=T0 + LEASE_MS)
    assert not report.snapshot_valid
    assert list(table.progress()) == []


def test_a_long_journal_asks_for_compaction_and_a_snapshot_is_short() -> None:
    broker = Broker(options=DeliveryOptions(consume_from_earliest=True, compaction_floor_bytes=1_000))
    while not broker.leases.compaction_due:
        broker.put()
        assert broker.acknowledge(broker.receive().deliveries[0])
        broker.leases.take_journal()
    assert len(broker.leases.snapshot()) < 100
    assert not broker.leases.compaction_due


def test_a_removed_group_is_forgotten_and_its_namesakes_are_not() -> None:
    broker = Broker()
    broker.put(2)
    (delivery, _) = broker.receive().deliveries
    broker.leases.reset(group="G", topic="T", queue_id=1, offset=0)
    assert broker.leases.topics_of("G") == ["T"]
    broker.leases.forget_group("G2")
    assert broker.committed() == 0
    broker.leases.forget_group("G")
    assert broker.leases.topics_of("G") == []
    assert broker.leases.take_reset_offsets() == []
    assert not broker.acknowledge(delivery)
    assert broker.leases.take_moved_offsets() == []
    broker.restart()
    assert broker.committed() is None


def test_a_group_opened_by_an_operator_starts_where_it_would_have_started_by_itself() -> None:
    broker = Broker(options=DeliveryOptions())
    broker.put(3, queue_id=0)
    broker.put(3, queue_id=1)
    broker.leases.open("G", "T", [0, 1])
    broker.leases.reset(group="G", topic="T", queue_id=0, offset=1)
    assert sorted((got.queue_id, got.queue_offset) for got in broker.receive(queues=2).deliveries) == [(0, 1), (0, 2)]


def test_nothing_is_given_that_a_change_of_master_may_take_away() -> None:
    broker = Broker()
    broker.put(5)
    broker.queues.confirmed_count = 3
    received = broker.receive()
    assert [got.queue_offset for got in received.deliveries] == [0, 1, 2]
    assert received.held_back
    again = broker.receive()
    assert (again.deliveries, again.held_back, again.more) == ([], True, False)
    broker.queues.confirmed_count = 5
    last = broker.receive()
    assert [got.queue_offset for got in last.deliveries] == [3, 4]
    assert not last.held_back


def test_what_was_given_comes_again_although_less_is_confirmed_now() -> None:
    broker = Broker()
    broker.put(3)
    broker.receive()
    broker.queues.confirmed_count = 0
    received = broker.receive(T0 + LEASE_MS)
    assert [(got.queue_offset, got.attempt) for got in received.deliveries] == [(0, 2), (1, 2), (2, 2)]
