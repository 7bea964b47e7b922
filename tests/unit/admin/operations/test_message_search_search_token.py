"""Page tokens of a search: what goes in comes out, and what anybody else made is refused in words."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.admin.operations.message_search import Standing, standings_of, token_of
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import MessageQuery

QUERY = MessageQuery("orders", key="k", tags=["paid"])

_STANDINGS = st.dictionaries(
    st.text(min_size=1, max_size=9),
    st.builds(Standing, st.binary(max_size=20), st.integers(-1, 1 << 62), st.integers(-1, 1 << 62)),
    max_size=4,
)


@settings(deadline=None)
@given(_STANDINGS)
def test_a_token_says_where_each_broker_goes_on(standings: dict[str, Standing]) -> None:
    token = token_of(QUERY, standings)
    assert standings_of(replace(QUERY, page_token=token, limit=7, body_bytes=9)) == (standings or None)


@pytest.mark.parametrize("changed", [{"topic": "other"}, {"key": ""}, {"tags": ()}, {"start_ms": 5}])
def test_a_token_of_another_search_is_refused(changed: dict[str, object]) -> None:
    token = token_of(QUERY, {"broker-a": Standing()})
    with pytest.raises(OperationFailed) as refused:
        standings_of(replace(QUERY, page_token=token, **changed))  # type: ignore[arg-type]
    assert refused.value.cause == "it belongs to another search"


@settings(deadline=None)
@given(st.one_of(st.text(min_size=1), st.binary(min_size=1).map(lambda raw: base64.urlsafe_b64encode(raw).decode())))
def test_a_token_that_is_none_is_refused(token: str) -> None:
    with pytest.raises(OperationFailed) as refused:
        standings_of(replace(QUERY, page_token=token))
    assert refused.value.kind is FailureKind.INVALID


@pytest.mark.parametrize(
    "brokers",
    ['{"a":["",1]}', '{"a":["",1.5,2]}', '{"a":["",true,2]}', '{"a":["",-2,2]}', '{"a":["%",1,2]}', "[]", '{"a":[]}'],
)
def test_a_token_with_wrong_numbers_is_refused(brokers: str) -> None:
    mark = base64.urlsafe_b64decode(token_of(QUERY, {"a": Standing()}) + "==").decode().partition('"b"')[0]
    token = base64.urlsafe_b64encode(f'{mark}"b":{brokers}}}'.encode()).decode()
    with pytest.raises(OperationFailed, match="page token"):
        standings_of(replace(QUERY, page_token=token))


def test_a_token_without_end_is_refused() -> None:
    with pytest.raises(OperationFailed) as refused:
        standings_of(replace(QUERY, page_token="A" * (1 << 20)))
    assert refused.value.cause == "it is too long"
