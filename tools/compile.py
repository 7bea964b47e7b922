"""Compiles the modules that every message passes through into C extensions (mypyc); ADR 12 says why.

    make compiled                       # a copy of services/ with the extensions in it: build/compiled
    python tools/compile.py --into DIR  # in place, for the packages installed in DIR (an image's site-packages)

The Python files stay where they are and stay the source of truth: an extension beside a module is what the interpreter
prefers, and without it everything runs as before, about half as fast. Needs a C compiler (CC, cc, or the `ziglang`
package) and Python's headers.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SERVICES: Final = ROOT / "services"
COMPILED: Final = ROOT / "build" / "compiled"
STAMP: Final = ".compiled-from"

# What a message passes through, and nothing else: profiles do not see into extensions, and tests cannot exchange what
# is in them (which is why the sockets of `broker.master` stay out: the simulator plays them).
MODULES: Final = (
    "mqgrpc/errors",
    "mqgrpc/huffman",
    "mqgrpc/hpack",
    "mqgrpc/frames",
    "mqgrpc/stream",
    "mqgrpc/status",
    "mqgrpc/output",
    "mqgrpc/calls",
    "mqgrpc/answers",
    "mqgrpc/header_block",
    "mqgrpc/requests",
    "mqgrpc/connection",
    "mqgrpc/plain_sockets",
    "mqcore/message/properties",
    "mqcore/message/record",
    "mqcore/message/record_encoder",
    "mqcore/message/stored_message",
    "mqcore/histogram",
    "mqcore/metadata/topic_table",
    "mqcore/metadata/subscription_group_table",
    "mqcore/routing/queue_choice",
    "mqcore/delivery/handout",
    "mqcore/delivery/lease_state",
    "mqcore/delivery/lease_table",
    "mqcore/delivery/queue_progress",
    "mqcore/delivery/subscription",
    "mqcore/delivery/journal",
    "mqcore/replication/frames",
    "mqcore/replication/put_gate",
    "mqcore/replication/master_replica",
    "mqcore/replication/master_session",
    "mqcore/replication/slave_session",
    "mqcore/storage/put_result",
    "mqcore/storage/commit_log",
    "mqcore/storage/consume_queue",
    "mqcore/storage/consume_queue_table",
    "mqcore/storage/index_table",
    "mqcore/storage/message_store",
    "mqcore/storage/dispatch",
    "mqcore/storage/record_walk",
    "mqcore/storage/index_file",
    "mqcore/tracing/trace_context",
    "mqcore/tracing/send_spans",
    "mqcore/tracing/attributes",
    "mqcore/tracing/span_data",
    "mqcore/tracing/recent_spans",
    "mqservice/http2_front",
    "mqservice/telemetry/span_encoding",
    "mqservice/telemetry/send_encoding",
    "broker/put",
    "broker/tracing/send_tracer",
    "broker/write_path",
    "broker/queue_reader",
    "broker/client_api/settle",
    "broker/client_api/client_api",
    "broker/client_api/delivery_encoding",
    "broker/client_api/message_translation",
    "broker/client_api/receive",
    "broker/client_api/send",
    "broker/client_api/sent_message",
    "broker/client_api/validation",
)

_SETUP: Final = """
import sys
from setuptools import setup
from mypyc.build import mypycify
setup(
    name="tandemmq-compiled",
    packages=[],
    ext_modules=mypycify(
        ["--config-file", "{config}", *{modules!r}], opt_level="3", debug_level="0", multi_file=True
    ),
    script_args=["-q", "build_ext", "--inplace", "--parallel", "{jobs}", "--build-temp", "{scratch}"],
)
"""
# Types were checked by `make lint`; here mypy only has to understand them.
_MYPY_CONFIG: Final = """
[mypy]
python_version = 3.11
ignore_missing_imports = True
follow_imports = silent
disable_error_code = no-any-return, unused-ignore
"""


class CompileError(Exception):
    """What keeps the modules from being compiled; the text says what to do."""


def main() -> int:
    """Returns 0, or 1 with the cause on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, help="compile the packages in this folder, in place")
    target = parser.parse_args().into
    try:
        if target is None:
            compiled_copy()
        else:
            compile_in_place(target.resolve())
    except CompileError as error:
        print(f"compile: {error}", file=sys.stderr)
        return 1
    return 0


def compiled_copy() -> Path:
    """The import root with the extensions, made again only when a source changed. Raises CompileError."""
    fingerprint = _fingerprint(path for path in SERVICES.rglob("*") if path.is_file() and path.suffix != ".pyc")
    stamp = COMPILED / STAMP
    if stamp.exists() and stamp.read_text() == fingerprint:
        return COMPILED
    shutil.rmtree(COMPILED, ignore_errors=True)
    shutil.copytree(SERVICES, COMPILED, ignore=shutil.ignore_patterns("__pycache__", "Dockerfile"))
    compile_in_place(COMPILED)
    stamp.write_text(fingerprint)
    return COMPILED


def compile_in_place(root: Path) -> None:
    """Puts an extension beside each of `MODULES` below `root`. Raises CompileError."""
    environment = os.environ | {"CC": _compiler(), "MYPYPATH": os.pathsep.join((str(root), str(ROOT / "build/proto")))}
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise CompileError(f"no Python.h in {sysconfig.get_path('include')}; install python3-dev")
    scratch = ROOT / "build" / "compile"
    scratch.mkdir(parents=True, exist_ok=True)
    config = scratch / "mypy.ini"
    config.write_text(_MYPY_CONFIG)
    setup = _SETUP.format(
        config=config, modules=[f"{name}.py" for name in MODULES], jobs=os.cpu_count() or 1, scratch=scratch / "objects"
    )
    started = time.monotonic()
    print(f"compile: {len(MODULES)} modules, about a minute", flush=True)
    done = subprocess.run([sys.executable, "-c", setup], cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"mypyc failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    # mypyc's C sources and setuptools' copies are of no use to anybody.
    shutil.rmtree(root / "build", ignore_errors=True)
    print(f"compile: done in {time.monotonic() - started:.0f} s", flush=True)


def _compiler() -> str:
    if compiler := os.environ.get("CC"):
        return compiler
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return name
    if importlib.util.find_spec("ziglang") is not None:
        return f"{sys.executable} -m ziglang cc"
    raise CompileError("no C compiler; install gcc, or the Python package ziglang, or set CC")


def _fingerprint(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256(f"{sys.version}{MODULES}".encode())
    for path in sorted(paths):
        digest.update(str(path.relative_to(SERVICES)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
