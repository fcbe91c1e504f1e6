"""Jina's bodies -> canonical requests, and how each is answered. Pure; __init__.py puts these on routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from vectord.errors import EmptyInput, InvalidField
from vectord.products.common.body import decode
from vectord.products.common.dialect import Call, Incoming
from vectord.products.common.inputs import Switch, check_count, join_chunks, read_inputs, read_kind, read_switch
from vectord.products.jina.answers import (
    precision_of,
    render_chunks,
    render_embeddings,
    render_multivectors,
    render_ranking,
)
from vectord.products.jina.wire import (
    Document,
    EmbeddingsBody,
    EmbeddingType,
    EmbeddingTypes,
    MultiVectorBody,
    RerankBody,
    TextDoc,
)
from vectord.schema import (
    DocumentsRequest,
    EmbedRequest,
    Input,
    InputKind,
    ModelInfo,
    RerankRequest,
    TextOptions,
)

# Of late chunking, too: the pieces of the one document are the inputs.
FIELDS: Mapping[str, str] = {"inputs": "input", "documents": "input", "spans": "input", "late": "late_chunking"}
RERANK_FIELDS: Mapping[str, str] = {"passages": "documents", "max_passage_tokens": "max_doc_length"}

_embeddings_body = msgspec.json.Decoder(EmbeddingsBody)
_multivector_body = msgspec.json.Decoder(MultiVectorBody)
_rerank_body = msgspec.json.Decoder(RerankBody)


def parse_embeddings(incoming: Incoming) -> Call:
    body = decode(_embeddings_body, incoming.body)
    _refuse(body.return_tokenized_input, "return_tokenized_input")
    kind = read_kind(_role(body.task), body.input_type)
    late = read_switch(body.late_chunking, "late_chunking")
    multivector = read_switch(body.return_multivector, "return_multivector")
    if late and multivector:
        raise InvalidField("`late_chunking` and `return_multivector` exclude each other.", field="late_chunking")
    if late:
        if isinstance(body.input, list):
            check_count(len(body.input), incoming.guards.max_inputs, "input", "chunk")
        return _chunks(body, kind)
    if multivector or _have_multivectors_alone(body.model, incoming.models):
        return _multivectors(body, kind)
    return _vectors(body, kind)


def parse_multivector(incoming: Incoming) -> Call:
    body = decode(_multivector_body, incoming.body)
    return _multivectors(body, read_kind(body.input_type))


def parse_rerank(incoming: Incoming) -> Call:
    body = decode(_rerank_body, incoming.body)
    _refuse(body.return_embeddings, "return_embeddings")
    if not body.documents:
        raise EmptyInput("`documents` cannot be empty", field="documents")
    documents = [_text(one, index, "documents") for index, one in enumerate(body.documents)]
    request = RerankRequest(
        query=body.query,
        passages=documents,
        model=body.model or None,
        text=TextOptions(truncate=read_switch(body.truncation, "truncation"), truncate_by_default=True),
        raw=False,
        max_passage_tokens=body.max_doc_length,
    )
    shows = read_switch(body.return_documents, "return_documents") is not False
    return Call(request, partial(render_ranking, documents, body.top_n, shows=shows), RERANK_FIELDS)


# --- embeddings -----------------------------------------------------------------------------------------------


def _vectors(body: EmbeddingsBody, kind: InputKind | None) -> Call:
    types = _types(body)
    request = EmbedRequest(
        inputs=_inputs(body),
        model=body.model or None,
        text=_text_options(body, kind),
        normalize=read_switch(body.normalized, "normalized") is not False,
        dimensions=body.dimensions or None,
        force_dimensions=read_switch(body.force_dimensions, "force_dimensions") is True,
        precisions=tuple(dict.fromkeys(precision_of(one) for one in _listed(types))),
    )
    return Call(request, partial(render_embeddings, types), FIELDS)


def _multivectors(body: MultiVectorBody, kind: InputKind | None) -> Call:
    types = _types(body)
    _refuse_bits(types, "multi-vectors")
    request = EmbedRequest(
        inputs=_inputs(body),
        model=body.model or None,
        text=_text_options(body, kind),
        outputs=frozenset({"colbert"}),
    )
    render = partial(render_multivectors, types, body.dimensions or None)
    return Call(request, render, FIELDS, binary=not body.dimensions)


def _chunks(body: EmbeddingsBody, kind: InputKind | None) -> Call:
    types = _types(body)
    text, spans = join_chunks(_pieces(body))
    request = DocumentsRequest(
        documents=[text],
        chunks=None,
        spans=[spans],
        model=body.model or None,
        text=_text_options(body, kind),
        late=True,
        normalize=read_switch(body.normalized, "normalized") is not False,
        dimensions=body.dimensions or None,
        force_dimensions=read_switch(body.force_dimensions, "force_dimensions") is True,
        precisions=tuple(dict.fromkeys(precision_of(one) for one in _listed(types))),
    )
    return Call(request, partial(render_chunks, types), FIELDS)


def _have_multivectors_alone(name: str | None, models: Sequence[ModelInfo]) -> bool:
    """As Jina's ColBERTs, which answer here without being asked for anything but their vectors."""
    asked = [info for info in models if not name or name in (info.name, info.model_id)]
    return bool(asked) and all("colbert" in info.outputs and "dense" not in info.outputs for info in asked)


def _role(task: str | None) -> str | None:
    """The side that a task like "nl2code.query" ends in."""
    return task.rpartition(".")[2] if task else None


def _text_options(body: MultiVectorBody, kind: InputKind | None) -> TextOptions:
    truncate = read_switch(body.truncate, "truncate")
    return TextOptions(truncate=truncate, truncate_by_default=True, prompt_name=body.prompt_name, kind=kind)


def _types(body: MultiVectorBody) -> EmbeddingTypes:
    return body.embedding_type or body.encoding_type or body.encoding_format or "float"


def _listed(types: EmbeddingTypes) -> Sequence[EmbeddingType]:
    return [types] if isinstance(types, str) else types


def _refuse_bits(types: EmbeddingTypes, of: str) -> None:
    if not {"float", "base64"}.issuperset(_listed(types)):
        raise InvalidField(f"`embedding_type` of {of} must be float or base64.", field="embedding_type")


# --- texts ----------------------------------------------------------------------------------------------------


def _inputs(body: MultiVectorBody) -> Sequence[Input]:
    value = [body.input] if isinstance(body.input, TextDoc) else body.input
    if isinstance(value, str):
        return [value]
    return read_inputs(
        [_text(one, index, "input") if isinstance(one, TextDoc) else one for index, one in enumerate(value)], "input"
    )


def _pieces(body: EmbeddingsBody) -> list[str]:
    """A piece of blanks has no tokens that its vector could be made of."""
    pieces = []
    for index, one in enumerate(_inputs(body)):
        if not isinstance(one, str):
            raise InvalidField("`late_chunking` takes texts, not ids.", field="input", index=index)
        if not one.strip():
            raise EmptyInput(f"`input[{index}]` must not be blank with `late_chunking`.", field="input", index=index)
        pieces.append(one)
    return pieces


def _text(one: Document, index: int, field: str) -> str:
    text = one.text if isinstance(one, TextDoc) else one
    if text is None:
        raise InvalidField(
            f"`{field}[{index}]` must have a `text`: images and PDFs are not served.", field=field, index=index
        )
    return text


def _refuse(switch: Switch, field: str) -> None:
    """What would be missing in the answer is refused rather than forgotten."""
    if read_switch(switch, field):
        raise InvalidField(f"`{field}` is not served; leave it out.", field=field)
