"""Every method of reranking, and the requests that are rejected."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from tests.engine.fakes import (
    CLASSIFIER,
    COLBERT_WIDTH,
    CROSS_ENCODER,
    JUDGE,
    M3,
    SEPARATOR,
    YES_NO,
    FakeBackend,
    backend_for,
    expected_colbert,
    expected_logits,
    expected_row,
    expected_weights,
    ids_of,
    serving,
    serving_one,
    spec,
    texts_of,
)
from tests.refusals import refuses

from vectord.checkpoints.spec import Colbert
from vectord.engine.models.registry import CompositeSource
from vectord.errors import InferenceFailed, InputTooLong, InvalidField, ModelCannot, TooManyInputs
from vectord.schema import Caller, ChunkOptions, Float32, RerankRequest, Span, TextOptions

ANYONE = Caller()
QUERY = "what is it"
PASSAGES = ["this", "that one", "it is what it is", "abba"]
COLBERT = spec(("colbert",), colbert=Colbert(dimensions=COLBERT_WIDTH))
LANGUAGE_MODEL_WITH_A_HEAD = replace(CROSS_ENCODER, yes_no=replace(YES_NO, token_ids=None), score_activation="identity")


def ask(**changes: object) -> RerankRequest:
    return RerankRequest(**({"query": QUERY, "passages": PASSAGES} | changes))  # type: ignore[arg-type]


def pair(query: str, passage: str) -> np.ndarray:
    return np.array([*query.encode(), SEPARATOR, *passage.encode()], np.int32)


def logits(query: str = QUERY, labels: int = 1) -> Float32:
    return np.stack([expected_logits(pair(query, passage), labels) for passage in PASSAGES])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# --- methods --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "kind"), [(None, "logit"), (True, "logit"), (False, "probability")], ids=["as usual", "raw", "not raw"]
)
async def test_a_cross_encoder_scores_each_pair(raw, kind):
    """The score is the logit, or the probability on request. The query is billed with every passage."""
    async with serving_one(CROSS_ENCODER) as (engine, backend):
        result = await engine.answer(ask(raw=raw), ANYONE)
    expected = logits()[:, 0]
    np.testing.assert_allclose(result.scores, expected if kind == "logit" else sigmoid(expected), rtol=1e-5)
    assert (result.kind, result.model, result.spans) == (kind, "m0", None)
    assert result.usage.tokens == sum(len(pair(QUERY, passage)) for passage in PASSAGES)
    assert result.query.kept == len(QUERY)
    assert [length.kept for length in result.passages] == [len(passage) for passage in PASSAGES]
    assert all(batch.texts.parents is None for batch in backend.batches)


async def test_a_cross_encoder_s_own_activation_scores_each_pair():
    """It replaces logit and probability, as in sentence-transformers; `raw` returns the logits."""
    own = replace(CROSS_ENCODER, score_activation="tanh")
    async with serving_one(own) as (engine, _):
        results = [await engine.answer(ask(raw=raw), ANYONE) for raw in (None, False, True)]
    expected = np.tanh(logits()[:, 0])
    for result, scores in zip(results, (expected, expected, logits()[:, 0]), strict=True):
        np.testing.assert_allclose(result.scores, scores, rtol=1e-5)
        assert result.kind == "logit"


@pytest.mark.parametrize(
    ("raw", "kind"),
    [(None, "probability"), (False, "probability"), (True, "logit")],
    ids=["as usual", "not raw", "raw"],
)
async def test_a_language_model_weighs_yes_against_no(raw, kind):
    """The score is the probability of yes, or the difference of the logits."""
    async with serving_one(JUDGE) as (engine, _):
        result = await engine.answer(ask(raw=raw), ANYONE)
    both = logits(f"Judge: {QUERY}", labels=2)
    odds = both[:, 1] - both[:, 0]
    np.testing.assert_allclose(result.scores, odds if kind == "logit" else sigmoid(odds), rtol=1e-5)
    assert result.kind == kind


async def test_a_rounded_score_hides_neither_the_order_nor_the_best_chunk():
    """Probabilities that a sigmoid rounds to 1 or 0 come with their logits, which choose each passage's chunk."""
    certain = replace(JUDGE, yes_no=replace(YES_NO, divisor=1e-4))
    chunks = ChunkOptions(max_tokens=4)
    async with serving_one(certain) as (engine, _):
        sharp = await engine.answer(ask(chunks=chunks), ANYONE)
        raw = await engine.answer(ask(chunks=chunks, raw=True), ANYONE)
    assert set(sharp.scores.tolist()) <= {0.0, 1.0}
    np.testing.assert_array_equal(sharp.logits, raw.scores)
    assert (sharp.spans, raw.logits) == (raw.spans, None)


