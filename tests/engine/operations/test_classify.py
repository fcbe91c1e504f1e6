"""Texts and pairs of texts to a score for each label."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.fakes import (
    CLASSIFIER,
    CROSS_ENCODER,
    JUDGE,
    SEPARATOR,
    backend_for,
    expected_logits,
    ids_of,
    serving,
    serving_one,
    spec,
    texts_of,
)
from tests.refusals import refuses

from vectord.errors import EmptyInput, InputTooLong, ModelCannot, TooManyInputs
from vectord.schema import Caller, ClassifyRequest, TextOptions

ANYONE = Caller()
MIXED = ["one", ("left", "right"), ("a", "b"), "two", "three", ("", "x")]


def logits(one: str | tuple[str, str], labels: int = 3) -> np.ndarray:
    if isinstance(one, str):
        return expected_logits(ids_of(one), labels)
    return expected_logits(np.array([*one[0].encode(), SEPARATOR, *one[1].encode()], np.int32), labels)


async def test_texts_and_pairs_may_be_mixed():
    """The scores have the order of the inputs."""
    async with serving_one(CLASSIFIER) as (engine, backend):
        result = await engine.answer(ClassifyRequest(inputs=MIXED, raw=True), ANYONE)
    np.testing.assert_allclose(result.scores, [logits(one) for one in MIXED], rtol=1e-6)
    assert (result.labels, result.kind) == (("bad", "fair", "good"), "logit")
    (batch,) = backend.batches
    types = [set(part.tolist()) for part in np.split(batch.texts.type_ids, batch.texts.cu_seqlens[1:-1])]
    assert [1 in part for part in types] == [isinstance(one, tuple) for one in MIXED]
    assert result.usage.tokens == sum(map(len, texts_of(batch.texts)))
    assert result.usage.characters == sum(len(one) if isinstance(one, str) else sum(map(len, one)) for one in MIXED)


async def test_token_ids_have_the_scores_of_their_texts():
    """In place of texts; an empty list is refused by its index."""
    async with serving_one(CLASSIFIER) as (engine, _):
        of_texts = await engine.answer(ClassifyRequest(inputs=["one", "two"]), ANYONE)
        ids = [list(b"one"), list(b"two")]
        of_ids = await engine.answer(ClassifyRequest(inputs=[], ids=ids), ANYONE)
        with refuses(EmptyInput, field="inputs", index=2):
            await engine.answer(ClassifyRequest(inputs=[], ids=[*ids, []]), ANYONE)
    np.testing.assert_array_equal(of_ids.scores, of_texts.scores)
    assert of_ids.usage.lengths == of_texts.usage.lengths


@pytest.mark.parametrize(
    ("activation", "raw", "expected", "kind"),
    [
        ("softmax", False, lambda x: np.exp(x) / np.exp(x).sum(), "probability"),
        ("sigmoid", False, lambda x: 1 / (1 + np.exp(-x)), "probability"),
        ("identity", False, lambda x: x, "logit"),
        ("softmax", True, lambda x: x, "logit"),
        ("sigmoid", True, lambda x: x, "logit"),
    ],
)
async def test_logits_get_the_model_s_activation_unless_raw(activation, raw, expected, kind):
    """Softmax for exclusive labels, sigmoid for independent ones; `raw` returns the logits."""
    model = spec(("scores",), labels=("a", "b", "c"), score_activation=activation)
    async with serving_one(model) as (engine, _):
        result = await engine.answer(ClassifyRequest(inputs=["text"], raw=raw), ANYONE)
    np.testing.assert_allclose(result.scores, [expected(logits("text").astype(np.float64))], rtol=1e-5)
    assert result.kind == kind
    if kind == "logit":
        assert result.logits is None
    else:
        np.testing.assert_allclose(result.logits, [logits("text")], rtol=1e-6)


async def test_a_model_with_one_label_classifies():
    """A cross-encoder classifies pairs."""
    async with serving_one(CROSS_ENCODER) as (engine, _):
        result = await engine.answer(ClassifyRequest(inputs=[("q", "d")]), ANYONE)
    assert result.scores.shape == (1, 1)
    assert result.labels == ("relevant",)


async def test_a_model_without_labels_does_not_classify():
    """A language model that answers yes or no has no labels; without `model`, the first classifier answers."""
    models = [spec(("dense",)), JUDGE, CLASSIFIER]
    async with serving(*map(backend_for, models), models=models) as engine:
        for name in ("m0", "m1"):
            with pytest.raises(ModelCannot):
                await engine.answer(ClassifyRequest(inputs=["a"], model=name), ANYONE)
        assert (await engine.answer(ClassifyRequest(inputs=["a"]), ANYONE)).model == "m2"


@pytest.mark.parametrize(("inputs", "error"), [([], EmptyInput), (["a"] * 3, TooManyInputs)])
async def test_too_many_inputs_are_rejected_before_any_is_read(inputs, error):
    """The limit depends on the number of labels too."""
    async with serving_one(CLASSIFIER, max_client_batch_size=2) as (engine, backend):
        with refuses(error, field="inputs"):
            await engine.answer(ClassifyRequest(inputs=inputs), ANYONE)
    assert not backend.batches


@pytest.mark.parametrize("one", ["x" * 90, ("x" * 50, "y" * 50)], ids=["text", "pair"])
async def test_an_error_has_the_index_among_all_inputs(one):
    """Not the index among the texts, or among the pairs."""
    request = ClassifyRequest(inputs=["a", ("b", "c"), "d", one], text=TextOptions(truncate=False))
    async with serving_one(CLASSIFIER) as (engine, _):
        with refuses(InputTooLong, index=3):
            await engine.answer(request, ANYONE)
