"""Messages of a topic from all broker groups, merged by store time as if there were one.

Each broker answers in the order of its CommitLog. The merge takes the next message of all brokers' answers; when a
broker's answer is used up and it has more, it is asked for more before anything else is taken, so that pages are in
order. What is left of an answer is asked for again with the next page, without what was taken of it: by the token that
the answer was asked for with, or, for a broker's first answer, from the store time of the last message that was taken.
So one question brings what is left, and messages that come in meanwhile do not shift the pages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from admin.cluster_state import BrokerState
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.members import Members
from admin.operations.message_limits import PAGE_MESSAGES_MAX
from admin.operations.message_views import query_request, summary_of
from admin.operations.questions import CallFailure, Questions
from admin.operations.search_token import Standing, standings_of, token_of
from admin.operations.topic_names import DEAD_LETTER_PREFIX
from admin.operations.values import MessagePage, MessageQuery, MessageSummary, SearchOrder, Unseen

__all__ = ["MessageSearch"]

_TAGS_MAX: Final = 64
_ASKS_PER_BROKER: Final = 3
"""For one page: a broker that has looked at so many messages in vain is left for the next page."""


class MessageSearch:
    """Finds messages on the masters, or on the slaves of those that are away."""

    def __init__(self, members: Members, questions: Questions) -> None:
        self._members = members
        self._questions = questions

    async def search(self, query: MessageQuery) -> MessagePage:
        """One page. NOT_FOUND: none of those that answer has the topic; of dead letters there are none then."""
        query = self._checked(query)
        readers = self._members.readers(query.broker_name)
        standings = standings_of(query)
        if standings is None:
            standings = {broker.broker_name: Standing() for broker in readers.brokers}
        parts = [
            _Part(broker, standings[broker.broker_name])
            for broker in readers.brokers
            if broker.broker_name in standings
        ]
        messages = await _merged(query, parts, self._ask)
        _raise_if_nobody_answers(query.topic, parts, readers.unseen)
        return MessagePage(
            messages=messages,
            next_page_token=token_of(query, _following(parts)),
            scanned=sum(part.scanned for part in parts),
            unseen=(*readers.unseen, *(part.unseen() for part in parts if part.is_unseen)),
        )

    def _checked(self, query: MessageQuery) -> MessageQuery:
        problems = []
        if not query.topic:
            problems.append("the topic is missing")
        if not 1 <= query.limit <= PAGE_MESSAGES_MAX:
            problems.append(f"limit {query.limit}: from 1 to {PAGE_MESSAGES_MAX}")
        if len(query.tags) > _TAGS_MAX:
            problems.append(f"{len(query.tags)} tags: at most {_TAGS_MAX}")
        if query.key and query.queue_id >= 0:
            problems.append("a key and a queue exclude each other")
        if query.start_offset < 0:
            problems.append(f"start offset {query.start_offset}: from 0 on")
        if 0 <= query.end_ms <= query.start_ms:
            problems.append("the end of the time range does not lie after its start")
        if query.queue_id >= 0 and not query.broker_name:
            names = self._members.group_names
            if len(names) == 1:
                query = replace(query, broker_name=names[0])
            else:
                problems.append(f"queue {query.queue_id} is on each of {', '.join(names)}: name the broker group")
        if problems:
            raise OperationFailed(FailureKind.INVALID, "this search cannot be made", cause="\n".join(problems))
        return query

    async def _ask(self, query: MessageQuery, part: _Part, limit: int) -> None:
        """Adds one more answer of a broker to its part."""
        standing = part.standing
        start_ms, end_ms = query.start_ms, query.end_ms
        backwards = _is_backwards(query)
        if standing.bound_ms >= 0:
            # The bound itself is within: there may be more of the same millisecond.
            start_ms, end_ms = (start_ms, standing.bound_ms + 1) if backwards else (standing.bound_ms, end_ms)
        request = query_request(query, start_ms=start_ms, end_ms=end_ms, limit=limit, page_token=standing.page_token)
        part.asks += 1
        part.asked_from = standing
        [answer] = await self._questions.brokers([part.broker], lambda broker: broker.messages.query(request))
        if answer.value is None:
            part.failure = answer.failure
            return
        part.scanned += answer.value.scanned_count
        for view in answer.value.messages:
            if not standing.has_taken(view.physical_offset, backwards=backwards):
                part.found.append(summary_of(part.broker.broker_name, view))
        part.is_over = not answer.value.next_page_token
        part.standing = replace(standing, page_token=answer.value.next_page_token)


class _Part:
    """One broker's share of a search."""

    def __init__(self, broker: BrokerState, standing: Standing) -> None:
        self.broker = broker
        # Where its next answer begins.
        self.standing = standing
        # Where its last answer began: all that was found and not taken is of that one.
        self.asked_from = standing
        self.found: deque[MessageSummary] = deque()
        self.is_over = False
        self.failure: CallFailure | None = None
        self.scanned = 0
        self.asks = 0
        self._last: MessageSummary | None = None

    @property
    def is_unseen(self) -> bool:
        """True when it could not say; that it has no such topic is an answer."""
        return self.failure is not None and self.failure.kind is not FailureKind.NOT_FOUND

    @property
    def has_more(self) -> bool:
        """True when it may have messages that it has not told of yet."""
        return self.failure is None and not self.is_over

    @property
    def is_dry(self) -> bool:
        """True when it has to be asked for what comes next."""
        return not self.found and self.has_more

    def take(self) -> MessageSummary:
        """Its next message."""
        self._last = self.found.popleft()
        return self._last

    def following(self) -> Standing:
        """Where its next page begins."""
        if not self.found:
            return self.standing
        if self._last is None:
            return self.asked_from
        if self.asked_from.page_token:
            return replace(self.asked_from, taken_offset=self._last.physical_offset)
        return Standing(bound_ms=self._last.store_ms, taken_offset=self._last.physical_offset)

    def unseen(self) -> Unseen:
        """Why it could not say."""
        return Unseen(self.broker.key, self.failure.text if self.failure is not None else "")


