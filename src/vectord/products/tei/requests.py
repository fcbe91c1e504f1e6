"""Bodies of text-embeddings-inference -> canonical requests, and how their answers read. Pure; __init__.py has the
routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from vectord.errors import EmptyInput, InvalidField, ModelCannot, VectordError, WrongType
from vectord.products.common.body import decode
from vectord.products.common.dialect import Call, Incoming, Parse, named_error
from vectord.products.common.inputs import TextsOrIds, check_count, read_inputs, read_side
from vectord.products.common.models import render_info
from vectord.products.common.vectors import read_encoding
from vectord.products.tei.answers import (
    render_decode,
    render_embed,
    render_embed_all,
    render_embed_sparse,
    render_openai,
    render_predict,
    render_rerank,
    render_similarity,
    render_tokenize,
    render_vertex,
)
from vectord.products.tei.wire import (
    AnyBody,
    DecodeBody,
    EmbedBody,
    OpenAIBody,
    PredictBody,
    RerankBody,
    SimilarityBody,
    SimilarityParameters,
    TextsBody,
    TokenizeBody,
    VertexBody,
)
from vectord.schema import (
    ClassifyRequest,
    DecodeRequest,
    EmbedRequest,
    Input,
    ListModels,
    ModelInfo,
    RerankRequest,
    Several,
    SimilarityRequest,
    TextOptions,
    TokenizeRequest,
    VectorKind,
)

TRUNCATES = True  # what TEI 1.9 does with over-long text when nobody says
SIMILARITY_FIELDS: Mapping[str, str] = {
    "source": "inputs.source_sentence",
    "sentences": "inputs.sentences",
    "prompt_name": "parameters.prompt_name",
}
INSTANCE_FIELDS = ("inputs", "texts", "query", "normalize", "dimensions", "prompt_name", "truncation_direction")
MAX_INSTANCES = 2048  # each is parsed like a body of its own: 40 ms of a thread for so many

_embed_body = msgspec.json.Decoder(EmbedBody)
_any_body = msgspec.json.Decoder(AnyBody)
_texts_body = msgspec.json.Decoder(TextsBody)
_similarity_body = msgspec.json.Decoder(SimilarityBody)
_rerank_body = msgspec.json.Decoder(RerankBody)
_predict_body = msgspec.json.Decoder(PredictBody)
_vertex_body = msgspec.json.Decoder(VertexBody)
_tokenize_body = msgspec.json.Decoder(TokenizeBody)
_decode_body = msgspec.json.Decoder(DecodeBody)
_openai_body = msgspec.json.Decoder(OpenAIBody)


# --- vectors --------------------------------------------------------------------------------------------------


def parse_embed(incoming: Incoming) -> Call:
    body = decode(_embed_body, incoming.body)
    normalize = body.normalize is not False
    if normalize and _only_sparse(incoming.models):
        raise ModelCannot("`normalize` is not available for SPLADE models", field="normalize")
    request = EmbedRequest(
        inputs=_inputs(body.inputs, "inputs"),
        text=_text_options(body.truncate, body.truncation_direction, body.prompt_name),
        normalize=normalize,
        dimensions=_dimensions(body.dimensions),
        force_dimensions=body.force_dimensions is True,
    )
    return Call(request, render_embed)


def _only_sparse(models: Sequence[ModelInfo]) -> bool:
    made = {kind for model in models for kind in model.outputs}
    return "sparse" in made and "dense" not in made


def parse_embed_all(incoming: Incoming) -> Call:
    return Call(_embed_as("tokens", incoming), render_embed_all)


def parse_embed_sparse(incoming: Incoming) -> Call:
    return Call(_embed_as("sparse", incoming), render_embed_sparse)


def _embed_as(kind: VectorKind, incoming: Incoming) -> EmbedRequest:
    body = decode(_texts_body, incoming.body)
    return EmbedRequest(
        inputs=_inputs(body.inputs, "inputs"),
        text=_text_options(body.truncate, body.truncation_direction, body.prompt_name),
        outputs=frozenset({kind}),
    )


def parse_openai(incoming: Incoming) -> Call:
    body = decode(_openai_body, incoming.body)
    request = EmbedRequest(
        inputs=_inputs(body.input, "input"),
        text=replace(_text_options(None, None), own_ids=False),  # OpenAI's clients send ids of OpenAI's models
        dimensions=_dimensions(body.dimensions),
        force_dimensions=body.force_dimensions is True,
    )
    return Call(request, partial(render_openai, read_encoding(body.encoding_format)), {"inputs": "input"})


# --- scores ---------------------------------------------------------------------------------------------------


def parse_similarity(incoming: Incoming) -> Call:
    body = decode(_similarity_body, incoming.body)
    asked = body.inputs
    if not asked.sentences:
        raise EmptyInput("`inputs.sentences` cannot be empty", field="inputs.sentences")
    if not asked.source_sentence:
        raise EmptyInput("`inputs.source_sentence` cannot be empty", field="inputs.source_sentence")
    _refuse_empty(asked.sentences, "inputs.sentences")
    options = body.parameters or SimilarityParameters()
    text = _text_options(options.truncate, options.truncation_direction, options.prompt_name, within="parameters.")
    request = SimilarityRequest(source=asked.source_sentence, sentences=asked.sentences, text=text)
    return Call(request, render_similarity, SIMILARITY_FIELDS)


def parse_rerank(incoming: Incoming) -> Call:
    body = decode(_rerank_body, incoming.body)
    if not body.texts:
        raise EmptyInput("`texts` cannot be empty", field="texts")
    if not body.query:  # a pair is empty when both of its texts are
        _refuse_empty(body.texts, "texts")
    if incoming.models and not any(map(_reranks, incoming.models)):
        raise ModelCannot("model is not a re-ranker model")
    request = RerankRequest(
        query=body.query,
        passages=body.texts,
        text=_text_options(body.truncate, body.truncation_direction),
        raw=body.raw_scores is True,
    )
    render = partial(render_rerank, body.query, body.texts, body.return_text is True)
    return Call(request, render, {"passages": "texts"})


def _reranks(model: ModelInfo) -> bool:
    """By scores of its own or, unlike in TEI, by its vectors."""
    return model.reranks or not model.outputs.isdisjoint({"dense", "sparse", "colbert"})


def parse_predict(incoming: Incoming) -> Call:
    body = decode(_predict_body, incoming.body)
    inputs, single = _sequences(body.inputs)
    for index, one in enumerate(inputs):
        if not any(one):
            raise EmptyInput("`inputs` cannot be empty", field="inputs", index=index)
    request = ClassifyRequest(
        inputs=inputs, text=_text_options(body.truncate, body.truncation_direction), raw=body.raw_scores is True
    )
    return Call(request, partial(render_predict, single))


def _sequences(value: str | list[str | list[str]]) -> tuple[Sequence[str | tuple[str, str]], bool]:
    """What is to be classified, and whether it came as one: "a" and ["a"] are a text, ["a", "b"] is one pair, and a
    list of such lists is several."""
    if isinstance(value, str):
        return [value], True
    if not value:
        raise EmptyInput("`inputs` cannot be empty", field="inputs")
    if isinstance(value[0], str):
        return [_sequence(value, 0)], True
    return [_sequence(one, index) for index, one in enumerate(value)], False


def _sequence(texts: str | Sequence[str | list[str]], index: int) -> str | tuple[str, str]:
    if not isinstance(texts, str):
        match texts:
            case [str(text)]:
                return text
            case [str(text), str(pair)]:
                return text, pair
    raise WrongType(
        "`inputs` must be a string, a pair of strings, or a list whose items are lists of one or two strings.",
        field="inputs",
        index=index,
    )


# --- one route for everything ---------------------------------------------------------------------------------


def parse_root(incoming: Incoming) -> Call:
    """Similarity for a body whose `inputs` is an object, as huggingface_hub's sentence_similarity sends; else what
    the first served model is for."""
    inputs = decode(_any_body, incoming.body).inputs
    parse = parse_similarity if bytes(inputs).startswith(b"{") else _usual_parse(incoming.models)
    return parse(incoming)


def _usual_parse(models: Sequence[ModelInfo]) -> Parse:
    first = models[0] if models else None
    if first is None or "dense" in first.outputs:
        return parse_embed
    if "sparse" in first.outputs:
        return parse_embed_sparse
    return parse_predict if first.labels else parse_embed


def parse_vertex(incoming: Incoming) -> Call:
    """A body within the body for each instance."""
    instances = decode(_vertex_body, incoming.body).instances
    if not instances:
        raise EmptyInput("`instances` cannot be empty", field="instances")
    check_count(len(instances), min(MAX_INSTANCES, incoming.guards.max_inputs or MAX_INSTANCES), "instances", "request")
    calls = [_parse_instance(replace(incoming, body=bytes(one)), index) for index, one in enumerate(instances)]
    requests = []
    for call in calls:
        assert isinstance(call.request, EmbedRequest | RerankRequest | ClassifyRequest), "see _usual_parse"
        requests.append(call.request)
    render = partial(render_vertex, [call.render for call in calls])
    return Call(Several(requests=requests), render, {"requests": "instances"}, partial(_fields_within, calls))


def _fields_within(calls: Sequence[Call], index: int) -> Mapping[str, str]:
    """The words of one instance, each with its place in the whole body."""
    return _within(index, calls[index].names)


def _within(index: int, fields: Mapping[str, str]) -> Mapping[str, str]:
    words = {**{name: name for name in INSTANCE_FIELDS}, **fields}
    return {word: f"instances[{index}].{own}" for word, own in words.items()}


def _parse_instance(instance: Incoming, index: int) -> Call:
    """Ranks `texts`, else does what the first served model is for. What TEI's framework would refuse in a body of its
    own, TEI itself refuses here: a JSON error."""
    try:
        ranks = bytes(decode(_any_body, instance.body).texts)
        return parse_rerank(instance) if ranks else _usual_parse(instance.models)(instance)
    except WrongType as error:
        raise InvalidField(f"`instances[{index}]`: {error.message}", field="instances", index=index) from None
    except VectordError as error:
        raise named_error(error, _within(index, {})) from None


# --- tokens and facts -----------------------------------------------------------------------------------------


def parse_tokenize(incoming: Incoming) -> Call:
    body = decode(_tokenize_body, incoming.body)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    if not texts or "" in texts:
        raise EmptyInput("`inputs` cannot be empty", field="inputs")
    request = TokenizeRequest(
        inputs=texts, add_special_tokens=body.add_special_tokens is not False, prompt_name=body.prompt_name
    )
    return Call(request, render_tokenize)


def parse_decode(incoming: Incoming) -> Call:
    body = decode(_decode_body, incoming.body)
    ids = read_inputs(body.ids, "ids")
    return Call(DecodeRequest(ids=ids, skip_special_tokens=body.skip_special_tokens is not False), render_decode)


def parse_info(incoming: Incoming) -> Call:
    return Call(ListModels(), partial(render_info, TRUNCATES))


# --- fields ---------------------------------------------------------------------------------------------------


def _inputs(value: TextsOrIds, field: str) -> Sequence[Input]:
    inputs = read_inputs(value, field)
    _refuse_empty(inputs, field)
    return inputs


def _refuse_empty(inputs: Sequence[Input], field: str) -> None:
    if "" in inputs:
        raise EmptyInput(f"`{field}` cannot be empty", field=field, index=inputs.index(""))


def _text_options(
    truncate: bool | None, direction: str | None, prompt_name: str | None = None, within: str = ""
) -> TextOptions:
    """within: where in the body these stand."""
    return TextOptions(
        truncate=truncate,
        truncate_by_default=TRUNCATES,
        truncate_side=read_side(direction, f"{within}truncation_direction"),
        prompt_name=prompt_name,
        own_ids=True,
    )


def _dimensions(value: int | None) -> int | None:
    if value == 0:
        raise InvalidField("`dimensions` should be positive", field="dimensions")
    return value