async def test_a_language_model_with_a_head_has_one_logit():
    """It reads the same template, and its head's logit is that of yes."""
    async with serving_one(LANGUAGE_MODEL_WITH_A_HEAD) as (engine, _):
        result = await engine.answer(ask(), ANYONE)
    np.testing.assert_allclose(result.scores, sigmoid(logits(f"Judge: {QUERY}")[:, 0]), rtol=1e-5)
    assert result.kind == "probability"


async def test_pairs_of_a_causal_model_share_the_tokens_they_begin_with():
    """The tokens before the passages run once per batch."""
    async with serving_one(JUDGE) as (engine, backend):
        await engine.answer(ask(), ANYONE)
    (batch,) = backend.batches
    begun = pair(f"Judge: {QUERY}", "")
    texts = [ids.tolist() for ids in texts_of(batch.texts)]
    assert texts == [begun.tolist(), *[list(passage.encode()) for passage in PASSAGES]]
    assert batch.texts.parents.tolist() == [-1, 0, 0, 0, 0]


async def test_of_equal_passages_each_keeps_a_token_of_its_own():
    """A sequence needs a token after the shared prefix."""
    async with serving_one(JUDGE, cache_bytes=0) as (engine, backend):
        result = await engine.answer(ask(passages=["same", "same"]), ANYONE)
    assert result.scores[0] == result.scores[1]
    assert [len(ids) for ids in texts_of(backend.batches[0].texts)][1:] == [1, 1]


@pytest.mark.parametrize("cost", ["packed", "padded"])
async def test_a_backend_that_pads_shares_nothing(cost):
    """It reads every text separately."""
    backend = backend_for(JUDGE, cost=cost)
    async with serving(backend, models=[JUDGE]) as engine:
        result = await engine.answer(ask(raw=True), ANYONE)
    assert (backend.batches[0].texts.parents is None) == (cost == "padded")
    both = logits(f"Judge: {QUERY}", labels=2)
    np.testing.assert_allclose(result.scores, both[:, 1] - both[:, 0], rtol=1e-5)


def cosines() -> list[float]:
    query, *rows = [expected_row(text) / np.linalg.norm(expected_row(text)) for text in (QUERY, *PASSAGES)]
    return [float(query @ row) for row in rows]


def products() -> list[float]:
    def weights(text: str) -> dict[int, float]:
        return dict(zip(ids_of(text).tolist(), expected_weights(ids_of(text)).tolist(), strict=True))

    query = weights(QUERY)
    return [sum(w * query.get(word, 0) for word, w in weights(passage).items()) for passage in PASSAGES]


def matches(drop: int) -> list[float]:
    query, *passages = [expected_colbert(ids_of(text))[drop:] for text in (QUERY, *PASSAGES)]
    return [float((query @ passage.T).max(axis=1).sum()) for passage in passages]


@pytest.mark.parametrize(
    ("method", "kind", "expected"),
    [
        ("dense", "cosine", cosines()),
        ("sparse", "dot", products()),
        ("colbert", "maxsim", [total / (len(QUERY) - 1) for total in matches(drop=1)]),  # FlagEmbedding: the mean
    ],
    ids=["dense", "sparse", "colbert"],
)
async def test_each_kind_of_vector_ranks(method, kind, expected):
    """Query and passages are read in one batch; the query's tokens are billed once."""
    async with serving_one(M3) as (engine, _):
        result = await engine.answer(ask(method=method), ANYONE)
    np.testing.assert_allclose(result.scores, expected, rtol=1e-5)
    assert result.kind == kind
    assert result.usage.tokens == len(QUERY) + sum(map(len, PASSAGES))


