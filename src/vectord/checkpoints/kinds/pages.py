"""Models that read images of pages, with one vector for each part of an image and each token of a text: ColModernVBERT,
ColPali and ColQwen. reader.py calls `add_pages`.

The spec is that of the texts, in which images are rows; `images` is the network that makes those. Each has the section
of config.json that describes its network, completed by the defaults of its class in transformers 5.24.

The words around images and queries are those that the models were trained with. Those of ColPali are transformers'
processor's. Those of ColQwen2 are colpali_engine's before version 0.3.11, which left out the prefix of queries, and
transformers' before it put a line break after queries, as in 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

import msgspec
from msgspec.structs import replace

from vectord.checkpoints.checkpoint import find_tensor
from vectord.checkpoints.config_keys import class_defaults, harmless, refuse_unread, refuse_unread_config
from vectord.checkpoints.files.read import Settings, read_settings
from vectord.checkpoints.folder import WIDTH_LIMIT, ModelFolder
from vectord.checkpoints.kinds.qwen_vl import GENERATIONS, ROW, read_networks
from vectord.checkpoints.kinds.towers import (
    SIGLIP_PIXELS,
    Limit,
    image_settings,
    pixel_settings,
    read_filter,
    read_layer,
    read_shape,
    read_sides,
    refuse_unused,
    second_network,
)
from vectord.checkpoints.spec import Colbert, ImageProcessor, ImageText, ModelSpec, Pooling, PromptText, Tiling
from vectord.errors import ConfigError, ModelUnavailable

_IMAGE = "<image>"
_QWEN_PROMPT = f"<|im_start|>user\n<|vision_start|>{ROW}<|vision_end|>Describe the image."
_QWEN_END = "<|im_end|><|endoftext|>"


class Pages(msgspec.Struct, frozen=True, kw_only=True):
    """One model_type. The names and the defaults are those of transformers 5.24."""

    # Those of qwen_vl.py leave these out, down to `row`.
    model_type: str = ""  # of its vlm_config
    text_type: str = ""  # of the network of texts
    processor: str = ""  # the class of the images' processor
    tiles: bool = False  # whether that divides images
    resample: int = 3  # Pillow's number of its default filter
    row: str = _IMAGE  # the token of the rows of images
    prompt: str  # visual_prompt_prefix
    around: str = "{prompt}"  # an image and the prompt
    query_prefix: str
    before: str = ""  # that prefix
    suffix: str  # after a query
    framed: bool | None = None  # False: `around`, `before` and `suffix` have all special tokens
    view: str = "{rows}"  # see ImageText
    tile: str = ""


_COLQWEN2 = Pages(row=ROW, prompt=_QWEN_PROMPT + _QWEN_END, query_prefix="Query: ", suffix="<|endoftext|>" * 10)
PAGES: Mapping[str, Pages] = {
    "colmodernvbert": Pages(
        model_type="modernvbert",
        text_type="modernbert",
        processor="Idefics3",
        tiles=True,
        resample=1,
        prompt=f"<|begin_of_text|>User:{_IMAGE}Describe the image.<end_of_utterance>\nAssistant:",
        query_prefix="",
        suffix="<end_of_utterance>" * 10,
        view="<fake_token_around_image><global-img>{rows}<fake_token_around_image>",
        tile="<fake_token_around_image><row_{row}_col_{column}>{rows}",
    ),
    "colpali": Pages(
        model_type="paligemma",
        text_type="gemma",
        processor="Siglip",
        prompt="Describe the image.",
        around=f"{_IMAGE}<bos>{{prompt}}\n",
        query_prefix="Question: ",
        before="<bos>",
        suffix="<pad>" * 10 + "\n",
        framed=False,
    ),
    "colqwen2": _COLQWEN2,
    # Its reference is tomoro's own class, or colpali_engine's.
    "colqwen3": replace(_COLQWEN2, query_prefix=""),
}
# Prefixes of the tensors of each network, in files of all versions.
_LAYERS = ("embedding_proj_layer", "custom_text_proj")  # to the vectors: of transformers, of colpali_engine
_OUTER = ("vlm.", "vlm.model.", "model.", "model.model.")
_TEXTS = ("vlm.text_model.", *(f"{outer}language_model." for outer in _OUTER), *(f"{layer}." for layer in _LAYERS))
_IMAGES = ("vlm.vision_model.", *(f"{outer}vision_tower." for outer in _OUTER))
_CONNECTORS = ("vlm.connector.", *(f"{outer}multi_modal_projector." for outer in _OUTER))
_VISION = tuple(outer + inner for outer in _IMAGES for inner in ("", "vision_model."))
_TOMOROS_BLOCKS = 1280  # of an image: max_num_visual_tokens of its processor
_PROCESSOR = {
    **harmless("names, and the settings of images", "auto_map image_processor processor_class"),
    **harmless("conversations are not pages", "chat_template"),
    **harmless("videos are not pages", "video_processor video_prompt_prefix video_prompt_suffix"),
}
_HARMLESS = {
    **harmless("the tokenizer has it", "image_token_id image_token_index"),
    **harmless("only heads of the base model read it", "classifier_bias classifier_dropout classifier_pooling"),
    **harmless("training only", "initializer_cutoff_factor"),
    **harmless("the sections have it", "hidden_size projection_dim vocab_size"),
}


def add_pages(folder: ModelFolder, spec: ModelSpec, pooling: Pooling | None) -> ModelSpec:
    """Return the spec of texts, with that of images. spec: the facts of every model, without sizes."""
    if pooling is not None:
        raise ConfigError(f"pooling {pooling}: {folder.root} has a vector for each token")
    pages, config = PAGES[folder.model_type], folder.config
    is_native = "vlm_config" in config  # of transformers' class
    whole = config.section("vlm_config") if is_native else config
    spec = (_add_qwen if pages.row == ROW else _add_siglip)(folder, spec, whole)
    name = next((each for each in _LAYERS if find_tensor(spec.weights, f"{each}.weight")), _LAYERS[0])
    layer = read_layer(spec, name, spec.hidden_size, bias=True)
    assert spec.images is not None and spec.images.processor is not None, "of a model of pages"
    around, query = _prompts(folder, pages, spec.images.processor)
    if is_native:
        config.one_of("auto_map", (None,))
        refuse_unread_config(config, folder.model_type, harmless("the tensor has it", "embedding_dim"))
    limit: float = folder.tokenizer_config.value("model_max_length", Limit, spec.max_tokens)
    return replace(
        spec,
        outputs=frozenset({"colbert", "tokens"}),
        max_tokens=int(min(spec.max_tokens, limit)),
        prompts={name: text for name, text in (("query", query), ("document", pages.before)) if text},
        colbert=Colbert(
            dimensions=layer.out_features, dense_modules=(layer,), query_suffix=pages.suffix, framed=pages.framed
        ),
        image_text=ImageText(token=pages.row, view=pages.view, tile=pages.tile, around=around, framed=pages.framed),
        # transformers' class gives its texts plain positions, whatever images they have.
        coordinates=None if is_native or pages.row != ROW else 3,
    )


def _add_qwen(folder: ModelFolder, spec: ModelSpec, whole: Settings) -> ModelSpec:
    """The facts of both networks. whole: the config with their sections. tomoro's class has its own limit of images."""
    is_tomoros = whole.get("model_type") == "colqwen3"
    if is_tomoros:  # its class (auto_map) is known; the tensor has embed_dim, and nothing is padded here
        own = {"auto_map", "embed_dim", "padding_side"}
        whole = whole.of({key: value for key, value in whole.items() if key not in own})
    generation = "qwen3_vl" if is_tomoros else str(whole.get("model_type"))
    if generation not in GENERATIONS:
        raise ModelUnavailable(
            f"{whole.path}: model_type {generation[:80]} is not supported in vlm_config; supported are "
            f"{', '.join(GENERATIONS)}"
        )
    return read_networks(folder, spec, whole, generation, max_blocks=_TOMOROS_BLOCKS if is_tomoros else None)


