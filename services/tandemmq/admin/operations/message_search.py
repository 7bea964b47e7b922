"""Messages of a topic from all broker groups, merged by store time as if there were one.

Each broker answers in the order of its CommitLog. The merge takes the next message of all brokers' answers; when a
broker's answer is used up and it has more, it is asked for more before anything else is taken, so that pages are in
order. What is left of an answer is asked for again with the next page, without what was taken of it: by the token that
the answer was asked for with, or, for a broker's first answer, from the store time of the last message that was taken.
So one question brings what is left, and messages that come in meanwhile do not shift the pages.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias
from zlib import crc32

from tandemmq.admin.cluster_state import BrokerState
from tandemmq.admin.operations.bodies import PAGE_BODY_BYTES_MAX, PAGE_MESSAGES_MAX
from tandemmq.admin.operations.questions import (
    Answer,
    BrokerPlanes,
    CallFailure,
    FailureKind,
    Members,
    OperationFailed,
    Questions,
    invalid,
    not_found,
    query_request,
    refused,
    values_of,
)
from tandemmq.admin.operations.topics import DEAD_LETTER_PREFIX
from tandemmq.admin.operations.values import MessagePage, MessageQuery, MessageSummary, SearchOrder, Unseen
from tandemmq.core.clock import Clock
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.proto.admin.v1 import message_query_service_pb2 as query_pb
from tandemmq.service.protobuf import as_value

# Where a search over several brokers goes on, as text that callers keep and do not read.
#
# base64url of JSON: {"v": 1, "q": mark of the query, "b": {broker name: [page token, bound in ms, last offset
# taken]}}. Brokers that have no more are left out. It gives access to nothing: whoever forges one reads from another
# place.

_VERSION: Final = 1
_TOKEN_CHARACTERS_MAX: Final = 64 << 10
_INT64_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one broker's part of a search goes on."""

    # The broker's own token; empty: from the bound on.
    page_token: bytes = b""
    # Store time of the last message taken when the token was made: nothing beyond it is wanted again. -1: the query's.
    bound_ms: int = -1
    # Offset in the CommitLog of the last message taken; -1: none of those that are asked for.
    taken_offset: int = -1

    def has_taken(self, physical_offset: int, *, backwards: bool) -> bool:
        """Whether an earlier page had that message; `backwards`: newest first."""
        if self.taken_offset < 0:
            return False
        return physical_offset >= self.taken_offset if backwards else physical_offset <= self.taken_offset


