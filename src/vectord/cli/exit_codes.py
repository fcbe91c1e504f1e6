"""What a process of ours ends with. docs/cli.md and each command's help say when."""

from __future__ import annotations

NOTHING_SERVED = 1  # no model could be loaded
FAILED = 1  # the command did its work, and the answer is no
BAD_START = 2  # it could not begin: an option, a file, nobody there
CRASHED = 70  # what nobody foresaw, in a process that another one started
INTERRUPTED = 130
SIGNALLED = 128  # and the signal's number
