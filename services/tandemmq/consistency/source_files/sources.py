"""Opens a replica: what a task does with it is the same, wherever its bytes are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tandemmq.consistency.source_files.posix_files import PosixFiles, SourceKind, SourceSpec
from tandemmq.core.audit.replica_store import (
    DigestingStore,
    ExtentDigest,
    ReplicaFacts,
    ReplicaFiles,
    ReplicaStore,
    StoreEntry,
    digest_extents,
    hash_maker,
    inspect_replica,
)
from tandemmq.core.replication.log_history import LogRange

if TYPE_CHECKING:
    from tandemmq.core.audit.record_check import RecordCheck


# Files that are read no faster than they may be.


class ThrottledFiles:
    """`ReplicaFiles` around others: after each read it waits until the bytes so far are due. Saves up nothing: a task
    that computed for a while may not read all the faster afterwards."""

    def __init__(self, files: ReplicaFiles, *, bytes_per_second: int) -> None:
        self._files = files
        self._seconds_per_byte = 1.0 / bytes_per_second
        self._free_at = 0.0

    def list_folder(self, path: str) -> list[StoreEntry]:
        return self._files.list_folder(path)

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        now = time.monotonic()
        if self._free_at > now:
            time.sleep(self._free_at - now)
        data = self._files.read(path, offset, length)
        self._free_at = max(now, self._free_at) + len(data) * self._seconds_per_byte
        return data


class Source(Protocol):
    """One replica, opened. Every call blocks and may raise ReplicaUnreadable."""

    @property
    def files(self) -> ReplicaFiles: ...

    def facts(self) -> ReplicaFacts: ...

    def digests(
        self, facts: ReplicaFacts, log_range: LogRange, *, extent_bytes: int, algorithm: str
    ) -> list[ExtentDigest]:
        """Of the extents of the range, in order; made where the bytes are."""

    def check(self, facts: ReplicaFacts, log_range: LogRange) -> RecordCheck:
        """Every record that starts in the range, by itself and against ConsumeQueue and index."""

    def check_and_digest(
        self, facts: ReplicaFacts, log_range: LogRange, *, extent_bytes: int, algorithm: str
    ) -> tuple[RecordCheck, list[ExtentDigest]]: ...


class FileSource:
    """A replica whose files this process reads."""

    def __init__(self, spec: SourceSpec, files: ReplicaFiles) -> None:
        self._spec = spec
        self.files = files

    def facts(self) -> ReplicaFacts:
        """See Source. Nobody says where the log of a folder ends: its last records are walked through."""
        return inspect_replica(self.files, group=self._spec.group, broker_id=self._spec.broker_id)

    def digests(
        self, facts: ReplicaFacts, log_range: LogRange, *, extent_bytes: int, algorithm: str
    ) -> list[ExtentDigest]:
        store = ReplicaStore(self.files, facts)
        return list(digest_extents(store, log_range, extent_bytes=extent_bytes, new_hash=hash_maker(algorithm)))

    def check(self, facts: ReplicaFacts, log_range: LogRange) -> RecordCheck:
        # It needs numpy, a third of a second in each of Spark's workers, and a quick run needs neither.
        from tandemmq.core.audit.record_check import check_records

        return check_records(ReplicaStore(self.files, facts), log_range.start_offset, log_range.end_offset)

    def check_and_digest(
        self, facts: ReplicaFacts, log_range: LogRange, *, extent_bytes: int, algorithm: str
    ) -> tuple[RecordCheck, list[ExtentDigest]]:
        """See Source; the log is read once."""
        from tandemmq.core.audit.record_check import check_records

        store = DigestingStore(self.files, facts, log_range, extent_bytes=extent_bytes, new_hash=hash_maker(algorithm))
        check = check_records(store, log_range.start_offset, log_range.end_offset)
        return check, store.digests()


@contextmanager
def open_source(spec: SourceSpec) -> Iterator[Source]:
    """The replica for the length of the block. Raises ReplicaUnreadable if there is no way to it."""
    if spec.kind is SourceKind.BROKER:
        # Here, so that an executor that reads volumes loads no gRPC; likewise below.
        from tandemmq.consistency.source_files.broker_files import BrokerSource

        with BrokerSource.connect(spec) as broker:
            yield broker
        return
    if spec.kind is SourceKind.URI:
        from tandemmq.consistency.source_files.posix_files import ArrowFiles

        files: PosixFiles | ArrowFiles = ArrowFiles(spec.location)
    else:
        files = PosixFiles(spec.location, read_mode=spec.read_mode)
    try:
        yield FileSource(spec, ThrottledFiles(files, bytes_per_second=spec.rate_limit) if spec.rate_limit else files)
    finally:
        files.close()
