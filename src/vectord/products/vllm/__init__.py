"""vLLM's pooling API: vectors, classes, scores and tokens. Its /v2/embed is Cohere's, which that product serves.

routes.py reads bodies and writes answers; numbers.py writes vectors as base64 in the type and byte order of a body.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from vectord.errors import InputTooLong, VectordError
from vectord.products.common.dialect import Dialect, Rendered
from vectord.products.common.errors import STATUSES, error_response, row_of
from vectord.products.vllm.routes import ROUTES

ERRORS = STATUSES

_TYPES: Mapping[int, str] = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}


def render_error(error: VectordError) -> Rendered:
    """OpenAI's error object, with the status as its code. Where vLLM has no class, its type is the status in words."""
    status = row_of(ERRORS, error)
    message = error.message
    if isinstance(error, InputTooLong) and error.limit is not None and error.given is not None:
        # LiteLLM and others look for vLLM's sentence. Ours follows, because it names the place.
        message = (
            f"This model's maximum context length is {error.limit} tokens. However, you requested {error.given} tokens "
            f"in the input. Please reduce the length of the input prompt, or set `truncate_prompt_tokens`. {message}"
        )
    kind = _TYPES.get(status, HTTPStatus(status).phrase)
    shown = {"message": message, "type": kind, "param": error.field_name, "code": status}
    return error_response(error, {"error": shown}, ERRORS)


DIALECT = Dialect(name="vllm", title="vLLM", routes=tuple(ROUTES), render_error=render_error)
