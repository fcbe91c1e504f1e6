"""TEI: requests, answers, headers and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.products.results import (
    VECTORS,
    classify_result,
    embed_result,
    incoming,
    model_info,
    model_list,
    parsers,
    rerank_result,
    usage,
)

from vectord import __version__
from vectord.errors import (
    EmptyInput,
    ForeignIds,
    InferenceFailed,
    InputTooLong,
    InvalidField,
    MalformedBody,
    ModelCannot,
    ModelNotFound,
    NotAcceptable,
    OutOfMemory,
    Overloaded,
    PayloadTooLarge,
    TooManyCharacters,
    TooManyInputs,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
    Untokenizable,
    WrongType,
)
from vectord.products import tei
from vectord.products.common.dialect import Call, Guards, Incoming
from vectord.products.common.models import Info
from vectord.products.common.vectors import EmbeddingList, to_base64
from vectord.products.tei.errors import ERRORS, render_error, render_openai_error
from vectord.products.tei.routes import (
    MAX_INSTANCES,
    Prediction,
    Rank,
    RootAnswer,
    SparseEntry,
    VertexAnswer,
)
from vectord.schema import (
    ClassifyRequest,
    DecodeRequest,
    DecodeResult,
    EmbedRequest,
    EmbedResult,
    ListModels,
    MultiRequest,
    MultiResult,
    RerankRequest,
    Result,
    SimilarityRequest,
    SimilarityResult,
    Sparse,
    TextOptions,
    Token,
    TokenizeRequest,
    TokenizeResult,
)

PARSE = parsers(tei.DIALECT)
TEXT = TextOptions(truncate_by_default=True, own_ids=True)

SPLADE = model_info(outputs=frozenset({"sparse"}), pooling="", dimensions=0)
CLASSIFIER = model_info(outputs=frozenset(), labels=("sad", "glad"))
CROSS_ENCODER = model_info(outputs=frozenset(), labels=("LABEL_0",), reranks=True)


def asked(path: Any, body: object) -> Any:
    """The canonical request of a body."""
    return PARSE[path](incoming(body)).request


# --- requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/embed", "/embed_all", "/"])
@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        pytest.param("a", ["a"], id="text"),
        pytest.param(["a", "b"], ["a", "b"], id="texts"),
        pytest.param([1, 2], [[1, 2]], id="ids are one input"),
        pytest.param(["a", [1, 2]], ["a", [1, 2]], id="texts and ids"),
    ],
)
def test_inputs_are_texts_or_ids(path, value, inputs):
    """All routes that embed have one grammar; ids are the model's own."""
    request = asked(path, {"inputs": value})
    assert list(request.inputs) == inputs
    assert request.text.own_ids


def test_embed_takes_every_option():
    """Each option has its canonical field, and unknown keys are ignored."""
    body = {
        "inputs": "a",
        "truncate": True,
        "truncation_direction": "Left",
        "prompt_name": "query",
        "normalize": False,
        "dimensions": 64,
        "force_dimensions": True,
        "unknown": "somebody/else's",
    }
    assert asked("/embed", body) == EmbedRequest(
        inputs=("a",),
        text=replace(TEXT, truncate=True, truncate_side="left", prompt_name="query"),
        normalize=False,
        dimensions=64,
        force_dimensions=True,
    )


@pytest.mark.parametrize(
    "body", [{}, {"truncate": None, "truncation_direction": None, "normalize": None, "dimensions": None}], ids=str
)
def test_embed_without_options(body):
    """Absent and null: unit vectors of full width, truncated on the right by the server's setting."""
    request = asked("/embed", {"inputs": "a", **body})
    assert request == EmbedRequest(inputs=("a",), text=TEXT)


@pytest.mark.parametrize(
    ("direction", "side"), [("Right", "right"), ("right", "right"), ("Left", "left"), ("LEFT", "left")]
)
def test_truncation_direction_ignores_case(direction, side):
    """TEI's spelling and others."""
    request = asked("/embed", {"inputs": "a", "truncation_direction": direction})
    assert request.text.truncate_side == side


def test_embed_all_requests_token_vectors():
    """The answer has a vector for each token."""
    assert asked("/embed_all", {"inputs": "a"}).outputs == {"tokens"}


def test_embed_sparse_requests_sparse_vectors():
    """Sparse vectors have no `normalize` and no `dimensions`."""
    body = {"inputs": ["a"], "truncate": False, "truncation_direction": "left", "prompt_name": "q"}
    assert asked("/embed_sparse", body) == EmbedRequest(
        inputs=["a"],
        text=replace(TEXT, truncate=False, truncate_side="left", prompt_name="q"),
        outputs=frozenset({"sparse"}),
    )


