"""The two networks of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: a language model that reads images, and one of images.

reader.py calls `add_networks` for Qwen3-VL's embedders and rerankers and for GME-Qwen2-VL, before the facts of the
kind. The models' own scripts are their reference (github.com/QwenLM/Qwen3-VL-Embedding, src/models; GME's
modeling_gme_qwen2vl.py): they resize images within limits of their own, so those of preprocessor_config.json have no
effect. pages.py reads models of pages with the other functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any

import msgspec
from msgspec.structs import replace

from vectord.checkpoints.config_keys import CONFIG, harmless, refuse_unread, transformers_reads
from vectord.checkpoints.files.read import Settings
from vectord.checkpoints.fingerprint import fingerprint
from vectord.checkpoints.folder import WIDTH_LIMIT, ModelFolder, is_gme
from vectord.checkpoints.kinds.scores import find_template
from vectord.checkpoints.kinds.towers import TOWERS, Limit, image_settings, pixel_settings, refuse_unused
from vectord.checkpoints.spec import FreeSize, ImageProcessor, ImageText, InputTemplate, ModelSpec, YesNo
from vectord.checkpoints.vocabulary import find_ids
from vectord.errors import ModelUnavailable

QWEN_VL = frozenset({"qwen2_vl", "qwen3_vl"})
MAX_TOKENS = 32_768  # the length that the models are published with; config.json has that of the language model
BLOCK = 32  # pixels of the side of a block of patches, for which the scripts have their limits
MIN_BLOCKS, MAX_BLOCKS = 4, 1800
_PIXELS_LIMIT = 2**26  # of an image, as of a file
ROW = "<|image_pad|>"


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults of the classes of one model_type in transformers 5.24, which files may leave out."""

    text_defaults: Mapping[str, Any]
    image_defaults: Mapping[str, Any]


