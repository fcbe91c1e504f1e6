"""ColBERT rows are pooled as sentence-transformers pools them, and encoded as fastembed encodes them."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoints.kinds.test_colbert import save_multi_vector_encoder
from tests.engine.fakes import serving_one, spec
from tests.refusals import refuses

from vectord import Embedder
from vectord.checkpoints.spec import Colbert
from vectord.engine.operations.multivectors import MAX_ENCODING, encode, pool_tokens
from vectord.engine.operations.postprocess import max_sims
from vectord.errors import InvalidField, TooManyInputs
from vectord.schema import ANYONE, EmbedRequest, Float32, MultiVectorOptions, Muvera, TextOptions

# fastembed 0.9.1: Muvera(4, k_sim=2, dim_proj=2, r_reps=2, random_seed=7).process_document and .process_query of ROWS
ROWS = np.array([[0.6, 0.8, 0, 0], [0.6, 0, -0.8, 0], [0, 0, 0.8, 0.6], [0, 1, 0, 0]], np.float32)
DOCUMENT = [0.848528, 0.848528, 0.98995, 0.98995, 0.141421, 0.98995, -0.141421, -0.141421]
DOCUMENT += [0.141421, -0.98995, 0.141421, -0.424264, -0.98995, -0.98995, 0.707107, -0.707107]
QUERY = [1.697056, 1.697056, 0, 0, 0.141421, 0.98995, -0.141421, -0.141421]
QUERY += [0, 0, 0.282843, -0.848528, -0.98995, -0.98995, 0.707107, -0.707107]
TEXTS = ["many small birds sing in green old trees", "a lazy dog", "the quick brown fox jumps over a lazy dog"]
COLBERT = spec(("colbert",), colbert=Colbert(dimensions=8))


def unit_rows(count: int, width: int = 16, seed: int = 0) -> Float32:
    """Around a common direction, as the token vectors of one text are."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(count, width)) + generator.normal(size=width)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def in_order(rows: Float32) -> Float32:
    return rows[np.argsort(rows @ np.cos(np.arange(rows.shape[1])))]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("protected", [0, 1, 3])
@pytest.mark.parametrize("factor", [1.5, 2.0, 8.0])
def test_pooled_rows_are_those_of_sentence_transformers(factor: float, protected: int, normalize: bool) -> None:
    """For texts of any length, in another order."""
    import torch
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

    library = HierarchicalTokenPooling(factor, num_protected_tokens=protected, normalize_embeddings=normalize)
    for count in (0, 1, 2, 3, 7, 60, 300):
        rows = unit_rows(count, seed=count)
        (expected,) = library.pool([torch.from_numpy(rows)])
        pooled = pool_tokens(rows, factor, protected, normalize=normalize)
        np.testing.assert_allclose(in_order(pooled), in_order(expected.numpy()), atol=1e-5)


def test_equal_rows_become_one() -> None:
    """Where distances are equal there are fewer clusters, as in scipy; a cluster has the place of its first row."""
    rows = np.repeat(np.eye(4, dtype=np.float32)[[2, 0]], 5, axis=0)
    np.testing.assert_array_equal(pool_tokens(rows, 2, 0), np.eye(4)[[2, 0]])


def test_encodings_are_those_of_fastembed() -> None:
    """An index may hold vectors of both. A text without rows has zeros."""
    muvera = Muvera(k_sim=2, dim_proj=2, r_reps=2, seed=7)
    np.testing.assert_allclose(encode(ROWS, muvera, query=False), DOCUMENT, atol=1e-6)
    np.testing.assert_allclose(encode(ROWS, muvera, query=True), QUERY, atol=1e-6)
    assert not encode(ROWS[:0], muvera, query=False).any()


def test_encodings_find_the_texts_that_maxsim_finds() -> None:
    """A query of rows near those of one of 40 texts."""
    documents = [unit_rows(40, 64, seed) for seed in range(40)]
    encodings = np.stack([encode(rows, Muvera(), query=False) for rows in documents])
    for place, rows in enumerate(documents):
        query = rows[::4] + unit_rows(10, 64, 100 + place) / 2
        query /= np.linalg.norm(query, axis=1, keepdims=True)
        assert max_sims(query, documents).argmax() == place
        assert (encodings @ encode(query, Muvera(), query=True)).argmax() == place


