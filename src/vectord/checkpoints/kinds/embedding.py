"""Models with one row per text: embedding models with the further heads of BGE-M3, and SPLADE. reader.py calls this."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from vectord.checkpoints.checkpoint import find_tensor, tensor_shape
from vectord.checkpoints.config_keys import Harmless, harmless, refuse_null, refuse_unread
from vectord.checkpoints.files.read import Settings, read_settings
from vectord.checkpoints.folder import (
    ModelFolder,
    chain_width,
    check_normalize,
    pooled_width,
    read_after_pooling,
    read_dense,
    wrong_order,
)
from vectord.checkpoints.router import read_query_weights
from vectord.checkpoints.spec import Colbert, DenseModule, ModelPooling, ModelSpec, NormModule, Pooling
from vectord.errors import ModelUnavailable

log = logging.getLogger("vectord.checkpoints")

# sentence-transformers' names: booleans `pooling_mode_*` before version 6, one `pooling_mode` since.
_POOLINGS: Mapping[str, Pooling] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
_POOLING_FLAGS: Mapping[str, str] = {  # in the order of their vectors
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_WIDTHS = dict.fromkeys(
    ("embedding_dimension", "word_embedding_dimension"),
    Harmless("the network's own width is used", lambda value: type(value) is int),
)
_ORDER = "Transformer, Pooling, then Dense, LayerNorm and Normalize in any order"
_LAST = frozenset({"qwen2_vl", "qwen3_vl"})  # by the model's own script
_QUANTIZER = "FlexibleQuantizer"
_MATRYOSHKA_LIMIT = 2**16
_Dimensions = Annotated[list[Annotated[int, Meta(ge=1)]], Meta(max_length=_MATRYOSHKA_LIMIT)]


def add_embedding(folder: ModelFolder, spec: ModelSpec, pooling: Pooling | None) -> ModelSpec:
    """Add pooling, Dense modules, dimensions and BGE-M3's heads. pooling: replaces the model's own."""
    own = _pooling_config(folder)
    include_prompt = own is None or own.flag("include_prompt", True)
    mode = pooling or _pooling(folder, own)
    modules = (*_own_projection(folder, spec, mode), *_after_pooling(folder, mode))
    dimensions = chain_width(pooled_width(spec.hidden_size, mode), modules)
    spec = replace(
        spec,
        outputs=frozenset({"dense", "tokens"}),
        pooling=mode,
        include_prompt=include_prompt,
        dense_modules=modules,
        dimensions=dimensions,
        truncate_dim=truncate_dim_of(folder),
        whole_numbers=True if _QUANTIZER in [module.kind for module in folder.modules] else None,
        matryoshka=matryoshka_of(folder, dimensions),
    )
    if lexical := _head(folder, "sparse_linear"):
        if _head_outputs(lexical, spec.hidden_size) != 1:
            raise ModelUnavailable(f"{lexical}: expected one number per token")
        spec = replace(spec, outputs=spec.outputs | {"lexical"}, lexical=lexical)
    if linear := _head(folder, "colbert_linear"):
        colbert = Colbert(dimensions=_head_outputs(linear, spec.hidden_size), linear=linear, drops_first=True)
        spec = replace(spec, outputs=spec.outputs | {"colbert"}, colbert=colbert)
    return spec


# --- pooling --------------------------------------------------------------------------------------------------


def _pooling_config(folder: ModelFolder) -> Settings | None:
    """The configuration of the folder's Pooling module."""
    paths = [module.folder / "config.json" for module in folder.modules if module.kind == "Pooling"]
    path = paths[0] if paths else folder.root / "1_Pooling" / "config.json"
    return read_settings(path, allowed=folder.allowed) if paths or path.is_file() else None


