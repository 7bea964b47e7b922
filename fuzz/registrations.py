"""Requests of whoever reaches a NameServer, of every method it has: each is answered or refused with a reason, and what
is registered by them can be told to others.

    make fuzz ONLY=registrations      # coverage-guided, by atheris: build/fuzz.json
    python -m fuzz.registrations      # some thousand cases of one seed, without atheris

An input is a program: methods, and the fields of their requests. Nobody knows the caller, as on a port without TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, NoReturn

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from fuzz.encoded_message import encoded_message
from fuzz.source import Source, any_bytes, run_all
from support.manual_time import ManualTime
from tandemmq.nameserver.name_server import NameServerServicer
from tandemmq.nameserver.route_registry import RouteRegistry
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as pb

INPUT_BYTES_MAX: Final = 500
_CALLS_MAX: Final = 8
_SERVICE: Final = pb.DESCRIPTOR.services_by_name["NameServerService"]
_REQUESTS: Final[dict[str, type[Message]]] = {
    method.name: getattr(pb, method.input_type.name)
    for method in _SERVICE.methods
    if method.name != "WatchRoutes"  # It is asked last, and never ends.
}
_EXPECTED: Final = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class _Refused(Exception):
    """The call was ended with a reason."""


class _Context:
    """A caller without a certificate."""

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def peer(self) -> str:
        return "ipv4:10.6.6.6:1"

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        assert code in _EXPECTED, (code, details)
        assert details
        raise _Refused


def run_one(data: bytes) -> None:
    """One input. AssertionError, or whatever escapes, is a finding."""
    asyncio.run(_run(Source(data)))


async def _run(source: Source) -> None:
    time = ManualTime()
    registry = RouteRegistry(clock=time, log=structlog.get_logger())
    servicer = NameServerServicer(registry)
    names = sorted(_REQUESTS)
    for _ in range(_CALLS_MAX):
        if source.is_empty:
            break
        # Registrations, mostly: they say the most.
        name = "RegisterBroker" if source.byte() & 1 else names[source.below(len(names))]
        try:
            request: Any = _REQUESTS[name].FromString(encoded_message(source, _REQUESTS[name]))
        except DecodeError:
            continue
        if name == "RegisterBroker" and source.byte() & 3:
            _mend(request)
        await _call(servicer, name, request)
        time.advance(source.below(5_000))
    snapshots: Any = servicer.WatchRoutes(pb.WatchRoutesRequest(), _Context())  # type: ignore[arg-type]
    snapshot: Message = await anext(snapshots)
    assert type(snapshot).FromString(snapshot.SerializeToString()) == snapshot
    await snapshots.aclose()


def _mend(request: Any) -> None:
    """What else would refuse nearly all registrations."""
    request.identity.cluster = request.identity.cluster or "DefaultCluster"
    request.identity.broker_name = request.identity.broker_name or "broker-a"
    request.identity.broker_id = abs(request.identity.broker_id) % 3
    request.endpoints.client = "10.6.6.6:8081"
    request.incarnation = request.incarnation % 1_000 + 1
    request.liveness_timeout.FromMilliseconds(10_000)


async def _call(servicer: NameServerServicer, name: str, request: Message) -> None:
    handler: Any = getattr(servicer, name)
    try:
        if name == "Heartbeat":
            async for answer in handler(_one(request), _Context()):
                answer.SerializeToString()
        else:
            (await handler(request, _Context())).SerializeToString()
    except _Refused:
        return


async def _one(request: Message) -> AsyncIterator[Message]:
    yield request


def seeds(count: int, *, seed: int = 9) -> Iterator[bytes]:
    """Inputs to begin with."""
    yield from any_bytes(count, seed=seed, bytes_max=INPUT_BYTES_MAX)


if __name__ == "__main__":
    run_all(run_one, seeds(3_000))
