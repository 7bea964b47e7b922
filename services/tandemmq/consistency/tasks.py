"""The work that is spread over machines, or over the CPUs of one: each task opens replicas, reads, and answers in a few
kilobytes.

A task and its answer are JSON: they pass through the JVM as one string each, a driver may be of another version than
the one that remembered an answer, and both can be read by people. The CommitLog's bytes never leave the Python process
that reads them.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Protocol, Self

from tandemmq.consistency.source_files.posix_files import SourceSpec
from tandemmq.consistency.source_files.sources import Source, open_source
from tandemmq.core.audit.equality import BoundRules, SeenReplica, missing_messages, with_messages
from tandemmq.core.audit.findings import Finding
from tandemmq.core.audit.metadata_comparison import is_foreign, without_secrets
from tandemmq.core.audit.queue_check import QueueSpan
from tandemmq.core.audit.replica_store import (
    DIGEST_BYTES,
    STORE_MARKS,
    ExtentDigest,
    ReplicaFacts,
    ReplicaStore,
    ReplicaUnreadable,
    digest_extents,
    hash_maker,
    metadata_texts,
)
from tandemmq.core.audit.side_files import read_side_facts
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.replication.log_history import LogRange

_PIECE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that was described: where it is and what it holds."""

    spec: SourceSpec
    facts: ReplicaFacts

    def to_json(self) -> dict[str, Any]:
        return {"spec": self.spec.to_json(), "facts": self.facts.to_json()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(SourceSpec.from_json(values["spec"]), ReplicaFacts.from_json(values["facts"]))


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """What a task found out. `problem` is why a replica could not be read: the rest is empty then."""

    key: str
    values: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    bytes_read: int = 0
    cpu_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def findings(self) -> list[Finding]:
        """Those among the values."""
        return [Finding.from_json(values) for values in self.values.get("findings", ())]


class Task(Protocol):
    """Something to do on an executor."""

    kind: ClassVar[str]

    @property
    def key(self) -> str:
        """Names the task among those of its group, in this run and in one that takes up where this one was cut off."""

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """Replicas it reads."""

    @property
    def specs(self) -> tuple[SourceSpec, ...]:
        """Where those are."""

    @property
    def expected_bytes(self) -> int:
        """That it will read, about."""

    def to_json(self) -> dict[str, Any]:
        """Plain values by field name."""

    def perform(self) -> tuple[dict[str, Any], int]:
        """The answer's values and the bytes read. Raises ReplicaUnreadable."""


@dataclass(frozen=True, slots=True)
class _Task:
    """What all tasks have in common: they travel as their fields."""

    def to_json(self) -> dict[str, Any]:
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(**{each.name: _READERS.get(each.name, _as_it_is)(values[each.name]) for each in fields(cls)})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value.to_json() if hasattr(value, "to_json") else value


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class DescribeTask(_Task):
    """Facts and metadata of one replica."""

    kind: ClassVar[str] = "describe"

    spec: SourceSpec

    @property
    def key(self) -> str:
        return f"describe:{self.spec.broker_id}"

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return (self.spec.broker_id,)

    @property
    def specs(self) -> tuple[SourceSpec, ...]:
        return (self.spec,)

    @property
    def expected_bytes(self) -> int:
        """See Task. Of a folder it is the last file, which is not known yet."""
        return 0

    def perform(self) -> tuple[dict[str, Any], int]:
        with open_source(self.spec) as source:
            # In this order: no offset in a table is beyond what the log holds a moment later.
            metadata = metadata_texts(source.files)
            if users := metadata[MetadataFile.USERS]:
                metadata[MetadataFile.USERS] = without_secrets(users)
            side = read_side_facts(source.files, self.spec.broker_id)
            facts = source.facts()
            heads = ReplicaStore(source.files, facts).file_heads()
            names = {entry.name for entry in source.files.list_folder("")}
            has_foreign_topics = is_foreign(self.spec.group, metadata[MetadataFile.TOPICS] or "", source.files)
        return {
            "is_there": self.spec.is_broker or not names.isdisjoint(STORE_MARKS),
            "has_foreign_topics": has_foreign_topics,
            "facts": facts.to_json(),
            "heads": [list(head) for head in heads.items()],
            "metadata": {file.value: text for file, text in metadata.items()},
            "side": side.to_json(),
        }, 0


@dataclass(frozen=True, slots=True)
class _ReplicaTask(_Task):
    """What tasks about one replica have in common."""

    replica: Replica

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return (self.replica.facts.broker_id,)

    @property
    def specs(self) -> tuple[SourceSpec, ...]:
        return (self.replica.spec,)

    @property
    def expected_bytes(self) -> int:
        """See Task. Little beside the log, or read before."""
        return 0


@dataclass(frozen=True, slots=True)
class _RangesTask(_ReplicaTask):
    """What tasks about some ranges of one replica have in common."""

    kind: ClassVar[str]

    ranges: tuple[LogRange, ...]

    @property
    def key(self) -> str:
        return _range_key(self.kind, self.replica, self.ranges)

    @property
    def expected_bytes(self) -> int:
        return _bytes_of(self.ranges)


@dataclass(frozen=True, slots=True)
class DigestTask(_RangesTask):
    """Digests of all extents of some ranges of one replica."""

    kind: ClassVar[str] = "digest"

    extent_bytes: int
    algorithm: str

    @property
    def key(self) -> str:
        return _digests_key(self)

    def perform(self) -> tuple[dict[str, Any], int]:
        """See Task. A list for each range: its digests one behind the other in base 64; zeros for an extent that no
        file holds, whose places `holes` names.
        """
        answers, bytes_read = [], 0
        with open_source(self.replica.spec) as source:
            for log_range in self.ranges:
                found = source.digests(
                    self.replica.facts, log_range, extent_bytes=self.extent_bytes, algorithm=self.algorithm
                )
                bytes_read += sum(extent.end_offset - extent.start_offset for extent in found if extent.digest)
                answers.append(_digest_values(found, self.algorithm))
        return {"ranges": answers}, bytes_read


@dataclass(frozen=True, slots=True)
class RereadTask(DigestTask):
    """The same of bytes that are fetched and hashed here, whoever else could digest them: of single extents."""

    kind: ClassVar[str] = "reread"

    def perform(self) -> tuple[dict[str, Any], int]:
        answers = []
        new_hash = hash_maker(self.algorithm)
        with open_source(self.replica.spec) as source:
            store = ReplicaStore(source.files, self.replica.facts)
            for log_range in self.ranges:
                found = list(digest_extents(store, log_range, extent_bytes=self.extent_bytes, new_hash=new_hash))
                answers.append(_digest_values(found, self.algorithm))
        return {"ranges": answers}, store.bytes_read


@dataclass(frozen=True, slots=True)
class CheckTask(_RangesTask):
    """Every record of some ranges of one replica, by itself and against its ConsumeQueue and index, and the digests of
    the extents besides if an algorithm is given."""

    kind: ClassVar[str] = "check"

    extent_bytes: int = 0
    algorithm: str = ""

    @property
    def key(self) -> str:
        return _digests_key(self)

    def perform(self) -> tuple[dict[str, Any], int]:
        """See Task. A list of spans for each range, and its digests as DigestTask has them."""
        checks, digests = [], []
        with open_source(self.replica.spec) as source:
            for log_range in self.ranges:
                if self.algorithm:
                    check, found = source.check_and_digest(
                        self.replica.facts, log_range, extent_bytes=self.extent_bytes, algorithm=self.algorithm
                    )
                    digests.append(_digest_values(found, self.algorithm))
                else:
                    check = source.check(self.replica.facts, log_range)
                checks.append(check)
        return {
            "findings": [finding.to_json() for check in checks for finding in check.findings],
            "spans": [[span.to_json() for span in check.queue_spans] for check in checks],
            "records": sum(check.records for check in checks),
            "ranges": digests,
        }, sum(check.bytes_read for check in checks)


@dataclass(frozen=True, slots=True)
class _ReplicasTask(_Task):
    """What tasks about several replicas have in common."""

    replicas: tuple[Replica, ...]

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(replica.facts.broker_id for replica in self.replicas)

    @property
    def specs(self) -> tuple[SourceSpec, ...]:
        return tuple(replica.spec for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class CompareTask(_ReplicasTask):
    """What differs between the replicas of a group in a range, down to the message."""

    kind: ClassVar[str] = "compare"

    log_range: LogRange
    earlier: tuple[tuple[int, int, str], ...]
    """Start, end and digest (hex) of extents that an earlier run saw, or of their first parts."""
    algorithm: str

    @property
    def key(self) -> str:
        return f"compare:{self.log_range.start_offset}-{self.log_range.end_offset}"

    @property
    def expected_bytes(self) -> int:
        return len(self.replicas) * _bytes_of([self.log_range])

    def perform(self) -> tuple[dict[str, Any], int]:
        from tandemmq.core.audit.comparison import compare_replicas  # It loads numpy; see sources.

        with ExitStack() as opened:
            comparison = compare_replicas(
                _stores(self.replicas, opened),
                self.log_range,
                earlier={LogRange(start, end): bytes.fromhex(digest) for start, end, digest in self.earlier},
                new_hash=hash_maker(self.algorithm),
            )
        findings = [finding.to_json() for finding in comparison.findings]
        return {"findings": findings, "benign": comparison.benign}, self.expected_bytes


@dataclass(frozen=True, slots=True)
class BoundsTask(_ReplicasTask):
    """The messages that some replicas lack at either end of their logs and should not."""

    kind: ClassVar[str] = "bounds"

    seen: tuple[tuple[int, SeenReplica], ...]
    """By broker id: what earlier runs saw."""
    max_lag_bytes: int
    file_reserved_ms: int
    now_ms: int

    @property
    def _rules(self) -> BoundRules:
        return BoundRules(
            master_id=next((replica.facts.broker_id for replica in self.replicas if replica.spec.is_master), None),
            live=frozenset(replica.facts.broker_id for replica in self.replicas if replica.spec.is_broker),
            max_lag_bytes=self.max_lag_bytes,
            file_reserved_ms=self.file_reserved_ms,
            now_ms=self.now_ms,
        )

    @property
    def key(self) -> str:
        return f"bounds:{self._rules.master_id}"

    @property
    def expected_bytes(self) -> int:
        """See Task. Nothing, as a rule."""
        return 0

    def perform(self) -> tuple[dict[str, Any], int]:
        with ExitStack() as opened:
            stores = _stores(self.replicas, opened)
            findings = missing_messages(stores, seen=dict(self.seen), rules=self._rules)
        bytes_read = sum(store.bytes_read for store in stores.values())
        return {"findings": [finding.to_json() for finding in findings]}, bytes_read


@dataclass(frozen=True, slots=True)
class DerivedTask(_ReplicaTask):
    """What lies in one replica's ConsumeQueues, index and metadata besides what its log asks for."""

    kind: ClassVar[str] = "derived"

    spans: tuple[QueueSpan, ...]
    """Of its whole log."""
    damaged: tuple[LogRange, ...]
    group_end: int

    @property
    def key(self) -> str:
        return f"derived:{self.replica.facts.broker_id}"

    def perform(self) -> tuple[dict[str, Any], int]:
        from tandemmq.core.audit.derived_facts import joined_spans
        from tandemmq.core.audit.derived_files import check_derived_files  # It loads numpy; see sources.

        with open_source(self.replica.spec) as source:
            store = ReplicaStore(source.files, self.replica.facts)
            findings, facts = check_derived_files(
                store,
                joined_spans([self.spans]),
                self.damaged,
                group_end=self.group_end,
                is_live=self.replica.spec.is_broker,
            )
        return {"findings": [finding.to_json() for finding in findings], "facts": facts.to_json()}, store.bytes_read


@dataclass(frozen=True, slots=True)
class NameTask(_ReplicaTask):
    """The messages in the range of each finding, by number, and the first and the last by name: as the log has them,
    or as its ConsumeQueues and IndexFiles still know them."""

    kind: ClassVar[str] = "name"

    findings: tuple[Finding, ...]
    are_lost: bool = False

    @property
    def key(self) -> str:
        return f"name:{self.replica.facts.broker_id}:{[finding.start_offset for finding in self.findings]}"

    def perform(self) -> tuple[dict[str, Any], int]:
        with open_source(self.replica.spec) as source:
            store = ReplicaStore(source.files, self.replica.facts)
            if self.are_lost:
                from tandemmq.core.audit.derived_files import with_known_messages  # It loads numpy; see sources.

                known = [with_known_messages(finding, store) for finding in self.findings]
                return {"findings": [finding.to_json() for finding in known]}, store.bytes_read
            named = [
                with_messages(finding, store, LogRange(finding.start_offset or 0, finding.end_offset or 0))
                for finding in self.findings
            ]
        return {"findings": [finding.to_json() for finding in named]}, store.bytes_read


@dataclass(frozen=True, slots=True)
class QueueEndsTask(_ReplicaTask):
    """Where some ConsumeQueues of one replica end."""

    kind: ClassVar[str] = "queue-ends"

    queues: tuple[tuple[str, int], ...]
    """Topic and queue id."""

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.replica.facts.broker_id}:{self.queues}"

    def perform(self) -> tuple[dict[str, Any], int]:
        """See Task. The position behind the last entry of each; None where the replica has no files of it."""
        with open_source(self.replica.spec) as source:
            store = ReplicaStore(source.files, self.replica.facts)
            ends = [store.queue_end(topic, queue_id) for topic, queue_id in self.queues]
        return {"ends": ends}, store.bytes_read


@dataclass(frozen=True, slots=True)
class FingerprintTask(_RangesTask):
    """One digest of each of some ranges, which need not begin or end with an extent: what a repair plan expects."""

    kind: ClassVar[str] = "fingerprint"

    def perform(self) -> tuple[dict[str, Any], int]:
        """See Task. xxh3_128 in hex, as RepairStep has it."""
        with open_source(self.replica.spec) as source:
            digests = [_fingerprint(source, self.replica.facts, log_range) for log_range in self.ranges]
        return {"digests": digests}, self.expected_bytes


_KINDS: Final = {
    kind.kind: kind.from_json
    for kind in (
        DescribeTask,
        DigestTask,
        RereadTask,
        CheckTask,
        CompareTask,
        BoundsTask,
        DerivedTask,
        NameTask,
        QueueEndsTask,
        FingerprintTask,
    )
}


class TaskRunner(Protocol):
    """Whatever runs tasks: see spark_session and local_runner."""

    @property
    def slots(self) -> int:
        """Tasks that run at once."""

    def expect(self, byte_count: int) -> None:
        """So much more will be read: for a runner that chooses its means. Raises ConsistencyError if it has none."""

    def run(self, tasks: Sequence[Task], *, label: str) -> list[TaskAnswer]:
        """The answers, in the order of the tasks. Blocks; may be called by several threads. Raises TasksFailed."""

    def cancel(self) -> None:
        """Ends all that runs: whoever waits for it gets TasksFailed."""

    def bytes_done(self) -> int:
        """That the tasks which are running now are through with, about."""


def encode_task(task: Task) -> str:
    """What `run_tasks` reads: one line."""
    return json.dumps({"kind": task.kind, "task": task.to_json()}, separators=(",", ":"))


def run_tasks(texts: Iterable[str]) -> Iterator[str]:
    """Where tasks run: a task's JSON in, its answer's JSON out. A replica that cannot be read is an answer."""
    for text in texts:
        document = json.loads(text)
        task = _KINDS[document["kind"]](document["task"])
        started = time.thread_time()
        try:
            values, bytes_read = task.perform()
            answer = TaskAnswer(task.key, values, bytes_read=bytes_read, cpu_seconds=time.thread_time() - started)
        except ReplicaUnreadable as error:
            answer = TaskAnswer(task.key, problem=str(error), cpu_seconds=time.thread_time() - started)
        yield json.dumps(answer.to_json(), separators=(",", ":"))


def _digest_values(found: Sequence[ExtentDigest], algorithm: str) -> dict[str, Any]:
    """The digests one behind the other in base 64; zeros for an extent that no file holds: its place is in `holes`."""
    nothing = bytes(DIGEST_BYTES[algorithm])
    joined = b"".join(extent.digest or nothing for extent in found)
    holes = [place for place, extent in enumerate(found) if not extent.digest]
    return {"digests": base64.b64encode(joined).decode(), "holes": holes}


def _fingerprint(source: Source, facts: ReplicaFacts, log_range: LogRange) -> str:
    store = ReplicaStore(source.files, facts)
    digest = hash_maker("xxh3_128")()
    for start in range(log_range.start_offset, log_range.end_offset, _PIECE_BYTES):
        digest.update(store.read_log(start, min(start + _PIECE_BYTES, log_range.end_offset)))
    return digest.digest().hex()


def _stores(replicas: Iterable[Replica], opened: ExitStack) -> dict[int, ReplicaStore]:
    sources = [(replica.facts, opened.enter_context(open_source(replica.spec))) for replica in replicas]
    return {facts.broker_id: ReplicaStore(source.files, facts) for facts, source in sources}


def _ranges(values: Iterable[tuple[int, int]]) -> tuple[LogRange, ...]:
    return tuple(LogRange(*value) for value in values)


def _bytes_of(ranges: Iterable[LogRange]) -> int:
    return sum(log_range.end_offset - log_range.start_offset for log_range in ranges)


def _range_key(kind: str, replica: Replica, ranges: Iterable[LogRange]) -> str:
    """An answer is one of this disk, and of this way to it: a broker's word is no evidence of what its volume holds."""
    spec, facts = replica.spec, replica.facts
    # A broker may have moved to another address since.
    place = "" if spec.is_broker and facts.disk_id else spec.location
    spelled = ",".join(f"{log_range.start_offset}-{log_range.end_offset}" for log_range in ranges)
    return f"{kind}:{facts.broker_id}:{spec.kind}:{place}:{facts.disk_id}:{spelled}"


def _digests_key(task: DigestTask | CheckTask) -> str:
    key = _range_key(task.kind, task.replica, task.ranges)
    return f"{key}:{task.algorithm}/{task.extent_bytes}" if task.algorithm else key


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "spec": SourceSpec.from_json,
    "replica": Replica.from_json,
    "replicas": lambda replicas: tuple(map(Replica.from_json, replicas)),
    "ranges": _ranges,
    "damaged": _ranges,
    "log_range": lambda log_range: LogRange(*log_range),
    "earlier": lambda earlier: tuple(map(tuple, earlier)),
    "queues": lambda queues: tuple(map(tuple, queues)),
    "seen": lambda seen: tuple((broker_id, SeenReplica.from_json(replica)) for broker_id, replica in seen),
    "spans": lambda spans: tuple(map(QueueSpan.from_json, spans)),
    "findings": lambda findings: tuple(map(Finding.from_json, findings)),
}
"""How a task's field becomes what it was, by its name; what is not here is in JSON as it is."""