_IMAGE_DEFAULTS = {"in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_heads": 16}
_OLDER_TEXT_DEFAULTS = {
    "vocab_size": 152_064,
    "hidden_size": 8192,
    "intermediate_size": 29_568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "max_window_layers": 80,
    "rms_norm_eps": 1e-5,
}
GENERATIONS: Mapping[str, Generation] = {
    "qwen2_vl": Generation(
        text_defaults=_OLDER_TEXT_DEFAULTS,
        image_defaults={
            **_IMAGE_DEFAULTS,
            "depth": 32,
            "embed_dim": 1280,
            "hidden_size": 3584,
            "hidden_act": "quick_gelu",
            "mlp_ratio": 4,
            "patch_size": 14,
        },
    ),
    "qwen2_5_vl": Generation(
        text_defaults=_OLDER_TEXT_DEFAULTS,
        image_defaults={
            **_IMAGE_DEFAULTS,
            "depth": 32,
            "hidden_size": 3584,
            "hidden_act": "silu",
            "intermediate_size": 3420,
            "patch_size": 14,
            "out_hidden_size": 3584,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
    ),
    "qwen3_vl": Generation(
        text_defaults={
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
        },
        image_defaults={
            **_IMAGE_DEFAULTS,
            "depth": 27,
            "hidden_size": 1152,
            "hidden_act": "gelu_pytorch_tanh",
            "intermediate_size": 4304,
            "patch_size": 16,
            "out_hidden_size": 3584,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [8, 16, 24],
        },
    ),
}
_EMBEDDER = InputTemplate(
    text=("<|im_start|>system\n{prompt}<|im_end|>\n<|im_start|>user\n{input}<|im_end|>\n<|im_start|>assistant\n"),
    prompt="Represent the user's input.",
)
# GME's script puts an image before a text; here they stay in the order given.
_GME = InputTemplate(text=_EMBEDDER.text + "<|endoftext|>", prompt="You are a helpful assistant.", keeps_prompt=True)
_GME_MAX_TOKENS, _GME_BLOCKS = 1800, (256, 1280)  # defaults of its config: of an input, and of an image
_GME_BLOCK = 28  # pixels, for which its script has its limits
_GME_FIRST = (4 * _GME_BLOCK**2, 16_384 * _GME_BLOCK**2)
_IMAGE = ImageText(token=ROW, view="<|vision_start|>{rows}<|vision_end|>", alone=False)
# What older files have in place of text_config, and some files next to it.
_TEXT_KEYS = (
    *("attention_bias", "layer_types", "rope_parameters", "rope_scaling", "rope_theta", "sliding_window"),
    *("use_sliding_window", *_OLDER_TEXT_DEFAULTS),
)
_HARMLESS = {
    **CONFIG,
    **harmless("text_config has it", " ".join(_TEXT_KEYS)),
    **harmless(
        "videos are not served, and the tokenizer has the others",
        "video_token_id vision_start_token_id vision_end_token_id",
    ),
}
# Beginnings of the names of tensors: see compute/networks/qwen_vl.py.
_OUTER = ("", "model.", "vlm.", "vlm.model.")
_TEXTS = (
    *("embedding_proj_layer.", "custom_text_proj.", *(f"{outer}language_model." for outer in _OUTER)),
    # Older files have the layers of texts next to `visual`.
    *(f"{outer}{name}." for outer in _OUTER for name in ("embed_tokens", "layers", "norm", "lm_head")),
)


def add_networks(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Return the facts of the language model, with those of its network of images. spec: without sizes."""
    if folder.modules:
        raise ModelUnavailable(f"{folder.root / 'modules.json'}: not supported for model_type {folder.model_type}")
    if folder.model_type == "qwen2_vl":
        spec = _read_gme(folder, spec)
    else:
        judge = find_template(folder)
        spec = replace(
            read_networks(folder, spec, folder.config, folder.model_type, _script_limits),
            template=_EMBEDDER if judge is None else _template_of(judge),
            coordinates=3,
        )
    model_type = spec.config["model_type"]
    return replace(
        spec,
        model_type=model_type,
        architecture=model_type,
        max_tokens=min(spec.max_tokens, MAX_TOKENS),
        image_text=_IMAGE,
    )


def _read_gme(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """The networks, limits and template of GME-Qwen2-VL. Its class gives texts with images plain positions."""
    config = folder.config
    if not is_gme(config):
        raise ModelUnavailable(
            f"{config.path}: of model_type qwen2_vl, ColQwen2 (architectures) and GmeQwen2VL (auto_map) are supported"
        )
    config = Settings(config.path, {key: value for key, value in config.items() if key != "auto_map"}, config.allowed)
    least, most = (
        config.whole(f"{name}_image_tokens", default, most=2**14) * _GME_BLOCK**2
        for name, default in zip(("min", "max"), _GME_BLOCKS, strict=True)
    )
    length = config.whole("max_length", _GME_MAX_TOKENS, most=MAX_TOKENS)

    def limits(settings: Settings, block: int) -> FreeSize:
        refuse_unused(settings, "min_pixels max_pixels size")
        return FreeSize(min_pixels=least, max_pixels=most, rounds_to_none=True, before=_GME_FIRST)

    spec = read_networks(folder, spec, config, "qwen2_vl", limits)
    return replace(spec, max_tokens=min(spec.max_tokens, length), template=_GME)


def _template_of(judge: YesNo) -> InputTemplate:
    body = str(judge.body).replace("{instruction}", "{prompt}").replace("{document}", "{input}")
    return InputTemplate(text=judge.prefix + body + judge.suffix, prompt=judge.instruction)


def _script_limits(settings: Settings, block: int) -> FreeSize:
    refuse_unused(settings, "min_pixels max_pixels size")  # the models' own script has other limits
    return FreeSize(min_pixels=MIN_BLOCKS * BLOCK**2, max_pixels=MAX_BLOCKS * BLOCK**2)


def file_limits(settings: Settings, block: int) -> FreeSize:
    """Return the limits of images that their settings have, as transformers' processor reads them."""
    size = settings.section("size", {"shortest_edge": 56**2, "longest_edge": 1280 * 28**2})
    least, most = (
        settings.whole(name, size.get(name) or size.whole(edge, most=_PIXELS_LIMIT), most=_PIXELS_LIMIT)
        for name, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
    )
    refuse_unread(size, harmless("min_pixels and max_pixels replace them", "longest_edge shortest_edge"))
    refuse_unused(settings, "")
    return FreeSize(min_pixels=least, max_pixels=most, rounds_to_none=True)


def read_networks(
    folder: ModelFolder,
    spec: ModelSpec,
    config: Settings,
    generation: str,
    limits: Callable[[Settings, int], FreeSize],
) -> ModelSpec:
    """Return the facts of both networks. config: with their sections. spec: without sizes. limits: of images, by their
    settings and the side of a block in pixels; reads the last of the settings."""
    classes = GENERATIONS[generation]
    if config.get("text_config") is None:
        given = {key: config[key] for key in _TEXT_KEYS if key in config}
        texts = Settings(config.path, {**classes.text_defaults, **given}, folder.allowed)
    else:
        texts = config.section("text_config", classes.text_defaults)
    width = texts.whole("hidden_size", most=WIDTH_LIMIT)
    images = _image_section(config, generation)
    if images.whole("out_hidden_size", most=WIDTH_LIMIT) != width:
        raise ModelUnavailable(f"{config.path}: images have rows of another width than hidden_size of the texts")
    found = _images(folder, spec, images, generation, limits)
    token = config.whole("image_token_id", 151_655, least=0, most=2**31)
    if find_ids(spec.tokenizer, (ROW,)) != {ROW: token}:
        raise ModelUnavailable(f"{config.path}: image_token_id {token} is not {ROW} in the tokenizer")
    tied = config.flag("tie_word_embeddings", False)
    refuse_unread(config, _HARMLESS, transformers_reads(config, generation))
    limit: float = folder.tokenizer_config.value("model_max_length", Limit, MAX_TOKENS)
    fields = {**texts.fields, "model_type": f"{generation}_text", "tie_word_embeddings": tied}
    if taps := found.config.get("deepstack_visual_indexes"):
        fields["deepstack_layers"] = len(taps)
    return replace(
        spec,
        config=Settings(config.path, fields, folder.allowed),
        hidden_size=width,
        max_tokens=int(min(limit, texts.whole("max_position_embeddings", most=2**31))),
        images=replace(found, fingerprint=fingerprint(found)),
        others=tuple(f"{outer}visual." for outer in _OUTER),
    )


def _image_section(config: Settings, generation: str) -> Settings:
    """The vision_config, in Qwen3-VL's keys."""
    images = config.section("vision_config", GENERATIONS[generation].image_defaults)
    if generation != "qwen2_vl":
        return images
    fields = dict(images.fields)
    width, ratio = images.whole("embed_dim", most=WIDTH_LIMIT), images.whole("mlp_ratio", most=64)
    del fields["embed_dim"], fields["mlp_ratio"]
    fields |= {"hidden_size": width, "intermediate_size": width * ratio, "out_hidden_size": images["hidden_size"]}
    return Settings(config.path, fields, config.allowed)


def _images(
    folder: ModelFolder,
    spec: ModelSpec,
    config: Settings,
    generation: str,
    limits: Callable[[Settings, int], FreeSize],
) -> ModelSpec:
    settings = image_settings(folder, "Qwen2VL")
    pixels = pixel_settings(settings, TOWERS["clip"].processor_defaults)
    processor = _read_processor(settings, config, limits)
    taps: list[int] = config.value("deepstack_visual_indexes", list[int], [])
    coordinates = None
    model_type, free = f"{generation}_vision", processor.free
    assert free is not None, "of images of any size"
    if free.side is not None:
        coordinates = 8
    elif free.window_blocks is not None:
        coordinates = 1
    section = {
        **config.fields,
        **pixels,
        "model_type": model_type,
        "max_position_embeddings": processor.rows,
        "vocab_size": 1,
    }
    return replace(
        spec,
        config=Settings(config.path, section, folder.allowed),
        model_type=model_type,
        architecture=model_type,
        tokenizer=settings.path,
        others=_TEXTS,
        outputs=frozenset({"dense"}),
        hidden_size=(1 + len(taps)) * config.whole("hidden_size", most=WIDTH_LIMIT),
        max_tokens=processor.rows,
        pooling="attention",
        dimensions=(1 + len(taps)) * config.whole("out_hidden_size", most=WIDTH_LIMIT),
        merged=None,  # an adapter that changes the network of images has tensors that fit no layer of texts
        processor=processor,
        coordinates=coordinates,
    )


def _read_processor(
    settings: Settings, config: Settings, limits: Callable[[Settings, int], FreeSize]
) -> ImageProcessor:
    names = ("patch_size", "spatial_merge_size", "temporal_patch_size")
    patch, merge, frames = (config.whole(name, most=256) for name in names)
    for key, own, default in (("patch_size", patch, 14), ("merge_size", merge, 2), ("temporal_patch_size", frames, 2)):
        settings.one_of(key, (own,), default)
    resample = settings.whole("resample", 3, least=0, most=5)
    free = limits(settings, patch * merge)
    if "num_position_embeddings" in config:
        free = replace(free, side=isqrt(config.whole("num_position_embeddings", most=2**20)))
    if "window_size" in config:
        free = replace(free, window_blocks=max(config.whole("window_size", most=4096) // merge // patch, 1))
    return ImageProcessor(resample=resample, patch=patch, class_token=False, merge=merge, free=free)