def test_similarity_parameters_are_optional():
    """null is the same as absent."""
    inputs = {"source_sentence": "a", "sentences": ["b", "c"]}
    plain = SimilarityRequest(source="a", sentences=["b", "c"], text=TEXT)
    assert asked("/similarity", {"inputs": inputs}) == plain
    assert asked("/similarity", {"inputs": inputs, "parameters": None}) == plain
    parameters = {"truncate": False, "truncation_direction": "left", "prompt_name": "q"}
    request = asked("/similarity", {"inputs": inputs, "parameters": parameters})
    assert request.text == replace(TEXT, truncate=False, truncate_side="left", prompt_name="q")


def test_an_object_in_inputs_at_the_root_is_similarity():
    """huggingface_hub posts both kinds of bodies to one URL."""
    body = b' { "inputs" :  {"source_sentence": "a", "sentences": ["b"]}, "parameters": {} } '
    request = PARSE["/"](Incoming(body=body)).request
    assert request == SimilarityRequest(source="a", sentences=["b"], text=TEXT)
    assert isinstance(asked("/", {"inputs": ["a"]}), EmbedRequest)


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"inputs": 1}', b'{"inputs": {}}', b'{"inputs": '])
def test_the_root_rejects_invalid_bodies(body):
    """The selection by `inputs` accepts nothing that the selected route rejects."""
    with pytest.raises((WrongType, MalformedBody)):
        PARSE["/"](Incoming(body=body))


@pytest.mark.parametrize(
    ("facts", "request_kind", "outputs"),
    [
        pytest.param({}, EmbedRequest, {"dense"}, id="embeds"),
        pytest.param({"outputs": {"dense", "sparse"}, "labels": ("a", "b")}, EmbedRequest, {"dense"}, id="does it all"),
        pytest.param({"outputs": {"sparse"}}, EmbedRequest, {"sparse"}, id="SPLADE"),
        pytest.param({"outputs": set(), "labels": ("a", "b")}, ClassifyRequest, None, id="classifies"),
        pytest.param({"outputs": set(), "labels": ("a",), "reranks": True}, ClassifyRequest, None, id="reranks"),
        pytest.param({"outputs": set(), "reranks": True}, EmbedRequest, {"dense"}, id="a language model that reranks"),
    ],
)
def test_the_root_runs_the_first_models_operation(facts, request_kind, outputs):
    """TEI serves one model. If the first model has no such operation, the engine rejects the embedding."""
    models = [model_info(**facts), model_info(outputs={"dense", "sparse"}, labels=("x",))]
    request = PARSE["/"](Incoming(body=b'{"inputs": "a"}', models=models)).request
    assert type(request) is request_kind
    assert outputs is None or request.outputs == outputs


@pytest.mark.parametrize("path", ["/", "/invocations"])
def test_texts_at_the_root_are_reranked(path):
    """This holds for every first model; `inputs` are for the model's own operation."""
    first, second = (route for route in tei.DIALECT.routes if route.path == path)
    assert first.keys == {"inputs"}
    assert second.keys == {"texts"}


RERANK = {"query": "qq", "texts": ["a", "bb", "c", "d"]}


def test_rerank_takes_every_option():
    """Each option has its canonical field."""
    body = RERANK | {"truncate": True, "truncation_direction": "Left", "raw_scores": True, "return_text": True}
    assert asked("/rerank", body) == RerankRequest(
        query="qq",
        passages=["a", "bb", "c", "d"],
        text=replace(TEXT, truncate=True, truncate_side="left"),
        raw=True,
    )


@pytest.mark.parametrize(
    "body",
    [{}, dict.fromkeys(("truncate", "truncation_direction", "raw_scores", "return_text"))],
    ids=["absent", "null"],
)
def test_rerank_without_options(body):
    """Scores from 0 to 1, no texts, truncation by the server's setting."""
    request = asked("/rerank", {"query": "q", "texts": ["a"], **body})
    assert request == RerankRequest(query="q", passages=["a"], text=TEXT, raw=False)


@pytest.mark.parametrize(
    ("value", "inputs", "single"),
    [
        pytest.param("a", ["a"], True, id="a text"),
        pytest.param(["a"], ["a"], True, id="a text in a list"),
        pytest.param(["a", "b"], [("a", "b")], True, id="two texts are one pair"),
        pytest.param(["", "b"], [("", "b")], True, id="half a pair"),
        pytest.param([["a"]], ["a"], False, id="a batch of one"),
        pytest.param([["a"], ["b"]], ["a", "b"], False, id="texts"),
        pytest.param([["a", "b"], ["c"], ["d", "e"]], [("a", "b"), "c", ("d", "e")], False, id="pairs and texts"),
    ],
)
def test_brackets_select_text_pair_or_batch(value, inputs, single):
    """The number of brackets decides, and the answer has the same number."""
    call = PARSE["/predict"](incoming({"inputs": value}))
    assert call.request == ClassifyRequest(inputs=inputs, text=TEXT)
    shown = json.loads(call.render(classify_result(*[[0.2, 0.7, 0.1]] * len(inputs))).body)
    assert isinstance(shown[0], dict if single else list)


def test_predict_takes_every_option():
    """Each option has its canonical field."""
    body = {"inputs": "a", "truncate": False, "truncation_direction": "Left", "raw_scores": True}
    request = asked("/predict", body)
    assert request.raw
    assert request.text == replace(TEXT, truncate=False, truncate_side="left")


@pytest.mark.parametrize(
    "value",
    [["a", "b", "c"], ["a", ["b"]], [["a"], "b"], [["a", "b", "c"]], [[]], [["a"], []], [[["a"]]], [1], {}, None],
    ids=str,
)
def test_other_nestings_are_rejected(value):
    """As a wrong type, in plain text."""
    with pytest.raises(WrongType) as caught:
        PARSE["/predict"](incoming({"inputs": value}))
    assert render_error(caught.value).status == 422


def test_tokenize_takes_one_text_or_several():
    """Special tokens are added by default."""
    assert asked("/tokenize", {"inputs": "a"}) == TokenizeRequest(inputs=["a"])
    body = {"inputs": ["a", "b"], "add_special_tokens": False, "prompt_name": "q"}
    expected = TokenizeRequest(inputs=["a", "b"], add_special_tokens=False, prompt_name="q")
    assert asked("/tokenize", body) == expected


@pytest.mark.parametrize(("ids", "lists"), [([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])], ids=str)
def test_decode_takes_one_list_of_ids_or_several(ids, lists):
    """Special tokens are dropped by default."""
    request = asked("/decode", {"ids": ids})
    assert [list(one) for one in request.ids] == lists
    assert request.skip_special_tokens
    assert not asked("/decode", {"ids": ids, "skip_special_tokens": False}).skip_special_tokens


def test_the_openai_routes_take_every_option():
    """Lists of ids are the model's own under TEI's profile."""
    body = {"input": ["a"], "model": "whatever", "user": "u", "encoding_format": "base64", "dimensions": 8}
    text = replace(TEXT, own_ids=False)  # OpenAI's clients send ids of OpenAI's models
    assert asked("/v1/embeddings", body) == EmbedRequest(inputs=["a"], model="whatever", text=text, dimensions=8)
    own = PARSE["/v1/embeddings"](replace(incoming(body), guards=Guards(own_ids=True))).request  # under TEI's profile
    assert own == EmbedRequest(inputs=["a"], model="whatever", text=TEXT, dimensions=8)


# --- several bodies at once -----------------------------------------------------------------------------------


def vertex(*instances: object, models: Any = ()) -> Call:
    return PARSE["/vertex"](replace(incoming({"instances": instances}), models=models))


def test_each_instance_is_a_separate_request():
    """`texts` are reranked, and `inputs` are for the first model's operation. The answers keep the order."""
    call = vertex({"inputs": ["a", "b"], "normalize": False}, RERANK | {"return_text": True}, {"inputs": "c"})
    assert call.request == MultiRequest(
        requests=[
            asked("/embed", {"inputs": ["a", "b"], "normalize": False}),
            asked("/rerank", RERANK),
            asked("/embed", {"inputs": "c"}),
        ]
    )
    results = [embed_result(), RANKED, embed_result(VECTORS[:1])]
    rendered = call.render(MultiResult(results=results, usage=usage([(3, 3), (9, 4), (9, 9)])))
    assert json.loads(rendered.body) == {
        "predictions": [
            json.loads(answer("/embed", {"inputs": ["a", "b"]}, embed_result()).body),
            json.loads(answer("/rerank", RERANK | {"return_text": True}, RANKED).body),
            json.loads(answer("/embed", {"inputs": "c"}, embed_result(VECTORS[:1])).body),
        ]
    }
    assert rendered.headers == HEADERS | {"x-compute-tokens": "16"}
    assert len(msgspec.json.decode(rendered.body, type=VertexAnswer).predictions) == 3


def test_instances_run_the_first_models_operation():
    """As at the root, except similarity, which Vertex AI does not have."""
    classified = vertex({"inputs": [["a"], ["b", "c"]]}, models=[CLASSIFIER]).request
    assert classified.requests == [ClassifyRequest(inputs=["a", ("b", "c")], text=TEXT)]
    weighed = vertex({"inputs": "a"}, models=[SPLADE]).request
    assert weighed.requests[0].outputs == {"sparse"}


@pytest.mark.parametrize(
    ("instance", "error"),
    [
        pytest.param({}, "`instances[1]`: `inputs` is required.", id="nothing"),
        pytest.param(7, "`instances[1]`: The request body must be an object, not an integer.", id="no object"),
        pytest.param({"texts": ["a"]}, "`instances[1]`: `query` is required.", id="texts without a query"),
        pytest.param(
            {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
            "`instances[1]`: `inputs` must be a string or an array, not an object.",
            id="similarity",
        ),
    ],
)
def test_an_instance_of_another_type_is_422_validation(instance, error):
    """In JSON and with its index, because TEI itself reads the instances."""
    with pytest.raises(InvalidField) as caught:
        vertex({"inputs": "a"}, instance)
    rendered = render_error(caught.value)
    assert rendered.status == 422
    assert json.loads(rendered.body) == {"error": f"Input validation error: {error}", "error_type": "Validation"}


def test_too_many_instances_are_rejected_before_parsing():
    """Parsing one costs as much as a small request."""
    with pytest.raises(TooManyInputs) as caught:
        vertex(*[7] * (MAX_INSTANCES + 1))
    assert json.loads(render_error(caught.value).body)["error"] == "batch size 2049 > maximum allowed batch size 2048"


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        pytest.param("/embed", {"inputs": []}, "`inputs` cannot be empty", id="embed list"),
        pytest.param("/embed", {"inputs": ""}, "`inputs` cannot be empty", id="embed text"),
        pytest.param("/embed", {"inputs": ["a", ""]}, "`inputs` cannot be empty", id="embed a text"),
        pytest.param("/embed", {"inputs": [[]]}, "`inputs` cannot be empty", id="embed ids"),
        pytest.param("/embed_all", {"inputs": []}, "`inputs` cannot be empty", id="embed_all"),
        pytest.param("/", {"inputs": []}, "`inputs` cannot be empty", id="root"),
        pytest.param("/embed_sparse", {"inputs": ""}, "`inputs` cannot be empty", id="embed_sparse"),
        pytest.param("/rerank", {"query": "q", "texts": []}, "`texts` cannot be empty", id="rerank"),
        pytest.param("/rerank", {"query": "", "texts": ["a", ""]}, "`texts` cannot be empty", id="empty pair"),
        pytest.param("/predict", {"inputs": ""}, "`inputs` cannot be empty", id="predict text"),
        pytest.param("/predict", {"inputs": []}, "`inputs` cannot be empty", id="predict list"),
        pytest.param("/predict", {"inputs": [["a"], ["", ""]]}, "`inputs` cannot be empty", id="predict pair"),
        pytest.param("/v1/embeddings", {"input": ""}, "`input` cannot be empty", id="openai"),
        pytest.param("/tokenize", {"inputs": []}, "`inputs` cannot be empty", id="tokenize list"),
        pytest.param("/tokenize", {"inputs": [""]}, "`inputs` cannot be empty", id="tokenize text"),
        pytest.param("/decode", {"ids": []}, "`ids` cannot be empty", id="decode"),
        pytest.param("/decode", {"ids": [[1], []]}, "`ids` cannot be empty", id="decode a list"),
        pytest.param("/vertex", {"instances": []}, "`instances` cannot be empty", id="vertex"),
        pytest.param(
            "/vertex", {"instances": [{"inputs": []}]}, "`instances[0].inputs` cannot be empty", id="instance"
        ),
        pytest.param(
            "/similarity",
            {"inputs": {"source_sentence": "a", "sentences": []}},
            "`inputs.sentences` cannot be empty",
            id="similarity",
        ),
        pytest.param(
            "/similarity",
            {"inputs": {"source_sentence": "", "sentences": ["a"]}},
            "`inputs.source_sentence` cannot be empty",
            id="similarity of nothing",
        ),
    ],
)
def test_empty_inputs_are_400_in_teis_words(path, body, text):
    """The same for an empty list and an empty text."""
    with pytest.raises(EmptyInput) as caught:
        PARSE[path](incoming(body))
    rendered = render_error(caught.value)
    assert rendered.status == 400
    assert json.loads(rendered.body) == {"error": text, "error_type": "Empty"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param({"dimensions": 0}, "Input validation error: `dimensions` should be positive", id="no dimensions"),
        pytest.param(
            {"truncation_direction": "up"},
            "Input validation error: `truncation_direction` must be 'Right' or 'Left'",
            id="direction",
        ),
    ],
)
def test_a_bad_value_is_422_validation(body, text):
    """For values of the right type that are not allowed."""
    with pytest.raises(InvalidField) as caught:
        PARSE["/embed"](incoming({"inputs": "a", **body}))
    rendered = render_error(caught.value)
    assert rendered.status == 422
    assert json.loads(rendered.body) == {"error": text, "error_type": "Validation"}


