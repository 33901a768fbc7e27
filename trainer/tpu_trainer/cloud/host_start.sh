#!/bin/bash
# Startup script of the hosts of a TPU that `tpu_trainer launch` requested. Runs as root at every boot: starts the
# trainer's container and reports its exit in the run folder. On a slice, all hosts train together, by --strategy pjrt.
set -euo pipefail

metadata() {
  curl --silent --show-error --fail --retry 10 --retry-connrefused --header 'Metadata-Flavor: Google' \
    "http://metadata.google.internal/computeMetadata/v1/instance/$1"
}

token() {
  metadata service-accounts/default/token | sed 's/.*"access_token": *"\([^"]*\)".*/\1/'
}

report() { # STATUS LOG; writes the status and the end of the log
  local url bucket object
  url=$(metadata attributes/tokenmill-report)
  # The names of other hosts' reports contain the host's number.
  [ "${number:-0}" = 0 ] || url=${url%.txt}-$number.txt
  bucket=${url#gs://}
  object=${bucket#*/}
  bucket=${bucket%%/*}
  {
    echo "$1"
    tail --lines 60 "$2"
  } > "$folder/report.txt"
  curl --silent --show-error --fail --retry 10 --retry-connrefused --output /dev/null \
    --header "Authorization: Bearer $(token)" --header 'Content-Type: text/plain' \
    --data-binary "@$folder/report.txt" \
    "https://storage.googleapis.com/upload/storage/v1/b/$bucket/o?uploadType=media&name=${object//\//%2F}"
}

failed() { # reports a failure before the container runs; status 1: an unexpected error
  trap - ERR
  exec 2>&3
  cat "$folder/start.log" >&2
  report 1 "$folder/start.log"
}

folder=${TOKENMILL_FOLDER:-/var/lib/tokenmill}
mkdir -p "$folder"
# If one of the commands below fails, the report contains their stderr.
exec 3>&2 2> "$folder/start.log"
trap failed ERR
image=$(metadata attributes/tokenmill-image)
name=$(metadata attributes/tokenmill-name)
strategy=$(metadata attributes/tokenmill-strategy)
metadata attributes/tokenmill-config > "$folder/fit.yaml"
# Compute Engine sets the attributes of a slice's hosts once all of them exist. A single host needs none. A TPU of the
# Cloud TPU API has them at boot, and no number of hosts in its metadata.
count=$(metadata attributes/tokenmill-hosts 2> /dev/null || true)
if [ "$count" = 1 ]; then
  number=0
  endpoints=localhost
else
  for _ in $(seq "${TOKENMILL_CHECKS:-60}"); do
    [ -n "$count" ] || break
    endpoints=$(metadata attributes/worker-network-endpoints 2> /dev/null || true)
    [ "$(tr -cd , <<< "$endpoints" | wc -c)" != "$((count - 1))" ] || [ -z "$endpoints" ] || break
    sleep 10
  done
  number=$(metadata attributes/agent-worker-number)
  # "unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3" or "10.0.0.2,10.0.0.3", in the order of the hosts' numbers
  endpoints=$(metadata attributes/worker-network-endpoints)
fi
IFS=, read -ra hosts <<< "$endpoints"
if [ -n "$count" ] && [ "${#hosts[@]}" != "$count" ]; then
  echo "worker-network-endpoints is $endpoints: must name $count hosts" >&2
  false
fi

# The images of Compute Engine have no Docker.
if ! command -v docker > /dev/null; then
  apt-get -o DPkg::Lock::Timeout=600 update > /dev/null
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install --yes docker.io > /dev/null
fi

token | docker login --username oauth2accesstoken --password-stdin "https://${image%%/*}"
for attempt in 1 2 3 4 5; do
  docker pull --quiet "$image" && break
  [ "$attempt" != 5 ] || false
  sleep "$((attempt * 5))"
done

fit=(fit --config /config.yaml)
if [ "$strategy" = pjrt ]; then
  fit+=(--mesh.num_processes "${#hosts[@]}")
  if [ "${#hosts[@]}" -gt 1 ]; then
    fit+=(--mesh.coordinator_address "${hosts[0]##*:}:8476" --mesh.process_id "$number")
  fi
fi
status=0
docker rm --force tokenmill > /dev/null 2>&1 || true
exec 2>&3
# The TPU's devices belong to root. --stop-timeout: time to save before a preemption.
docker run --name tokenmill --privileged --user 0 --net=host --shm-size 16g --stop-timeout 120 --label "run=$name" \
  --log-driver gcplogs --log-opt labels=run --volume "$folder/fit.yaml:/config.yaml:ro" "$image" "${fit[@]}" 2>&1 |
  tee "$folder/run.log" >&2 || status=${PIPESTATUS[0]}
report "$status" "$folder/run.log"
