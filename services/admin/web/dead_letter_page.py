"""What the pages of dead letters show. Pure; templates only lay it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from admin.operations.topic_names import DEAD_LETTER_PREFIX, dead_letter_topic
from admin.operations.values import DeadLetterResult, Page, TopicSummary
from admin.quantities import count_text
from admin.web.page_addresses import dead_letters_address, place_address, topic_address

__all__ = ["DeadLetterRow", "ResendView", "dead_letter_rows", "resend_lines", "resend_view", "was_sent"]

_LINES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """A group with its dead letters."""

    group: str
    address: str
    topic: str
    topic_address: str
    # Empty: not known.
    held: str
    stored: str
    brokers: str


@dataclass(frozen=True, slots=True)
class ResendRow:
    """What comes of one dead letter."""

    broker_name: str
    queue_offset: int
    address: str
    # Empty: not known where it came from.
    topic: str
    topic_address: str
    problem: str


@dataclass(frozen=True, slots=True)
class ResendView:
    """What resending does."""

    rows: tuple[ResendRow, ...]
    # Those that can be sent, as the form posts them.
    sendable: tuple[str, ...]

    @property
    def problem_count(self) -> int:
        """How many cannot."""
        return len(self.rows) - len(self.sendable)


def dead_letter_rows(page: Page[TopicSummary]) -> tuple[DeadLetterRow, ...]:
    """The rows of a list."""
    return tuple(_dead_letter_row(topic) for topic in page.items)


def resend_view(group: str, results: Sequence[DeadLetterResult]) -> ResendView:
    """A dry run."""
    rows = tuple(
        ResendRow(
            broker_name=result.broker_name,
            queue_offset=result.queue_offset,
            address=place_address(result.broker_name, dead_letter_topic(group), 0, result.queue_offset),
            topic=result.topic,
            topic_address=topic_address(result.topic) if result.topic else "",
            problem=result.problem,
        )
        for result in results
    )
    sendable = tuple(f"{row.broker_name}/{row.queue_offset}" for row in rows if not row.problem)
    return ResendView(rows, sendable)


def was_sent(result: DeadLetterResult) -> bool:
    """True for a letter that lies in its topic anew; it may have a problem, too: not all replicas hold it yet."""
    return result.new_queue_offset >= 0 or not result.problem


def resend_lines(results: Sequence[DeadLetterResult]) -> tuple[str, ...]:
    """What was done, failures first; at most twenty of them."""
    wrong = [
        f"{one.broker_name}, {one.queue_offset:,}: {'sent, but' if was_sent(one) else 'not sent'}: {one.problem}"
        for one in results
        if one.problem
    ]
    by_topic = Counter(one.topic for one in results if was_sent(one))
    sent = [f"{count:,} sent to {topic}" for topic, count in sorted(by_topic.items())]
    more = len(wrong) - _LINES_MAX
    return (*wrong[:_LINES_MAX], *((f"and {more} more such letters",) if more > 0 else ()), *sent)


def _dead_letter_row(topic: TopicSummary) -> DeadLetterRow:
    group = topic.name.removeprefix(DEAD_LETTER_PREFIX)
    return DeadLetterRow(
        group=group,
        address=dead_letters_address(group),
        topic=topic.name,
        topic_address=topic_address(topic.name),
        held=count_text(topic.held) if topic.held >= 0 else "",
        stored=count_text(topic.stored) if topic.stored >= 0 else "",
        brokers=", ".join(broker.broker_name for broker in topic.brokers),
    )