@pytest.mark.parametrize(
    ("path", "body", "models", "text"),
    [
        pytest.param(
            "/embed",
            {"inputs": "a"},
            [SPLADE],
            "Backend error: `normalize` is not available for SPLADE models",
            id="embed by SPLADE",
        ),
        pytest.param("/rerank", RERANK, [CLASSIFIER], "Backend error: model is not a re-ranker model", id="rerank"),
        pytest.param(
            "/vertex",
            {"instances": [RERANK]},
            [CLASSIFIER, CLASSIFIER],
            "Backend error: model is not a re-ranker model",
            id="rerank an instance",
        ),
    ],
)
def test_a_model_of_the_wrong_kind_is_424_backend(path, body, models, text):
    """Rejected by the parser, in TEI's words."""
    with pytest.raises(ModelCannot) as caught:
        PARSE[path](replace(incoming(body), models=models))
    rendered = render_error(caught.value)
    assert rendered.status == 424
    assert json.loads(rendered.body) == {"error": text, "error_type": "Backend"}


@pytest.mark.parametrize(
    ("path", "body", "models"),
    [
        pytest.param("/embed", {"inputs": "a"}, [SPLADE, model_info()], id="embed by another model"),
        pytest.param("/embed", {"inputs": "a", "normalize": False}, [SPLADE], id="the engine refuses"),
        pytest.param("/rerank", RERANK, [CLASSIFIER, CROSS_ENCODER], id="rerank by another model"),
        pytest.param("/rerank", RERANK, [model_info()], id="rerank by vectors"),
        pytest.param("/rerank", RERANK, [SPLADE], id="rerank by words"),
    ],
)
def test_one_suitable_model_is_enough(path, body, models):
    """TEI serves one model; vectord serves several, and reranks by vectors too."""
    assert PARSE[path](replace(incoming(body), models=models)) is not None


