"""Cohere's bodies -> canonical requests, and how each is answered. Pure; __init__.py puts these on routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from vectord.errors import EmptyInput, InvalidField
from vectord.products.cohere.answers import render_detokenize, render_embed, render_rerank, render_tokenize
from vectord.products.cohere.wire import (
    DetokenizeBody,
    EmbedBody,
    EmbeddingType,
    EmbedInput,
    RerankBody,
    TokenizeBody,
    Truncate,
    Version,
)
from vectord.products.common.body import decode
from vectord.products.common.dialect import Call, Incoming
from vectord.products.common.inputs import read_kind, read_switch
from vectord.schema import DecodeRequest, EmbedRequest, Precision, RerankRequest, TextOptions, TokenizeRequest

RERANK_FIELDS: Mapping[str, str] = {"passages": "documents", "max_passage_tokens": "max_tokens_per_doc"}
MAX_TOKENS_PER_DOC = 4096  # in v2, where the body does not say

_embed_body = msgspec.json.Decoder(EmbedBody)
_rerank_body = msgspec.json.Decoder(RerankBody)
_tokenize_body = msgspec.json.Decoder(TokenizeBody)
_detokenize_body = msgspec.json.Decoder(DetokenizeBody)


def parse_embed(version: Version, incoming: Incoming) -> Call:
    body = decode(_embed_body, incoming.body)
    texts, field = _texts(body)
    types = tuple(dict.fromkeys(body.embedding_types or ()))
    if version == "2" and not types:
        types = ("float",)
    request = EmbedRequest(
        inputs=texts,
        model=body.model or None,
        text=_text_options(body),
        dimensions=body.output_dimension or None,
        force_dimensions=read_switch(body.force_dimensions, "force_dimensions") is True,
        precisions=_precisions(types),
    )
    fields = {"inputs": field, "dimensions": "output_dimension"}
    return Call(request, partial(render_embed, version, types, texts, field), fields)


def parse_rerank(version: Version, incoming: Incoming) -> Call:
    body = decode(_rerank_body, incoming.body)
    if not body.query.strip():
        raise EmptyInput("`query` must not be empty or only whitespace.", field="query")
    shown = read_switch(body.return_documents, "return_documents")
    if shown is None:
        shown = version == "1"
    request = RerankRequest(
        query=body.query,
        passages=[_passage(document, body.rank_fields, index) for index, document in enumerate(body.documents)],
        model=body.model or None,
        text=TextOptions(truncate_by_default=True),
        raw=False,
        max_passage_tokens=body.max_tokens_per_doc or (MAX_TOKENS_PER_DOC if version == "2" else None),
    )
    render = partial(render_rerank, version, body.documents if shown else None, body.top_n)
    return Call(request, render, RERANK_FIELDS)


def parse_tokenize(incoming: Incoming) -> Call:
    body = decode(_tokenize_body, incoming.body)
    request = TokenizeRequest(inputs=[body.text], model=body.model or None, add_special_tokens=False)
    return Call(request, render_tokenize, {"inputs": "text"})


def parse_detokenize(incoming: Incoming) -> Call:
    body = decode(_detokenize_body, incoming.body)
    return Call(DecodeRequest(ids=[body.tokens], model=body.model or None), render_detokenize, {"ids": "tokens"})


# --- fields ---------------------------------------------------------------------------------------------------


def _texts(body: EmbedBody) -> tuple[Sequence[str], str]:
    """What is to be embedded, and the key it came under."""
    if body.images:
        raise InvalidField("`images`: this server embeds texts only.", field="images")
    if body.texts is not None and body.inputs is not None:
        raise InvalidField("Give either `texts` or `inputs`, not both.", field="inputs")
    if body.texts is not None:
        return body.texts, "texts"
    if body.inputs is not None:
        return [_joined(one, index) for index, one in enumerate(body.inputs)], "inputs"
    raise EmptyInput("`texts` or `inputs` is required.", field="texts")


def _joined(one: EmbedInput, index: int) -> str:
    if not one.content:
        raise EmptyInput(f"`inputs[{index}].content` cannot be empty.", field="inputs", index=index)
    return "\n".join(_part_text(part.type, part.text, index) for part in one.content)


def _part_text(kind: str, text: str | None, index: int) -> str:
    if kind != "text":
        raise InvalidField(
            f"`inputs[{index}].content` may hold parts of type 'text' only: this server embeds no images.",
            field="inputs",
            index=index,
        )
    if text is None:
        raise InvalidField(
            f"`inputs[{index}].content`: a part of type 'text' needs a `text`.", field="inputs", index=index
        )
    return text


_TRUNCATES: Mapping[Truncate, bool] = {"END": True, "START": True, "NONE": False}


def _text_options(body: EmbedBody) -> TextOptions:
    return TextOptions(
        truncate=None if body.truncate is None else _TRUNCATES[body.truncate],
        truncate_by_default=True,
        truncate_side="left" if body.truncate == "START" else "right",
        kind=read_kind(body.input_type),
        max_tokens=body.max_tokens,
    )


def _precisions(types: Sequence[EmbeddingType]) -> tuple[Precision, ...]:
    """Base64 is one more way to write floats."""
    wanted: list[Precision] = ["float" if one == "base64" else one for one in types]
    return tuple(dict.fromkeys(wanted)) or ("float",)


def _passage(document: str | dict[str, Any], rank_fields: Sequence[str] | None, index: int) -> str:
    """What is ranked of a document. Source: Cohere's Rerank guide, "Example with Semi-structured Data"."""
    if isinstance(document, str):
        return document
    if not rank_fields:
        text = document.get("text")
        if isinstance(text, str):
            return text
        raise InvalidField(f"`documents[{index}]` needs a string `text`.", field="documents", index=index)
    lines = [f"{name}: {document[name]}" for name in rank_fields if isinstance(document.get(name), str)]
    if not lines:
        raise InvalidField(
            f"`documents[{index}]` has a string under none of the `rank_fields`.", field="documents", index=index
        )
    return "\n".join(lines)
