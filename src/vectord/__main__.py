"""The command `vectord`, also as `python -m vectord`."""

import gc
import sys

from vectord import GC_THRESHOLDS


def main() -> int:
    """The entry point: this process's command line to its exit code."""
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        from vectord.cli import main as command_line  # noqa: PLC0415 - Ctrl-C during the imports gives no traceback

        return command_line.main()
    except KeyboardInterrupt:
        sys.stderr.write("vectord: interrupted\n")
        return 130  # ExitCode.INTERRUPTED, which would be one more import


if __name__ == "__main__":
    sys.exit(main())
