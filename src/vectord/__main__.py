"""`python -m vectord` is the command `vectord`."""

import sys

from vectord.cli import main

if __name__ == "__main__":
    sys.exit(main())
