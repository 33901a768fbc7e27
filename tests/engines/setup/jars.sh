#!/usr/bin/env bash
# Installs jars into a folder, and checks them. Needs Maven.
#
#   jars.sh SETUP FOLDER     SETUP has a pom.xml, and jars.sha256 with the jars' checksums
set -euo pipefail
retry=$(cd "$(dirname "$0")" && pwd)/retry.sh
setup=$(cd "$1" && pwd)
rm -rf "$2"
mkdir -p "$2"
target=$(cd "$2" && pwd)

"$retry" mvn --batch-mode --quiet --file "$setup/pom.xml" \
  org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies -DincludeScope=runtime \
  -DoutputDirectory="$target"
(cd "$target" && sha256sum --quiet --check "$setup/jars.sha256")
[ "$(find "$target" -type f | wc -l)" = "$(wc -l < "$setup/jars.sha256")" ] \
  || { echo "$target has files that jars.sha256 does not list" >&2; exit 1; }
