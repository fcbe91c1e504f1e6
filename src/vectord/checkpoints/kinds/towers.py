"""Models with one network for texts and one for images, both in one file: CLIP, SigLIP 1 and 2. reader.py calls this.

The spec of the texts has that of the images, `images`; each has the section of config.json that describes its network,
completed by the defaults of its class in transformers, which files leave out. Sizes are those of the tensors. The
modules of other models with two networks use the functions after `add_towers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from vectord.checkpoints.checkpoint import find_tensor
from vectord.checkpoints.config_keys import class_defaults, harmless, refuse_unread, refuse_unread_config
from vectord.checkpoints.files.read import Settings, read_settings
from vectord.checkpoints.fingerprint import fingerprint
from vectord.checkpoints.folder import ModelFolder
from vectord.checkpoints.spec import DenseModule, ImageProcessor, ModelSpec, Pooling
from vectord.checkpoints.vocabulary import read_vocabulary, token_text
from vectord.errors import ConfigError, ModelUnavailable

Triple = tuple[float, float, float]
Limit = Annotated[float, Meta(ge=1)]
SIDE_LIMIT = 4096  # of an image or tile, as in Idefics3's processor
_Side = Annotated[int, Meta(ge=1, le=SIDE_LIMIT)]
CLIP_PIXELS = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
SIGLIP_PIXELS = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}
_POSITIONS = "embeddings.position_embedding.weight"
# The table that scales positions has as many rows as lines of up to so many patches have patches together.
_PATCHES_LIMIT = 1024
_TEXTS, _IMAGES = "text_model", "vision_model"
_UNUSED = {  # keys of the settings of images
    **harmless(
        "images are always converted to RGB, and have no padding",
        "data_format default_to_square device disable_grouping do_convert_rgb do_pad input_data_format",
    ),
    **harmless("names, and the number of rows", "image_processor_type image_seq_length processor_class return_tensors"),
}


class Towers(msgspec.Struct, frozen=True, kw_only=True):
    """One model_type. The names of its classes and the defaults are those of transformers 5.24."""

    text_layer: str = "text_model.head"  # the projection of texts
    image_layer: str | None = None  # the projection of images; None: a head pools and projects
    processor: str  # the class of the images' processor
    defaults: Mapping[str, Any]  # of that class


TOWERS: Mapping[str, Towers] = {
    "clip": Towers(
        text_layer="text_projection",
        image_layer="visual_projection",
        processor="CLIP",
        defaults={
            "size": {"shortest_edge": 224},
            "crop_size": {"height": 224, "width": 224},
            "do_center_crop": True,
            **CLIP_PIXELS,
        },
    ),
    "siglip": Towers(
        processor="Siglip",
        defaults={"size": {"height": 224, "width": 224}, "do_center_crop": False, **SIGLIP_PIXELS},
    ),
    # NaFlex; SigLIP 2 with images of one size is a siglip.
    "siglip2": Towers(
        processor="Siglip2",
        defaults={**SIGLIP_PIXELS, "resample": 2, "patch_size": 16, "max_num_patches": 256},
    ),
}


def add_towers(folder: ModelFolder, spec: ModelSpec, pooling: Pooling | None) -> ModelSpec:
    """Return the spec of texts, with that of images. spec: the facts of every model, without sizes."""
    if pooling is not None:
        raise ConfigError(f"pooling {pooling}: {folder.root} has its own, for texts and for images")
    towers, config = TOWERS[folder.model_type], folder.config
    text, images = _section(folder, "text"), _section(folder, "vision")
    own = harmless("the tensors have it", "projection_dim logit_scale_init_value")
    refuse_unread_config(config, folder.model_type, own)
    tokenizer = str(folder.tokenizer_config.get("tokenizer_class")).removesuffix("Fast")
    is_siglip = towers.image_layer is None
    if is_siglip:
        default = "left" if tokenizer in ("GemmaTokenizer", "Siglip2Tokenizer") else "right"
        folder.tokenizer_config.one_of("padding_side", ("right",), default)
    removes = tokenizer == "SiglipTokenizer"
    lowers = tokenizer == "Siglip2Tokenizer" or (removes and folder.tokenizer_config.flag("do_lower_case", True))
    _, (positions, width) = read_shape(spec, f"{_TEXTS}.{_POSITIONS}", 2)
    _, (words, _) = read_shape(spec, f"{_TEXTS}.embeddings.token_embedding.weight", 2)
    layer = read_layer(spec, towers.text_layer, width, bias=is_siglip)
    limit: float = folder.tokenizer_config.value("model_max_length", Limit, positions)
    return replace(
        spec,
        config=config.of({**text, "max_position_embeddings": positions, "vocab_size": words}),
        model_type=text["model_type"],
        architecture=text["model_type"],
        outputs=frozenset({"dense"}),
        hidden_size=width,
        max_tokens=int(min(positions, limit)),
        lowercase=spec.lowercase or lowers,
        removes_punctuation=removes or None,
        pooling="last",
        dense_modules=(layer,),
        dimensions=layer.out_features,
        others=tuple(f"{part}." for part in (_IMAGES, towers.image_layer) if part),
        filling=(_padding_id(folder), positions) if is_siglip else None,  # to the longest length, as in training
        images=_images(folder, spec, images, layer.out_features),
    )


def _images(folder: ModelFolder, spec: ModelSpec, config: Mapping[str, Any], dimensions: int) -> ModelSpec:
    towers = TOWERS[folder.model_type]
    settings = image_settings(folder, towers.processor)
    processor, pixels = _steps(settings, towers), pixel_settings(settings, towers.defaults)
    refuse_unused(settings, "crop_size size")  # where images are not cut, or have patches of one size
    _, (positions, width) = read_shape(spec, f"{_IMAGES}.{_POSITIONS}", 2)
    words = 2
    if processor.most_patches is not None:
        positions, config = processor.most_patches, {"num_patches": positions, **config}
        words = positions * (positions + 1) // 2
    else:
        _, (*_, side) = read_shape(spec, f"{_IMAGES}.embeddings.patch_embedding.weight", 4)
        processor = replace(processor, patch=side)
        if processor.rows != positions:
            raise ModelUnavailable(
                f"{settings.path}: images of {processor.crop[0]} x {processor.crop[1]} pixels have {processor.rows} "
                f"rows; the network has {positions} positions"
            )
    modules = () if towers.image_layer is None else (read_layer(spec, towers.image_layer, width, bias=False),)
    found = modules[-1].out_features if modules else width
    if found != dimensions:
        raise ModelUnavailable(f"{spec.folder}: vectors of images have {found} numbers, those of texts {dimensions}")
    sizes = {"max_position_embeddings": positions, "vocab_size": words, "patch_size": processor.patch}
    return second_network(
        spec,
        folder.config.of({**config, **pixels, **sizes}),
        others=(f"{_TEXTS}.", f"{towers.text_layer}."),
        tokenizer=settings.path,
        hidden_size=width,
        pooling="cls" if modules else "attention",
        dense_modules=modules,
        dimensions=dimensions,
        processor=processor,
    )


def _section(folder: ModelFolder, name: str) -> dict[str, Any]:
    """The section of a network. An older one, `text_config_dict`, replaces it in transformers."""
    model_type = f"{folder.model_type}_{name}_model"
    section, older = (folder.config.value(f"{name}_{kind}", dict[str, Any], {}) for kind in ("config", "config_dict"))
    return {**class_defaults(model_type), **(older or section), "model_type": model_type}


def _padding_id(folder: ModelFolder) -> int:
    """The token that the tokenizer fills texts with."""
    path = folder.tokenizer / "tokenizer.json"
    known, fields = read_vocabulary(path)
    padding = fields.get("padding")
    name = token_text(folder.tokenizer_config.get("pad_token")) or ""
    found = known.get(name, padding.get("pad_id") if isinstance(padding, dict) else None)
    if type(found) is not int:
        raise ModelUnavailable(f"{path}: the pad_token of tokenizer_config.json is not among its tokens")
    return found


def _steps(settings: Settings, towers: Towers) -> ImageProcessor:
    """How images are resized and cut; the patch may still be 1."""
    defaults, has_class = towers.defaults, towers.image_layer is not None
    resample = read_filter(settings, defaults.get("resample", 3))
    if "max_num_patches" in defaults:
        settings.one_of("do_center_crop", (None, False))
        patch = settings.whole("patch_size", defaults["patch_size"], most=256)
        most = settings.whole("max_num_patches", defaults["max_num_patches"], most=_PATCHES_LIMIT)
        return ImageProcessor(resample=resample, patch=patch, class_token=has_class, most_patches=most)
    # A number is a shorter side for `size` of CLIP, and a square elsewhere.
    cuts = settings.flag("do_center_crop", defaults["do_center_crop"])
    sizes = [
        read_sides(settings, key, defaults[key], ("shortest_edge",), ("height", "width"))
        for key in ("size", "crop_size")[: 1 + cuts]
    ]
    size, crop = sizes[0], sizes[-1]
    if len(crop) == 1 and cuts:
        crop *= 2
    if len(crop) == 1:
        raise ModelUnavailable(f"{settings.path}: size and crop_size must give all images one size")
    height, width = crop
    return ImageProcessor(
        resize=size[0] if len(size) == 1 else (size[0], size[1]),
        resample=resample,
        crop=(height, width),
        patch=1,
        class_token=has_class,
    )


# --- of all models with two networks --------------------------------------------------------------------------


def second_network(spec: ModelSpec, config: Settings, **facts: Any) -> ModelSpec:
    """Return the network of images, or of passages. spec: of the first network. facts: fields that differ from it."""
    own = {
        "model_type": config["model_type"],
        "architecture": config["model_type"],
        "max_tokens": config["max_position_embeddings"],
        "outputs": frozenset({"dense"}),
        "pooling": "attention",
        **facts,
    }
    network = replace(spec, config=config, **own)
    return replace(network, fingerprint=fingerprint(network))


def image_settings(folder: ModelFolder, processor: str, *, normalizes: bool = True) -> Settings:
    """The settings of images. processor: the name of its class. Raises ModelUnavailable for another one.

    normalizes: whether it must; False: the caller reads that."""
    path = folder.tokenizer / "preprocessor_config.json"
    if path.is_file():
        settings = read_settings(path, allowed=folder.allowed)
    else:  # transformers 5 writes one file for all inputs
        whole = read_settings(folder.tokenizer / "processor_config.json", allowed=folder.allowed)
        settings = whole.section("image_processor")
    suffixes = ("ImageProcessor", "ImageProcessorFast", "FeatureExtractor")
    for key in ("image_processor_type", "feature_extractor_type"):
        settings.one_of(key, (None, *(processor + suffix for suffix in suffixes)))
    for key in ("do_resize", "do_rescale", *(("do_normalize",) if normalizes else ())):
        settings.one_of(key, (None, True))
    return settings


def pixel_settings(settings: Settings, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return how pixels become the numbers of a network, as entries of its config."""
    pixels = {key: settings.value(key, Triple, defaults[key]) for key in ("image_mean", "image_std")}
    return {**pixels, "rescale_factor": settings.value("rescale_factor", float, 1 / 255)}


