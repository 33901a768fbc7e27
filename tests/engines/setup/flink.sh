#!/usr/bin/env bash
# Installs Flink and Beam's Flink job server into a folder. Needs Java 11 or 17, and Maven.
#
#   flink.sh FOLDER PYTHON
set -euo pipefail
setup=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
target=$(cd "$1" && pwd)
python=$2

retry() { # COMMAND…: registries fail now and then
  for pause in 5 20 60; do
    "$@" && return
    echo "failed; trying again in $pause s: $*" >&2
    sleep "$pause"
  done
  "$@"
}

rm -rf "$target/flink" "$target/jars"
mkdir "$target/flink"
retry "$python" -m pip download --quiet --no-deps --require-hashes -r "$setup/flink.txt" --dest "$target/download"
tar -xzf "$target"/download/apache-flink-libraries-*.tar.gz -C "$target/flink" --strip-components 2 \
  --wildcards '*/deps/lib/flink-dist-*.jar' '*/deps/lib/flink-scala_*.jar' '*/deps/lib/log4j-*.jar'
rm -r "$target/download"

retry mvn --batch-mode --quiet --file "$setup/pom.xml" \
  org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies -DincludeScope=runtime \
  -DoutputDirectory="$target/jars"
(cd "$target/jars" && sha256sum --quiet --check "$setup/jars.sha256")
[ "$(find "$target/jars" -type f | wc -l)" = "$(wc -l < "$setup/jars.sha256")" ] \
  || { echo "$target/jars has files that jars.sha256 does not list" >&2; exit 1; }
