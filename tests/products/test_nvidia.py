"""NVIDIA NIM's reranking: the bodies of its clients for LangChain and LlamaIndex, and the keys that they read."""

from __future__ import annotations

import json

import pytest
from tests.products.results import incoming, parsed, rerank_result, route_of

from vectord.errors import InvalidField, VectordError
from vectord.products.nvidia import DIALECT
from vectord.schema import RerankRequest, TextOptions

BODY = {"model": "m", "query": {"text": "q"}, "passages": [{"text": "a"}, {"text": "b"}]}


@pytest.mark.parametrize("path", ["/v1/ranking", "/v1/retrieval/{model:path}/reranking"])
def test_a_body_becomes_a_request_for_logits(path: str) -> None:
    """The model of the path is not read: its spelling differs from the model's name."""
    sent = incoming({**BODY, "truncate": "START"}, path={"model": "nvidia/llama-3_2-rerank"})
    call = route_of(DIALECT, path).parse(sent)
    text = TextOptions(truncate=True, truncate_side="left")
    assert call.request == RerankRequest(query="q", passages=["a", "b"], model="m", text=text, raw=True)


def test_all_passages_are_shown_best_first_with_their_logits() -> None:
    rendered = parsed(DIALECT, "/v1/ranking", BODY).answered(rerank_result(-1.5, 2.5))
    shown = json.loads(rendered.body)
    assert shown["rankings"] == [{"index": 1, "logit": 2.5}, {"index": 0, "logit": -1.5}]
    assert shown["usage"]["total_tokens"] == 18


def test_an_unknown_word_for_truncate_is_refused() -> None:
    with pytest.raises(InvalidField, match="truncate"):
        parsed(DIALECT, "/v1/ranking", {**BODY, "truncate": "MIDDLE"})


def test_an_error_names_the_field_of_the_query() -> None:
    """In the body that NIM documents."""
    error = parsed(DIALECT, "/v1/ranking", BODY).named(InvalidField("{field} must not be empty.", field="query"))
    rendered = DIALECT.render_error(error)
    assert rendered.status == 422
    assert json.loads(rendered.body) == {
        "object": "error",
        "message": "`query.text` must not be empty.",
        "detail": {},
        "type": "invalid_request_error",
    }
    assert DIALECT.render_error(VectordError("x")).status == 500