def _pooling(folder: ModelFolder, config: Settings | None) -> ModelPooling:
    """The folder's pooling. Without a configuration it is the catalogue's, else cls for BGE-M3's heads, else
    sentence-transformers' default: last token for a model that generates text, mean for the others."""
    if folder.pooling is not None:
        return folder.pooling
    if config is not None:
        refuse_null(config, "embedding_dimension word_embedding_dimension include_prompt")
        modes = config.get("pooling_mode")
        if modes is None:
            modes = [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)]
        modes = [str(mode)[:40] for mode in (modes if isinstance(modes, list) else [modes])]
        found = tuple(_POOLINGS[mode] for mode in modes if mode in _POOLINGS)
        if not 0 < len(modes) == len(found) <= len(_POOLINGS):
            raise ModelUnavailable(
                f"{config.path}: pooling_mode {' and '.join(modes[:8]) or 'none'} is not supported; supported are "
                f"{', '.join(_POOLINGS)}"
            )
        refuse_unread(config, {**_WIDTHS, **harmless("pooling_mode replaces it", " ".join(_POOLING_FLAGS))})
        return found if len(found) > 1 else found[0]
    if folder.entry is not None and folder.entry.pooling is not None:
        return folder.entry.pooling
    if _has_heads(folder):  # BGE-M3: as FlagEmbedding, always cls
        return "cls"
    if folder.model_type in _LAST:
        return "last"
    mode: Pooling = "mean"
    if folder.is_saved_as("ForCausalLM") and folder.config.get("is_causal") is not False:
        mode = "last"
    log.warning("%s has no pooling configuration: using %s; set the pooling option if that is wrong", folder.root, mode)
    return mode


def read_pooling(folder: ModelFolder) -> ModelPooling:
    """Return the pooling of the folder's Pooling module."""
    config = _pooling_config(folder)
    if config is not None:
        config.get("include_prompt")  # pairs have no prompt
    return _pooling(folder, config)


def has_pooling(folder: ModelFolder) -> bool:
    """Return whether the files of a folder without modules.json tell its pooling, or are BGE-M3's heads."""
    return folder.pooling is not None or _pooling_config(folder) is not None or _has_heads(folder)


def _after_pooling(folder: ModelFolder, pooling: ModelPooling) -> tuple[DenseModule | NormModule, ...]:
    """The modules in order. A Normalize at the end is ignored: the request decides about normalization. So is
    pplx-embed's quantizer, which `ModelSpec.whole_numbers` represents."""
    kinds = [module.kind for module in folder.modules]
    if not kinds:
        for path in sorted(folder.root.glob("[0-9]*_*/config.json")):  # of a module that may change vectors
            if path.parent.name.partition("_")[2] not in ("Transformer", "Pooling", "Normalize"):
                raise ModelUnavailable(
                    f"{folder.root / 'modules.json'}: missing, though there is a module {path.parent.name[:80]}"
                )
        return folder.dense
    at = kinds.index("Pooling")
    end = len(kinds) - (kinds[-1] in ("Normalize", _QUANTIZER))
    if kinds[-1] == "Normalize":
        check_normalize(folder.modules[-1], over="sentence_embedding")
    before, after = folder.modules[1:at], [read_after_pooling(module) for module in folder.modules[at + 1 : end]]
    if any(module.kind != "Dense" for module in before) or None in after:
        raise wrong_order(folder.root, folder.modules, supported=_ORDER)
    # Moving a Dense module after the pooling changes nothing for pooling that takes one row, nor for a mean if the
    # module is linear.
    moved = tuple(read_dense(module, over="token_embeddings") for module in before)
    linear = all(module.activation == "identity" for module in moved)  # with a residual too
    if moved and pooling not in ("cls", "last") and not (pooling in ("mean", "weighted_mean") and linear):
        raise ModelUnavailable(f"{moved[0].folder}: a Dense module before {pooling} pooling is not supported")
    return (*moved, *(module for module in after if module is not None))