def read_filter(settings: Settings, default: int = 3) -> int:
    """Return Pillow's number of the filter that resizes images."""
    return settings.whole("resample", default, least=0, most=5)


def read_sides(
    settings: Settings, key: str, default: Mapping[str, int], *supported: tuple[str, ...]
) -> tuple[int, ...]:
    """Return the sizes at `key`, in the order of the names that they have; supported: these names."""
    given = settings.get(key)
    if type(given) is int:
        given = {"shortest_edge": given} if "shortest_edge" in default else {"height": given, "width": given}
    try:
        sides = msgspec.convert({k: v for k, v in (given or default).items() if v is not None}, dict[str, _Side])
    except (msgspec.ValidationError, AttributeError):
        sides = {}
    for names in supported:
        if sides.keys() == set(names):
            return tuple(sides[name] for name in names)
    raise ModelUnavailable(
        f"{settings.path}: {key} {repr(given)[:80]} is not supported; supported are "
        f"{', or '.join(' and '.join(names) for names in supported)}, of 1 to {SIDE_LIMIT:,} pixels"
    )


def refuse_unused(settings: Settings, unused: str) -> None:
    """Raise ModelUnavailable for a setting of images that no code has read. unused: further keys without effect."""
    refuse_unread(settings, {**_UNUSED, **harmless("the network decides", unused)})


def read_layer(spec: ModelSpec, name: str, width: int, *, bias: bool) -> DenseModule:
    file, (outputs, inputs) = read_shape(spec, f"{name}.weight", 2)
    if inputs != width:
        raise ModelUnavailable(f"{file}: {name}.weight expects {inputs} numbers and gets {width}")
    return DenseModule(
        folder=file.parent, weights=file, in_features=inputs, out_features=outputs, bias=bias, layer=name
    )


def read_shape(spec: ModelSpec, name: str, dimensions: int) -> tuple[Path, tuple[int, ...]]:
    """The file of a tensor, and its shape."""
    found = find_tensor(spec.weights, name)
    if found is None:
        raise ModelUnavailable(f"{spec.folder}: the checkpoint has no tensor named {name}")
    file, shape = found
    if len(shape) != dimensions:
        raise ModelUnavailable(f"{spec.folder}: {name} must have {dimensions} dimensions; it has {len(shape)}")
    return file, shape
