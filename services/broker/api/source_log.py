"""Another member's log, read for a repair through its ReplicaReaderService: threads and a rate limit stand between a
repair and that member's clients. Nobody can name an address: a member is dialled where its registration says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

import grpc
from tandemmq.broker.v1 import replica_reader_service_pb2 as pb
from tandemmq.broker.v1 import replica_reader_service_pb2_grpc

from broker.api.peer_client import CALL_TIMEOUT_S, CHANNEL_OPTIONS, PeerClient, PeerUnavailable
from broker.audit.repair_errors import Refusal, RepairRefused
from mqcore.replication.log_history import LogRange
from mqcore.routing.values import BrokerIdentity
from mqservice.cancellation import cancellation_wins

__all__ = ["MemberLogs", "SourceLog"]

_CALL_BYTES_MAX: Final = 64 << 20
_PIECE_LIMIT_S: Final = 20.0
_SLOWEST_BYTES_PER_SECOND: Final = 64 << 10
"""A source that reads more slowly than this is as good as none."""


class MemberLogs:
    """A part of the log as whichever other member holds it. `endpoints` are their metadata planes. Event loop only."""

    def __init__(self, endpoints: Callable[[], Sequence[str]], *, are_expected: bool) -> None:
        """`are_expected`: the group has other members, registered or not."""
        self._endpoints = endpoints
        self._are_expected = are_expected

    async def read(self, wanted: LogRange) -> bytes | None:
        """Bytes from the start of the range on, perhaps fewer; None: there is no other member. ConnectionError: none
        of them gave any, now."""
        endpoints = self._endpoints()
        if not endpoints and not self._are_expected:
            return None
        reason = "no other member of this group is registered"
        for endpoint in endpoints:
            try:
                async with asyncio.timeout(_PIECE_LIMIT_S), PeerClient(endpoint) as peer:
                    extent = (await peer.log()).extent
                    held = LogRange(wanted.start_offset, min(wanted.end_offset, extent.end_offset))
                    if extent.min_offset <= held.start_offset < held.end_offset:
                        return b"".join([piece async for _, piece in peer.read_log(held)])
                    reason = f"{endpoint} holds [{extent.min_offset}, {extent.end_offset})"
            except (PeerUnavailable, TimeoutError) as error:
                reason = str(error) or f"{endpoint} took longer than {_PIECE_LIMIT_S} s"
        raise ConnectionError(f"[{wanted.start_offset}, {wanted.end_offset}) from another member: {reason}")


class SourceLog:
    """Reads from members of `identity`'s group. `endpoint` knows their metadata planes by broker id, None if it does
    not. Event loop only."""

    def __init__(self, identity: BrokerIdentity, *, endpoint: Callable[[int], str | None]) -> None:
        self._identity = identity
        self._endpoint = endpoint

    async def read(self, source_broker_id: int, wanted: LogRange) -> AsyncGenerator[bytes, None]:
        """See SourceReader."""
        endpoint = self._endpoint(source_broker_id) if source_broker_id != self._identity.broker_id else None
        name = f"broker {self._identity.broker_name}:{source_broker_id}"
        if endpoint is None:
            raise RepairRefused(
                Refusal.NOT_AS_EXPECTED, f"{name} is no other member of this group that is registered now; start it"
            )
        async with grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS) as channel:
            stub = replica_reader_service_pb2_grpc.ReplicaReaderServiceStub(channel)
            try:
                with cancellation_wins():
                    source = await stub.DescribeReplica(pb.DescribeReplicaRequest(), timeout=CALL_TIMEOUT_S)
                    self._check(source, source_broker_id, wanted)
                    offset = wanted.start_offset
                    while offset < wanted.end_offset:
                        within = offset % source.segment_bytes
                        length = min(wanted.end_offset - offset, source.segment_bytes - within, _CALL_BYTES_MAX)
                        request = pb.ReadFileRequest(
                            path=f"commitlog/{offset - within:020d}", offset=within, length_bytes=length
                        )
                        call_end = offset + length
                        async for piece in stub.ReadFile(
                            request, timeout=CALL_TIMEOUT_S + length / _SLOWEST_BYTES_PER_SECOND
                        ):
                            offset += len(piece.data)
                            yield piece.data
                        if offset != call_end:
                            raise RepairRefused(Refusal.SOURCE_UNAVAILABLE, f"{name} holds nothing at {offset}")
            except grpc.aio.AioRpcError as error:
                raise RepairRefused(
                    Refusal.SOURCE_UNAVAILABLE, f"{name}: {error.code().name} {error.details() or ''}".rstrip()
                ) from error

    def _check(self, source: pb.DescribeReplicaResponse, source_broker_id: int, wanted: LogRange) -> None:
        """An address may have been given to somebody else since it was registered."""
        found = BrokerIdentity(source.cluster, source.broker_name, source.broker_id)
        expected = BrokerIdentity(self._identity.cluster, self._identity.broker_name, source_broker_id)
        if found != expected:
            raise RepairRefused(
                Refusal.SOURCE_UNAVAILABLE, f"{expected} is registered where {found} answers; wait for its registration"
            )
        if not source.min_offset <= wanted.start_offset <= wanted.end_offset <= source.flushed_offset:
            raise RepairRefused(
                Refusal.NOT_AS_EXPECTED,
                f"broker {source_broker_id} holds [{source.min_offset}, {source.flushed_offset}), and not "
                f"[{wanted.start_offset}, {wanted.end_offset})",
            )
