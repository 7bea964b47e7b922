"""An IndexFile of a running store is made again from its log, byte by byte as it was, and can be put back."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.audit_stores import AUDIT_OPTIONS, append_messages, make_master, open_store
from support.store_damage import write_at
from support.stores import ManualClock
from tandemmq.broker.audit.index_repair import IndexRepair
from tandemmq.broker.audit.jobs import Job, JobFailed, JobFailure, JobRunner, job_from_json, job_to_json
from tandemmq.core.audit.repair_plan import Refusal, RepairRefused
from tandemmq.core.audit.replica_store import ReplicaState
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.message_store import MessageStore

ENTRIES_START = 40 + AUDIT_OPTIONS.index_slot_count * 4


@dataclass
class Scene:
    """A store of 900 messages and two IndexFiles, as a broker has it open."""

    root: Path
    appended_meanwhile: int = 0
    """Messages that come while the helper works."""
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        make_master(self.root)
        self.store: MessageStore = open_store(self.root, self.clock)
        self.clock.now_ms += 1_000_000
        self.repair = IndexRepair(
            root=str(self.root),
            store=self.store,
            state=self.state,
            helper=self,  # type: ignore[arg-type]
            alone_with_store=alone,
            failed=lambda error: None,
        )

    @property
    def paths(self) -> list[str]:
        return [file.path for file in self.store.index_files]

    def content(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def state(self) -> ReplicaState:
        return ReplicaState(
            identity=BrokerIdentity("cluster", "broker-a", 0),
            min_offset=0,
            end_offset=self.store.end_offset,
            flushed_offset=self.store.end_offset,
            confirm_offset=self.store.end_offset,
            segment_bytes=AUDIT_OPTIONS.commit_log_file_bytes,
            queues_offset=self.store.end_offset,
            index_offset=self.store.end_offset,
            lag_bytes=0,
            serving=True,
        )

    def append(self, count: int) -> None:
        append_messages(self.store, self.clock, 5_000, count, seed=7)

    async def answers(self, job: Job) -> AsyncGenerator[dict[str, Any], None]:
        """As the helper process does."""
        for frame in JobRunner(str(self.root), pause=lambda _: None).run(job_from_json(job_to_json(job, number=1))):
            if "failed" in frame:
                raise JobFailed(JobFailure(frame["failed"]), frame["message"])
            yield frame
        self.append(self.appended_meanwhile)
        self.appended_meanwhile = 0


@asynccontextmanager
async def alone() -> AsyncIterator[None]:
    yield


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "store")
    yield scene
    scene.store.close()


async def test_sound_files_stay(scene: Scene) -> None:
    for path in scene.paths:
        before = scene.content(path)
        assert not (await scene.repair.run(path, dry_run=False, undo=False)).changed
        assert scene.content(path) == before


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 1 << 20), number=st.integers(0, 1), length=st.sampled_from((1, 20, 512, 4096)))
async def test_any_damage_is_mended_to_the_byte_and_can_be_put_back(
    scene: Scene, seed: int, number: int, length: int
) -> None:
    path = scene.paths[number]
    sound, chance = scene.content(path), random.Random(seed)
    end = scene.store.index_files[number].entries_end
    place = chance.randrange(max(1, end - length))
    write_at(scene.root / path, place, chance.choice((bytes(length), chance.randbytes(length))))
    damaged = scene.content(path)
    assert (await scene.repair.run(path, dry_run=True, undo=False)).changed == (damaged != sound)
    assert scene.content(path) == damaged
    repaired = await scene.repair.run(path, dry_run=False, undo=False)
    assert scene.content(path) == sound
    if damaged != sound:
        assert repaired.changed
        assert repaired.kept_path
        await scene.repair.run(path, dry_run=False, undo=True)
        assert scene.content(path) == damaged
        await scene.repair.run(path, dry_run=False, undo=False)
    assert scene.content(path) == sound
    assert not list((scene.root / "kept-repairs").glob("*.unfinished"))


async def test_newest_file_grows_while_it_is_made_again(scene: Scene, tmp_path: Path) -> None:
    other = Scene(tmp_path / "other")
    other.append(40)
    assert scene.paths == other.paths, "what waited is entered"
    path = scene.paths[-1]
    write_at(scene.root / path, ENTRIES_START + 20 * 20, bytes(2_000))
    scene.appended_meanwhile = 40
    repaired = await scene.repair.run(path, dry_run=False, undo=False)
    assert repaired.changed
    assert scene.content(path) == other.content(path)
    scene.append(5)
    other.append(5)
    assert scene.paths == other.paths
    assert scene.content(path) == other.content(path)
    with pytest.raises(RepairRefused) as refused:
        await scene.repair.run(path, dry_run=False, undo=True)
    assert refused.value.refusal is Refusal.NOT_AS_EXPECTED
    other.store.close()


async def test_what_cannot_be_made_again_is_refused(scene: Scene) -> None:
    path = scene.paths[0]
    for asked, refusal in (("index/20200101000000000", Refusal.NOT_FOUND), (path, Refusal.NOT_FOUND)):
        with pytest.raises(RepairRefused) as refused:
            await scene.repair.run(asked, dry_run=False, undo=asked == path)
        assert refused.value.refusal is refusal
    # The log itself is damaged.
    write_at(scene.root / "commitlog" / f"{0:020d}", 60_000, bytes(8_000))
    with pytest.raises(JobFailed) as failed:
        await scene.repair.run(path, dry_run=False, undo=False)
    assert failed.value.failure is JobFailure.UNSOUND
    (scene.root / path).rename(scene.root / "elsewhere")
    with pytest.raises(RepairRefused) as refused:
        await scene.repair.run(path, dry_run=False, undo=False)
    assert refused.value.refusal is Refusal.NOT_AS_EXPECTED


async def test_file_that_the_broker_has_read_damaged_is_left_to_a_person(tmp_path: Path) -> None:
    make_master(tmp_path)
    path = min((tmp_path / "index").iterdir())
    write_at(path, 36, (900).to_bytes(4, "big"))
    scene = Scene.__new__(Scene)
    scene.root, scene.appended_meanwhile, scene.clock = tmp_path, 0, ManualClock()
    scene.store = open_store(tmp_path, scene.clock)
    repair = IndexRepair(
        root=str(tmp_path),
        store=scene.store,
        state=scene.state,
        helper=scene,  # type: ignore[arg-type]
        alone_with_store=alone,
        failed=lambda error: None,
    )
    before = path.read_bytes()
    with pytest.raises(RepairRefused) as refused:
        await repair.run(f"index/{path.name}", dry_run=False, undo=False)
    assert refused.value.refusal is Refusal.NOT_AS_EXPECTED
    assert path.read_bytes() == before
    scene.store.close()
