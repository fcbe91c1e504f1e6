"""The product that answers at a path that several products have, for bodies that their clients send."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache

import pytest
from tests.products.results import incoming, rerank_result
from tests.server.fakes import FakeEngine

from vectord.errors import VectordError
from vectord.observability.metrics import Metrics
from vectord.products import ORDER as DIALECTS
from vectord.products.common.dialect import Call, Incoming, load_dialects
from vectord.products.common.profiles import profiles
from vectord.schema import EmbedRequest, InputKind, Side
from vectord.server.http.app import build_table
from vectord.server.http.routing import Endpoint, Table
from vectord.server.pipeline import Shutdown

# Path, top-level keys of the body, and the product that answers in the default order, with the key that it refuses.
POSTS = """
/embed                  inputs                              tei
/embed                  inputs truncate normalize           tei
/embed                  input                               semantic_explorer
/embed                  input model                         semantic_explorer
/embed                  texts                               cohere
/embed                  inputs input texts                  tei: input
/embed                  -                                   tei
/api/v1/embed           inputs                              embedding_server
/api/v1/embed           -                                   embedding_server
/api/embed              text model                          semantic_explorer
/api/embed              model input                         ollama
/api/embed              -                                   ollama
/api/embed/batch        texts model                         semantic_explorer
/api/rerank             query documents                     semantic_explorer
/api/embeddings         model prompt                        ollama

/embeddings             sentences                           smart_embedder
/embeddings             sentences return_dense              smart_embedder
/embeddings             sentences dimensions                smart_embedder: dimensions
/embeddings             content                             llamacpp
/embeddings             input embd_normalize                llamacpp
/embeddings             input                               openai
/embeddings             input model                         openai
/embeddings             input model encoding_format user    openai
/embeddings             input dimensions                    openai
/embeddings             input model modality                infinity
/embeddings             input model output_dtype            openai
/embeddings             input model task                    jina
/embeddings             -                                   openai
/embedding              content                             llamacpp
/embedding              input                               llamacpp

/v1/embeddings          input                               openai
/v1/embeddings          input model                         openai
/v1/embeddings          input model drop_params prefix      openai
/v1/embeddings          input model encoding_format user    openai
/v1/embeddings          input model prompt_name truncate    openai
/v1/embeddings          input model input_type truncation   voyage
/v1/embeddings          input model task                    jina
/v1/embeddings          input model task dimensions user    jina
/v1/embeddings          input model late_chunking           jina
/v1/embeddings          input model embedding_type          jina
/v1/embeddings          input model output_dtype            openai
/v1/embeddings          input model output_dimension        openai
/v1/embeddings          input model truncate_prompt_tokens  vllm
/v1/embeddings          input model late_chunking_params    vllm
/v1/embeddings          messages model                      vllm
/v1/embeddings          input model modality dimensions     infinity
/v1/embeddings          content                             llamacpp
/v1/embeddings          input task output_dtype             openai: task
/v1/embeddings          sentences                           openai
/v1/embeddings          -                                   openai

/rerank                 query passages                      smart_embedder
/rerank                 query passages normalize            smart_embedder
/rerank                 query texts                         tei
/rerank                 query texts raw_scores return_text  tei
/rerank                 query texts top_n                   tei
/rerank                 query documents                     jina
/rerank                 query documents model top_n         jina
/rerank                 query documents return_documents    jina
/rerank                 query documents max_doc_length      jina
/rerank                 query documents truncation          voyage
/rerank                 query documents raw_scores          infinity
/rerank                 query documents top_k               voyage
/rerank                 query documents top_k truncation    voyage
/rerank                 query documents property            weaviate
/rerank                 query property                      weaviate
/rerank                 query documents use_activation      vllm
/rerank                 query passages raw_scores           smart_embedder: raw_scores
/rerank                 query texts documents               llamacpp
/rerank                 query documents top_n top_k         voyage
/rerank                 query                               tei

