#!/usr/bin/env bash
# Runs a command, and runs it again if it fails, since registries fail now and then.
#
#   retry.sh COMMAND…
for pause in 5 20 60; do
  "$@" && exit
  echo "failed; trying again in $pause s: $*" >&2
  sleep "$pause"
done
exec "$@"
