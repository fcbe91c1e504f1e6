"""`python -m vectord.tools.healthy`: exit code 0 if the server of this environment is ready. The images' HEALTHCHECK.

Reads the port as `vectord serve` does, so that a profile's port counts; not the command line of the server.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path

from vectord.config.sources import CommandLine, load
from vectord.products.common.profiles import profiles

TIMEOUT_S = 5.0


def main() -> int:
    port = load(CommandLine(), os.environ, Path.cwd(), profiles()).config.server.port
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=TIMEOUT_S):
            return 0
    except OSError as problem:
        sys.stderr.write(f"vectord: not ready on port {port}: {problem}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
