"""Instructions of a sync-replicated send, by part: what `send_path.py` times, counted by valgrind's callgrind; once of
requests with a message each, once of the same that go round many topics, once of requests with 32, and once of requests
that a user signed, at a broker that asks for that.

A count is the same whatever else the machine does, to about one in a hundred, so it tells apart what two timings on a
shared machine cannot. It knows nothing of caches: what it finds is to be timed all the same. Counted are the modules as
images have them (`make compiled`), of the Python this runs with.

    make bench-instructions                        # build/bench-instructions.json
    python benchmarks/send_instructions.py --topics 1000 --only many_topics_send
    callgrind_annotate --inclusive=yes build/send.callgrind.1          # and build/batch_send.callgrind.1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
COMPILED: Final = ROOT / "build" / "compiled"
REPORT: Final = ROOT / "build" / "bench-instructions.json"
DUMPS: Final = ROOT / "build"
PATH: Final = "/apache.rocketmq.v2.MessagingService/SendMessage"
QUEUES: Final = 8
MESSAGES: Final = 32
"""In a read: of as many requests, or of one."""
WARM_UP_READS: Final = 50
"""At least, before the counting: tables are filled and memory is mapped."""
COUNT_LIMIT_S: Final = 900
CONTROL_LIMIT_S: Final = 60
PARTS: Final = {
    "request_head": "CPyDef_requests___Requests___on_headers",
    "request": "CPyDef_http2_call___Http2Call____run",
    "request_decode": "CPyDef_sent_message___SendRequest___FromString",
    "request_check_and_translate": "CPyDef_send___SendHandler____accepted",
    "request_put": "CPyDef_write_path___WritePath___put",
    "turn": "CPyDef_write_path___WritePath____end_of_turn",
    "turn_answer": "CPyDef_write_path___WritePath____finish",
}
"""Rows by the compiled function whose instructions they are, with all that it calls: those of `request_put_store` are
among those of `request_put`, which are among those of `request`."""
GUARD_PARTS: Final = {
    "request_guard": "CPyDef_access___ClientAccess___refusal",
    "request_guard_needs": "CPyDef_access____published",
}
"""Further rows of signed sends: whether the call may go on, and what is asked of its user's policies."""
STORE_PARTS: Final = {1: "MessageStore___put", MESSAGES: "MessageStore___put_batch"}
"""`request_put_store`, by the messages of a request."""


async def _counted(topics: Sequence[str], warm_up: int, data: list[bytes], signed: bool) -> None:
    """What runs in callgrind, which counts from the end of the warm-up on."""
    import structlog

    from send_path import ReplicatingBroker, connection_of
    from tandemmq.http2 import frames
    from tandemmq.service.event_loop import SystemClock
    from tandemmq.service.http2_front import Http2Front

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        broker = ReplicatingBroker(Path(folder))
        for topic in topics:
            broker.add_topic(topic, queue_count=QUEUES)
        if signed:
            broker.guard()
        front = Http2Front("127.0.0.1", 0, clock=SystemClock())
        front.add(broker.api.method_table())
        connection = connection_of(front)
        connection.receive(frames.PREFACE + frames.settings({}) + frames.window_update(0, 1 << 30), monotonic())
        connection.take_output()
        for number, read in enumerate(data):
            if number == warm_up:
                _control("--instr=on")
            connection.receive(read, monotonic())
            while connection.open_streams:
                await asyncio.sleep(0)  # the end of the turn ships to the slave
            connection.take_output()
        _control("--dump")
        broker.close()


def _control(command: str) -> None:
    arguments = ["callgrind_control", command, str(os.getpid())]
    subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True, timeout=CONTROL_LIMIT_S)


def _parts(batch: int, *, signed: bool) -> dict[str, str]:
    """`PARTS` of sends with so many messages a request, and of the guard before them."""
    parts = {**PARTS, "request_put_store": f"CPyDef_message_store___{STORE_PARTS[batch]}"}
    return parts | GUARD_PARTS if signed else parts