# --- answers --------------------------------------------------------------------------------------------------

HEADERS = {
    "x-compute-type": "cpu+optimized",
    "x-compute-time": "1234",
    "x-compute-characters": "40",
    "x-compute-tokens": "7",
    "x-total-time": "1234",
    "x-tokenization-time": "1",
    "x-queue-time": "2",
    "x-inference-time": "35",
}
RANKED = rerank_result(0.1, 0.9, -3, 0.9)


def answer(path: Any, body: object, result: Result, models: Any = ()) -> Any:
    """The response to `body` for this result of the engine."""
    return PARSE[path](replace(incoming(body), models=models)).render(result)


@pytest.mark.parametrize("path", ["/embed", "/"])
def test_embed_answers_a_bare_array(path):
    """Rows in the order of the inputs, shortest float32 digits, times in whole milliseconds."""
    rendered = answer(path, {"inputs": ["a", "b"]}, embed_result())
    assert rendered.body == b"[[0.1,-0.2,0.33333334],[1e-45,3.4028235e+38,-0.0]]"
    assert rendered.headers == HEADERS
    assert len(msgspec.json.decode(rendered.body, type=RootAnswer)) == 2


def test_one_input_gives_a_list_of_one_row():
    """The answer always has two dimensions."""
    rendered = answer("/embed", {"inputs": "a"}, embed_result(VECTORS[:1], usage([(3, 3)])))
    assert rendered.body == b"[[0.1,-0.2,0.33333334]]"


