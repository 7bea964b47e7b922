import itertools
import random

import pytest

from tandemmq.core.tracing.span_data import HeadSampler, TraceContext, parse_traceparent

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


def test_the_text_of_a_context_is_read_back() -> None:
    context = TraceContext(int(TRACE, 16), int(SPAN, 16), True)
    assert context.traceparent == f"00-{TRACE}-{SPAN}-01"
    assert parse_traceparent(context.traceparent) == context


def test_flags_that_are_not_known_are_left_alone() -> None:
    context = parse_traceparent(f"00-{TRACE}-{SPAN}-fe")
    assert context is not None
    assert not context.is_sampled


def test_a_later_version_may_go_on() -> None:
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-01-what-comes-later") is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_what_is_no_context_counts_as_none(text: str) -> None:
    assert parse_traceparent(text) is None


def test_a_child_stays_in_its_trace() -> None:
    sampler = HeadSampler(0.5, chance=lambda: 0.4, bits=lambda count: count)
    parent = TraceContext(7, 8, False)
    assert sampler.takes()
    assert sampler.child_of(parent) == TraceContext(7, 64, True)
    assert sampler.new_root() == TraceContext(128, 64, True)


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.01])
def test_chance_takes_its_share_and_knows_no_order(rate: float) -> None:
    chance = random.Random(1)
    sampler = HeadSampler(rate, chance=chance.random, bits=chance.getrandbits)
    taken = [sampler.takes() for _ in range(200_000)]
    assert sum(taken) == pytest.approx(rate * len(taken), rel=0.05)
    # One after one that was taken is taken as often as any.
    after = [this for before, this in itertools.pairwise(taken) if before]
    assert sum(after) == pytest.approx(rate * len(after), abs=4 * (rate * len(after)) ** 0.5)


def test_a_rate_that_changes_holds_from_the_next_operation_on() -> None:
    sampler = HeadSampler(0.0, chance=lambda: 0.5, bits=lambda count: count)
    assert not sampler.takes()
    sampler.sample_rate = 1.0
    assert sampler.takes()
    sampler.sample_rate = 0.0
    assert not sampler.takes()


def test_ids_are_never_zero() -> None:
    sampler = HeadSampler(0, chance=lambda: 0.0, bits=lambda _count: 0)
    assert not sampler.takes()
    assert sampler.new_root() == TraceContext(1, 1, True)
