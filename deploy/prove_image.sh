#!/bin/bash
# Build Dockerfile.cpu without a Docker engine or an image registry, measure its size, and request a vector.
# deploy/prove_image.sh FOLDER. As root on Debian or Ubuntu, with debootstrap and buildah; FOLDER needs 4 GB.
# Debian 12 with its Python 3.11 replaces the official Python image, so sizes differ slightly.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(realpath -m "${1:?which folder may it use?}")
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
base=localhost/python-of-debian
image=localhost/vectord:cpu
mkdir -p "$work"
buildah() { command buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"; }

if [ ! -e "$work/base/.done" ]; then
  debootstrap --variant=minbase --include=python3,python3-pip,ca-certificates bookworm "$work/base" "$mirror"
  rm -rf "$work"/base/var/cache/apt/archives/*.deb "$work/base/usr/lib/python3.11/EXTERNALLY-MANAGED"
  touch "$work/base/.done"
fi
# pip's configuration on this machine (index, certificate) also applies in the image.
{
  echo '[global]'
  python3 -m pip config list | sed -nE "s/^[^.]*\.(index-url|cert|timeout)='(.*)'\$/\1 = \2/p" | awk '!seen[$1]++'
} >"$work/pip.conf"
volumes=(--volume "$work/pip.conf:/etc/pip.conf:ro")
[ -z "${PIP_CERT:-}" ] || volumes+=(--volume "$PIP_CERT:$PIP_CERT:ro")

container=$(buildah from scratch)
buildah copy --quiet "$container" "$work/base" / >/dev/null
buildah commit --quiet --rm "$container" "$base" >/dev/null
buildah bud --isolation chroot --format docker --pull-never "${volumes[@]}" --build-arg PYTHON="$base" \
  --file Dockerfile.cpu --tag "$image" .

container=$(buildah from --pull-never "$image")
root=$(buildah mount "$container")
echo "bytes of files: $(du --bytes --summarize "$root" | cut -f1)"
du --bytes --max-depth=3 "$root" | sort -n | tail -12
buildah inspect --type image --format '{{.Docker.Config.User}} {{.Docker.Config.Entrypoint}} {{.Docker.Config.Cmd}}' "$image"

exec unshare --mount --pid --fork --mount-proc deploy/image/try.sh "$root"