/v1/rerank              query texts                         tei
/v1/rerank              query documents                     cohere
/v1/rerank              query documents top_n               cohere
/v1/rerank              query documents return_documents    cohere
/v1/rerank              query documents rank_fields         cohere
/v1/rerank              query documents top_k               voyage
/v1/rerank              query documents truncation          voyage
/v1/rerank              query documents return_len          jina
/v1/rerank              query documents raw_scores          infinity
/v1/rerank              query documents use_activation      vllm
/v2/rerank              query documents model               cohere
/v2/rerank              query documents max_tokens_per_doc  cohere
/v2/rerank              query documents use_activation      vllm
/v1/v2/rerank           query documents model               cohere
/reranking              query documents                     llamacpp
/reranking              query texts                         llamacpp
/v1/reranking           query documents                     llamacpp
/v1/reranking           query input model                   mixedbread
/v1/ranking             query passages model                nvidia

/v1/embed               texts                               cohere
/v2/embed               texts model input_type              cohere
/v2/embed               inputs model input_type             cohere
/v1/v2/embed            texts model input_type              cohere

/classify               input                               vllm
/classify               input model                         vllm
/classify               input model raw_scores              infinity
/classify               input use_activation                vllm
/classify               messages                            vllm
/v1/classify            input                               infinity
/score                  text_1 text_2                       vllm
/v1/score               queries documents                   vllm
/pooling                input                               vllm
/tokenize               inputs                              tei
/tokenize               content                             llamacpp
/tokenize               prompt                              vllm
/tokenize               messages                            vllm
/tokenize               -                                   tei
/v1/tokenize            text model                          cohere
/detokenize             tokens                              vllm
/v1/detokenize          tokens model                        cohere
/decode                 ids                                 tei
/                       inputs                              tei
/                       query texts                         tei
/invocations            inputs                              tei
/invocations            input                               vllm
/invocations            query documents                     vllm
/vertex                 instances                           tei
/vectors                text                                weaviate
/vectors                texts                               weaviate
/v1/contextualizedembeddings  inputs model                  voyage
/v1/multi-vector        input                               jina
"""

GETS = """
/                       server
/docs                   server
/openapi.json           server
/api-doc/openapi.json   server
/api/openapi.json       server
/health                 server
/health/live            server
/health/ready           server
/metrics                server
/ping                   server
/models                 openai
/v1/models              openai
/v1/models/org/model    openai
/info                   tei
/health/status          semantic_explorer
/api/embedders          semantic_explorer
/api/rerankers          semantic_explorer
/v1/health              llamacpp
/props                  llamacpp
/slots                  llamacpp
/version                vllm
/api/tags               ollama
/api/version            ollama
/meta                   weaviate
/.well-known/ready      weaviate
"""


@cache
def table_of(order: tuple[str, ...]) -> Table:
    return build_table(FakeEngine(), load_dialects(order), Shutdown(), Metrics("0"))


def answering(endpoint: Endpoint, keys: Iterable[str]) -> str:
    """The product, and after a colon the key that it refuses because other products have it."""
    if endpoint.page is not None:
        return "server"
    assert endpoint.choices, "nothing is served there"
    choice = endpoint.choose(json.dumps(dict.fromkeys(keys, 1)).encode())
    if any(each.route is choice.route for each in endpoint.choices):
        return choice.dialect.name
    with pytest.raises(VectordError) as error:
        choice.route.parse(Incoming())
    return f"{choice.dialect.name}: {error.value.field_name}"


DEFAULT = table_of(DIALECTS)
POST_ROWS = [re.split(r"\s+(?=\w+$|\w+: \w+$)", line, maxsplit=1) for line in POSTS.splitlines() if line]
GET_ROWS = [line.split() for line in GETS.splitlines() if line]


def test_the_keys_of_a_body_select_the_product() -> None:
    """With and without a slash at the end. A body without the required keys goes to the first product."""
    for row, dialect in POST_ROWS:
        path, *keys = row.split()
        for slash in ("", "/"):
            endpoint = DEFAULT.find("POST", path.rstrip("/") + slash).endpoint
            assert answering(endpoint, [key for key in keys if key != "-"]) == dialect, row


def test_the_order_selects_the_product_of_a_get() -> None:
    """The server's own pages come first."""
    for path, dialect in GET_ROWS:
        for slash in ("", "/"):
            assert answering(DEFAULT.find("GET", path.rstrip("/") + slash).endpoint, ()) == dialect, path


