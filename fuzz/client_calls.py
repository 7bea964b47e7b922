"""Calls of every method of the client API, from the request's bytes to the answer: no handler fails at any of them, and
where callers sign in no stranger's call gets to one.

    make fuzz ONLY=client_calls      # coverage-guided, by atheris: build/fuzz.json
    python -m fuzz.client_calls      # a few hundred cases of one seed, without atheris

An input is a program: who calls, then methods and the fields of their requests. A third of all calls are strangers' at
a broker that asks for signatures, with whatever headers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from fuzz.encoded_message import encoded_message
from fuzz.source import Source, any_bytes, run_all
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from tandemmq.broker.access_changes import AccessChanges
from tandemmq.broker.client_api.access import ClientAccess, SignatureZones
from tandemmq.broker.client_api.client_api import ClientApi
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.core.access.sealed_secrets import SecretKeys
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import BidiMethod, StatusCode

INPUT_BYTES_MAX: Final = 400
_CALLS_MAX: Final = 8
_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY", "MIXED")
_AUTHORIZATION: Final = "MQv2-HMAC-SHA1 Credential=ann, SignedHeaders=x-mq-date-time, Signature="
_KEYS: Final = SecretKeys([b"k" * 32])
_STRANGERS_ARE_TOLD: Final = (definition.UNAUTHORIZED, definition.CLIENT_ID_REQUIRED)


def run_one(data: bytes) -> None:
    """One input. AssertionError, or whatever escapes, is a finding."""
    # Some handlers make tasks.
    asyncio.run(_run(Source(data)))


async def _run(source: Source) -> None:
    time = ManualTime()
    broker = BrokerAssembly(clock=time, timers=time)
    is_guarded = source.below(3) == 0
    access = _access(time) if is_guarded else None
    source_of = None if access is None else access.sources.source
    broker.api = ClientApi(broker, None, access, source_of=source_of)
    # "orders" is what requests name most.
    broker.add_topic("orders", message_type=_TYPES[source.below(len(_TYPES))])
    methods = broker.api.method_table().methods
    names = sorted(methods)
    stored_before = broker.store.end_offset
    streams: list[Any] = []
    for _ in range(_CALLS_MAX):
        if source.is_empty:
            break
        name = names[source.below(len(names))]
        method: Any = methods[name]
        fake = FakeCall(metadata=dict(_headers(source, is_guarded)))
        request_type: Any = pb.TelemetryCommand if name == "Telemetry" else getattr(pb, f"{name}Request")
        fake.response_type = pb.TelemetryCommand if name == "Telemetry" else getattr(pb, f"{name}Response")
        try:
            request = method.request_type.FromString(encoded_message(source, request_type))
        except DecodeError:
            continue
        if isinstance(method, BidiMethod):
            stream: Any = method.handler(fake)
            streams.append(stream)
            stream.message(request)
            if source.byte() & 1:
                stream.half_closed() if source.byte() & 1 else stream.cancelled()
        else:
            method.handler(request, fake)
        await _let_pass(time, source.below(5_000))
        if is_guarded:
            _check_refused(name, fake)
    if is_guarded:
        await _let_pass(time, 3_000)
        assert broker.store.end_offset == stored_before, "a stranger's message was stored"
        assert len(broker.sessions) == 0, "a stranger has a session"
    broker.api.housekeep()
    broker.api.drain()
    await _let_pass(time, 1_000)
    broker.store.close()


async def _let_pass(time: ManualTime, duration_ms: int) -> None:
    for _ in range(3):
        await asyncio.sleep(0)
    time.end_turn()
    time.advance(duration_ms)
    time.end_turn()


def _access(time: ManualTime) -> ClientAccess:
    tables = MetadataTables(SimulatedDisk(random.Random(1)), time, topics_changed=lambda: None)
    AccessChanges(tables, keys=_KEYS, clock=time).put_user("ann", secret="a secret that no input has")
    return ClientAccess(
        users=tables.users,
        acls=tables.acls,
        keys=_KEYS,
        authorizes=False,
        zones=SignatureZones((0,), with_local=False),
        clock=time,
        timers=time,
        revoked=lambda: None,
    )


def _headers(source: Source, is_guarded: bool) -> Mapping[str, str]:
    headers = {} if source.below(16) == 0 else {"x-mq-client-id": f"client@{source.below(3)}"}
    if not is_guarded:
        return headers
    kind = source.below(4)
    if kind == 1:
        headers["authorization"] = source.some(source.below(60)).decode("latin-1")
    elif kind:
        headers["authorization"] = _AUTHORIZATION + source.some(source.below(21)).hex()
    headers["x-mq-date-time"] = "20231114T221320Z" if kind == 3 else source.some(source.below(20)).decode("latin-1")
    if source.below(4) == 0:
        headers["x-tandemmq-caller"] = source.some(source.below(40)).decode("latin-1")
    return headers


def _check_refused(name: str, fake: FakeCall) -> None:
    """A stranger's call, unless its answer is still held back."""
    for answer in fake.sent:
        status: Any = getattr(answer, "status", None)
        assert isinstance(answer, Message)
        assert status is not None, name
        assert status.code in _STRANGERS_ARE_TOLD, (name, status)
    assert fake.code in (None, StatusCode.OK, StatusCode.UNAUTHENTICATED), (name, fake.code)


def seeds(count: int, *, seed: int = 7) -> Iterator[bytes]:
    """Inputs to begin with."""
    yield from any_bytes(count, seed=seed, bytes_max=INPUT_BYTES_MAX)


if __name__ == "__main__":
    run_all(run_one, seeds(500))
