"""The options of `python -m vectord.cluster.serve`."""

from __future__ import annotations

import pytest

from vectord.cluster import serve
from vectord.cluster.ray.cluster import ReplicaOptions, read_words
from vectord.errors import ConfigError


def options(*words: str) -> ReplicaOptions:
    return serve.replica_options(read_words(serve.COMMAND, words)[0])


def test_the_number_of_replicas_is_fixed_or_follows_the_load() -> None:
    """One option fixes the number; two are the bounds."""
    assert options() == ReplicaOptions()
    assert options("--num-replicas", "3") == ReplicaOptions(min_replicas=3, max_replicas=3)
    assert options("--min-replicas", "2", "--max-replicas", "8") == ReplicaOptions(min_replicas=2, max_replicas=8)
    assert options("--max-replicas", "8") == ReplicaOptions(min_replicas=1, max_replicas=8)


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
def test_invalid_options_are_refused(words: str) -> None:
    """Before Ray starts."""
    with pytest.raises(ConfigError):
        options(*words.split())


def test_models_and_settings_are_those_of_vectord_serve() -> None:
    """They configure each replica."""
    line = read_words(serve.COMMAND, ["BAAI/bge-m3", "--cpus", "4", "--device-replicas", "2", "--dtype=float32"])[1]
    assert line.words == ["--device-replicas=2", "--dtype=float32", "BAAI/bge-m3"]
