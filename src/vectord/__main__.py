"""The command `vectord`, also as `python -m vectord`."""

import gc
import sys

# New containers between collections, which stop all threads; most are freed by their reference counts. With Python's
# values (700, 10, 10), collections took a tenth of a start, and up to 177 ms under attack.
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
