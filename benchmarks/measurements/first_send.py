"""How long after its processes began a system accepts its first message."""

from __future__ import annotations

import time
import uuid
from typing import Final

import grpc

from load_generators import BODY_BYTES
from processes import MeasurementFailed
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service

PAUSE_S: Final = 0.02
TRY_LIMIT_S: Final = 3.0
RECONNECT_MS: Final = 20
SEND: Final = "/apache.rocketmq.v2.MessagingService/SendMessage"


def _request(topic: str) -> bytes:
    message = definition.Message(
        topic=definition.Resource(name=topic),
        body=b"x" * BODY_BYTES,
        system_properties=definition.SystemProperties(
            message_id=f"01{uuid.uuid4().hex.upper()}",
            message_type=definition.NORMAL,
            body_encoding=definition.IDENTITY,
            born_host="bench",
        ),
    )
    message.system_properties.born_timestamp.GetCurrentTime()
    return service.SendMessageRequest(messages=[message]).SerializeToString()


def wait_first_send(endpoint: str, topic: str, *, limit_s: float) -> float:
    """Sends again and again until one is acknowledged; the value of time.perf_counter() at that moment.

    Whatever a starting server answers, or that it does not, is a reason to try again. MeasurementFailed at the limit.
    """
    metadata = (("x-mq-client-id", f"bench@{uuid.uuid4()}"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"))
    options = [("grpc.initial_reconnect_backoff_ms", RECONNECT_MS), ("grpc.max_reconnect_backoff_ms", RECONNECT_MS)]
    deadline = time.monotonic() + limit_s
    last = "nothing"
    with grpc.insecure_channel(
        endpoint, options=[*options, ("grpc.min_reconnect_backoff_ms", RECONNECT_MS)]
    ) as channel:
        call = channel.unary_unary(
            SEND, request_serializer=bytes, response_deserializer=service.SendMessageResponse.FromString
        )
        while time.monotonic() < deadline:
            try:
                answer = call(_request(topic), metadata=metadata, timeout=TRY_LIMIT_S)
            except grpc.RpcError as error:
                last = str(error)
            else:
                if answer.status.code == definition.OK:
                    return time.perf_counter()
                last = str(answer.status)
            time.sleep(PAUSE_S)
    raise MeasurementFailed(f"{endpoint} accepted no send within {limit_s:g} s; it said last: {last}")
