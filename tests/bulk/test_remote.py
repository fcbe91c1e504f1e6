"""remote.py: a real server's answers, in Arrow and in JSON, are those of the same model in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.bulk.makers import job_of
from tests.real_server import running

from vectord.bulk.failures import BulkFailed, Later
from vectord.bulk.job import Numbers
from vectord.bulk.remote import Remote
from vectord.errors import ConfigError

TEXTS = ["a happy person", "", "word " * 400]
KEY = "bulk-test-key"
MAX_INPUTS = 50
LIMIT = ("--max-client-batch-size", str(MAX_INPUTS))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a model that makes all three vectors."""
    from tests.reference.reference_models import write_bge_m3

    folder = tmp_path_factory.mktemp("server")
    model = str(write_bge_m3(folder / "tiny-bge-m3"))
    with running(folder / "log", model, "--dialects", "vectord", "--api-key", KEY, "--offline", *LIMIT) as (url, _):
        yield url


@pytest.mark.parametrize("numbers", ["float32", "float16", "int8", "uint8", "ubinary"])
async def test_arrow_and_json_say_the_same(url: str, tmp_path: Path, numbers: Numbers) -> None:
    """Every kind of vector, what was cut, and which text failed."""
    job = job_of("-", tmp_path / "out.parquet", numbers=numbers, outputs=frozenset({"dense", "sparse", "colbert"}))
    async with Remote(url, KEY, job) as remote:
        facts = await remote.facts()
        arrow = await remote.embed(TEXTS)
        remote._arrow = False
        json = await remote.embed(TEXTS)
    assert facts.model == "tiny-bge-m3"
    assert facts.dimensions > 0
    assert arrow.dense is not None and json.dense is not None
    np.testing.assert_allclose(arrow.dense.astype(float), json.dense.astype(float), atol=1e-6)
    for one, other in zip(arrow.sparse or (), json.sparse or (), strict=True):
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_allclose(one.values, other.values, rtol=1e-5)
    assert [len(rows) for rows in arrow.colbert or ()] == [len(rows) for rows in json.colbert or ()]
    assert (arrow.tokens, arrow.cut, arrow.space) == (json.tokens, json.cut, json.space)


@pytest.mark.parametrize("arrow", [True, False], ids=["arrow", "json"])
async def test_a_text_that_is_too_long_fails_alone(url: str, tmp_path: Path, arrow: bool) -> None:
    """Where nothing may be cut."""
    async with Remote(url, KEY, job_of("-", tmp_path / "out.parquet", truncate=False)) as remote:
        remote._arrow = arrow
        answer = await remote.embed(["short", "word " * 20_000])
    assert list(answer.failures) == [1]
    assert "inputs" not in answer.failures[1]


async def test_a_servers_limit_of_inputs_is_kept(url: str, tmp_path: Path) -> None:
    """The requests of a job are no larger than it says."""
    async with Remote(url, KEY, job_of("-", tmp_path / "out.npy")) as remote:
        assert (await remote.facts()).max_inputs == MAX_INPUTS


async def test_what_a_server_refuses_is_told(url: str, tmp_path: Path) -> None:
    """A wrong key, a model that is not there: waiting helps neither."""
    async with Remote(url, "wrong", job_of("-", tmp_path / "out.npy")) as remote:
        with pytest.raises(BulkFailed):
            await remote.facts()
    async with Remote(url, KEY, job_of("-", tmp_path / "out.npy", model="absent")) as remote:
        with pytest.raises(BulkFailed, match="the server has no absent"):
            await remote.facts()
    with pytest.raises(ConfigError, match="--url"):
        Remote("localhost:8000", None, job_of("-", tmp_path / "out.npy"))


async def test_nobody_there_is_no_end(tmp_path: Path) -> None:
    """A server that is started again is waited for."""
    async with Remote("http://127.0.0.1:9", None, job_of("-", tmp_path / "out.npy")) as remote:
        with pytest.raises(Later):
            await remote.embed(["text"])
