"""The load generators of benchmarks/load as one call each, and the windows they print.

`raw`                Go, over the API or RocketMQ's remoting protocol: costs little beside a server on the same
                     machine, so it is the one rows are made of.
`official`           the official Java client, over the API.
`official_remoting`  RocketMQ's own Java client, over its remoting protocol.
`ghz`                the gRPC load tester of that name, with a template for SendMessage.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from processes import MeasurementFailed, cpu_seconds, host_cpu_seconds, private_bytes
from system_under_test import ROOT

BODY_BYTES: Final = 1024
CLIENT_HEAP: Final = "1g"
# What a run may take beyond its windows: the client's start, its last answers, a receive that waits for more.
SLACK_S: Final = 120.0
# A server that sheds more load than this is not carrying it. RocketMQ refuses a send that waited 200 ms in its queue.
ERRORS_MAX: Final = 0.01
MEMORY_PAUSE_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Target:
    """Where load goes and whose CPU it costs."""

    label: str
    endpoint: str
    pids: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Window:
    """One measured stretch of load."""

    seconds: float
    messages: int
    errors: int
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    # User and system CPU by server process; the generator's own; and everybody else's on the machine.
    cpu_s: Mapping[str, float]
    own_cpu_s: float
    stranger_cpu_s: float
    # Most private memory seen while the generator ran, all its windows together; brokers only.
    brokers_bytes: int = 0

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    @property
    def server_cpu_us(self) -> float:
        """Microseconds of server CPU per message."""
        return sum(self.cpu_s.values()) * 1e6 / self.messages

    @property
    def generator_cpu_us(self) -> float:
        """Microseconds of the generator's CPU per message."""
        return self.own_cpu_s * 1e6 / self.messages

    @property
    def stranger_cores(self) -> float:
        """CPUs that processes outside the measurement used on average."""
        return self.stranger_cpu_s / self.seconds


@dataclass
class _MemoryWatch:
    """Highest private memory of some processes, sampled on a thread while load runs."""

    pids: tuple[int, ...]
    peak_bytes: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._over.wait(MEMORY_PAUSE_S):
            try:
                self.peak_bytes = max(self.peak_bytes, sum(map(private_bytes, self.pids)))
            except OSError:  # a process that ended fails its generator, which says more
                return

    def stop(self) -> None:
        self._over.set()


