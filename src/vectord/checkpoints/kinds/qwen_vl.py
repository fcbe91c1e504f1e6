"""Qwen3-VL's embedders and rerankers: a language model that reads images, and its network of images.

reader.py calls `add_networks` before the facts of the kind. The models' own scripts are the reference
(github.com/QwenLM/Qwen3-VL-Embedding, src/models): they resize images within limits of their own, so those of
preprocessor_config.json have no effect.
"""

from __future__ import annotations

from math import isqrt

from msgspec.structs import replace

from vectord.checkpoints.config_keys import CONFIG, harmless, refuse_unread
from vectord.checkpoints.files.read import Settings
from vectord.checkpoints.fingerprint import fingerprint
from vectord.checkpoints.folder import WIDTH_LIMIT, ModelFolder
from vectord.checkpoints.kinds.scores import find_template
from vectord.checkpoints.kinds.towers import TOWERS, Limit, image_settings, pixel_settings, refuse_unused
from vectord.checkpoints.spec import FreeSize, ImageProcessor, ImageText, InputTemplate, ModelSpec, YesNo
from vectord.checkpoints.vocabulary import find_ids
from vectord.errors import ModelUnavailable

QWEN_VL = "qwen3_vl"
_TEXTS, _IMAGES = "qwen3_vl_text", "qwen3_vl_vision"  # model_types of its sections
MAX_TOKENS = 32_768  # the length that the models are published with; config.json has that of the language model
BLOCK = 32  # pixels of the side of a block of patches, for which the scripts have their limits
MIN_BLOCKS, MAX_BLOCKS = 4, 1800
# Defaults of the classes in transformers 5.24, which files may leave out.
_TEXT_DEFAULTS = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 128_000,
    "rms_norm_eps": 1e-6,
}
_IMAGE_DEFAULTS = {
    "depth": 27,
    "hidden_size": 1152,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 4304,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}
_EMBEDDER = InputTemplate(
    text=("<|im_start|>system\n{prompt}<|im_end|>\n<|im_start|>user\n{input}<|im_end|>\n<|im_start|>assistant\n"),
    prompt="Represent the user's input.",
)
_ROW = "<|image_pad|>"
_IMAGE = ImageText(token=_ROW, view="<|vision_start|>{rows}<|vision_end|>", alone=False)


def add_networks(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Return the facts of the language model, with those of its network of images. spec: without sizes."""
    if folder.modules:
        raise ModelUnavailable(f"{folder.root / 'modules.json'}: not supported for model_type {QWEN_VL}")
    config, judge = folder.config, find_template(folder)
    texts = config.section("text_config", _TEXT_DEFAULTS)
    images = config.section("vision_config", _IMAGE_DEFAULTS)
    width = texts.whole("hidden_size", most=WIDTH_LIMIT)
    if images.whole("out_hidden_size", most=WIDTH_LIMIT) != width:
        raise ModelUnavailable(f"{config.path}: out_hidden_size of vision_config must be hidden_size of text_config")
    found = _images(folder, spec, images)
    token = config.whole("image_token_id", 151_655, least=0, most=2**31)
    if find_ids(spec.tokenizer, (_ROW,)) != {_ROW: token}:
        raise ModelUnavailable(f"{config.path}: image_token_id {token} is not {_ROW} in the tokenizer")
    tied = config.flag("tie_word_embeddings", False)
    refuse_unread(config, {**CONFIG, **harmless("videos are not served, and the tokenizer has the others", _IDS)})
    limit: float = folder.tokenizer_config.value("model_max_length", Limit, MAX_TOKENS)
    positions = texts.whole("max_position_embeddings", most=2**31)
    return replace(
        spec,
        config=Settings(
            config.path,
            {
                **texts.fields,
                "model_type": _TEXTS,
                "tie_word_embeddings": tied,
                "deepstack_layers": len(found.config["deepstack_visual_indexes"]),
            },
            folder.allowed,
        ),
        model_type=_TEXTS,
        architecture=_TEXTS,
        hidden_size=width,
        max_tokens=int(min(limit, MAX_TOKENS, positions)),
        images=replace(found, fingerprint=fingerprint(found)),
        others=("visual.", "model.visual."),
        image_text=_IMAGE,
        template=_EMBEDDER if judge is None else _template_of(judge),
        coordinates=3,
    )


_IDS = "video_token_id vision_start_token_id vision_end_token_id"


def _template_of(judge: YesNo) -> InputTemplate:
    body = str(judge.body).replace("{instruction}", "{prompt}").replace("{document}", "{input}")
    return InputTemplate(text=judge.prefix + body + judge.suffix, prompt=judge.instruction)


def _images(folder: ModelFolder, spec: ModelSpec, config: Settings) -> ModelSpec:
    settings, processor = _read_processor(folder, config)
    taps: list[int] = config.value("deepstack_visual_indexes", list[int])
    section = {
        **config.fields,
        **pixel_settings(settings, TOWERS["clip"].processor_defaults),
        "model_type": _IMAGES,
        "max_position_embeddings": processor.rows,
        "vocab_size": 1,
    }
    refuse_unused(settings, "min_pixels max_pixels size")  # the models' own script has other limits
    return replace(
        spec,
        config=Settings(config.path, section, folder.allowed),
        model_type=_IMAGES,
        architecture=_IMAGES,
        tokenizer=settings.path,
        others=("language_model.", "model.language_model.", "lm_head."),
        outputs=frozenset({"dense"}),
        hidden_size=(1 + len(taps)) * config.whole("hidden_size", most=WIDTH_LIMIT),
        max_tokens=processor.rows,
        pooling="attention",
        dimensions=(1 + len(taps)) * config.whole("out_hidden_size", most=WIDTH_LIMIT),
        processor=processor,
        coordinates=8,
    )


def _read_processor(folder: ModelFolder, config: Settings) -> tuple[Settings, ImageProcessor]:
    settings = image_settings(folder, "Qwen2VL")
    names = ("patch_size", "spatial_merge_size", "temporal_patch_size")
    patch, merge, frames = (config.whole(name, most=256) for name in names)
    for key, own, default in (("patch_size", patch, 14), ("merge_size", merge, 2), ("temporal_patch_size", frames, 2)):
        settings.one_of(key, (own,), default)
    return settings, ImageProcessor(
        resample=settings.whole("resample", 3, least=0, most=5),
        patch=patch,
        class_token=False,
        merge=merge,
        free=FreeSize(
            min_pixels=MIN_BLOCKS * BLOCK**2,
            max_pixels=MAX_BLOCKS * BLOCK**2,
            side=isqrt(config.whole("num_position_embeddings", most=2**20)),
        ),
    )
