"""The two networks of models that read pages, `model_type: colmodernvbert` and `colpali`: SigLIP for images, and
ModernBERT or Gemma for texts with their rows. Names as in all versions of transformers/models/modernvbert, paligemma.

config: the text_config, or the vision_config with what checkpoints/kinds/pages.py adds. A block of patches, which are
adjacent rows here, becomes one row of a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import clip, decoder, facts, gemma, modernbert
from vectord.compute.networks.heads import Head
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T, Tokens

_OUTER = ("vlm.", "vlm.model.", "model.", "model.model.")  # of transformers' classes, and of colpali_engine's
TEXTS = ("vlm.text_model.", *(f"{outer}language_model." for outer in _OUTER))
IMAGES = ("vlm.vision_model.", *(f"{outer}vision_tower." for outer in _OUTER))
CONNECTORS = (
    "vlm.connector.modality_projection",
    *(f"{outer}multi_modal_projector.linear" for outer in _OUTER),
)

HARMLESS: Mapping[str, Harmless] = {
    **clip.HARMLESS,
    **modernbert.HARMLESS,
    **gemma.HARMLESS,
    **harmless("a head for one vector of an image", "vision_use_head"),
}
HARMLESS_TENSORS = (
    HarmlessTensors("a head for one vector of an image", r"vlm\.vision_model\.(vision_model\.)?head\..+"),
    HarmlessTensors("the head over the vocabulary", r"(vlm|model)\.(language_model\.)?lm_head\.weight"),
    HarmlessTensors("buffers of older versions", r".+\.(position_ids|inv_freq)"),
)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    is_text = config["model_type"] != "siglip_vision_model"
    if config["model_type"] == "modernbert":
        return modernbert.load(config, weights.under(TEXTS[0]), ops)
    if is_text:
        names = [prefix + inner for prefix in TEXTS for inner in decoder.PREFIXES]
        return gemma.load(config, weights.after_prefix(names, decoder.WORDS), ops)
    names = [prefix + inner for prefix in IMAGES for inner in ("", "vision_model.")]
    images = weights.after_prefix(names, "embeddings.position_embedding.weight")
    return clip.read_images(config, images, ops, words=clip.read_positions(config, images), bias=True)


def pooler(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Head[T]:
    """(T, H) to (M, D): the rows of a block, end to end, through the connector."""
    rows = facts.size(config, "merge_size") ** 2
    name = next((each for each in CONNECTORS if f"{each}.weight" in weights), CONNECTORS[0])
    width, bias = rows * facts.size(config, "hidden_size"), f"{name}.bias" in weights
    connector = weights.linear(name, width, facts.size(config, "projection_dim"), bias=bias)

    def pooled(x: T, tokens: Tokens[T]) -> T:
        return ops.linear(ops.merge(x, rows, tokens), connector.weight, connector.bias)

    return pooled
