"""MQv2-HMAC-SHA1 as six official clients write it."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.access.signature import (
    DATE_WINDOW_MS,
    FAILURES_MAX,
    FREE_FAILURES,
    WINDOW_MS,
    Credential,
    SignInLimit,
    date_problem,
    is_signed,
    parse_authorization,
    sign,
    zone_offset,
)

DATE = "20261125T155436Z"
NOW_MS = int(datetime(2026, 11, 25, 15, 54, 36, tzinfo=UTC).timestamp() * 1_000)
SIGNATURE = sign(b"sesame-8", DATE)


@pytest.mark.parametrize("credential", ["ann", "ann//Rocketmq", "ann/region/RocketMQ"], ids=["java", "go", "cpp"])
@pytest.mark.parametrize("spell", [str.upper, str.lower], ids=["upper", "lower"])
def test_each_client_s_header_is_read(credential: str, spell) -> None:  # type: ignore[no-untyped-def]
    text = f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, Signature={spell(SIGNATURE.hex())}"
    read = parse_authorization(text)
    assert read == Credential("ann", SIGNATURE)
    assert is_signed(b"sesame-8", DATE, read.signature)
    assert not is_signed(b"sesame-9", DATE, read.signature)
    assert not is_signed(b"sesame-8", DATE.replace("36Z", "37Z"), read.signature)


def test_the_signature_is_hmac_sha1_of_the_date() -> None:
    assert sign(b"key", "The quick brown fox jumps over the lazy dog").hex() == (
        "de7c9b85b8b78aa6bc8a7a36f70a90701c9db4d9"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no authorization header"),
        ("Bearer abc", "must be MQv2-HMAC-SHA1"),
        ("MQv2-HMAC-SHA1", "names no user"),
        ("MQv2-HMAC-SHA1 Credential=, Signature=00", "names no user"),
        ("MQv2-HMAC-SHA1 Credential=ann, Signature=xyz", "not hexadecimal"),
        ("MQv2-HMAC-SHA1 Credential=" + "a" * 2_000, "must be"),
    ],
)
def test_what_is_wrong_with_a_header_is_said(text: str, problem: str) -> None:
    read = parse_authorization(text)
    assert isinstance(read, str)
    assert problem in read


def test_an_absent_signature_signs_nothing() -> None:
    read = parse_authorization("MQv2-HMAC-SHA1 Credential=ann")
    assert isinstance(read, Credential)
    assert not is_signed(b"sesame-8", DATE, read.signature)


@given(st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    parse_authorization(text)
    parse_authorization("MQv2-HMAC-SHA1 " + text)
    date_problem(text, now_ms=NOW_MS, zones=(0,))


@given(st.integers(-DATE_WINDOW_MS // 1_000, DATE_WINDOW_MS // 1_000))
def test_a_date_within_a_quarter_of_an_hour_counts(seconds: int) -> None:
    assert date_problem(DATE, now_ms=NOW_MS + seconds * 1_000, zones=(0,)) is None


@pytest.mark.parametrize("off_ms", [DATE_WINDOW_MS + 60_000, -DATE_WINDOW_MS - 60_000, 86_400_000])
def test_an_old_or_future_date_does_not(off_ms: int) -> None:
    problem = date_problem(DATE, now_ms=NOW_MS + off_ms, zones=(0,))
    assert problem is not None
    assert "signatureTimeZones" in problem


def test_local_time_with_a_z_counts_in_a_zone_that_is_named() -> None:
    in_shanghai = "20261125T235436Z"
    assert date_problem(in_shanghai, now_ms=NOW_MS, zones=(0,)) is not None
    assert date_problem(in_shanghai, now_ms=NOW_MS, zones=(0, 480)) is None


@pytest.mark.parametrize("text", ["2026-11-25T23:54:36+08:00", "2026-11-25T15:54:36Z", "2026-11-25T15:54:36.123456Z"])
def test_rfc_3339_counts_by_its_offset(text: str) -> None:
    assert date_problem(text, now_ms=NOW_MS, zones=(0,)) is None


def test_a_stated_offset_is_not_read_as_another_zone() -> None:
    assert date_problem("2026-11-25T23:54:36+00:00", now_ms=NOW_MS, zones=(0, 480)) is not None


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("+08:00", 480), ("-03:30", -210), ("+14:00", 840), ("+15:00", None), ("8", None), ("+01:75", None)],
)
def test_zones(text: str, minutes: int | None) -> None:
    assert zone_offset(text) == minutes


# Failed sign-ins slow their own address down.


def test_the_first_failures_are_answered_at_once_and_later_ones_ever_later() -> None:
    limit = SignInLimit()
    delays = [limit.failed("10.0.0.1", now_ms=number) for number in range(20)]
    assert delays[:FREE_FAILURES] == [0] * FREE_FAILURES
    assert all(before <= after for before, after in itertools.pairwise(delays))
    assert 1_000 <= delays[-1] < 3_000, "clients wait 3 s"


def test_another_address_is_not_slowed_down() -> None:
    limit = SignInLimit()
    for number in range(FAILURES_MAX + 1):
        limit.failed("10.0.0.1", now_ms=number)
    assert limit.is_blocked("10.0.0.1", "ann", now_ms=500)
    assert not limit.is_blocked("10.0.0.2", "ann", now_ms=500)
    assert limit.failed("10.0.0.2", now_ms=500) == 0


def test_a_host_with_many_ipv6_addresses_is_one() -> None:
    """It has 2^64 of them, and would guess from a fresh one each time."""
    limit = SignInLimit()
    delays = [limit.failed(f"2001:db8:0:7:{number:x}::1", now_ms=number) for number in range(FAILURES_MAX)]
    assert delays[-1] == 2_000
    assert limit.is_blocked("2001:db8:0:7::ffff", "ann", now_ms=500)
    assert not limit.is_blocked("2001:db8:0:8::1", "ann", now_ms=500)
    assert len(limit._failures) == 1
    limit.succeeded("2001:db8:0:7::9", "bob", now_ms=500)
    assert not limit.is_blocked("2001:db8:0:7::9", "bob", now_ms=501)


def test_a_user_that_signed_in_from_the_address_is_still_heard() -> None:
    limit = SignInLimit()
    limit.succeeded("10.0.0.1", "ann", now_ms=0)
    for number in range(FAILURES_MAX):
        limit.failed("10.0.0.1", now_ms=number)
    assert not limit.is_blocked("10.0.0.1", "ann", now_ms=500)
    assert limit.is_blocked("10.0.0.1", "bob", now_ms=500)


def test_a_minute_later_all_is_forgiven() -> None:
    limit = SignInLimit()
    for number in range(FAILURES_MAX):
        limit.failed("10.0.0.1", now_ms=number)
    assert not limit.is_blocked("10.0.0.1", "bob", now_ms=WINDOW_MS + 1)
    assert limit.failed("10.0.0.1", now_ms=WINDOW_MS + 1) == 0


def test_very_many_addresses_take_bounded_memory() -> None:
    limit = SignInLimit()
    for number in range(20_000):
        limit.failed(str(number), now_ms=number)
        limit.succeeded(str(number), "ann", now_ms=number)
    assert len(limit._failures) <= 10_000
    assert len(limit._known) <= 10_000
