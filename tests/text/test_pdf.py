"""pdf.py: pages become images; files that are broken, or attack the reader, are refused, and the next one is read."""

from __future__ import annotations

import io
import sys

import psutil
import pytest
from PIL import Image
from tests.pdfs import COLOURS, encrypted_pdf, endless_pdf, pdf_of

from vectord.errors import InvalidField, ModelCannot
from vectord.schema import PDF, ImageFacts, Media
from vectord.text import pdf
from vectord.text.images import decoded, digest_of, facts_of
from vectord.text.pdf import page_image, page_size, pages_of, picture_of
from vectord.text.pdf_process import MAX_PIXELS


def media_of(data: bytes) -> Media:
    return Media(data, type=PDF)


def use_process(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """From now on."""
    monkeypatch.setattr(pdf, "COMMAND_LINE", (sys.executable, "-c", code))
    monkeypatch.setattr(pdf, "_threads", pdf._Threads())


def test_each_page_is_an_image() -> None:
    """In order, at 200 dots per inch."""
    pages = pages_of(media_of(pdf_of()))
    assert [page.page for page in pages] == [1, 2, 3]
    for page, colour in zip(pages, COLOURS, strict=True):
        image = decoded(page)
        assert facts_of(page) == ImageFacts(100, 50, "pdf", 24)
        assert (image.mode, image.size) == ("RGB", (100, 50))
        assert image.getcolors() == [(5000, tuple(255 * part for part in colour))]
    assert len({digest_of(page) for page in pages}) == 3


def test_a_large_page_is_drawn_smaller() -> None:
    """A poster of the largest size that a PDF may have."""
    (page,) = pages_of(media_of(pdf_of(COLOURS[:1], size=(14_400, 7200))))
    width, height = page_image(page).size
    assert page_size(page) == (width, height)
    assert 0.99 * MAX_PIXELS < width * height < 1.01 * MAX_PIXELS
    assert width == pytest.approx(2 * height, abs=1)


def test_a_picture_of_a_page_is_a_small_jpeg() -> None:
    """Without a picture, the answer has the page's vector all the same."""
    (page,) = pages_of(media_of(pdf_of(COLOURS[:1], size=(14_400, 7200))))
    image = Image.open(io.BytesIO(picture_of(page)))
    assert (image.format, image.size) == ("JPEG", (1000, 500))
    assert picture_of(Media(pdf_of(), type=PDF, page=4)) == b""


REFUSED = {
    "no PDF": (b"\x89PNG\r\n\x1a\n", "the PDF is broken"),
    "empty": (b"", "the PDF is broken"),
    "truncated": (pdf_of()[:200], "the PDF is broken"),
    "encrypted": (encrypted_pdf(), "is an encrypted PDF; remove its password"),
    "no pages": (pdf_of([]), "the PDF is broken"),
    "too many pages": (pdf_of(COLOURS * 700), "may have at most 2000 pages; it has 2100"),
    "too many bytes": (bytes(pdf.MAX_BYTES + 1), "may have at most 67108864 bytes; it has 67108865"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_read_is_refused_with_its_index(name: str) -> None:
    """And the next one is read."""
    data, reason = REFUSED[name]
    with pytest.raises(InvalidField) as caught:
        pages_of(media_of(data), index=7)
    assert reason in caught.value.message
    assert caught.value.index == 7
    assert len(pages_of(media_of(pdf_of()))) == 3


def test_a_page_that_is_missing_fails_alone() -> None:
    with pytest.raises(InvalidField, match="page 4 of the PDF is broken"):
        page_image(Media(pdf_of(), type=PDF, page=4))


def test_a_file_is_an_input_of_its_own() -> None:
    """Joined with a text, it would be its first page."""
    with pytest.raises(InvalidField, match="is an input of its own"):
        decoded(media_of(pdf_of()))


def test_a_page_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time of a command; other pages of the file are refused at once, and the next file is read."""
    use_process(monkeypatch, "import vectord.text.pdf_process as process; process.COMMAND_S = 1; process.main()")
    (page,) = pages_of(media_of(endless_pdf()))
    for _ in range(2):
        with pytest.raises(InvalidField, match=r"page 1 of the PDF takes longer than \d+ s"):
            page_image(page)
    assert len(pages_of(media_of(pdf_of()))) == 3


def test_a_process_that_was_idle_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has ended, and with it the file that it had open."""
    use_process(monkeypatch, "import vectord.text.pdf_process as process; process.IDLE_S = 0.3; process.main()")
    page, *_ = pages_of(media_of(pdf_of()))
    process = max(psutil.Process().children(), key=psutil.Process.create_time)
    assert process.wait(30) == 0
    assert page_image(page).size == (100, 50)


def test_a_crash_of_the_process_fails_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a fault in pdfium would end it."""
    with monkeypatch.context() as patched:
        use_process(patched, "import os; os.abort()")
        with pytest.raises(InvalidField, match="the PDF is broken, or takes more than 1073741824 bytes"):
            pages_of(media_of(pdf_of()))
    assert len(pages_of(media_of(pdf_of()))) == 3


def test_without_pypdfium2_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "find_spec", lambda name: None)
    with pytest.raises(ModelCannot, match=r"pip install .*\[images\]"):
        pages_of(media_of(pdf_of()))
