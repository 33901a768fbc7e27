#!/usr/bin/env bash
# Makes stand-ins for the base images of deploy/*.Dockerfile, under their own names, for a machine that can reach Debian's
# and Python's packages but no registry of images: Debian with Python 3.12, Beam's boot program, and a script in place of
# Dataflow's launcher. Needs root, buildah and debootstrap.
#
#   tests/images/bases.sh WORK BOOT PYTHON BUILDAH…
#
# BOOT: Beam's boot program; PYTHON: the prefix of a Python 3.12; BUILDAH: the command, with its storage options.
set -euo pipefail
work=$1 boot=$2 prefix=$3 buildah=("${@:4}")
here=$(cd "$(dirname "$0")/../.." && pwd)
beam=$(sed -n 's/^ARG BEAM=//p' "$here/deploy/pipeline.Dockerfile")
launcher=$(sed -n 's/^ARG LAUNCHER=//p' "$here/deploy/pipeline.Dockerfile")
python=docker.io/library/python:3.12-slim-bookworm
sdk=docker.io/apache/beam_python3.12_sdk:$beam
templates=gcr.io/dataflow-templates-base/python311-template-launcher-base:$launcher

if [[ ! -e $work/debian/.made ]]; then
  rm -rf "$work/debian"
  libraries=libbz2-1.0,libexpat1,libffi8,liblzma5,libncursesw6,libreadline8,libsqlite3-0,libssl3,libuuid1,zlib1g
  debootstrap --variant=minbase --include="ca-certificates,$libraries" bookworm "$work/debian"
  # In /usr/local, as in Python's own image.
  mkdir -p "$work/debian/usr/local/bin" "$work/debian/usr/local/lib"
  cp -L "$prefix/bin/python3.12" "$work/debian/usr/local/bin/"
  cp -a "$prefix/lib/python3.12" "$work/debian/usr/local/lib/"
  find "$prefix/lib" -maxdepth 1 -name 'libpython3*' -exec cp -a {} "$work/debian/usr/local/lib/" \;
  for name in python python3; do ln -s python3.12 "$work/debian/usr/local/bin/$name"; done
  rm -rf "$work/debian/usr/local/lib/python3.12/site-packages" "$work/debian/usr/local/lib/python3.12/EXTERNALLY-MANAGED"
  chroot "$work/debian" /bin/sh -c 'ldconfig && /usr/local/bin/python -m ensurepip --default-pip'
  # Python's own image knows no certificates but public ones. Here, builds also trust this machine's.
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
