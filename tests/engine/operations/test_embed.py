"""Texts to every kind of vector: from one model or a composite, with limits of memory and inputs that fail alone."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from msgspec.structs import replace
from tests.engine.fakes import (
    COLBERT_WIDTH,
    JUDGE,
    M3,
    MAX_TOKENS,
    WIDTH,
    ByteEncoder,
    FakeBackend,
    Recorder,
    backend_for,
    close_gate,
    entered,
    expected_colbert,
    expected_row,
    expected_weights,
    ids_of,
    queue_of,
    serving,
    serving_one,
    settle,
    spec,
)
from tests.refusals import refuses

from vectord.checkpoints.spec import Colbert
from vectord.engine.models.registry import CompositeSource
from vectord.engine.operations import embed as embedding
from vectord.errors import (
    EmptyInput,
    FingerprintMismatch,
    InferenceFailed,
    InputTooLong,
    InvalidField,
    ModelCannot,
    Overloaded,
    TooManyInputs,
    Unavailable,
)
from vectord.schema import (
    Caller,
    ChunkOptions,
    DocumentsRequest,
    EmbedRequest,
    RerankRequest,
    SimilarityRequest,
    TextLengths,
    TextOptions,
    UnloadModel,
)

ANYONE = Caller()
ALL = frozenset({"dense", "sparse", "colbert", "tokens"})
COLBERT = spec(("colbert", "tokens"), colbert=Colbert(dimensions=COLBERT_WIDTH))
DENSE_ONE = spec(("dense",), fingerprint="d" * 16)
SPARSE_ONE = spec(("splade",), fingerprint="5" * 16, max_tokens=32)
BOTH = CompositeSource("both", {"dense": "m0", "sparse": "m1"})


# --- kinds ----------------------------------------------------------------------------------------------------


async def test_all_vectors_come_from_one_pass():
    """A text is read once for all requested kinds."""
    async with serving_one(M3) as (engine, backend):
        result = await engine.answer(EmbedRequest(inputs=["ab", "cde"], outputs=ALL, normalize=False), ANYONE)
    assert backend.texts_run() == ["ab", "cde"]
    np.testing.assert_array_equal(result.dense["float"], [expected_row("ab"), expected_row("cde")])
    assert [one.indices.tolist() for one in result.sparse] == [[97], [99, 100, 101]]  # 98 weighs nothing
    np.testing.assert_array_equal(result.sparse[0].values, expected_weights(ids_of("a")))
    np.testing.assert_array_equal(result.colbert[1], expected_colbert(ids_of("de")))  # BGE-M3 drops the first
    assert [rows.shape for rows in result.tokens] == [(2, WIDTH), (3, WIDTH)]
    assert set(result.sources) == ALL
    assert result.usage.tokens == 5


async def test_requests_for_different_kinds_share_a_batch():
    """Each receives its own kinds only."""
    async with serving_one(M3, cache_bytes=0) as (engine, backend):
        close_gate(backend)
        blocker = asyncio.create_task(engine.answer(EmbedRequest(inputs=["blocker"]), ANYONE))
        await entered(backend)
        kinds = [frozenset({"dense"}), frozenset({"sparse"}), frozenset({"colbert", "dense"}), frozenset({"tokens"})]
        asked = [asyncio.create_task(engine.answer(EmbedRequest(inputs=["ab"], outputs=k), ANYONE)) for k in kinds]
        await settle()
        backend.gate.set()
        await blocker
        results = await asyncio.gather(*asked)
    assert len(backend.batches) == 2
    for result, outputs in zip(results, kinds, strict=True):
        given = {"dense": result.dense or None, "sparse": result.sparse}
        given |= {"colbert": result.colbert, "tokens": result.tokens}
        assert {kind for kind, value in given.items() if value is not None} == outputs


@pytest.mark.parametrize("outputs", [{"dense"}, {"sparse"}, {"tokens", "sparse"}])
async def test_unsupported_vectors_are_rejected(outputs):
    """The message lists the supported ones; nothing runs."""
    async with serving_one(spec(("colbert",))) as (engine, backend):
        request = EmbedRequest(inputs=["a"], outputs=frozenset(outputs), model="m0")
        with pytest.raises(ModelCannot, match="colbert"):
            await engine.answer(request, ANYONE)
    assert not backend.batches


async def test_without_model_the_first_one_that_supports_the_outputs_answers():
    """It must support all of them."""
    models = [JUDGE, DENSE_ONE, M3]
    async with serving(*map(backend_for, models), models=models) as engine:
        by_kinds = [
            (await engine.answer(EmbedRequest(inputs=["a"], outputs=frozenset(outputs)), ANYONE)).model
            for outputs in ({"dense"}, {"sparse"}, {"dense", "colbert"})
        ]
        assert by_kinds == ["m1", "m2", "m2"]
        assert (await engine.answer(SimilarityRequest(source="a", sentences=["b"]), ANYONE)).model == "m1"
        documents = DocumentsRequest(documents=["ab"], chunks=ChunkOptions(max_tokens=1))
        assert (await engine.answer(documents, ANYONE)).model == "m1"


@pytest.mark.parametrize(
    ("source", "sentences", "place"),
    [("no!", ["b", "c"], ("source", None)), ("a", ["b", "no!"], ("sentences", 1)), ("a", ["no!"], ("sentences", None))],
    ids=["the source", "a sentence", "the only sentence"],
)
async def test_similarity_names_the_text_that_fails(source, sentences, place):
    """Source and sentences run in one batch; each has its own field and index."""
    async with serving_one(DENSE_ONE) as (engine, backend):
        backend.poison = ord("!")
        with pytest.raises(InferenceFailed) as failed:
            await engine.answer(SimilarityRequest(source=source, sentences=sentences), ANYONE)
    assert (failed.value.field, failed.value.index) == place


@pytest.mark.parametrize("name", [None, "m1"], ids=["the first that embeds", "by name"])
async def test_without_outputs_no_model_is_loaded(name):
    """The response names the model, bills nothing, and has no vectors."""
    backends = [backend_for(JUDGE), FakeBackend()]
    async with serving(*backends, models=[JUDGE, DENSE_ONE], model_loading="first-use") as engine:
        result = await engine.answer(EmbedRequest(inputs=["ab", "c"], outputs=frozenset(), model=name), ANYONE)
        assert engine.readiness() == {"m0": "unloaded", "m1": "unloaded"}
    assert (result.model, result.fingerprint) == ("m1", "d" * 16)
    assert (result.usage.tokens, list(result.usage.lengths), result.usage.characters) == (0, [], 3)
    assert (result.dense, result.sparse, result.colbert, result.tokens) == ({}, None, None, None)


async def test_without_an_embedding_model_a_request_without_outputs_is_rejected():
    """With a sentence that makes sense."""
    async with serving_one(JUDGE) as (engine, _):
        with pytest.raises(ModelCannot, match="make any vectors"):
            await engine.answer(EmbedRequest(inputs=["a"], outputs=frozenset()), ANYONE)


async def test_colbert_vectors_need_special_tokens():
    """Alone or with other kinds; the model is not loaded."""
    text = TextOptions(add_special_tokens=False)
    async with serving(FakeBackend(), models=[M3], model_loading="first-use") as engine:
        with refuses(InvalidField, field="add_special_tokens"):
            await engine.answer(EmbedRequest(inputs=["a"], outputs=frozenset({"dense", "colbert"}), text=text), ANYONE)
        assert engine.readiness() == {"m0": "unloaded"}
        await engine.answer(EmbedRequest(inputs=["a"], outputs=frozenset({"dense", "sparse"}), text=text), ANYONE)


# --- dimensions, bits, spaces ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matryoshka", "dimensions", "forced", "allowed"),
    [
        (None, 3, False, True),
        ((4, 2), 4, False, True),
        ((4, 2), WIDTH, False, True),
        ((4, 2), 3, False, False),
        ((4, 2), 3, True, True),
        ((), 4, False, False),
        ((), WIDTH, False, True),
        ((), 4, True, True),
        ((4, 2), WIDTH + 1, True, False),
        (None, 0, True, False),
    ],
)
async def test_a_vector_is_cut_only_to_trained_widths(matryoshka, dimensions, forced, allowed):
    """A model without that information accepts any width; `force_dimensions` cuts anyway."""
    request = EmbedRequest(inputs=["a"], dimensions=dimensions, force_dimensions=forced)
    async with serving_one(spec(matryoshka=matryoshka)) as (engine, backend):
        if allowed:
            result = await engine.answer(request, ANYONE)
            assert result.dense["float"].shape == (1, dimensions)
        else:
            with refuses(InvalidField, field="dimensions"):
                await engine.answer(request, ANYONE)
            assert not backend.batches


async def test_a_request_may_have_several_precisions():
    """Of the same vectors, cut first."""
    precisions = ("float", "int8", "ubinary")
    async with serving_one(DENSE_ONE) as (engine, _):
        result = await engine.answer(EmbedRequest(inputs=["a", "b"], precisions=precisions), ANYONE)
    assert {name: (rows.dtype, rows.shape) for name, rows in result.dense.items()} == {
        "float": (np.float32, (2, WIDTH)),
        "int8": (np.int8, (2, WIDTH)),
        "ubinary": (np.uint8, (2, WIDTH // 8)),
    }


@pytest.mark.parametrize(
    ("dimensions", "space"), [(None, "d" * 16), (WIDTH, "d" * 16), (4, "d" * 16 + ":4")], ids=["all", "full", "cut"]
)
async def test_a_request_that_expects_another_space_is_rejected(dimensions, space):
    """Vectors of another model or width must not reach an index; the check costs no forward pass."""
    request = EmbedRequest(inputs=["a"], dimensions=dimensions)
    async with serving_one(DENSE_ONE) as (engine, backend):
        assert (await engine.answer(request, Caller(expect_fingerprint=space))).fingerprint == space
        backend.batches.clear()
        in_body = replace(request, expect_fingerprint="another")
        with pytest.raises(FingerprintMismatch) as refused:
            await engine.answer(in_body, Caller(expect_fingerprint=space))
        assert refused.value.field == "expect_fingerprint"
        with pytest.raises(FingerprintMismatch) as refused:
            await engine.answer(request, Caller(expect_fingerprint="another"))
    assert space in refused.value.message
    assert "another" not in refused.value.message.replace("another space", "")
    assert not backend.batches


@pytest.mark.parametrize("options", [{"dimensions": 4}, {"precisions": ("int8",)}], ids=str)
async def test_options_of_dense_vectors_are_refused_without_any(options):
    request = EmbedRequest(inputs=["a"], outputs=frozenset({"colbert"}), **options)
    async with serving_one(COLBERT) as (engine, _):
        with pytest.raises(InvalidField, match="applies to dense vectors only"):
            await engine.answer(request, ANYONE)


# --- composites -----------------------------------------------------------------------------------------------


def backends_of_both() -> tuple[FakeBackend, FakeBackend]:
    return FakeBackend(), FakeBackend()


async def embed_with_both(engine, *texts: str, **options: object):
    request = EmbedRequest(inputs=texts, model="both", outputs=frozenset({"dense", "sparse"}), **options)
    return await engine.answer(request, ANYONE)


async def test_each_model_of_a_composite_reads_each_text_once():
    """Each makes its kinds; the lengths are listed by model."""
    dense, sparse = backends_of_both()
    async with serving(dense, sparse, models=[DENSE_ONE, SPARSE_ONE], composites=[BOTH]) as engine:
        result = await embed_with_both(engine, "ab", "c", normalize=False)
    assert dense.texts_run() == sparse.texts_run() == ["ab", "c"]
    np.testing.assert_array_equal(result.dense["float"], [expected_row("ab"), expected_row("c")])
    assert [one.indices.tolist() for one in result.sparse] == [[97, 98], [99]]
    assert (result.model, result.sources) == ("both", {"dense": "m0", "sparse": "m1"})
    assert {name: [length.kept for length in lengths] for name, lengths in result.lengths.items()} == {
        "m0": [2, 1],
        "m1": [2, 1],
    }
    assert result.limits == {"m0": MAX_TOKENS, "m1": 32}
    assert result.usage.tokens == 2 * 3


async def test_one_model_for_two_kinds_of_a_composite_reads_each_text_once():
    """A model may be the member for two kinds."""
    backend = FakeBackend()
    three = CompositeSource("three", {"dense": "m0", "sparse": "m0", "colbert": "m0"})
    async with serving(backend, models=[M3], composites=[three]) as engine:
        request = EmbedRequest(inputs=["ab"], model="three", outputs=frozenset({"dense", "sparse", "colbert"}))
        result = await engine.answer(request, ANYONE)
    assert backend.texts_run() == ["ab"]
    assert result.usage.tokens == 2
    assert set(result.lengths) == {"m0"}


async def test_a_member_that_fails_fails_the_request_and_cancels_the_others():
    """The texts queued for the other model are removed, and both models are released."""
    dense, sparse = backends_of_both()
    async with serving(dense, sparse, models=[DENSE_ONE, SPARSE_ONE], composites=[BOTH]) as engine:
        sparse.poison = ord("!")
        close_gate(dense)
        blocker = asyncio.create_task(engine.answer(EmbedRequest(inputs=["blocker"], model="m0"), ANYONE))
        await entered(dense)
        with refuses(InferenceFailed, index=1):
            await embed_with_both(engine, "fine", "no!")
        assert queue_of(engine) == (0, 0)
        dense.gate.set()
        await blocker
        for model in ("m0", "m1"):
            await engine.answer(UnloadModel(model=model), ANYONE)  # nothing uses it
    assert dense.texts_run() == ["blocker"]


async def test_other_operations_of_a_composite_use_its_dense_model():
    """Documents and similarity are in the space of the dense member; the composite has its own space."""
    dense, sparse = backends_of_both()
    async with serving(dense, sparse, models=[DENSE_ONE, SPARSE_ONE], composites=[BOTH]) as engine:
        both = await embed_with_both(engine, "a")
        assert both.fingerprint not in {DENSE_ONE.fingerprint, SPARSE_ONE.fingerprint}
        await engine.answer(EmbedRequest(inputs=["a"], model="both"), Caller(expect_fingerprint=both.fingerprint))
        request = DocumentsRequest(documents=["ab"], chunks=ChunkOptions(max_tokens=2), model="both")
        documents = await engine.answer(request, Caller(expect_fingerprint=DENSE_ONE.fingerprint))
        assert (documents.model, documents.fingerprint) == ("both", DENSE_ONE.fingerprint)
        scores = await engine.answer(SimilarityRequest(source="a", sentences=["a"], model="both"), ANYONE)
        assert scores.scores == pytest.approx([1])


async def test_a_composite_rejects_kinds_without_a_member():
    """Even if a member's model could make them: the operator assigned the kinds."""
    async with serving(*backends_of_both(), models=[DENSE_ONE, SPARSE_ONE], composites=[BOTH]) as engine:
        with pytest.raises(ModelCannot, match="both"):
            await engine.answer(EmbedRequest(inputs=["a"], model="both", outputs=frozenset({"colbert"})), ANYONE)


