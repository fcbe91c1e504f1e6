"""A job over several nodes: no row is lost or duplicated when a node dies or the driver stops."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cluster.ray.conftest import cluster

from vectord.bulk.job import BulkFailed
from vectord.cluster.bulk import COMMAND, ClusterJob, cluster_job, embed
from vectord.cluster.ray.cluster import read_words
from vectord.errors import ConfigError

FILES, ROWS_A_FILE, PART_ROWS = 3, 2000, 500
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Any, list[Any]]]:
    with cluster(2, {}) as made:
        yield made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files of different texts, whose row groups do not align with parts."""
    folder = tmp_path / "in"
    folder.mkdir()
    for index in range(FILES):
        ids = range(index * ROWS_A_FILE, (index + 1) * ROWS_A_FILE)
        table = pa.table({"id": list(ids), "text": [f"number {i} " + "word " * (i % 20) for i in ids]})
        pq.write_table(table, folder / f"{index}.parquet", row_group_size=700)
    return folder


def order(source: Path, out: Path, *words: str) -> ClusterJob:
    given = ["--actors", "2", "--part-rows", str(PART_ROWS), str(source), str(out), "--backend", "fake", *words]
    return cluster_job(*read_words(COMMAND, given))


def check_whole(out: Path) -> np.ndarray:
    """The vectors of OUT. Its rows must be those of the input, in order."""
    table = pq.read_table(out)
    assert table["id"].to_pylist() == list(range(FILES * ROWS_A_FILE))
    assert not [path.name for path in out.iterdir() if path.name.startswith("_tmp")]
    assert json.loads((out / "_SUCCESS").read_text())["rows"] == FILES * ROWS_A_FILE
    return np.stack(table["dense"].to_numpy(zero_copy_only=False))


def parts_in(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob("[0-9]*.parquet"))


def test_no_row_is_lost_when_a_node_dies(nodes: tuple[Any, list[Any]], source: Path, tmp_path: Path) -> None:
    """Another node makes its parts; the vectors are those of an uninterrupted job."""
    made, workers = nodes
    whole = embed(order(source, tmp_path / "whole"), lambda line: None)
    assert whole["parts"] == FILES * ROWS_A_FILE // PART_ROWS
    killed = threading.Event()

    def kill_once(line: str) -> None:
        if not killed.is_set():
            killed.set()
            made.remove_node(at_work(workers), allow_graceful=False)

    embed(order(source, tmp_path / "out"), kill_once)
    assert killed.is_set()
    np.testing.assert_allclose(check_whole(tmp_path / "out"), check_whole(tmp_path / "whole"), rtol=1e-5, atol=1e-7)


def at_work(workers: list[Any]) -> Any:
    """Removes a node with a running actor from the list and returns it."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    busy = [worker for worker in workers if not free[worker.node_id].get("CPU")]
    workers.remove(busy[0])
    return busy[0]


def test_the_same_command_makes_the_missing_parts(nodes: tuple[Any, list[Any]], source: Path, tmp_path: Path) -> None:
    """Finished parts stay unchanged; truncated ones are made again."""

    class Ended(Exception):
        pass

    def end(line: str) -> None:
        raise Ended

    with pytest.raises(Ended):
        embed(order(source, tmp_path / "out"), end)
    wait_until_still(tmp_path / "out")
    kept, *others = parts_in(tmp_path / "out")
    before = (tmp_path / "out" / kept).stat().st_mtime_ns
    for name in others:
        data = (tmp_path / "out" / name).read_bytes()
        (tmp_path / "out" / name).write_bytes(data[: len(data) // 2])
    summary = embed(order(source, tmp_path / "out"), lambda line: None)
    assert summary["parts_before"] == 1
    assert (tmp_path / "out" / kept).stat().st_mtime_ns == before
    check_whole(tmp_path / "out")


def wait_until_still(out: Path) -> None:
    """Until no part has appeared for 5 s."""
    seen, since_s = parts_in(out), time.monotonic()
    while time.monotonic() - since_s < 5.0:
        time.sleep(0.2)
        if parts_in(out) != seen:
            seen, since_s = parts_in(out), time.monotonic()


def test_a_row_without_a_text_fails_the_job(nodes: tuple[Any, list[Any]], tmp_path: Path) -> None:
    """The error names the file and the row; --on-error null continues without its vector."""
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"id": [0, 1, 2], "text": ["one", None, "three"]}), path)
    with pytest.raises(BulkFailed, match=r"in\.parquet, rows from 0: Row 1"):
        embed(order(path, tmp_path / "out"), lambda line: None)
    embed(order(path, tmp_path / "null", "--on-error", "null"), lambda line: None)
    assert [row["dense"] is None for row in pq.read_table(tmp_path / "null").to_pylist()] == [False, True, False]


def test_another_job_is_refused(tmp_path: Path, source: Path) -> None:
    """OUT is neither mixed with other vectors nor overwritten."""
    first = order(source, tmp_path / "out")
    from vectord.cluster.ray.parts import SharedStorage, begin

    files = SharedStorage(str(source)).parquet_files()
    begin(SharedStorage(str(tmp_path / "out")), first.job, files, PART_ROWS, restart=False)
    with pytest.raises(ConfigError, match="part_rows"):
        embed(order(source, tmp_path / "out", "--part-rows", "7"), lambda line: None)
    with pytest.raises(ConfigError, match="dimensions"):
        embed(order(source, tmp_path / "out", "--dimensions", "8"), lambda line: None)
