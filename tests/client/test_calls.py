"""Both clients: the server parses their requests, and they join its responses, however the list is split."""

from __future__ import annotations

import inspect
import itertools
from binascii import b2a_base64

import httpx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.callers import call as call_sync
from tests.client.fakes import (
    FINGERPRINT,
    HIGHEST_SCORE,
    MODEL,
    FakeServer,
    call_of,
    score_of,
    sparse_of,
    vector_of,
    vectors_of,
)

import vectord
from vectord.client import BadRequest, FingerprintChanged, ServerFailed, Span
from vectord.client.client import BULK_REQUESTS
from vectord.client.reading import LEAST_WIDTH
from vectord.schema import ChunkOptions, EmbedRequest, Media, RerankRequest, TextOptions

TEXTS = st.lists(st.text(max_size=9), min_size=1, max_size=25)
SPLITS = st.fixed_dictionaries(
    {
        "texts_per_request": st.integers(1, 9),
        "characters_per_request": st.integers(1, 60),
        "concurrency": st.integers(1, 4),
    }
)
LAW = settings(max_examples=25, deadline=None)
SOME = [f"text {number}" for number in range(30)]
SMALL = {"texts_per_request": 7}


# --- laws: whatever the list and wherever it is split ---------------------------------------------------------


@given(TEXTS, SPLITS)
@LAW
def test_row_i_is_the_vector_of_text_i(texts, client):
    """The order of the list is kept."""
    assert np.array_equal(call_sync(FakeServer(), "embed", texts, client=client), vectors_of(texts))


@given(TEXTS, SPLITS)
@LAW
def test_row_i_has_all_kinds_of_vectors_of_text_i(texts, client):
    """From one pass of the model."""
    made = call_sync(FakeServer(), "embed_all", texts, outputs=["dense", "sparse", "colbert", "tokens"], client=client)
    assert np.array_equal(made.dense, vectors_of(texts))
    assert _weights(made.sparse) == [sparse_of(text) for text in texts]
    assert all(
        np.array_equal(rows, vector_of(text, rows=len(text) + 1)) and rows.flags.writeable
        for kind in (made.colbert, made.tokens)
        for text, rows in zip(texts, kind, strict=True)
    )
    assert (made.model, made.fingerprint, made.truncated) == (MODEL, FINGERPRINT, [])
    assert made.tokens_read == sum(map(len, texts))


def _weights(matrix: scipy.sparse.csr_array) -> list[dict[int, float]]:
    """Of each row, by token id."""
    ids, weights, ends = matrix.indices.tolist(), matrix.data.tolist(), matrix.indptr.tolist()
    return [dict(zip(ids[start:stop], weights[start:stop], strict=True)) for start, stop in itertools.pairwise(ends)]


@given(TEXTS, SPLITS, st.none() | st.integers(1, 30))
@LAW
def test_a_split_ranking_equals_one_request(passages, client, top_n):
    """Best first; equal scores are ordered by their logits, and then as in the list."""
    ranking = call_sync(FakeServer(), "rerank", "q", passages, top_n=top_n, client=client)
    order = sorted(range(len(passages)), key=lambda index: (-score_of(passages[index]), index))[:top_n]
    assert [ranked.index for ranked in ranking] == order
    assert [ranked.passage for ranked in ranking] == [passages[index] for index in order]
    scores = [min(score_of(passages[index]), HIGHEST_SCORE) for index in order]
    assert np.float32([ranked.score for ranked in ranking]).tolist() == scores
    assert ranking.score_kind == "logit"


@given(TEXTS, SPLITS)
@LAW
def test_embed_iter_yields_the_texts_in_order(texts, client):
    """Each with its own vectors."""
    batches = call_sync(FakeServer(), "embed_iter", iter(texts), client=client)
    assert [text for batch in batches for text in batch.texts] == texts
    assert np.array_equal(np.concatenate([batch.vectors for batch in batches]), vectors_of(texts))


# --- each call ------------------------------------------------------------------------------------------------


