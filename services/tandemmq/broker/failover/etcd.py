"""A group's record in etcd v3: one key, replaced by a transaction that compares its mod_revision.

A read is linearizable, and asks the next endpoint when one does not answer. A swap is sent once, to the endpoint that
has just answered a read: sent again it could find its own first copy, and call a swap lost that was applied.

With `EtcdTls` calls are encrypted. Its files are looked at before each call, and channels are made anew once they are
others: a renewed certificate needs no restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc

from tandemmq.broker.failover.authority import CALL_LIMIT_S, AuthorityUnavailable, EtcdTls, Held, SwapLost
from tandemmq.core.replication.group_record import GroupRecord, RecordUnreadable
from tandemmq.proto.etcdserverpb import kv_pb2 as pb
from tandemmq.proto.etcdserverpb import kv_pb2_grpc
from tandemmq.service.certificates import FileMarks
from tandemmq.service.rpc import cancellation_wins

__all__ = ["EtcdAuthority"]

_CHANNEL_OPTIONS: Final = (
    # gRPC must not send a swap twice either.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # Without calls as well etcd allows a ping each 5 s.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.enable_http_proxy", 0),
    # Two authorities of one process share no connection: each has its own view of who is away.
    ("grpc.use_local_subchannel_pool", 1),
)
# Of a swap's second, for finding the endpoint that it is sent to.
_SEARCH_LIMIT_S: Final = CALL_LIMIT_S / 2


class EtcdAuthority:
    """One key. Its version is its mod_revision, in decimal. `tls` None: calls are plain."""

    def __init__(self, endpoints: Sequence[str], key: str, *, tls: EtcdTls | None = None) -> None:
        self._endpoints = tuple(endpoints)
        self._key = key
        self._tls = tls
        self._marks: FileMarks = ()
        self._credentials: grpc.ChannelCredentials | None = None
        # Who answered last is asked first.
        self._first = 0
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def read(self) -> Held | None:
        """See `Authority`."""
        return _held(self._key, await self._range(CALL_LIMIT_S))

    async def swap(self, before: Held | None, record: GroupRecord) -> Held:
        """See `Authority`."""
        deadline_s = asyncio.get_running_loop().time() + CALL_LIMIT_S
        # The read looks at the certificates: the swap goes where it went, by the same channel.
        revision = int(before.version) if before is not None else 0
        found = await self._range(_SEARCH_LIMIT_S)
        if _revision(found) != revision:
            raise SwapLost(f"{self._key} in etcd is another version")
        key = self._key.encode()
        put = pb.PutRequest(key=key, value=record.to_text().encode())
        request = pb.TxnRequest(
            compare=[pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key, mod_revision=revision)],
            success=[pb.RequestOp(request_put=put)],
        )
        chosen = self._first
        try:
            with cancellation_wins():
                left_s = deadline_s - asyncio.get_running_loop().time()
                answer = await self._stub(self._endpoints[chosen]).Txn(request, timeout=left_s)
        except grpc.aio.AioRpcError as error:
            self._first = (chosen + 1) % len(self._endpoints)
            raise AuthorityUnavailable(
                f"etcd, {self._endpoints[chosen]} ({_reason(error)}): whether the swap was applied is not known"
            ) from error
        if not answer.succeeded:
            raise SwapLost(f"{self._key} in etcd is another version")
        return Held(record, str(answer.header.revision))

    async def close(self) -> None:
        """See `Authority`."""
        for channel in self._channels.values():
            await channel.close(grace=None)
        self._channels.clear()

    async def _range(self, limit_s: float) -> pb.RangeResponse:
        """From the first endpoint that answers, which is `self._first` then. AuthorityUnavailable: none within the
        limit."""
        await self._renew_credentials()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        request = pb.RangeRequest(key=self._key.encode())
        count, first, failures = len(self._endpoints), self._first, list[str]()
        for tried in range(count):
            endpoint = self._endpoints[(first + tried) % count]
            # Those behind it need their share of what is left.
            share_s = (deadline_s - loop.time()) / (count - tried)
            try:
                with cancellation_wins():
                    answer: pb.RangeResponse = await self._stub(endpoint).Range(request, timeout=share_s)
            except grpc.aio.AioRpcError as error:
                failures.append(f"{endpoint} ({_reason(error)})")
                continue
            self._first = (first + tried) % count
            return answer
        raise AuthorityUnavailable(f"failoverAuthority: no endpoint of etcd answers: {', '.join(failures)}")

    async def _renew_credentials(self) -> None:
        """Channels with other files than there are now make way. Those in use stay while the files cannot be read."""
        if self._tls is None:
            return
        try:
            marks = self._tls.marks()
            if marks == self._marks:
                return
            ca, cert, key = (Path(path).read_bytes() if path else None for path in self._tls.paths)
        except OSError as error:
            if self._credentials is not None:
                return
            raise AuthorityUnavailable(
                f"failoverAuthority: {error.filename} cannot be read ({error.strerror}); it is named by "
                "failoverAuthorityCaPath, failoverAuthorityCertPath or failoverAuthorityKeyPath"
            ) from error
        await self.close()
        self._marks, self._credentials = marks, grpc.ssl_channel_credentials(ca, key, cert)

    def _stub(self, endpoint: str) -> kv_pb2_grpc.KVStub:
        """Made at the first call, which is on the event loop."""
        channel = self._channels.get(endpoint)
        if channel is None:
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(endpoint, options=_CHANNEL_OPTIONS)
            else:
                channel = grpc.aio.secure_channel(endpoint, self._credentials, options=_CHANNEL_OPTIONS)
            self._channels[endpoint] = channel
        return kv_pb2_grpc.KVStub(channel)


def _revision(found: pb.RangeResponse) -> int:
    return found.kvs[0].mod_revision if found.kvs else 0


def _held(key: str, found: pb.RangeResponse) -> Held | None:
    if not found.kvs:
        return None
    try:
        record = GroupRecord.from_text(found.kvs[0].value.decode())
    except (RecordUnreadable, UnicodeDecodeError) as error:
        raise AuthorityUnavailable(
            f"failoverAuthority: the value of {key} in etcd cannot be read ({error}); choose another PREFIX, or delete "
            "the key while all members of the group are stopped"
        ) from error
    return Held(record, str(_revision(found)))


def _reason(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {' '.join((error.details() or '').split())[:200]}"
