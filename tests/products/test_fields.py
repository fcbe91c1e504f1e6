"""Every field of the products' own request types is applied, refused, or listed as without effect.

The lists below are the types of products of which no package contains them, with version and source;
tests/clients/test_fields.py reads the types of the others. A new release of a product shows its new fields there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from tests.dialects import all_dialects
from tests.products.results import incoming, model_info, rerank_result, route_of
from tests.products.test_shared_paths import table_of
from tests.refusals import refuses

from vectord.errors import InvalidField, VectordError
from vectord.products import ORDER
from vectord.products.common.dialect import Route, load_dialects
from vectord.products.common.fields import RefusedField, refusals_of
from vectord.schema import ModelInfo, RerankRequest

TEI_TEXTS = "inputs truncate truncation_direction prompt_name"

# (product, path, a key if several of its routes have the path): fields
TYPES: Mapping[tuple[str, str, str], str] = {
    # text-embeddings-inference 1.9.3: docs/openapi.json
    ("tei", "/embed", ""): f"{TEI_TEXTS} normalize dimensions",
    ("tei", "/embed_all", ""): TEI_TEXTS,
    ("tei", "/embed_sparse", ""): TEI_TEXTS,
    ("tei", "/similarity", ""): "inputs parameters parameters.truncate parameters.truncation_direction "
    "parameters.prompt_name",
    ("tei", "/rerank", ""): "query texts truncate truncation_direction raw_scores return_text",
    ("tei", "/predict", ""): "inputs truncate truncation_direction raw_scores",
    ("tei", "/tokenize", ""): "inputs add_special_tokens prompt_name",
    ("tei", "/decode", ""): "ids skip_special_tokens",
    ("tei", "/vertex", ""): "instances",
    ("tei", "/v1/embeddings", ""): "input model user encoding_format dimensions",
    # Ollama 0.32: api/types.go
    ("ollama", "/api/embed", ""): "model input keep_alive truncate dimensions options options.num_ctx "
    "options.num_batch options.num_gpu options.main_gpu options.use_mmap options.num_thread options.draft_num_predict "
    "options.num_keep options.seed options.num_predict options.top_k options.top_p options.min_p options.typical_p "
    "options.repeat_last_n options.temperature options.repeat_penalty options.presence_penalty "
    "options.frequency_penalty options.stop",
    ("ollama", "/api/embeddings", ""): "model prompt keep_alive options",
    ("ollama", "/api/show", "model"): "model system template verbose options name",
    ("ollama", "/api/pull", ""): "model insecure stream name",
    # Jina, 2026: api.jina.ai/redoc, and the clients of Chroma, LlamaIndex and Xinference
    ("jina", "/v1/embeddings", ""): "model input task dimensions normalized embedding_type late_chunking truncate "
    "return_multivector encoding_type input[].text input[].image input[].url input[].bytes input[].pdf",
    ("jina", "/v1/multi-vector", ""): "model input input_type dimensions embedding_type",
    ("jina", "/v1/rerank", ""): "model query documents top_n return_documents truncation max_doc_length "
    "max_query_length return_embeddings return_len max_chunks_per_doc documents[].text documents[].image",
    # NVIDIA NIM 2.4: the API references of Embedding and Reranking NIM. Its embeddings are OpenAI's product here; with
    # `embedding_type` they are Jina's, and with `modality` infinity's.
    # SGLang 0.5.23, with objects in `input`: entrypoints/openai/protocol.py, without request ids, priorities and
    # vectors in place of tokens.
    ("openai", "/v1/embeddings", ""): "model input input_type truncate encoding_format dimensions user input[].text "
    "input[].image input[].video lora_path",
    ("nvidia", "/v1/ranking", ""): "model query query.text passages passages[].text passages[].image truncate",
    # The four systems that vectord replaces: their documents and sources
    ("embedding_server", "/api/v1/embed", ""): f"{TEI_TEXTS} normalize dimensions",
    ("smart_embedder", "/embeddings", ""): "sentences return_dense return_sparse return_colbert normalize_dense "
    "sparse_as_indices",
    ("smart_embedder", "/rerank", ""): "query passages normalize",
    ("simple_inference_server", "/v1/embeddings", ""): "model input encoding_format user",
    ("simple_inference_server", "/v1/rerank", ""): "model query documents top_n",
    ("semantic_explorer", "/embed", ""): "input model",
    ("semantic_explorer", "/rerank", ""): "query documents model top_n",
    ("semantic_explorer", "/api/rerank", ""): "query documents documents[].text documents[].id model top_k "
    "return_scores",
    # Weaviate's modules text2vec-transformers and reranker-transformers: the structs of their clients in Go
    ("weaviate", "/vectors", "text"): "text dims vector error config config.pooling_strategy config.task_type "
    "config.dimensions",
    ("weaviate", "/rerank", ""): "query documents property",
}


def fields_of(body: type[msgspec.Struct]) -> set[str]:
    """The names of a body's fields, with those of objects and of the objects in lists."""
    found = inspect.type_info(body)
    assert isinstance(found, inspect.StructType)
    return set(_fields(found, ""))


