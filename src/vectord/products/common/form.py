"""Reads multipart/form-data: the parts of a body, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from vectord.errors import MalformedBody, UnsupportedMediaType
from vectord.products.common.body import Content

MAX_PARTS = 16
MAX_HEAD_BYTES = 4096  # of one part
NOT_A_FORM = "This route reads a form; send Content-Type: multipart/form-data with a boundary."
INVALID_FORM = "The body is not a valid multipart/form-data form."
TOO_MANY_PARTS = "The form has more than {limit} parts."

MAX_TYPE_CHARACTERS = 512  # of Content-Type; 60 kB with a boundary and spaces stopped the event loop for 100 ms

_boundary = re.compile(r"""boundary=("?)([A-Za-z0-9'()+_,./:=? -]{1,70})\1\s*(?:;|$)""", re.IGNORECASE)
_disposition = re.compile(rb"^content-disposition:\s*form-data\s*(;.*)$", re.IGNORECASE | re.MULTILINE)
_parameter = re.compile(rb';\s*(name|filename)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)


class FormPart(msgspec.Struct, frozen=True):
    content: bytes
    filename: str | None = None


def read_form(content_type: str, body: Content) -> Mapping[str, FormPart]:
    """The last part of each name. Raises UnsupportedMediaType or MalformedBody."""
    boundary = _boundary.search(content_type) if len(content_type) <= MAX_TYPE_CHARACTERS else None
    if not content_type.lower().startswith("multipart/form-data") or boundary is None:
        raise UnsupportedMediaType(NOT_A_FORM)
    before, *pieces = (b"\r\n" + body).split(b"\r\n--" + boundary[2].encode(), MAX_PARTS + 2)
    if before.strip() or not pieces or not pieces[-1].startswith(b"--"):
        if len(pieces) > MAX_PARTS:
            raise MalformedBody(TOO_MANY_PARTS, limit=MAX_PARTS)
        raise MalformedBody(INVALID_FORM)
    return dict(map(_part, pieces[:-1]))


def _part(piece: bytes) -> tuple[str, FormPart]:
    end = piece.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    disposition = _disposition.search(piece[:end].replace(b"\r\n", b"\n")) if end >= 0 else None
    if disposition is None or not piece.startswith(b"\r\n"):
        raise MalformedBody(INVALID_FORM)
    found = {name.lower(): value for name, value in _parameter.findall(disposition[1])}
    if b"name" not in found:
        raise MalformedBody(INVALID_FORM)
    filename = found.get(b"filename")
    text = None if filename is None else filename.decode("utf-8", "replace")
    return found[b"name"].decode("utf-8", "replace"), FormPart(piece[end + 4 :], text)