def test_a_string_gives_a_vector_and_a_list_a_matrix(call):
    """As sentence-transformers does."""
    assert np.array_equal(call(FakeServer(), "embed", "a"), vector_of("a"))
    assert np.array_equal(call(FakeServer(), "embed", ["a"]), vectors_of(["a"]))


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("float16", 4), ("int8", 4), ("ubinary", 1)])
def test_vectors_have_the_requested_dtype(call, dtype, width):
    """In an array of the caller."""
    vectors = call(FakeServer(), "embed", SOME, dtype=dtype, client=SMALL)
    assert vectors.dtype == (np.uint8 if dtype == "ubinary" else dtype)
    assert vectors.shape == (30, width)
    assert vectors.flags.writeable


def test_a_number_too_large_for_float16_is_refused(call):
    """It would be infinite. The other dtypes have it."""
    dense = b2a_base64(np.float32([70_000]).tobytes(), newline=False).decode()
    server = FakeServer([_response(200, {"model": "m", "data": [{"index": 0, "dense": dense}]})] * 2)
    with pytest.raises(BadRequest, match="number above 65,504, the largest of float16"):
        call(server, "embed", ["a"], dtype="float16")
    assert call(server, "embed", ["a"]).tolist() == [[70_000]]


def test_the_server_parses_the_bodies(call):
    """Every option arrives in its field."""
    server = FakeServer()
    call(
        server,
        "embed",
        ["a"],
        model="m",
        kind="query",
        prompt_name="p",
        prompt="x: ",
        truncate=True,
        truncate_side="left",
        dimensions=3,
        force_dimensions=True,
        normalize=False,
        expect_fingerprint="f00d",
    )
    (sent,) = server.requests
    text = TextOptions(truncate=True, truncate_side="left", kind="query", prompt_name="p", prompt="x: ")
    assert call_of(sent).request == EmbedRequest(
        inputs=["a"], model="m", text=text, normalize=False, dimensions=3, force_dimensions=True
    )
    assert sent.headers["x-vectord-expect-fingerprint"] == "f00d"


def test_an_option_of_none_is_left_to_the_server(call):
    """As if it were missing."""
    server = FakeServer()
    call(server, "embed", ["a"], model=None, kind=None, truncate=None, dimensions=None, expect_fingerprint=None)
    assert call_of(server.requests[0]).request == EmbedRequest(inputs=["a"])


def test_a_list_of_texts_and_images_is_one_input() -> None:
    server, file = FakeServer(), b"an image"
    assert len(call_sync(server, "embed", ["a", ["b", file, "c"], file])) == 3
    image = Media(file)
    assert call_of(server.requests[0]).request == EmbedRequest(inputs=["a", ["b", image, "c"], image])
    ranking = call_sync(server, "rerank", ["find", file], ["a", file, [file, "b"]])
    passages = ["a", image, [image, "b"]]
    assert call_of(server.requests[1]).request == RerankRequest(query=["find", image], passages=passages)
    assert sorted(map(str, (one.passage for one in ranking))) == sorted(map(str, ["a", file, [file, "b"]]))


def test_rerank_sends_all_its_options(call):
    """Weights, instruction and chunks."""
    server = FakeServer()
    options = {"method": "weighted", "weights": {"dense": 1.0}, "instruction": "judge", "chunk": {"max_tokens": 20}}
    ranking = call(server, "rerank", "q", ["a", "b"], top_n=1, model="m", **options)
    assert call_of(server.requests[0]).request == RerankRequest(
        query="q",
        passages=["a", "b"],
        model="m",
        method="weighted",
        weights=(1.0, 0.0, 0.0),
        instruction="judge",
        chunks=ChunkOptions(max_tokens=20),
    )
    assert len(ranking) == 1
    assert ranking[0].span == Span(0, 1)


