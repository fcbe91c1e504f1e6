"""TEI's routes: each body -> a canonical request, and its result -> TEI's bare arrays, with TEI's figures in headers.

TEI serves one model and ignores `model`: see `requested_model`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from vectord.errors import EmptyInput, InvalidField, ModelCannot, VectordError, WrongType
from vectord.products.common.body import Count, TokenId, decode, is_object
from vectord.products.common.dialect import Call, Incoming, Rendered, Routes
from vectord.products.common.fields import about, refused
from vectord.products.common.inputs import (
    Direction,
    EmbedFields,
    Force,
    TextsOrIds,
    check_count,
    read_filled_inputs,
    read_inputs,
    read_side,
    refuse_empty,
    refuse_none,
)
from vectord.products.common.models import Info, named_models, none_can, render_info, requested_model
from vectord.products.common.ranking import (
    NoCount,
    Rank,
    RerankFields,
    ScoredLabel,
    best_labels,
    rerank_request,
)
from vectord.products.common.vectors import (
    EmbeddingList,
    dump_json,
    embedding_items,
    list_answer,
    read_encoding,
)
from vectord.products.tei.errors import render_openai_error
from vectord.products.tei.usage import compute_headers
from vectord.schema import (
    ClassifyRequest,
    ClassifyResult,
    DecodeRequest,
    DecodeResult,
    EmbedRequest,
    EmbedResult,
    Float32,
    MultiRequest,
    MultiResult,
    RerankRequest,
    RerankResult,
    SimilarityRequest,
    SimilarityResult,
    TextOptions,
    Token,
    TokenizeRequest,
    TokenizeResult,
    Usage,
    VectorKind,
    best_first,
)

ROUTES = Routes({"truncate_side": "truncation_direction"})

TRUNCATES = True  # TEI 1.9 truncates over-long text unless the request or the server is set otherwise
MAX_INSTANCES = 2048  # each is parsed as a body of its own: 40 ms of a thread for this many

# --- vectors --------------------------------------------------------------------------------------------------


Model = Annotated[str | None, about("if several models are served, the one that answers")]


class Truncation(msgspec.Struct, kw_only=True):
    truncate: bool | None = None
    truncation_direction: Direction | None = "Right"


class TextsBody(Truncation, kw_only=True):
    inputs: TextsOrIds
    model: Model = None
    prompt_name: str | None = None


class EmbedBody(TextsBody, kw_only=True):
    normalize: bool | None = True
    dimensions: Count | None = None
    force_dimensions: Force = None
    encoding_format: Annotated[Any, refused("vectors are numbers here; use /v1/embeddings", "float")] = None


class SparseEntry(msgspec.Struct):
    index: int
    value: float


@ROUTES.post(
    "/embed", answer=list[list[float]], summary="Embed texts or token ids", example={"inputs": ["hello", "world"]}
)
def parse_embed(body: EmbedBody, incoming: Incoming) -> Call:
    normalize = body.normalize is not False
    models = named_models(_model(body.model, incoming), incoming.models)
    splade = any("sparse" in info.outputs for info in models)
    if normalize and splade and none_can(models, lambda info: "dense" in info.outputs):
        raise ModelCannot("{field} is not available for SPLADE models", field="normalize")
    _refuse_zero(body.dimensions)
    request = replace(
        _embed_request(body, incoming, "dense"),
        normalize=normalize,
        dimensions=body.dimensions,
        force_dimensions=body.force_dimensions is True,
    )
    return Call(request, render_embed)


def _model(name: str | None, incoming: Incoming) -> str | None:
    return requested_model(name, incoming, ignored_by="tei")


def render_embed(result: EmbedResult) -> Rendered:
    vectors = np.ascontiguousarray(result.dense["float"])  # (N, D), also where D was cut from more
    return _answer(vectors, result.usage)


def _answer(shown: object, usage: Usage, characters: int | None = None) -> Rendered:
    """characters: TEI's own count; None: those of the inputs."""
    return Rendered(body=dump_json(shown), headers=compute_headers(usage, characters))


