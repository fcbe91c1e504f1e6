"""OpenAI's files and batches. The routes exist on servers with `--batch-dir`; server/batches answers their requests."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl

import msgspec

from vectord.errors import InvalidField, MalformedBody, MissingField, UnsupportedMediaType
from vectord.products.common.batches import (
    CreateBatch,
    ItemAction,
    ItemRequest,
    ListBatches,
    ListedItems,
    ListFiles,
    StoredBatch,
    StoredContent,
    StoredFile,
    StoreFile,
)
from vectord.products.common.body import Content
from vectord.products.common.dialect import Call, Incoming, Rendered, Routes
from vectord.products.common.fields import about
from vectord.products.common.vectors import dump_json

ENDPOINTS = ("/v1/embeddings", "/v1/rerank")  # OpenAI has no reranker; the body selects the product, as on that path
WINDOW_S = 24 * 3600
EXPIRY_S = (3600, 30 * 24 * 3600)  # least and largest `expires_after[seconds]`
MAX_NAME_CHARACTERS = 256
MAX_QUERY_FIELDS = 16

# Of forms.
MAX_PARTS = 16
MAX_HEAD_BYTES = 4096  # of one part
NOT_A_FORM = "This route reads a form; send Content-Type: multipart/form-data with a boundary."
INVALID_FORM = "The body is not a valid multipart/form-data form."
TOO_MANY_PARTS = "The form has more than {limit} parts."

MAX_TYPE_CHARACTERS = 512  # of Content-Type; 60 kB with a boundary and spaces stopped the event loop for 100 ms

_boundary = re.compile(r"""boundary=("?)([A-Za-z0-9'()+_,./:=? -]{1,70})\1\s*(?:;|$)""", re.IGNORECASE)
_disposition = re.compile(rb"^content-disposition:\s*form-data\s*(;.*)$", re.IGNORECASE | re.MULTILINE)
_parameter = re.compile(rb';\s*(name|filename)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)

Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]


class BatchBody(msgspec.Struct):
    input_file_id: Annotated[str, msgspec.Meta(max_length=64)]
    endpoint: Annotated[str, msgspec.Meta(max_length=64, description=f"one of {', '.join(ENDPOINTS)}")]
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: Annotated[Any, about("not supported: --batch-retention-hours applies")] = None


class FileObject(StoredFile, kw_only=True, tag_field="object", tag="file"):
    status: Literal["processed"]


class BatchObject(msgspec.Struct, tag_field="object", tag="batch"):
    id: str
    endpoint: str
    input_file_id: str
    completion_window: Literal["24h"]
    status: str
    request_counts: dict[str, int]
    output_file_id: str | None = None
    error_file_id: str | None = None


ROUTES = Routes()


# --- forms -----------------------------------------------------------------------------------------------------


class FormPart(msgspec.Struct, frozen=True):
    content: bytes
    filename: str | None = None


def read_form(content_type: str, body: Content) -> Mapping[str, FormPart]:
    """The last part of each name."""
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


# --- requests -------------------------------------------------------------------------------------------------


def parse_upload(incoming: Incoming) -> Call:
    form = read_form(incoming.headers.get("content-type", ""), incoming.body)
    if _text(form, "purpose") != "batch":
        raise InvalidField("{field} must be `batch`: other purposes are not supported.", field="purpose")
    unknown = set(form) - {"purpose", "file", "expires_after[anchor]", "expires_after[seconds]"}
    if unknown:
        raise InvalidField("The form has an unknown field; it may have `file`, `purpose` and `expires_after`.")
    if _text(form, "expires_after[anchor]", "created_at") != "created_at":
        raise InvalidField("{field} must be `created_at`.", field="expires_after[anchor]")
    file = form.get("file")
    if file is None:
        raise MissingField("{field} is required.", field="file")
    name = "".join(sign for sign in (file.filename or "")[:MAX_NAME_CHARACTERS] if sign.isprintable())
    seconds = _text(form, "expires_after[seconds]", "")
    expires_after_s = _number(seconds, "expires_after[seconds]", *EXPIRY_S) if seconds else None
    store = StoreFile(name=name or "upload.jsonl", content=file.content, expires_after_s=expires_after_s)
    return Call(store, _render(file_object))


def _text(form: Mapping[str, FormPart], field: str, default: str | None = None) -> str:
    part = form.get(field)
    if part is None:
        if default is None:
            raise MissingField("{field} is required.", field=field)
        return default
    return part.content[:64].decode("utf-8", "replace")


def _number(text: str, field: str, least: int, largest: int) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    if not is_number or not least <= int(text) <= largest:
        raise InvalidField("{field} must be a number from {least} to {limit}.", field=field, least=least, limit=largest)
    return int(text)