@pytest.mark.parametrize("weights", [None, (1.0, 0.3, 1.0), (0.0, 0.0, 5.0), (1e308, 1.0, 0.0)])
async def test_the_weighted_method_is_a_mean_of_the_three(weights):
    """Weights need not sum to 1, nor be small."""
    async with serving_one(M3) as (engine, _):
        result = await engine.answer(ask(weights=weights), ANYONE)
    shares = np.array(weights or (1.0, 1.0, 1.0))
    shares = shares / shares.sum()
    mean_matches = np.array(matches(drop=1)) / (len(QUERY) - 1)
    expected = np.stack([cosines(), products(), mean_matches], axis=1) @ shares
    np.testing.assert_allclose(result.scores, expected, rtol=1e-5)
    assert result.kind == "weighted"


async def test_a_colbert_model_sums_its_matches():
    """This is pylate's sum; the markers of query and document do not count."""
    async with serving_one(COLBERT) as (engine, _):
        result = await engine.answer(ask(), ANYONE)
    np.testing.assert_allclose(result.scores, matches(drop=0), rtol=1e-5)
    assert result.kind == "maxsim"


# --- which model, which method --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "answers"),
    [(None, "m2"), ("scores", "m2"), ("dense", "m1"), ("weighted", "m3"), ("colbert", "m3")],
)
async def test_without_model_a_reranker_is_preferred(method, answers):
    """A method of vectors is answered by the first model that has them."""
    models = [CLASSIFIER, spec(("dense",)), CROSS_ENCODER, M3]
    async with serving(*map(backend_for, models), models=models) as engine:
        assert (await engine.answer(ask(method=method), ANYONE)).model == answers


async def test_without_a_reranker_vectors_rank():
    """The first model that supports any method answers."""
    models = [CLASSIFIER, spec(("dense",))]
    async with serving(*map(backend_for, models), models=models) as engine:
        result = await engine.answer(ask(), ANYONE)
    assert (result.model, result.kind) == ("m1", "cosine")


@pytest.mark.parametrize(
    ("model", "method"),
    [(CLASSIFIER, None), (CROSS_ENCODER, "dense"), (spec(("dense",)), "scores"), (COLBERT, "weighted")],
    ids=["labels are no scores", "no vectors", "no scores", "not all vectors"],
)
async def test_a_model_without_the_method_is_rejected(model, method):
    """It is rejected before anything runs, whether the request names it or not."""
    async with serving_one(model) as (engine, backend):
        for name in ("m0", None):
            with pytest.raises(ModelCannot):
                await engine.answer(ask(method=method, model=name), ANYONE)
    assert not backend.batches


async def test_a_composite_ranks_by_its_dense_model():
    """The result has the composite's name and the dense model's vector space."""
    models = [spec(("splade",)), spec(("dense",), fingerprint="d" * 16)]
    both = CompositeSource("both", {"sparse": "m0", "dense": "m1"})
    async with serving(*map(backend_for, models), models=models, composites=[both]) as engine:
        result = await engine.answer(ask(model="both"), ANYONE)
    assert (result.model, result.kind, result.fingerprint) == ("both", "cosine", "d" * 16)


# --- rejected requests -----------------------------------------------------------------------------------------


BARE = TextOptions(add_special_tokens=False)
WITHOUT_A_PLACE = replace(JUDGE, yes_no=replace(YES_NO, body=("{query}", "{document}")))


REFUSED = {
    "no weight": (M3, {"weights": (0.0, 0.0, 0.0)}, "weights"),
    "a negative weight": (M3, {"weights": (-1.0, 1.0, 1.0)}, "weights"),
    "a weight that is no number": (M3, {"weights": (float("nan"), 1.0, 1.0)}, "weights"),
    "weights whose sum is infinite": (M3, {"weights": (1e308, 1e308, 1e308)}, "weights"),
    "an instruction for pairs": (CROSS_ENCODER, {"instruction": "Find cats"}, "instruction"),
    "an instruction for vectors": (M3, {"instruction": "Find cats", "method": "dense"}, "instruction"),
    "an instruction without a place": (WITHOUT_A_PLACE, {"instruction": "Find cats"}, "instruction"),
    "colbert without specials": (M3, {"method": "colbert", "text": BARE}, "add_special_tokens"),
    "weighted without specials": (M3, {"method": "weighted", "text": BARE}, "add_special_tokens"),
}