class Generators:
    """Command lines of the four generators, built once."""

    def __init__(self, *, say: Callable[[str], None], only_raw: bool = False) -> None:
        """Builds what is missing, which takes minutes the first time; `say` hears which part is at work. `only_raw`:
        nothing but `raw` will be called."""
        build = ROOT / "benchmarks" / "load" / "build.py"
        self._folder = ROOT / "build" / "load"
        said = []
        parts = ["rawload"] if only_raw else []
        with subprocess.Popen([sys.executable, str(build), *parts], stderr=subprocess.PIPE, text=True) as building:
            assert building.stderr is not None
            for line in building.stderr:
                say(line.rstrip())
                said.append(line)
        if building.returncode != 0:
            raise MeasurementFailed(f"the load generators were not built:\n{''.join(said)[-3000:]}")
        self._java: dict[str, list[str]] = {}
        for name, main in () if only_raw else (("official", "OfficialLoad"), ("remoting", "RemotingLoad")):
            path = subprocess.run(
                [sys.executable, str(build), "--classpath", name], capture_output=True, text=True, check=True
            ).stdout.strip()
            logs = self._folder / "logs"
            self._java[name] = [
                *("java", f"-Xms{CLIENT_HEAP}", f"-Xmx{CLIENT_HEAP}", "-XX:+UseG1GC", f"-Duser.home={logs}"),
                *(f"-Drocketmq.log.root={logs}", "-Drocketmq.log.level=WARN", "-cp", path, main),
            ]

    def raw(self, target: Target, operation: str, **options: object) -> list[Window]:
        """The Go generator: `send`, `drain`, or `remoting`, whose target's endpoint is a NameServer."""
        command = [str(self._folder / "rawload"), operation, f"--endpoint={target.endpoint}"]
        return _run(command, target, options)

    def official(self, target: Target, operation: str, **options: object) -> list[Window]:
        """The official Java client: `send` or `drain`."""
        return _run([*self._java["official"], operation, f"--endpoint={target.endpoint}"], target, options)

    def official_remoting(self, target: Target, operation: str, **options: object) -> list[Window]:
        """RocketMQ's remoting client: `send`; the target's endpoint is its NameServer."""
        return _run([*self._java["remoting"], operation, f"--ns={target.endpoint}"], target, options)

    def ghz(self, target: Target, *, topic: str, inflight: int, seconds: float) -> Window:
        """One window of ghz over one connection, the first fifth of it as warm-up included."""
        message = {
            "topic": {"name": topic},
            "body": "eHh4" * (BODY_BYTES // 3),
            "systemProperties": {
                "messageId": "01" + uuid.uuid4().hex[:20].upper() + "{{printf `%012X` .RequestNumber}}",
                "messageType": "NORMAL",
                "bodyEncoding": "IDENTITY",
                "bornHost": "ghz",
                "bornTimestamp": "{{.Timestamp}}",
            },
        }
        headers = {"x-mq-client-id": f"ghz@{uuid.uuid4()}", "x-mq-language": "JAVA", "x-mq-request-id": "{{.UUID}}"}
        protos = ROOT / "proto"
        command = [
            *(str(self._folder / "ghz"), "--insecure", "-O", "json", "--connections", "1", "-c", str(inflight)),
            *("-z", f"{seconds}s", "--duration-stop", "wait", "-i", str(protos)),
            *("--proto", str(protos / "apache" / "rocketmq" / "v2" / "service.proto")),
            *("--call", "apache.rocketmq.v2.MessagingService.SendMessage"),
            *("-m", json.dumps(headers), "-d", json.dumps({"messages": [message]}), target.endpoint),
        ]
        before, host_before = {name: cpu_seconds(pid) for name, pid in target.pids.items()}, host_cpu_seconds()
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + SLACK_S, check=False)
        wall = time.perf_counter() - started
        cpu = {name: cpu_seconds(pid) - before[name] for name, pid in target.pids.items()}
        if done.returncode != 0:
            raise MeasurementFailed(f"ghz against {target.label}: {done.stderr[-2000:]}")
        report = json.loads(done.stdout)
        spread = {entry["percentage"]: entry["latency"] / 1e6 for entry in report["latencyDistribution"] or ()}
        answered = int(report.get("statusCodeDistribution", {}).get("OK", 0))
        return _checked(
            target,
            Window(
                seconds=report["total"] / 1e9,
                messages=answered,
                errors=int(report["count"]) - answered,
                p50_ms=spread.get(50),
                p99_ms=spread.get(99),
                p999_ms=None,
                cpu_s=cpu,
                own_cpu_s=0.0,  # ghz does not say; it is part of what strangers are charged with
                stranger_cpu_s=(host_cpu_seconds() - host_before - sum(cpu.values())) * report["total"] / 1e9 / wall,
            ),
            done.stderr,
        )


def _checked(target: Target, window: Window, said: str) -> Window:
    """The window, if what it counted is what was asked for. `said` is the generator's standard error."""
    if window.messages == 0 or window.errors > window.messages * ERRORS_MAX:
        counted = f"{window.errors} errors beside {window.messages} messages"
        raise MeasurementFailed(f"{target.label}: {counted}; {said.strip()[:500]}")
    return window


def _run(command: list[str], target: Target, options: Mapping[str, object]) -> list[Window]:
    """Runs a generator to its end; returns its windows. MeasurementFailed when it fails or messages are refused."""
    pids = ",".join(f"{name}:{pid}" for name, pid in target.pids.items())
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    planned = float(str(options.get("warmup", 0))) + float(str(options.get("windows", 1))) * float(
        str(options.get("seconds", 0))
    )
    memory = _MemoryWatch(tuple(pid for name, pid in target.pids.items() if name != "proxy"))
    watcher = threading.Thread(target=memory.run, name="memory-watch")
    watcher.start()
    try:
        done = subprocess.run(
            [*command, *arguments, f"--pids={pids}"],
            capture_output=True,
            text=True,
            timeout=planned + float(str(options.get("limit", 0))) + SLACK_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MeasurementFailed(f"{Path(command[0]).name} against {target.label} did not end: {error}") from None
    finally:
        memory.stop()
        watcher.join()
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    windows = [line for line in lines if line["op"] != "total"]
    if done.returncode != 0 or not windows:
        said = (done.stdout[-500:] + done.stderr[-2000:]).strip()
        raise MeasurementFailed(f"{' '.join([*command, *arguments])}\nagainst {target.label} failed: {said}")
    return [_checked(target, _window(line, memory.peak_bytes), done.stderr) for line in windows]


def _window(line: Mapping[str, Any], brokers_bytes: int) -> Window:
    return Window(
        seconds=line["seconds"],
        messages=line["messages"],
        errors=line["errors"],
        p50_ms=line.get("p50_ms"),
        p99_ms=line.get("p99_ms"),
        p999_ms=line.get("p999_ms"),
        cpu_s=line["cpu_s"],
        own_cpu_s=line["own_cpu_s"],
        stranger_cpu_s=line["stranger_cpu_s"],
        brokers_bytes=brokers_bytes,
    )
