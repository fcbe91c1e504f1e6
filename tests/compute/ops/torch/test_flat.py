"""The flat form: a batch has the same results in every shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.compute.ops import test_conformance as conformance
from tests.compute.ops.torch.kernel import written_out
from tests.models import pack_texts, random_texts
from torch import Tensor

from vectord.compute.ops.base import PackedTexts, Tokens
from vectord.compute.ops.torch import TorchOps, pack
from vectord.compute.ops.torch.flat import PIECE_ROWS, FlatShape, NotFlat, fill, shape_of, tokens_of

CPU = torch.device("cpu")
OPS = TorchOps(CPU, torch.float32, written_out)
LENGTHS = (9, 1, 30, 2, 17, 3 * PIECE_ROWS + 5)
FAR_APART = np.array([[200, 230], [3, 9], [9, 30], [31, 32]], np.int32)  # out of order, with gaps, two adjacent
# Scores by distance, capped scores, and experts, whose numbers of rows differ from batch to batch.
_GROUPED_ONLY = ("mixture", "capped scores")
GROUPED = {name: each for name, each in conformance.PROGRAMS.items() if any(word in name for word in _GROUPED_ONLY)}
GROUPED |= conformance.BY_DISTANCE
FORMS = {name: program for name, program in conformance.PROGRAMS.items() if name not in GROUPED}


def flat(texts: PackedTexts, shape: FlatShape) -> Tokens[Tensor]:
    numbers = np.full(shape.size, -1, np.int32)  # any former content
    fill(texts, shape, numbers)
    return tokens_of(torch.from_numpy(numbers), shape)


def exact(texts: PackedTexts) -> FlatShape:
    shape = shape_of(texts)
    assert shape is not None
    return shape


def wider(shape: FlatShape) -> FlatShape:
    return FlatShape(
        tokens=shape.tokens + 90, texts=shape.texts + 7, spans=shape.spans + 11, longest=shape.longest + 50
    )


@pytest.mark.parametrize("program", FORMS)
def test_ops_equal_the_grouped_form(program: str) -> None:
    """Every op with a flat form gives the same rows; rows of padding come after them."""
    for stretch in [lambda shape: shape, wider]:
        for name, lengths in conformance.LENGTHS.items():
            texts = conformance.typed(lengths)
            shape = stretch(exact(texts))
            with torch.inference_mode():
                want = FORMS[program](TorchOps(CPU, torch.float32), pack(texts, CPU))
                got = FORMS[program](OPS, flat(texts, shape))
            assert len(got) in {shape.tokens, shape.spans}
            torch.testing.assert_close(got[: len(want)], want, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize("program", ["first", "last", "mean", "max", "pooled_linear"])
def test_spans_may_lie_anywhere_without_overlap(program: str) -> None:
    """One row a span, in their order."""
    texts = conformance.typed(LENGTHS, spans=FAR_APART)
    want = FORMS[program](TorchOps(CPU, torch.float32), pack(texts, CPU))
    got = FORMS[program](OPS, flat(texts, wider(exact(texts))))
    torch.testing.assert_close(got[: len(want)], want, atol=1e-5, rtol=1e-5)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 90) | st.just(2 * PIECE_ROWS), min_size=1, max_size=8),
    more=st.tuples(*[st.integers(0, 200)] * 4),
    seed=st.integers(0, 9),
)
def test_any_batch_in_any_shape_equals_its_texts(lengths: list[int], more: Sequence[int], seed: int) -> None:
    """However large the padding, a text has the vector that it has alone."""
    texts = random_texts(lengths, vocab_size=conformance.VOCABULARY, seed=seed)
    shape = exact(pack_texts(*texts))
    shape = FlatShape(
        tokens=shape.tokens + more[0],
        texts=shape.texts + more[1],
        spans=shape.spans + more[2],
        longest=shape.longest + more[3],
    )
    got = conformance.attend_and_pool(OPS, flat(pack_texts(*texts), shape))[: len(texts)]
    want = [conformance.attend_and_pool(OPS, flat(pack_texts(text), exact(pack_texts(text)))) for text in texts]
    torch.testing.assert_close(got, torch.cat(want), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("poisoned", range(4))
@pytest.mark.parametrize("op", ["mean", "max"])
def test_a_nan_affects_its_own_text_only(op: str, poisoned: int) -> None:
    """Not through pooling either."""
    texts = pack_texts(*random_texts((3, 20, 70, 17)))
    x = torch.ones(110 + 90, 4)
    x[110:] = torch.nan  # padding's rows are undefined
    x[int(texts.cu_seqlens[poisoned])] = torch.nan
    rows = getattr(OPS, op)(x, flat(texts, wider(exact(texts))))[:4]
    assert [bool(row.isfinite().all()) for row in rows] == [text != poisoned for text in range(4)]


@pytest.mark.parametrize(
    "options",
    [
        {"parents": np.array([-1, 0, -1], np.int32)},
        {"keys": np.array([9, 1, 12], np.int32)},
        {"spans": np.array([[0, 9], [8, 10]], np.int32)},
    ],
    ids=["parents", "keys", "overlapping spans"],
)
def test_batches_without_a_flat_form_are_detected(options: dict[str, Any]) -> None:
    """The backend runs them by groups."""
    assert shape_of(pack_texts(*random_texts((9, 1, 30)), **options)) is None


@pytest.mark.parametrize("program", sorted(GROUPED))
def test_these_programs_have_no_flat_form(program: str) -> None:
    """Nor has any other that the kernel does not support: a network is tried once, at load."""
    texts = conformance.typed((5, 3))
    with pytest.raises(NotFlat):
        GROUPED[program](OPS, flat(texts, exact(texts)))


def test_a_shape_has_room_for_the_adapters_of_rows() -> None:
    """It also holds batches without any; a shape without room holds no batch with one."""
    texts = pack_texts(*random_texts((3, 20)), adapters=np.array([2, 0], np.int32))
    shape = replace(wider(exact(texts)), adapters=True)
    adapters = flat(texts, shape).adapters
    assert adapters is not None and adapters.tolist() == [2, 2, 2] + [0] * (shape.tokens - 3)
    plain = replace(texts, adapters=None)
    assert flat(plain, exact(plain)).adapters is None
    unused = flat(plain, shape).adapters
    assert unused is not None and not unused.any()
    assert shape.holds(exact(plain)) and not replace(shape, adapters=False).holds(exact(texts))
