"""Compiles the modules that every message passes through into C extensions (mypyc); ADR 12 says why.

    make compiled                       # a copy of services/ with the extensions in it: build/compiled
    python tools/compile.py --into DIR  # in place, for the packages installed in DIR (an image's site-packages)
    python tools/compile.py --level 1   # sooner, for tests: of the C compiler's optimizations the first alone

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
LEVEL: Final = 3

# What a message passes through, and nothing else: profiles do not see into extensions, and tests cannot exchange what
# is in them (which is why the sockets of `tandemmq.broker.master` stay out: the simulator plays them).
# A dataclass in one of them needs the classes of its fields at run time, so these are not imported below TYPE_CHECKING:
# mypyc makes its annotations of the classes themselves, and crashes where one is not there yet.
MODULES: Final = (
    "tandemmq/http2/errors",
    "tandemmq/http2/hpack",
    "tandemmq/http2/frames",
    "tandemmq/http2/stream",
    "tandemmq/http2/output",
    "tandemmq/http2/calls",
    "tandemmq/http2/requests",
    "tandemmq/http2/connection",
    "tandemmq/http2/sockets",
    "tandemmq/core/message/properties",
    "tandemmq/core/message/record",
    "tandemmq/core/message/stored_message",
    "tandemmq/core/histogram",
    "tandemmq/core/metadata/topic_table",
    "tandemmq/core/metadata/subscription_group_table",
    "tandemmq/core/routing/queue_choice",
    "tandemmq/core/delivery/half_messages",
    "tandemmq/core/delivery/lite_topics",
    "tandemmq/core/delivery/handout",
    "tandemmq/core/delivery/timer_queue",
    "tandemmq/core/delivery/lease_terms",
    "tandemmq/core/delivery/lease_state",
    "tandemmq/core/delivery/lease_table",
    "tandemmq/core/delivery/queue_progress",
    "tandemmq/core/delivery/subscription",
    "tandemmq/core/delivery/sql_filter",
    "tandemmq/core/delivery/journal",
    "tandemmq/core/replication/frames",
    "tandemmq/core/replication/put_gate",
    "tandemmq/core/replication/master_replica",
    "tandemmq/core/replication/sessions",
    "tandemmq/core/storage/put_result",
    "tandemmq/core/storage/commit_log",
    "tandemmq/core/storage/consume_queue",
    "tandemmq/core/storage/consume_queue_table",
    "tandemmq/core/storage/index_table",
    "tandemmq/core/storage/message_store",
    "tandemmq/core/storage/dispatch",
    "tandemmq/core/storage/index_file",
    "tandemmq/core/tracing/span_data",
    "tandemmq/core/tracing/send_spans",
    "tandemmq/core/tracing/recent_spans",
    "tandemmq/service/http2_call",
    "tandemmq/service/telemetry/span_encoding",
    "tandemmq/broker/put",
    "tandemmq/broker/tracing/send_tracer",
    "tandemmq/broker/send_room",
    "tandemmq/broker/write_path",
    "tandemmq/broker/queue_reader",
    "tandemmq/broker/client_api/access",
    "tandemmq/broker/client_api/settle",
    "tandemmq/broker/client_api/client_api",
    "tandemmq/broker/client_api/delivery_encoding",
    "tandemmq/broker/client_api/lite",
    "tandemmq/broker/client_api/message_translation",
    "tandemmq/broker/client_api/receive",
    "tandemmq/broker/client_api/send",
    "tandemmq/broker/client_api/sent_message",
    "tandemmq/broker/client_api/transactions",
    "tandemmq/broker/client_api/validation",
)

_SETUP: Final = """
import sys
from setuptools import setup
from mypyc.build import mypycify
setup(
    name="tandemmq-compiled",
    packages=[],
    ext_modules=mypycify(
        ["--config-file", "{config}", *{modules!r}], opt_level="{level}", debug_level="0", multi_file=True
    ),
    script_args=["-q", "build_ext", "--inplace", "--parallel", "{jobs}", "--build-temp", "{scratch}"],
)
"""
# Types were checked by `make lint`; here mypy only has to understand them.
_MYPY_CONFIG: Final = """
[mypy]
python_version = 3.11
explicit_package_bases = True
ignore_missing_imports = True
follow_imports = silent
disable_error_code = no-any-return, unused-ignore
# Not beside the packages: nine megabytes that an image would hold.
cache_dir = {cache}
"""


class CompileError(Exception):
    """What keeps the modules from being compiled; the text says what to do."""


def main() -> int:
    """Returns 0, or 1 with the cause on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, help="compile the packages in this folder, in place")
    parser.add_argument("--level", type=int, choices=range(LEVEL + 1), default=LEVEL, help="how far C is optimized")
    arguments = parser.parse_args()
    try:
        if arguments.into is None:
            compiled_copy(level=arguments.level)
        else:
            compile_in_place(arguments.into.resolve(), level=arguments.level)
    except CompileError as error:
        print(f"compile: {error}", file=sys.stderr)
        return 1
    return 0


def compiled_copy(*, level: int = LEVEL) -> Path:
    """The import root with the extensions, of that level or a higher one, made again only when a source changed.

    Raises CompileError.
    """
    fingerprint = _fingerprint(path for path in SERVICES.rglob("*") if path.is_file() and path.suffix != ".pyc")
    stamp = COMPILED / STAMP
    if stamp.exists() and stamp.read_text() in {f"{fingerprint} {made}" for made in range(level, LEVEL + 1)}:
        return COMPILED
    shutil.rmtree(COMPILED, ignore_errors=True)
    shutil.copytree(SERVICES, COMPILED, ignore=shutil.ignore_patterns("__pycache__", "Dockerfile"))
    compile_in_place(COMPILED, level=level)
    stamp.write_text(f"{fingerprint} {level}")
    return COMPILED


def compile_in_place(root: Path, *, level: int = LEVEL) -> None:
    """Puts an extension beside each of `MODULES` below `root`. Raises CompileError."""
    environment = os.environ | {"CC": _compiler(), "MYPYPATH": os.pathsep.join((str(root), str(ROOT / "build/proto")))}
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise CompileError(f"no Python.h in {sysconfig.get_path('include')}; install python3-dev")
    scratch = ROOT / "build" / "compile"
    scratch.mkdir(parents=True, exist_ok=True)
    # mypyc makes no C of what its cache has, and the C of the last run is gone.
    cache = scratch / "mypy_cache"
    shutil.rmtree(cache, ignore_errors=True)
    config = scratch / "mypy.ini"
    config.write_text(_MYPY_CONFIG.format(cache=cache))
    # Another level's objects would be taken for ours.
    objects = scratch / f"objects-{level}"
    setup = _SETUP.format(
        config=config,
        modules=[f"{name}.py" for name in MODULES],
        level=level,
        jobs=os.cpu_count() or 1,
        scratch=objects,
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
