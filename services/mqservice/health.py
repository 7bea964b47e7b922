"""gRPC's health service (grpc.health.v1) as a method table, for fronts that are not grpcio's."""

from __future__ import annotations

from typing import Final

from grpc_health.v1 import health_pb2 as pb

from mqservice.rpc import Call, MethodTable, ServerStreamMethod, StatusCode, UnaryMethod

__all__ = ["HealthService"]

_SERVICE_NAME: Final = "grpc.health.v1.Health"
_WATCHES_MAX: Final = 1_000


class HealthService:
    """The empty name and each added service answer NOT_SERVING until `set_serving(True)`."""

    def __init__(self) -> None:
        self._names: set[str] = {""}
        self._status = pb.HealthCheckResponse.NOT_SERVING
        self._watches: dict[Call, str] = {}

    def method_table(self) -> MethodTable:
        """Check and Watch."""
        return MethodTable(
            _SERVICE_NAME,
            {
                "Check": UnaryMethod(self._check, pb.HealthCheckRequest),
                "Watch": ServerStreamMethod(self._watch, pb.HealthCheckRequest),
            },
        )

    def add(self, service_name: str) -> None:
        """Another service whose health may be asked for."""
        self._names.add(service_name)

    def set_serving(self, is_serving: bool) -> None:
        """Readiness; watchers are told when it changes."""
        status = pb.HealthCheckResponse.SERVING if is_serving else pb.HealthCheckResponse.NOT_SERVING
        if status == self._status:
            return
        self._status = status
        for call, name in list(self._watches.items()):
            if name in self._names:
                call.send(pb.HealthCheckResponse(status=status))

    def end_watches(self) -> None:
        """Ends every watch: the server stops."""
        watches, self._watches = self._watches, {}
        for call in watches:
            call.finish(StatusCode.UNAVAILABLE, "the server is stopping")

    def _check(self, request: pb.HealthCheckRequest, call: Call) -> None:
        if request.service not in self._names:
            call.finish(StatusCode.NOT_FOUND, f"no service {request.service!r} here")
            return
        call.send(pb.HealthCheckResponse(status=self._status))
        call.finish()

    def _watch(self, request: pb.HealthCheckRequest, call: Call) -> None:
        if len(self._watches) >= _WATCHES_MAX:
            call.finish(StatusCode.RESOURCE_EXHAUSTED, f"more than {_WATCHES_MAX} watches")
            return
        known = request.service in self._names
        self._watches[call] = request.service
        call.on_cancel(lambda: self._forget(call))
        call.send(pb.HealthCheckResponse(status=self._status if known else pb.HealthCheckResponse.SERVICE_UNKNOWN))

    def _forget(self, call: Call) -> None:
        self._watches.pop(call, None)
