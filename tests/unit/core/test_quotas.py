"""Rules as text, rates as debts, counts, and memory that strangers cannot fill."""

from __future__ import annotations

import heapq
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core import quotas as module
from tandemmq.core.quotas import (
    ANSWER_MAX_MS,
    NAMES_MAX,
    Quantity,
    QuotaKind,
    QuotaRule,
    QuotaRules,
    Quotas,
    Share,
    address_of_peer,
    parse_quotas,
)


def quotas(text: str) -> Quotas:
    made = Quotas()
    made.change(parse_quotas(text), now_ms=0)
    return made


def share(topic: str = "orders", address: str = "10.0.0.1", user: str | None = None) -> Share:
    return Share(user, address, topic)


_RATES = [quantity for quantity in Quantity if quantity is not Quantity.CONNECTIONS]
_RULES = st.builds(
    QuotaRule,
    st.sampled_from([QuotaKind.USER, QuotaKind.TOPIC]),
    st.from_regex(r"[a-z%_-]{1,9}|\*", fullmatch=True),
    st.dictionaries(st.sampled_from(_RATES), st.integers(1, 1 << 50), max_size=4),
)


@given(st.lists(_RULES, unique_by=lambda rule: rule[:2], max_size=5))
def test_rules_are_read_as_they_are_written(rules: list[QuotaRule]) -> None:
    written = QuotaRules(tuple(rules))
    read = parse_quotas(str(written))
    assert [(rule.kind, rule.name, dict(rule.limits)) for rule in read.rules] == [
        (rule.kind, rule.name, dict(rule.limits)) for rule in rules
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("orders sentMessages=1", "'orders' is not user:NAME"),
        ("group:g polls=1", "'group:g' is not user:NAME"),
        ("topic: polls=1", "'topic:' has no name; write topic:\\*"),
        ("address:somewhere polls=1", "'somewhere' is no IP address"),
        ("topic:a polls=1; topic:a leases=1", "'topic:a' stands there twice"),
        ("address:10.0.0.1 polls=1; address:::ffff:10.0.0.1 polls=2", "'address:10.0.0.1' stands there twice"),
        ("topic:a sentMessages", "'sentMessages': write a whole number from 1"),
        ("topic:a sentMessages=0", "'sentMessages=0': write a whole number from 1"),
        ("topic:a sentMessages=-1", "write a whole number from 1"),
        ("topic:a size=1", "'size=1' is no limit; write one of sentMessages, sentBytes"),
        ("topic:a polls=1 polls=2", "'polls=2' is the second polls"),
        ("topic:a connections=1", "connections are limited by address"),
    ],
)
def test_bad_rules_are_refused_with_a_remedy(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_quotas(text)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        rules = parse_quotas(text)
    except ValueError:
        return
    assert str(parse_quotas(str(rules))) == str(rules)


def test_a_rate_passes_a_second_of_itself_at_once_and_then_its_rate() -> None:
    limited = quotas("topic:* sentMessages=10")
    passed = [
        now_ms
        for now_ms in range(0, 5_000, 10)
        if limited.send(share(), messages=1, body_bytes=9, now_ms=now_ms) is None
    ]
    assert len([now_ms for now_ms in passed if now_ms < 100]) == 10
    assert 10 + 45 <= len(passed) <= 10 + 50
    assert limited.refused["quota_topic_sentMessages"] == 500 - len(passed)


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 500)), max_size=60), st.integers(1, 100))
def test_no_more_passes_than_the_rate_and_a_second_and_one_request(
    requests: list[tuple[int, int]], per_second: int
) -> None:
    limited = quotas(f"user:ann sentBytes={per_second}")
    now_ms = taken = largest = 0
    for gap_ms, size in requests:
        now_ms += gap_ms
        over = limited.send(share(user="ann"), messages=1, body_bytes=size, now_ms=now_ms)
        if over is None:
            taken += size
            largest = max(largest, size)
        else:
            # After the pause it passes, whatever its size.
            now_ms += over.pause_ms
            assert limited.send(share(user="ann"), messages=1, body_bytes=size, now_ms=now_ms) is None
            taken += size
            largest = max(largest, size)
        assert taken <= per_second * (now_ms / 1_000 + 1) + largest