def test_every_shared_path_is_in_the_table() -> None:
    """A path needs a row once a second product has it."""
    listed = {row.split()[0] for row, _ in POST_ROWS}
    shared = {endpoint.path for endpoint in DEFAULT if len({choice.dialect.name for choice in endpoint.choices}) > 1}
    assert {path for path in shared if not path.startswith("/dialects/")} <= listed


@pytest.mark.parametrize(("profile", "dialect"), [("tei", "tei"), ("embedding-server", "embedding_server")])
def test_info_belongs_to_the_product_of_the_profile(profile: str, dialect: str) -> None:
    """The two have opposite defaults for truncation, which /info shows."""
    table = table_of(order_of(profile))
    assert answering(table.find("GET", "/info").endpoint, ()) == dialect
    assert answering(table.find("POST", "/embed").endpoint, ["inputs"]) == dialect


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("profile", profiles())
def test_every_answer_of_rerank_has_an_index_and_a_score(profile: str, path: str) -> None:
    """Clients of Cohere, Jina, infinity and vLLM read them, whichever product answers a body that all of them send."""
    body = {"query": "q", "documents": ["a", "b"], "model": "m"}
    shown = json.loads(called_in(profile, path, body).answered(rerank_result(0.25, 0.5)).body)
    results = shown["data"] if profile == "voyage" and path == "/v1/rerank" else shown["results"]
    assert [result["index"] for result in results] in ([1, 0], [0, 1])
    assert {result["index"]: result["relevance_score"] for result in results} == {0: 0.25, 1: 0.5}


# --- profiles -------------------------------------------------------------------------------------------------


def order_of(profile: str) -> tuple[str, ...]:
    order = profiles()[profile]["values"].get("server", {}).get("dialects", DIALECTS)
    return tuple(order)


def first(dialect: str) -> Table:
    """The table with the dialect's profile. Without a profile, the dialect comes first."""
    alone = (dialect, *(name for name in DIALECTS if name != dialect))
    return table_of(next((order for order in ORDERS.values() if order[0] == dialect), alone))


ORDERS = {profile: order_of(profile) for profile in profiles() if profile != "default"}
OWN = [(dialect, route) for dialect in load_dialects(DIALECTS) for route in dialect.routes if route.body]


def test_a_product_answers_its_own_bodies_in_its_profile() -> None:
    """Any of its fields with the required ones, and its example."""
    for dialect, route in OWN:
        assert route.body is not None, (dialect.name, route.path)
        endpoint = first(dialect.name).find(route.method, route.path).endpoint
        assert endpoint.choose(json.dumps(route.example).encode()).route is route, (dialect.name, route.path)
        strayed = {
            (key, field): other
            for key in route.one_of or {""}
            for field in route.known
            if (other := answering(endpoint, {*route.required, key, field} - {""})) != dialect.name
        }
        assert strayed == {}, (dialect.name, route.path)


@pytest.mark.parametrize("profile", ORDERS)
def test_no_key_of_another_product_is_ignored_in_a_profile(profile: str) -> None:
    """Another product answers that has all keys, or the profile's product refuses the key."""
    name = ORDERS[profile][0]
    for route in (route for dialect, route in OWN if dialect.name == name):
        endpoint = table_of(ORDERS[profile]).find(route.method, route.path).endpoint
        own = {*route.required, *sorted(route.one_of)[:1]}
        known = frozenset().union(*(choice.route.known for choice in endpoint.choices if choice.dialect.name == name))
        for choice in endpoint.choices:
            for key in choice.route.effective - known:
                answers = answering(endpoint, [*own, key])
                assert answers == f"{name}: {key}" or answers in DIALECTS, (route.path, key)
                assert answers != name, (route.path, key)


