"""vectord.Embedder: the engine in a Python program, shared by threads and event loops."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models import MAX_TOKENS, WIDTH, write_bert

from vectord import Embedder
from vectord.engine.embedder import TEXTS_PER_REQUEST
from vectord.engine.queue.admission import Speed
from vectord.errors import InputTooLong, ModelUnavailable, ShuttingDown

TEXTS = ["hello world", "a b c", "the quick brown fox " * 300]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("model") / "bert")


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[Embedder]:
    with Embedder(str(folder), dtype="float32", offline=True) as made:
        yield made


@pytest.fixture(scope="module")
def library(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def test_the_import_needs_neither_server_nor_engine() -> None:
    """`from vectord import Embedder` costs a program no time until it makes one."""
    code = "from vectord import Embedder; import sys; print(*sorted(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"starlette", "uvicorn", "httpx", "openvino", "tokenizers", "vectord.engine.engine"} & set(
        output.split()
    )


def test_vectors_of_lists_and_single_texts(embedder: Embedder) -> None:
    """Rows have length 1 and keep the order, across requests too; a single text is a vector."""
    many = [f"text {i}" for i in range(2 * TEXTS_PER_REQUEST + 3)]
    vectors = embedder.embed(many)
    assert (vectors.shape, vectors.dtype) == ((len(many), WIDTH), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    for i in (0, TEXTS_PER_REQUEST - 1, TEXTS_PER_REQUEST, len(many) - 1):
        np.testing.assert_allclose(embedder.embed(many[i]), vectors[i], atol=1e-5)
    assert embedder.embed([]).shape == (0, 0)


def test_no_call_is_too_large(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls wait for a slow device: the limits that protect a server do not apply."""
    monkeypatch.setattr(Speed, "tokens_per_s", 1.0)
    texts = ["hello world"] * 2100
    assert len(embedder.embed(texts)) == len(embedder.rerank("hello", texts)) == len(texts)


def test_several_outputs(embedder: Embedder) -> None:
    """One pass gives all kinds; long texts are named."""
    found = embedder.embed(TEXTS, outputs=("dense", "tokens"))
    assert found.dense.shape == (3, WIDTH)
    assert [len(rows) for rows in found.tokens][2] == MAX_TOKENS
    assert (found.sparse, found.colbert, found.truncated) == (None, None, [2])
    assert len(found.fingerprint) == 16


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_embeddings": True},
        {"truncate_dim": 8},
        {"truncate_dim": 8, "normalize_embeddings": True},
        {"prompt": "query: "},
        {"precision": "ubinary"},
        {"precision": "binary"},
    ],
    ids=str,
)
def test_encode_equals_sentence_transformers(options: dict[str, Any], embedder: Embedder, library: Any) -> None:
    """The same arguments give the same array, for a list and for a text."""
    for sentences in (TEXTS, TEXTS[0]):
        want = library.encode(sentences, **options)
        got = embedder.encode(sentences, **options)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_encode_applies_the_models_own_normalize(folder: Path, library: Any, tmp_path: Path) -> None:
    """As the library does without normalize_embeddings; a cut vector stays as it is then."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize

    model = SentenceTransformer(modules=[*library, Normalize()], device="cpu")
    model.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    with Embedder(str(tmp_path / "saved"), dtype="float32") as made:
        for options in ({}, {"truncate_dim": 8}):
            np.testing.assert_allclose(made.encode(TEXTS, **options), model.encode(TEXTS, **options), atol=1e-5)


def test_encode_to_tensors(embedder: Embedder) -> None:
    import torch

    assert torch.is_tensor(embedder.encode(TEXTS, convert_to_tensor=True))
    assert all(map(torch.is_tensor, embedder.encode(TEXTS, convert_to_numpy=False)))


@pytest.mark.parametrize("option", [{"precision": "int8"}, {"output_value": "token_embeddings"}], ids=str)
def test_encode_refuses_what_it_cannot_equal(option: dict[str, Any], embedder: Embedder) -> None:
    with pytest.raises(ValueError, match="encode supports"):
        embedder.encode("a", **option)


def test_rerank(embedder: Embedder) -> None:
    """Best first; the same text is the best."""
    ranked = embedder.rerank("hello world", TEXTS, top_k=2)
    assert (len(ranked), ranked[0].document) == (2, "hello world")
    assert ranked[0].score > ranked[1].score


def test_threads_share_one_embedder(embedder: Embedder) -> None:
    """Every thread gets the vectors of its own texts."""
    texts = [[f"thread {i} text {j}" for j in range(20)] for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for own, vectors in zip(texts, pool.map(embedder.embed, texts), strict=True):
            np.testing.assert_allclose(vectors, embedder.embed(own), atol=1e-5)


async def test_calls_on_an_event_loop(embedder: Embedder) -> None:
    """The twins answer as the blocking calls, and the loop continues meanwhile."""
    vectors, ranked = await asyncio.gather(embedder.aembed(TEXTS), embedder.arerank("hello world", TEXTS))
    np.testing.assert_allclose(vectors, embedder.embed(TEXTS), atol=1e-5)
    assert ranked == embedder.rerank("hello world", TEXTS)


def test_an_error_has_the_index_in_the_callers_list(embedder: Embedder) -> None:
    """Not in the request that was made of a part of it."""
    texts = ["short"] * TEXTS_PER_REQUEST + ["word " * 400]
    with pytest.raises(InputTooLong) as caught:
        embedder.embed(texts, truncate=False)
    assert caught.value.index == TEXTS_PER_REQUEST
    assert str(caught.value).startswith(f"`texts[{TEXTS_PER_REQUEST}]` must have at most")


def test_a_progress_bar_on_request(embedder: Embedder, capsys: pytest.CaptureFixture[str]) -> None:
    embedder.embed(TEXTS, show_progress=True)
    assert "100%" in capsys.readouterr().err


def test_a_closed_embedder_refuses(folder: Path) -> None:
    """Closing twice is harmless."""
    made = Embedder(str(folder), backend="fake")
    made.close()
    made.close()
    with pytest.raises(ShuttingDown, match="closed"):
        made.embed("a")


def test_a_model_that_cannot_be_loaded(folder: Path, tmp_path: Path) -> None:
    """The constructor raises the reason, before or while the model loads."""
    with pytest.raises(ModelUnavailable, match="not a folder"):
        Embedder(str(tmp_path / "missing"))
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelUnavailable, match=r"could not be loaded: .*tokenizer"):
        Embedder(str(tmp_path))


def test_a_program_may_end_without_closing(folder: Path) -> None:
    """The models are unloaded at the end of the program, without a message."""
    made = f"Embedder({str(folder)!r}, backend='fake', pooling='mean')"
    code = f"from vectord import Embedder; e = {made}; print(e.embed('a').shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.strip(), done.stderr) == (f"({WIDTH},)", "")


def test_the_programs_of_the_page_run() -> None:
    """One after another, with the default model."""
    page = (Path(__file__).parents[2] / "docs/library.md").read_text("utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    names["embedder"].close()
    assert names["best"] == names["ranking"][0].document == "The bridge was closed by noon."
    assert (names["vectors"].shape, names["query"].shape, names["array"].shape) == ((2, 384), (384,), (2, 128))
