"""The response of a stored send, put together from bytes, is the message protobuf would have built."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.client_api.send import _response, _stored_response
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

_ENTRIES = st.lists(st.tuples(st.text(max_size=300), st.integers(0, 2**63 - 1)), min_size=1, max_size=40)


@given(_ENTRIES)
def test_bytes_parse_to_the_built_message(entries: list[tuple[str, int]]) -> None:
    message_ids = [message_id for message_id, _ in entries]
    results = [AppendResult(PutStatus.PUT_OK, 0, 1, queue_offset, 0) for _, queue_offset in entries]

    encoded = _stored_response(message_ids, results)

    assert pb.SendMessageResponse.FromString(encoded) == _response(message_ids, results)
