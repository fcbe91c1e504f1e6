"""remote.py: replies are read bit by bit, and a real server answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
from tests.bulk.makers import job_of, read_output, run_job, write_input
from tests.products.results import route_of
from tests.real_server import running

from vectord import AsyncClient
from vectord.bulk.embedder import EngineEmbedder, precision_of
from vectord.bulk.job import BulkFailed, NumberType, RetryLater, TextsRefused
from vectord.bulk.remote import RemoteEmbedder, read_reply
from vectord.bulk.rows import TextVectors
from vectord.client.requests import HttpReply
from vectord.compose import running_engine
from vectord.config import Config, ModelConfig
from vectord.errors import ConfigError, InputTooLong
from vectord.products.common.dialect import Incoming
from vectord.products.vectord import DIALECT
from vectord.schema import ChunkOptions, EmbedResult, Span, Sparse, TextLength, TextLengths, Usage
from vectord.server.results import result_headers

TEXTS = ["a happy person", "", "word " * 400]
KINDS = frozenset({"dense", "sparse", "colbert"})
KEY = "bulk-test-key"
MAX_INPUTS = 50
LIMIT = ("--max-client-batch-size", str(MAX_INPUTS))
BODY = (
    b'{"inputs": ["a", "b", "c"], "encoding": "base64", "outputs": ["dense", "sparse", "colbert"], "precisions": ["%s"]'
)
RANGES = {"float": (np.float32, -1, 1), "int8": (np.int8, -127, 127), "uint8": (np.uint8, 0, 255)}


def reply_to(result: EmbedResult, precision: str) -> HttpReply:
    """`result` as the server renders it for a bulk client."""
    body = BODY % precision.encode() + b', "partial_results": true}'
    rendered = route_of(DIALECT, "/vectord/embed").parse(Incoming(body=body)).render(result)
    return HttpReply(rendered.status, httpx.Headers({**rendered.headers, **result_headers(result)}), rendered.body)


@pytest.mark.parametrize("numbers", ["float32", "float16", "int8", "uint8", "ubinary"])
def test_a_reply_contains_the_vectors_of_the_result(tmp_path: Path, numbers: NumberType) -> None:
    """Vectors of every kind, counts and failures, bit by bit."""
    job = job_of("-", tmp_path / "out.parquet", numbers=numbers, outputs=KINDS)
    precision = precision_of(job)
    random = np.random.default_rng(0)
    dtype, low, high = RANGES.get(precision, RANGES["uint8"])
    lengths = TextLengths.of([TextLength(3, 3), TextLength(9, 5), TextLength(1, 1)])
    result = EmbedResult(
        model="m",
        fingerprint="f00d",
        usage=Usage(lengths=lengths, characters=20),
        dense={precision: random.uniform(low, high, (3, 8)).astype(dtype)},
        sparse=[Sparse(np.arange(n, dtype=np.int32), random.random(n, np.float32)) for n in (2, 3, 0)],
        colbert=[random.random((n, 4), np.float32) for n in (3, 5, 1)],
        lengths={"m": lengths},
        failures={2: InputTooLong("{field} has {given} tokens.", field="inputs", index=2, limit=5, given=9)},
    )
    found = read_reply(reply_to(result, precision), job, 3)
    valid = slice(0, 2)  # the rows of failed texts have no meaning
    assert found.dense is not None
    np.testing.assert_array_equal(found.dense[valid], result.dense[precision][valid])
    for one, other in zip((found.sparse or ())[valid], (result.sparse or ())[valid], strict=True):
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.values, other.values)
    for rows, others in zip((found.colbert or ())[valid], (result.colbert or ())[valid], strict=True):
        np.testing.assert_array_equal(rows, others)
    assert (found.tokens, found.cut, found.space) == (9, 1, "f00d")
    assert found.failures == {2: "the input has 9 tokens."}


def test_a_reply_without_any_vector_has_its_reasons(tmp_path: Path) -> None:
    """No dense vectors: their width is not known from it."""
    result = EmbedResult(
        model="m",
        fingerprint="f00d",
        usage=Usage(lengths=TextLengths([9]), characters=20),
        dense={"float": np.zeros((1, 8), np.float32)},
        lengths={"m": TextLengths([9])},
        failures={0: InputTooLong("{field} has {given} tokens.", field="inputs", index=0, limit=5, given=9)},
    )
    found = read_reply(reply_to(result, "float"), job_of("-", tmp_path / "out.parquet"), 1)
    assert (found.dense, found.failures) == (None, {0: "the input has 9 tokens."})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose model makes all three kinds of vectors."""
    from tests.reference.reference_models import write_bge_m3

    folder = tmp_path_factory.mktemp("server")
    model = str(write_bge_m3(folder / "tiny-bge-m3"))
    with running(folder / "log", model, "--dialects", "vectord", "--api-key", KEY, "--offline", *LIMIT) as (url, _):
        yield url