def _own_projection(folder: ModelFolder, spec: ModelSpec, pooling: ModelPooling) -> tuple[DenseModule, ...]:
    """The layer over each token in the checkpoint of a bidirectional Qwen3, `linear.weight`, moved after pooling."""
    # Only a class of the model's own has such a layer.
    if not (folder.config.get("auto_map") and folder.config.get("use_bidirectional_attention")):
        return ()
    found = find_tensor(spec.weights, "linear.weight")
    if found is None:
        return ()
    (file, shape), width = found, folder.config.get("num_labels")
    if shape != (width, spec.hidden_size) or pooling not in ("cls", "last", "mean", "weighted_mean"):
        raise ModelUnavailable(
            f"{file}: linear.weight of shape {list(shape)} is supported as num_labels x hidden_size, "
            f"[{str(width)[:20]}, {spec.hidden_size}], before a pooling by cls, last or mean"
        )
    return (DenseModule(folder=file.parent, weights=file, in_features=shape[1], out_features=shape[0]),)


def truncate_dim_of(folder: ModelFolder) -> int | None:
    """The dimensions of texts without a choice of their own, as in sentence-transformers; None: all."""
    if folder.sentence.get("truncate_dim") is None:
        return None
    return folder.sentence.whole("truncate_dim", most=_MATRYOSHKA_LIMIT)


def matryoshka_of(folder: ModelFolder, dimensions: int) -> tuple[int, ...] | None:
    """The dimensions that the model was trained to be cut to, ascending: config.json's, else the catalogue's."""
    listed: list[int] | None = folder.config.value("matryoshka_dimensions", _Dimensions)
    if listed is None:
        known = folder.entry.matryoshka if folder.entry is not None else None
        return None if known is None else tuple(known)
    if max(listed, default=0) > dimensions:
        raise ModelUnavailable(f"{folder.config.path}: matryoshka_dimensions must be whole numbers up to {dimensions}")
    return tuple(sorted(set(listed)))


# --- BGE-M3: sparse_linear, one weight per token, (1, H), (1,); colbert_linear, one vector per token, (C, H), (C,) ---


def _head(folder: ModelFolder, name: str) -> Path | None:
    path = folder.transformer / f"{name}.pt"
    return path if path.is_file() else None


def _has_heads(folder: ModelFolder) -> bool:
    return _head(folder, "sparse_linear") is not None or _head(folder, "colbert_linear") is not None


def _head_outputs(path: Path, inputs: int) -> int:
    """The size of the layer's output, from the shape of its weight."""
    shape = tensor_shape(path, "weight")
    if len(shape) != 2 or shape[0] < 1 or shape[1] != inputs:
        raise ModelUnavailable(f"{path}: weight has the shape {list(shape)}; expected [outputs, {inputs}]")
    return shape[0]


# --- SPLADE: sentence-transformers' SparseEncoder folders, and masked-language models without modules.json --------


def is_splade(folder: ModelFolder) -> bool:
    """Return whether a masked-language model without modules.json is a SPLADE: by the catalogue, else by its name."""
    if folder.entry is not None:
        return folder.entry.kinds == ("sparse",)
    return "splade" in folder.name


def add_splade(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Add the sparse output, and the table of a Router's queries."""
    spec = replace(spec, outputs=frozenset({"splade"}))
    if not folder.modules:
        return spec
    if [module.kind for module in folder.modules] != ["Transformer", "SpladePooling"]:
        raise wrong_order(folder.root, folder.modules, supported="Transformer, SpladePooling")
    config = folder.modules[1].read_config()
    strategy = config.one_of("pooling_strategy", ("max", "sum"), "max")
    activation = config.one_of("activation_function", ("relu", "log1p_relu"), "relu")
    refuse_unread(config, _WIDTHS)
    query = folder.listed.query_table
    return replace(
        spec,
        log_twice=True if activation == "log1p_relu" else None,
        sums_words=True if strategy == "sum" else None,
        query_weights=None
        if query is None
        else read_query_weights(query.folder, spec.tokenizer, spec.max_tokens, folder.allowed),
    )
