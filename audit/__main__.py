"""`python -m audit [--advisories PATH_OF_PIP_AUDIT]`: one line a fault, and 1 if there is one.

Without a network all but the advisories is looked at, and a line says that they were not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from audit import advisories, licences, lock


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m audit", description="Look at the locked dependencies.")
    parser.add_argument("--advisories", type=Path, help="pip-audit, to ask the database of known vulnerabilities")
    options = parser.parse_args()
    try:
        pins = [*lock.read_lock(), *lock.read_lock(lock.MODEL_LOCK)]
    except (OSError, ValueError) as error:
        print(f"audit: {error}")
        return 1
    found = [*lock.faults(pins, lock.wanted()), *licences.faults(pins)]
    if options.advisories is not None:
        if advisories.can_reach():
            found += advisories.faults(options.advisories, lock.LOCK)
        else:
            print("audit: skipped known vulnerabilities, since api.osv.dev cannot be reached")
    for fault in found:
        print(f"audit: {fault}")
    print(f"audit: {len(pins)} packages locked, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
