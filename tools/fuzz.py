"""Runs the fuzz targets with atheris, one after the other, for some minutes altogether.

    make fuzz MINUTES=10                                # all: build/fuzz.json; what was found is kept in build/fuzz/
    make fuzz MINUTES=5 ONLY="send_request ack_request"

The corpus of a target stays in build/fuzz/<target>/corpus, so that the next run goes on where this one ended. atheris
follows interpreted code alone; a broker's is compiled, so the corpus then goes through build/compiled as well.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "build" / "fuzz"
COMPILED: Final = ROOT / "build" / "compiled"
INPUT_BYTES_MAX: Final = 1_500
SEEDS: Final = 500


@dataclass(frozen=True, slots=True)
class Target:
    # A module of it; atheris follows the whole package.
    module: str
    is_compiled: bool = True
    # Of the time, beside the others': a connection has far more states than a decoder.
    share: int = 1


TARGETS: Final = {
    "http2_connection": Target("tandemmq.http2.connection", share=2),
    "header_blocks": Target("tandemmq.http2.hpack"),
    "send_request": Target("tandemmq.broker.client_api.sent_message"),
    "ack_request": Target("tandemmq.broker.client_api.settle"),
    "client_texts": Target("tandemmq.core.delivery.sql_filter"),
    "client_calls": Target("tandemmq.broker.client_api.send"),
    "ha_reports": Target("tandemmq.core.replication.sessions"),
    "master_frames": Target("tandemmq.core.replication.sessions"),
    "registrations": Target("tandemmq.nameserver.name_server", is_compiled=False),
    "admin_requests": Target("tandemmq.admin.http_api", is_compiled=False),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a target's run showed."""

    target: str
    seconds: int
    inputs: int
    findings: int
    # Of the inputs the compiled code was given, those it failed at: one at most, it ends there.
    compiled_findings: int


def fuzz(name: str, arguments: list[str]) -> None:
    """In a child: hands over to libFuzzer, which does not return."""
    import atheris  # type: ignore[import-not-found]  # only in the extra `fuzz`

    with atheris.instrument_imports(include=[TARGETS[name].module]):
        run_one, _ = _target(name)
    atheris.Setup([sys.argv[0], *arguments], run_one)
    atheris.Fuzz()


def replay(name: str) -> None:
    """In a child: all inputs of the corpus, through the compiled code."""
    run_one, _ = _target(name)
    file = str(sys.modules[TARGETS[name].module].__file__)
    if file.endswith(".py"):
        raise SystemExit(f"{file} is not compiled; make it with `make compiled`")
    faulthandler.enable()
    for path in sorted(_corpus(name).iterdir()):
        try:
            run_one(path.read_bytes())
        except Exception:
            print(f"compiled code fails at {path}", file=sys.stderr)
            raise


def _target(name: str) -> tuple[Callable[[bytes], None], Callable[[int], Iterator[bytes]]]:
    """A target's `run_one` and `seeds`."""
    sys.path[:0] = [str(ROOT)]
    module = importlib.import_module(f"fuzz.{name}")
    return module.run_one, module.seeds


def _corpus(name: str) -> Path:
    return FOLDER / name / "corpus"


def run_target(name: str, seconds: int) -> Outcome:
    """Fuzzes, then replays."""
    print(f"== {name}: {seconds} s", flush=True)
    corpus = _corpus(name)
    corpus.mkdir(parents=True, exist_ok=True)
    _, seeds = _target(name)
    for number, data in enumerate(seeds(SEEDS)):
        (corpus / f"seed-{number}").write_bytes(data)
    found_before = set((FOLDER / name).glob("found-*"))
    code, output = _run_child(
        *("--fuzz", name, str(corpus), f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}"),
        *(f"-artifact_prefix={FOLDER / name}/found-", "-timeout=120", "-rss_limit_mb=1500", "-print_final_stats=1"),
    )
    (FOLDER / name / "log.txt").write_text(output)
    runs = re.search(r"stat::number_of_executed_units: (\d+)", output)
    findings = len(set((FOLDER / name).glob("found-*")) - found_before)
    compiled_code = 0
    if TARGETS[name].is_compiled:
        compiled_code, _ = _run_child("--replay", name, more={"PYTHONPATH": str(COMPILED)})
    return Outcome(
        name,
        seconds=seconds,
        inputs=int(runs[1]) if runs else 0,
        findings=findings or int(code != 0),
        compiled_findings=int(compiled_code != 0),
    )


def _run_child(*arguments: str, more: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and output, which is shown as it comes, less most of libFuzzer's many lines."""
    process = subprocess.Popen(
        [sys.executable, __file__, *arguments],
        env=os.environ | (more or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    output = []
    assert process.stdout is not None
    for line in process.stdout:
        output.append(line)
        if not line.startswith("#") or "pulse" in line or "DONE" in line:
            print(line, end="", flush=True)
    return process.wait(), "".join(output)


def _row(name: str, value: int, unit: str, target: str | None = None, *, holds: bool = True) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": holds}


def rows(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Of all targets together, then of each."""
    findings = sum(each.findings + each.compiled_findings for each in outcomes)
    seconds = sum(each.seconds for each in outcomes)
    found = [
        _row("fuzz_findings", findings, "inputs", "0", holds=findings == 0),
        _row("fuzz_time", seconds, "s", ">= 600", holds=seconds >= 600),
        _row("fuzz_runs", sum(each.inputs for each in outcomes), "inputs"),
    ]
    for each in outcomes:
        found += [
            _row(f"fuzz_{each.target}_findings", each.findings, "inputs", "0", holds=each.findings == 0),
            _row(
                f"fuzz_{each.target}_compiled_findings",
                each.compiled_findings,
                "inputs",
                "0",
                holds=each.compiled_findings == 0,
            ),
            _row(f"fuzz_{each.target}_time", each.seconds, "s"),
            _row(f"fuzz_{each.target}_runs", each.inputs, "inputs"),
        ]
    return found


def main() -> int:
    """Exit code 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="for all targets together")
    parser.add_argument("--only", action="append", choices=sorted(TARGETS), help="a target; may be repeated")
    arguments = parser.parse_args()
    names = [name for name in TARGETS if not arguments.only or name in arguments.only]
    share_s = arguments.minutes * 60 / sum(TARGETS[name].share for name in names)
    outcomes = [run_target(name, max(1, round(TARGETS[name].share * share_s))) for name in names]
    (ROOT / "build" / "fuzz.json").write_text(json.dumps(rows(outcomes), indent=2) + "\n")
    for each in outcomes:
        print(
            f"{each.target}: {each.inputs} inputs in {each.seconds} s, {each.findings} findings; "
            f"compiled: {each.compiled_findings}"
        )
    return 1 if any(each.findings or each.compiled_findings for each in outcomes) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fuzz"]:
        fuzz(sys.argv[2], sys.argv[3:])
    elif sys.argv[1:2] == ["--replay"]:
        replay(sys.argv[2])
    else:
        raise SystemExit(main())
