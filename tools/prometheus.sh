#!/bin/sh
# Prints the path of a program that the metrics are tested with, and gets it first where it is not there:
# tools/prometheus.sh prometheus|promtool
# Looked for: $PROMETHEUS or $PROMTOOL, build/tools, PATH. Otherwise Debian's package is unpacked below build/tools:
# nothing is installed and no daemon is started.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/build/tools
mkdir -p "$tools"
# Tests run side by side; one unpacks, the others wait for it.
exec 9>"$tools/.prometheus.lock" && flock 9 2>/dev/null || true
case ${1:-} in
  prometheus) named=${PROMETHEUS:-} ;;
  promtool) named=${PROMTOOL:-} ;;
  *) echo "usage: tools/prometheus.sh prometheus|promtool" >&2; exit 2 ;;
esac
for found in "$named" "$tools/prometheus/usr/bin/$1" "$(command -v "$1" || true)"; do
  if [ -x "$found" ]; then echo "$found"; exit 0; fi
done
for needed in apt-get dpkg; do
  command -v "$needed" >/dev/null 2>&1 || {
    echo "tools: no $1 here; install Prometheus or name it in \$$(echo "$1" | tr a-z A-Z)" >&2; exit 1; }
done

echo "tools: fetching Prometheus" >&2
fetched=$(mktemp -d "$tools/.prometheus.XXXXXX")
trap 'rm -rf "$fetched"' EXIT
# apt fetches as another user, who may write there.
chmod 777 "$fetched"
(
  cd "$fetched"
  # A machine whose lists are old or empty needs them first; that takes root.
  apt-get download -q prometheus >&2 || { apt-get update -qq >&2 && apt-get download -q prometheus >&2; }
  dpkg -x prometheus_*.deb unpacked
)
rm -rf "$tools/prometheus"
mv "$fetched/unpacked" "$tools/prometheus"
echo "$tools/prometheus/usr/bin/$1"
