"""The words of `python -m vectord.cluster.serve` and `.bulk`: what cannot be is one line and exit code 2."""

from __future__ import annotations

import pytest

from vectord.cluster import bulk, serve
from vectord.cluster.ray.options import read_words
from vectord.cluster.ray.shape import Shape
from vectord.errors import ConfigError


def shape(*words: str) -> Shape:
    return serve.shape_of(read_words(serve.COMMAND, words)[0])


def test_replicas_are_many_or_follow_the_load() -> None:
    """One number is that many, always; two are the bounds of scaling."""
    assert shape() == Shape()
    assert shape("--num-replicas", "3") == Shape(min_replicas=3, max_replicas=3)
    assert shape("--min-replicas", "2", "--max-replicas", "8") == Shape(min_replicas=2, max_replicas=8)
    assert shape("--max-replicas", "8") == Shape(min_replicas=1, max_replicas=8)


@pytest.mark.parametrize(
    "words",
    [
        "--num-replicas 0",
        "--min-replicas 3 --max-replicas 2",
        "--cpus 0",
        "--gpus -1",
        "--cpus x",
    ],
)
def test_what_cannot_be_is_refused(words: str) -> None:
    """Before Ray is started."""
    with pytest.raises(ConfigError):
        shape(*words.split())


def test_models_and_settings_are_those_of_vectord_serve() -> None:
    """They configure each replica."""
    line = read_words(serve.COMMAND, ["BAAI/bge-m3", "--cpus", "4", "--device-replicas", "2", "--dtype=float32"])[1]
    assert line.words == ["--device-replicas=2", "--dtype=float32", "BAAI/bge-m3"]


@pytest.mark.parametrize(
    "words", ["in", "in out --part-rows 0", "in out --url http://x", "in out --actors 0", "in out --gpus nan"]
)
def test_a_bulk_job_that_cannot_be_is_refused(words: str) -> None:
    """As there."""
    with pytest.raises(ConfigError):
        bulk.order_of(*read_words(bulk.COMMAND, words.split()))


def test_a_uri_stays_one() -> None:
    """s3://bucket is no path."""
    order = bulk.order_of(*read_words(bulk.COMMAND, ["s3://b/in", "s3://b/out", "--cpus", "3"]))
    assert (order.source, order.out, order.config.device.num_threads) == ("s3://b/in", "s3://b/out", 3)
