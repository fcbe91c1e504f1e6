"""Bodies of text-embeddings-inference -> canonical requests. Pure; tei.py puts these on its routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from vectord.dialects.base import Incoming
from vectord.dialects.body import decode
from vectord.dialects.inputs import TextsOrIds, read_inputs
from vectord.dialects.tei_wire import (
    AnyInputsBody,
    DecodeBody,
    EmbedBody,
    OpenAIBody,
    PredictBody,
    RerankBody,
    SimilarityBody,
    SimilarityParameters,
    TextsBody,
    TokenizeBody,
)
from vectord.dialects.vectors import read_encoding
from vectord.errors import EmptyInput, InvalidField, WrongType
from vectord.schema import (
    ClassifyRequest,
    DecodeRequest,
    EmbedRequest,
    Input,
    ListModels,
    ModelInfo,
    Request,
    RerankRequest,
    Side,
    SimilarityRequest,
    TextOptions,
    TokenizeRequest,
    VectorKind,
)

TRUNCATES = True  # what TEI 1.9 does with over-long text when nobody says

_embed_body = msgspec.json.Decoder(EmbedBody)
_any_inputs_body = msgspec.json.Decoder(AnyInputsBody)
_texts_body = msgspec.json.Decoder(TextsBody)
_similarity_body = msgspec.json.Decoder(SimilarityBody)
_rerank_body = msgspec.json.Decoder(RerankBody)
_predict_body = msgspec.json.Decoder(PredictBody)
_tokenize_body = msgspec.json.Decoder(TokenizeBody)
_decode_body = msgspec.json.Decoder(DecodeBody)
_openai_body = msgspec.json.Decoder(OpenAIBody)


# --- vectors --------------------------------------------------------------------------------------------------


def parse_embed(incoming: Incoming) -> EmbedRequest:
    body = decode(_embed_body, incoming.body)
    return EmbedRequest(
        inputs=_inputs(body.inputs, "inputs"),
        text=_text_options(body.truncate, body.truncation_direction, body.prompt_name),
        normalize=body.normalize is not False,
        dimensions=_dimensions(body.dimensions),
        force_dimensions=body.force_dimensions is True,
        field="inputs",
    )


def parse_embed_all(incoming: Incoming) -> EmbedRequest:
    return _embed_as("tokens", incoming)


def parse_embed_sparse(incoming: Incoming) -> EmbedRequest:
    return _embed_as("sparse", incoming)


def _embed_as(kind: VectorKind, incoming: Incoming) -> EmbedRequest:
    body = decode(_texts_body, incoming.body)
    return EmbedRequest(
        inputs=_inputs(body.inputs, "inputs"),
        text=_text_options(body.truncate, body.truncation_direction, body.prompt_name),
        outputs=frozenset({kind}),
        field="inputs",
    )


def parse_openai(incoming: Incoming) -> EmbedRequest:
    body = decode(_openai_body, incoming.body)
    return EmbedRequest(
        inputs=_inputs(body.input, "input"),
        text=TextOptions(truncate_by_default=TRUNCATES),
        dimensions=_dimensions(body.dimensions),
        force_dimensions=body.force_dimensions is True,
        encoding=read_encoding(body.encoding_format),
    )


# --- scores ---------------------------------------------------------------------------------------------------


def parse_similarity(incoming: Incoming) -> SimilarityRequest:
    body = decode(_similarity_body, incoming.body)
    asked = body.inputs
    if not asked.sentences:
        raise EmptyInput("`inputs.sentences` cannot be empty", field="inputs.sentences")
    _refuse_empty([asked.source_sentence, *asked.sentences], "inputs")
    options = body.parameters or SimilarityParameters()
    text = _text_options(options.truncate, options.truncation_direction, options.prompt_name)
    return SimilarityRequest(source=asked.source_sentence, sentences=asked.sentences, text=text)


def parse_rerank(incoming: Incoming) -> RerankRequest:
    body = decode(_rerank_body, incoming.body)
    if not body.texts:
        raise EmptyInput("`texts` cannot be empty", field="texts")
    if not body.query:  # a pair is empty when both of its texts are
        _refuse_empty(body.texts, "texts")
    return RerankRequest(
        query=body.query,
        passages=body.texts,
        text=_text_options(body.truncate, body.truncation_direction),
        raw=body.raw_scores is True,
        with_passages=body.return_text is True,
        field="texts",
    )


def parse_predict(incoming: Incoming) -> ClassifyRequest:
    body = decode(_predict_body, incoming.body)
    inputs, single = _sequences(body.inputs)
    for index, one in enumerate(inputs):
        if not any(one):
            raise EmptyInput("`inputs` cannot be empty", field="inputs", index=index)
    return ClassifyRequest(
        inputs=inputs,
        text=_text_options(body.truncate, body.truncation_direction),
        raw=body.raw_scores is True,
        single=single,
    )


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


# --- the root -------------------------------------------------------------------------------------------------


def parse_root(incoming: Incoming) -> Request:
    """Similarity for a body whose `inputs` is an object, as huggingface_hub's sentence_similarity sends; else what
    the first served model is for."""
    inputs = memoryview(decode(_any_inputs_body, incoming.body).inputs)
    parse = parse_similarity if bytes(inputs[:1]) == b"{" else _usual_parse(incoming.models)
    return parse(incoming)


def _usual_parse(models: Sequence[ModelInfo]) -> Callable[[Incoming], Request]:
    first = models[0] if models else None
    if first is None or "dense" in first.outputs:
        return parse_embed
    if "sparse" in first.outputs:
        return parse_embed_sparse
    return parse_predict if first.labels else parse_embed


# --- tokens and facts -----------------------------------------------------------------------------------------


def parse_tokenize(incoming: Incoming) -> TokenizeRequest:
    body = decode(_tokenize_body, incoming.body)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    if not texts or "" in texts:
        raise EmptyInput("`inputs` cannot be empty", field="inputs")
    return TokenizeRequest(
        inputs=texts, add_special_tokens=body.add_special_tokens is not False, prompt_name=body.prompt_name
    )


def parse_decode(incoming: Incoming) -> DecodeRequest:
    body = decode(_decode_body, incoming.body)
    return DecodeRequest(ids=read_inputs(body.ids, "ids"), skip_special_tokens=body.skip_special_tokens is not False)


def parse_info(incoming: Incoming) -> ListModels:
    return ListModels()


# --- fields ---------------------------------------------------------------------------------------------------


def _inputs(value: TextsOrIds, field: str) -> Sequence[Input]:
    inputs = read_inputs(value, field)
    _refuse_empty(inputs, field)
    return inputs


def _refuse_empty(inputs: Sequence[Input], field: str) -> None:
    if "" in inputs:
        raise EmptyInput(f"`{field}` cannot be empty", field=field, index=inputs.index(""))


def _text_options(truncate: bool | None, direction: str | None, prompt_name: str | None = None) -> TextOptions:
    return TextOptions(
        truncate=truncate, truncate_by_default=TRUNCATES, truncate_side=_side(direction), prompt_name=prompt_name
    )


_SIDES: Mapping[str, Side] = {"right": "right", "left": "left"}


def _side(direction: str | None) -> Side:
    side = _SIDES.get("right" if direction is None else direction.lower())
    if side is None:
        raise InvalidField("`truncation_direction` must be 'Right' or 'Left'", field="truncation_direction")
    return side


def _dimensions(value: int | None) -> int | None:
    if value == 0:
        raise InvalidField("`dimensions` should be positive", field="dimensions")
    return value
