#!/usr/bin/env bash
# Installs Flink and Beam's Flink job server into a folder. Needs Java 11 or 17, and Maven.
#
#   flink.sh FOLDER PYTHON
set -euo pipefail
setup=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
target=$(cd "$1" && pwd)
python=$2

rm -rf "$target/flink"
mkdir "$target/flink"
"$setup/retry.sh" "$python" -m pip download --quiet --no-deps --require-hashes -r "$setup/flink.txt" --dest "$target/download"
tar -xzf "$target"/download/apache-flink-libraries-*.tar.gz -C "$target/flink" --strip-components 2 \
  --wildcards '*/deps/lib/flink-dist-*.jar' '*/deps/lib/flink-scala_*.jar' '*/deps/lib/log4j-*.jar'
rm -r "$target/download"

"$setup/jars.sh" "$setup" "$target/jars"