@ROUTES.post("/embed_all", answer=list[list[list[float]]], summary="Embed tokens", example={"inputs": "hello"})
def parse_embed_all(body: TextsBody, incoming: Incoming) -> Call:
    def render(result: EmbedResult) -> Rendered:
        assert result.tokens is not None
        return _answer([np.ascontiguousarray(vectors) for vectors in result.tokens], result.usage)  # (n_i, H) each

    return Call(_embed_request(body, incoming, "tokens"), render)


@ROUTES.post(
    "/embed_sparse", answer=list[list[SparseEntry]], summary="Make sparse vectors of texts", example={"inputs": "hello"}
)
def parse_embed_sparse(body: TextsBody, incoming: Incoming) -> Call:
    def render(result: EmbedResult) -> Rendered:
        assert result.sparse is not None
        shown = [
            [{"index": index, "value": value} for index, value in zip(vector.indices, vector.values, strict=True)]
            for vector in result.sparse
        ]
        return _answer(shown, result.usage)

    return Call(_embed_request(body, incoming, "sparse"), render)


def _embed_request(body: TextsBody, incoming: Incoming, kind: VectorKind) -> EmbedRequest:
    return EmbedRequest(
        inputs=read_filled_inputs(body.inputs),
        model=_model(body.model, incoming),
        text=text_options(body, body.prompt_name),
        outputs=frozenset({kind}),
    )


# --- similarity -----------------------------------------------------------------------------------------------


class SimilarityInputs(msgspec.Struct):
    source_sentence: str
    sentences: list[str]


class SimilarityParameters(Truncation, kw_only=True):
    prompt_name: str | None = None


class SimilarityBody(msgspec.Struct):
    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None
    model: Model = None


@ROUTES.post(
    "/similarity",
    computes="similarity",
    answer=list[float],
    summary="Compare sentences",
    example={
        "inputs": {
            "source_sentence": "That is a happy person",
            "sentences": ["That is a very happy person", "Today is a sunny day"],
        }
    },
    names={
        "source": "inputs.source_sentence",
        "sentences": "inputs.sentences",
        "prompt_name": "parameters.prompt_name",
        "truncation_direction": "parameters.truncation_direction",
        "truncate_side": "parameters.truncation_direction",
    },
)
def parse_similarity(body: SimilarityBody, incoming: Incoming) -> Call:
    source, sentences = body.inputs.source_sentence, body.inputs.sentences
    refuse_none(sentences, "sentences")
    refuse_none(source, "source")
    refuse_empty(sentences, "sentences")
    options = body.parameters or SimilarityParameters()
    text = text_options(options, options.prompt_name)

    def render(result: SimilarityResult) -> Rendered:
        return _answer(result.scores, result.usage)

    model = _model(body.model, incoming)
    return Call(SimilarityRequest(source=source, sentences=sentences, model=model, text=text), render)


# --- one route for every operation ----------------------------------------------------------------------------
#
# `inputs` is for the operation of the named or first served model, and `texts` is for the reranking route of these
# paths, which comes after it. The first of the two answers a body with neither.


# Fields of some operations, with the value that has no effect.
OPTIONS: Mapping[str, object] = {
    **dict.fromkeys(("truncate", "prompt_name", "dimensions")),
    "truncation_direction": "Right",
    "normalize": True,
    "raw_scores": False,
}


AnyBody: TypeAlias = Mapping[str, msgspec.Raw]
_any_body = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = msgspec.Raw(b"null")

RootAnswer = Annotated[
    list[list[Any] | dict[str, Any] | float],
    about("vectors; words, predictions or similarities where those are asked for"),
]


def parse_root(incoming: Incoming) -> Call:
    """Similarity for an object in `inputs`, as huggingface_hub's sentence_similarity sends; else see _usual_path."""
    body = decode(_any_body, incoming.body)
    path = "/similarity" if is_object(body.get("inputs", _NULL)) else _usual_path(body, None, incoming)
    return _parse_at(path, body, incoming)