def _query(incoming: Incoming) -> Mapping[str, str]:
    try:
        return dict(parse_qsl(incoming.query, max_num_fields=MAX_QUERY_FIELDS))
    except ValueError:
        raise InvalidField("The query of the URL must have at most {limit} fields.", limit=MAX_QUERY_FIELDS) from None


def parse_list_files(incoming: Incoming) -> Call:
    query = _query(incoming)
    if query.get("order", "desc") not in ("asc", "desc"):
        raise InvalidField("{field} must be `asc` or `desc`.", field="order")
    request = ListFiles(
        after=query.get("after"),
        limit=_number(query.get("limit", "10000"), "limit", 1, 10_000),
        newest_first=query.get("order") != "asc",
        purpose=query.get("purpose"),
    )
    return Call(request, _render(_listed))


def parse_list_batches(incoming: Incoming) -> Call:
    query = _query(incoming)
    limit = _number(query.get("limit", "20"), "limit", 1, 100)
    return Call(ListBatches(after=query.get("after"), limit=limit), _render(_listed))


@ROUTES.post(
    "/v1/batches",
    computes=None,
    answer=BatchObject,
    summary="Create a batch of requests from a file",
    example={"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"},
    one_of=["input_file_id"],
)
def parse_create_batch(body: BatchBody, incoming: Incoming) -> Call:
    if body.endpoint not in ENDPOINTS:
        raise InvalidField("{field} must be one of {endpoints}.", field="endpoint", endpoints=", ".join(ENDPOINTS))
    if body.output_expires_after is not None:
        raise InvalidField("{field} is not supported: --batch-retention-hours applies.", field="output_expires_after")
    request = CreateBatch(
        input_file_id=body.input_file_id, endpoint=body.endpoint, window_s=WINDOW_S, metadata=body.metadata
    )
    return Call(request, _render(batch_object))


# --- responses ------------------------------------------------------------------------------------------------


def file_object(file: StoredFile) -> dict[str, Any]:
    """A body of FileObject."""
    return {**msgspec.to_builtins(file), "object": "file", "status": "processed"}


def batch_object(batch: StoredBatch) -> dict[str, Any]:
    """A body of BatchObject and further fields of OpenAI's."""
    fields = msgspec.to_builtins(batch)
    del fields["ending"]
    errors = {"object": "list", "data": fields["errors"]} if batch.errors else None
    return {**fields, "object": "batch", "completion_window": "24h", "errors": errors}


def _listed(result: ListedItems) -> dict[str, Any]:
    items = result.items
    return {
        "object": "list",
        "data": [batch_object(item) if isinstance(item, StoredBatch) else file_object(item) for item in items],
        "first_id": items[0].id if items else None,
        "last_id": items[-1].id if items else None,
        "has_more": result.has_more,
    }


def _render(made: Callable[[Any], dict[str, Any]]) -> Callable[[Any], Rendered]:
    return lambda result: Rendered(body=dump_json(made(result)))


def render_content(result: StoredContent) -> Rendered:
    return Rendered(body=b"", file=result, content_type="application/octet-stream")


# --- routes ---------------------------------------------------------------------------------------------------


def _on_item(action: ItemAction, render: Callable[[Any], Rendered]) -> Callable[[Incoming], Call]:
    """A parser of requests for `action` on the item whose id is in the path."""
    return lambda incoming: Call(ItemRequest(action, *incoming.path.values()), render)


_file, _batch = _render(file_object), _render(batch_object)
_deleted = _render(lambda file: {"id": file.id, "object": "file", "deleted": True})
_STORE = "Store a file of requests for a batch"
ROUTES.add("POST", "/v1/files", parse=parse_upload, summary=_STORE, answer=FileObject, form=True)
for _method, _path, _parse, _summary, _answer in (
    ("GET", "/v1/files", parse_list_files, "List stored files", None),
    ("GET", "/v1/files/{file_id}", _on_item("show file", _file), "Show one file", FileObject),
    ("GET", "/v1/files/{file_id}/content", _on_item("open file", render_content), "Download a file", None),
    ("DELETE", "/v1/files/{file_id}", _on_item("delete file", _deleted), "Delete a file", None),
    ("GET", "/v1/batches", parse_list_batches, "List batches", None),
    ("GET", "/v1/batches/{batch_id}", _on_item("show batch", _batch), "Show one batch", BatchObject),
    ("POST", "/v1/batches/{batch_id}/cancel", _on_item("cancel batch", _batch), "Cancel a batch", BatchObject),
):
    ROUTES.add(_method, _path, parse=_parse, summary=_summary, answer=_answer)
