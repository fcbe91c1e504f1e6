"""`open_models(config)`: one ModelSource for each configured model, not yet loaded.

Runs at start, on the main thread. A ModelSpec has the facts of the model's files, changed by the operator's settings.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import prod
from pathlib import Path, PurePath
from typing import Any

from msgspec.structs import replace

from vectord.checkpoints.adapters import is_made_for, read_adapter
from vectord.checkpoints.catalogue import hub_id_of
from vectord.checkpoints.checkpoint import find_weight_files, open_checkpoint
from vectord.checkpoints.files.gguf_file import is_gguf
from vectord.checkpoints.files.read import read_operators_file, unread_settings
from vectord.checkpoints.fingerprint import changed
from vectord.checkpoints.folder import ADAPTER, TEMPLATE_LIMIT_BYTES, Module, chain_width, read_dense
from vectord.checkpoints.hub import find_base, model_id_of, resolve
from vectord.checkpoints.kinds.scores import cut_layers
from vectord.checkpoints.lock import LockedModel, check_folder, read_lock
from vectord.checkpoints.quantized import expand, read_quantization
from vectord.checkpoints.reader import read_spec
from vectord.checkpoints.spec import Adapter, Located, ModelSpec, RequestedModel
from vectord.compute import backends
from vectord.compute.backends.base import Backend, BackendOptions, LoadBackend
from vectord.config import Config, DeviceConfig, ModelConfig
from vectord.config.sources import export_hub
from vectord.engine.models.backend import (
    backend_of,
    backend_options,
    check_adapters,
    check_alike,
    check_backend,
    check_dtype,
    required_graphs,
    settle_device,
    with_graph,
    without_images,
)
from vectord.engine.models.registry import ModelSource
from vectord.engine.models.requested import named, requested_models
from vectord.errors import ConfigError, ModelUnavailable, StartError
from vectord.text.sequence import Encoder

log = logging.getLogger("vectord.models")

# After this time the openvino backend compiles, without the interpreter's lock: other work costs the load no more time.
HEAD_START_S = 0.05


class UnreadableModel(ModelUnavailable):
    """The model is not found, or its files are incomplete or of an unknown kind."""


def open_models(config: Config, *, downloads: bool = True) -> list[ModelSource]:
    """The configured models, in order. Blocks while it downloads, unless that is off, as with the setting `offline`.

    A model that is not found, or whose files cannot be read, fails when it loads, unless no model can be read or
    required_models is `all`. Raises StartError for these, an unknown backend, invalid names, and, unless the server
    imitates a product, settings that apply to none of the models.
    """
    # One budget of threads: tokenization_workers share a request's texts, so no text needs several threads.
    # tokenizers reads this at its first batch. A value set by the operator stays.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    export_hub(config.model, os.environ)
    if config.device.backend != "auto":
        check_backend(config.device.backend)  # before a useless download
    model = config.model if downloads else dataclasses.replace(config.model, offline=True)
    config = dataclasses.replace(config, model=model, device=settle_device(config.device))
    models = [_opened(one, config) for one in named(requested_models(config.model), config.model)]
    failures = [model.failure for model in models if model.failure is not None]
    is_fatal = len(failures) == len(models) or config.engine.required_models == "all" or config.model.lora
    if failures and is_fatal:  # adapters need the model that they were trained for
        raise failures[0]
    if not failures:
        _check_applies(models, config)
    return models


def _check_applies(models: Sequence[ModelSource], config: Config) -> None:
    """Raises ConfigError for a setting that changes the answers of some kinds of models, if none of these is served. A
    server that imitates a product starts with a warning, as the product does."""
    own = [model.spec for model in models if model.spec.handler is None]
    pooling = config.model.pooling
    if pooling == "none":
        is_pooled = any(spec.outputs <= {"tokens", "token_scores"} for spec in own)
    else:
        is_pooled = any(pooling in (*spec.outputs, spec.pooling) for spec in own)
    for name, value, applies in (
        ("pooling", pooling, is_pooled),
        ("dense_path", config.model.dense_path, any("dense" in spec.outputs for spec in own)),
        ("cutoff_layer", config.model.cutoff_layer, any("scores" in spec.outputs for spec in own)),
        ("default_prompt", config.model.default_prompt, any(OPERATORS_PROMPT in one.spec.prompts for one in models)),
        ("onnx_file", config.device.onnx_file, any(file.suffix == ".onnx" for spec in own for file in spec.weights)),
    ):
        if value is not None and not applies:
            if config.server.imitates is None:
                raise ConfigError(f"{name}: it applies to none of the served models; leave it out")
            log.warning("%s applies to none of the served models", name)


def load_ahead(config: Config) -> list[ModelSource] | None:
    """The model, if there is one only: a thread has begun its first load, and compiles while the server is imported.

    None: several models, one that is not on this machine or loads later, or any fault. compose.py then opens the
    models, after it has checked all settings.
    """
    engine = config.engine
    if len(config.model.in_order) > 1 or engine.model_loading == "first-use" or engine.model_memory_bytes is not None:
        return None
    try:
        source, *others = open_models(config, downloads=False)
    except StartError:
        return None
    thread = ThreadPoolExecutor(1, f"vectord-load-{source.name}")
    begun = [thread.submit(source.load)]
    thread.shutdown(wait=False)
    wait(begun, 2 * HEAD_START_S)  # it first imports the backend, and two threads import at half the speed
    return [replace(source, load=lambda: begun.pop().result() if begun else source.load()), *others]


def open_model(requested: RequestedModel, config: Config, located: Located | None = None) -> ModelSource:
    """The model, as the settings change it. config: with a settled device. located: where the model is, if known.

    Blocks while it downloads. Raises UnreadableModel, or StartError for a backend, a dtype or settings that do not fit.
    """
    try:
        spec = read_facts(requested, config.model, required_graphs(config.device), located)
    except OSError as error:  # such as a folder of another user
        reason = f"{error.filename or 'its folder'} cannot be read ({error.strerror or error})"
        raise UnreadableModel(f"model {requested.model}: {reason}") from None
    return _source(spec, requested, config.device)


def _opened(requested: RequestedModel, config: Config) -> ModelSource:
    """The model, or one with a `failure`, which has no facts but its id until it is opened again."""
    try:
        return open_model(requested, config)
    except UnreadableModel as error:
        folder = Path(requested.model)
        unknown = ModelSpec(
            model_id=model_id_of(requested.model),
            revision=None,
            folder=folder,
            config={},
            model_type="unknown",
            architecture="unknown",
            weights=(),
            tokenizer=folder,
            outputs=frozenset(),
            hidden_size=0,
            max_tokens=0,
            fingerprint="",
        )
        reopen = partial(open_model, requested, config)
        return ModelSource(
            name=requested.served_name,
            aliases=requested.aliases,
            spec=unknown,
            load=lambda: reopen().load(),
            pinned=requested.pinned,
            failure=error,
            reopen=reopen,
        )


def _source(spec: ModelSpec, requested: RequestedModel, device: DeviceConfig) -> ModelSource:
    """Raises StartError for a backend or dtype that cannot compute a model with these facts."""
    backend = check_dtype(check_backend(backend_of(spec, device)), device.dtype)
    spec = without_images(spec, backend)
    check_adapters(spec, backend)
    spec = with_graph(spec, backend, device)
    if backend == "fake":  # known cosines of the published model do not hold for made-up numbers
        spec = replace(spec, known_cosines=())
    options = backend_options(device, backend)

    def network_of(spec: ModelSpec | None, inputs: str) -> ModelSource | None:
        name = f"{requested.served_name} ({inputs})"
        return None if spec is None else _source(spec, replace(requested, served_name=name, aliases=()), device)

    images = None if spec.reads_images and find_spec("PIL") is None else spec.images
    return ModelSource(
        name=requested.served_name,
        aliases=requested.aliases,
        spec=spec,
        load=partial(_load, spec, backend, options),
        pinned=requested.pinned,
        memory_bytes=_memory_bytes(spec, device.dtype) * len(options),
        queries=network_of(spec.query, "queries"),
        images=network_of(images, "images" if spec.reads_images else "passages"),
    )


def _memory_bytes(spec: ModelSpec, dtype: str) -> int:
    """An estimate of its memory while loaded: the weights in the computing dtype, 16 bits unless it is set."""
    held_bits = {"float32": 32, "int8": 8, "fp8": 8, "int8-weights": 9, "int4-weights": 5}.get(dtype, 16)
    settings = unread_settings(spec.folder / "config.json", spec.config)
    first = spec.weights[0] if spec.weights else None
    if first and (is_gguf(first) or spec.others or (first.suffix != ".onnx" and read_quantization(settings))):
        weights = expand(open_checkpoint(spec.weights, spec.others), settings)  # numbers in blocks of many sizes
        return held_bits * sum(prod(weight.shape) for weight in weights.values()) // 8
    saved = spec.config.get("dtype", spec.config.get("torch_dtype"))  # of the files; newer ones use the first name
    saved_bits = 16 if saved in ("bfloat16", "float16") else 32
    return sum(path.stat().st_size for path in spec.weights) * held_bits // saved_bits


def _load(spec: ModelSpec, backend: str, options: Sequence[BackendOptions]) -> tuple[Encoder, Sequence[Backend]]:
    load: LoadBackend = import_module(f"{backends.__name__}.{backend}").load
    loaded: list[Backend] = []

    def load_all() -> None:
        for one in options:
            loaded.append(load(spec, one))

    try:
        with ThreadPoolExecutor(1, "vectord-backend") as thread:
            loading = thread.submit(load_all)
            wait([loading], HEAD_START_S)
            # Here these imports do not delay the start.
            from vectord.text.images import ImageEncoder  # noqa: PLC0415
            from vectord.text.tokenizer import TextEncoder  # noqa: PLC0415

            encoder = TextEncoder(spec) if spec.processor is None else ImageEncoder(spec.processor)
            loading.result()
        needs_pairs = spec.reranks and spec.yes_no is None and spec.listwise is None
        if needs_pairs and isinstance(encoder, TextEncoder) and not encoder.reads_pairs:
            raise ModelUnavailable(f"{spec.tokenizer}: a reranker whose tokenizer has no template for pairs of texts")
        check_alike([each.facts for each in loaded])
    except BaseException:
        for each in loaded:
            each.close()
        raise
    return encoder, loaded


OPERATORS_PROMPT = "default_prompt"  # the operator's prompt, among the model's own

# Decoders that are neither BERT's kind nor Qwen's, so that no setting of lengths applies to them.
_OTHER_DECODERS = frozenset(
    {"bidirectional_pplx_qwen3", "bigemma3_text", "biqwen3", "c2llm", "embedding_gemma2", "embedding_gemma2_text"}
    | {"gemma", "gemma2", "gemma3_text", "lfm2", "lfm2_bidirectional", "llama", "llama_bidirec", "minicpm"}
    | {"ministral3", "ministral3_bidirec", "mistral", "qwen3_bidirec"}
)


def read_facts(
    requested: RequestedModel, config: ModelConfig, graphs: Sequence[str] = (), located: Located | None = None
) -> ModelSpec:
    """The facts of the model's files, as the settings change them. graphs: patterns of ONNX files to download, too.

    Raises StartError for a model that is not found, is of an unknown kind, or does not fit the settings.
    """
    lock = find_lock(requested, config)
    is_folder = Path(requested.model).is_absolute()  # a folder has no revision, but a lock can list its files
    mode = None if config.pooling == "splade" else config.pooling
    pooling = requested.pooling or (None if mode == "none" else mode)
    template = config.chat_template
    if template is not None and "{" not in template and "\n" not in template:  # the name of a file
        template = read_operators_file("chat_template", template, TEMPLATE_LIMIT_BYTES).decode("utf-8-sig", "replace")
    find = partial(resolve, offline=config.offline, hf_home=config.hf_home, token=config.hf_token, graphs=graphs)
    try:
        revision = config.revision if lock is None or is_folder else lock.commit
        located = located or find(requested.model, revision=revision)
        located = _with_base(located, config, find)
        spec = read_spec(
            located,
            pooling=pooling,
            default_prompt_name=config.default_prompt_name,
            chat_template=template,
            task=config.task,
            is_splade=config.pooling == "splade",
            allow_unknown=config.allow_unknown_config,
        )
    except ModelUnavailable as error:
        raise UnreadableModel(error.message) from None
    if lock is not None:
        chosen = (path for pattern in graphs for path in located.folder.glob(pattern))
        further = [file for each in (spec.query, spec.images) if each for file in (*each.weights, each.tokenizer)]
        read = (*spec.weights, spec.tokenizer, *further, *chosen)
        check_folder(located.folder, lock, (path for path in read if path.is_relative_to(located.folder)))
    if config.pooling == "splade" and "dense" in spec.outputs:
        raise ConfigError(f"pooling splade: {requested.model} is not a SPLADE model")
    if "dense" in spec.outputs and requested.pooling is None:
        spec = _with_pooling(config, spec, requested)
    if config.dense_path is not None and "dense" in spec.outputs:
        spec = _with_dense(spec, config.dense_path, frozenset(config.allow_unknown_config))
    if config.cutoff_layer is not None and "scores" in spec.outputs:
        spec = changed(cut_layers(spec, config.cutoff_layer))
    if config.default_prompt is not None and spec.kinds.keys() != {"scores"}:  # pairs have no prompts
        prompts = {**spec.prompts, OPERATORS_PROMPT: config.default_prompt}
        spec = replace(spec, prompts=prompts, default_prompt_name=OPERATORS_PROMPT)
    if requested.handler is not None:
        spec = _with_handler(spec, requested.handler)
    if spec.query is not None:
        spec = replace(spec, query=_queries_alike(spec, spec.query, config))
    shortened = replace(spec, max_tokens=min(spec.max_tokens, _max_tokens(spec, config)))
    if pooling is not None or spec.default_prompt_name is not None or shortened.max_tokens < spec.max_tokens:
        shortened = replace(shortened, known_cosines=())  # they hold for its own pooling of texts without a prompt
    if not requested.adapters:
        return shortened
    return changed(shortened, adapters=(*spec.adapters, *_read_adapters(requested, spec, config)))


def _with_base(located: Located, config: ModelConfig, find: Callable[..., Located]) -> Located:
    """With the place of the base model, if the folder holds only an adapter.

    The setting `revision` belongs to the adapter.
    """
    name = find_base(located.folder)
    if name is None:
        return located
    try:
        lock = find_lock(RequestedModel(name), config)
        base = find(name, revision=None if lock is None else lock.commit)
        if lock is not None:
            check_folder(base.folder, lock, find_weight_files(base.folder))
    except ModelUnavailable as error:
        raise ModelUnavailable(
            f"{located.folder / ADAPTER}: the base model of the adapter is missing: {error.message}; if it is here "
            f"under another name, correct base_model_name_or_path, or: vectord serve BASE --lora NAME={located.folder}"
        ) from error
    return replace(located, base=base)


def _read_adapters(requested: RequestedModel, spec: ModelSpec, config: ModelConfig) -> list[Adapter]:
    """The adapters that the operator adds. Raises ModelUnavailable for their files."""
    adapters = []
    for name, folder in requested.adapters:
        if name in [adapter.name for adapter in spec.adapters]:
            raise ConfigError(f"lora: {name}: the model has an adapter of this name")
        adapter = read_adapter(name, folder, frozenset(config.allow_unknown_config))
        if not is_made_for(adapter, spec):
            log.warning("lora: %s was trained for another model than %s: see %s", name, spec.model_id, folder / ADAPTER)
        adapters.append(adapter)
    return adapters


def _queries_alike(spec: ModelSpec, queries: ModelSpec, config: ModelConfig) -> ModelSpec:
    """The network of queries, with the settings that apply to both networks. Raises ConfigError for others."""
    if config.pooling == "none" or config.dense_path is not None:
        raise ConfigError(f"pooling none, dense_path: {spec.model_id} has a network of its own for queries")
    return replace(
        queries,
        prompts=spec.prompts,
        default_prompt_name=spec.default_prompt_name,
        chat_template=spec.chat_template,
        max_tokens=min(queries.max_tokens, _max_tokens(queries, config)),
    )


def find_lock(requested: RequestedModel, config: ModelConfig) -> LockedModel | None:
    """The model's entry in the operator's lock file; None without such a file. Raises ModelUnavailable if the file has
    no entry of it."""
    if config.lock_file is None:
        return None
    path = Path(config.lock_file).expanduser()
    lock = read_lock(path)
    names = map(hub_id_of, filter(None, (requested.model, requested.name)))
    model = next((lock[name] for name in names if name in lock), None)
    if model is None:
        raise ModelUnavailable(
            f"model {requested.name or requested.model} is not in the lock file {path}; vectord pull adds it"
        )
    return model


def _with_pooling(config: ModelConfig, spec: ModelSpec, requested: RequestedModel) -> ModelSpec:
    """The model without its Dense modules, where pooling is `none` (the last hidden states are its only vectors), or
    where it is in plain_mean (their mean, as AutoModel's users compute it)."""
    plain: dict[str, Any] = {"dense_modules": (), "truncate_dim": None, "whole_numbers": None, "matryoshka": None}
    if config.pooling == "none":
        if "tokens" not in spec.outputs:
            raise ConfigError(f"pooling none: {spec.model_id} has no vector for each token")
        outputs = spec.outputs & {"tokens", "token_scores"}
        return changed(spec, outputs=outputs, pooling=None, dimensions=0, lexical=None, colbert=None, **plain)
    names = filter(None, (requested.model, requested.name, spec.model_id))
    is_plain = not {hub_id_of(name) for name in config.plain_mean}.isdisjoint(map(hub_id_of, names))
    if is_plain and requested.handler is None and config.pooling is None:
        return changed(spec, pooling="mean", include_prompt=True, dimensions=spec.hidden_size, **plain)
    return spec


def _with_dense(spec: ModelSpec, dense_path: str, allowed: frozenset[str]) -> ModelSpec:
    """The model with another Dense module of its folder; the module's width becomes the dimension."""
    place = PurePath(dense_path)
    if place.is_absolute() or ".." in place.parts:
        raise ConfigError("dense_path: expected a folder inside the model's, such as 2_Dense_1024")
    if spec.images is not None:
        raise ConfigError(f"dense_path: {spec.model_id} has vectors of images too, which it would not change")
    if len(spec.dense_modules) > 1:
        raise ConfigError(
            f"dense_path: {spec.model_id} has {len(spec.dense_modules)} modules after its pooling, and one would "
            "replace them all"
        )
    dense = read_dense(Module("Dense", spec.folder / place, allowed), over="sentence_embedding")
    width = chain_width(spec.hidden_size, [dense])
    return changed(spec, dense_modules=(dense,), dimensions=width, matryoshka=None)


def _with_handler(spec: ModelSpec, handler: str) -> ModelSpec:
    """The model as the operator's own class computes it: one vector per text, in a vector space of its own."""
    return replace(
        spec,
        handler=handler,
        query=None,
        images=None,
        outputs=frozenset({"dense"}),
        include_prompt=True,
        lexical=None,
        colbert=None,
        merged=None,
        adapters=(),
        default_adapter=None,
        known_cosines=(),
        fingerprint=hashlib.sha256(f"{spec.fingerprint} by {handler}".encode()).hexdigest()[:16],
    )


def _max_tokens(spec: ModelSpec, config: ModelConfig) -> int:
    """The operator's limit for a text or pair of this kind of model; by default the model's own."""
    if spec.listwise is not None or (spec.yes_no is not None and spec.yes_no.passages is not None):
        limit = None  # the others are for a pair as one text
    elif spec.yes_no is not None:
        limit = config.qwen_rerank_max_length
    elif "scores" in spec.outputs:
        limit = config.bge_rerank_max_length
    elif spec.model_type.startswith("qwen"):
        limit = config.qwen_embed_max_length
    else:
        limit = None if spec.model_type in _OTHER_DECODERS else config.bge_embed_max_length
    limit = config.max_length if limit is None else limit
    return spec.max_tokens if limit is None else limit