async def test_dimensions_of_a_composite_are_those_of_its_dense_model():
    """The other members have none."""
    async with serving(*backends_of_both(), models=[DENSE_ONE, SPARSE_ONE], composites=[BOTH]) as engine:
        result = await embed_with_both(engine, "a", dimensions=3)
        assert result.dense["float"].shape == (1, 3)
        assert result.fingerprint.endswith(":3")


async def test_too_many_inputs_load_no_model():
    """Checks that need no model come first."""
    async with serving(FakeBackend(), model_loading="first-use", max_client_batch_size=2) as engine:
        with pytest.raises(TooManyInputs):
            await engine.answer(EmbedRequest(inputs=["a"] * 3), ANYONE)
        with pytest.raises(InvalidField):
            await engine.answer(EmbedRequest(inputs=["a"], dimensions=99), ANYONE)
        assert engine.readiness() == {"m0": "unloaded"}


TOO_LONG = "x" * (MAX_TOKENS + 1)


@pytest.mark.parametrize("kind", ["tokens", "colbert"])
async def test_token_vectors_beyond_a_response_are_rejected(kind, monkeypatch):
    """600 texts of MiniLM would be a response of 700 MB, 2,048 of BGE-M3 one of 200 GB."""
    width = WIDTH if kind == "tokens" else COLBERT_WIDTH
    monkeypatch.setattr(embedding, "MAX_SHOWN_NUMBERS", 6 * width)
    async with serving_one(M3) as (engine, backend):
        await engine.answer(EmbedRequest(inputs=["abc", "def"], outputs=frozenset({kind})), ANYONE)
        asked = len(backend.batches)
        with pytest.raises(TooManyInputs) as refused:
            await engine.answer(EmbedRequest(inputs=["abc", "defg"], outputs=frozenset({kind})), ANYONE)
        assert refused.value.field == "inputs"
        assert "at most 6 tokens" in refused.value.message
        assert len(backend.batches) == asked
        await engine.answer(EmbedRequest(inputs=["abc", "defg"], outputs=frozenset({"dense", "sparse"})), ANYONE)