async def test_a_server_answers_with_all_kinds_of_vectors(url: str, tmp_path: Path) -> None:
    """Every text has vectors of the model's width, and one text is truncated."""
    job = job_of("-", tmp_path / "out.parquet", outputs=KINDS)
    async with RemoteEmbedder(url, KEY, job) as remote:
        facts, found = await remote.facts(), await remote.embed(TEXTS)
    assert facts.model == "tiny-bge-m3"
    assert facts.max_inputs == MAX_INPUTS
    assert cast(np.ndarray, found.dense).shape == (3, facts.dimensions)
    assert [len(one.indices) for one in found.sparse or ()][1] == 0
    assert len(found.colbert or ()) == 3
    assert (found.failures, found.space) == ({}, facts.fingerprint)
    assert (found.cut, found.tokens > 200) == (1, True)


@pytest.mark.parametrize("out", ["out.parquet", "out.jsonl"])
async def test_small_colbert_vectors_and_their_encodings_are_those_of_the_client(
    url: str, tmp_path: Path, out: str
) -> None:
    """Pooled, in int8, in columns of their own."""
    texts = ["a happy person in a happy town", "", "birds sing in the old trees near the water"]
    source = write_input(tmp_path / "in.csv", [{"text": text} for text in texts])
    options: dict[str, Any] = {"outputs": frozenset({"colbert", "muvera"}), "colbert_numbers": "int8"}
    options |= {"pool_factor": 2.0, "muvera": "2,4,3"}
    async with RemoteEmbedder(url, KEY, job_of(source, tmp_path / out, **options)) as remote:
        await run_job(source, tmp_path / out, cast(Any, remote), **options)
    rows = read_output(tmp_path / out)
    form: Any = {"precision": "int8", "pool_factor": 2.0, "muvera": {"k_sim": 2, "dim_proj": 4, "r_reps": 3}}
    async with AsyncClient(url, api_key=KEY) as client:
        found = await client.embed_all(texts, outputs=["colbert"], colbert=form)
        alone = await client.embed_all(texts, outputs=["colbert"], colbert={**form, "rows": False})
        whole = await client.embed_all(texts, outputs=["colbert"])
    for row, small, encoding, large in zip(rows, found.colbert, found.muvera, whole.colbert, strict=True):
        assert (small.dtype, len(small)) == (np.int8, 1 + max((len(large) - 1) // 2, min(len(large) - 1, 1)))
        np.testing.assert_array_equal(row["colbert"], small)
        np.testing.assert_allclose(row["muvera"], encoding, rtol=1e-6)
    np.testing.assert_array_equal(alone.muvera, found.muvera)
    assert (alone.colbert, found.muvera.shape) == (None, (3, 4 * 4 * 3))


async def test_a_server_and_this_process_split_texts_alike(url: str, tmp_path: Path) -> None:
    """By the model's tokens. More chunks than a request may have are refused without the place in the request."""
    from tests.reference.reference_models import write_bge_m3

    options = {"chunk": ChunkOptions(max_tokens=20, overlap_tokens=5), "outputs": KINDS}
    job = job_of("-", tmp_path / "out.parquet", **options)
    config = Config(model=ModelConfig(models=(str(write_bge_m3(tmp_path / "tiny-bge-m3")),), offline=True))
    async with RemoteEmbedder(url, KEY, job) as remote, running_engine(config) as engine:
        texts = [*TEXTS[:2], "word " * 40]
        found = await remote.chunk(texts)
        assert found == await EngineEmbedder(engine, job).chunk(texts)
        with pytest.raises(TextsRefused, match=r"^the input may hold at most 50 chunks"):
            await remote.chunk(["word " * 2000])
    assert found[:2] == [[Span(0, 14)], [Span(0, 0)]]
    assert (found[2][0].start, found[2][-1].stop, len(found[2]) > 2) == (0, len(texts[2]), True)


async def test_a_text_that_is_too_long_fails_alone(url: str, tmp_path: Path) -> None:
    """Without truncation. The reason does not name the place in the request."""
    async with RemoteEmbedder(url, KEY, job_of("-", tmp_path / "out.parquet", truncate=False)) as remote:
        found: TextVectors = await remote.embed(["short", "word " * 20_000])
    assert list(found.failures) == [1]
    assert "inputs" not in found.failures[1]


async def test_errors_that_a_retry_cannot_fix_fail_the_job(url: str, tmp_path: Path) -> None:
    """A wrong key, an unknown model, an invalid URL."""
    async with RemoteEmbedder(url, "wrong", job_of("-", tmp_path / "out.npy")) as remote:
        with pytest.raises(BulkFailed):
            await remote.facts()
    async with RemoteEmbedder(url, KEY, job_of("-", tmp_path / "out.npy", model="absent")) as remote:
        with pytest.raises(BulkFailed, match="--model: absent is none of the models of the server: tiny-bge-m3"):
            await remote.facts()
    with pytest.raises(ConfigError, match="--url"):
        RemoteEmbedder("localhost:8000", None, job_of("-", tmp_path / "out.npy"))


async def test_a_missing_server_can_be_retried(tmp_path: Path) -> None:
    """It may be restarting."""
    async with RemoteEmbedder("http://127.0.0.1:9", None, job_of("-", tmp_path / "out.npy")) as remote:
        with pytest.raises(RetryLater):
            await remote.embed(["text"])
