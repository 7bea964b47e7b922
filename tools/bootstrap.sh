#!/bin/sh
# Makes .venv from uv.lock on a machine that has only Python 3.11+: no make targets, no uv, no venv module needed.
# uv.lock holds versions and hashes but no addresses, so packages come from whichever index pip or uv is set up for.
set -eu
cd "$(dirname "$0")/.."
extra=${1:-dev}
stamp=.venv/.stamp-$extra

if [ "$extra" = compiler ]; then
  # A C compiler and Python's headers, for tools/compile.py, which tells what is still missing.
  headers=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')
  { command -v cc >/dev/null 2>&1 || [ -n "${CC:-}" ]; } && [ -e "$headers/Python.h" ] && exit 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "setup: installing a C compiler and Python's headers" >&2
    apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev python3-dev >/dev/null
  fi
  exit 0
fi
if [ "$extra" = valgrind ]; then
  # Counts instructions, for benchmarks/send_instructions.py, which tells if it is still missing.
  if ! command -v valgrind >/dev/null 2>&1 && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq && apt-get install -y -qq --no-install-recommends valgrind >/dev/null
  fi
  exit 0
fi
if [ "$extra" = networks ]; then
  # For tests that cut links between processes, each in a network of its own; without them those tests are skipped.
  if { ! command -v ip || ! command -v iptables; } >/dev/null 2>&1 && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq && apt-get install -y -qq --no-install-recommends iproute2 iptables >/dev/null || true
  fi
  exit 0
fi
if [ "$extra" = docs ] && [ -e build/docs-venv/.stamp ] && [ build/docs-venv/.stamp -nt tools/docs_requirements.txt ]; then
  exit 0
fi
if [ -e "$stamp" ] && [ "$stamp" -nt uv.lock ] && [ "$stamp" -nt pyproject.toml ]; then
  # Stubs of older protos would serve older fields.
  if [ -n "$(find proto -name '*.proto' -newer "$stamp")" ]; then .venv/bin/python proto/build_hook.py && touch "$stamp"; fi
  exit 0
fi

# Debian's own Python before another that PATH names: it is built with profiles and link-time optimization, and a broker
# costs a fifth less on it than on one that was compiled without them (benchmarks/RESULTS.md). Not if what compiles
# extensions against it is missing and cannot be had.
is_usable='import os, shutil, sys, sysconfig
headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
sys.exit(sys.version_info < (3, 11) or not (headers or (os.geteuid() == 0 and shutil.which("apt-get"))))'
python=${PYTHON:-python3}
if [ -z "${PYTHON:-}" ] && /usr/bin/python3 -c "$is_usable" 2>/dev/null; then python=/usr/bin/python3; fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
  echo "tandemmq needs Python 3.11 or newer as '$python'; install it or set PYTHON=/path/to/python3.11" >&2; exit 1; }

if command -v uv >/dev/null 2>&1; then uv=uv
else
  uv=.tools/bin/uv
  if [ ! -x "$uv" ]; then
    echo "setup: installing uv into .tools" >&2
    # Any Python will do for that, and another one may have what Debian's has in a package of its own.
    if "$python" -m venv .tools >/dev/null 2>&1 || python3 -m venv --clear .tools >/dev/null 2>&1; then
      .tools/bin/pip install -q uv
    elif "$python" -m pip --version >/dev/null 2>&1; then
      rm -rf .tools && "$python" -m pip install -q --target .tools uv
    elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
      rm -rf .tools && apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null
      "$python" -m venv .tools && .tools/bin/pip install -q uv
    else
      echo "setup: '$python' has neither venv nor pip; install python3-venv (or uv) and try again" >&2; exit 1
    fi
  fi
fi

# All that images need on the machine itself: uv lists what is in them.
[ "$extra" = uv ] && exit 0
if [ "$extra" = docs ]; then
  # What builds the documents' site is no part of anything else: an environment of its own.
  mkdir -p build
  [ -x build/docs-venv/bin/python ] || "$uv" venv -q --python "$python" build/docs-venv
  "$uv" pip install -q --python build/docs-venv/bin/python --require-hashes -r tools/docs_requirements.txt
  touch build/docs-venv/.stamp
  exit 0
fi

count=$(grep -c '^\[\[package\]\]' uv.lock)
echo "setup: .venv for $extra from uv.lock, of up to $count packages, and the stubs of proto; a minute or two the first time" >&2
[ -x .venv/bin/python ] || "$uv" venv -q --python "$python" .venv
mkdir -p build
"$uv" export -q --frozen --no-emit-project --extra "$extra" --format requirements.txt -o build/requirements.txt >/dev/null
"$uv" pip install -q --python .venv/bin/python --require-hashes -r build/requirements.txt
echo "setup: packages are in; now the project itself" >&2
# The project itself, editable: two path entries, and the stubs in build/proto.
"$uv" pip install -q --python .venv/bin/python --no-deps -e .
touch "$stamp"
echo "setup: done; . .venv/bin/activate puts tandemmq on the path" >&2
