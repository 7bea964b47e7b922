"""ClusterService: the newest reading of the cluster, once or as a stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tandemmq.admin.v1 import cluster_service_pb2 as pb

from admin.api.access import Access, Refusal, request_of
from admin.api.cluster_messages import cluster_message
from admin.cluster_cache import CachedCluster, ClusterReading
from mqcore.clock import Clock
from mqgrpc.stream import Stream
from mqservice.rpc import (
    BidiMethod,
    Call,
    MethodTable,
    ServerStreamMethod,
    StatusCode,
    StreamHandler,
    UnaryMethod,
)

__all__ = ["ClusterServicer", "guarded"]

_SERVICE_NAME: Final = "tandemmq.admin.v1.ClusterService"
# Every watch costs an encoding of the whole cluster for each reading.
_WATCHES_MAX: Final = 100


class ClusterServicer:
    """Answers from the cache; never asks the cluster."""

    def __init__(self, cluster: CachedCluster, *, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._watches: dict[Call, Callable[[], None]] = {}

    def method_table(self) -> MethodTable:
        """Both methods."""
        return MethodTable(
            _SERVICE_NAME,
            {
                "GetClusterState": UnaryMethod(self._get, pb.GetClusterStateRequest),
                "WatchClusterState": ServerStreamMethod(self._watch, pb.WatchClusterStateRequest),
            },
            otherwise=f"{_SERVICE_NAME} has GetClusterState and WatchClusterState; topics and groups are asked for at "
            "the brokers' metadata ports",
        )

    def end_watches(self) -> None:
        """Ends every watch: the service stops."""
        watches, self._watches = self._watches, {}
        for call, forget in watches.items():
            forget()
            call.finish(StatusCode.UNAVAILABLE, "the admin service is stopping")

    def _get(self, request: pb.GetClusterStateRequest, call: Call) -> None:
        reading = self._cluster.latest
        if reading is None:
            call.finish(StatusCode.UNAVAILABLE, "the cluster has not been read yet; try again in a second")
            return
        call.send(pb.GetClusterStateResponse(state=cluster_message(reading, now_ms=self._clock.monotonic_ms())))
        call.finish()

    def _watch(self, request: pb.WatchClusterStateRequest, call: Call) -> None:
        if len(self._watches) >= _WATCHES_MAX:
            call.finish(StatusCode.RESOURCE_EXHAUSTED, f"{_WATCHES_MAX} watch already; poll GetClusterState instead")
            return
        self._watches[call] = self._cluster.on_reading(lambda reading: self._send(reading, call))
        call.on_cancel(lambda: self._forget(call))
        if self._cluster.latest is not None:
            self._send(self._cluster.latest, call)

    def _send(self, reading: ClusterReading, call: Call) -> None:
        if isinstance(call, Stream) and call.queued_bytes:
            # It still has one to read; it gets the newest when it has caught up, and none of those between.
            return
        call.send(pb.WatchClusterStateResponse(state=cluster_message(reading, now_ms=self._clock.monotonic_ms())))

    def _forget(self, call: Call) -> None:
        forget = self._watches.pop(call, None)
        if forget is not None:
            forget()


def guarded(table: MethodTable, access: Access, *, is_monitoring: bool = True) -> MethodTable:
    """The same methods, for callers that may read; `is_monitoring`: for all while no token is set."""

    def refusal(call: Call) -> Refusal | None:
        actor = access.actor_of(request_of(call, monitoring=is_monitoring))
        return actor if isinstance(actor, Refusal) else None

    def guarded_handler(handler: Callable[[Any, Call], None]) -> Callable[[Any, Call], None]:
        def handle(request: Any, call: Call) -> None:
            reason = refusal(call)
            if reason is None:
                handler(request, call)
            else:
                call.finish(StatusCode.UNAUTHENTICATED, reason.value)

        return handle

    def guarded_stream(handler: Callable[[Call], StreamHandler[Any]]) -> Callable[[Call], StreamHandler[Any]]:
        def handle(call: Call) -> StreamHandler[Any]:
            reason = refusal(call)
            if reason is None:
                return handler(call)
            call.finish(StatusCode.UNAUTHENTICATED, reason.value)
            return _Refused()

        return handle

    methods: dict[str, Any] = {}
    for name, method in table.methods.items():
        if isinstance(method, BidiMethod):
            methods[name] = replace(method, handler=guarded_stream(method.handler))
        else:
            methods[name] = replace(method, handler=guarded_handler(method.handler))
    return replace(table, methods=methods)


class _Refused:
    """A stream that has been answered already."""

    def message(self, message: Any, /) -> None:
        """Nobody listens."""

    def half_closed(self) -> None:
        """The call is finished."""

    def cancelled(self) -> None:
        """Nothing is kept."""
