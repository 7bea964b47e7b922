"""Pages of several brokers' messages are one list: in order, each message once, whatever answers are cut short."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import grpc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.cluster_states import master
from support.fake_brokers import FakeQuestions, rpc_error
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.operations.message_search import MessageSearch
from tandemmq.admin.operations.questions import FailureKind, Members, OperationFailed
from tandemmq.admin.operations.values import MessagePage, MessageQuery, MessageSummary, SearchOrder
from tandemmq.proto.admin.v1 import message_query_service_pb2 as pb


@dataclass
class LogOfMessages:
    """Answers QueryMessages as a broker does: in the order of its log, a page's beginning by its token."""

    # Store time of each message; its offset is a hundred times its place.
    times: list[int]
    # Fewer messages in an answer than were asked for: their bodies are large.
    answer_max: int = 500
    # Messages looked at for one answer; only every `tagged`th is wanted.
    scan_max: int = 500
    tagged: int = 1
    failure: grpc.aio.AioRpcError | None = None
    requests: list[pb.QueryMessagesRequest] = field(default_factory=list)

    async def query(self, request: pb.QueryMessagesRequest) -> pb.QueryMessagesResponse:
        self.requests.append(request)
        if self.failure is not None:
            raise self.failure
        part = request.key if request.WhichOneof("query") == "key" else request.time
        backwards = request.WhichOneof("query") == "key" or request.time.newest_first
        start = part.start_time.ToMilliseconds() if part.HasField("start_time") else -1
        end = part.end_time.ToMilliseconds() if part.HasField("end_time") else 1 << 60
        mark = zlib.crc32(repr((start, end, backwards)).encode())
        places = [place for place, time in enumerate(self.times) if start <= time < end]
        if backwards:
            places.reverse()
        if request.page_token:
            token_mark, position = map(int, request.page_token.decode().split(":"))
            assert token_mark == mark, "a token goes on with its own query only"
            places = [place for place in places if (place <= position if backwards else place >= position)]
        found: list[int] = []
        scanned = 0
        while places and scanned < self.scan_max and len(found) < min(request.limit, self.answer_max):
            place = places.pop(0)
            scanned += 1
            if place % self.tagged == 0:
                found.append(place)
        token = f"{mark}:{places[0]}".encode() if places else b""
        views = [self._view(place) for place in found]
        return pb.QueryMessagesResponse(messages=views, next_page_token=token, scanned_count=scanned)

    def _view(self, place: int) -> pb.MessageView:
        view = pb.MessageView(topic="t", queue_offset=place, physical_offset=place * 100, message_id=str(place))
        view.store_time.FromMilliseconds(self.times[place])
        return view


@dataclass
class TextLog(LogOfMessages):
    """Bodies with a word in them where `marks` says so."""

    marks: list[bool] = field(default_factory=list)

    async def query(self, request: pb.QueryMessagesRequest) -> pb.QueryMessagesResponse:
        answer = await super().query(request)
        for view in answer.messages:
            view.body = b"Card declined" if self.marks[view.store_time.ToMilliseconds()] else b"nothing of the kind"
        return answer


def _search(logs: dict[str, LogOfMessages]) -> MessageSearch:
    state = ClusterState(name_servers=(), brokers=tuple(master(name) for name in sorted(logs)))
    planes = {f"{name}:0": SimpleNamespace(messages=log) for name, log in logs.items()}
    return MessageSearch(Members(lambda: state), FakeQuestions(planes))


async def _pages(search: MessageSearch, query: MessageQuery, *, at_most: int = 400) -> list[MessagePage]:
    pages = []
    for _ in range(at_most):
        page = await search.search(query)
        pages.append(page)
        if not page.next_page_token:
            return pages
        query = replace(query, page_token=page.next_page_token)
    raise AssertionError("the pages do not end")


def _keys(pages: Sequence[MessagePage]) -> list[tuple[int, str, int]]:
    return [_key(message) for page in pages for message in page.messages]


