"""`python -m vectord` is the command `vectord`."""

import sys

from vectord.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