def _fields(body: inspect.StructType, prefix: str) -> Iterator[str]:
    for field in body.fields:
        name = prefix + field.encode_name
        yield name
        for inner, suffix in _objects(field.type):
            yield from _fields(inner, f"{name}{suffix}.")


def _objects(kind: inspect.Type) -> Iterator[tuple[inspect.StructType, str]]:
    if isinstance(kind, inspect.Metadata):
        yield from _objects(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _objects(one)
    elif isinstance(kind, inspect.ListType):
        yield from ((one, f"[]{suffix}") for one, suffix in _objects(kind.item_type))
    elif isinstance(kind, inspect.StructType):
        yield kind, ""


def routes() -> Sequence[Route]:
    """One route for each type of body."""
    found = {
        route.body: route
        for dialect in all_dialects()
        for route in dialect.routes
        if route.body is not None and not route.form
    }
    return list(found.values())


@pytest.mark.parametrize(("product", "path", "key"), TYPES, ids=lambda part: part or "-")
def test_every_field_of_a_products_own_type_is_known(product: str, path: str, key: str) -> None:
    """Its body applies the field, refuses it, or lists it as without effect."""
    (dialect,) = load_dialects([product])
    body = route_of(dialect, path, key).body
    assert body is not None
    assert set(TYPES[product, path, key].split()) - fields_of(body) == set()


REFUSED = [
    pytest.param(route, refusal, id=f"{route.path} {refusal.field}")
    for route in routes()
    if route.body is not None
    for refusal in refusals_of(route.body)
]


@pytest.mark.parametrize(("route", "refusal"), REFUSED)
def test_a_refused_field_is_named_and_its_harmless_values_pass(route: Route, refusal: RefusedField) -> None:
    """null is harmless for every field."""
    parsed = route.parse(incoming(route.example)).request
    for value in (None, *refusal.harmless):
        assert route.parse(incoming({**route.example, refusal.field: value})).request == parsed
    with pytest.raises(InvalidField) as refused:
        route.parse(incoming({**route.example, refusal.field: "x"}))
    assert refused.value.field_name == refusal.field
    assert refused.value.message == f"`{refusal.field}` is not supported: {refusal.reason}."


@pytest.mark.parametrize("route", routes(), ids=lambda route: route.path)
def test_null_is_the_same_as_absent(route: Route) -> None:
    """SDKs of typed languages send null for unset fields. vLLM itself refuses one of these."""
    assert route.body is not None
    facts = {"path": {"model": "served"}}
    request = route.parse(incoming(route.example, **facts)).request
    optional = {field.encode_name for field in msgspec.structs.fields(route.body) if not field.required}
    nulls = dict.fromkeys(optional - set(route.example) - {"continue_final_message"})
    assert route.parse(incoming({**route.example, **nulls}, **facts)).request == request


# --- contradictions -------------------------------------------------------------------------------------------

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
TEXT_NEXT_TO = [
    {"messages": [{"role": "user", "content": "a"}]},
    {"chat_template": "{{ messages }}"},
    {"chat_template_kwargs": {"instruction": "Find birds."}},
    {"add_generation_prompt": True},
    {"continue_final_message": True},
]
# (product, path, fields next to those of the example, the field that is refused)
CONTRADICTIONS: Sequence[tuple[str, str, Mapping[str, Any], str]] = [
    ("jina", EMBEDDINGS, {"embedding_type": "float", "encoding_type": "binary"}, "encoding_type"),
    ("jina", EMBEDDINGS, {"embedding_type": "base64", "encoding_format": "float"}, "encoding_format"),
    ("jina", EMBEDDINGS, {"task": "retrieval.query", "input_type": "document"}, "input_type"),
    (
        "jina",
        EMBEDDINGS,
        {"late_chunking": False, "return_multivector": True, "normalized": False},
        "normalized",
    ),
    ("jina", RERANK, {"max_query_length": 4, "max_tokens_per_query": 8}, "max_tokens_per_query"),
    ("infinity", "/embeddings", {"dimensions": 8, "output_dimension": 16}, "output_dimension"),
    ("voyage", EMBEDDINGS, {"truncation": True, "truncate": "NONE"}, "truncate"),
    ("voyage", "/v1/contextualizedembeddings", {"chunk_size": 64}, "chunk_size"),
    ("voyage", "/v1/contextualizedembeddings", {"chunk_overlap": 8}, "chunk_overlap"),
    (
        "voyage",
        "/v1/contextualizedembeddings",
        {"inputs": [["a"]], "input_type": "query", "enable_auto_chunking": True},
        "enable_auto_chunking",
    ),
    ("vllm", EMBEDDINGS, {"truncate_prompt_tokens": 8, "truncate": "NONE"}, "truncate"),
    ("vllm", EMBEDDINGS, {"truncation_side": "right", "truncate": "START"}, "truncate"),
    ("vllm", "/pooling", {"task": "classify", "truncate_prompt_tokens": 8, "truncate": "NONE"}, "truncate"),
    *(("vllm", path, fields, next(iter(fields))) for path in (EMBEDDINGS, "/tokenize") for fields in TEXT_NEXT_TO),
    ("ollama", "/api/pull", {"name": "another"}, "name"),
    ("weaviate", "/rerank", {"property": "a"}, "property"),
    ("semantic_explorer", "/api/rerank", {"top_k": 1, "top_n": 2}, "top_n"),
    ("voyage", RERANK, {"top_k": 1, "top_n": 2}, "top_n"),
    ("llamacpp", RERANK, {"texts": ["a"]}, "documents"),
    ("cohere", RERANK, {"documents": [{"text": "a"}], "rank_fields": ["text", "title"]}, "rank_fields"),
]


@pytest.mark.parametrize(("product", "path", "fields", "field"), CONTRADICTIONS, ids=str)
def test_a_field_that_contradicts_another_one_is_refused(
    product: str, path: str, fields: Mapping[str, Any], field: str
) -> None:
    """It would otherwise be ignored."""
    (dialect,) = load_dialects([product])
    route = route_of(dialect, path)
    with refuses(InvalidField, field_name=field):
        route.parse(incoming({**route.example, **fields}))


@pytest.mark.parametrize(
    ("model", "task"), [(model_info(), "embed"), (model_info(outputs=frozenset(), labels=("a", "b")), "classify")]
)
def test_invocations_do_the_task_of_the_model(model: ModelInfo, task: str) -> None:
    """As in vLLM; another task has /pooling."""
    (dialect,) = load_dialects(["vllm"])
    route = route_of(dialect, "/invocations", "input")
    assert route.parse(incoming({"input": "a", "task": task}, models=[model])).request
    for fields in ({"task": "token_embed"}, {"encoding_format": "base64"}):
        if (task, "task" in fields) == ("embed", False):
            continue
        with pytest.raises(InvalidField) as refused:
            route.parse(incoming({"input": "a", **fields}, models=[model]))
        assert refused.value.field_name in fields


# --- words and operations -------------------------------------------------------------------------------------

USES = [
    pytest.param(route, id=f"{dialect.name} {route.path}")
    for dialect in all_dialects()
    for route in {route.parse: route for route in dialect.routes}.values()
    if route.body is not None and "input_type" in fields_of(route.body)
]
WEAVIATES = route_of(*load_dialects(["weaviate"]), "/vectors", "text")


@pytest.mark.parametrize("route", [*USES, WEAVIATES])
def test_an_unknown_use_of_the_texts_is_refused(route: Route) -> None:
    """A misspelt one would be embedded without its prompt."""
    word = {"config": {"task_type": "qeury"}} if route is WEAVIATES else {"task": None, "input_type": "qeury"}
    with refuses(InvalidField, field_name="config.task_type" if route is WEAVIATES else "input_type"):
        route.parse(incoming({**route.example, **word}))


def test_a_task_is_known_or_the_models() -> None:
    """It may be the name of a prompt or of an adapter."""
    (dialect,) = load_dialects(["jina"])
    models = [model_info("plain"), model_info("tuned", prompts={"legal": "Law: "}, adapters=("medical",))]
    route = route_of(dialect, EMBEDDINGS)
    for model, task in (("plain", "text-matching"), ("tuned", "legal"), ("tuned", "medical"), ("plain", "qa.query")):
        assert route.parse(incoming({"input": "a", "model": model, "task": task}, models=models)).request
    for body in ({"model": "plain", "task": "legal"}, {"task": "retrieval.qeury"}):
        with refuses(InvalidField, field_name="task"):
            route.parse(incoming({"input": "a", **body}, models=models))


SIDES = {"truncation_direction", "parameters.truncation_direction", "truncation_side", "truncate_side", "truncate"}
CUT = [
    pytest.param(route, id=f"{dialect.name} {route.path}")
    for dialect in all_dialects()
    if dialect.name != "ollama"  # its `truncate` has no side
    for route in {route.parse: route for route in dialect.routes}.values()
    if route.body is not None and SIDES & fields_of(route.body)
]


@pytest.mark.parametrize("route", CUT)
def test_a_side_that_the_model_cannot_cut_is_refused_under_the_products_name(route: Route) -> None:
    assert route.body is not None
    error = route.parse(incoming(route.example)).named(InvalidField("{field}", field="truncate_side"))
    assert error.field_name in SIDES & fields_of(route.body)


CLASSIFIER = model_info(outputs=frozenset(), labels=("a", "b"))
SPLADE = model_info(outputs=frozenset({"sparse"}))


@pytest.mark.parametrize(
    ("model", "inputs", "fields"),
    [
        (CLASSIFIER, "a", {"dimensions": 2}),
        (CLASSIFIER, "a", {"normalize": False}),
        (CLASSIFIER, "a", {"prompt_name": "query"}),
        (SPLADE, "a", {"dimensions": 2}),
        (model_info(), "a", {"raw_scores": True}),
        (model_info(), {"source_sentence": "a", "sentences": ["b"]}, {"truncate": False}),
    ],
    ids=lambda value: "" if isinstance(value, ModelInfo) else str(value),
)
def test_teis_root_refuses_fields_of_other_operations(model: ModelInfo, inputs: Any, fields: Mapping[str, Any]) -> None:
    """And /vertex those of its instances. Their usual values pass."""
    (dialect,) = load_dialects(["tei"])
    root = route_of(dialect, "/", "inputs")
    usual = {"normalize": True, "raw_scores": False, "truncation_direction": "Right", "dimensions": None}
    assert root.parse(incoming({"inputs": inputs, **usual}, models=[model])).request
    (field,) = fields
    with pytest.raises(InvalidField) as refused:
        root.parse(incoming({"inputs": inputs, **fields}, models=[model]))
    assert refused.value.field_name == field
    if isinstance(inputs, str):
        with pytest.raises(InvalidField) as refused:
            instances = [{"inputs": "a", **usual}, {"inputs": inputs, **fields}]
            route_of(dialect, "/vertex").parse(incoming({"instances": instances}, models=[model]))
        assert refused.value.field_name == f"instances[1].{field}"


# --- rerankers ------------------------------------------------------------------------------------------------

RERANKERS = [
    pytest.param(route, id=f"{dialect.name} {route.path}")
    for dialect in all_dialects()
    if dialect.name != "vectord"
    for route in {route.parse: route for route in dialect.routes}.values()
    if route.body is not None and "instruction" in fields_of(route.body)
]


@pytest.mark.parametrize("route", RERANKERS)
def test_every_reranking_body_reads_an_instruction_and_a_limit_of_the_query(route: Route) -> None:
    """Under both of vLLM's names; the engine refuses an instruction for a model without one."""
    for sent in ({"instruction": "Find birds."}, {"chat_template_kwargs": {"instruction": "Find birds."}}):
        request = route.parse(incoming({**route.example, **sent, "max_tokens_per_query": 7})).request
        assert isinstance(request, RerankRequest)
        assert (request.instruction, request.max_query_tokens) == ("Find birds.", 7)
    with pytest.raises(InvalidField) as refused:
        route.parse(incoming({**route.example, "chat_template_kwargs": {"enable_thinking": False}}))
    assert refused.value.field_name == "chat_template_kwargs"


def test_every_product_that_ranks_reads_an_instruction() -> None:
    """By its example, which makes a request to rank."""
    without = []
    for route in routes():
        if route.body is None or route.example is None:
            continue
        try:
            request = route.parse(incoming(route.example)).request
        except VectordError:
            continue
        if isinstance(request, RerankRequest) and "instruction" not in fields_of(route.body):
            without.append(route.path)
    assert without == []


# --- inputs ---------------------------------------------------------------------------------------------------

PARTS = [{"type": "text", "text": "a dog"}, {"type": "text", "text": " barks"}]


@pytest.mark.parametrize("path", ["/embeddings", "/v1/embeddings"])
def test_parts_are_refused_where_they_have_two_meanings(path: str) -> None:
    """One part is one input in every API."""
    endpoint = table_of(ORDER).find("POST", path).endpoint
    route = endpoint.choose(json.dumps({"input": PARTS}).encode()).route
    with pytest.raises(InvalidField, match="parts with a `type`"):
        route.parse(incoming({"input": PARTS}))
    assert route.parse(incoming({"input": PARTS[:1]})).request.inputs == ["a dog"]


# test_images.py has those that may be images. Jina's API reads PDFs.
MEDIA = [("openai", "audio"), ("openai", "video"), ("openai", "pdf"), ("jina", "audio"), ("jina", "video")]
FILE = "data:image/png;base64,aGk="
CAPTION = {"type": "input_audio", "text": "a dog", "image_base64": FILE}
INPUTS_WITH_MEDIA = [
    *((product, EMBEDDINGS, ["a cat", {medium: FILE}]) for product, medium in MEDIA),
    *((product, EMBEDDINGS, ["a cat", {"text": "a dog", medium: FILE}]) for product, medium in MEDIA),
    ("openai", EMBEDDINGS, [CAPTION]),
    ("jina", RERANK, [CAPTION]),
]


@pytest.mark.parametrize(("product", "path", "inputs"), INPUTS_WITH_MEDIA, ids=str)
def test_another_medium_than_text_is_refused(product: str, path: str, inputs: list[Any]) -> None:
    """Also with a text, which may be its caption."""
    (dialect,) = load_dialects([product])
    field = "input" if path == EMBEDDINGS else "documents"
    with pytest.raises(InvalidField, match="this model embeds texts only") as refused:
        route_of(dialect, path).parse(incoming({"query": "q", field: inputs}))
    assert (refused.value.field_name, refused.value.index) == (field, len(inputs) - 1)


@pytest.mark.parametrize("name", ["top_k", "top_n"])
def test_api_rerank_of_semantic_explorer_cuts_the_ranking(name: str) -> None:
    """By the source's name, and by that of its document."""
    (dialect,) = load_dialects(["semantic_explorer"])
    body = {"query": "q", "documents": ["a", "b", "c"], name: 1}
    answer = route_of(dialect, "/api/rerank").parse(incoming(body)).answered(rerank_result(0.1, 0.9, 0.5))
    assert [one["index"] for one in json.loads(answer.body)["results"]] == [1]