def _key(message: MessageSummary) -> tuple[int, str, int]:
    return message.store_ms, message.broker_name, message.physical_offset


def _all(logs: dict[str, LogOfMessages], *, tagged: int = 1) -> set[tuple[int, str, int]]:
    return {
        (time, name, place * 100)
        for name, log in logs.items()
        for place, time in enumerate(log.times)
        if place % tagged == 0
    }


_TIMES = st.lists(st.integers(0, 12), max_size=25).map(sorted)


@settings(deadline=None)
@given(
    times=st.lists(_TIMES, min_size=1, max_size=3),
    limit=st.integers(1, 9),
    answer_max=st.integers(1, 9),
    order=st.sampled_from(SearchOrder),
    with_key=st.booleans(),
)
# The last page begins within a millisecond of which more was taken than a broker is asked for at once.
@example(times=[[0, 1], [1, 2, 2, 2]], limit=2, answer_max=1, order=SearchOrder.NEWEST, with_key=False)
def test_pages_are_in_order_and_have_each_message_once(
    times: list[list[int]], limit: int, answer_max: int, order: SearchOrder, with_key: bool
) -> None:
    logs = {f"broker-{number}": LogOfMessages(log, answer_max=answer_max) for number, log in enumerate(times)}
    query = MessageQuery("t", key="k" if with_key else "", limit=limit, order=order)
    pages = asyncio.run(_pages(_search(logs), query))
    found = _keys(pages)
    assert len(found) == len(set(found))
    assert set(found) == _all(logs)
    in_order = [time for time, _, _ in found]
    assert in_order == sorted(in_order, reverse=with_key or order is SearchOrder.NEWEST)
    assert all(len(page.messages) <= limit for page in pages)


@settings(max_examples=40, deadline=None)
@given(times=st.lists(_TIMES, min_size=2, max_size=3), limit=st.integers(2, 6), burst=st.integers(0, 3))
def test_messages_that_come_in_between_pages_shift_nothing(times: list[list[int]], limit: int, burst: int) -> None:
    logs = {f"broker-{number}": LogOfMessages(log) for number, log in enumerate(times)}
    before = _all(logs)
    search = _search(logs)

    async def look() -> list[tuple[int, str, int]]:
        query = MessageQuery("t", limit=limit)
        found = []
        while True:
            page = await search.search(query)
            found += _keys([page])
            if not page.next_page_token:
                return found
            query = replace(query, page_token=page.next_page_token)
            for log in logs.values():
                # Of the same millisecond as the newest, and later.
                newest = log.times[-1] if log.times else 0
                log.times += [newest] * burst + [newest + 1] * burst

    found = asyncio.run(look())
    # A broker that had nothing at first is not looked at again; of the others nothing is missed or told twice.
    assert before <= set(found)
    assert len(found) == len(set(found))


async def test_a_broker_that_looks_in_vain_holds_up_nobody_for_long() -> None:
    logs = {
        "broker-a": LogOfMessages(list(range(2_000)), scan_max=10, tagged=1_999),
        "broker-b": LogOfMessages(list(range(20))),
    }
    search = _search(logs)
    first = await search.search(MessageQuery("t", limit=5, tags=["rare"]))
    # Its newest message is found at once, then 3 answers of 10 bring nothing more.
    assert [message.physical_offset for message in first.messages] == [199_900]
    assert len(logs["broker-a"].requests) == 3
    pages = await _pages(search, MessageQuery("t", limit=5, tags=["rare"]))
    assert set(_keys(pages)) == _all({"broker-a": logs["broker-a"]}, tagged=1_999) | _all(
        {"broker-b": logs["broker-b"]}
    )


