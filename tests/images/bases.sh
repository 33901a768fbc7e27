#!/usr/bin/env bash
# Makes stand-ins for the base images of deploy/*.Dockerfile, under their own names, for a machine that can reach Debian's
# and Python's packages but no registry of images: Debian with Python 3.11, Beam's boot program, and a script in place of
# Dataflow's launcher. Needs root, buildah and debootstrap.
#
#   tests/images/bases.sh WORK BOOT BUILDAH…     BOOT: Beam's boot program; BUILDAH: the command, with its storage options
set -euo pipefail
work=$1 boot=$2 buildah=("${@:3}")
here=$(cd "$(dirname "$0")/../.." && pwd)
beam=$(sed -n 's/^ARG BEAM=//p' "$here/deploy/pipeline.Dockerfile")
launcher=$(sed -n 's/^ARG LAUNCHER=//p' "$here/deploy/pipeline.Dockerfile")
python=docker.io/library/python:3.11-slim-bookworm
sdk=docker.io/apache/beam_python3.11_sdk:$beam
templates=gcr.io/dataflow-templates-base/python311-template-launcher-base:$launcher

if [[ ! -e $work/debian/.made ]]; then
  rm -rf "$work/debian"
  debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates bookworm "$work/debian"
  for name in python python3; do ln -s /usr/bin/python3.11 "$work/debian/usr/local/bin/$name"; done
  # Python's own image lets pip install, and knows no certificates but public ones. Here, builds also trust this machine's.
  rm -f "$work/debian/usr/lib/python3.11/EXTERNALLY-MANAGED"
  cp -L /etc/ssl/certs/ca-certificates.crt "$work/debian/etc/ssl/certs/ca-certificates.crt"
  rm -rf "$work"/debian/var/cache/apt/archives/*.deb "$work"/debian/var/lib/apt/lists/*
  touch "$work/debian/.made"
fi

# commit BASE IMAGE SOURCE PATH: BASE with a program, or with a folder's files.
commit() {
  local container certificates
  if "${buildah[@]}" inspect --type image "$2" &> /dev/null; then return; fi
  container=$("${buildah[@]}" from --pull-never "$1")
  if [[ -d $3 ]]; then
    cp -a "$3/." "$("${buildah[@]}" mount "$container")$4"  # `buildah add` changes the modes of folders
    certificates=/etc/ssl/certs/ca-certificates.crt
    "${buildah[@]}" config --env "SSL_CERT_FILE=$certificates" --env "PIP_CERT=$certificates" "$container"
  else
    "${buildah[@]}" add --quiet --chmod 755 "$container" "$3" "$4" > /dev/null
  fi
  "${buildah[@]}" commit --quiet --rm "$container" "$2" > /dev/null
}

printf '#!/bin/sh\necho "a stand-in for the launcher of Flex Templates" >&2\nexit 1\n' > "$work/launcher"
commit scratch "$python" "$work/debian" /
commit "$python" "$sdk" "$boot" /opt/apache/beam/boot
commit scratch "$templates" "$work/launcher" /opt/google/dataflow/python_template_launcher
