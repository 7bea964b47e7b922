"""Digests of all replicas, side by side: which extents are equal, which differ, which changed since an earlier run.

What a broker digests it could digest wrongly: of something else than its clients are given, or of nothing. So of each
wave, and of each broker, a share drawn by chance is fetched as bytes and digested here.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tandemmq.consistency.planning import GroupMemory, chunks, in_waves, merged
from tandemmq.consistency.progress import Progress
from tandemmq.consistency.tasks import CheckTask, DigestTask, Replica, RereadTask, Task, TaskAnswer, TaskRunner
from tandemmq.core.audit.replica_store import DIGEST_BYTES, extents_of
from tandemmq.core.replication.log_history import LogRange

if TYPE_CHECKING:
    from tandemmq.consistency.results_store import GroupStore


# What the next runs know of it.


class ExtentTable:
    """Digests of verified extents, collected in the order of the log."""

    def __init__(self, algorithm: str, extent_bytes: int) -> None:
        self._algorithm = algorithm
        self._extent_bytes = extent_bytes
        self._parts: list[pa.Table] = []

    def add(self, log_range: LogRange, digests: bytes, *, broker_id: int | None, verified_at: datetime) -> None:
        """Digests of all extents of a range, one behind the other. `broker_id`: whose, if not of all replicas."""
        width = DIGEST_BYTES[self._algorithm]
        ranges = list(extents_of(log_range, self._extent_bytes))
        assert len(digests) == width * len(ranges), f"{len(digests)} bytes of digests of {len(ranges)} extents"
        count = len(ranges)
        digest_type = pa.binary(width)
        columns = {
            "start_offset": pa.array([part.start_offset for part in ranges], pa.int64()),
            "end_offset": pa.array([part.end_offset for part in ranges], pa.int64()),
            "digest": pa.FixedSizeBinaryArray.from_buffers(digest_type, count, [None, pa.py_buffer(digests)]),
            "algorithm": pa.array([self._algorithm] * count, pa.string()),
            "agreed": pa.array([broker_id is None] * count, pa.bool_()),
            "broker_id": pa.array([broker_id] * count, pa.int64()),
            "verified_at": pa.array([verified_at] * count, pa.timestamp("ms", tz="UTC")),
        }
        self._parts.append(pa.table(columns))

    def table(self, *, damaged: Iterable[LogRange] = ()) -> pa.Table | None:
        """All of them, None if there are none; without what all replicas have alike in extents that are damaged: who
        mends them would have changed what was verified."""
        if not self._parts:
            return None
        whole = pa.concat_tables(self._parts)
        size, limit = self._extent_bytes, pc.max(whole["end_offset"]).as_py()
        numbers = {number for start, end in damaged for number in range(start // size, -(-min(end, limit) // size))}
        is_damaged = pc.is_in(pc.divide(whole["start_offset"], size), value_set=pa.array(sorted(numbers), pa.int64()))
        return whole.filter(pc.invert(pc.and_(is_damaged, whole["agreed"])))


# A log as a line of letters, for a picture of it.

_PARTS_MAX: Final = 256
_NEVER, _EARLIER, _NOW, _DIFFERS = ".o=x"


def extent_map(
    common: LogRange, *, verified_now: Iterable[LogRange], differing: Iterable[LogRange], watermark: int
) -> str:
    """The range in at most 256 equal parts; see GroupSummary.extent_map. A part is as bad as the worst byte in it."""
    length = common.end_offset - common.start_offset
    if length <= 0:
        return ""
    count = min(_PARTS_MAX, length)
    earlier = max(0, min(watermark, common.end_offset) - common.start_offset)
    letters = [_EARLIER if (part + 1) * length <= earlier * count else _NEVER for part in range(count)]
    for ranges, letter in ((verified_now, _NOW), (differing, _DIFFERS)):
        for log_range in ranges:
            start = max(common.start_offset, log_range.start_offset) - common.start_offset
            end = min(common.end_offset, log_range.end_offset) - common.start_offset
            for part in range(start * count // length, -(-end * count // length) if end > start else 0):
                letters[part] = letter
    return "".join(letters)


# Asks replicas through tasks, and keeps the account: what was read of whom, and who stopped answering.


class Questions:
    """What is asked about one group in one run. For one thread."""

    def __init__(self, group: str, runner: TaskRunner, store: GroupStore, progress: Progress) -> None:
        self.problems: Final[dict[int, str]] = {}
        """By broker id: why a replica is not read any further."""
        self.bytes_read: Final[dict[int, int]] = {}
        self.cpu_seconds = 0.0
        self._group = group
        self._runner = runner
        self._store = store
        self._progress = progress
        self._remembered: Mapping[str, TaskAnswer] | None = None

    @property
    def slots(self) -> int:
        """Tasks that run at once."""
        return self._runner.slots

    def expect(self, byte_count: int) -> None:
        """Tells the runner what will be read. Raises ConsistencyError if that is more than it can."""
        self._runner.expect(byte_count)

    def ask(self, tasks: Sequence[Task]) -> list[TaskAnswer]:
        """The answers, in order. The first problem of a replica is its last. Raises TasksFailed."""
        answers = self._runner.run(tasks, label=self._group)
        for task, answer in zip(tasks, answers):
            self._progress.read(task.expected_bytes)
            self._account(task, answer)
        return answers

    def ask_once(self, tasks: Sequence[Task]) -> list[TaskAnswer]:
        """The same, but what was answered before the run was cut off is not asked again."""
        if self._remembered is None:
            self._remembered = self._store.load_answers(now_s=time.time())
        known = {task.key: self._remembered[task.key] for task in tasks if task.key in self._remembered}
        open_tasks = [task for task in tasks if task.key not in known]
        self._progress.read(sum(task.expected_bytes for task in tasks if task.key in known))
        fresh = self.ask(open_tasks)
        # What is wrong now may be mended when the next run asks.
        worth_keeping = [answer for answer in fresh if not answer.problem and not answer.values.get("findings")]
        if worth_keeping:
            self._store.save_answers(worth_keeping, now_s=time.time())
        known |= {task.key: answer for task, answer in zip(open_tasks, fresh)}
        return [known[task.key] for task in tasks]

    def _account(self, task: Task, answer: TaskAnswer) -> None:
        self.cpu_seconds += answer.cpu_seconds
        for broker_id in task.broker_ids:
            self.bytes_read[broker_id] = self.bytes_read.get(broker_id, 0) + answer.bytes_read // len(task.broker_ids)
        if answer.problem and len(task.broker_ids) == 1:
            self.problems.setdefault(task.broker_ids[0], answer.problem)


_WAVE_TASKS_PER_SLOT: Final = 8
"""Many, so that the end of a wave, where some slots have nothing to do, is rare; few enough to be remembered soon."""
_REREAD_EXTENTS: Final = 256
"""Of so many extents that a broker digested, one is fetched: a GiB of 4 MiB each."""
_AGAIN_BYTES: Final = 256 << 20
"""Suspects that one task reads again."""


_CHANCE: Final = SystemRandom()


@dataclass(frozen=True, slots=True)
class _PieceDigests:
    """One replica's digests of a piece, one behind the other; zeros for the extents whose places are in `holes`."""

    joined: bytes
    holes: frozenset[int]

    def of(self, place: int, width: int) -> bytes:
        """Of one extent; empty if no file holds all of it."""
        return b"" if place in self.holes else self.joined[place * width : (place + 1) * width]


