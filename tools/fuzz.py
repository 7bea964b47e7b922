"""Runs the fuzz target with atheris for some minutes.

    make fuzz MINUTES=10    # build/fuzz.json; what was found is kept in build/fuzz/

The corpus stays in build/fuzz/corpus, so that the next run goes on where this one ended.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "build" / "fuzz"
INPUT_BYTES_MAX: Final = 1_500
SEEDS: Final = 500


def fuzz(arguments: list[str]) -> None:
    """In the child: hands over to libFuzzer, which does not return."""
    import atheris  # type: ignore[import-not-found]  # only in the extra `fuzz`

    sys.path[:0] = [str(ROOT)]
    with atheris.instrument_imports(include=["mqgrpc"]):
        from fuzz.http2_connection import run_one
    atheris.Setup([sys.argv[0], *arguments], run_one)
    atheris.Fuzz()


def write_seeds(corpus: Path) -> None:
    """A corpus to begin with."""
    sys.path[:0] = [str(ROOT)]
    from fuzz.http2_connection import seeds

    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds(SEEDS)):
        (corpus / f"seed-{number}").write_bytes(data)


def main() -> int:
    """Exit code 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    arguments = parser.parse_args()
    corpus = FOLDER / "corpus"
    write_seeds(corpus)
    found_before = set(FOLDER.glob("found-*"))
    seconds = max(1, int(arguments.minutes * 60))
    process = subprocess.Popen(
        [
            sys.executable,
            __file__,
            "--child",
            str(corpus),
            f"-max_total_time={seconds}",
            f"-max_len={INPUT_BYTES_MAX}",
            f"-artifact_prefix={FOLDER}/found-",
            "-timeout=10",
            "-rss_limit_mb=1500",
            "-print_final_stats=1",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output = []
    assert process.stdout is not None
    for line in process.stdout:
        output.append(line)
        if not line.startswith("#") or "pulse" in line or "DONE" in line:
            print(line, end="", flush=True)
    code = process.wait()
    (FOLDER / "log.txt").write_text("".join(output))
    runs = re.search(r"stat::number_of_executed_units: (\d+)", "".join(output))
    findings = len(set(FOLDER.glob("found-*")) - found_before)
    holds = code == 0 and findings == 0
    rows = [
        {"name": "fuzz_findings", "value": findings + (code != 0 and not findings), "unit": "inputs"}
        | {"target": "0", "holds": holds},
        {"name": "fuzz_time", "value": seconds, "unit": "s", "target": ">= 600", "holds": seconds >= 600},
        {"name": "fuzz_runs", "value": int(runs[1]) if runs else 0, "unit": "inputs", "target": None, "holds": True},
    ]
    (ROOT / "build" / "fuzz.json").write_text(json.dumps(rows, indent=2) + "\n")
    print(f"{rows[2]['value']} inputs in {seconds} s, {rows[0]['value']} findings")
    return 0 if holds else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        fuzz(sys.argv[2:])
    else:
        raise SystemExit(main())
