"""What went wrong while a replica was read or repaired, as a gRPC status: the one table of both services."""

from __future__ import annotations

from typing import Final

import grpc

from broker.audit.helper import HelperBusy, HelperGone, JobFailed
from broker.audit.jobs import JobFailure
from broker.audit.store_files import PathRefused

__all__ = ["AUDIT_ERRORS", "status_of"]

AUDIT_ERRORS: Final = (PathRefused, HelperBusy, HelperGone, JobFailed, OSError)

_FAILURES: Final = {
    JobFailure.GONE: grpc.StatusCode.OUT_OF_RANGE,
    JobFailure.UNREADABLE: grpc.StatusCode.INTERNAL,
    JobFailure.UNSOUND: grpc.StatusCode.FAILED_PRECONDITION,
}


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Code and message; retryable are RESOURCE_EXHAUSTED and UNAVAILABLE."""
    if isinstance(error, JobFailed):
        return _FAILURES[error.failure], str(error)
    if isinstance(error, PathRefused):
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, HelperBusy):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
    if isinstance(error, HelperGone):
        return grpc.StatusCode.UNAVAILABLE, str(error)
    return grpc.StatusCode.INTERNAL, f"the disk refuses: {error}"
