#!/bin/bash
# Copy to FOLDER the files that Python and the packages in SITE need: the interpreter, its library, every linked shared
# library, and certificates. They include no shell and no package manager.
# root.sh FOLDER SITE. var/lib/dpkg/status.d lists the files' Debian packages, for scanners.
set -euo pipefail
root=$1
site=$2
python=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
stdlib=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')

mkdir -p "$root"/{etc,tmp,usr/bin,usr/lib,usr/lib64,usr/local/bin,var/lib/dpkg/status.d}
chmod 1777 "$root/tmp"
ln -s usr/bin usr/lib usr/lib64 "$root" # Debian's /lib is a link, and libraries refer to it

cp --parents -a "$stdlib" "$root"
(
  cd "$root$stdlib"
  rm -rf config-* ensurepip idlelib lib2to3 pydoc_data site-packages test tkinter turtledemo
  find . -name __pycache__ -prune -exec rm -rf {} +
)
python3 -m compileall -q -s "$root" "$root$stdlib"

cp --parents -a "$python" "$root"
ln -sf "$python" "$root/usr/local/bin/python3"
ln -sf "$python" "$root/usr/local/bin/python"

# Each library by its link name.
{ find "$python" "$root$stdlib" "$site" -type f \( -path "$python" -o -name '*.so*' \) -exec ldd {} + || true; } |
  awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// && $2 ~ /^\(/ { print $1 }' | grep -v "^$site" |
  sort -u >/tmp/libraries
while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  cp -L "$library" "$root$library"
  dpkg -S "*/$(basename "$(readlink -f "$library")")" 2>/dev/null | cut -d: -f1 || true # Python's own has no package
done </tmp/libraries | sort -u >/tmp/packages
printf '%s\n' base-files ca-certificates >>/tmp/packages
while read -r package; do
  dpkg-query --status "$package" >"$root/var/lib/dpkg/status.d/$package"
done </tmp/packages

mkdir -p "$root/etc/ssl/certs"
for file in /etc/ssl/certs/ca-certificates.crt /etc/ssl/openssl.cnf /etc/os-release; do
  cp -L "$file" "$root$file"
done
printf 'root:x:0:0::/:/sbin/nologin\nvectord:x:10001:10001::/app:/sbin/nologin\nembedder:x:1000:1000::/app:/sbin/nologin\n' >"$root/etc/passwd"
printf 'root:x:0:\nvectord:x:10001:\n' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
