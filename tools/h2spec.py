"""Compares our HTTP/2 front with grpcio's on the cases of h2spec, case by case.

    make h2spec            # builds h2spec with Go, runs it against both: build/h2spec.json

Both serve the same method. Every case that grpcio passes, the front has to pass, or `REASONS`
says why failing it does no harm.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
BUILD: Final = ROOT / "build"
H2SPEC: Final = "github.com/summerwind/h2spec/cmd/h2spec@latest"
# A case waits this long for an answer; several cases pass only when it comes.
TIMEOUT_S: Final = 2

sys.path[:0] = [str(ROOT / "tests")]

from google.protobuf.empty_pb2 import Empty

from tandemmq.service.event_loop import SystemClock
from tandemmq.service.grpc_server import GrpcServer
from tandemmq.service.http2_front import Http2Front
from tandemmq.service.rpc import Call, MethodTable, UnaryMethod

# Why a case that the front fails does no harm. h2spec sends plain GET and POST requests, which a gRPC server answers at
# once with a status of HTTP; so where a case wants to see a mistake on an open stream, there is none open any more.
ANSWERED: Final = "the request is no gRPC and answered already; a mistake on an ended stream harms nobody"
REASONS: Final = {
    "http2/5.1.2 Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded": (
        "each request is answered and closed at once, so the limit is never reached; test_attacks has the case"
    ),
    "generic/2 Sends a WINDOW_UPDATE frame on half-closed (remote) stream": "405 has no DATA",
    "generic/2 Sends a PRIORITY frame on half-closed (remote) stream": "405 has no DATA",
    "http2/4.2 Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE": (
        "its frame is one byte above the protocol's default; the front offers 64 KiB"
    ),
    "http2/6.9.1 Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a stream": (
        ANSWERED
    ),
    'http2/8.1.2.6 Sends a HEADERS frame with the "content-length" header field which does not equal the DATA frame '
    "payload length": ANSWERED,
    'http2/8.1.2.6 Sends a HEADERS frame with the "content-length" header field which does not equal the sum of the '
    "multiple DATA frames payload length": ANSWERED,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One case of h2spec against one server."""

    name: str
    passed: bool
    detail: str


def build_h2spec() -> Path:
    """The program; built with Go if it is not there. SystemExit without Go."""
    program = BUILD / "go" / "bin" / "h2spec"
    if program.exists():
        return program
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not Path(go).exists():
        raise SystemExit("h2spec is built with Go, and there is none on PATH or in /usr/local/go")
    folder = BUILD / "go"
    environment = os.environ | {"GOPATH": str(folder), "GOCACHE": str(folder / "cache"), "GOFLAGS": "-modcacherw"}
    subprocess.run([go, "install", H2SPEC], env=environment, check=True)
    return program


async def run_h2spec(program: Path, port: int, report: Path) -> list[Case]:
    """Runs all cases, strict ones too."""
    report.unlink(missing_ok=True)
    process = await asyncio.create_subprocess_exec(
        str(program),
        *("--strict", "--port", str(port), "--timeout", str(TIMEOUT_S), "--junit-report", str(report)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    await process.wait()
    cases: dict[str, Case] = {}
    for found in ElementTree.parse(report).getroot().iter("testcase"):
        trouble = found.find("failure")
        trouble = trouble if trouble is not None else found.find("error")
        name = f"{found.get('package', '')} {found.get('classname', '')}".strip()
        while name in cases:
            name += "'"
        detail = " ".join("".join(trouble.itertext()).split()) if trouble is not None else ""
        cases[name] = Case(name, trouble is None, detail)
    return list(cases.values())


def answer(request: Empty, call: Call) -> None:
    """The only method."""
    call.send(request)
    call.finish()


async def compare(program: Path) -> tuple[list[Case], list[Case]]:
    """Cases against grpcio and against the front."""
    table = MethodTable("test.Service", {"Method": UnaryMethod(answer, Empty)})
    theirs = GrpcServer("127.0.0.1", 0, clock=SystemClock())
    ours = Http2Front("127.0.0.1", 0, clock=SystemClock())
    theirs.add(table)
    ours.add(table)
    ports = await theirs.start(), await ours.start()
    try:
        return (
            await run_h2spec(program, ports[0], BUILD / "h2spec-grpcio.xml"),
            await run_h2spec(program, ports[1], BUILD / "h2spec-mqgrpc.xml"),
        )
    finally:
        await theirs.stop(limit_ms=500)
        await ours.stop(limit_ms=500)


def main() -> int:
    """Exit code 1 when grpcio passes a case that the front fails."""
    BUILD.mkdir(exist_ok=True)
    theirs, ours = asyncio.run(compare(build_h2spec()))
    by_name = {case.name: case for case in theirs}
    worse: list[str] = []
    unexplained: list[str] = []
    for case in ours:
        other = by_name[case.name]
        if case.passed != other.passed:
            print(f"{'+' if case.passed else '-'} {case.name}\n    {case.detail or other.detail}")
        elif not case.passed:
            print(f"= {case.name}\n    {case.detail}\n    grpcio: {other.detail}")
        if not case.passed:
            print(f"    {REASONS.get(case.name, 'NOT EXPLAINED')}")
            if other.passed and case.name not in REASONS:
                worse.append(case.name)
            elif case.name not in REASONS:
                unexplained.append(case.name)
    scores = [sum(case.passed for case in cases) for cases in (theirs, ours)]
    print(f"grpcio {scores[0]} of {len(theirs)}, mqgrpc {scores[1]} of {len(ours)}, behind grpcio in {len(worse)}")
    rows = [
        {"name": "h2spec_grpcio", "value": scores[0], "unit": "cases", "target": None, "holds": True},
        {"name": "h2spec_mqgrpc", "value": scores[1], "unit": "cases", "target": f">= {scores[0]}"}
        | {"holds": scores[1] >= scores[0]},
        {"name": "h2spec_behind_grpcio", "value": len(worse), "unit": "cases", "target": "0", "holds": not worse},
        {"name": "h2spec_unexplained", "value": len(unexplained), "unit": "cases", "target": "0"}
        | {"holds": not unexplained},
    ]
    (BUILD / "h2spec.json").write_text(json.dumps(rows, indent=2) + "\n")
    return 1 if worse or unexplained else 0


if __name__ == "__main__":
    raise SystemExit(main())
