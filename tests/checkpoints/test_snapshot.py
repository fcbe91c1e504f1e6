"""Which files of a repository are downloaded, and when a cached copy is complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from huggingface_hub.utils import filter_repo_objects
from tests.checkpoints.files.onnx_bytes import graph, model
from tests.checkpoints.folders import write_dense, write_json, write_sentence_model, write_transformer

from vectord.checkpoints import catalogue
from vectord.checkpoints.snapshot import DOWNLOADED, TORCH_FILES, is_complete, needed_files

WANTED = (
    "config.json modules.json tokenizer.json tokenizer_config.json vocab.txt sentence_bert_config.json "
    "sentence_xlm-roberta_config.json config_sentence_transformers.json artifact.metadata sparse_linear.pt "
    "colbert_linear.pt model.safetensors model-00001-of-00002.safetensors model.safetensors.index.json "
    "1_Pooling/config.json 1_SpladePooling/config.json 2_MultiVectorMask/config.json 2_Dense/model.safetensors "
    "0_Transformer/tokenizer.json adapter_config.json adapter_model.safetensors "
    "adapters/retrieval/adapter_config.json adapters/retrieval/adapter_model.safetensors"
)
TORCH_WEIGHTS = (
    "pytorch_model.bin pytorch_model-00001-of-00002.bin pytorch_model.bin.index.json 2_Dense/pytorch_model.bin"
)
OTHERS = (
    "modeling_custom.py 1_Pooling/code.py training_args.bin optimizer.pt optimizer.bin onnx/model.onnx "
    "onnx/config.json openvino/openvino_model.bin rust_model.ot model-Q8_0.gguf README.md 2_Dense/optimizer.pt"
)


@pytest.mark.parametrize(
    ("patterns", "wanted", "others"),
    [(DOWNLOADED, WANTED, f"{TORCH_WEIGHTS} {OTHERS}"), (TORCH_FILES, TORCH_WEIGHTS, f"{WANTED} {OTHERS}")],
    ids=["downloaded", "torch files"],
)
def test_patterns_exclude_code_and_other_formats(patterns: tuple[str, ...], wanted: str, others: str) -> None:
    """Only the needed files of a repository are downloaded: no optimizer's state, no parts of another format."""
    listed = [*wanted.split(), *others.split()]
    assert [*filter_repo_objects(listed, allow_patterns=list(patterns))] == wanted.split()


CONFIGS = ["config.json", "modules.json", "1_Pooling/config.json", "2_Dense/config.json"]
TORCH = ["pytorch_model.bin", "2_Dense/pytorch_model.bin"]
GRAPH = ["onnx/model.onnx", "onnx/model.onnx_data"]


@pytest.mark.parametrize(
    ("weights", "needed"),
    [
        (["model.safetensors", "2_Dense/model.safetensors"], []),
        (["model.safetensors.index.json", "model-00001-of-00001.safetensors"], ["2_Dense/pytorch_model.bin"]),
        (["2_Dense/model.safetensors"], ["pytorch_model.bin"]),
        ([], TORCH),
    ],
    ids=["all", "sharded", "of the module", "none"],
)
def test_a_folder_without_safetensors_needs_its_torch_files(weights: list[str], needed: list[str]) -> None:
    """Those of the network and of Dense modules are independent, and torch files replace graphs."""
    listed = [*CONFIGS, *weights, *TORCH, *GRAPH, "optimizer.pt"]
    assert needed_files(listed) == [*CONFIGS, *weights, *needed]


def test_a_graph_is_needed_only_without_weights() -> None:
    """Or if a backend reads it."""
    listed = [*CONFIGS, *GRAPH]
    assert needed_files(listed) == listed
    assert needed_files([*listed, "0_Transformer/model.safetensors"]) == [*CONFIGS, "0_Transformer/model.safetensors"]
    assert needed_files([*listed, "model.safetensors"], GRAPH) == [*listed, "model.safetensors"]


def test_an_adapter_needs_a_torch_file_without_safetensors() -> None:
    """And no graph ever."""
    listed = ["adapter_config.json", "adapter_model.bin", *GRAPH]
    assert needed_files(listed) == ["adapter_config.json", "adapter_model.bin"]
    assert needed_files([*listed, "adapter_model.safetensors"]) == ["adapter_config.json", "adapter_model.safetensors"]


def test_a_graph_makes_a_folder_complete(folder: Path) -> None:
    """For want of other weights."""
    write_sentence_model(folder)
    (folder / "model.safetensors").unlink()
    assert not is_complete(folder, None)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(model(graph(outputs={"last_hidden_state": ["n", "l", 8]})))
    assert is_complete(folder, None)


COMPLETE: Mapping[str, Callable[[Path], object]] = {
    "an embedding model": write_sentence_model,
    "a classifier": lambda folder: write_transformer(folder, architectures=["BertForSequenceClassification"]),
    "a Stanford ColBERT": lambda folder: (
        write_transformer(folder, architectures=["HF_ColBERT"]),
        write_json(folder / "artifact.metadata", {}),
    ),
}


@pytest.mark.parametrize("kind", COMPLETE)
@pytest.mark.parametrize("missing", [None, "tokenizer.json", "model.safetensors", "config.json"])
def test_each_kind_has_its_own_completeness(kind: str, missing: str | None, folder: Path) -> None:
    """Weights and tokenizer always; modules.json if the hub may have one."""
    COMPLETE[kind](folder)
    if missing:
        (folder / missing).unlink()
    assert is_complete(folder, None) == (missing is None)


def test_a_bare_folder_may_have_modules_on_the_hub(folder: Path) -> None:
    """transformers caches no modules.json, so its absence means nothing, except for a known reranker."""
    write_transformer(folder, architectures=["Qwen3ForCausalLM"])
    assert not is_complete(folder, None)
    assert not is_complete(folder, catalogue.find("Qwen/Qwen3-Embedding-0.6B"))
    assert is_complete(folder, catalogue.find("Qwen/Qwen3-Reranker-0.6B"))


@pytest.mark.parametrize("missing", [None, "modules.json", "1_Pooling/config.json", "adapter_model.safetensors"])
def test_an_adapter_needs_no_weights_of_its_own(missing: str | None, folder: Path) -> None:
    """Its base model has them."""
    write_sentence_model(folder)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).unlink()
    write_json(folder / "adapter_config.json", {})
    (folder / "adapter_model.safetensors").touch()
    if missing:
        (folder / missing).unlink()
    assert is_complete(folder, None) == (missing is None)


def test_bge_m3_needs_its_heads(folder: Path) -> None:
    """A download for dense vectors only does not have them."""
    entry = catalogue.find("BAAI/bge-m3")
    write_sentence_model(folder)
    assert not is_complete(folder, entry)
    (folder / "sparse_linear.pt").touch()
    (folder / "colbert_linear.pt").touch()
    assert is_complete(folder, entry)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_an_incomplete_module_is_found(missing: str, folder: Path) -> None:
    """A Dense module needs its config and its weights."""
    write_sentence_model(folder, kinds=["Transformer", "Pooling", "Dense", "Normalize"])
    write_dense(folder / "2_Dense", 8, 4)
    assert is_complete(folder, None)
    (folder / "2_Dense" / missing).unlink()
    assert not is_complete(folder, None)
