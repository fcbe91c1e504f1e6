"""The two networks of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: a language model that reads images, and one of images.

reader.py calls `add_networks` for Qwen3-VL's embedders and rerankers and for GME-Qwen2-VL, before the facts of the
kind. The models' own scripts are their reference (github.com/QwenLM/Qwen3-VL-Embedding, src/models; GME's
modeling_gme_qwen2vl.py): they resize images within limits of their own, so those of preprocessor_config.json have no
effect. pages.py reads models of pages with `read_networks`.
"""

from __future__ import annotations

from math import isqrt

from msgspec.structs import replace

from vectord.checkpoints.config_keys import class_defaults, harmless, refuse_unread, refuse_unread_config
from vectord.checkpoints.files.read import Settings
from vectord.checkpoints.folder import WIDTH_LIMIT, ModelFolder, is_gme
from vectord.checkpoints.kinds.scores import find_template
from vectord.checkpoints.kinds.towers import (
    CLIP_PIXELS,
    Limit,
    image_settings,
    pixel_settings,
    read_filter,
    refuse_unused,
    second_network,
)
from vectord.checkpoints.spec import FreeSize, ImageProcessor, ImageText, InputTemplate, ModelSpec
from vectord.checkpoints.vocabulary import find_ids
from vectord.errors import ModelUnavailable

