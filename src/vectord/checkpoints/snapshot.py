"""Which files of a model's repository are needed, and whether a local snapshot has them.

hub.py calls this at start, on the main thread, and contacts the hub if a cached snapshot may lack a file.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from vectord.checkpoints.catalogue import Entry
from vectord.checkpoints.checkpoint import find_weight_files, find_weights
from vectord.checkpoints.files.read import read_settings
from vectord.checkpoints.folder import ADAPTER, read_modules
from vectord.errors import ModelUnavailable

# The files that reader.py, checkpoint.py and the tokenizer read. `*` crosses folders in the hub's matching.
DOWNLOADED = (
    "config.json",
    "modules.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "chat_template.jinja",
    "preprocessor_config.json",  # of images; or, from transformers 5 on, the next
    "processor_config.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "adapter_config.json",  # `*/`: of jina-embeddings-v5's folders
    "adapter_model.safetensors",
    "*/adapter_config.json",
    "*/adapter_model.safetensors",
    "artifact.metadata",  # Stanford's ColBERT
    "model*.safetensors",
    "embedding.q4_k_m.bin",
    "model.safetensors.index.json",
    "[0-9]*_*/*.json",
    "[0-9]*_*/*.safetensors",
    "[0-9]*_*/vocab.txt",
    "router_config.json",
    "query_[0-9]*_*/*",
    "document_[0-9]*_*/*",
    "text_[0-9]*_*/*",
    "sparse_linear.pt",  # BGE-M3
    "colbert_linear.pt",
)
# Only without safetensors in the same folder; the graphs only without torch files too.
TORCH_FILES = (
    *("pytorch_model*.bin", "pytorch_model.bin.index.json", "adapter_model.bin"),
    *("[0-9]*_*/pytorch_model*.bin", "[0-9]*_*/pytorch_model.bin.index.json"),
)
_NETWORKS = (
    *("model.safetensors*", "pytorch_model*", "adapter_model.*"),
    *("0_*/model.safetensors*", "0_*/pytorch_model*", "document_0_*/model.safetensors*"),
    "text_0_*/model.safetensors*",
)
GRAPH_FILES = ("onnx/model.onnx", "onnx/model.onnx_data*", "onnx/model.onnx.data", "model.onnx", "model.onnx_data*")


def needed_files(listed: Collection[str], graphs: Sequence[str] = ()) -> list[str]:
    """Return the paths of a repository that the server reads. graphs: patterns of ONNX files that it reads, too."""

    def matching(*patterns: str) -> list[str]:
        return [path for path in listed if any(fnmatchcase(path, pattern) for pattern in patterns)]

    needed = matching(*DOWNLOADED, *graphs)
    for path in matching(*TORCH_FILES):
        folder, slash, name = path.rpartition("/")
        weights = f"{folder}{slash}{'adapter_model' if name.startswith('adapter') else 'model'}.safetensors"
        if weights not in listed and f"{weights}.index.json" not in listed:
            needed.append(path)
    if not any(fnmatchcase(path, pattern) for path in needed for pattern in _NETWORKS):
        needed += matching(*GRAPH_FILES) or matching("onnx/model_quantized.onnx", "model_quantized.onnx")
    return list(dict.fromkeys(needed))


def is_complete(snapshot: Path, entry: Entry | None) -> bool:
    """Return whether a cached snapshot has all needed files.

    A download may have been cut off, and transformers fetches neither modules.json nor the files that it names: a
    model with cls pooling would then be served with mean.
    """
    try:
        listed = read_modules(snapshot)
        modules, queries = listed.modules, listed.queries
        transformer = modules[0].folder if modules else snapshot
        for module in (*modules[1:], *queries[1:]):
            # Normalize has no settings before sentence-transformers 6.
            if module.kind != "Normalize" and not (module.folder / "config.json").is_file():
                return False
            if module.kind in ("Dense", "LayerNorm"):
                find_weights(module.folder)
        if holds_only_adapter(transformer):  # its base model has the rest
            weights = (transformer / f"adapter_model{suffix}" for suffix in (".safetensors", ".bin"))
            return bool(modules) and any(path.is_file() for path in weights)
        find_weight_files(transformer)
        if queries:
            find_weight_files(queries[0].folder)
        if _may_have_modules(transformer, entry) and not modules:
            return False
    except ModelUnavailable:
        return False
    # BGE-M3's heads: a library that uses only dense vectors did not download them.
    is_bge_m3 = entry is not None and {"sparse", "colbert"} <= set(entry.kinds)
    heads = ("sparse_linear.pt", "colbert_linear.pt") if is_bge_m3 else ()
    has_tokenizer = any((transformer / name).is_file() for name in ("tokenizer.json", "vocab.txt"))
    return has_tokenizer and all((transformer / name).is_file() for name in heads)


def _may_have_modules(transformer: Path, entry: Entry | None) -> bool:
    """Whether a model without a local modules.json may have one on the hub."""
    if entry is not None and entry.kinds == ("scores",):
        return False
    saved_as = read_settings(transformer / "config.json").get("architectures")
    first = saved_as[0] if isinstance(saved_as, list) and saved_as else None
    if first == "HF_ColBERT":
        return not (transformer / "artifact.metadata").is_file()
    return not (isinstance(first, str) and first.endswith("ForSequenceClassification"))


def holds_only_adapter(folder: Path) -> bool:
    """Return whether the folder has an adapter instead of a network's config and weights."""
    return (folder / ADAPTER).is_file() and not (folder / "config.json").is_file()
