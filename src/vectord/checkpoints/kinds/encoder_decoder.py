"""T5Gemma 2's rerankers (KaLM-Reranker-V1): an encoder of passages, and a decoder that judges them for a query.

reader.py calls `add_passages` before the facts of the kind. The models' own script is the reference.
"""

from __future__ import annotations

from msgspec.structs import replace

from vectord.checkpoints.config_keys import CONFIG, harmless, refuse_unread
from vectord.checkpoints.files.read import Settings
from vectord.checkpoints.fingerprint import fingerprint
from vectord.checkpoints.folder import WIDTH_LIMIT, ModelFolder
from vectord.checkpoints.kinds.scores import find_template
from vectord.checkpoints.spec import ModelSpec
from vectord.errors import ModelUnavailable

T5GEMMA2 = "t5gemma2"
MAX_TOKENS = 1024  # of a passage; also of a query's text with the passage's rows
# Defaults of the classes in transformers 5.24, which files may leave out.
_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}
_ENCODERS = ("encoder.", "encoder.text_model.")
_IMAGES = ("encoder.vision_tower.", "encoder.multi_modal_projector.")
_ABOVE_WORDS = tuple(prefix + part for prefix in _ENCODERS for part in ("layers.", "norm."))
_HARMLESS = {
    **CONFIG,
    **harmless("images are not served", "boi_token_index eoi_token_index image_token_index mm_tokens_per_image"),
    **harmless("training only", "classifier_dropout_rate dropout_rate"),
    **harmless("its sections have their own", "vocab_size"),
    **harmless("of the two networks", "is_encoder_decoder", True),
}


def add_passages(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Return the facts of the decoder, with those of its encoder as the network of passages. spec: without sizes."""
    template, config = find_template(folder), folder.config
    if folder.modules or template is None or template.passages is None:
        raise ModelUnavailable(f"{folder.root}: of model_type {T5GEMMA2}, KaLM-Reranker-V1 is supported alone")
    encoder = config.section("encoder").section("text_config", _DEFAULTS)
    decoder = config.section("decoder", _DEFAULTS)
    width = decoder.whole("hidden_size", most=WIDTH_LIMIT)
    if encoder.whole("hidden_size", most=WIDTH_LIMIT) != width:
        raise ModelUnavailable(f"{config.path}: hidden_size of encoder and decoder must be equal")
    config.one_of("tie_word_embeddings", (True,), True)
    passage, text = (min(MAX_TOKENS, each.whole("max_position_embeddings", most=2**31)) for each in (encoder, decoder))
    rows = -(-passage // template.passages.pooled)
    # The decoder's window never hides the rows of a passage. A prompt that is no longer than it needs no window.
    text = min(text, rows + decoder.whole("sliding_window", most=2**31))
    refuse_unread(config, _HARMLESS)
    found = replace(
        spec,
        **_network(folder, encoder, "t5gemma2_encoder", passage),
        others=_under_heads(*_IMAGES, "decoder.", "lm_head."),
        outputs=frozenset({"dense"}),
        hidden_size=width,
        max_tokens=passage,
        pooling="mean",
        dimensions=width,
    )
    return replace(
        spec,
        **_network(folder, decoder, "t5gemma2_decoder", text),
        others=_under_heads(*_IMAGES, *_ABOVE_WORDS),
        hidden_size=width,
        max_tokens=text,
        images=replace(found, fingerprint=fingerprint(found)),
        coordinates=1,
    )


def _network(folder: ModelFolder, section: Settings, model_type: str, positions: int) -> dict[str, object]:
    fields = {**section.fields, "model_type": model_type, "max_position_embeddings": positions}
    return {
        "config": Settings(section.path, fields, folder.allowed),
        "model_type": model_type,
        "architecture": model_type,
    }


def _under_heads(*names: str) -> tuple[str, ...]:
    """These beginnings of names, of a bare model and of one under a head."""
    return tuple(prefix + name for name in names for prefix in ("", "model."))