def test_rows_may_be_a_view_of_wider_rows():
    """The engine may return a view."""
    vectors = np.arange(8, dtype=np.float32).reshape(2, 4)[:, :2]
    assert json.loads(answer("/embed", {"inputs": ["a", "b"]}, embed_result(vectors)).body) == [[0, 1], [4, 5]]


def test_embed_all_answers_an_array_for_each_text():
    """Texts may differ in length."""
    tokens = [np.ones((1, 2), np.float32), np.zeros((3, 4), np.float32)[:, ::2]]
    result = EmbedResult(model="served", fingerprint="f00d", tokens=tokens, usage=usage())
    rendered = answer("/embed_all", {"inputs": ["a", "b"]}, result)
    assert json.loads(rendered.body) == [[[1, 1]], [[0, 0], [0, 0], [0, 0]]]
    assert rendered.headers == HEADERS


@pytest.mark.parametrize("path", ["/embed_sparse", "/"])
def test_embed_sparse_answers_pairs_of_index_and_value(path):
    """One list for each text, also for a text without words, with the shortest float32 digits."""
    sparse = [Sparse(np.array([7, 3], np.int32), np.array([0.1, 2], np.float32)), Sparse(*np.zeros((2, 0), np.int32))]
    result = EmbedResult(model="served", fingerprint="f00d", sparse=sparse, usage=usage())
    rendered = answer(path, {"inputs": ["a", "b"]}, result, models=[SPLADE])
    assert rendered.body == b'[[{"index":7,"value":0.1},{"index":3,"value":2.0}],[]]'
    assert rendered.headers == HEADERS
    assert msgspec.json.decode(rendered.body, type=list[list[SparseEntry]])[1] == []


