"""The two networks of models that read pages, `model_type: colmodernvbert` and `colpali`: SigLIP for images, and
ModernBERT or Gemma for texts with their rows. Names as in all versions of transformers/models/modernvbert, paligemma.

config: the text_config, or the vision_config with what checkpoints/kinds/pages.py adds. A block of patches, which are
adjacent rows here, becomes one row of a text.
"""

from __future__ import annotations

from functools import cached_property

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks.clip import Clip, Siglip
from vectord.compute.networks.gemma import Gemma, Gemma2, Gemma3
from vectord.compute.networks.heads import Head
from vectord.compute.networks.modernbert import ModernBert
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import HarmlessTensors, WeightReader
from vectord.compute.ops.base import T, Tokens

_OUTER = ("vlm.", "vlm.model.", "model.", "model.model.")  # of transformers' classes, and of colpali_engine's
TEXTS = ("vlm.text_model.", *(f"{outer}language_model." for outer in _OUTER))
IMAGES = ("vlm.vision_model.", *(f"{outer}vision_tower." for outer in _OUTER))
CONNECTORS = (
    "vlm.connector.modality_projection",
    *(f"{outer}multi_modal_projector.linear" for outer in _OUTER),
)


class ColPali(Siglip[T]):
    """Either network, by the section's model_type."""

    HARMLESS = {
        **Clip.HARMLESS,
        **ModernBert.HARMLESS,
        **Gemma.HARMLESS,
        **harmless("a head for one vector of an image", "vision_use_head"),
    }
    HARMLESS_TENSORS = (
        HarmlessTensors("a head for one vector of an image", r"vlm\.vision_model\.(vision_model\.)?head\..+"),
        HarmlessTensors("the head over the vocabulary", r"(vlm|model)\.(language_model\.)?lm_head\.weight"),
        HarmlessTensors("buffers of older versions", r".+\.(position_ids|inv_freq)"),
    )

    @cached_property
    def body(self) -> WeightReader[T]:
        names = [prefix + inner for prefix in IMAGES for inner in ("", "vision_model.")]
        return self.weights.after_prefix(names, "embeddings.position_embedding.weight")

    def load(self) -> Transformer[T]:
        if self.model_type == "siglip_vision_model":
            return self.read_images(self.positions())
        if self.model_type == "modernbert":
            return ModernBert(self.config, self.weights.under(TEXTS[0]), self.ops).load()
        names = [prefix + inner for prefix in TEXTS for inner in Gemma.PREFIXES]
        generation = {"gemma": Gemma, "gemma2": Gemma2}.get(self.model_type, Gemma3)
        return generation(self.config, self.weights.after_prefix(names, Gemma.WORDS), self.ops).load()

    def pooler(self) -> Head[T]:
        """(T, H) to (M, D): the rows of a block, end to end, through the connector."""
        rows, weights = self.size("merge_size") ** 2, self.weights
        name = next((each for each in CONNECTORS if f"{each}.weight" in weights), CONNECTORS[0])
        width, bias = rows * self.size("hidden_size"), f"{name}.bias" in weights
        connector = weights.linear(name, width, self.size("projection_dim"), bias=bias)

        def pooled(x: T, tokens: Tokens[T]) -> T:
            return self.ops.linear(self.ops.merge(x, rows, tokens), connector.weight, connector.bias)

        return pooled