_Ask: TypeAlias = Callable[[MessageQuery, _Part, int], Awaitable[None]]


async def _merged(query: MessageQuery, parts: Sequence[_Part], ask: _Ask) -> list[MessageSummary]:
    """As many messages as are wanted, in order; fewer when a broker has looked at too many in vain."""
    messages: list[MessageSummary] = []
    passed_over: set[str] = set()
    sign = -1 if _is_backwards(query) else 1
    while len(messages) < query.limit:
        asked = [part for part in parts if part.is_dry and part.asks < _ASKS_PER_BROKER]
        if asked:
            await asyncio.gather(*(ask(query, part, query.limit - len(messages)) for part in asked))
            continue
        dry = {part.broker.key for part in parts if part.is_dry} - passed_over
        if dry and messages:
            # What it has next may come before what the others have.
            break
        # Of those that found nothing at all the others' messages need not wait.
        passed_over |= dry
        ready = [part for part in parts if part.found]
        if not ready:
            break
        messages.append(min(ready, key=lambda part: sign * part.found[0].store_ms).take())
    return messages


def _following(parts: Sequence[_Part]) -> dict[str, Standing]:
    """Where the brokers go on that have more; those that failed are tried again with them."""
    if not any(part.found or part.has_more for part in parts):
        return {}
    return {
        part.broker.broker_name: part.following() for part in parts if part.found or part.has_more or part.is_unseen
    }


def _is_backwards(query: MessageQuery) -> bool:
    return query.queue_id < 0 and (bool(query.key) or query.order is SearchOrder.NEWEST)


def _raise_if_nobody_answers(topic: str, parts: Sequence[_Part], unseen: Sequence[Unseen]) -> None:
    failures = [part.failure for part in parts if part.failure is not None]
    if len(failures) < len(parts):
        return
    lines = [f"{part.broker.key}: {part.failure.text}" for part in parts if part.failure is not None]
    lines += [f"{each.subject}: {each.reason}" for each in unseen]
    kinds = {failure.kind for failure in failures}
    if kinds == {FailureKind.NOT_FOUND}:
        if topic.startswith(DEAD_LETTER_PREFIX):
            # A group's first dead letter makes the topic.
            return
        raise OperationFailed(
            FailureKind.NOT_FOUND,
            f"there is no topic {topic}" + (" on the brokers that answer" if unseen else ""),
            cause="\n".join(lines),
            remedy="look for its name in the list of topics; upper and lower case matter",
        )
    kind = kinds.pop() if len(kinds) == 1 else FailureKind.UNAVAILABLE
    raise OperationFailed(kind, f"no broker answers this search in {topic}", cause="\n".join(lines))