QWEN_VL = frozenset({"qwen2_vl", "qwen3_vl"})
GENERATIONS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")  # model_types of transformers' classes
MAX_TOKENS = 32_768  # the length that the models are published with; config.json has that of the language model
BLOCK = 32  # pixels of the side of a block of patches, for which the scripts have their limits
MIN_BLOCKS, MAX_BLOCKS = 4, 1800
_PIXELS_LIMIT = 2**26  # of an image, as of a file
ROW = "<|image_pad|>"

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
    "attention_bias layer_types rope_parameters rope_scaling rope_theta sliding_window use_sliding_window vocab_size "
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act "
    "max_position_embeddings max_window_layers rms_norm_eps"
)
_HARMLESS = {
    **harmless("text_config has it", _TEXT_KEYS),
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
    config = folder.config
    if folder.modules:
        raise ModelUnavailable(f"{folder.root / 'modules.json'}: not supported for model_type {folder.model_type}")
    if folder.model_type == "qwen2_vl":
        if not is_gme(config):
            raise ModelUnavailable(
                f"{config.path}: of model_type qwen2_vl, ColQwen2 (architectures) and GmeQwen2VL (auto_map) are "
                "supported"
            )
        config = config.of({key: value for key, value in config.items() if key != "auto_map"})
        least, most = (
            config.whole(f"{name}_image_tokens", default, most=2**14) * _GME_BLOCK**2
            for name, default in zip(("min", "max"), _GME_BLOCKS, strict=True)
        )
        max_tokens = config.whole("max_length", _GME_MAX_TOKENS, most=MAX_TOKENS)
        limits = FreeSize(min_pixels=least, max_pixels=most, rounds_to_none=True, before=_GME_FIRST)
        template, coordinates = _GME, None  # its class gives texts with images plain positions
    else:
        limits = FreeSize(min_pixels=MIN_BLOCKS * BLOCK**2, max_pixels=MAX_BLOCKS * BLOCK**2)
        max_tokens, template, coordinates = MAX_TOKENS, _EMBEDDER, 3
        if (judge := find_template(folder)) is not None:
            body = str(judge.body).replace("{instruction}", "{prompt}").replace("{document}", "{input}")
            template = InputTemplate(text=judge.prefix + body + judge.suffix, prompt=judge.instruction)
    spec = read_networks(folder, spec, config, folder.model_type, limits)
    model_type = spec.config["model_type"]
    return replace(
        spec,
        model_type=model_type,
        architecture=model_type,
        max_tokens=min(spec.max_tokens, max_tokens),
        image_text=_IMAGE,
        template=template,
        coordinates=coordinates,
    )


def read_networks(
    folder: ModelFolder,
    spec: ModelSpec,
    config: Settings,
    generation: str,
    limits: FreeSize | None = None,
    max_blocks: int | None = None,
) -> ModelSpec:
    """Return the facts of both networks. config: with their sections. spec: without sizes. limits: of images; None:
    those of the file. max_blocks: of patches in an image, in place of the file's."""
    defaults = class_defaults(f"{generation}_text")
    if config.get("text_config") is None:
        texts = config.of({**defaults, **{key: config[key] for key in _TEXT_KEYS.split() if key in config}})
    else:
        texts = config.section("text_config", defaults)
    width = texts.whole("hidden_size", most=WIDTH_LIMIT)
    images = config.section("vision_config", class_defaults(f"{generation}_vision"))
    if generation == "qwen2_vl":  # to the keys of the others
        inner, ratio = images.whole("embed_dim", most=WIDTH_LIMIT), images.whole("mlp_ratio", most=64)
        own = {"hidden_size": inner, "intermediate_size": inner * ratio, "out_hidden_size": images["hidden_size"]}
        fields = {key: value for key, value in images.items() if key not in ("embed_dim", "mlp_ratio")}
        images = config.of({**fields, **own})
    if images.whole("out_hidden_size", most=WIDTH_LIMIT) != width:
        raise ModelUnavailable(f"{config.path}: images have rows of another width than hidden_size of the texts")
    found = _images(folder, spec, images, generation, limits, max_blocks)
    token = config.whole("image_token_id", 151_655, least=0, most=2**31)
    if find_ids(spec.tokenizer, (ROW,)) != {ROW: token}:
        raise ModelUnavailable(f"{config.path}: image_token_id {token} is not {ROW} in the tokenizer")
    tied = config.flag("tie_word_embeddings", False)
    refuse_unread_config(config, generation, _HARMLESS)
    limit: float = folder.tokenizer_config.value("model_max_length", Limit, MAX_TOKENS)
    further = {"model_type": f"{generation}_text", "tie_word_embeddings": tied}
    if taps := found.config.get("deepstack_visual_indexes"):
        further["deepstack_layers"] = len(taps)
    return replace(
        spec,
        config=config.of({**texts.fields, **further}),
        hidden_size=width,
        max_tokens=int(min(limit, texts.whole("max_position_embeddings", most=2**31))),
        images=found,
        others=tuple(f"{outer}visual." for outer in _OUTER),
    )


def _images(
    folder: ModelFolder,
    spec: ModelSpec,
    config: Settings,
    generation: str,
    limits: FreeSize | None,
    max_blocks: int | None,
) -> ModelSpec:
    settings = image_settings(folder, "Qwen2VL")
    pixels = pixel_settings(settings, CLIP_PIXELS)
    names = ("patch_size", "spatial_merge_size", "temporal_patch_size")
    patch, merge, frames = (config.whole(name, most=256) for name in names)
    for key, own, default in (("patch_size", patch, 14), ("merge_size", merge, 2), ("temporal_patch_size", frames, 2)):
        settings.one_of(key, (own,), default)
    resample = read_filter(settings)
    free = _file_limits(settings) if limits is None else limits
    refuse_unused(settings, "" if limits is None else "min_pixels max_pixels size")
    if max_blocks is not None:
        free = replace(free, max_pixels=max_blocks * (patch * merge) ** 2)
    coordinates = None
    if "window_size" in config:
        coordinates = 1
        free = replace(free, window_blocks=max(config.whole("window_size", most=4096) // merge // patch, 1))
    if "num_position_embeddings" in config:
        coordinates = 8
        free = replace(free, side=isqrt(config.whole("num_position_embeddings", most=2**20)))
    processor = ImageProcessor(resample=resample, patch=patch, class_token=False, merge=merge, free=free)
    taps: list[int] = config.value("deepstack_visual_indexes", list[int], [])
    further = {"model_type": f"{generation}_vision", "max_position_embeddings": processor.rows, "vocab_size": 1}
    return second_network(
        spec,
        config.of({**config.fields, **pixels, **further}),
        tokenizer=settings.path,
        others=_TEXTS,
        hidden_size=(1 + len(taps)) * config.whole("hidden_size", most=WIDTH_LIMIT),
        dimensions=(1 + len(taps)) * config.whole("out_hidden_size", most=WIDTH_LIMIT),
        merged=None,  # an adapter that changes the network of images has tensors that fit no layer of texts
        processor=processor,
        coordinates=coordinates,
    )


def _file_limits(settings: Settings) -> FreeSize:
    """The limits of images that their settings have, as transformers' processor reads them."""
    size = settings.section("size", {"shortest_edge": 56**2, "longest_edge": 1280 * 28**2})
    least, most = (
        settings.whole(name, size.get(name) or size.whole(edge, most=_PIXELS_LIMIT), most=_PIXELS_LIMIT)
        for name, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
    )
    refuse_unread(size, harmless("min_pixels and max_pixels replace them", "longest_edge shortest_edge"))
    return FreeSize(min_pixels=least, max_pixels=most, rounds_to_none=True)
