#!/bin/sh
# Prints the path of a tool the chart is tested with, and gets it first where it is not there: tools/helm.sh helm|kubeconform
# Looked for: $HELM or $KUBECONFORM, build/tools, $KUBE_HOME/bin (the test cluster's), PATH. Otherwise it is built from
# its Go module, helm in a few minutes.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/build/tools
mkdir -p "$tools"
# Tests run side by side; one builds, the others wait for it.
exec 9>"$tools/.lock" && flock 9 2>/dev/null || true
case ${1:-} in
  # What helm takes for the cluster's version where it has none, as in its own Makefile.
  helm) module=helm.sh/helm/v3/cmd/helm@v3.22.0 named=${HELM:-}
    kube=helm.sh/helm/v3/pkg; version="-X $kube/chartutil.k8sVersionMinor=33 -X $kube/lint/rules.k8sVersionMinor=33" ;;
  kubeconform) module=github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0 named=${KUBECONFORM:-} version= ;;
  *) echo "usage: tools/helm.sh helm|kubeconform" >&2; exit 2 ;;
esac

for found in "$named" "$tools/$1" "${KUBE_HOME:-/var/tmp/onebox-kube}/bin/$1" "$(command -v "$1" || true)"; do
  # The chart is tested with helm 3, whose messages the tests know.
  if [ -x "$found" ] && { [ "$1" != helm ] || "$found" version --short 2>/dev/null | grep -q '^v3\.'; }; then
    echo "$found"; exit 0
  fi
done

go=$(tools/go.sh)
echo "tools: building $1 from $module" >&2
building=$(mktemp -d "$tools/.$1.XXXXXX")
trap 'rm -rf "$building"' EXIT
GOBIN=$building CGO_ENABLED=0 GOTOOLCHAIN=local "$go" install -trimpath -ldflags "-s -w $version" "$module" >&2
mv "$building/$1" "$tools/$1"
echo "$tools/$1"