def _add_siglip(folder: ModelFolder, spec: ModelSpec, whole: Settings) -> ModelSpec:
    """The same, of a SigLIP for images."""
    pages, config = PAGES[folder.model_type], folder.config
    # Gemma's texts attend to all of it, as its images do: the processor marks no part of them as a suffix.
    causal = {"is_causal": False, "use_bidirectional_attention": None} if pages.text_type == "gemma" else {}
    given = whole.value("text_config", dict[str, Any], {})
    texts = config.of({**class_defaults(pages.text_type), **given, **causal, "model_type": pages.text_type})
    width = texts.whole("hidden_size", most=WIDTH_LIMIT)
    images = _images(folder, spec, whole, width)
    refuse_unread_config(whole, pages.model_type, _HARMLESS)
    return replace(
        spec,
        config=texts,
        hidden_size=width,
        max_tokens=texts.whole("max_position_embeddings", most=WIDTH_LIMIT),
        images=images,
        others=(*_IMAGES, *_CONNECTORS),
    )


def _images(folder: ModelFolder, spec: ModelSpec, whole: Settings, width: int) -> ModelSpec:
    """The network of images. width: of the rows that it gives to texts."""
    pages = PAGES[folder.model_type]
    settings = image_settings(folder, pages.processor)
    merge = whole.whole("pixel_shuffle_factor", 4, most=64) if pages.tiles else 1
    patches = "embeddings.patch_embedding.weight"
    prefix = next((each for each in _VISION if find_tensor(spec.weights, each + patches)), _VISION[0])
    _, (*_, side) = read_shape(spec, prefix + patches, 4)
    _, (positions, inner) = read_shape(spec, f"{prefix}embeddings.position_embedding.weight", 2)
    processor = read_processor(settings, pages, side, merge)
    size, _ = processor.crop
    if processor.rows != positions or isqrt(positions) ** 2 != positions or isqrt(positions) % merge:
        raise ModelUnavailable(
            f"{settings.path}: {size} pixels have {processor.rows} patches; those must be the network's {positions} "
            f"positions, in whole blocks of {merge} x {merge}"
        )
    section = {
        **class_defaults("siglip_vision_model"),
        **whole.value("vision_config", dict[str, Any], {}),
        **pixel_settings(settings, SIGLIP_PIXELS),
        "model_type": "siglip_vision_model",
        "max_position_embeddings": positions,
        "vocab_size": positions,
        "patch_size": side,
        "merge_size": merge,
        "projection_dim": width,
    }
    refuse_unused(settings, "crop_size return_row_col_info")
    return second_network(
        spec,
        folder.config.of(section),
        model_type=spec.model_type,
        architecture=spec.architecture,
        tokenizer=settings.path,
        hidden_size=inner,
        dimensions=width,
        processor=processor,
        others=_TEXTS,
    )


