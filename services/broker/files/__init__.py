"""The real disk below a broker's store."""

from __future__ import annotations

from broker.files.posix_disk import PosixDisk

__all__ = ["PosixDisk"]
