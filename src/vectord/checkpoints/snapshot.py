"""Which files of a model's repository are needed, and whether they are here.

hub.py asks at start, on the main thread: a look at the hub is due when something may be missing of what is cached.
"""

from __future__ import annotations

from pathlib import Path

from vectord.checkpoints.catalogue import Entry
from vectord.checkpoints.checkpoint import find_weights
from vectord.checkpoints.files.json_file import read_json_object
from vectord.checkpoints.modules import Module, read_modules
from vectord.checkpoints.weight_files import find_weight_files
from vectord.errors import ModelUnavailable

# What reader.py, checkpoint.py and the tokenizer read. `*` crosses folders in the hub's matching.
DOWNLOADED = (
    "config.json",
    "modules.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "chat_template.jinja",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "artifact.metadata",  # Stanford's ColBERT
    "model*.safetensors",
    "model.safetensors.index.json",
    "[0-9]*_*/*.json",
    "[0-9]*_*/*.safetensors",
    "[0-9]*_*/vocab.txt",
    "sparse_linear.pt",  # BGE-M3
    "colbert_linear.pt",
)
# And these, only where there is no safetensors; the last, only where there are no torch files either.
TORCH_FILES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
TORCH_FILES_OF_MODULES = ("[0-9]*_*/pytorch_model*.bin", "[0-9]*_*/pytorch_model.bin.index.json")
GRAPH_FILES = ("onnx/model.onnx", "onnx/model.onnx_data*", "onnx/model.onnx.data", "model.onnx", "model.onnx_data*")


def is_complete(snapshot: Path, entry: Entry | None) -> bool:
    """Whether a cached snapshot has all that is read. A download may have been cut off, and transformers fetches
    neither modules.json nor what it names: without a look at the hub, cls would be taken for mean."""
    try:
        modules = read_modules(snapshot)
        transformer = modules[0].folder if modules else snapshot
        find_weight_files(transformer)
        surely_without = not _may_have_modules(transformer, entry)
    except ModelUnavailable:
        return False
    return (
        (bool(modules) or surely_without)
        and all(_is_module_complete(module) for module in modules[1:])
        and any((transformer / name).is_file() for name in ("tokenizer.json", "vocab.txt"))
        and all((transformer / name).is_file() for name in _heads(entry))
    )


def needed_torch_files(snapshot: Path) -> tuple[str, ...]:
    """Patterns of the torch files that must come too, for want of safetensors; () if none."""
    try:
        modules = read_modules(snapshot)
    except ModelUnavailable:  # whoever reads the model will say why
        return ()
    weighty = [module.folder for module in modules if module.kind in ("Transformer", "Dense")] or [snapshot]
    lacking = [folder for folder in weighty if _lacks_weights(folder)]
    at_root = TORCH_FILES if snapshot in lacking else ()
    return at_root + (TORCH_FILES_OF_MODULES if any(folder != snapshot for folder in lacking) else ())


def needed_graph_files(snapshot: Path) -> tuple[str, ...]:
    """Patterns of the ONNX graph that must come, for want of weights; () if none must."""
    try:
        modules = read_modules(snapshot)
    except ModelUnavailable:
        return ()
    return GRAPH_FILES if _lacks_weights(modules[0].folder if modules else snapshot) else ()


def _may_have_modules(transformer: Path, entry: Entry | None) -> bool:
    """Whether a model of which no modules.json is here may have one on the hub, which says more than the rest."""
    if entry is not None and entry.outputs == ("scores",):
        return False
    saved_as = read_json_object(transformer / "config.json").get("architectures")
    first = saved_as[0] if isinstance(saved_as, list) and saved_as else None
    if first == "HF_ColBERT":
        return not (transformer / "artifact.metadata").is_file()
    return not (isinstance(first, str) and first.endswith("ForSequenceClassification"))


def _heads(entry: Entry | None) -> tuple[str, ...]:
    """What BGE-M3 has beside its weights, and whoever fetched it for dense vectors alone has not got."""
    is_bge_m3 = entry is not None and {"sparse", "colbert"} <= set(entry.outputs)
    return ("sparse_linear.pt", "colbert_linear.pt") if is_bge_m3 else ()


def _is_module_complete(module: Module) -> bool:
    if module.kind == "Normalize":  # before sentence-transformers 6 it has nothing to say
        return True
    return (module.folder / "config.json").is_file() and not (module.kind == "Dense" and _lacks_weights(module.folder))


def _lacks_weights(folder: Path) -> bool:
    try:
        find_weights(folder)
    except ModelUnavailable:
        return True
    return False
