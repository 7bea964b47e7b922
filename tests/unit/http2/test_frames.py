"""What a request's headers must be."""

from __future__ import annotations

import pytest

from support.http2_peer import GRPC_HEADERS, decoded
from tandemmq.http2.errors import StreamFailure
from tandemmq.http2.frames import RequestRefused, judge_values, shape_of, timeout_s


def judge(*more: tuple[str, str], without: str = "") -> None:
    replaced = {name for name, _ in more}
    headers = [field for field in GRPC_HEADERS if field[0] not in replaced and field[0] != without]
    headers = [field for field in more if field[0].startswith(":")] + headers
    headers += [field for field in more if not field[0].startswith(":")]
    request = decoded(headers)
    judge_values(request, shape_of(request))


@pytest.mark.parametrize(
    "content_type", ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"]
)
def test_takes_what_grpc_clients_send(content_type: str) -> None:
    judge(("content-type", content_type), ("user-agent", "grpc-java/1.60"), ("grpc-timeout", "3S"))


@pytest.mark.parametrize("name", [":method", ":scheme", ":path"])
def test_refuses_a_request_without_a_pseudo_header(name: str) -> None:
    with pytest.raises(StreamFailure):
        judge(without=name)


@pytest.mark.parametrize(
    "headers",
    [
        [*GRPC_HEADERS, (":path", "/again")],
        [(":path", "/again"), *GRPC_HEADERS],
        [*GRPC_HEADERS[1:], GRPC_HEADERS[0]],
        [(":status", "200"), *GRPC_HEADERS],
        [(":unknown", "1"), *GRPC_HEADERS],
        [*GRPC_HEADERS, ("connection", "close")],
        [*GRPC_HEADERS, ("transfer-encoding", "chunked")],
        [*GRPC_HEADERS, ("upgrade", "h2c")],
    ],
)
def test_refuses_names_that_make_no_request(headers: list[tuple[str, str]]) -> None:
    for _ in range(2):
        with pytest.raises(StreamFailure):
            shape_of(decoded(headers))


@pytest.mark.parametrize(
    "field",
    [
        ("te", "gzip"),
        (":path", ""),
        ("content-length", "-1"),
        ("content-length", "ten"),
        ("content-length", ""),
        # More digits than Python turns into a number.
        ("content-length", "9" * 5_000),
    ],
)
def test_refuses_values_that_make_no_request(field: tuple[str, str]) -> None:
    with pytest.raises(StreamFailure):
        judge(field)


@pytest.mark.parametrize(
    ("field", "status"),
    [
        ((":method", "GET"), 405),
        ((":method", "OPTIONS"), 405),
        (("content-type", "application/json"), 415),
        (("content-type", "application/grpc-web"), 415),
        (("content-type", ""), 415),
    ],
)
def test_answers_http_that_is_no_grpc_with_a_status_of_http(field: tuple[str, str], status: int) -> None:
    with pytest.raises(RequestRefused) as refused:
        judge(field)
    assert refused.value.http_status == status


def test_of_a_name_that_came_twice_the_last_counts() -> None:
    headers = decoded([*GRPC_HEADERS, ("x", "1"), ("x", "2")])
    assert headers[shape_of(headers).places["x"]].value == "2"


def test_knows_whether_there_is_a_traceparent() -> None:
    assert shape_of(decoded(GRPC_HEADERS)).traceparent < 0
    headers = decoded([*GRPC_HEADERS, ("traceparent", "00-1-2-01"), ("x", "1")])
    assert headers[shape_of(headers).traceparent].value == "00-1-2-01"


def test_is_not_filled_up_by_odd_sequences_of_names() -> None:
    for number in range(1_000):
        shape_of(decoded([*GRPC_HEADERS, (f"x-{number}", "")]))
        shape_of(decoded([*GRPC_HEADERS, *((f"x-{number}-{place}", "") for place in range(100))]))
    usual = shape_of(decoded(GRPC_HEADERS))
    assert shape_of(decoded(GRPC_HEADERS)) is usual


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1H", 3_600.0),
        ("2M", 120.0),
        ("3S", 3.0),
        ("2999m", 2.999),
        ("5u", 5e-6),
        ("99999999n", 0.099999999),
        ("0S", 0.0),
        ("", None),
        ("S", None),
        ("1", None),
        ("1s", None),
        ("-1S", None),
        ("1.5S", None),
        ("100000000S", None),
        ("1 S", None),
        ("+1S", None),
        ("1_0S", None),
    ],
)
def test_timeout(text: str, seconds: float | None) -> None:
    assert timeout_s(text) == (pytest.approx(seconds) if seconds is not None else None)
