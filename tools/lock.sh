#!/bin/sh
# Renews uv.lock and takes the download addresses out of it: a lock pins versions and hashes, and which index or mirror
# serves them is the machine's affair. `uv export` and `--require-hashes` need no more (see docs/adr).
set -eu
cd "$(dirname "$0")/.."
uv=$(command -v uv || echo .tools/bin/uv)
rm -f uv.lock
"$uv" lock
sed -E -i 's#registry = "https?://[^"]*"#registry = "registry"#; s#\{ url = "https?://[^"]*/([^"/]+)"#{ path = "\1"#' uv.lock
! grep -n '://' uv.lock