def test_rerank_answers_best_first():
    """The last of equal scores comes first, as in TEI. The query's characters count once for each text."""
    rendered = answer("/rerank", RERANK, RANKED)
    assert rendered.body == (
        b'[{"index":3,"score":0.9},{"index":1,"score":0.9},{"index":0,"score":0.1},{"index":2,"score":-3.0}]'
    )
    assert rendered.headers == HEADERS | {"x-compute-characters": "13", "x-compute-tokens": "36"}
    assert msgspec.json.decode(rendered.body, type=list[Rank])[0].text is msgspec.UNSET


def test_rerank_returns_texts_on_request():
    """Each text stays with its score."""
    rendered = answer("/rerank", RERANK | {"return_text": True}, RANKED)
    assert [rank["text"] for rank in json.loads(rendered.body)] == ["d", "bb", "a", "c"]


@pytest.mark.parametrize("path", ["/predict", "/"])
def test_predict_answers_one_input_flat_and_several_in_lists(path):
    """Labels best first; the last of equal scores comes first."""
    one = answer(path, {"inputs": "a"}, classify_result([0.2, 0.7, 0.1]), models=[CLASSIFIER])
    glad, sad, mad = ({"score": 0.7, "label": "glad"}, {"score": 0.2, "label": "sad"}, {"score": 0.1, "label": "mad"})
    assert json.loads(one.body) == [glad, sad, mad]
    result = classify_result([0.2, 0.7, 0.1], [0.5, 0.5, 0])
    two = answer(path, {"inputs": [["a"], ["b", "c"]]}, result, models=[CLASSIFIER])
    shown = json.loads(two.body)
    assert shown[0] == [glad, sad, mad]
    assert [prediction["label"] for prediction in shown[1]] == ["glad", "sad", "mad"]
    assert msgspec.json.decode(two.body, type=list[list[Prediction]])[0][0].label == "glad"
    assert two.headers == HEADERS | {"x-compute-tokens": "6"}


@pytest.mark.parametrize("path", ["/similarity", "/"])
def test_similarity_answers_the_scores(path):
    """One cosine for each sentence."""
    result = SimilarityResult(model="served", fingerprint="f00d", scores=np.array([0.5, -1], np.float32), usage=usage())
    rendered = answer(path, {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}}, result)
    assert rendered.body == b"[0.5,-1.0]"
    assert rendered.headers == HEADERS
    assert msgspec.json.decode(rendered.body, type=RootAnswer) == [0.5, -1]


