"""T5Gemma 2's rerankers (KaLM-Reranker-V1): an encoder of passages, and a decoder that judges them for a query.

reader.py calls `add_passages` before the facts of the kind. The models' own script is the reference.
"""

from __future__ import annotations

from msgspec.structs import replace

from vectord.checkpoints.config_keys import class_defaults, harmless, refuse_unread_config
from vectord.checkpoints.folder import WIDTH_LIMIT, ModelFolder
from vectord.checkpoints.kinds.scores import find_template
from vectord.checkpoints.kinds.towers import second_network
from vectord.checkpoints.spec import ModelSpec
from vectord.errors import ModelUnavailable

T5GEMMA2 = "t5gemma2"
_ENCODER, _DECODER = "t5gemma2_encoder", "t5gemma2_decoder"
MAX_TOKENS = 1024  # of a passage; also of a query's text with the passage's rows
# Beginnings of the names of tensors, of a bare model and of one under a head.
_UNDER = ("", "model.")
_IMAGES = tuple(head + name for head in _UNDER for name in ("encoder.vision_tower.", "encoder.multi_modal_projector."))
_ABOVE_WORDS = tuple(
    f"{head}encoder.{inner}{part}." for head in _UNDER for inner in ("", "text_model.") for part in ("layers", "norm")
)
_TEXTS = tuple(head + name for head in _UNDER for name in ("decoder.", "lm_head."))
_HARMLESS = {
    **harmless("images are not served", "eoi_token_index image_token_index mm_tokens_per_image"),
    **harmless("training only", "classifier_dropout_rate dropout_rate"),
    **harmless("its sections have their own", "vocab_size"),
    **harmless("of the two networks", "is_encoder_decoder", True),
}


def add_passages(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Return the facts of the decoder, with those of its encoder as the network of passages. spec: without sizes."""
    template, config = find_template(folder), folder.config
    if folder.modules or template is None or template.passages is None:
        raise ModelUnavailable(f"{folder.root}: of model_type {T5GEMMA2}, KaLM-Reranker-V1 is supported alone")
    defaults = class_defaults(_DECODER)  # the encoder's are the same
    encoder = config.section("encoder").section("text_config", defaults)
    decoder = config.section("decoder", defaults)
    width = decoder.whole("hidden_size", most=WIDTH_LIMIT)
    if encoder.whole("hidden_size", most=WIDTH_LIMIT) != width:
        raise ModelUnavailable(f"{config.path}: hidden_size of encoder and decoder must be equal")
    config.one_of("tie_word_embeddings", (True,), True)
    passage, text = (min(MAX_TOKENS, each.whole("max_position_embeddings", most=2**31)) for each in (encoder, decoder))
    rows = -(-passage // template.passages.pooled)
    # The decoder's window never hides the rows of a passage. A prompt that is no longer than it needs no window.
    text = min(text, rows + decoder.whole("sliding_window", most=2**31))
    refuse_unread_config(config, T5GEMMA2, _HARMLESS)
    passages = second_network(
        spec,
        encoder.of({**encoder.fields, "model_type": _ENCODER, "max_position_embeddings": passage}),
        others=(*_IMAGES, *_TEXTS),
        hidden_size=width,
        pooling="mean",
        dimensions=width,
    )
    return replace(
        spec,
        config=decoder.of({**decoder.fields, "model_type": _DECODER, "max_position_embeddings": text}),
        model_type=_DECODER,
        architecture=_DECODER,
        others=(*_IMAGES, *_ABOVE_WORDS),
        hidden_size=width,
        max_tokens=text,
        images=passages,
        coordinates=1,
    )
