"""In which order sends go to the log when enough of them stand there unacknowledged."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from support.manual_time import ManualTime
from tandemmq.broker.send_room import AT_A_TIME, IN_A_TURN_MAX, SendRoom

GREEDY = "ipv4:10.0.0.1"
MODEST = "ipv4:10.0.0.2"


class Log:
    """A log whose slave confirms when the test says so, and the room before it."""

    def __init__(self, messages_max: int = 4) -> None:
        self.time = ManualTime()
        self.messages_max = messages_max
        self.room = SendRoom(self.time.call_later, messages_max=messages_max)
        self.sent: list[tuple[str, int]] = []
        """Peer and number of each send, as they came to the log."""
        self.bytes: Counter[str] = Counter()
        """By address."""
        self.sent_in_turns: list[int] = []
        """How many of those that waited went on in each turn."""
        self.waiting = 0
        """In the log, without an acknowledgement."""
        self._numbers: Counter[str] = Counter()

    def send(self, peer: str, body_bytes: int = 100) -> bool:
        """Whether it went to the log at once."""
        number = self._numbers[peer]
        self._numbers[peer] += 1

        def put() -> None:
            self.sent.append((peer, number))
            self.bytes[peer.rpartition(":")[0]] += body_bytes
            self.waiting += 1
            if self.waiting >= self.messages_max:
                self.room.is_full = True

        if self.room.is_full and self.room.holds(peer, 1, body_bytes, put):
            return False
        put()
        return True

    def confirm(self, count: int) -> None:
        self.waiting -= min(count, self.waiting)
        while self.room.is_full and self.waiting < self.messages_max:
            before = len(self.sent)
            has_room_for_more = self.room.made()
            self.sent_in_turns.append(len(self.sent) - before)
            if not has_room_for_more:
                break

    @property
    def brought(self) -> int:
        return self._numbers.total()


def test_a_client_with_one_send_in_the_air_never_waits_beside_one_with_thousands() -> None:
    log = Log()
    for number in range(2_000):
        log.send(f"{GREEDY}:{number % 50}")
    for _ in range(100):
        assert log.send(f"{MODEST}:7")
        # Behind what is in the log, and that is not much: one more for each address.
        assert log.waiting <= log.messages_max + 2
        log.confirm(log.waiting)
        assert log.room.held_count > 0


def test_addresses_share_by_bytes_and_connections_of_an_address_do_not_count() -> None:
    log = Log()
    for _ in range(400):
        for connection in range(10):
            log.send(f"{GREEDY}:{connection}", body_bytes=32_000)
        log.send(f"{MODEST}:1", body_bytes=8_000)
        log.send(f"{MODEST}:2", body_bytes=8_000)
    before = dict(log.bytes)
    for _ in range(400):
        log.confirm(1)
    assert log.room.held_count > 0
    taken = {address: log.bytes[address] - before.get(address, 0) for address in (GREEDY, MODEST)}
    # A message weighs 16 KiB more than its body.
    assert 0.4 < taken[MODEST] / taken[GREEDY] <= 1.0, taken


def test_connections_of_one_address_take_turns() -> None:
    log = Log(messages_max=1)
    log.send(f"{GREEDY}:1")
    for _ in range(100):
        log.send(f"{GREEDY}:1")
    log.send(f"{GREEDY}:2")
    for _ in range(3):
        log.confirm(1)
    assert (f"{GREEDY}:2", 0) in log.sent[:4]


def test_when_nothing_is_confirmed_for_a_while_all_go_to_the_log() -> None:
    log = Log()
    for _ in range(50):
        log.send(f"{GREEDY}:1")
    log.time.advance(150)
    log.confirm(1)
    log.time.advance(150)
    assert log.room.held_count > 0, "something moved"
    log.time.advance(300)
    assert (log.room.held_count, len(log.sent)) == (0, 50)
    log.confirm(50)
    assert log.send(f"{GREEDY}:1")


def test_as_many_go_on_as_there_is_room_for() -> None:
    log = Log()
    for _ in range(50):
        log.send(f"{GREEDY}:1")
    log.messages_max = 1_000
    log.confirm(1)
    assert len(log.sent) == 50
    assert log.sent_in_turns == [45]


def test_few_go_on_in_a_turn_while_somebody_came_who_did_not_wait() -> None:
    log = Log(messages_max=64)
    for _ in range(1_000):
        log.send(f"{GREEDY}:1")
    log.confirm(64)
    assert log.send(f"{MODEST}:1")
    log.confirm(65)
    assert log.sent_in_turns == [63, *[AT_A_TIME] * 8]
    # The other one has not come again for some time.
    for _ in range(3):
        log.time.advance(199)
        log.confirm(64)
    assert log.sent_in_turns[-1] == 64


def test_few_go_on_in_a_turn_only_as_long_as_somebody_waits() -> None:
    log = Log(messages_max=64)
    for _ in range(128):
        log.send(f"{GREEDY}:1")
    assert log.send(f"{MODEST}:1")
    log.confirm(200)
    log.confirm(200)
    assert log.room.held_count == 0
    # Hours later he is alone.
    log.time.advance(3_600_000)
    log.sent_in_turns.clear()
    for _ in range(200):
        log.send(f"{GREEDY}:1")
    log.confirm(64)
    assert log.sent_in_turns == [63]


def test_sends_that_are_refused_when_their_turn_has_come_do_not_go_on_in_one_turn() -> None:
    """They take no room: over a quota, of a topic that is gone, passed on to another broker group."""
    time = ManualTime()
    room = SendRoom(time.call_later)
    refused: list[int] = []
    room.is_full = True
    for number in range(1_001):
        room.holds(f"{GREEDY}:1", 1, 100, partial(refused.append, number))
    has_room_for_more = True
    while has_room_for_more:
        before = len(refused)
        has_room_for_more = room.made()
        assert len(refused) - before <= IN_A_TURN_MAX
        assert room.is_full == has_room_for_more, "nobody overtakes those that wait"
    assert refused == list(range(1, 1_001))


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(0, 3), st.integers(0, 2), st.integers(0, 200_000)),
            st.tuples(st.just("confirm"), st.integers(1, 9)),
            st.tuples(st.just("pause"), st.integers(1, 300)),
            st.tuples(st.just("open")),
        ),
        max_size=120,
    )
)
def test_every_send_goes_to_the_log_once_and_in_the_order_of_its_connection(
    steps: list[tuple[str, *tuple[int, ...]]],
) -> None:
    log = Log(messages_max=3)
    for name, *numbers in steps:
        if name == "send":
            host, connection, body_bytes = numbers
            log.send(f"ipv4:10.0.0.{host}:{connection}", body_bytes)
        elif name == "confirm":
            log.confirm(numbers[0])
        elif name == "pause":
            log.time.advance(numbers[0])
        else:
            log.room.open()
        assert log.room.held_count == log.brought - len(log.sent)
        assert log.room.is_full or not log.room.held_count
    log.time.advance(1_000)
    assert len(log.sent) == log.brought, "what waits does not wait for ever"
    by_connection = defaultdict(list)
    for peer, number in log.sent:
        by_connection[peer].append(number)
    assert all(numbers == list(range(len(numbers))) for numbers in by_connection.values())


def test_a_host_with_many_ipv6_addresses_waits_as_one() -> None:
    log = Log()
    for number in range(64):
        log.send(f"ipv6:[2001:db8:0:7::{number:x}]:4000")
    log.send(f"{MODEST}:4000")
    log.confirm(1)
    while log.waiting and not any(peer.startswith(MODEST) for peer, _ in log.sent):
        log.confirm(1)
    place = [peer.startswith(MODEST) for peer, _ in log.sent].index(True)
    assert place <= log.messages_max + 2, log.sent


@given(
    st.lists(
        st.tuples(st.sampled_from([GREEDY, MODEST, "ipv4:10.0.0.3"]), st.integers(1, 400), st.integers(0, 3)),
        max_size=120,
    )
)
def test_what_waits_is_bounded_and_whoever_has_less_than_a_share_waits(steps: list[tuple[str, int, int]]) -> None:
    """While slaves take less than is sent, it would be as much as senders can send."""
    most = 1_000
    log = Log(messages_max=1)
    log.room = SendRoom(log.time.call_later, messages_max=1, held_bytes_max=most)
    log.send(GREEDY)
    held: Counter[str] = Counter()
    for host, size, confirmed in steps:
        total = sum(held.values())
        has_too_much = log.room.has_too_much(f"{host}:1", size)
        share = most // (sum(1 for each in held.values() if each) + 1)
        if total + size <= most or not total:
            assert not has_too_much
        else:
            assert has_too_much == (held[host] + size > share or total + size > 2 * most)
        if not has_too_much and not log.send(f"{host}:1", size):
            held[host] += size
        before = log.bytes.copy()
        log.confirm(confirmed)
        held -= log.bytes - before
        assert log.room.held_bytes == sum(held.values()) <= 2 * most + 400
    log.room.open()
    assert log.room.held_bytes == 0
