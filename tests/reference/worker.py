"""Runs the scripts of this folder in one process of the reference environment, so that each library loads once.

    python worker.py

Started by tests/reference/references.py, never imported. Reads one JSON object a line from stdin (`script` and
`arguments` of its `main`) and answers each with a line: "null", or the traceback as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout
    for line in sys.stdin:
        task, error = json.loads(line), None
        try:
            importlib.import_module(task["script"]).main(*task["arguments"])
        except Exception:
            error = traceback.format_exc()
        replies.write(json.dumps(error) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