ROUTES.add(
    "POST",
    "/",
    "/invocations",
    parse=parse_root,
    computes="embed",
    summary="Embed, classify or compare, by the model and the kind of `inputs`",
    body=EmbedBody,
    answer=RootAnswer,
    example={"inputs": ["hello", "world"]},
)


def _usual_path(body: AnyBody, model: str | None, incoming: Incoming) -> str:
    """The route for the operation of the model that the body names, or else `model`, or the first served one."""
    named = msgspec.json.decode(body.get("model", _NULL))
    name = named if isinstance(named, str) and named else model  # the route refuses another type
    models = named_models(_model(name, incoming), incoming.models)
    if not models or "dense" in models[0].outputs:
        return "/embed"
    if "sparse" in models[0].outputs:
        return "/embed_sparse"
    return "/predict" if models[0].labels else "/embed"


def _parse_at(path: str, body: AnyBody, incoming: Incoming) -> Call:
    """Raises InvalidField for a field that the operation of this path does not have."""
    route = next(route for route in ROUTES if route.path == path)
    assert route.body is not None
    for name in OPTIONS.keys() & body.keys() - {*route.body.__struct_fields__}:
        if msgspec.json.decode(body[name]) not in (None, OPTIONS[name]):
            raise InvalidField("{field} is no field of {path}, which answers here.", field=name, path=path)
    return route.parse(incoming)


# --- scores ---------------------------------------------------------------------------------------------------


class RerankBody(RerankFields, kw_only=True):
    query: str
    texts: list[str]
    truncate: bool | None = None
    truncation_direction: Direction | None = "Right"
    raw_scores: bool | None = False
    return_text: bool | None = False
    top_n: NoCount = None
    top_k: NoCount = None
    model: Model = None


_QUESTION = {"query": "Which planet is red?", "texts": ["Mars is called the red planet.", "Bread needs yeast."]}


@ROUTES.post(
    "/rerank",
    "/v1/rerank",
    "/",
    "/invocations",
    computes="rerank",
    answer=list[Rank],
    summary="Rank texts by how well they answer a query",
    example=_QUESTION,
    names={"passages": "texts"},
)
def parse_rerank(body: RerankBody, incoming: Incoming) -> Call:
    refuse_none(body.texts, "passages")
    if not body.query:  # a pair is empty if both of its texts are
        refuse_empty(body.texts, "passages")
    # By scores of its own or, unlike in TEI, by its vectors.
    vectors = {"dense", "sparse", "colbert"}
    if none_can(incoming.models, lambda model: model.reranks or not model.outputs.isdisjoint(vectors)):
        raise ModelCannot("model is not a re-ranker model")

    def render(result: RerankResult) -> Rendered:
        """Best first. TEI counts the query's characters once for each text."""
        ranks: list[dict[str, Any]] = [
            {"index": i, "score": result.scores[i], **({"text": body.texts[i]} if body.return_text else {})}
            for i in places(result.scores, result.logits)
        ]
        return _answer(ranks, result.usage, len(body.query) * len(body.texts) + sum(map(len, body.texts)))

    model, raw = _model(body.model, incoming), body.raw_scores is True
    return Call(rerank_request(body, body.query, body.texts, model, text_options(body), raw=raw), render)


def places(scores: Float32, logits: Float32 | None) -> list[int]:
    """`best_first`, but with the last of equal scores and logits first: TEI sorts and reverses."""
    reverse = slice(None, None, -1)
    order: list[int] = (
        len(scores) - 1 - best_first(scores[reverse], None if logits is None else logits[reverse])
    ).tolist()
    return order


class PredictBody(Truncation, kw_only=True):
    """`inputs`: "a" is one text, ["a", "b"] ONE PAIR, [["a"], ["b", "c"]] a text and a pair."""

    inputs: str | list[str | list[str]]
    raw_scores: bool | None = False
    model: Model = None
    parameters: Annotated[Any, refused("all labels are returned, as logits with `raw_scores`", {})] = None


