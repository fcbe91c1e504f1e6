"""Stored files and batches of requests: the values between a product's routes and server/batches, and their lines.

A batch reads a file of JSON Lines, each a request, and writes a file of responses and one of errors, in the same order.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
import orjson

from vectord.errors import InvalidField, MalformedBody, MissingField, VectordError
from vectord.products.common.body import decode, is_object

Purpose: TypeAlias = Literal["batch", "batch_output"]
Ending: TypeAlias = Literal["completed", "failed", "expired", "cancelled"]
ItemAction: TypeAlias = Literal["show file", "open file", "delete file", "show batch", "cancel batch"]
Status: TypeAlias = Literal["validating", "in_progress", "cancelling", "finalizing"] | Ending

NO_SUCH_FILE = "There is no file with this id."
MAX_REQUESTS = 50_000  # of a batch
MAX_LINES = 2 * MAX_REQUESTS  # of its input, empty ones included
MAX_LISTED_FAULTS = 100


# --- requests and results -------------------------------------------------------------------------------------


class StoreFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    content: bytes
    expires_after_s: int | None = None  # None: the server's retention


class ListFiles(msgspec.Struct, frozen=True, kw_only=True):
    after: str | None
    limit: int
    newest_first: bool
    purpose: str | None


class CreateBatch(msgspec.Struct, frozen=True, kw_only=True):
    input_file_id: str
    endpoint: str
    window_s: int  # unanswered lines expire after it
    metadata: Mapping[str, str] | None = None


class ListBatches(msgspec.Struct, frozen=True, kw_only=True):
    after: str | None
    limit: int


class ItemRequest(msgspec.Struct, frozen=True):
    """An action on one file or batch."""

    action: ItemAction
    id: str


BatchRequest: TypeAlias = StoreFile | ListFiles | CreateBatch | ListBatches | ItemRequest


class StoredFile(msgspec.Struct, kw_only=True):
    """Also the record on disk. Times are seconds since 1970."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Purpose


class Fault(msgspec.Struct):
    """Why a batch failed."""

    code: str
    message: str
    line: int | None = None  # from 1
    param: str | None = None


class Counts(msgspec.Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class StoredBatch(msgspec.Struct, kw_only=True):
    """Also the record on disk. Times are seconds since 1970."""

    id: str
    endpoint: str
    input_file_id: str
    status: Status
    created_at: int
    expires_at: int
    errors: list[Fault] = []
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = msgspec.field(default_factory=Counts)
    metadata: dict[str, str] | None = None
    ending: Ending | None = None  # the status after "finalizing"

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "failed", "expired", "cancelled")


class ListedItems(msgspec.Struct, frozen=True):
    items: Sequence[StoredFile | StoredBatch]
    has_more: bool


class StoredContent(msgspec.Struct, frozen=True):
    """The content of a file. It is open only while a piece is read: unread downloads would hold all descriptors."""

    path: Path
    n_bytes: int

    def read(self, start: int, size: int) -> bytes:
        """At most `size` bytes from `start`; none at the end. Raises OSError if the file was deleted."""
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(size)


class DeletedFile(msgspec.Struct, frozen=True):
    id: str


BatchResult: TypeAlias = StoredFile | StoredBatch | ListedItems | StoredContent | DeletedFile


# --- lines ----------------------------------------------------------------------------------------------------


class RequestLine(msgspec.Struct):
    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    method: str
    url: str
    body: msgspec.Raw


class _Response(msgspec.Struct):
    status_code: int


class ResultLine(msgspec.Struct):
    """The fields of a result line that `read_result_line` decodes."""

    custom_id: str
    response: _Response | None

    @property
    def succeeded(self) -> bool:
        return self.response is not None and self.response.status_code < 400


_request_line = msgspec.json.Decoder(RequestLine)
_result_line = msgspec.json.Decoder(ResultLine)


def read_request_line(line: bytes, endpoint: str) -> RequestLine:
    request = decode(_request_line, line)
    if request.method != "POST":
        raise InvalidField("{field} must be POST.", field="method")
    if request.url != endpoint:
        raise InvalidField("{field} must be the endpoint of the batch.", field="url")
    if not is_object(request.body):
        raise InvalidField("{field} must be an object.", field="body")
    return request


def read_result_line(line: bytes) -> ResultLine:
    """line: of `result_line` or `unanswered_line`."""
    return _result_line.decode(line)


def result_line(custom_id: str, request_id: str, status: int, body: bytes) -> bytes:
    response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
    return _line(custom_id, request_id, response, None)


def unanswered_line(custom_id: str, request_id: str, code: str, message: str) -> bytes:
    return _line(custom_id, request_id, None, {"code": code, "message": message})


def _line(custom_id: str, request_id: str, response: object, error: object) -> bytes:
    fields = {"id": request_id, "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def fault_of(error: VectordError, line: int) -> Fault:
    """line: from 1."""
    code = "invalid_request"
    if isinstance(error, MalformedBody):
        code = "invalid_json_line"
    elif isinstance(error, MissingField):
        code = "missing_required_parameter"
    return Fault(code, error.message, line, error.field_name)
