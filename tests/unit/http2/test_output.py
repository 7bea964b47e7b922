"""What is to be written, and whom to tell if it was not."""

from __future__ import annotations

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
        output.confirm(stream)
        output.take()
    output.put(b"12345")
    output.confirm(third)
    output.take()
    output.put(b"never taken")
    output.confirm(fourth)
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
    output.confirm(first)
    output.put(b"12345")
    output.confirm(second)
    output.take()
    output.written(1)
    assert output.lost() == [first, second]
