"""ONNX graphs on both runtimes: exported by torch, or handwritten where no exporter would write them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.checkpoints.files.onnx_bytes import external_tensor, field, graph, model, node, tensor
from tests.compute.networks.case import pad, padded_states, texts_of
from tests.models import batch_of, pack_texts, randomize, read_tiny_spec

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends import onnx, onnxruntime
from vectord.compute.backends.base import Backend, BackendOptions, LoadBackend, TokenBatch
from vectord.errors import ModelUnavailable

if TYPE_CHECKING:
    import torch

FLOAT32 = BackendOptions(device="cpu", dtype="float32", threads=2)
TEXTS = texts_of(9, 1, 30, 2, 17)
STARTS = np.cumsum([0, *map(len, TEXTS[:-1])])
LENGTHS = np.array([[len(text)] for text in TEXTS])
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def bert_config(**facts: Any) -> Any:
    from transformers import BertConfig

    sizes = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return BertConfig(**sizes, intermediate_size=48, max_position_embeddings=64, **facts)


def bert() -> torch.nn.Module:
    from transformers import BertModel

    return randomize(BertModel(bert_config(), add_pooling_layer=False))


def export(model: torch.nn.Module, answer: Callable[..., torch.Tensor], output: str, folder: Path) -> Path:
    """Write onnx/model.onnx of `answer(model, ids, mask, types)`, and config.json, as on the hub. output: its name, or
    several with spaces between them, of which the first is by token."""
    import torch

    class Exported(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return answer(self.model, *inputs)

    path = folder / "onnx" / "model.onnx"
    path.parent.mkdir(parents=True)
    sample = torch.ones(2, 7, dtype=torch.long)
    outputs = output.split()
    axes = {name: {0: "n", 1: "l"} for name in INPUTS} | {name: {0: "n"} for name in outputs}
    if len(outputs) > 1:
        axes[outputs[0]][1] = "l"
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The exporter imports onnx here, for functions that only other exporters need.
        patch.setattr("torch.onnx._internal.torchscript_exporter.onnx_proto_utils._add_onnxscript_fn", lambda b, _: b)
        torch.onnx.export(
            Exported().eval(),
            (sample,) * 3,
            path,
            dynamo=False,
            input_names=list(INPUTS),
            output_names=outputs,
            dynamic_axes=axes,
            opset_version=17,
        )
    model.config.save_pretrained(folder)  # type: ignore[union-attr, operator]
    return folder


def states(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
    answer: torch.Tensor = model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
    return answer


def means(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
    """Pooled and normalized, as sentence-transformers' models are exported with all their modules."""
    x = (states(model, ids, mask, types) * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    return x / x.norm(dim=1, keepdim=True)


def spec_of(folder: Path, **facts: Any) -> ModelSpec:
    defaults = {"weights": (folder / "onnx" / "model.onnx",), "max_tokens": 64}
    return read_tiny_spec(folder, **{**defaults, **facts})


@pytest.fixture(scope="module", params=[onnx, onnxruntime], ids=["openvino", "onnxruntime"])
def load(request: pytest.FixtureRequest) -> LoadBackend:
    """Open the backend that runs the graph."""
    found: LoadBackend = request.param.load
    return found


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    exported = bert()
    return exported, export(exported, states, "last_hidden_state", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def backend(body: tuple[torch.nn.Module, Path], load: LoadBackend) -> Backend:
    return load(spec_of(body[1]), FLOAT32)


@pytest.fixture(scope="module")
def want(body: tuple[torch.nn.Module, Path], backend: Backend) -> np.ndarray:
    """(T, H) of TEXTS, by the exported class, which is made double after the export."""
    return padded_states(body[0], TEXTS)


def test_states_and_means_equal_the_models(backend: Backend, want: np.ndarray) -> None:
    """The graph's hidden states are packed again and pooled here."""
    assert (backend.facts.cost, backend.facts.max_batch_texts) == ("padded", None)
    answers = backend.forward(batch_of(*TEXTS, outputs=("tokens", "dense")), 0)
    np.testing.assert_allclose(answers["tokens"], want, atol=1e-4)
    np.testing.assert_allclose(answers["dense"], np.add.reduceat(want, STARTS) / LENGTHS, atol=1e-4)
    assert {numbers.dtype for numbers in answers.values()} == {np.dtype(np.float32)}


def centred(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
    """Each text's padding counts."""
    x = states(model, ids, mask, types)
    return x - x.mean(1, keepdim=True) / 2


def scaled(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
    """One scale for the batch, as of activations that are quantized at run time."""
    x = states(model, ids, mask, types)
    step = x.abs().max() / 7
    return (x / step).round() * step


@pytest.mark.parametrize("answer", [centred, scaled])
def test_a_graph_that_reads_its_batch_runs_each_text_alone(
    answer: Callable[..., torch.Tensor], load: LoadBackend, tmp_path: Path
) -> None:
    """Without padding. Other graphs have no limit of texts."""
    import torch

    model = bert()
    backend = load(spec_of(export(model, answer, "last_hidden_state", tmp_path)), FLOAT32)
    assert backend.facts.max_batch_texts == 1
    for text in TEXTS:
        ids, mask = pad([text])
        with torch.no_grad():
            want = answer(model, ids, mask, torch.zeros_like(ids))[0].numpy()
        got = backend.forward(batch_of(text, outputs=("tokens",)), 0)["tokens"]
        assert np.linalg.norm(got - want) < 0.02 * np.linalg.norm(want)


def test_spans_are_pooled_separately(backend: Backend, want: np.ndarray) -> None:
    """Parts of a whole text, for late chunking and for prompts that are not pooled."""
    spans = np.array([[0, 4], [4, 9], [11, 40]], np.int32)
    batch = TokenBatch(texts=pack_texts(*TEXTS, spans=spans), outputs=frozenset({"dense"}))
    expected = [want[start:stop].mean(0) for start, stop in spans]
    np.testing.assert_allclose(backend.forward(batch, 0)["dense"], expected, atol=1e-4)


def test_a_graph_that_pools_returns_whole_texts(tmp_path: Path, load: LoadBackend) -> None:
    """Its vectors are returned unchanged, in order, and a part of a text fails."""
    exported = bert()
    folder = export(exported, means, "sentence_embedding", tmp_path)
    loaded = load(spec_of(folder, outputs=frozenset({"dense"})), FLOAT32)
    expected = np.add.reduceat(padded_states(exported, TEXTS), STARTS) / LENGTHS
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(loaded.forward(batch_of(*TEXTS), 0)["dense"], expected, atol=1e-4)
    part = pack_texts(*TEXTS, spans=np.array([[0, 4]], np.int32))
    with pytest.raises(ValueError, match="pools whole texts"):
        loaded.forward(TokenBatch(texts=part, outputs=frozenset({"dense"})), 0)
    with pytest.raises(ModelUnavailable, match="sentence_embedding; no tokens can be made of that"):
        load(spec_of(folder), FLOAT32)


def test_the_vector_of_a_graph_comes_before_our_pooling(tmp_path: Path, load: LoadBackend) -> None:
    """Exporters write the hidden states next to it, from which only parts of a text are pooled."""
    exported = bert()

    def both(*inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = states(*inputs)
        return hidden, hidden[:, 0] * 2

    folder = export(exported, both, "token_embeddings sentence_embedding", tmp_path)
    loaded = load(spec_of(folder, pooling="mean"), FLOAT32)
    hidden = padded_states(exported, TEXTS)
    np.testing.assert_allclose(loaded.forward(batch_of(*TEXTS), 0)["dense"], hidden[STARTS] * 2, atol=1e-4)
    part = pack_texts(*TEXTS, spans=np.array([[0, 4]], np.int32))
    answers = loaded.forward(TokenBatch(texts=part, outputs=frozenset({"dense"})), 0)
    np.testing.assert_allclose(answers["dense"], [hidden[:4].mean(0)], atol=1e-4)


def test_scores_are_the_graphs_logits(tmp_path: Path, load: LoadBackend) -> None:
    """A cross-encoder: the type ids of a pair reach the graph."""
    import torch
    from transformers import BertForSequenceClassification

    exported = randomize(BertForSequenceClassification(bert_config(num_labels=1)))
    folder = export(
        exported,
        lambda model, ids, mask, types: model(input_ids=ids, attention_mask=mask, token_type_ids=types).logits,
        "logits",
        tmp_path,
    )
    ids, mask = pad(TEXTS)
    types = torch.zeros_like(ids)
    types[:, 5:] = 1
    with torch.no_grad():
        expected = exported(input_ids=ids, attention_mask=mask, token_type_ids=types * mask).logits.numpy()
    loaded = load(spec_of(folder, outputs=frozenset({"scores"}), pooling=None, labels=("0",)), FLOAT32)
    packed = pack_texts(*TEXTS, type_ids=np.concatenate([np.arange(len(text)) >= 5 for text in TEXTS]).astype(np.int32))
    answer = loaded.forward(TokenBatch(texts=packed, outputs=frozenset({"scores"})), 0)["scores"]
    np.testing.assert_allclose(answer, expected, atol=1e-4)


# --- graphs written by hand -----------------------------------------------------------------------------------

TABLE = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
BOTH: dict[str, list[str | int]] = {"input_ids": ["n", "l"], "attention_mask": ["n", "l"]}
STATES: dict[str, list[str | int]] = {"last_hidden_state": ["n", "l", 4]}


def write(folder: Path, data: bytes) -> ModelSpec:
    """Write a model with this graph, 4 numbers wide."""
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(data)
    config = '{"model_type": "handmade", "hidden_size": 4, "max_position_embeddings": 64}'
    (folder / "config.json").write_text(config)
    return spec_of(folder)


def lookup(table: bytes, **options: Any) -> bytes:
    """A graph that maps each token to its row of the table."""
    gather = field(1, node("Gather", ["w", "input_ids"], ["last_hidden_state"]))
    return model(graph(gather, field(5, table), **{"inputs": BOTH, "outputs": STATES, **options}))


def test_data_next_to_the_graph_is_read(tmp_path: Path, load: LoadBackend) -> None:
    """Large graphs keep their tensors in a separate file."""
    spec = write(tmp_path, lookup(external_tensor("w", (40, 4), location="model.onnx_data", offset="16")))
    (tmp_path / "onnx" / "model.onnx_data").write_bytes(bytes(16) + TABLE.tobytes())
    answer = load(spec, FLOAT32).forward(batch_of(*TEXTS, outputs=("tokens",)), 0)["tokens"]
    np.testing.assert_allclose(answer, TABLE[np.concatenate(TEXTS)], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": {"input_ids": ["n", "l"]}}, "the graph reads input_ids; supported are"),
        ({"inputs": {**BOTH, "past_key_values": ["n", "l"]}}, "past_key_values; supported are"),
        ({"inputs": {**BOTH, "attention_mask": [1, "l"]}}, "attention_mask is .*, not texts by tokens of any number"),
        ({"inputs": {**BOTH, "attention_mask": ["n"]}}, "attention_mask is"),
        ({"outputs": {"surprise": ["n"]}}, "the graph gives surprise; no dense or tokens can be made of that"),
    ],
    ids=["no mask", "unknown input", "one text", "no length", "unknown output"],
)
def test_a_graph_that_does_not_fit_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path, load: LoadBackend
) -> None:
    """The graph's inputs and outputs must fit texts and the model's files."""
    spec = write(tmp_path, lookup(tensor("w", TABLE), **options))
    with pytest.raises(ModelUnavailable, match=message):
        load(spec, FLOAT32)


def test_another_width_is_refused(tmp_path: Path, load: LoadBackend) -> None:
    """config.json and graph must belong to one model."""
    spec = write(tmp_path, lookup(tensor("w", TABLE)))
    (tmp_path / "config.json").write_text('{"model_type": "x", "hidden_size": 8, "max_position_embeddings": 64}')
    with pytest.raises(ModelUnavailable, match="last_hidden_state is 4 wide; by the model's files it is 8"):
        load(spec_of(spec.folder), FLOAT32)


@pytest.mark.parametrize("op", ["SomeonesOwn", "Gather"], ids=["custom op", "wrong inputs"])
def test_an_unknown_op_is_refused(op: str, tmp_path: Path, load: LoadBackend) -> None:
    """Ops of foreign libraries are not loaded."""
    bad = field(1, node(op, ["input_ids"], ["last_hidden_state"]))
    spec = write(tmp_path, model(graph(bad, inputs=BOTH, outputs=STATES)))
    with pytest.raises(ModelUnavailable, match="cannot run this graph"):
        load(spec, FLOAT32)