@given(
    st.integers(1, 400),
    st.integers(20, 2_000),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(0, 5),
)
def test_those_who_are_refused_together_find_room_one_after_the_other(
    senders: int, per_second: int, sizes: list[int], round_trip_ms: int
) -> None:
    """However many send again as soon as they are told: what is refused costs the broker as much as a send."""
    limited = quotas(f"address:* sentMessages={per_second}")
    # When each sends next, and whether it was refused.
    ready = [(0, number) for number in range(senders)]
    refused: Counter[int] = Counter()
    taken = 0
    until_ms = 6_000
    while ready[0][0] < until_ms:
        now_ms, number = heapq.heappop(ready)
        over = limited.send(share(), messages=sizes[number % len(sizes)], body_bytes=1, now_ms=now_ms)
        if over is None:
            taken += sizes[number % len(sizes)]
            heapq.heappush(ready, (now_ms + round_trip_ms, number))
        else:
            assert 1 <= over.answered_ms <= ANSWER_MAX_MS
            refused[now_ms // 1_000] += 1
            heapq.heappush(ready, (now_ms + over.answered_ms + round_trip_ms, number))
    rate = taken / (until_ms / 1_000)
    assert rate >= 0.5 * per_second or senders * max(sizes) < per_second
    # Each of them about once a second, and once when it is served.
    assert max(refused.values(), default=0) <= 2 * (senders + per_second)


def test_those_for_whom_there_is_no_room_soon_are_told_late() -> None:
    """Of 2,000 a hundred a second find room: the others ask again after a second, not sooner."""
    limited = quotas("address:* sentMessages=100")
    ready = [(0, number) for number in range(2_000)]
    refused = taken = 0
    while ready[0][0] < 10_000:
        now_ms, number = heapq.heappop(ready)
        over = limited.send(share(), messages=1, body_bytes=1, now_ms=now_ms)
        refused += over is not None
        taken += over is None
        heapq.heappush(ready, (now_ms + (1 if over is None else over.answered_ms), number))
    assert refused <= 10 * 2_000
    assert taken >= 10 * 100


def test_who_is_refused_for_one_quota_takes_nobodys_place_before_another() -> None:
    limited = quotas("topic:slow sentMessages=1; address:* sentMessages=100")
    limited.send(share("slow"), messages=150, body_bytes=1, now_ms=0)
    for _ in range(20):
        over = limited.send(share("slow"), messages=1, body_bytes=1, now_ms=0)
        assert over is not None
        assert over.kind is QuotaKind.TOPIC
    over = limited.send(share("quick"), messages=1, body_bytes=1, now_ms=0)
    assert over is not None
    assert (over.kind, over.answered_ms) == (QuotaKind.ADDRESS, 501)


def test_what_is_refused_is_charged_to_nobody() -> None:
    limited = quotas("topic:full sentMessages=1; address:* sentMessages=100")
    limited.send(share("full"), messages=1, body_bytes=1, now_ms=0)
    for _ in range(1_000):
        assert limited.send(share("full"), messages=1, body_bytes=1, now_ms=0) is not None
    for _ in range(99):
        assert limited.send(share("other"), messages=1, body_bytes=1, now_ms=0) is None
    over = limited.send(share("other"), messages=1, body_bytes=1, now_ms=0)
    assert over is not None
    assert (over.kind, over.name) == (QuotaKind.ADDRESS, "10.0.0.1")


def test_a_name_of_its_own_goes_before_any_and_without_limits_lifts_them() -> None:
    limited = quotas("topic:* sentMessages=1; topic:big sentMessages=3; topic:free")
    passed = {
        topic: sum(limited.send(share(topic), messages=1, body_bytes=1, now_ms=0) is None for _ in range(9))
        for topic in ("small", "big", "free")
    }
    assert passed == {"small": 1, "big": 3, "free": 9}


def test_what_received_messages_cost_is_known_afterwards() -> None:
    limited = quotas("address:* receivedBytes=1000")
    assert limited.receive(share(), now_ms=0) is None
    limited.received(share(), messages=32, body_bytes=5_000, now_ms=0)
    over = limited.receive(share(), now_ms=0)
    assert over is not None
    assert 4_000 <= over.pause_ms <= 4_001
    assert limited.receive(share(), now_ms=over.pause_ms) is None
    assert limited.receive(share(address="10.0.0.2"), now_ms=0) is None


def test_invented_names_take_bounded_memory_and_win_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAMES_MAX", 100)
    limited = quotas("address:* sentMessages=1")
    passed = 0
    for number in range(5_000):
        passed += limited.send(share(address=f"a{number}"), messages=1, body_bytes=1, now_ms=0) is None
    [debts] = limited._debts.values()
    assert len(debts) <= 101
    assert passed <= 101
    # A second later they are forgotten, and newcomers are served again.
    assert limited.send(share(address="new"), messages=1, body_bytes=1, now_ms=1_001) is None
    assert len(debts) == 1
    assert NAMES_MAX == 16_384


def test_connections_are_counted_before_they_are_limited() -> None:
    limited = Quotas()
    for _ in range(3):
        assert limited.connect("10.0.0.1") is None
        limited.connected("10.0.0.1")
    limited.change(parse_quotas("address:* connections=3"), now_ms=0)
    assert limited.connect("10.0.0.1") is not None
    assert limited.connect("10.0.0.2") is None
    limited.disconnected("10.0.0.1")
    assert limited.connect("10.0.0.1") is None
    for _ in range(2):
        limited.disconnected("10.0.0.1")
    assert not limited._connections


def test_polls_are_given_back() -> None:
    limited = quotas("topic:* polls=2; user:ann polls=1")
    ann, bob = share(user="ann"), share(user="bob")
    assert limited.poll(ann) is None
    over = limited.poll(ann)
    assert over is not None
    assert over.kind is QuotaKind.USER
    assert limited.poll(bob) is None
    over = limited.poll(share(user="eve"))
    assert over is not None
    assert over.kind is QuotaKind.TOPIC
    limited.poll_ended(ann)
    assert limited.poll(bob) is None
    limited.poll_ended(bob)
    limited.poll_ended(bob)
    assert not limited._polls


def test_leases_count_until_they_are_over() -> None:
    running: set[str] = set()
    limited = Quotas(is_leased=lambda _group, _topic, handle: handle in running)
    limited.change(parse_quotas("address:* leases=10"), now_ms=0)
    for number in range(3):
        assert limited.receive(share(), now_ms=0) is None
        handles = [f"{number}.{place}" for place in range(4)]
        running.update(handles)
        limited.leased(share(), "group", handles)
    assert limited.receive(share(), now_ms=0) is not None
    assert limited.receive(share(address="10.0.0.2"), now_ms=0) is None
    running.remove("2.3")
    assert limited.receive(share(), now_ms=0) is not None  # Eleven are left.
    running.difference_update(["0.0", "1.1"])
    assert limited.receive(share(), now_ms=0) is None
    running.clear()
    limited.look_after()
    assert not limited._leases


def test_other_rules_keep_what_was_taken_and_forget_what_nobody_limits() -> None:
    limited = quotas("topic:* sentMessages=1 leases=1")
    assert limited.send(share(), messages=1, body_bytes=1, now_ms=0) is None
    limited.leased(share(), "group", ["handle"])
    limited.change(parse_quotas("topic:* sentMessages=1 sentBytes=7"), now_ms=0)
    assert limited.send(share(), messages=1, body_bytes=1, now_ms=0) is not None
    assert not limited._leases
    limited.change(QuotaRules(), now_ms=0)
    assert limited.send(share(), messages=1, body_bytes=1, now_ms=0) is None
    assert not limited._debts


def test_who_gave_more_room_does_not_wait_for_what_was_owed_under_less() -> None:
    limited = quotas("topic:* sentBytes=1000")
    assert limited.send(share(), messages=1, body_bytes=4 << 20, now_ms=0) is None
    over = limited.send(share(), messages=1, body_bytes=1, now_ms=10_000)
    assert over is not None
    assert over.pause_ms > 3_600_000
    limited.change(parse_quotas("topic:* sentBytes=10000000"), now_ms=10_000)
    assert limited.send(share(), messages=1, body_bytes=1, now_ms=10_000) is None


rates = st.integers(1, 1 << 30)


@given(st.integers(1, 1 << 30), rates, rates, st.integers(0, 1 << 20))
def test_a_change_of_a_rate_makes_nobody_wait_longer(amount: int, before: int, after: int, now_ms: int) -> None:
    limited = quotas(f"topic:* sentBytes={before}; topic:bills sentBytes=1")
    assert limited.send(share(), messages=1, body_bytes=amount, now_ms=0) is None
    old = limited.send(share(), messages=1, body_bytes=0, now_ms=now_ms)  # asks, and takes nothing
    limited.change(parse_quotas(f"topic:* sentBytes={after}; topic:bills"), now_ms=now_ms)
    new = limited.send(share(), messages=1, body_bytes=0, now_ms=now_ms)
    assert new is None or (old is not None and new.pause_ms <= old.pause_ms)
    if old is not None and after <= before:
        assert new is not None, "what was taken still counts"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("ipv6:[::ffff:10.0.0.1]:5000", "10.0.0.1"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:5000", "2001:db8:1:2::"),
        ("ipv6:[2001:db8:1:2:ffff::1%eth0]:1", "2001:db8:1:2::"),
        ("unix:", "local"),
        ("ipv4:nonsense", "local"),
    ],
)
def test_an_address_is_counted_by_host_and_of_ipv6_by_64_bits(peer: str, address: str) -> None:
    assert address_of_peer(peer) == address
