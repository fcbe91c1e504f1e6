"""The command `vectord`, also as `python -m vectord`."""

import gc
import sys

# New containers between collections, which stop all threads; most are freed by their reference counts. Python's values
# are (700, 10, 10).
GC_THRESHOLDS = (10_000, 20, 100)


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
