"""Small PDF files, written by hand: pages of one colour, and files that attack a reader."""

from __future__ import annotations

from collections.abc import Sequence

PAGE = (36, 18)  # points: 100 x 50 pixels at 200 dots per inch
COLOURS = ((1, 0, 0), (0, 1, 0), (0, 0, 1))


def written(objects: Sequence[bytes], trailer: str = "") -> bytes:
    """A file of these objects, numbered from 1; the first one is the catalogue."""
    file, offsets = b"%PDF-1.7\n", []
    for number, one in enumerate(objects, 1):
        offsets.append(len(file))
        file += b"%d 0 obj\n%b\nendobj\n" % (number, one)
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<</Size {size}/Root 1 0 R{trailer}>>\nstartxref\n"
    return file + f"{end}{len(file)}\n%%EOF\n".encode()


def stream(content: str, entries: str = "") -> bytes:
    return f"<<{entries}/Length {len(content)}>>\nstream\n{content}\nendstream".encode()


def pdf_of(
    colours: Sequence[tuple[float, float, float]] = COLOURS, size: tuple[float, float] = PAGE, trailer: str = ""
) -> bytes:
    """A page of each colour."""
    width, height = size
    pages, contents = [], []
    for place, colour in enumerate(colours):
        box = f"/MediaBox[0 0 {width} {height}]"
        pages.append(f"<</Type/Page/Parent 2 0 R{box}/Contents {3 + len(colours) + place} 0 R>>".encode())
        contents.append(stream(f"{' '.join(map(str, colour))} rg 0 0 {width} {height} re f"))
    kids = " ".join(f"{3 + place} 0 R" for place in range(len(colours)))
    tree = f"<</Type/Pages/Kids[{kids}]/Count {len(colours)}>>".encode()
    return written([b"<</Type/Catalog/Pages 2 0 R>>", tree, *pages, *contents], trailer)


def encrypted_pdf() -> bytes:
    """Its password is unknown."""
    key = "00" * 32
    return pdf_of(trailer=f"/Encrypt<</Filter/Standard/V 1/R 2/P -4/O<{key}>/U<{key}>>>/ID[<00><00>]")


def endless_pdf(levels: int = 12, times: int = 20) -> bytes:
    """A page that draws a form, which draws another one 20 times, and so on: 20 ** 12 rectangles."""
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents 4 0 R/Resources<</XObject<</F 5 0 R>>>>>>"
    forms = []
    for level in range(levels):
        inner = f"/Resources<</XObject<</F {6 + level} 0 R>>>>" if level + 1 < levels else ""
        content = "/F Do " * times if inner else "0 0 200 200 re f"
        forms.append(stream(content, f"/Type/XObject/Subtype/Form/BBox[0 0 200 200]{inner}"))
    tree = b"<</Type/Pages/Kids[3 0 R]/Count 1>>"
    return written([b"<</Type/Catalog/Pages 2 0 R>>", tree, page, stream("/F Do"), *forms])