def token_of(query: MessageQuery, standings: Mapping[str, Standing]) -> str:
    """Text for the next page; empty when nobody has more."""
    if not standings:
        return ""
    brokers = {
        name: [base64.b64encode(standing.page_token).decode(), standing.bound_ms, standing.taken_offset]
        for name, standing in sorted(standings.items())
    }
    text = json.dumps({"v": _VERSION, "q": _mark(query), "b": brokers}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def standings_of(query: MessageQuery) -> dict[str, Standing] | None:
    """What `query.page_token` says; None: it is the first page. INVALID: no token, or another search's."""
    token = query.page_token
    if not token:
        return None
    if len(token) > _TOKEN_CHARACTERS_MAX:
        raise _invalid("it is too long")
    try:
        content = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        if content["v"] != _VERSION:
            raise _invalid("it is of another version")
        if content["q"] != _mark(query):
            raise _invalid("it belongs to another search")
        return {str(name): _standing(*values) for name, values in content["b"].items()}
    except (binascii.Error, UnicodeError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _invalid("it is none") from error


def _standing(page_token: str, bound_ms: int, taken_offset: int) -> Standing:
    for number in (bound_ms, taken_offset):
        if type(number) is not int or not -1 <= number <= _INT64_MAX:
            raise ValueError(number)
    return Standing(base64.b64decode(page_token, validate=True), bound_ms, taken_offset)


def _mark(query: MessageQuery) -> int:
    """Of what is looked for; how much of it at once may change from page to page."""
    asked = replace(query, page_token="", limit=0, body_bytes=0, tags=tuple(query.tags))
    return crc32(repr(asked).encode())


def _invalid(cause: str) -> OperationFailed:
    return invalid("the page token cannot be used", cause=cause, remedy="begin the search again without it")


_TAGS_MAX: Final = 64
_ASKS_PER_BROKER: Final = 3
"""For one page: a broker that has looked at so many messages in vain is left for the next page."""


# Of each body this much is looked at for a text.
_TEXT_BYTES: Final = 64 << 10
_TEXT_AT_ONCE: Final = 200
_TEXT_ASKS_PER_BROKER: Final = 10


def _has(message: MessageSummary, wanted: str) -> bool:
    """Whether body, tag or keys hold the text, which is in lower case."""
    places = (message.body[:_TEXT_BYTES].decode(errors="replace"), message.tag, *message.keys)
    return any(wanted in place.lower() for place in places)


class MessageSearch:
    """Finds messages on the masters, or on the slaves of those that are away."""

    def __init__(self, members: Members, questions: Questions) -> None:
        self._members = members
        self._questions = questions

    async def search(self, query: MessageQuery) -> MessagePage:
        """One page. NOT_FOUND: none of those that answer has the topic; of dead letters there are none then.

        A text is looked for in 2,000 messages of each broker a page at most: a page may be empty, and not the last.
        """
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
        asked = replace(query, body_bytes=max(query.body_bytes, _TEXT_BYTES)) if query.text else query
        messages = await _merged(asked, parts, self._ask)
        if query.text:
            messages = [replace(each, body=each.body[: query.body_bytes]) for each in messages]
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
            raise invalid("this search cannot be made", cause="\n".join(problems))
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
                part.found.append(as_value(MessageSummary, view, broker_name=part.broker.broker_name))
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
    text = query.text.lower()
    asks_max = _TEXT_ASKS_PER_BROKER if text else _ASKS_PER_BROKER
    passed_over: set[str] = set()
    sign = -1 if _is_backwards(query) else 1
    while len(messages) < query.limit:
        asked = [part for part in parts if part.is_dry and part.asks < asks_max]
        if asked:
            limit = _TEXT_AT_ONCE if text else query.limit - len(messages)
            await asyncio.gather(*(ask(query, part, limit) for part in asked))
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
        message = min(ready, key=lambda part: sign * part.found[0].store_ms).take()
        if not text or _has(message, text):
            messages.append(message)
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
        raise not_found(
            f"there is no topic {topic}" + (" on the brokers that answer" if unseen else ""),
            cause="\n".join(lines),
            remedy="look for its name in the list of topics; upper and lower case matter",
        )
    kind = kinds.pop() if len(kinds) == 1 else FailureKind.UNAVAILABLE
    raise OperationFailed(kind, f"no broker answers this search in {topic}", cause="\n".join(lines))


# Messages of a topic as they come in, to those who look.
#
# Brokers are asked for the ends of their queues; what lies beyond the ends of before is fetched. So nothing is missed
# for a clock that jumps, and a topic in which nothing happens costs one small question a second.

_TAILS_MAX: Final = 16
_POLL_S: Final = 1.0
_SHOWN_PER_POLL_MAX: Final = 200
"""Nobody reads faster. Of more than that the newest of each queue are shown."""

# Broker group and queue id.
_Queue: TypeAlias = tuple[str, int]
_KNOWN: Final = -1


class MessageTail:
    """Bounds how many look at once. Brokers that do not answer are left out until they are back."""

    def __init__(self, members: Members, questions: Questions, *, poll_s: float = _POLL_S) -> None:
        self._members = members
        self._questions = questions
        self._poll_s = poll_s
        self._count = 0

    async def messages(
        self, topic: str, *, tags: Sequence[str] = (), body_bytes: int = 4_096
    ) -> AsyncIterator[MessageSummary]:
        """Messages as they come in, from now on, ordered within a second's, until the caller stops; of more than 200 a
        second the newest. REFUSED: 16 look already."""
        if self._count >= _TAILS_MAX:
            raise refused(
                f"{_TAILS_MAX} look at incoming messages already", remedy="close one of them, or ask again later"
            )
        self._count += 1
        try:
            ends = await self._first_ends(topic)
            while True:
                await asyncio.sleep(self._poll_s)
                for message in await self._newer(topic, ends, tags, min(body_bytes, PAGE_BODY_BYTES_MAX)):
                    yield message
        finally:
            self._count -= 1

    async def _first_ends(self, topic: str) -> dict[_Queue, int]:
        """Where each queue ends now. NOT_FOUND: nobody who answers has the topic."""
        answers = await self._topics(topic)
        found = _ends(answers)
        if found is None:
            reasons = [f"{one.subject}: {one.failure.text}" for one in answers if one.failure is not None]
            raise not_found(
                f"there is no topic {topic}" + (" on the brokers that answer" if reasons else ""),
                cause="\n".join(reasons),
                remedy="look for its name in the list of topics; upper and lower case matter",
            )
        return found

    async def _newer(
        self, topic: str, ends: dict[_Queue, int], tags: Sequence[str], body_bytes: int
    ) -> list[MessageSummary]:
        """What has come since `ends`, which moves on; oldest first."""
        try:
            grown = _grown(ends, await self._topics(topic))
            brokers = [broker for broker in self._members.readers().brokers if broker.broker_name in grown]
        except OperationFailed:
            # Nobody answers now.
            return []
        share = max(1, _SHOWN_PER_POLL_MAX // max(1, sum(len(stretches) for stretches in grown.values())))

        async def fetch(broker: BrokerPlanes) -> list[MessageSummary]:
            name = broker.broker.broker_name
            found = []
            for stretch in grown[name]:
                stretch.start_offset = max(stretch.start_offset, stretch.end_offset - share)
                request = query_pb.QueryMessagesRequest(
                    topic=topic, queue=stretch, limit=share, body_bytes=body_bytes, tags=tags
                )
                answer = await broker.messages.query(request)
                # Large bodies may have ended the page early: the rest comes with the next poll.
                is_cut = bool(answer.next_page_token and answer.messages)
                end = answer.messages[-1].queue_offset + 1 if is_cut else stretch.end_offset
                ends[name, stretch.queue_id] = end
                found += [as_value(MessageSummary, view, broker_name=name) for view in answer.messages]
            return found

        fetched = await self._questions.brokers(brokers, fetch)
        messages = [message for _, found in values_of(fetched) for message in found]
        return sorted(messages, key=lambda message: (message.store_ms, message.broker_name, message.physical_offset))

    async def _topics(self, topic: str) -> list[Answer[list[admin_pb.TopicStatus]]]:
        async def ask(broker: BrokerPlanes) -> list[admin_pb.TopicStatus]:
            topics = await broker.admin.topics(include_system=True, names=[topic])
            # A broker of an older version answers with all its topics.
            return [status for status in topics if status.topic == topic]

        return await self._questions.brokers(self._members.readers().brokers, ask)


def _ends(answers: Sequence[Answer[list[admin_pb.TopicStatus]]]) -> dict[_Queue, int] | None:
    """None: no broker has the topic. One that has it is known by its queue -1, whether or not it holds anything."""
    ends: dict[_Queue, int] = {}
    for broker_name, topics in values_of(answers):
        for topic in topics:
            ends[broker_name, _KNOWN] = 0
            ends |= {(broker_name, queue.queue_id): queue.max_offset for queue in topic.queues}
    return ends or None


def _grown(
    ends: dict[_Queue, int], answers: Sequence[Answer[list[admin_pb.TopicStatus]]]
) -> dict[str, list[query_pb.QueueRange]]:
    """What lies beyond `ends`, by broker group. What is met for the first time is added to them."""
    grown: dict[str, list[query_pb.QueueRange]] = {}
    for broker_name, topics in values_of(answers):
        is_known = (broker_name, _KNOWN) in ends
        for topic in topics:
            ends[broker_name, _KNOWN] = 0
            for queue in topic.queues:
                # A queue that a known broker tells of for the first time was empty before.
                begin = ends.setdefault(
                    (broker_name, queue.queue_id), queue.min_offset if is_known else queue.max_offset
                )
                if queue.max_offset > begin:
                    stretch = query_pb.QueueRange(
                        queue_id=queue.queue_id, start_offset=begin, end_offset=queue.max_offset
                    )
                    grown.setdefault(broker_name, []).append(stretch)
                elif queue.max_offset < begin:
                    # The topic was removed and made anew.
                    ends[broker_name, queue.queue_id] = queue.max_offset
    return grown


# A live tail that ends: after so long, after so many messages, or when nobody listens any more.

# How soon a listener that went is noticed while nothing comes in.
_LOOK_S: Final = 1.0
# A question that is wrong is refused at once; one that is right waits for messages.
_OPENING_S: Final = 0.5


class BoundedTail:
    """Iterates once over what a tail gives: at most `limit` messages, for at most `limit_ms`."""

    def __init__(
        self,
        tail: AsyncIterator[MessageSummary],
        *,
        limit: int,
        limit_ms: int,
        is_gone: Callable[[], Awaitable[bool]],
        clock: Clock,
    ) -> None:
        self._tail = tail
        self._limit = limit
        self._ends_at_ms = clock.monotonic_ms() + limit_ms
        self._is_gone = is_gone
        self._clock = clock
        self._next: asyncio.Future[MessageSummary] | None = None

    async def open(self) -> None:
        """Begins. Raises what the tail raises at once: OperationFailed for a wrong question."""
        self._next = asyncio.ensure_future(anext(self._tail))
        try:
            done, _ = await asyncio.wait({self._next}, timeout=_OPENING_S)
            failure = self._next.exception() if done else None
            if failure is not None and not isinstance(failure, StopAsyncIteration):
                raise failure
        except BaseException:
            await self.close()
            raise

    async def __aiter__(self) -> AsyncIterator[MessageSummary]:
        """The messages. May raise what the tail raises."""
        count = 0
        while count < self._limit:
            message = await self._next_message()
            if message is None:
                return
            count += 1
            yield message

    async def _next_message(self) -> MessageSummary | None:
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._tail))
        while not self._next.done():
            left_s = (self._ends_at_ms - self._clock.monotonic_ms()) / 1_000
            if left_s <= 0 or await self._is_gone():
                return None
            await asyncio.wait({self._next}, timeout=min(_LOOK_S, left_s))
        found, self._next = self._next, None
        try:
            return found.result()
        except StopAsyncIteration:
            return None

    async def close(self) -> None:
        """Ends the tail. Whoever made this calls it in the end."""
        if self._next is not None:
            ended, self._next = self._next, None
            ended.cancel()
            await asyncio.wait({ended})
            if not ended.cancelled():
                # Somebody has to have looked; what it was is of no interest any more.
                ended.exception()
        close = getattr(self._tail, "aclose", None)
        if close is not None:
            await close()