def _count(
    topics: Sequence[str], warm_up: int, data: list[bytes], dump: Path, parts: Iterable[str], *, signed: bool
) -> Counter[str]:
    """Instructions by function, what it calls included, of `parts` at least; of everything under ""."""
    for old in dump.parent.glob(f"{dump.name}*"):
        old.unlink()
    with tempfile.NamedTemporaryFile(dir=ROOT / "build") as file:
        pickle.dump((topics, warm_up, data, signed), file)
        file.flush()
        done = subprocess.run(
            [
                "valgrind",
                "--tool=callgrind",
                "--instr-atstart=no",
                f"--callgrind-out-file={dump}",
                sys.executable,
                __file__,
                "--counted",
                file.name,
            ],
            env=os.environ | {"PYTHONPATH": str(COMPILED), "PYTHONHASHSEED": "0"},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=COUNT_LIMIT_S,
        )
    if done.returncode:
        raise SystemExit(f"callgrind did not count:\n{done.stderr[-2_000:]}")
    counts = inclusive_counts(dump.with_name(f"{dump.name}.1").read_text())
    if missing := [function for function in parts if function not in counts]:
        raise SystemExit(f"no longer compiled, or called otherwise: {', '.join(missing)}; name it anew in PARTS")
    return counts


def inclusive_counts(dump: str) -> Counter[str]:
    """Of a callgrind dump with one kind of event: lines `fn=(id) name` begin a function, `calls=` lines say that the
    next line's cost is a callee's."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    function = ""
    for line in dump.splitlines():
        if found := re.match(r"(c?fn)=\((\d+)\)(?: (.+))?", line):
            if found[3]:
                names[found[2]] = found[3]
            if found[1] == "fn":
                function = names[found[2]]
        elif line[:1] in "+-*0123456789" and line:
            counts[function] += int(line.rsplit(" ", 1)[1])
        elif line.startswith(("summary:", "totals:")):
            counts[""] = int(line.split()[1]) or counts[""]
    return counts


def main() -> None:
    """Counts, prints the table and writes build/bench-instructions.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=200, help="of 32 messages that are counted (default %(default)s)")
    parser.add_argument("--topics", type=int, default=100, help="of many_topics_send (default %(default)s)")
    parser.add_argument("--only", choices=("send", "many_topics_send", "batch_send", "signed_send"))
    parser.add_argument("--counted", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.counted is not None:
        asyncio.run(_counted(*pickle.loads(options.counted.read_bytes())))
        return
    if not COMPILED.is_dir():
        parser.error("there is no build/compiled; make it with `make compiled`")
    if shutil.which("valgrind") is None:
        parser.error("valgrind is missing; install the package of that name, or `make bench-instructions` as root")
    from report import Row
    from send_path import TOPIC, reads

    rows = []
    many_topics = [f"{TOPIC}-{number:05d}" for number in range(options.topics)]
    for kind, batch, topics in (
        ("send", 1, [TOPIC]),
        ("many_topics_send", 1, many_topics),
        ("batch_send", MESSAGES, [TOPIC]),
        ("signed_send", 1, [TOPIC]),
    ):
        if options.only not in (None, kind):
            continue
        # A message in each queue, so that none is made while we count.
        warm_up = max(WARM_UP_READS, len(topics) * QUEUES // MESSAGES)
        signed = kind == "signed_send"
        parts = _parts(batch, signed=signed)
        data = reads(
            count=warm_up + options.reads,
            requests=MESSAGES // batch,
            batch=batch,
            body_bytes=1_024,
            path=PATH,
            topics=topics,
            signed=signed,
        )
        counts = _count(topics, warm_up, data, DUMPS / f"{kind}.callgrind", parts.values(), signed=signed)
        rows += [
            Row.absolute(f"{kind}_instructions{name}", counts[function] / options.reads / MESSAGES, "instructions/msg")
            for name, function in (("", ""), *((f"_{name}", function) for name, function in parts.items()))
        ]
    for row in rows:
        print(f"{row.name:<46}{row.value:>10,.0f}")
    REPORT.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