async def test_token_vectors_beyond_memory_are_rejected(monkeypatch):
    """Scores are small, but their token vectors are not."""
    monkeypatch.setattr(embedding, "MAX_HELD_NUMBERS", 6 * COLBERT_WIDTH)
    async with serving_one(M3) as (engine, _):
        await engine.answer(RerankRequest(query="a", passages=["abc", "def"], method="colbert"), ANYONE)
        with refuses(TooManyInputs, field="passages"):
            await engine.answer(RerankRequest(query="a", passages=["abc", "defg"], method="colbert"), ANYONE)


# --- an input that fails, alone -------------------------------------------------------------------------------


def some(*inputs: object, **changes: object) -> EmbedRequest:
    return EmbedRequest(inputs=inputs, partial=True, normalize=False, **changes)  # type: ignore[arg-type]


async def test_an_input_that_cannot_be_embedded_fails_alone():
    """Too long, empty, or failed by the network: it has its error and zeros, and the others their vectors."""
    inputs = ["ab", TOO_LONG, "c", [], "no!", "d"]
    async with serving_one(M3) as (engine, backend):
        backend.poison = ord("!")
        result = await engine.answer(some(*inputs, outputs=ALL), ANYONE)
    assert {i: (type(error), error.field, error.index) for i, error in result.failures.items()} == {
        1: (InputTooLong, "inputs", 1),
        3: (EmptyInput, "inputs", 3),
        4: (InferenceFailed, "inputs", 4),
    }
    for i, text in enumerate(inputs):
        row, (sparse, colbert, tokens) = (
            result.dense["float"][i],
            (made[i] for made in (result.sparse, result.colbert, result.tokens)),
        )
        if i in result.failures:
            np.testing.assert_array_equal(row, np.zeros(WIDTH))
            assert (len(sparse.indices), colbert.shape, tokens.shape) == (0, (0, COLBERT_WIDTH), (0, WIDTH))
        else:
            np.testing.assert_array_equal(row, expected_row(text))
            assert len(tokens) == len(text)
            np.testing.assert_array_equal(colbert, expected_colbert(ids_of(text))[1:])


