"""Another member's log, read for a repair through its ReplicaReaderService: threads and a rate limit stand between a
repair and that member's clients. Nobody can name an address: a member is dialled where its registration says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Final

import grpc
from tandemmq.broker.v1 import replica_reader_service_pb2 as pb
from tandemmq.broker.v1 import replica_reader_service_pb2_grpc

from broker.api.peer_client import CALL_TIMEOUT_S, CHANNEL_OPTIONS
from broker.audit.repair_errors import Refusal, RepairRefused
from mqcore.replication import LogRange
from mqcore.routing import BrokerIdentity
from mqservice.cancellation import cancellation_wins

__all__ = ["SourceLog"]

_CALL_BYTES_MAX: Final = 64 << 20
_SLOWEST_BYTES_PER_SECOND: Final = 64 << 10
"""A source that reads more slowly than this is as good as none."""


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
