#!/bin/sh
# Prints the path of the OpenTelemetry Collector that traces are tested with, and builds it first where it is not there.
# Looked for: $OTEL_COLLECTOR, build/tools. Otherwise it is built from its Go modules in some minutes; which parts it has
# is in tools/otel_collector/main.go.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/build/tools
mkdir -p "$tools"
exec 9>"$tools/.otel-collector.lock" && flock 9 2>/dev/null || true
if [ -x "${OTEL_COLLECTOR:-}" ]; then echo "$OTEL_COLLECTOR"; exit 0; fi
program=$tools/otel-collector
sources=tools/otel_collector
if [ -x "$program" ] && [ "$program" -nt "$sources/main.go" ] && [ "$program" -nt "$sources/go.mod" ]; then
  echo "$program"; exit 0
fi

go=$(tools/go.sh)
echo "tools: building the OpenTelemetry Collector" >&2
building=$(mktemp -d "$tools/.otel-collector.XXXXXX")
trap 'rm -rf "$building"' EXIT
(cd "$sources" && CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-mod=readonly -modcacherw -buildvcs=false" \
  "$go" build -trimpath -ldflags "-s -w" -o "$building/otel-collector" . >&2)
mv "$building/otel-collector" "$program"
echo "$program"
