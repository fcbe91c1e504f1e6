"""The process that reads PDF files for pdf.py: pdfium is written in C++, and a hostile file may crash or hold it.

Runs as a script, without the rest of vectord. Standard input has commands, of which each gets a reply:

    b"F", size   the file that follows is open from now on    status, number of pages, 0, 0
    b"S", page   the size of a page of it as drawn             status, height, width, 0
    b"P", page   draw a page of it, counted from 1            status, height, width, bytes of a row; then the rows, RGB

A command that takes too long ends the process by SIGALRM, and one that takes too much memory by an error of pdfium.
"""

from __future__ import annotations

import math
import os
import resource
import select
import signal
import struct
import sys
from typing import Any

COMMAND = struct.Struct(">cQ")
REPLY = struct.Struct(">BIII")
FILE, SIZE, PAGE = b"F", b"S", b"P"
OK, BROKEN, ENCRYPTED = range(3)

# The default of pdf2image, with which the pages of most page models' benchmarks and demos were made. A4 has 1654 x 2339
# pixels, which is more than any of these models sees.
DPI = 200
MAX_PIXELS = 2**23  # of a page: A3 has 7.7 million; a larger page is drawn smaller
COMMAND_S = 10
IDLE_S = 60  # until the process ends without a command
MEMORY_BYTES = 2**30


def main() -> None:
    import pypdfium2  # noqa: PLC0415 - an extra, which only this process loads

    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    document: Any = None
    while select.select([sys.stdin], [], [], IDLE_S)[0]:
        command = sys.stdin.buffer.read(COMMAND.size)
        if len(command) < COMMAND.size:  # the other side has ended
            break
        name, number = COMMAND.unpack(command)
        data = sys.stdin.buffer.read(number) if name == FILE else b""
        rows: Any = b""
        signal.alarm(COMMAND_S)
        try:
            if name == FILE:
                document = None
                document = pypdfium2.PdfDocument(data)
                document.init_forms()
                reply = REPLY.pack(OK, len(document), 0, 0)
            elif name == SIZE:
                size = document.get_page_size(number - 1)
                width, height = (math.ceil(side * _scale(size)) for side in size)  # as `render` rounds
                reply = REPLY.pack(OK, height, width, 0)
            else:
                page = document[number - 1]
                # In RGB, with annotations and the contents of forms.
                bitmap = page.render(scale=_scale(page.get_size()), rev_byteorder=True)
                rows = bitmap.buffer
                reply = REPLY.pack(OK, bitmap.height, bitmap.width, bitmap.stride)
        except Exception as problem:  # pypdfium2 and ctypes raise anything for a broken file
            is_encrypted = getattr(problem, "err_code", None) == pypdfium2.raw.FPDF_ERR_PASSWORD
            reply = REPLY.pack(ENCRYPTED if is_encrypted else BROKEN, 0, 0, 0)
        signal.alarm(0)
        sys.stdout.buffer.write(reply)
        sys.stdout.buffer.write(rows)
        sys.stdout.buffer.flush()
        if document is None:  # pdfium reports the last reason again for a failure that has none
            break
    os._exit(0)  # at once: a command that arrives during the interpreter's end would be lost


def _scale(size: tuple[float, float]) -> float:
    """size: width and height in 1/72 inch."""
    return min(DPI / 72, math.sqrt(MAX_PIXELS / (size[0] * size[1])))


if __name__ == "__main__":
    main()