@pytest.mark.parametrize("profile", profiles())
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
@pytest.mark.parametrize(
    ("truncate", "input_type", "cut", "side", "kind"),
    [
        ("NONE", "query", False, "right", "query"),
        ("START", "passage", True, "left", "document"),
        ("END", "query", True, "right", "query"),
    ],
)
def test_every_profile_reads_the_keys_of_nvidias_clients(
    profile: str, path: str, truncate: str, input_type: str, cut: bool, side: Side, kind: InputKind
) -> None:
    """Whether and where an over-long text is cut, and the use of the texts."""
    body = {"model": "m", "input": ["a"], "truncate": truncate, "input_type": input_type, "encoding_format": "float"}
    request = parsed_in(profile, path, body)
    assert isinstance(request, EmbedRequest)
    assert (request.text.truncate, request.text.truncate_side, request.text.kind) == (cut, side, kind)


@pytest.mark.parametrize(
    ("profile", "own"),
    [("vllm", {"truncate_prompt_tokens": 8}), ("voyage", {"truncation": True})],
)
def test_a_products_own_key_for_truncation_may_not_contradict_nvidias(profile: str, own: dict[str, object]) -> None:
    """NVIDIA's word also chooses the side."""
    body = {"model": "m", "input": ["a"], **own}
    request = parsed_in(profile, "/v1/embeddings", {**body, "truncate": "START"})
    assert isinstance(request, EmbedRequest)
    assert (request.text.truncate, request.text.truncate_side) == (True, "left")
    with pytest.raises(VectordError, match="contradicts"):
        parsed_in(profile, "/v1/embeddings", {**body, "truncate": "NONE"})


@pytest.mark.parametrize("profile", profiles())
def test_no_profile_ignores_an_unknown_word_for_truncate(profile: str) -> None:
    """A text that was cut at the wrong end would be a wrong answer."""
    with pytest.raises(VectordError, match="truncate"):
        parsed_in(profile, "/v1/embeddings", {"model": "m", "input": ["a"], "truncate": "MIDDLE"})


def parsed_in(profile: str, path: str, body: dict[str, object]) -> object:
    """The request that a body becomes in a profile."""
    return called_in(profile, path, body).request


def called_in(profile: str, path: str, body: dict[str, object]) -> Call:
    endpoint = table_of(order_of(profile)).find("POST", path).endpoint
    return endpoint.choose(json.dumps(body).encode()).route.parse(incoming(body))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_product_answers_its_own_gets_in_its_profile(dialect: str) -> None:
    """Except pages of the server."""
    table = first(dialect)
    for route in load_dialects([dialect])[0].routes:
        if route.method == "GET":
            endpoint = table.find("GET", route.path.replace("{model:path}", "m")).endpoint
            assert endpoint.page is not None or endpoint.choices[0].route is route


@pytest.mark.parametrize(
    ("row", "dialect"),
    [
        ("/v1/embeddings input", "simple_inference_server"),
        ("/v1/embeddings input model encoding_format", "simple_inference_server"),
        ("/v1/rerank query documents", "simple_inference_server"),
        ("/embedding content", "llamacpp"),
        ("/embeddings input", "llamacpp"),
        ("/embeddings input model", "llamacpp"),
        ("/embeddings sentences", "smart_embedder"),
        ("/reranking query documents", "llamacpp"),
    ],
)
def test_simple_inference_servers_profile_includes_llama_cpps_routes(row: str, dialect: str) -> None:
    """Source: its documentation. Paths below /v1 are its own, and /embeddings has llama.cpp's form."""
    path, *keys = row.split()
    assert answering(first("simple_inference_server").find("POST", path).endpoint, keys) == dialect


@pytest.mark.parametrize("dialect", DIALECTS)
def test_only_one_product_answers_under_its_prefix(dialect: str) -> None:
    """So every route of every product can be reached."""
    for route in load_dialects([dialect])[0].routes:
        path = f"/dialects/{dialect}{route.path}".replace("{model:path}", "m")
        endpoint = DEFAULT.find(route.method, path).endpoint
        body = dict.fromkeys([*route.required, *route.one_of], 1)
        assert endpoint.choose(json.dumps(body).encode()).dialect.name == dialect
        assert any(choice.route is route for choice in endpoint.choices)
