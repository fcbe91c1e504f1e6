"""ray.py without a cluster: one replica, and the vectors of a batch. tests/cluster/ray has the clusters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from vectord import Embedder
from vectord.cluster.ray import Embed, NotReady, Replica, application
from vectord.config import Config, DeviceConfig
from vectord.errors import ConfigError, VectordError

TEXTS = ["one", "two words", ""]


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> Replica:
    monkeypatch.setattr("vectord.observability.logs.configure", lambda telemetry: None)
    return Replica(replace(Config(), device=replace(DeviceConfig(), backend="fake", num_threads=1)))


async def test_a_replica_answers_after_its_start(replica: Replica) -> None:
    """Ray sends requests when the app has started: the models are loaded, and the health check passes."""
    app: Any = replica.__serve_build_asgi_app__()
    async with app.router.lifespan_context(app):
        await replica.check_health()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://replica") as client:
            answer = await client.post("/v1/embeddings", json={"input": ["one", "two"]})
        assert len(answer.json()["data"]) == 2


async def test_a_replica_without_a_model_does_not_start(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray reports it to the operator and sends no requests."""

    def fail(*given: object) -> None:
        raise OSError("no such device")

    monkeypatch.setattr("vectord.compute.backends.fake.load", fail)
    app: Any = replica.__serve_build_asgi_app__()
    with pytest.raises(NotReady, match="no model"):
        async with app.router.lifespan_context(app):
            pass
    with pytest.raises(NotReady):
        await replica.check_health()


def test_replicas_store_no_batches(tmp_path: Path) -> None:
    """A client's next request may reach another replica, which does not have its files."""
    with pytest.raises(ConfigError, match="batch_dir: files and batches need a single process"):
        application({"batch_dir": str(tmp_path)})


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    with Embedder(backend="fake", threads=1) as found:
        yield found


def test_a_batch_has_the_columns_of_the_options(embedder: Embedder) -> None:
    """With the prefix, after the columns that it had. An empty batch is unchanged."""
    embed = Embed(column="body", prefix="v_", options={"normalize": False}, backend="fake", threads=1)
    table = embed(pa.table({"body": TEXTS, "id": [1, 2, 3]}))
    assert table.schema.names == ["body", "id", "v_dense"]
    dense = table["v_dense"].combine_chunks()
    np.testing.assert_allclose(
        dense.flatten().to_numpy().reshape(3, -1), embedder.embed(TEXTS, normalize=False), rtol=1e-5
    )
    empty = pa.table({"body": pa.array([], pa.string())})
    assert embed(empty).equals(empty)


def test_a_batch_that_is_no_table_is_refused() -> None:
    """With the argument that is missing."""
    with pytest.raises(TypeError, match='batch_format="pyarrow"'):
        Embed(backend="fake", threads=1)({"text": np.array(TEXTS)})


def test_a_row_without_a_text_is_named() -> None:
    """Ray then fails the dataset with this message."""
    with pytest.raises((VectordError, TypeError), match=r"texts\[1\]"):
        Embed(backend="fake", threads=1)(pa.table({"text": ["one", None]}))
