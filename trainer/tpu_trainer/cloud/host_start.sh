#!/bin/bash
# Runs as root at every start of every host of a TPU that `tpu_trainer launch` asked for: starts the trainer's container,
# and writes how it ended to the run's folder. On a slice of several hosts all run the same image: each serves its chips,
# and the first one trains on all of them.
set -euo pipefail

metadata() {
  curl --silent --show-error --fail --retry 10 --retry-connrefused --header 'Metadata-Flavor: Google' \
    "http://metadata.google.internal/computeMetadata/v1/instance/$1"
}

token() {
  metadata service-accounts/default/token | sed 's/.*"access_token": *"\([^"]*\)".*/\1/'
}

report() { # STATUS: the first line; then the end of the container's log
  local url bucket object container=tokenmill
  url=$(metadata attributes/tokenmill-report)
  # The first host's report is the run's; the others' have their numbers in their names.
  [ "${number:-0}" = 0 ] || { url=${url%.txt}-$number.txt; container=tokenmill-host; }
  bucket=${url#gs://}
  object=${bucket#*/}
  bucket=${bucket%%/*}
  {
    echo "$1"
    if [ -n "${started:-}" ]; then docker logs --tail 60 "$container" 2>&1 || true; else cat "$folder/start.log"; fi
  } > "$folder/report.txt"
  curl --silent --show-error --fail --retry 10 --retry-connrefused --output /dev/null \
    --header "Authorization: Bearer $(token)" --header 'Content-Type: text/plain' \
    --data-binary "@$folder/report.txt" \
    "https://storage.googleapis.com/upload/storage/v1/b/$bucket/o?uploadType=media&name=${object//\//%2F}"
}

run() { # OPTION…: a container, to its end
  local status=0
  started=yes
  exec 2>&3
  docker run "$@" || status=$?
  report "$status"
}

failed() { # what could not be done before the container ran is reported, too; 1: as any bug
  trap - ERR
  exec 2>&3
  cat "$folder/start.log" >&2
  report 1
}

folder=${TOKENMILL_FOLDER:-/var/lib/tokenmill}
mkdir -p "$folder"
# What the commands below say is the reason if one of them fails.
exec 3>&2 2> "$folder/start.log"
trap failed ERR
number=$(metadata attributes/agent-worker-number)
image=$(metadata attributes/tokenmill-image)
name=$(metadata attributes/tokenmill-name)
metadata attributes/tokenmill-config > "$folder/fit.yaml"
# "unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3", in the order of the hosts' numbers
endpoints=$(metadata attributes/worker-network-endpoints)
addresses=()
IFS=, read -ra hosts <<< "$endpoints"
for host in "${hosts[@]}"; do
  IFS=: read -r _ _ address _ <<< "$host"
  addresses+=("$address:8470")
done
joined=$(IFS=,; echo "${addresses[*]}")

token | docker login --username oauth2accesstoken --password-stdin "https://${image%%/*}"
for attempt in 1 2 3 4 5; do
  docker pull --quiet "$image" && break
  [ "$attempt" != 5 ] || false
  sleep "$((attempt * 5))"
done

# The TPU's devices belong to root. --stop-timeout: a machine that is taken away leaves time to save.
options=(--privileged --user 0 --net=host --shm-size 16g --stop-timeout 120 --label "run=$name"
  --log-driver gcplogs --log-opt labels=run --volume "$folder/fit.yaml:/config.yaml:ro")
docker rm --force tokenmill tokenmill-host > /dev/null 2>&1 || true
fit=(fit --config /config.yaml)
if [ "${#addresses[@]}" -gt 1 ]; then
  serve=(--name tokenmill-host "${options[@]}" "$image" host-server --addresses "$joined" --index "$number")
  if [ "$number" != 0 ]; then
    run "${serve[@]}"
    exit 0
  fi
  docker run --detach "${serve[@]}"
  # The chips are the server's of each host: the process that trains must not take them.
  options+=(--env TPU_LOAD_LIBRARY=0)
  fit+=(--tpu.name "grpc://${joined//,/,grpc://}")
fi
run --name tokenmill "${options[@]}" "$image" "${fit[@]}"
