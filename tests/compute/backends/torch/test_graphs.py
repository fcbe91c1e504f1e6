"""Which graphs are captured, and that they equal the network; a capture here is the program, run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.compute.backends.models import write_all_kinds, write_classifier, write_decoder, write_plain, write_splade
from tests.compute.ops.torch.kernel import written_out
from tests.models import batch_of, pack_texts, random_texts
from torch import Tensor

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.backends.base import Answers, BackendFacts, TokenBatch
from vectord.compute.backends.torch import TorchBackend
from vectord.compute.backends.torch.graphs import (
    Capture,
    Captured,
    Graphs,
    Program,
    capture_graphs,
    graph_shapes,
)
from vectord.compute.backends.torch.loading import runs_flat
from vectord.compute.networks.network import Network
from vectord.compute.ops.torch import TorchOps
from vectord.compute.ops.torch.flat import FlatShape, tokens_of

CPU = torch.device("cpu")
PLENTY = {"memory_bytes": 2**40, "time_s": 1e9}
MODELS: dict[str, Callable[[Path], ModelSpec]] = {
    "plain": write_plain,
    "all kinds": write_all_kinds,
    "splade": write_splade,
    "classifier": write_classifier,
    "decoder": write_decoder,
}
BATCHES = [(9, 1, 30, 2, 17, 30), (1,), (16,), (200, 3), (5,) * 30, (500,), (1,) * 9]


class Recorder:
    """A Capture that runs the program again into the first outputs, as a graph does."""

    def __init__(self, graph_bytes: int = 0) -> None:
        self.captured = 0
        self.replayed = 0
        self.graph_bytes = graph_bytes

    def held_bytes(self) -> int:
        return self.captured * self.graph_bytes

    def __call__(self, program: Program) -> Captured:
        self.captured += 1
        answers = program()

        def replay() -> None:
            self.replayed += 1
            for output, fresh in program().items():
                answers[output].copy_(fresh)

        return Captured(replay, answers)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return MODELS["plain"](tmp_path_factory.mktemp("model"))


def backends_of(spec: ModelSpec, capture: Recorder) -> tuple[TorchBackend, TorchBackend]:
    """(with graphs, by groups), both with two streams."""
    facts = BackendFacts(name="torch", device="cpu", dtype="float32", streams=2, cost="packed", max_batch_tokens=9999)
    checkpoint = open_checkpoint(spec.weights)
    network = Network(spec, checkpoint, TorchOps(CPU, torch.float32, written_out))
    assert runs_flat(network, CPU, spec.outputs)
    with_graphs = TorchBackend(facts, network, None, CPU, flat=True)

    def program_of(numbers: Tensor, shape: FlatShape) -> Mapping[Output, Tensor]:
        return network(tokens_of(numbers, shape), spec.outputs)

    with torch.inference_mode():
        shapes = graph_shapes(spec.max_tokens, most_tokens=512)
        with_graphs.graphs = capture_graphs(program_of, shapes, CPU, capture, **PLENTY)
    grouped = TorchBackend(facts, Network(spec, checkpoint, TorchOps(CPU, torch.float32)), None, CPU)
    return with_graphs, grouped


def assert_same(got: TorchBackend, want: TorchBackend, batch: TokenBatch) -> None:
    answers = got.forward(batch, 1)
    assert answers.keys() == batch.outputs
    for output, rows in want.forward(batch, 0).items():
        np.testing.assert_allclose(answers[output], rows, atol=2e-5, err_msg=output)


@pytest.mark.parametrize("model", MODELS)
def test_graphs_equal_the_network(model: str, tmp_path: Path) -> None:
    """Every output, every batch that fits, in sequence through the same memory."""
    capture, spec = Recorder(), MODELS[model](tmp_path)
    with_graphs, grouped = backends_of(spec, capture)
    for seed, lengths in enumerate(BATCHES + BATCHES[:3]):
        assert_same(with_graphs, grouped, batch_of(*random_texts(lengths, seed=seed), outputs=spec.outputs))
    assert capture.replayed >= len(BATCHES)


def test_streams_share_the_graphs(spec: ModelSpec) -> None:
    """Two concurrent threads use the same memory, one after the other."""
    with_graphs, grouped = backends_of(spec, Recorder())
    batches = [batch_of(*random_texts((9, 4), seed=seed), outputs=spec.outputs) for seed in range(12)]
    want = [grouped.forward(batch, 0) for batch in batches]

    def work(stream: int) -> list[Answers]:
        return [with_graphs.forward(batch, stream) for batch in batches[:: 1 - 2 * stream]]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(work, range(2))
    for answers in (first, second[::-1]):
        for got, expected in zip(answers, want, strict=True):
            for output, rows in expected.items():
                np.testing.assert_allclose(got[output], rows, atol=2e-5, err_msg=output)


def test_batches_without_a_graph_run_eagerly(spec: ModelSpec) -> None:
    """Too many tokens, too many texts, whole tiles of rows, no flat form; and all after a stream was renewed."""
    capture = Recorder()
    with_graphs, grouped = backends_of(spec, capture)
    for lengths in ((500, 100), (1,) * 70, (500, 400, 3) * 3):
        assert_same(with_graphs, grouped, batch_of(*random_texts(lengths), outputs=spec.outputs))
    keys = pack_texts(*random_texts((9, 20)), keys=np.array([5, 20], np.int32))
    if "scores" not in spec.outputs and spec.pooling != "last":
        assert_same(with_graphs, grouped, TokenBatch(texts=keys, outputs=spec.outputs))
    with_graphs.renew(0)
    assert_same(with_graphs, grouped, batch_of(*random_texts((9, 4)), outputs=spec.outputs))
    assert not capture.replayed


def fake_shapes(*tokens: int) -> list[FlatShape]:
    return [FlatShape(tokens=count, texts=4, spans=4, longest=count) for count in tokens]


def captured(shapes: Sequence[FlatShape], capture: Capture, **changes: object) -> Graphs:
    options: dict[str, Any] = {"now_s": lambda: 0.0, **PLENTY, **changes}
    return capture_graphs(lambda numbers, shape: {"dense": torch.zeros(4, 2)}, shapes, CPU, capture, **options)


def test_graphs_stop_at_their_memory() -> None:
    """The graph beyond the limit is dropped, and no other is tried."""
    capture = Recorder(graph_bytes=100)
    graphs = captured(fake_shapes(64, 32, 16, 8), capture, memory_bytes=250)
    assert (len(graphs), capture.captured) == (2, 3)


def test_a_failed_capture_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The model serves without the graph."""

    class Failing(Recorder):
        def __call__(self, program: Program) -> Captured:
            raise RuntimeError("operation not permitted when stream is capturing")

    assert not len(captured(fake_shapes(64, 32), Failing()))
    assert "cannot be captured" in caplog.text