def test_tokenize_answers_tokens_with_byte_offsets():
    """Special tokens have null offsets."""
    tokens = [[Token(101, "[CLS]", True, None, None), Token(7, "é", False, 0, 2)]]
    result = TokenizeResult(model="served", tokens=tokens, usage=usage([(2, 2)]))
    rendered = answer("/tokenize", {"inputs": "é"}, result)
    assert json.loads(rendered.body) == [
        [
            {"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None},
            {"id": 7, "text": "é", "special": False, "start": 0, "stop": 2},
        ]
    ]
    assert msgspec.json.decode(rendered.body, type=list[list[Token]])[0][1].text == "é"


def test_decode_answers_texts():
    """A bare array of strings."""
    assert asked("/decode", {"ids": [1]}) == DecodeRequest(ids=([1],))
    rendered = answer("/decode", {"ids": [1]}, DecodeResult(model="served", texts=("a",)))
    assert rendered.body == b'["a"]'


@pytest.mark.parametrize(
    ("encoding", "embedding"),
    [
        (None, [0.1, -0.2, 0.33333334]),
        ("float", [0.1, -0.2, 0.33333334]),
        ("base64", to_base64(VECTORS[0])),
    ],
)
def test_the_openai_routes_answer_teis_object(encoding, embedding):
    """TEI's keys and headers only."""
    body = {"input": ["a"], "encoding_format": encoding}
    rendered = answer("/v1/embeddings", body, embed_result(VECTORS[:1], usage([(9, 4)])))
    assert json.loads(rendered.body) == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": embedding}],
        "model": "served",
        "usage": {"prompt_tokens": 4, "total_tokens": 4, "truncated_inputs": [0]},
    }
    assert msgspec.json.decode(rendered.body, type=EmbeddingList).model == "served"
    assert rendered.headers == HEADERS | {"x-compute-tokens": "4"}


@pytest.mark.parametrize(("setting", "shown"), [(None, True), (False, False), (True, True)])
def test_info_has_the_enforced_limits(setting, shown):
    """TEI's keys: facts of the first model, limits, and vectord's version."""
    call = parsers(tei.DIALECT, "GET")["/info"](Incoming())
    assert call.request == ListModels()
    rendered = call.render(model_list("first", "second", truncates=setting))
    assert json.loads(rendered.body) == {
        "model_id": "org/model",
        "model_sha": "abc123",
        "model_dtype": "bfloat16",
        "served_model_name": "first",
        "model_type": {"embedding": {"pooling": "mean"}},
        "max_concurrent_requests": 4096,
        "max_input_length": 256,
        "max_batch_tokens": 16_384,
        "max_batch_requests": None,
        "max_client_batch_size": 2048,
        "auto_truncate": shown,
        "tokenization_workers": 2,
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }
    assert msgspec.json.decode(rendered.body, type=Info).auto_truncate is shown


LABELS = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}
ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