@pytest.mark.parametrize(("model", "changes", "field"), REFUSED.values(), ids=REFUSED)
async def test_a_field_that_the_model_cannot_obey_is_rejected(model, changes, field):
    """Before anything runs. Ignoring it would answer another question, or with scores that are no finite numbers.
    BGE-M3 drops the first token of ColBERT vectors, which would be a word without special tokens."""
    async with serving_one(model) as (engine, backend):
        with refuses(InvalidField, field=field):
            await engine.answer(ask(**changes), ANYONE)
    assert not backend.batches


async def test_other_vectors_need_no_special_tokens():
    """Of the same model."""
    async with serving_one(M3) as (engine, _):
        assert (await engine.answer(ask(method="dense", text=BARE), ANYONE)).kind == "cosine"


async def test_an_empty_instruction_is_none_to_another_model():
    """Some clients always send the field."""
    async with serving_one(CROSS_ENCODER) as (engine, _):
        result = await engine.answer(ask(instruction=""), ANYONE)
        plain = await engine.answer(ask(), ANYONE)
    np.testing.assert_array_equal(result.scores, plain.scores)


async def test_a_language_model_reads_the_instruction():
    """The request's instruction replaces the model's own."""
    async with serving_one(JUDGE) as (engine, _):
        result = await engine.answer(ask(instruction="Find cats", raw=True), ANYONE)
    both = logits(f"Find cats: {QUERY}", labels=2)
    np.testing.assert_allclose(result.scores, both[:, 1] - both[:, 0], rtol=1e-5)


async def test_one_answer_scores_by_its_logit():
    """zerank's logit of "Yes" is divided as the model's own code divides it."""
    assert JUDGE.yes_no is not None
    zerank = replace(JUDGE, yes_no=replace(JUDGE.yes_no, answers=("Yes",), token_ids=(2,), divisor=5.0))
    async with serving_one(zerank) as (engine, _):
        result = await engine.answer(ask(raw=True), ANYONE)
    np.testing.assert_allclose(result.scores, logits(f"Judge: {QUERY}", labels=1)[:, 0] / 5, rtol=1e-5)


@pytest.mark.parametrize("chunks", [None, ChunkOptions(max_tokens=4)], ids=["whole", "chunks"])
@pytest.mark.parametrize("model", [CROSS_ENCODER, M3], ids=["pairs", "vectors"])
async def test_a_poison_passage_is_named(model, chunks):
    """The error has its index among the passages; the client does not know their chunks."""
    async with serving_one(model) as (engine, backend):
        backend.poison = ord("!")
        with refuses(InferenceFailed, field="passages", index=2):
            await engine.answer(ask(passages=["fine", "fine too", "fine" * 2 + "no!"], chunks=chunks), ANYONE)


# --- chunks ---------------------------------------------------------------------------------------------------

FOURS = ChunkOptions(max_tokens=4)


@pytest.mark.parametrize("model", [CROSS_ENCODER, M3], ids=["pairs", "vectors"])
async def test_a_passages_best_chunk_counts(model):
    """The passage has the score, span and length of its best chunk."""
    passages = ["abcdefghij", "it", "zzzzyyyyxxxx"]
    async with serving_one(model) as (engine, _):
        result = await engine.answer(ask(passages=passages, chunks=FOURS), ANYONE)
        for i, passage in enumerate(passages):
            pieces = [passage[start : start + 4] for start in range(0, len(passage), 4)]
            scores = (await engine.answer(ask(passages=pieces), ANYONE)).scores
            best = int(np.argmax(scores))
            assert result.scores[i] == pytest.approx(float(scores[best]), rel=1e-6)
            assert result.spans[i] == Span(4 * best, min(4 * best + 4, len(passage)))
            assert result.passages[i].kept == len(pieces[best])


async def test_of_equal_chunks_the_first_wins():
    """The result is deterministic."""
    async with serving_one(CROSS_ENCODER) as (engine, _):
        result = await engine.answer(ask(passages=["abcdabcdabcd"], chunks=FOURS), ANYONE)
    assert result.spans == [Span(0, 4)]


async def test_an_empty_passage_is_scored():
    """It has no chunk, but every passage has a score."""
    async with serving_one(CROSS_ENCODER) as (engine, _):
        result = await engine.answer(ask(passages=["", "abcdefgh"], chunks=FOURS), ANYONE)
    assert result.scores[0] == pytest.approx(float(expected_logits(pair(QUERY, ""), 1)[0]), rel=1e-6)
    assert result.spans[0] == Span(0, 0)