def test_the_smallest_graph_that_holds_a_batch_is_used() -> None:
    """Unless it would be mostly padding."""
    graphs = captured(fake_shapes(2048, 512, 256, 16), Recorder())

    def found(tokens: int, texts: int = 1) -> int | None:
        graph = graphs.find(FlatShape(tokens=tokens, texts=texts, spans=texts, longest=tokens))
        return None if graph is None else graph.shape.tokens

    assert [found(tokens) for tokens in (1, 16, 64, 200, 257, 2048)] == [16, 16, 256, 256, 512, 2048]
    assert found(17) is None
    assert found(2049) is None
    assert found(16, texts=5) is None


@pytest.mark.parametrize("longest", [1, 100, 128, 512, 8192])
def test_shapes_are_few_and_the_largest_comes_first(longest: int) -> None:
    """No shape has longer texts than the model reads, and its longest text fits."""
    shapes = graph_shapes(longest, most_tokens=4096)
    assert len(shapes) <= 24
    assert shapes[0].tokens == 4096
    assert [shape.tokens for shape in shapes] == sorted((shape.tokens for shape in shapes), reverse=True)
    assert all(1 <= shape.longest <= min(longest, shape.tokens) for shape in shapes)
    assert len(set(shapes)) == len(shapes)


@pytest.mark.parametrize("tokens", [1000, 4000, 16_000])
def test_a_batch_of_short_texts_and_a_few_long_ones_has_a_graph(tokens: int) -> None:
    """97 of 100 texts are queries of 12 tokens, the others have the model's maximum length."""
    lengths = [512 if i % 100 in {30, 60, 90} else 12 for i in range(tokens)]
    count = int(np.searchsorted(np.cumsum(lengths), tokens))
    batch = FlatShape(tokens=sum(lengths[:count]), texts=count, spans=count, longest=512)
    graph = captured(graph_shapes(512, most_tokens=16_384), Recorder()).find(batch)
    assert graph is not None
    assert graph.shape.tokens < 1.1 * tokens