async def test_a_rejected_input_has_length_zero():
    """An input that failed in the network was run, and counts."""
    async with serving_one(spec(("dense",))) as (engine, backend):
        backend.poison = ord("!")
        result = await engine.answer(some("ab", TOO_LONG, "no!"), ANYONE)
    assert result.usage.lengths == result.lengths["m0"] == TextLengths([2, 0, 3])
    assert result.usage.tokens == 5


async def test_all_inputs_may_fail():
    """The result has the right shape, and nothing ran."""
    async with serving_one(M3) as (engine, backend):
        result = await engine.answer(some(TOO_LONG, [], precisions=("float", "ubinary")), ANYONE)
        assert not backend.batches
    assert set(result.failures) == {0, 1}
    assert result.dense["float"].shape == (2, WIDTH)
    assert result.dense["ubinary"].tolist() == [[0], [0]]
    assert result.usage.tokens == 0


async def test_without_failures_the_result_is_the_same():
    """To the last number, in as many batches, and nothing is tokenized twice."""
    encoder, backend = ByteEncoder(M3), FakeBackend()
    calls = []
    read = encoder.read
    encoder.read = lambda request, part=None: (calls.append(part), read(request, part))[1]
    async with serving(backend, models=[M3], encoder=encoder, cache_bytes=0) as engine:
        calls.clear()
        results = [
            await engine.answer(EmbedRequest(inputs=["ab", "c"], outputs=ALL, partial=partial), ANYONE)
            for partial in (True, False)
        ]
    first, second = results
    np.testing.assert_array_equal(first.dense["float"], second.dense["float"])
    assert first.failures == second.failures == {}
    assert first.usage.lengths == second.usage.lengths
    assert calls == [range(2), range(2)]