async def test_who_does_not_answer_is_said_and_tried_again_with_the_next_page() -> None:
    logs = {
        "broker-a": LogOfMessages([1, 2, 3]),
        "broker-b": LogOfMessages([4, 5, 6], failure=rpc_error(grpc.StatusCode.UNAVAILABLE, "refused")),
    }
    search = _search(logs)
    page = await search.search(MessageQuery("t", limit=2))
    assert [(each.subject, each.reason) for each in page.unseen] == [("broker-b:0", "UNAVAILABLE: refused")]
    logs["broker-b"].failure = None
    page = await search.search(MessageQuery("t", limit=9, page_token=page.next_page_token))
    assert [message.store_ms for message in page.messages] == [6, 5, 4, 1]
    assert (page.unseen, page.next_page_token) == ((), "")


async def test_a_topic_that_one_broker_lacks_is_searched_on_the_other() -> None:
    missing = rpc_error(grpc.StatusCode.NOT_FOUND, "no such topic")
    logs = {"broker-a": LogOfMessages([1]), "broker-b": LogOfMessages([], failure=missing)}
    page = await _search(logs).search(MessageQuery("t"))
    assert (len(page.messages), page.unseen) == (1, ())
    logs["broker-a"].failure = missing
    with pytest.raises(OperationFailed, match="there is no topic t") as nowhere:
        await _search(logs).search(MessageQuery("t"))
    assert nowhere.value.kind is FailureKind.NOT_FOUND


async def test_a_group_whose_dead_letter_topic_was_never_made_has_no_letters() -> None:
    missing = rpc_error(grpc.StatusCode.NOT_FOUND, "no such topic")
    search = _search({"broker-a": LogOfMessages([], failure=missing), "broker-b": LogOfMessages([], failure=missing)})
    assert await search.search(MessageQuery("%DLQ%g")) == MessagePage([], "", 0)


@pytest.mark.parametrize(
    ("query", "cause"),
    [
        (MessageQuery(""), "topic is missing"),
        (MessageQuery("t", limit=501), "limit 501"),
        (MessageQuery("t", key="k", queue_id=1, broker_name="broker-a"), "exclude each other"),
        (MessageQuery("t", queue_id=1), "name the broker group"),
        (MessageQuery("t", start_ms=5, end_ms=5), "does not lie after"),
        (MessageQuery("t", tags=["x"] * 65), "65 tags"),
        (MessageQuery("t", queue_id=0, broker_name="broker-a", start_offset=-1), "start offset -1"),
    ],
)
async def test_a_search_that_cannot_be_is_refused(query: MessageQuery, cause: str) -> None:
    with pytest.raises(OperationFailed) as refused:
        await _search({"broker-a": LogOfMessages([]), "broker-b": LogOfMessages([])}).search(query)
    assert refused.value.kind is FailureKind.INVALID
    assert cause in refused.value.cause


@settings(max_examples=30, deadline=None)
@given(
    marks=st.lists(st.booleans(), max_size=400),
    limit=st.integers(1, 20),
    answer_max=st.integers(1, 60),
)
def test_a_text_finds_what_has_it_and_nothing_else(marks: list[bool], limit: int, answer_max: int) -> None:
    """Page by page, each once, no page over its limit."""
    log = TextLog(list(range(len(marks))), answer_max=answer_max, marks=marks)
    query = MessageQuery("t", text="CARD", limit=limit, body_bytes=4)
    pages = asyncio.run(_pages(_search({"a": log}), query))
    assert all(len(page.messages) <= limit for page in pages)
    found = [message.store_ms for page in pages for message in page.messages]
    assert found == [place for place in reversed(range(len(marks))) if marks[place]]
    assert all(message.body == b"Card" for page in pages for message in page.messages)


async def test_a_text_that_nothing_has_costs_so_many_looks_and_no_more() -> None:
    log = TextLog(list(range(5_000)), marks=[False] * 5_000)
    page = await _search({"a": log}).search(MessageQuery("t", text="card"))
    assert page.messages == []
    assert page.scanned == 2_000
    assert page.next_page_token