def read_processor(settings: Settings, pages: Pages, patch: int, merge: int) -> ImageProcessor:
    """Return how images are resized, and divided into tiles by a class that does. patch, merge: sides, in pixels and in
    patches."""
    tiling = None
    if pages.tiles:
        settings.one_of("do_image_splitting", (None, True))
        (longest,), (side,) = (
            read_sides(settings, key, {"longest_edge": most}, ("longest_edge",))
            for key, most in (("size", 1456), ("max_image_size", 364))
        )
        tiling = Tiling(longest_edge=longest, side=side)
    else:
        settings.one_of("do_center_crop", (None, False))
        side, width = read_sides(settings, "size", {"height": 224, "width": 224}, ("height", "width"))
        if side != width:
            raise ModelUnavailable(f"{settings.path}: size must be a square")
    return ImageProcessor(
        resize=(side, side),
        resample=read_filter(settings, pages.resample),
        crop=(side, side),
        patch=patch,
        class_token=False,
        merge=merge,
        tiling=tiling,
    )


def _prompts(folder: ModelFolder, pages: Pages, processor: ImageProcessor) -> tuple[str, str]:
    """The words around an image, with the place {image}, and those before a query."""
    whole = read_settings(folder.tokenizer / "processor_config.json", optional=True, allowed=folder.allowed)
    rows = processor.rows // (processor.merge or 1) ** 2
    if whole.whole("image_seq_len", rows, most=WIDTH_LIMIT) != rows:
        raise ModelUnavailable(f"{whole.path}: image_seq_len must be {rows}, the rows that the network makes of a view")
    prompt = whole.value("visual_prompt_prefix", PromptText) or pages.prompt
    if "visual_prompt_suffix" in whole:  # tomoro's
        prompt = prompt.removesuffix(_QWEN_END) + whole.value("visual_prompt_suffix", PromptText, _QWEN_END)
    around = pages.around.replace("{prompt}", prompt)
    if around.count(pages.row) != 1:
        raise ModelUnavailable(
            f"{whole.path}: visual_prompt_prefix must have {pages.row} {pages.prompt.count(pages.row)} times"
        )
    query = pages.before + (whole.value("query_prefix", PromptText) or pages.query_prefix)
    refuse_unread(whole, _PROCESSOR)
    return around.replace(pages.row, "{image}"), query
