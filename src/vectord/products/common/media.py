"""Images in the forms of all products: a string, or an object that holds one. Raises errors with canonical field names.

"data:image/png;base64,..."   everywhere; a plain input of Jina's, OpenAI's and infinity's clients
"iVBORw0KGgo..."              base64 alone, in a key for images
{"url": "data:..."}           the `image_url` of OpenAI, vLLM and Cohere; Voyage's is the string itself
"https://..."                 in place of each of these; server/media_urls.py fetches it, or refuses
"""

import re
from binascii import Error, a2b_base64
from contextlib import suppress

from vectord.errors import InvalidField
from vectord.schema import PDF, Media

_DATA_URI = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[\w.+-]+)*;base64,", re.IGNORECASE)
_PLAIN = str.maketrans("-_", "+/", " \t\r\n")  # the URL-safe alphabet of Google's SDK, and lines
_URL = re.compile(r"[a-z][a-z0-9+.-]{0,20}:", re.IGNORECASE)
DOT = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAACAkQBADs="  # one pixel


def read_image(value: object, field: str = "inputs", index: int | None = None) -> Media:
    """The image in a string or object of a body, not decoded, or not even fetched."""
    if isinstance(value, dict):
        value = value.get("url")
    if not isinstance(value, str):
        template = "{field}: an image must be a string: a data URI, or base64."
        raise InvalidField(template, field=field, index=index)
    if _is_url(value, field, index):
        return Media(b"", url=value)
    found = _DATA_URI.match(value)
    kind = "" if found is None else (found["type"] or "")
    if kind and not kind.lower().startswith("image/"):
        template = "{field} has a file of another kind than an image; this model embeds texts and images only."
        raise InvalidField(template, field=field, index=index)
    return Media(_decoded(value[found.end() :] if found else value, "image", field, index))


def read_pdf(value: str, field: str = "inputs", index: int | None = None) -> Media:
    """The PDF in a data URI or base64, not opened, or not even fetched."""
    if _is_url(value, field, index):
        return Media(b"", type=PDF, url=value)
    found = _DATA_URI.match(value)
    if found is not None and (found["type"] or PDF).lower() != PDF:
        raise InvalidField("{field} has a file of another kind than a PDF.", field=field, index=index)
    return Media(_decoded(value[found.end() :] if found else value, "PDF", field, index), type=PDF)


def _is_url(value: str, field: str, index: int | None) -> bool:
    """Whether a string is a URL, and neither a data URI nor base64. Raises InvalidField for one that nobody fetches."""
    scheme = _URL.match(value)
    if scheme is None or _DATA_URI.match(value):
        return False
    if scheme[0].lower() not in ("http:", "https:"):
        template = "{field}: a file must be a data URI with base64, base64 alone, or an http or https URL."
        raise InvalidField(template, field=field, index=index)
    return True


def _decoded(content: str, what: str, field: str, index: int | None) -> bytes:
    for form in (content, content.translate(_PLAIN)):
        with suppress(Error, ValueError):  # ValueError: not ASCII
            return a2b_base64(form, strict_mode=True)
    raise InvalidField("{field}: the {what} is not valid base64.", field=field, index=index, what=what)


def is_image(text: str) -> bool:
    """Whether a string is an image as a data URI, and not a text that begins with one."""
    return text[:11].lower() == "data:image/" and _DATA_URI.match(text) is not None and " " not in text