@ROUTES.post(
    "/predict",
    computes="classify",
    answer=list[ScoredLabel | list[ScoredLabel]],
    summary="Classify texts or pairs",
    example={"inputs": [["I like you"], ["Mars is red", "Mars has a colour"]]},
)
def parse_predict(body: PredictBody, incoming: Incoming) -> Call:
    """The number of brackets decides: "a" and ["a"] are a text, ["a", "b"] is a pair, a list of lists is a batch."""
    refuse_none(body.inputs, "inputs")
    single = isinstance(body.inputs, str) or isinstance(body.inputs[0], str)
    batch = [[body.inputs] if isinstance(body.inputs, str) else body.inputs] if single else body.inputs
    inputs: list[str | tuple[str, str]] = []
    for index, texts in enumerate(batch):
        match texts:
            case [str(text)]:
                inputs.append(text)
            case [str(text), str(pair)]:
                inputs.append((text, pair))
            case _:
                template = (
                    "{body.inputs} must be a string, a pair of strings, or a list of lists of one or two strings."
                )
                raise WrongType(template, field="inputs", index=index)
        if not any(texts):
            raise EmptyInput("{body.inputs} cannot be empty", field="inputs", index=index)
    request = ClassifyRequest(
        inputs=inputs,
        model=_model(body.model, incoming),
        text=text_options(body),
        raw=body.raw_scores is True,
    )

    def render(result: ClassifyResult) -> Rendered:
        """Labels best first: one list for a single input, a list of lists for a batch."""
        predictions = [
            [{"score": score, "label": label} for label, score in labels] for labels in best_labels(result, places)
        ]
        return _answer(predictions[0] if single else predictions, result.usage)

    return Call(request, render)


# --- tokens ---------------------------------------------------------------------------------------------------


class TokenizeBody(msgspec.Struct):
    inputs: str | list[str]
    add_special_tokens: bool | None = True
    prompt_name: str | None = None
    model: Model = None


@ROUTES.post(
    "/tokenize", computes=None, answer=list[list[Token]], summary="Tokenize texts", example={"inputs": ["hello world"]}
)
def parse_tokenize(body: TokenizeBody, incoming: Incoming) -> Call:
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    if not texts or "" in texts:
        raise EmptyInput("{field} cannot be empty", field="inputs")
    request = TokenizeRequest(
        inputs=texts,
        model=_model(body.model, incoming),
        add_special_tokens=body.add_special_tokens is not False,
        prompt_name=body.prompt_name,
    )

    def render(result: TokenizeResult) -> Rendered:
        return Rendered(body=dump_json(result.tokens))

    return Call(request, render)


class DecodeBody(msgspec.Struct):
    ids: list[TokenId | list[TokenId]]
    skip_special_tokens: bool | None = True
    model: Model = None


@ROUTES.post(
    "/decode", computes=None, answer=list[str], summary="Decode token ids", example={"ids": [101, 7592, 2088, 102]}
)
def parse_decode(body: DecodeBody, incoming: Incoming) -> Call:
    def render(result: DecodeResult) -> Rendered:
        return Rendered(body=dump_json(list(result.texts)))

    ids = read_inputs(body.ids, "ids")
    skip = body.skip_special_tokens is not False
    return Call(DecodeRequest(ids=ids, model=_model(body.model, incoming), skip_special_tokens=skip), render)


# --- several bodies at once -----------------------------------------------------------------------------------


class VertexBody(msgspec.Struct):
    instances: Annotated[list[msgspec.Raw], about("each a body of `/`, or one with `texts` to rank")]
    model: Annotated[str | None, about("of the instances that name none")] = None


class VertexAnswer(msgspec.Struct):
    """The answer of each instance's own route: rows of vectors, of words or of predictions, or objects."""

    predictions: list[list[list[Any] | dict[str, Any]]]


