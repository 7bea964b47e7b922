"""What went wrong while a replica was read or repaired, as a gRPC status: the one table of both services."""

from __future__ import annotations

from typing import Final

import grpc

from broker.audit.helper import HelperBusy, HelperGone, JobFailed
from broker.audit.jobs import JobFailure
from broker.audit.repair_errors import Refusal, RepairRefused
from broker.audit.store_files import PathRefused

__all__ = ["AUDIT_ERRORS", "status_of"]

AUDIT_ERRORS: Final = (PathRefused, HelperBusy, HelperGone, JobFailed, RepairRefused, OSError)

_FAILURES: Final = {
    JobFailure.GONE: grpc.StatusCode.OUT_OF_RANGE,
    JobFailure.UNREADABLE: grpc.StatusCode.INTERNAL,
    JobFailure.UNSOUND: grpc.StatusCode.FAILED_PRECONDITION,
}

_REFUSALS: Final = {
    Refusal.DISABLED: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Refusal.OUT_OF_RANGE: grpc.StatusCode.OUT_OF_RANGE,
    Refusal.NOT_AS_EXPECTED: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Refusal.BUSY: grpc.StatusCode.ABORTED,
    Refusal.LOG_CHANGED: grpc.StatusCode.ABORTED,
    Refusal.SOURCE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Refusal.SOURCE_UNSOUND: grpc.StatusCode.DATA_LOSS,
    Refusal.NO_ROOM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refusal.READ_BACK_DIFFERS: grpc.StatusCode.DATA_LOSS,
}


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Code and message; retryable are RESOURCE_EXHAUSTED and UNAVAILABLE."""
    if isinstance(error, JobFailed):
        return _FAILURES[error.failure], str(error)
    if isinstance(error, RepairRefused):
        return _REFUSALS[error.refusal], str(error)
    if isinstance(error, PathRefused):
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, HelperBusy):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
    if isinstance(error, HelperGone):
        return grpc.StatusCode.UNAVAILABLE, str(error)
    return grpc.StatusCode.INTERNAL, f"the disk refuses: {error}"