async def test_an_input_fails_if_one_model_of_a_composite_cannot_read_it():
    """The client asked for the vectors of both."""
    both = CompositeSource("both", {"dense": "m0", "sparse": "m1"})
    dense, sparse = FakeBackend(), FakeBackend()
    async with serving(dense, sparse, models=[spec(("dense",)), spec(("splade",))], composites=[both]) as engine:
        dense.poison, sparse.poison = ord("?"), ord("!")
        request = some("fine", "no!", "no?", model="both", outputs=frozenset({"dense", "sparse"}))
        result = await engine.answer(request, ANYONE)
    assert {i: error.index for i, error in result.failures.items()} == {1: 1, 2: 2}
    np.testing.assert_array_equal(result.dense["float"][0], expected_row("fine"))


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (some("a", dimensions=WIDTH + 1), InvalidField),
        (some("a", model="m0", outputs=frozenset({"sparse"})), ModelCannot),
        (some(), EmptyInput),
    ],
    ids=["dimensions", "kinds", "no inputs"],
)
async def test_an_invalid_request_fails_as_a_whole(request_, error):
    """The error is of no input."""
    async with serving_one(spec(("dense",))) as (engine, _):
        with pytest.raises(error):
            await engine.answer(request_, ANYONE)


async def test_an_unknown_prompt_fails_the_request():
    """Only the encoder knows the model's prompts."""

    class Strict(ByteEncoder):
        def read(self, request, part=None):
            if request.options.prompt_name:
                raise InvalidField("{field} is unknown", field="prompt_name")
            return super().read(request, part)

    async with serving(FakeBackend(), encoder=Strict()) as engine:
        with pytest.raises(InvalidField):
            await engine.answer(some("a", "b", text=TextOptions(prompt_name="other")), ANYONE)