def test_a_ranking_names_truncated_passages(call):
    """By their index in the caller's list. It also says whether the query was truncated."""
    passages = ["a", "b" * 2000, "c", "d" * 2000]
    ranking = call(FakeServer(), "rerank", "q", passages, truncate=True, client={"texts_per_request": 1})
    assert (ranking.truncated, ranking.query_truncated) == ([1, 3], True)


def test_vectors_that_were_not_requested_are_none(call):
    """The server does not send them."""
    made = call(FakeServer(), "embed_all", ["a"], outputs=["colbert", "tokens"])
    assert (made.dense, made.sparse, len(made.colbert), len(made.tokens)) == (None, None, 1, 1)


def test_sparse_matrices_of_two_calls_can_be_multiplied(call):
    """They have the same width, and the ids of each row ascend."""
    one = call(FakeServer(), "embed_all", ["ba"], outputs=["sparse"]).sparse
    other = call(FakeServer(), "embed_all", ["a", "ab", "漢"], outputs=["sparse"]).sparse
    assert one.shape == (1, LEAST_WIDTH)
    assert (one @ other.T).toarray() == pytest.approx(np.array([[1 / 9, 2 / 9, 0]]), abs=1e-6)
    assert one.indices.tolist() == [97, 98]


def test_documents_have_chunks(call):
    """With spans, token counts and vectors, and the mean if requested."""
    documents = call(FakeServer(), "documents", ["a b", "c"], chunk={"max_tokens": 20}, mean=True, late=True)
    assert documents[0].spans == [Span(0, 1), Span(2, 3)]
    assert documents[0].tokens == [1, 1]
    assert np.array_equal(documents[0].vectors, vectors_of(["a", "b"]))
    assert np.array_equal(documents[1].mean, vector_of("c"))
    assert call(FakeServer(), "documents", ["a"], chunk={"max_tokens": 20})[0].mean is None


def test_labels_are_best_first(call):
    """Of texts and of pairs."""
    labels = call(FakeServer(), "classify", ["rain", ("a", "b")], client={"texts_per_request": 1})
    for text, found in zip(["rain", "ab"], labels, strict=True):
        expected = {"glad": score_of(text), "sad": 1 - score_of(text)}
        assert {one.label: one.score for one in found} == pytest.approx(expected)
        assert found[0].score > found[1].score
    assert [found[0].label for found in labels] == ["sad", "glad"]


@pytest.mark.parametrize(("status", "ready"), [(200, True), (503, False)])
def test_health_is_returned_whether_ready_or_not(call, status, ready):
    """With the state of each model."""
    words = {"status": "healthy" if ready else "unhealthy", "states": {"m": "loading"}, "version": "1"}
    health = call(FakeServer([_response(status, words)]), "health")
    assert (health.ready, health.states) == (ready, {"m": "loading"})