async def test_chunks_count_as_passages():
    """A request has at most as many chunks as it may have passages."""
    async with serving_one(CROSS_ENCODER, max_client_batch_size=3) as (engine, backend):
        with pytest.raises(TooManyInputs, match="chunks") as refused:
            await engine.answer(ask(passages=["a" * 8, "b" * 8], chunks=FOURS), ANYONE)
    # The chunks are counted only until there are too many, so their number is unknown.
    assert (refused.value.limit, refused.value.given) == (3, None)
    assert refused.value.message == "`passages` may hold at most 3 chunks; got more."
    assert not backend.batches


async def test_a_pair_that_is_too_long_names_its_passage():
    """Without truncation, the error has the passage's index."""
    request = ask(passages=["ok", "x" * 90], text=TextOptions(truncate=False))
    async with serving_one(CROSS_ENCODER) as (engine, backend):
        with refuses(InputTooLong, field="passages", index=1):
            await engine.answer(request, ANYONE)
    assert not backend.batches


async def test_ties_are_ties():
    """Equal passages have equal scores in any batch."""
    backend = FakeBackend(max_batch_tokens=40)
    async with serving(backend, models=[CROSS_ENCODER], cache_bytes=0) as engine:
        result = await engine.answer(ask(passages=["same", "other", "same", "same"]), ANYONE)
    assert result.scores[0] == result.scores[2] == result.scores[3] != result.scores[1]


# --- long passages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [CROSS_ENCODER, M3, JUDGE, COLBERT], ids=["pairs", "vectors", "words", "colbert"])
async def test_a_passage_is_cut_to_the_request_s_limit(model):
    """The score is that of its beginning for every method; length and bill state the cut."""
    passages = ["this", "that one", "it is"]
    async with serving_one(model) as (engine, _):
        result = await engine.answer(ask(passages=passages, max_passage_tokens=4), ANYONE)
        short = await engine.answer(ask(passages=[passage[:4] for passage in passages]), ANYONE)
    np.testing.assert_array_equal(result.scores, short.scores)
    assert [length.seen - length.kept for length in result.passages] == [0, 4, 1]
    assert [length.seen - length.kept for length in result.usage.lengths] == [0, 4, 1]
    assert [length.kept for length in result.passages] == [length.kept for length in short.passages]
    assert result.usage.tokens == short.usage.tokens


async def test_max_passage_tokens_cuts_without_truncate():
    """This limit never rejects a passage."""
    text = TextOptions(truncate=False)
    async with serving_one(CROSS_ENCODER) as (engine, _):
        result = await engine.answer(ask(passages=["x" * 500], max_passage_tokens=10, text=text), ANYONE)
        assert (result.passages[0].seen, result.passages[0].kept) == (500, 10)
        with pytest.raises(InputTooLong):
            await engine.answer(ask(passages=["x" * 500], text=text), ANYONE)


async def test_a_passage_is_cut_before_it_is_chunked():
    """The cut counts once, for the last chunk and for the passage."""
    passages = ["abcdefghijkl", "it"]
    async with serving_one(CROSS_ENCODER) as (engine, _):
        result = await engine.answer(ask(passages=passages, chunks=FOURS, max_passage_tokens=6), ANYONE)
        short = await engine.answer(ask(passages=["abcdef", "it"], chunks=FOURS), ANYONE)
    assert result.spans == short.spans
    np.testing.assert_array_equal(result.scores, short.scores)
    assert result.passages[0].seen - result.passages[0].kept == 6
    assert [length.seen - length.kept for length in result.usage.lengths] == [0, 6, 0]


@pytest.mark.parametrize("model", [CROSS_ENCODER, M3, JUDGE, COLBERT], ids=["pairs", "vectors", "words", "colbert"])
async def test_the_query_is_cut_to_the_request_s_limit(model):
    """The scores are those of its beginning for every method, and its length states the cut."""
    async with serving_one(model) as (engine, _):
        result = await engine.answer(ask(max_query_tokens=4), ANYONE)
        short = await engine.answer(ask(query=QUERY[:4]), ANYONE)
    np.testing.assert_array_equal(result.scores, short.scores)
    assert result.query.seen - result.query.kept == len(QUERY) - 4
    assert result.query.kept == short.query.kept
    assert result.usage.tokens == short.usage.tokens
