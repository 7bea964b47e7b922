"""Proves the proof: damage of every kind is planted in real replicas, and the consistency job has to name each.

    make audit-check                         # about ten minutes: build/audit-check.json
    make audit-check SEEDS=2000              # more of what chance draws
    python tools/audit_check.py --only flipped-body-bit --keep

Five parts, four of them on one cluster of real processes: a group of three replicas, one of them a slave that joined
late, and a group whose master does not wait for its slave.

1. Live: the quick tier through the brokers while clients send and consume, twice. Nothing may be found, and the second
   run may read no more than what is new.
2. Planted: the groups are stopped, one in order and one by SIGKILL. Every damage goes into a pair and a triple of its
   own, beside undamaged groups of many kinds, all in one deep run over the folders. Each has to be found and named down
   to the message; in the undamaged ones nothing may be found.
3. Scrubbed: a run sees groups while they are sound; then bytes change, in a way no checksum covers or on all replicas
   alike. Only the digests of the earlier run can tell.
4. Drawn: hypothesis draws damage and harmless differences: kind, side, place, number of replicas, and what earlier runs
   saw. Each folder is judged by a whole run in this process, without Spark: found, named, decided rightly or left to a
   person, and the plan copies from no damaged replica.
5. Repaired: the first group runs again, files of its slaves and a table of its master are damaged under load, a deep
   run through the brokers finds it, `tandemmq repair` carries out the plan, and the next run finds nothing.

Exit code 1 when a row does not hold. Everything is below build/audit-check and removed at the end but for the results
and the logs; --keep leaves it.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from hypothesis import HealthCheck, given, settings
from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from demo.report import Row, compared, write_rows
from support.audit_stores import make_group
from support.audit_traffic import TOPICS, BackgroundLoad, consume, send
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.consistency_job import JobRun, run_job
from support.damaged_groups import GroupFolder, link_store
from support.drawn_damage import HARMLESS, Drawn, drawn_cases, problem_of
from support.planted_damage import Judgement, judge, plant
from support.store_damage import DAMAGES
from support.topic_admin import broker_status, create_topic
from tandemmq.core.audit.findings import FindingKind, Verdict
from tandemmq.core.audit.run_summary import ExitCode, Outcome
from tandemmq.core.message.record import RecordFound, scan_record

FOLDER: Final = ROOT / "build" / "audit-check"
REPORT: Final = ROOT / "build" / "audit-check.json"
SEGMENT_BYTES: Final = 8 << 20
STORE: Final = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "maxMessageSize": str(1 << 20),
    "flushConsumerOffsetInterval": "500",
    "consumeFromEarliest": "true",
}
LIMIT_S: Final = 60.0
# Twice flushConsumerOffsetInterval, and a moment for slow machines.
OFFSETS_SETTLE_S: Final = 2.0
QUIET_TABLES: Final = ("topics.json", "subscriptionGroup.json")
# A slave asks for its master's tables at least every 10 s.
TABLES_QUIET_S: Final = 12.0
DURATION_MAX_S: Final = 1_200
SEEDS: Final = 500
DAMAGES_MIN: Final = 14
SCENE: Final = FOLDER / "scene"
"""Stores and groups: what is removed at the end."""
MESSAGES: Final = 9_000
LOAD_SEED, PLANT_SEED = 17, 4_711
GROUP_A: Final = ("broker-a-0", "broker-a-1", "broker-a-2")
GROUP_B: Final = ("broker-b-0", "broker-b-1")
CONSUMED: Final = (("billing", "orders", 2_000), ("fraud", "payments", 600))
# The second live run may read what is new, and again the extents in which that begins and ends.
EXTENT_BYTES: Final = 4 << 20
METADATA_BYTES_MAX: Final = 1 << 20
DELAY_OFFSETS: Final = (
    '{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},"offsetTable":{3:41,4:7}}'
)
ENTRY_BYTES: Final = 20
BODY_AT: Final = 88
"""In a record with IPv4 hosts."""
BORN_TIME_AT: Final = 40
"""In a record; nothing else knows it: no checksum, no queue, no index."""
# A pipe or a log file gets the table unwrapped.
WIDTH: Final = 150

console = Console(width=None if sys.stdout.isatty() else WIDTH)


class Scene:
    """The cluster: broker-a with three replicas, broker-b with two."""

    def __init__(self, folder: Path) -> None:
        self._cluster = ProcessCluster(folder)
        self._members: dict[str, ServiceProcess] = {}

    def __enter__(self) -> Scene:
        self._cluster.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._cluster.__exit__(None, None, None)

    @property
    def namesrv_addr(self) -> str:
        return self._cluster.namesrv_addr

    @property
    def endpoints(self) -> list[str]:
        """Of both masters, for clients."""
        return [f"127.0.0.1:{self._members[name].ports['grpcServerPort']}" for name in ("broker-a-0", "broker-b-0")]

    def store(self, member: str) -> Path:
        """A member's files."""
        return self._cluster.store_folder(member)

    def fill(self) -> None:
        """Starts everything and sends; one slave comes when half of it is stored, and copies."""
        self._cluster.add_name_server()
        self._add("broker-a", 0)
        self._add("broker-a", 1)
        self._add("broker-b", 0, brokerRole="ASYNC_MASTER")
        self._add("broker-b", 1)
        for topic in TOPICS:
            for master in ("broker-a-0", "broker-b-0"):
                asyncio.run(
                    create_topic(
                        self._members[master], topic.name, queues=topic.queues, message_type=topic.message_type
                    )
                )
        send(self.endpoints, MESSAGES // 2, seed=1)
        self._add("broker-a", 2)
        send(self.endpoints, MESSAGES - MESSAGES // 2, seed=2)
        for group, topic_name, count in CONSUMED:
            done = consume(self.endpoints, group, topic_name, count)
            assert done >= count, f"{group} received {done} of {count} messages of {topic_name}"
        self.wait_level()

    def wait_level(self) -> None:
        """Until every slave has its master's log and consumer offsets, and no broker has newer ones in memory."""
        time.sleep(OFFSETS_SETTLE_S)
        self._wait_level(GROUP_A)
        self._wait_level(GROUP_B)

    def _wait_level(self, names: Sequence[str]) -> None:
        wait_until(lambda: self._are_level(names), limit_s=LIMIT_S, what=f"{', '.join(names)} are level")

    def _are_level(self, names: Sequence[str]) -> bool:
        ends = {asyncio.run(broker_status(self._members[name])).end_offset for name in names}
        offsets = {_offset_table(self.store(name)) for name in names}
        return len(ends) == 1 and len(offsets) == 1

    def stop_in_order(self) -> list[Path]:
        """Stops broker-a as a rollout does, its master first; returns its stores."""
        for broker_id in range(3):
            code = self._members[f"broker-a-{broker_id}"].stop()
            assert code == 0, f"broker-a-{broker_id} ended with {code}"
        stores = [self.store(f"broker-a-{broker_id}") for broker_id in range(3)]
        for store in stores:
            # Delayed messages are not offered yet; RocketMQ's brokers have this file, and so will these.
            (store / "config" / "delayOffset.json").write_text(DELAY_OFFSETS, encoding="utf-8")
        return stores

    def start_again(self) -> None:
        """Starts broker-a, and waits until its slaves follow."""
        for broker_id in range(3):
            self._members[f"broker-a-{broker_id}"].start()
        self._wait_level(GROUP_A)

    def wait_tables(self, names: Sequence[str], *, consumer_group: str) -> None:
        """Until the load's consumer group is in every member's tables, and no file of them changed for longer than a
        slave waits before it looks at its master's again: what is damaged before that is written over by itself."""
        files = [self.store(name) / "config" / table for name in names for table in QUIET_TABLES]
        marks: list[tuple[int, int]] = []
        still_s = time.monotonic()

        def are_quiet() -> bool:
            nonlocal marks, still_s
            now = [(status.st_mtime_ns, status.st_size) for status in map(Path.stat, files)]
            is_known = all(f"@{consumer_group}" in _offset_table(self.store(name)) for name in names)
            if now != marks or not is_known:
                marks, still_s = now, time.monotonic()
            return time.monotonic() - still_s > TABLES_QUIET_S

        wait_until(are_quiet, limit_s=4 * LIMIT_S, what=f"tables of {', '.join(names)} are quiet")

    def kill_under_load(self) -> list[Path]:
        """Kills broker-b's slave, and a moment later its master, while clients send; returns its stores."""
        with BackgroundLoad(self.endpoints[1:], group="audit", seed=LOAD_SEED):
            time.sleep(1.0)
            self._members["broker-b-1"].kill()
            time.sleep(1.0)
            self._members["broker-b-0"].kill()
        return [self.store(f"broker-b-{broker_id}") for broker_id in range(2)]

    def _add(self, group: str, broker_id: int, **settings: str) -> None:
        self._members[f"{group}-{broker_id}"] = self._cluster.add_broker(
            group, broker_id=broker_id, settings=STORE | settings
        )


def _offset_table(store: Path) -> str:
    path = store / "config" / "consumerOffset.json"
    return path.read_text(encoding="utf-8") if path.exists() else ""


@contextmanager
def step(text: str) -> Iterator[None]:
    """Says what goes on, and how long it took."""
    started_s = time.monotonic()
    console.print(f"{text} …", highlight=False)
    yield
    console.print(f"  {time.monotonic() - started_s:.1f} s", style="dim", highlight=False)


def check_live(scene: Scene) -> list[Row]:
    """Two quick runs through the brokers under load: nothing is found, and the second reads what is new."""
    options = {"namesrvAddr": scene.namesrv_addr, "tier": "quick", "scrubBudgetBytes": "0", "secondLookPause": "6s"}
    results, log = FOLDER / "results-live", FOLDER / "logs" / "live.log"
    with BackgroundLoad(scene.endpoints, group="audit", seed=LOAD_SEED) as load:
        with step("live: the whole log through the brokers, under load"):
            first = run_job(results, options, log=log)
        with step("live: what came since"):
            second = run_job(results, options, log=log)
    new_bytes = sum(group.new_bytes * len(group.replicas) for group in second.summary.groups)
    allowed = sum(len(group.replicas) * 2 * EXTENT_BYTES for group in second.summary.groups) + METADATA_BYTES_MAX
    return [
        compared("live_messages_sent_meanwhile", load.sent, "messages", ">= 100"),
        compared("live_groups_equal", _equal_groups(first), "groups", "== 2"),
        compared("live_findings", len(first.findings) + len(second.findings), "findings", "== 0"),
        compared("live_clean_bytes", first.clean_bytes + second.clean_bytes, "bytes", ">= 1"),
        compared("live_second_run_new_bytes", new_bytes, "bytes", ">= 1"),
        compared("live_second_run_bytes_read", second.summary.bytes_read, "bytes", f"<= {new_bytes + allowed}"),
    ]


def _equal_groups(run: JobRun) -> int:
    return sum(group.outcome is Outcome.EQUAL for group in run.summary.groups)


def check_planted(stopped: list[Path], killed: list[Path], only: Sequence[str]) -> list[Row]:
    """Every damage in a pair and in a triple, undamaged groups beside them, one deep run over all."""
    groups = SCENE / "groups"
    with step(f"planted: {len(only) or len(DAMAGES)} kinds of damage in pairs and triples"):
        maker = GroupFolder(groups, stopped, workshop=SCENE / "workshop")
        damages = [damage for name, damage in DAMAGES.items() if name in only or not only]
        planted = plant(maker, damages, replicas=(2, 3), seed=PLANT_SEED)
        sound = add_sound_groups(maker, groups, stopped, killed)
    with step(f"planted: one deep run over {len(planted) + len(sound)} groups"):
        run = run_job(
            FOLDER / "results-planted",
            {"path": str(groups), "tier": "deep"},
            log=FOLDER / "logs" / "planted.log",
        )
    judged = [judge(each, run.findings_in(each.group), run.summary.benign) for each in planted]
    console.print(planted_table(judged))
    false_alarms = [finding for finding in run.findings if finding.group in sound]
    for finding in false_alarms:
        console.print(f"[red]false alarm[/] {finding.group}:{finding.broker_id} {finding.kind}: {finding.detail}")
    unread = [group.group for group in run.summary.groups if group.outcome in (Outcome.INCOMPLETE, Outcome.SKIPPED)]
    kinds = {each.planted.damage.name for each in judged}
    return [
        *(holds(f"found_{each.planted.group.replace('-', '_')}", each.holds) for each in judged),
        compared("damages_planted", len(kinds), "kinds", f">= {DAMAGES_MIN if not only else 1}"),
        compared("damaged_groups", len(judged), "groups", ">= 1"),
        compared("damaged_groups_named_right", sum(each.holds for each in judged), "groups", f"== {len(judged)}"),
        compared("sound_groups", len(sound), "groups", ">= 1"),
        compared("false_alarms", len(false_alarms), "findings", "== 0"),
        compared("groups_not_read", len(unread), "groups", "== 0"),
        compared("planted_clean_bytes", run.clean_bytes, "bytes", ">= 1"),
        holds("exit_code_tells", run.summary.exit_code is ExitCode.DIVERGED),
    ]


def add_sound_groups(maker: GroupFolder, groups: Path, stopped: list[Path], killed: list[Path]) -> list[str]:
    """Groups in which nothing is wrong, although their replicas are not the same files."""
    maker.add("sound-2x", replicas=2)
    maker.add("sound-3x", replicas=3)
    # Both died while messages came, the slave first: it lacks the end, and neither's queues are complete on disk.
    for broker_id, store in enumerate(killed):
        link_store(store, groups / "sound-killed-2x" / str(broker_id))
    # The master has removed its oldest file, the slaves will an hour later.
    oldest = min(path.name for path in (stopped[0] / "commitlog").iterdir())
    link_store(stopped[0], groups / "sound-expired-3x" / "0", without=(f"commitlog/{oldest}",))
    for broker_id in (1, 2):
        link_store(stopped[broker_id], groups / "sound-expired-3x" / str(broker_id))
    return ["sound-2x", "sound-3x", "sound-killed-2x", "sound-expired-3x"]


def planted_table(judged: Sequence[Judgement]) -> Table:
    """Planted x found, for people."""
    table = Table(title="Planted and found", title_justify="left")
    for heading in ("damage", "replicas", "found", "replica and evidence", "first message", ""):
        table.add_column(heading, justify="right" if heading == "replicas" else "left", no_wrap=bool(heading))
    for each in judged:
        verdict = "[green]right[/]" if each.holds else f"[bold red]{each.problem}[/]"
        planted = each.planted
        table.add_row(planted.damage.name, str(planted.replicas), each.found, each.blamed, each.named, verdict)
    return table


def row_table(rows: Sequence[Row]) -> Table:
    """The rows, but for those that the table of damages has shown."""
    table = Table(title="Is the proof to be trusted?", title_justify="left")
    for heading in ("", "value", "unit", "target", "holds"):
        table.add_column(heading, justify="right" if heading == "value" else "left", no_wrap=True)
    for row in rows:
        if row.holds and row.name.startswith("found_"):
            continue
        verdict = "[green]yes[/]" if row.holds else "[bold red]NO[/]"
        table.add_row(row.name.replace("_", " "), f"{row.value:,}", row.unit, row.target, verdict)
    return table


def check_scrubbed(stores: list[Path]) -> list[Row]:
    """Changes no checksum covers, after a run has seen the bytes: the stored digests tell who changed."""
    groups, results, log = SCENE / "scrubbed", FOLDER / "results-scrubbed", FOLDER / "logs" / "scrubbed.log"
    options = {"path": str(groups), "tier": "quick"}
    maker = GroupFolder(groups, stores, workshop=SCENE / "workshop-scrubbed")
    names = {"one-changed": 2, "all-changed": 3, "sound": 3}
    for name, replicas in names.items():
        maker.add(name, replicas=replicas)
    with step("scrubbed: everything is sound"):
        before = run_job(results, options, log=log)
    for name in ("one-changed", "all-changed"):
        shutil.rmtree(groups / name)
    changed = record_near(stores[0], 0.4)
    maker.add_changed("one-changed", lambda copies: change_born_time(copies[1:], changed), replicas=2)
    maker.add_changed("all-changed", lambda copies: change_born_time(copies, changed), replicas=3)
    with step("scrubbed: read again after a change"):
        # A window of a second: all that was verified is due again.
        after = run_job(results, options | {"scrubWindow": "1s"}, log=log)
    one, everywhere = after.findings_in("one-changed"), after.findings_in("all-changed")
    return [
        compared("scrubbed_findings_before", len(before.findings), "findings", "== 0"),
        compared("scrubbed_clean_bytes", before.clean_bytes, "bytes", ">= 1"),
        holds(
            "scrubbed_of_two_replicas_the_changed_one_is_named",
            [finding.kind for finding in one] == [FindingKind.FIELD_DIFFERS]
            and one[0].verdict is Verdict.STORED_DIGEST
            and one[0].broker_id == 1
            and one[0].start_offset == changed.physical_offset,
        ),
        holds(
            "scrubbed_change_of_all_replicas_is_named",
            [finding.kind for finding in everywhere] == [FindingKind.CHANGED_EVERYWHERE]
            and (everywhere[0].start_offset or 0) <= changed.physical_offset < (everywhere[0].end_offset or 0),
        ),
        compared("scrubbed_findings_in_the_sound_group", len(after.findings_in("sound")), "findings", "== 0"),
    ]


def record_near(store: Path, place: float) -> RecordFound:
    """A record at about this part of the log, in the file it lies in."""
    files = sorted((store / "commitlog").iterdir())
    path = files[int(place * (len(files) - 1))]
    data = path.read_bytes()
    position = 0
    while True:
        found = scan_record(data, position, len(data), physical_offset=int(path.name) + position)
        assert isinstance(found, RecordFound), f"{found} at {position} of {path}"
        if position > len(data) // 3:
            return found
        position += found.size


def change_born_time(stores: Sequence[Path], record: RecordFound) -> None:
    """Another time of birth in the head of a record, the same one in all stores."""
    for store in stores:
        start = record.physical_offset - record.physical_offset % SEGMENT_BYTES
        with (store / "commitlog" / f"{start:020d}").open("r+b") as file:
            file.seek(record.physical_offset - start + BORN_TIME_AT)
            file.write((record.store_timestamp_ms - 86_400_000).to_bytes(8, "big"))


def check_drawn(seeds: int) -> list[Row]:
    """So many folders, drawn anew each time; those that were judged wrongly are printed with what draws them again."""
    originals = make_group(SCENE / "drawn-originals")
    counts = {"found": 0, "silent": 0}
    problems: list[str] = []

    @settings(max_examples=seeds, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(drawn=drawn_cases())
    def judge_one(drawn: Drawn) -> None:
        problem = problem_of(drawn, originals, SCENE / "drawn")
        counts["silent" if drawn.kind in HARMLESS else "found"] += 1
        if problem:
            problems.append(problem)
            console.print(f"[red]{drawn}[/]: {problem}", highlight=False)

    with step(f"drawn: {seeds} folders"):
        judge_one()
    return [
        compared("drawn_folders_damaged", counts["found"], "folders", ">= 1"),
        compared("drawn_folders_sound", counts["silent"], "folders", ">= 1"),
        compared("drawn_missed", sum(each.startswith(("missed", "not found")) for each in problems), "folders", "== 0"),
        compared("drawn_false_alarms", sum(each.startswith("false") for each in problems), "folders", "== 0"),
        compared("drawn_judged_wrongly", len(problems), "folders", "== 0"),
    ]


def check_repaired(scene: Scene) -> list[Row]:
    """Damage below running brokers is found through them, repaired by them, and gone."""
    options = {
        "namesrvAddr": scene.namesrv_addr,
        "groups": "broker-a",
        "tier": "deep",
        "secondLookPause": "6s",
    }
    results, logs = FOLDER / "results-repaired", FOLDER / "logs"
    scene.start_again()
    with BackgroundLoad(scene.endpoints[:1], group="audit", seed=LOAD_SEED):
        with step("repaired: slaves take their master's tables"):
            scene.wait_tables(GROUP_A, consumer_group="audit")
        flip_body(scene.store("broker-a-1"), record_near(scene.store("broker-a-1"), 0.0))
        change_queue_entry(scene.store("broker-a-2"), record_near(scene.store("broker-a-2"), 0.0))
        (scene.store("broker-a-0") / "config" / "topics.json").write_bytes(b"")
        (scene.store("broker-a-1") / "config" / "subscriptionGroup.json").write_bytes(b'{"dataVersion":{')
        with step("repaired: a master and two slaves damaged while they run"):
            before = run_job(results, options, log=logs / "repaired.log")
        with step("repaired: tandemmq repair"):
            code = repair(before.folder / "repair-plan.json", scene.namesrv_addr, log=logs / "repair.log")
        with step("repaired: once more"):
            after = run_job(results, options, log=logs / "repaired.log")
    found = {(finding.kind, finding.broker_id) for finding in before.findings}
    return [
        holds(
            "repaired_damage_was_found",
            found
            == {
                (FindingKind.BODY_CRC, 1),
                (FindingKind.QUEUE_ENTRY_WRONG, 2),
                (FindingKind.METADATA_UNREADABLE, 0),
                (FindingKind.METADATA_UNREADABLE, 1),
            },
        ),
        compared("repaired_exit_code_of_repair", code, "exit code", "== 0"),
        compared("repaired_findings_afterwards", len(after.findings), "findings", "== 0"),
        compared("repaired_groups_equal", _equal_groups(after), "groups", "== 1"),
    ]


def repair(plan: Path, namesrv_addr: str, *, log: Path) -> int:
    """`tandemmq repair` as an operator runs it; its exit code."""
    command = [sys.executable, "-m", "tandemmq.cli", "repair", "--yes", "--namesrv", namesrv_addr, "--plan", str(plan)]
    with log.open("wb") as output:
        return subprocess.run(command, stdout=output, stderr=output, timeout=LIMIT_S, check=False).returncode


def flip_body(store: Path, record: RecordFound) -> None:
    """One bit of the body of a record in the log's first file."""
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        flip_bit(file, record.physical_offset + BODY_AT)


def change_queue_entry(store: Path, record: RecordFound) -> None:
    """Another tags code in the record's ConsumeQueue entry: consumers that filter would miss it."""
    path = store / "consumequeue" / record.topic / str(record.queue_id) / f"{0:020d}"
    with path.open("r+b") as file:
        flip_bit(file, record.queue_offset * ENTRY_BYTES + ENTRY_BYTES - 1)


def flip_bit(file: BinaryIO, position: int) -> None:
    """The lowest one of a byte."""
    file.seek(position)
    [byte] = file.read(1)
    file.seek(position)
    file.write(bytes([byte ^ 1]))


def holds(name: str, value: bool) -> Row:
    return compared(name, int(value), "yes = 1", "== 1")


def main() -> int:
    """Plays the parts and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", default=[], metavar="DAMAGE", help="plant only this; may be repeated"
    )
    parser.add_argument("--keep", action="store_true", help=f"leave the stores in {SCENE}")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="folders that chance draws; 0: none")
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - set(DAMAGES):
        parser.error(f"no such damage: {', '.join(sorted(unknown))}; there are {', '.join(DAMAGES)}")
    started_s = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    SCENE.mkdir(parents=True)
    try:
        rows = check_drawn(arguments.seeds) if arguments.seeds else []
        rows += play(arguments.only)
    finally:
        if not arguments.keep:
            shutil.rmtree(SCENE, ignore_errors=True)
    rows.append(compared("duration", round(time.monotonic() - started_s), "s", f"<= {DURATION_MAX_S}"))
    write_rows(rows, REPORT)
    console.print(row_table(rows))
    console.print(f"reports: {FOLDER}/results-*/runs/*/report.html", style="dim", highlight=False)
    return 0 if all(row.holds for row in rows) else 1


def play(only: Sequence[str]) -> list[Row]:
    """The story, from the cluster's start to the last run."""
    with Scene(SCENE / "cluster") as scene:
        with step("a cluster of five brokers, messages, consumers"):
            scene.fill()
        rows = check_live(scene)
        with step("stop one group in order, kill the other"):
            scene.wait_level()
            stopped, killed = scene.stop_in_order(), scene.kill_under_load()
        rows += check_planted(stopped, killed, only)
        rows += check_scrubbed(stopped)
        # Last: from here on files are written that the groups above have hard links to.
        rows += check_repaired(scene)
    return rows


if __name__ == "__main__":
    sys.exit(main())