def _response(status: int, body: object = None, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.Response(status, json=body, headers=headers)


# --- nothing to do --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "options"),
    [
        ("embed", [[]], {}),
        ("embed_iter", [[]], {}),
        ("embed_all", [[]], {}),
        ("documents", [[]], {"chunk": {"max_tokens": 20}}),
        ("rerank", ["q", []], {}),
        ("classify", [[]], {}),
        ("similarity", ["a", []], {}),
        ("tokenize", [[]], {}),
        ("decode", [[]], {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_empty_list_sends_no_request(call, name, args, options):
    """An empty last batch of a pipeline is no error."""
    server = FakeServer()
    made = call(server, name, *args, **options)
    assert server.requests == []
    assert made.dense.shape == (0, 0) if name == "embed_all" else len(made) == 0


# --- large calls ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "lane", "sent"),
    [(BULK_REQUESTS, None, None), (BULK_REQUESTS + 1, None, "bulk"), (BULK_REQUESTS + 1, "interactive", "interactive")],
    ids=["small", "large", "large, with the lane set"],
)
def test_a_large_call_uses_the_bulk_lane(call, requests, lane, sent):
    """Its small requests would otherwise delay the queries of other clients."""
    server = FakeServer()
    call(server, "embed", ["a"] * requests, client={"texts_per_request": 1, "lane": lane})
    assert {request.headers.get("x-vectord-lane") for request in server.requests} == {sent}


def test_any_iterable_of_strings_is_accepted(call):
    """Generators, and columns of tables."""
    expected = vectors_of(["a", "b"])
    for texts in (iter("ab"), ("a", "b"), np.array(["a", "b"]), {"a": 1, "b": 2}):
        assert np.array_equal(call(FakeServer(), "embed", texts), expected)


# --- what goes wrong ------------------------------------------------------------------------------------------


def test_vectors_of_two_spaces_are_never_mixed(call):
    """The server restarted with another model during the call."""
    with pytest.raises(FingerprintChanged, match="during this call"):
        call(FakeServer(spaces=["aa", "bb"]), "embed", SOME, client={**SMALL, "concurrency": 1})


def test_a_vector_space_can_be_required(call):
    """The server refuses another one; the error has the same class."""
    words = {"error": {"type": "fingerprint_mismatch", "message": "another space"}}
    with pytest.raises(FingerprintChanged, match="another space"):
        call(FakeServer([_response(412, words)]), "embed", "a", expect_fingerprint="f00d")


def test_a_call_succeeds_despite_failed_requests(call):
    """Some parts are retried, the others are not delayed, and the order is kept."""
    full = _response(429, {"error": {"type": "overloaded", "message": "full"}}, {"retry-after": "0"})
    server = FakeServer([full, full, full])
    assert np.array_equal(call(server, "embed", SOME, client=SMALL), vectors_of(SOME))
    assert len(server.requests) == 5 + 3


@pytest.mark.parametrize(
    ("name", "args", "options", "message"),
    [
        ("embed", ["a"], {"dtype": "float64"}, "dtype must be one of float32, float16, int8, ubinary"),
        ("embed", ["a"], {"modl": "m"}, "'modl' is no option of this call; there are: model, "),
        ("rerank", ["q", ["a"]], {"kind": "query"}, "'kind' is no option of this call"),
        ("embed", [["a", None]], {}, "item 1 must be a string, not NoneType"),
        ("classify", [["a", ("b",)]], {}, "item 1 must be a string or a pair"),
        ("embed_iter", ["text"], {}, "several strings, not one"),
        ("documents", [["a"]], {}, "chunk"),
    ],
    ids=[
        "unknown dtype",
        "unknown option",
        "option of another call",
        "no string",
        "half a pair",
        "letters",
        "no chunk",
    ],
)
def test_invalid_arguments_are_a_type_or_value_error(call, name, args, options, message):
    """Before a request is sent."""
    server = FakeServer()
    with pytest.raises((TypeError, ValueError), match=message):
        call(server, name, *args, **options)
    assert server.requests == []


def test_a_response_with_other_values_is_an_error(call):
    """Fewer than items, for every call with one value for each; a passage that was not sent."""
    few = {"model": "m", "data": [], "scores": [], "results": [], "score_kind": "logit", "warnings": []}
    unknown = {**few, "results": [{"index": 7, "score": 1.0}]}
    cases = [("tokenize", ["a"], few), ("similarity", ["a", ["b"]], few)]
    for name, args, answer in (*cases, ("rerank", ["a", ["b"]], few), ("rerank", ["a", ["b"]], unknown)):
        with pytest.raises(ServerFailed):
            call(FakeServer([_response(200, answer)]), name, *args)


# --- two clients, one API -------------------------------------------------------------------------------------


def _calls_of(client: type) -> dict[str, inspect.Signature]:
    closing = ("close", "aclose")
    return {
        name: inspect.signature(value).replace(return_annotation=None)
        for name, value in inspect.getmembers(client, inspect.isfunction)
        if not name.startswith("_") and name not in closing
    }


def test_both_clients_have_the_same_calls():
    """With the same parameters and defaults."""
    assert _calls_of(vectord.Client) == _calls_of(vectord.AsyncClient)
    assert len(_calls_of(vectord.Client)) == 11
