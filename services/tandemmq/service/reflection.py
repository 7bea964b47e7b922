"""gRPC server reflection (v1alpha) as a method table: grpcio's own answers, for fronts that are not grpcio's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha import reflection_pb2 as pb

from tandemmq.service.rpc import BidiMethod, Call, MethodTable

__all__ = ["reflection_table"]


def reflection_table(service_names: Sequence[str]) -> MethodTable:
    """Describes the services to tools such as grpcurl and ghz."""
    servicer = reflection.ReflectionServicer([*service_names, reflection.SERVICE_NAME])
    return MethodTable(
        reflection.SERVICE_NAME,
        {"ServerReflectionInfo": BidiMethod(lambda call: _Reflection(servicer, call), pb.ServerReflectionRequest)},
    )


class _Reflection:
    """One stream of questions; each is answered at once."""

    def __init__(self, servicer: Any, call: Call) -> None:
        self._servicer = servicer
        self._call = call

    def message(self, message: pb.ServerReflectionRequest, /) -> None:
        for answer in self._servicer.ServerReflectionInfo(iter((message,)), None):
            self._call.send(answer)

    def half_closed(self) -> None:
        self._call.finish()

    def cancelled(self) -> None:
        """Nothing is kept."""
