"""Which model uses which streams. Correct batches on them: test_cuda.py, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.models import read_tiny_spec, write_bert

from vectord.compute.backends.base import BackendOptions
from vectord.compute.backends.torch import TorchBackend, load
from vectord.compute.backends.torch import slot as slots
from vectord.compute.backends.torch.slot import Streams

GPU = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def nothing_idle() -> Iterator[None]:
    """As in a process that has loaded nothing."""
    slots._idle.clear()
    yield
    slots._idle.clear()


class Maker:
    """Replaces torch, which makes streams on a GPU only."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, device: torch.device) -> torch.cuda.Stream:
        self.made += 1
        return cast(torch.cuda.Stream, (device, self.made))


def test_a_model_reuses_the_streams_of_the_one_before() -> None:
    """Each for the same purpose: loading models one after another makes three streams in all."""
    maker = Maker()
    for _ in range(5):
        streams = Streams(GPU, maker)
        taken = [cast(Any, streams.take(use))[1] for use in ("kernels", "copies", "copies")]
        assert taken[0] == 1
        assert sorted(taken) == [1, 2, 3]
        streams.give_back()
    assert maker.made == 3


def test_a_hung_stream_is_not_reused(tmp_path: Path) -> None:
    """A model whose stream was renewed keeps its former streams."""
    maker = Maker()
    for hangs, made in ((False, 1), (True, 1), (False, 2)):
        streams = Streams(GPU, maker)
        streams.take("kernels")
        backend = _with(streams, tmp_path)
        if hangs:
            backend.renew(0)
        backend.close()
        assert maker.made == made


def _with(streams: Streams, folder: Path) -> TorchBackend:
    facts = load(read_tiny_spec(write_bert(folder)), BackendOptions(device="cpu")).facts
    return TorchBackend(facts, cast(Any, None), None, torch.device("cpu"), streams=streams)