@pytest.mark.parametrize(
    ("options", "text", "field"),
    [
        ({"dimensions": 9}, {}, "colbert.dimensions"),
        ({"pool_factor": 2.0}, {"kind": "query"}, "colbert.pool_factor"),
        ({"rows": False}, {}, "colbert.rows"),
        ({"muvera": Muvera(dim_proj=9)}, {}, "colbert.muvera.dim_proj"),
        ({"dimensions": 4, "muvera": Muvera(dim_proj=5)}, {}, "colbert.muvera.dim_proj"),
        ({"muvera": Muvera(k_sim=10, dim_proj=8, r_reps=MAX_ENCODING // 8192 + 1)}, {}, "colbert.muvera"),
    ],
    ids=str,
)
async def test_options_that_the_vectors_cannot_have_are_refused(
    options: dict[str, Any], text: dict[str, Any], field: str
) -> None:
    """Before anything is computed, with the field's name."""
    request = EmbedRequest(
        inputs=["a"], outputs=frozenset({"colbert"}), colbert=MultiVectorOptions(**options), text=TextOptions(**text)
    )
    async with serving_one(COLBERT) as (engine, backend):
        with refuses(InvalidField, field=field):
            await engine.answer(request, ANYONE)
        assert not backend.batches


async def test_encodings_count_against_the_size_of_a_response() -> None:
    """1,638 inputs with the usual values."""
    request = EmbedRequest(
        inputs=["a"] * 1639,
        outputs=frozenset({"colbert"}),
        colbert=MultiVectorOptions(muvera=Muvera(dim_proj=8, r_reps=40)),
    )
    async with serving_one(COLBERT, max_client_batch_size=2000) as (engine, _):
        with refuses(TooManyInputs, field="inputs", limit=1638, given=1639):
            await engine.answer(request, ANYONE)


async def test_a_long_conversion_lets_others_run_and_ends_with_its_request() -> None:
    """200 texts take seconds of the one thread; another request takes its turn between two of them."""
    slow = MultiVectorOptions(muvera=Muvera(k_sim=10, r_reps=64, dim_proj=1))
    requests = [
        EmbedRequest(inputs=inputs, outputs=frozenset({"colbert"}), colbert=options)
        for inputs, options in ((["fox"] * 200, slow), (["bird"], MultiVectorOptions(pool_factor=2.0)))
    ]
    async with serving_one(spec(("colbert",), colbert=Colbert(dimensions=4))) as (engine, _):
        long = asyncio.create_task(engine.answer(requests[0], ANYONE))
        await asyncio.sleep(0.3)
        await asyncio.wait_for(engine.answer(requests[1], ANYONE), 1)
        assert not long.done()
        long.cancel()
        await asyncio.wait([long])
        await asyncio.wait_for(engine.answer(requests[1], ANYONE), 1)


def test_a_model_that_pools_pools_the_rows_of_the_library_in_every_form(tmp_path: Path) -> None:
    """Its own pooling, then that of the call; queries pass unchanged, and scores are MaxSim of these rows.

    The library's rows are pooled here: rows that are nearly equal form other clusters after the last digit changes.
    """
    from sentence_transformers import MultiVectorEncoder

    saved = save_multi_vector_encoder(tmp_path, pooling={"pool_factor": 1.5})
    plain = Path(shutil.copytree(saved, tmp_path / "plain"))
    modules = json.loads((plain / "modules.json").read_text())
    (plain / "modules.json").write_text(json.dumps(modules[:-1]))
    library = MultiVectorEncoder(str(plain), device="cpu")
    with Embedder(str(plain), dtype="float32", offline=True) as embedder:
        documents = embedder.embed(TEXTS, outputs="colbert").colbert
        queries = embedder.embed(TEXTS, outputs="colbert", kind="query").colbert
    for made, expected in [(documents, library.encode_document(TEXTS)), (queries, library.encode_query(TEXTS))]:
        for one, other in zip(made, expected, strict=True):
            np.testing.assert_allclose(one, other.numpy(), atol=1e-5)
    pooled = [pool_tokens(one, 1.5, 1) for one in documents]
    with Embedder(str(saved), dtype="float32", offline=True) as embedder:

        def rows(**options: Any) -> list[Float32]:
            return embedder.embed(TEXTS, outputs="colbert", **options).colbert

        for made, expected in [
            (rows(), pooled),
            (rows(colbert={"pool_factor": 2}), [pool_tokens(one, 2.0, 1) for one in pooled]),
            (rows(kind="query"), queries),
        ]:
            for one, other in zip(made, expected, strict=True):
                np.testing.assert_allclose(one, other, atol=1e-6)
        small = rows(colbert={"dimensions": 8, "precision": "int8"})
        assert [one.dtype for one in small] == [np.int8] * 3
        cut = [one[:, :8] / np.linalg.norm(one[:, :8], axis=1, keepdims=True) for one in rows()]
        for one, other in zip(small, cut, strict=True):
            np.testing.assert_allclose(one, other * 127 * np.sqrt(8) / 6, atol=0.51)
        found = embedder.embed(TEXTS, outputs="colbert", colbert={"muvera": {"r_reps": 3}, "rows": False})
        assert (found.muvera.shape, found.colbert) == ((3, 3 * 32 * 16), None)
        scores = [one.score for one in embedder.rerank(TEXTS[0], TEXTS)]
        np.testing.assert_allclose(sorted(scores), sorted(max_sims(queries[0], pooled)), rtol=1e-5)
        with pytest.raises(InvalidField, match="colbert"):
            rows(colbert={"precision": "int4"})