@pytest.mark.parametrize(
    ("facts", "model_type"),
    [
        pytest.param({"outputs": {"dense", "sparse"}}, {"embedding": {"pooling": "mean"}}, id="embeds"),
        pytest.param({"pooling": "last"}, {"embedding": {"pooling": "last_token"}}, id="embeds by its last token"),
        pytest.param({"outputs": {"sparse"}, "pooling": ""}, {"embedding": {"pooling": "splade"}}, id="SPLADE"),
        pytest.param({"outputs": {"colbert"}, "pooling": ""}, {"embedding": {"pooling": ""}}, id="ColBERT"),
        pytest.param(
            {"outputs": set(), "reranks": True, "labels": ("LABEL_0",)}, {"reranker": ONE_LABEL}, id="reranks"
        ),
        pytest.param({"outputs": set(), "reranks": True}, {"reranker": ONE_LABEL}, id="a language model that reranks"),
        pytest.param({"outputs": set(), "labels": ("no", "yes")}, {"classifier": LABELS}, id="classifies"),
    ],
)
def test_info_has_the_models_purpose(facts, model_type):
    """Clients read the first key of `model_type`."""
    rendered = parsers(tei.DIALECT, "GET")["/info"](Incoming()).render(model_list(model_info(**facts)))
    assert json.loads(rendered.body)["model_type"] == model_type
    assert msgspec.json.decode(rendered.body, type=Info).max_input_length == 256


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "kind", "text"),
    [
        pytest.param(Unavailable("loading"), 503, "Unhealthy", "unhealthy", id="unhealthy"),
        pytest.param(Overloaded("busy", retry_after_s=1), 429, "Overloaded", "Model is overloaded", id="overloaded"),
        pytest.param(InferenceFailed("no answer"), 424, "Backend", "Backend error: no answer", id="backend"),
        pytest.param(OutOfMemory("no room"), 424, "Backend", "Backend error: no room", id="memory"),
        pytest.param(
            ModelCannot("model is not a re-ranker model"),
            424,
            "Backend",
            "Backend error: model is not a re-ranker model",
            id="wrong kind of model",
        ),
        pytest.param(Untokenizable("bad id"), 422, "Tokenizer", "tokenizer error bad id", id="tokenizer"),
        pytest.param(ForeignIds("ids"), 422, "Validation", "Input validation error: ids", id="foreign ids"),
        pytest.param(InvalidField("x"), 422, "Validation", "Input validation error: x", id="validation"),
        pytest.param(ModelNotFound("which"), 404, "Validation", "which", id="no such model"),
        pytest.param(NotAcceptable("no"), 406, "Validation", "no", id="no such form of answer"),
        pytest.param(
            InvalidField("x", field="dimensions", limit=384, given=385),
            422,
            "Validation",
            "Input validation error: `dimensions` should be smaller than the maximum embedding dimension.",
            id="dimensions",
        ),
        pytest.param(
            TooManyInputs("many", limit=32, given=33),
            422,
            "Validation",
            "batch size 33 > maximum allowed batch size 32",
            id="batch size",
        ),
        pytest.param(TooManyInputs("many"), 422, "Validation", "many", id="batch size without figures"),
        pytest.param(
            InputTooLong("long", field="inputs", limit=256, given=300),
            422,
            "Validation",
            "Input validation error: `inputs` must have less than 256 tokens. Given: 300",
            id="too long",
        ),
        pytest.param(
            TooManyCharacters("long", field="inputs", limit=128_000, given=128_001),
            422,
            "Validation",
            "Input validation error: `inputs` must have less than 128000 characters. Given: 128001",
            id="too many characters",
        ),
        pytest.param(
            InputTooLong("long"), 422, "Validation", "Input validation error: long", id="too long without figures"
        ),
        pytest.param(
            InvalidField("no such prompt", field="prompt_name", prompts="query, document"),
            422,
            "Validation",
            "Input validation error: `prompt_name` was not found in the Sentence Transformers prompts. "
            'Available prompts: ["query", "document"]',
            id="an unknown prompt",
        ),
        pytest.param(
            InvalidField("no prompts", field="prompt_name"),
            422,
            "Validation",
            "Input validation error: `prompt_name` is set but no prompts were found in the Sentence Transformers "
            "configuration",
            id="a prompt of a model without prompts",
        ),
    ],
)
def test_errors_in_teis_words(error, status, kind, text):
    """Two strings on TEI's own routes, and a flat object with the status on its OpenAI routes."""
    own, openai = render_error(error), render_openai_error(error)
    assert own.status == openai.status == ERRORS[type(error)] == status
    assert json.loads(own.body) == {"error": text, "error_type": kind}
    assert json.loads(openai.body) == {"message": text, "code": status, "type": kind}


@pytest.mark.parametrize("render", [render_error, render_openai_error], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("error", "status", "begins"),
    [
        pytest.param(MalformedBody("x"), 400, "Failed to parse the request body as JSON: x", id="syntax"),
        pytest.param(WrongType("x"), 422, "Failed to deserialize the JSON body into the target type: x", id="types"),
        pytest.param(
            UnsupportedMediaType("x"), 415, "Expected request with `Content-Type: application/json`", id="type"
        ),
        pytest.param(PayloadTooLarge("x"), 413, "Failed to buffer the request body: x", id="size"),
    ],
)
def test_errors_of_teis_framework_are_plain_text(render, error, status, begins):
    """As from axum."""
    rendered = render(error)
    assert (rendered.status, rendered.content_type) == (status, "text/plain; charset=utf-8")
    assert rendered.body.decode().startswith(begins)


@pytest.mark.parametrize("render", [render_error, render_openai_error], ids=lambda f: f.__name__)
def test_401_has_no_body(render):
    """As in TEI."""
    rendered = render(Unauthorized("no key"))
    assert (rendered.status, rendered.body) == (401, b"")


def test_only_the_openai_routes_have_flat_errors():
    """The renderer belongs to the route."""
    flat = {route.path for route in tei.DIALECT.routes if route.render_error is not None}
    assert flat == {"/v1/embeddings", "/embeddings"}


@pytest.mark.parametrize(
    "route",
    [pytest.param(route, id=f"{route.path} {sorted(route.keys)}") for route in tei.DIALECT.routes if route.body],
)
def test_every_example_is_a_body_of_its_route(route):
    """Each example has a key of its route."""
    assert route.keys <= route.example.keys()
    assert route.parse(replace(incoming(route.example), models=[model_info()])).request is not None