async def test_a_server_that_closes_or_is_full_fails_the_request():
    """Every text would have failed."""
    backend = FakeBackend()
    async with serving(backend, max_concurrent_requests=1) as engine:
        close_gate(backend)
        asked = asyncio.create_task(engine.answer(some("a"), ANYONE))
        await entered(backend)
        with pytest.raises(Overloaded):
            await engine.answer(some("b"), ANYONE)
        await engine.close(0.0)
        with pytest.raises(Unavailable):
            await asked
        backend.gate.set()


async def test_a_partial_result_is_one_successful_report():
    """The result itself lists the failures."""
    observer = Recorder()
    async with serving(FakeBackend(), observer=observer) as engine:
        await engine.answer(some("ab", TOO_LONG), ANYONE)
    assert observer.requests == [("m0", "embed", None, 2, 2)]


async def test_of_many_inputs_each_keeps_its_place():
    """In any parts and batches."""
    inputs = [TOO_LONG if i % 7 == 3 else f"text {i}" for i in range(700)]
    backend = FakeBackend(max_batch_tokens=64)
    async with serving(backend, cache_bytes=0) as engine:
        result = await engine.answer(some(*inputs, text=TextOptions(truncate=False)), ANYONE)
    assert sorted(result.failures) == [i for i in range(700) if i % 7 == 3]
    assert all(error.index == i for i, error in result.failures.items())
    expected = [np.zeros(WIDTH) if text is TOO_LONG else expected_row(text) for text in inputs]
    np.testing.assert_array_equal(result.dense["float"], expected)
