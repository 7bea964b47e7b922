"""What a port tells of itself, as method tables for fronts that are not grpcio's: its health, and its services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from grpc_health.v1 import health_pb2 as pb
from grpc_reflection.v1alpha import reflection, reflection_pb2

from tandemmq.service.rpc import BidiMethod, Call, MethodTable, ServerStreamMethod, StatusCode, UnaryMethod

__all__ = ["HealthService", "reflection_table"]


_HEALTH: Final = "grpc.health.v1.Health"
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
            _HEALTH,
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


# gRPC server reflection (v1alpha): grpcio's own answers.


def reflection_table(service_names: Sequence[str]) -> MethodTable:
    """Describes the services to tools such as grpcurl and ghz."""
    servicer = reflection.ReflectionServicer([*service_names, reflection.SERVICE_NAME])
    return MethodTable(
        reflection.SERVICE_NAME,
        {
            "ServerReflectionInfo": BidiMethod(
                lambda call: _Reflection(servicer, call), reflection_pb2.ServerReflectionRequest
            )
        },
    )


class _Reflection:
    """One stream of questions; each is answered at once."""

    def __init__(self, servicer: Any, call: Call) -> None:
        self._servicer = servicer
        self._call = call

    def message(self, message: reflection_pb2.ServerReflectionRequest, /) -> None:
        for answer in self._servicer.ServerReflectionInfo(iter((message,)), None):
            self._call.send(answer)

    def half_closed(self) -> None:
        self._call.finish()

    def cancelled(self) -> None:
        """Nothing is kept."""
