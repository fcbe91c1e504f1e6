"""PDF files: their pages, and each page as an image. The threads that read images call it, and those that read the
files of a bulk job. Each has a process of its own, pdf_process.py, while it needs one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from subprocess import DEVNULL, PIPE
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from vectord.errors import InvalidField, ModelCannot, installing
from vectord.schema import Media
from vectord.text.pdf_process import BROKEN, COMMAND, COMMAND_S, ENCRYPTED, FILE, MEMORY_BYTES, OK, PAGE, REPLY, SIZE

if TYPE_CHECKING:
    from PIL.Image import Image

COMMAND_LINE = (sys.executable, "-P", str(Path(__file__).with_name("pdf_process.py")))
PIPE_BYTES = 2**18  # a page has 10 MB
MAX_BYTES = 64 * 2**20
MAX_PAGES = 2000
PICTURE_SIDE = 1000
SIGNATURE, SIGNATURE_BYTES = b"%PDF-", 1024  # it begins within the first bytes of a file

CRASHED, SLOW = 10, 11  # in place of the status of a reply
REASONS: Mapping[int, str] = MappingProxyType(
    {
        BROKEN: "{field}: {what} is broken.",
        ENCRYPTED: "{field} is an encrypted PDF; remove its password.",
        CRASHED: "{field}: {what} is broken, or takes more than {memory} bytes to read.",
        SLOW: "{field}: {what} takes longer than {seconds} s to read.",
    }
)
_slow: deque[bytes] = deque(maxlen=64)  # digests of files with a page that takes too long: others would, too


class PdfReply(NamedTuple):
    """status; the number of pages, or the height of a page, its width, the bytes of a row, and all rows."""

    status: int
    number: int = 0
    width: int = 0
    stride: int = 0
    rows: bytes = b""


def is_pdf(beginning: bytes) -> bool:
    """Whether a file that begins with these bytes is a PDF."""
    return SIGNATURE in beginning[:SIGNATURE_BYTES]


def pages_of(media: Media, index: int | None = None, limit: int = MAX_PAGES) -> Sequence[Media]:
    """Each page of a PDF.

    Raises InvalidField for a file that is broken, encrypted, empty or too large, ModelCannot without pypdfium2.
    """
    count = _read(media, index).number
    if count > limit:
        template = "{field} may have at most {limit} pages; it has {given}."
        raise InvalidField(template, index=index, limit=limit, given=count)
    return [replace(media, page=page) for page in range(1, count + 1)]


def page_size(media: Media, index: int | None = None) -> tuple[int, int]:
    """Width and height of the `page_image`, which is not drawn. Raises as `page_image`."""
    reply = _read(media, index, draw=False)
    _refuse_whole(media, index)
    return reply.width, reply.number


def page_image(media: Media, index: int | None = None) -> Image:
    """A page in RGB. Raises as `pages_of`, and InvalidField for a page that cannot be drawn."""
    from PIL import Image  # noqa: PLC0415 - an extra

    reply = _read(media, index)
    _refuse_whole(media, index)
    return Image.frombytes("RGB", (reply.width, reply.number), reply.rows, "raw", "RGB", reply.stride)


def picture_of(media: Media) -> bytes:
    """A page as a JPEG file of at most PICTURE_SIDE pixels in height and width; b"" if it cannot be drawn."""
    file = BytesIO()
    with suppress(InvalidField):
        image = page_image(media)
        image.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
        image.save(file, "JPEG", quality=80)
    return file.getvalue()


def _refuse_whole(media: Media, index: int | None) -> None:
    if media.page is None:
        raise InvalidField("{field}: a PDF is an input of its own, and cannot be joined with others.", index=index)


def _read(media: Media, index: int | None, *, draw: bool = True) -> PdfReply:
    """The reply about the page, or about the whole file."""
    if find_spec("pypdfium2") is None:
        template = "PDFs are read with pypdfium2, which is missing here: {command}"
        raise ModelCannot(template, index=index, command=installing("images"))
    if len(media.data) > MAX_BYTES:
        template = "{field} may have at most {limit} bytes; it has {given}."
        raise InvalidField(template, index=index, limit=MAX_BYTES, given=len(media.data))
    digest = blake2b(media.data, digest_size=16).digest()
    reply = PdfReply(SLOW) if digest in _slow else _threads.process.read(media, digest, PAGE if draw else SIZE)
    if reply.status == SLOW and digest not in _slow:
        _slow.append(digest)
    if reply.status != OK:
        what = "the PDF" if media.page is None else f"page {media.page} of the PDF"
        raise InvalidField(REASONS[reply.status], index=index, what=what, seconds=COMMAND_S, memory=MEMORY_BYTES)
    return reply


class _PdfProcess:
    """A process that is started on use, and ends when it is idle. Belongs to a thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._digest = b""  # of the file that it has open

    def read(self, media: Media, digest: bytes, command: bytes) -> PdfReply:
        """command: about the page, if there is one."""
        return self._ask(media, digest, command) or self._ask(media, digest, command) or PdfReply(CRASHED)

    def _ask(self, media: Media, digest: bytes, command: bytes) -> PdfReply | None:
        """None: the process had been idle, and ended before the command."""
        if self._process is None:
            # In a session of its own: Ctrl-C would end it, and a bulk job would store a broken page.
            self._process = subprocess.Popen(  # noqa: S603 - constants
                COMMAND_LINE, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True, pipesize=PIPE_BYTES
            )
            self._digest = b""
            self._end = weakref.finalize(self, _ended, self._process)
        try:
            reply = PdfReply(OK)
            if media.page is None or digest != self._digest:
                reply = _exchange(self._process, COMMAND.pack(FILE, len(media.data)) + media.data)
                self._digest = digest if reply.status == OK else b""
            if media.page is not None and reply.status == OK:
                reply = _exchange(self._process, COMMAND.pack(command, media.page))
            return reply
        except (OSError, EOFError):
            self._process, code = None, self._end()
            return {0: None, -signal.SIGALRM: PdfReply(SLOW)}.get(code or 0, PdfReply(CRASHED))


def _exchange(process: subprocess.Popen[bytes], command: bytes) -> PdfReply:
    """Raises OSError, EOFError if the process has ended."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(command)
    process.stdin.flush()
    header = process.stdout.read(REPLY.size)
    if len(header) < REPLY.size:
        raise EOFError
    reply = PdfReply(*REPLY.unpack(header))
    rows = process.stdout.read(reply.number * reply.stride)
    if len(rows) < reply.number * reply.stride:
        raise EOFError
    return reply._replace(rows=rows)


def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process that has ended, or is ended here."""
    with suppress(OSError), process:  # its pipe may hold the rest of a command
        process.kill()
    return process.wait()


class _Threads(threading.local):
    def __init__(self) -> None:
        self.process = _PdfProcess()


_threads = _Threads()