class ExtentReading:
    """What the digests of one group say in one run."""

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        memory: GroupMemory,
        questions: Questions,
        store: GroupStore,
        *,
        chunk_bytes: int,
        verified_at: datetime,
        with_checks: bool = False,
        chance: Random = _CHANCE,
    ) -> None:
        """`with_checks`: every record of what is read is checked on the way."""
        self.checked: Final[list[tuple[CheckTask, TaskAnswer]]] = []
        """What those checks answered; problems are not here."""
        self.done: Final[list[LogRange]] = []
        """Pieces of which every replica that still answered gave its digests, ascending."""
        self.differing: Final[list[LogRange]] = []
        """Extents that are not the same on all replicas."""
        self.changed: Final[list[LogRange]] = []
        """Extents that are the same on all replicas, and were the same and something else in an earlier run."""
        self.equal_at_second_look = 0
        """Extents."""
        self.table: Final = ExtentTable(memory.algorithm, memory.extent_bytes)
        self._replicas = replicas
        self._memory = memory
        self._questions = questions
        self._store = store
        self._chunk_bytes = chunk_bytes
        self._width = DIGEST_BYTES[memory.algorithm]
        self._verified_at = verified_at
        self._with_checks = with_checks
        self._chance = chance
        self._earlier: dict[tuple[int, int], bytes] = {}
        """Of suspects."""

    @property
    def readable(self) -> list[Replica]:
        """Replicas that answered all questions so far."""
        return [replica for broker_id, replica in self._replicas.items() if broker_id not in self._questions.problems]

    def read(self, ranges: Iterable[LogRange], *, is_over: Callable[[], bool]) -> bool:
        """Reads ascending ranges in waves. False: time was up, and `done` ends before them."""
        pieces = chunks(ranges, self._chunk_bytes)
        at_once = max(1, self._questions.slots * _WAVE_TASKS_PER_SLOT // max(1, len(self._replicas)))
        for wave in in_waves(pieces, at_once):
            if is_over():
                return False
            readable = self.readable
            if not readable:
                break
            self._read_wave(wave, readable)
        return True

    def look_again(self) -> None:
        """Reads what does not fit once more. It no longer counts if it fits now."""
        suspects = merged((*self.differing, *self.changed))
        self.differing.clear()
        self.changed.clear()
        for wave in in_waves(chunks(suspects, _AGAIN_BYTES), self._questions.slots):
            readable = self.readable
            found = self._digests(wave, readable, self._questions.ask) if readable else {}
            for piece in wave:
                digests = {broker_id: by_piece[piece] for broker_id, by_piece in found.items() if piece in by_piece}
                before = len(self.differing) + len(self.changed)
                count = self._judge_extents(piece, digests, self._earlier, is_final=True)
                self.equal_at_second_look += count - (len(self.differing) + len(self.changed) - before)

    def earlier_of(self, log_range: LogRange) -> tuple[tuple[int, int, str], ...]:
        """Start, end and digest in hex of what an earlier run saw equal everywhere, of each suspect extent in a range:
        of the whole extent, or of the first part of one that it saw begin."""
        return tuple(
            (start, end, digest.hex())
            for (start, end), digest in sorted(self._earlier.items())
            if log_range.start_offset <= start and end <= log_range.end_offset
        )

    def _read_wave(self, wave: Sequence[LogRange], readable: Sequence[Replica]) -> None:
        found = self._digests(wave, readable, self._questions.ask_once, with_checks=self._with_checks)
        for replica in readable:
            if replica.spec.is_broker and replica.facts.broker_id in found:
                self._reread(replica, found[replica.facts.broker_id])
        found = {broker_id: own for broker_id, own in found.items() if broker_id not in self._questions.problems}
        earlier = self._store.earlier_digests(self._memory, wave)
        for piece in wave:
            digests = {broker_id: by_piece[piece] for broker_id, by_piece in found.items() if piece in by_piece}
            if digests:
                self._judge(piece, digests, earlier)
                self.done.append(piece)

    def _reread(self, replica: Replica, told: Mapping[LogRange, _PieceDigests]) -> None:
        """A broker whose bytes have another digest than it told is not believed in anything: its problem is noted."""
        extents = [
            (extent, by_piece.of(place, self._width))
            for piece, by_piece in told.items()
            for place, extent in enumerate(extents_of(piece, self._memory.extent_bytes))
            if place not in by_piece.holes
        ]
        drawn = self._chance.sample(extents, min(len(extents), 1 + len(extents) // _REREAD_EXTENTS))
        if not drawn:
            return
        ranges = tuple(extent for extent, _ in drawn)
        task = RereadTask(replica, ranges, self._memory.extent_bytes, self._memory.algorithm)
        (answer,) = self._questions.ask([task])
        if answer.problem:
            return
        for (extent, digest), fetched in zip(drawn, _decoded(answer)):
            if fetched.of(0, self._width) != digest and not self._is_changed(replica, extent, digest):
                self._questions.problems[replica.facts.broker_id] = (
                    f"it told digest {digest.hex()} of [{extent.start_offset}, {extent.end_offset}), and the bytes it "
                    f"gives have {fetched.of(0, self._width).hex()}: verify its volume (--path)"
                )
                return

    def _is_changed(self, replica: Replica, extent: LogRange, digest: bytes) -> bool:
        """Whether it tells another digest by now: the bytes changed between the two reads, by a repair or damage."""
        task = DigestTask(replica, (extent,), self._memory.extent_bytes, self._memory.algorithm)
        (answer,) = self._questions.ask([task])
        return bool(answer.problem) or _decoded(answer)[0].of(0, self._width) != digest

    def _digests(
        self,
        wave: Sequence[LogRange],
        readable: Sequence[Replica],
        ask: Callable[[Sequence[DigestTask | CheckTask]], list[TaskAnswer]],
        *,
        with_checks: bool = False,
    ) -> dict[int, dict[LogRange, _PieceDigests]]:
        """By broker id and piece. A replica that did not answer for all of the wave is not there."""

        def task_for(replica: Replica, pieces: tuple[LogRange, ...]) -> DigestTask | CheckTask:
            kind = CheckTask if with_checks else DigestTask
            return kind(replica, pieces, self._memory.extent_bytes, self._memory.algorithm)

        tasks = [task_for(replica, (piece,)) for piece in wave for replica in readable if not _is_asked_alone(replica)]
        tasks += [task_for(replica, tuple(wave)) for replica in readable if _is_asked_alone(replica)]
        found: dict[int, dict[LogRange, _PieceDigests]] = {}
        for task, answer in zip(tasks, ask(tasks)):
            if not answer.problem:
                if isinstance(task, CheckTask):
                    self.checked.append((task, answer))
                by_piece = found.setdefault(task.replica.facts.broker_id, {})
                by_piece |= dict(zip(task.ranges, _decoded(answer)))
        return {
            broker_id: by_piece for broker_id, by_piece in found.items() if broker_id not in self._questions.problems
        }

    def _judge(
        self, piece: LogRange, digests: Mapping[int, _PieceDigests], earlier: Mapping[tuple[int, int], bytes]
    ) -> None:
        """The whole piece at once, if nothing is the matter with it: the usual case costs nothing for each extent."""
        first = next(iter(digests.values()))
        is_equal = not first.holes and all(other == first for other in digests.values())
        if is_equal and not (earlier and self._contradicts(piece, first, earlier)):
            self.table.add(piece, first.joined, broker_id=None, verified_at=self._verified_at)
        else:
            self._judge_extents(piece, digests, earlier, is_final=False)

    def _contradicts(self, piece: LogRange, digests: _PieceDigests, earlier: Mapping[tuple[int, int], bytes]) -> bool:
        return any(
            earlier.get(extent, digest) != digest
            for extent, digest in zip(extents_of(piece, self._memory.extent_bytes), self._split(digests))
        )

    def _judge_extents(
        self,
        piece: LogRange,
        digests: Mapping[int, _PieceDigests],
        earlier: Mapping[tuple[int, int], bytes],
        *,
        is_final: bool,
    ) -> int:
        """One by one; returns how many there were."""
        count = 0
        for place, extent in enumerate(extents_of(piece, self._memory.extent_bytes)):
            count += 1
            found = {broker_id: piece_digests.of(place, self._width) for broker_id, piece_digests in digests.items()}
            before = earlier.get(extent)
            values = set(found.values())
            if len(values) == 1 and before in (None, *values) and b"" not in values:
                self.table.add(extent, values.pop(), broker_id=None, verified_at=self._verified_at)
                continue
            (self.differing if len(values) != 1 or b"" in values else self.changed).append(extent)
            self._earlier |= _seen_before(extent, earlier)
            if is_final:
                for broker_id, digest in found.items():
                    if digest:
                        self.table.add(extent, digest, broker_id=broker_id, verified_at=self._verified_at)
        return count

    def _split(self, digests: _PieceDigests) -> Iterator[bytes]:
        joined = digests.joined
        return (joined[start : start + self._width] for start in range(0, len(joined), self._width))


def _seen_before(extent: LogRange, earlier: Mapping[tuple[int, int], bytes]) -> dict[tuple[int, int], bytes]:
    """The digest of an extent, or of the longest first part of it."""
    known = [place for place in earlier if place[0] == extent.start_offset and place[1] <= extent.end_offset]
    longest = max(known, default=None)
    return {} if longest is None else {longest: earlier[longest]}


def _is_asked_alone(replica: Replica) -> bool:
    """Whether one task after the other is the way: a broker does one thing at a time, and so does a rate limit."""
    return replica.spec.is_broker or replica.spec.rate_limit > 0


def _decoded(answer: TaskAnswer) -> list[_PieceDigests]:
    return [
        _PieceDigests(base64.b64decode(values["digests"]), frozenset(values["holes"]))
        for values in answer.values["ranges"]
    ]
