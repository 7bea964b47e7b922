"""What is to be written, and whom to tell if it was not."""

from __future__ import annotations

from functools import partial

from support.http2_peer import ServerRig, open_request
from tandemmq.http2.output import Output
from tandemmq.http2.stream import Stream


def streams(count: int) -> list[Stream]:
    rig = ServerRig()
    rig.receive(*(open_request(2 * number + 1) for number in range(count)))
    return list(rig.calls.values())


class Told:
    """An output that notes whom it told."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.output = Output(lambda: self.names.append("now"), lambda: self.names.append("may wait"))


def test_the_owner_is_told_once_until_it_takes() -> None:
    told = Told()
    told.output.put(b"a")
    told.output.put(memoryview(b"b"))
    assert told.output.take() == b"ab"
    assert told.names == ["now"]
    assert told.output.take() == b""
    told.output.put(memoryview(b"c"))
    assert told.names == ["now", "now"]
    taken = told.output.take()
    assert (taken, type(taken)) == (b"c", bytes)


def test_what_may_wait_is_taken_with_what_may_not() -> None:
    told = Told()
    told.output.put_waiting(b"a")
    told.output.put_waiting(b"b")
    assert told.names == ["may wait"]
    told.output.put(b"c")
    told.output.put_waiting(b"d")
    assert told.names == ["may wait", "now"]
    assert told.output.take() == b"abcd"


def test_calls_whose_end_was_written_are_delivered_and_others_are_not() -> None:
    first, second, third, fourth = streams(4)
    output = Told().output
    for stream in (first, second):
        output.put(b"12345")
        output.confirm(stream, 0.0)
        output.take()
    output.put(b"12345")
    output.confirm(third, 0.0)
    output.take()
    output.put(b"never taken")
    output.confirm(fourth, 0.0)
    output.written(10)
    # Of the second's five bytes one is missing.
    output.written(6)
    assert output.lost() == [second, third, fourth]
    assert output.lost() == []
    assert output.take() == b""


def test_calls_that_end_in_one_write_are_delivered_together() -> None:
    first, second = streams(2)
    output = Told().output
    output.put(b"12345")
    output.confirm(first, 0.0)
    output.put(b"12345")
    output.confirm(second, 0.0)
    output.take()
    output.written(1)
    assert output.lost() == [first, second]


def test_what_may_not_have_been_read_is_known_until_the_peer_is_heard_half_a_minute_later() -> None:
    told: list[int] = []
    output = Told().output
    for number, stream in enumerate(streams(4)):
        if stream.stream_id != 3:
            stream.unread = partial(told.append, stream.stream_id)
        output.confirm(stream, 20.0 * number)
    output.take()
    output.written(0)
    assert output.take_unread(1) is None, "read long ago"
    assert output.take_unread(3) is None, "nobody wants to hear of it"
    for callback in output.take_all_unread(60.0):
        callback()
    assert told == [5, 7]
    assert output.take_all_unread(60.0) == []


def test_of_answers_that_may_not_have_been_read_a_bounded_number_is_known() -> None:
    output = Told().output
    (stream,) = streams(1)
    stream.unread = lambda: None
    for number in range(2_000):
        stream.stream_id = number
        output.confirm(stream, 0.0)
    assert output.take_unread(999) is None
    assert len(output.take_all_unread(0.0)) == 1_000
