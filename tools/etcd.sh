#!/bin/sh
# Prints the path of etcd, which the failover's record is tested with, and gets it first where it is not there.
# Looked for: $ETCD, build/tools, $KUBE_HOME/bin (the test cluster's), PATH. Otherwise Debian's package is unpacked below
# build/tools: nothing is installed and no daemon is started.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/build/tools
mkdir -p "$tools"
# Tests run side by side; one unpacks, the others wait for it.
exec 9>"$tools/.etcd.lock" && flock 9 2>/dev/null || true
for found in "${ETCD:-}" "$tools/etcd/usr/bin/etcd" "${KUBE_HOME:-/var/tmp/onebox-kube}/bin/etcd" "$(command -v etcd || true)"; do
  if [ -x "$found" ]; then echo "$found"; exit 0; fi
done
for needed in apt-get dpkg; do
  command -v "$needed" >/dev/null 2>&1 || { echo "tools: no etcd here; install etcd 3.4 or later, or name it in \$ETCD" >&2; exit 1; }
done

echo "tools: fetching etcd" >&2
fetched=$(mktemp -d "$tools/.etcd.XXXXXX")
trap 'rm -rf "$fetched"' EXIT
# apt fetches as another user, who may write there.
chmod 777 "$fetched"
(
  cd "$fetched"
  # A machine whose lists are old or empty needs them first; that takes root.
  apt-get download -q etcd-server >&2 || { apt-get update -qq >&2 && apt-get download -q etcd-server >&2; }
  dpkg -x etcd-server_*.deb unpacked
)
rm -rf "$tools/etcd"
mv "$fetched/unpacked" "$tools/etcd"
echo "$tools/etcd/usr/bin/etcd"
