#!/bin/bash
# Serve from the files of an image like a container: with its user, no capabilities, and only /tmp writable. Then request
# a vector, and stop with SIGTERM. try.sh ROOT, in its own mount and process namespaces.
set -euo pipefail
root=$1
chroot=$(command -v chroot)
mount --make-rprivate /
mount --bind "$root" "$root"
mkdir -p "$root/proc" "$root/dev"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -o remount,bind,ro "$root"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"

inside() {
  env --ignore-environment PATH=/usr/local/bin:/usr/bin PYTHONPATH=/app/site PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/app/model_cache VECTORD_HOST=127.0.0.1 VECTORD_PORT=18999 \
    "$chroot" --userspec=10001:10001 "$root" /usr/local/bin/python3 "$@"
}

inside - 2>&1 <<'END'
import os
try:
    open("/app/site/written", "w")
    raise SystemExit("the image can be written to")
except OSError as refused:
    print("user", os.getuid(), "may not write:", refused.strerror)
END
inside -m vectord serve &
server=$!
inside - <<'END'
import json, time, urllib.request as r
began = time.monotonic()
while True:
    try:
        r.urlopen("http://127.0.0.1:18999/health/ready", timeout=5)
        break
    except OSError:
        assert time.monotonic() < began + 60, "not ready"
        time.sleep(0.1)
ready = time.monotonic()
body = json.dumps({"input": ["a happy person"]}).encode()
answer = json.load(r.urlopen(r.Request("http://127.0.0.1:18999/v1/embeddings", body), timeout=60))
print(f"ready after {ready - began:.1f} s; a vector of {len(answer['data'][0]['embedding'])} numbers")
END
pid=$(pgrep --parent "$server" || echo "$server")
kill -TERM "$pid"
wait "$server"
echo "ended well on SIGTERM"
