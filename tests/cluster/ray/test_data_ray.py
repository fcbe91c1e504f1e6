"""A dataset on several nodes: every row has its vector once, also when a node dies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.cluster.ray.conftest import cluster

from vectord import Embedder

FILES, ROWS_A_FILE = 4, 500


def test_no_row_is_lost_when_a_node_dies(tmp_path: Path) -> None:
    """Ray makes the rows of a lost node again; the vectors are those of one process."""
    texts = [f"number {i} " + "word " * (i % 20) for i in range(FILES * ROWS_A_FILE)]
    (tmp_path / "in").mkdir()
    for index in range(FILES):
        rows = slice(index * ROWS_A_FILE, (index + 1) * ROWS_A_FILE)
        table = pa.table({"id": range(len(texts))[rows], "text": texts[rows]})
        pq.write_table(table, tmp_path / "in" / f"{index}.parquet")
    with cluster(2, {}) as (made, nodes):
        import ray.data

        from vectord.cluster.ray import Embed

        found = ray.data.read_parquet(str(tmp_path / "in"), override_num_blocks=FILES).map_batches(
            Embed,
            fn_constructor_kwargs={"backend": "fake"},
            batch_format="pyarrow",
            batch_size=100,
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=2),
        )
        batches = iter(found.iter_batches(batch_format="pyarrow", batch_size=100))
        tables = [next(batches)]
        made.remove_node(nodes.pop(), allow_graceful=False)
        tables += batches
    whole = pa.concat_tables(tables).sort_by("id")
    assert whole["id"].to_pylist() == list(range(len(texts)))
    with Embedder(backend="fake", threads=1) as embedder:
        expected = embedder.embed(texts)
    dense = whole["dense"].combine_chunks()
    np.testing.assert_allclose(dense.flatten().to_numpy().reshape(len(texts), -1), expected, rtol=1e-5, atol=1e-7)