@ROUTES.post(
    "/vertex",
    answer=VertexAnswer,
    summary="Handle several bodies of the root route at once, as Vertex AI sends them",
    example={"instances": [{"inputs": "hello"}, _QUESTION]},
    names={"requests": "instances"},
)
def parse_vertex(body: VertexBody, incoming: Incoming) -> Call:
    refuse_none(body.instances, "requests")
    limit = min(MAX_INSTANCES, incoming.guards.max_inputs or MAX_INSTANCES)
    check_count(len(body.instances), limit, "requests", "request")
    model = _model(body.model, incoming)
    calls = []
    for index, one in enumerate(body.instances):
        instance = replace(incoming, body=bytes(one))
        try:
            # Ranks `texts`, else does the operation of the model, which an instance may name.
            parsed = decode(_any_body, instance.body)
            path = "/rerank" if "texts" in parsed else _usual_path(parsed, body.model, instance)
            calls.append(_parse_at(path, parsed, instance))
        except WrongType as error:  # JSON too, because TEI itself reads instances
            invalid = InvalidField("{field}: " + error.template, field="instance")
            invalid.values = error.values
            raise invalid.named({"instance": f"instances[{index}]"}) from None
        except VectordError as error:
            raise error.named(_names_within(index, error.names)) from None
    requests = []
    for call in calls:
        assert isinstance(call.request, EmbedRequest | RerankRequest | ClassifyRequest), "see _usual_path"
        requests.append(call.request if call.request.model else replace(call.request, model=model))
    return Call(
        MultiRequest(requests=requests),
        partial(render_vertex, calls),
        part_names=lambda index: _names_within(index, calls[index].names),
    )


def _names_within(index: int, names: Mapping[str, str]) -> Mapping[str, str]:
    """The names of one instance's fields in the whole body."""
    fields = ("inputs", "passages", "query", "truncate_side", *OPTIONS)
    return {field: f"instances[{index}].{names.get(field, field)}" for field in fields}


def render_vertex(calls: Sequence[Call], result: MultiResult) -> Rendered:
    """Each answer in the form of its own route."""
    bodies = [call.render(one).body for call, one in zip(calls, result.results, strict=True)]
    return Rendered(body=b'{"predictions":[' + b",".join(bodies) + b"]}", headers=compute_headers(result.usage))


# --- OpenAI's form, and facts ---------------------------------------------------------------------------------


class OpenAIBody(EmbedFields, kw_only=True):
    input: TextsOrIds
    model: Model = None
    dimensions: Count | None = None


@ROUTES.post(
    "/v1/embeddings",
    "/embeddings",
    answer=EmbeddingList,
    summary="Embed texts or token ids, in OpenAI's shape",
    example={"input": ["hello", "world"]},
    names={"inputs": "input", "truncate_side": "truncate"},
    render_error=render_openai_error,
)
def parse_openai(body: OpenAIBody, incoming: Incoming) -> Call:
    # Without the profile, clients of OpenAI send the ids of OpenAI's models here.
    text = replace(text_options(Truncation()), own_ids=incoming.guards.own_ids)
    _refuse_zero(body.dimensions)
    request = body.request(read_filled_inputs(body.input), _model(body.model, incoming), text)
    encoding = read_encoding(body.encoding_format)

    def render(result: EmbedResult) -> Rendered:
        items = embedding_items(result.dense["float"], encoding)
        return list_answer(result, items, headers=compute_headers(result.usage))

    return Call(request, render)


ROUTES.get("/info", summary="Show the first served model and the limits in force", answer=Info)(
    partial(render_info, TRUNCATES)
)

# --- fields ---------------------------------------------------------------------------------------------------


def text_options(
    body: Truncation | RerankBody, prompt_name: str | None = None, *, truncates: bool = TRUNCATES
) -> TextOptions:
    """truncates: whether long texts are truncated by default."""
    return TextOptions(
        truncate=body.truncate,
        truncate_by_default=truncates,
        truncate_side=read_side(body.truncation_direction),
        prompt_name=prompt_name,
        own_ids=True,
    )


def _refuse_zero(dimensions: int | None) -> None:
    if dimensions == 0:
        raise InvalidField("{field} should be positive", field="dimensions")
