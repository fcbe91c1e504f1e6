"""The backend for architectures that networks/ lacks: transformers' own class as the body, with our heads.

transformers never gets the model's folder, in which it would look for code, adapters and names of other models; it
has repeatedly had bugs that executed such code. It gets a config rebuilt from the fields of its class, and tensors
that checkpoints/checkpoint.py has read.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import cached_property, partial
from inspect import getfile, signature
from math import prod
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
)
from transformers.utils import logging as transformers_logging

from vectord.checkpoints.adapters import merge_adapter
from vectord.checkpoints.checkpoint import Weight, open_checkpoint
from vectord.checkpoints.config_keys import CONFIG, Harmless, harmless, one_of, refuse_unread_config
from vectord.checkpoints.files.read import Settings, unread_settings
from vectord.checkpoints.files.weight import NETWORK_DTYPES
from vectord.checkpoints.quantized import expand
from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.backends.base import Answers, Backend, BackendFacts, BackendOptions, PackedTexts, TokenBatch
from vectord.compute.backends.invariance import PROBED_LIMIT, SHORT_TOLERANCE, TOLERANCE, is_batch_invariant
from vectord.compute.backends.torch import choose_device, choose_dtype, gpu_of
from vectord.compute.networks import decoder, encoder
from vectord.compute.networks.facts import flag
from vectord.compute.networks.heads import heads_of, yes_no_head
from vectord.compute.networks.network import class_of, find_architecture
from vectord.compute.networks.weights import HarmlessTensors, WeightReader, check_all_read
from vectord.compute.ops.groups import pad, texts_of_spans
from vectord.compute.ops.torch import TorchOps, pack
from vectord.compute.processor import thread_budget
from vectord.errors import ModelUnavailable

logger = logging.getLogger(__name__)

MAX_SIZE = 2**24  # of any number in a config, as in networks/facts.py
MAX_LAYERS = 1024
MAX_BUFFER_ITEMS = 2**28  # of tables that a class computes, such as positions: 16,384 squared
_GPU_BATCH_TOKENS = 16_384  # padded tokens; the torch backend's default has as many packed ones
_CPU_BATCH_TOKENS = 2048

# Keys of old configs without a field in the classes, which still understand them.
_OLD_KEYS = {
    *("global_rope_theta", "local_rope_theta", "partial_rotary_factor", "rope_local_base_freq", "rope_scaling"),
    *("rope_theta", "rotary_emb_base", "rotary_pct", "sliding_window_pattern"),
}
# Keys that may be an object; any other object is another model.
_OBJECTS = frozenset({"rope_parameters", "rope_scaling"})

_HARMLESS = {
    **CONFIG,
    **encoder.HARMLESS,
    **decoder.HARMLESS,
    **harmless("the reader of the folder uses it", "hidden_size max_position_embeddings n_positions"),
    **harmless("the class decides it", "is_encoder_decoder"),
}

# Of architectures that only transformers has; of others, the classes in networks/ list their own.
_HARMLESS_TENSORS = (
    HarmlessTensors("buffers, which the config determines", r"(.+\.)?(position_ids|token_type_ids|inv_freq)"),
    HarmlessTensors("the body's pooler, which only classifiers read", r"(\w+\.)?pooler\.(dense\.)?(weight|bias)"),
    HarmlessTensors(
        "heads of pretraining",
        r"(cls|lm_head|lm_predictions|mask_predictions|vocab_\w+|decoder|lm_loss|pred_layer|embed_out|predictions"
        r"|sop_classifier|generator_\w+|discriminator_predictions)\..+",
    ),
    HarmlessTensors("heads of classifiers", r"(classifier|pre_classifier|score|qa_outputs)\..+", unless="scores"),
)
ModelClass: TypeAlias = type[PreTrainedModel]


def load(spec: ModelSpec, options: BackendOptions) -> TransformersBackend:
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device, spec.architecture)
    if device.type == "cpu":  # torch's default ignores the cgroup quota
        torch.set_num_threads(options.threads or thread_budget())
    default_batch_tokens = _CPU_BATCH_TOKENS if device.type == "cpu" else _GPU_BATCH_TOKENS
    facts = BackendFacts(
        name="transformers",
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        streams=1,
        cost="padded",
        max_batch_tokens=options.max_batch_tokens or default_batch_tokens,
        gpu=gpu_of(device),
    )
    model = TransformersModel(spec, device, dtype)
    too_long_to_probe = any(PROBED_LIMIT < limit < spec.max_tokens for limit in model.limits)
    if too_long_to_probe or not _is_invariant(model, spec):
        logger.warning(
            "%s: a text's results depend on longer texts in its batch, so each length runs alone", spec.folder
        )
        model.one_length = True
        if not _is_invariant(model, spec):
            raise ModelUnavailable(
                f"model_type {spec.model_type!r}: a text's results depend on other texts, even without padding"
            )
    return TransformersBackend(facts, model, lambda: TransformersModel(spec, device, torch.float32, model.one_length))


class TransformersBackend(Backend):
    def __init__(
        self, facts: BackendFacts, model: TransformersModel, make_exact: Callable[[], TransformersModel]
    ) -> None:
        self.facts = facts
        self._model = model
        self._make_exact = make_exact

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        assert stream == 0, "this backend has one stream"
        return _run(self._model, batch)

    def forward_exact(self, batch: TokenBatch) -> Answers:
        return _run(self._exact, batch)

    def close(self) -> None:
        del self._model
        self.__dict__.pop("_exact", None)
        if self.facts.device.startswith("cuda"):
            torch.cuda.empty_cache()

    @cached_property
    def _exact(self) -> TransformersModel:
        return self._model if self.facts.dtype == "float32" else self._make_exact()


def _run(model: TransformersModel, batch: TokenBatch) -> Answers:
    assert len(batch.texts.cu_seqlens) > 1, "an empty batch"
    with contextlib.suppress(torch.OutOfMemoryError), torch.inference_mode():
        answers = model(batch.texts, batch.outputs)
        return {output: answer.float().cpu().numpy() for output, answer in answers.items()}
    # Raised out here because the caught error's traceback holds the tensors that filled the device.
    raise MemoryError("the device has no room for this batch")


# Language models whose logits are the product of the last states and lm_head, or of the tied words, and no more.
_PLAIN_HEADS = frozenset({"qwen3_5_text"})


class TransformersModel:
    """Body and heads on one device in one dtype."""

    def __init__(self, spec: ModelSpec, device: torch.device, dtype: torch.dtype, one_length: bool = False) -> None:
        """one_length: run the texts of each length by themselves, without padding."""
        self.one_length = one_length
        ops = TorchOps(device, dtype)
        self._classifies = _classifies(spec)
        self._heads = heads_of(spec, ops.heads)
        settings = unread_settings(spec.folder / "config.json", spec.config)
        config, model_class = find_class(spec, settings)
        weights = merge_adapter(expand(open_checkpoint(spec.weights), settings), spec)
        if spec.yes_no is not None and spec.yes_no.token_ids is not None:
            tied = {**settings.fields, "tie_word_embeddings": bool(config.tie_word_embeddings)}
            model = decoder.LanguageModel(tied, WeightReader(weights, ops.heads), ops.heads)
            words = model.head_rows(spec.yes_no.token_ids)
            self._heads["scores"] = yes_no_head(words, ops.heads)
        # A class saves values that it computes, such as T5's dense_act_fn: equal ones are harmless.
        computed = {key: Harmless("computed by the class", one_of(value)) for key, value in vars(config).items()}
        sources = "".join(Path(getfile(one)).read_text("utf-8") for one in (type(config), model_class))
        refuse_unread_config(settings, spec.model_type, {**computed, **_HARMLESS}, sources)
        # GPT-2 and its relatives have no table of types: they would add the vector of word 0.
        has_types = hasattr(config, "type_vocab_size") or spec.model_type == "xlnet"
        self._takes_types = has_types and "token_type_ids" in signature(model_class.forward).parameters
        self._filler = int(config.pad_token_id or 0)
        self.dtype = dtype
        self._device = device
        body = _load_body(model_class, config, weights, ops, dtype, spec)
        self._body = body.to(device)  # moves the computed tables; the tensors are there already
        self.limits = _length_limits(config)
        if not getattr(config, "is_causal", True):
            _attend_both_ways(body, spec, device)

    def __call__(self, texts: PackedTexts, outputs: Collection[Output]) -> dict[Output, Tensor]:
        padded = pad(texts)
        rows, filled, seen, places = (
            torch.tensor(array, device=self._device)
            for array in (padded.rows, padded.filled, padded.seen, padded.places)
        )
        tokens = pack(texts, self._device)
        inputs = {
            "input_ids": tokens.ids[rows].masked_fill(~filled, self._filler).long(),  # (N, L)
            "attention_mask": seen.long(),
        }
        if self._takes_types:
            inputs["token_type_ids"] = tokens.type_ids[rows].masked_fill(~filled, 0).long()
        answer = self._run(inputs, padded.filled.sum(axis=1))
        if self._classifies:
            texts_asked = torch.tensor(texts_of_spans(texts), device=self._device)
            return {"scores": answer.index_select(0, texts_asked)}  # (M, labels)
        x = answer.flatten(0, 1).index_select(0, places)  # (T, H)
        return {output: self._heads[output](x, tokens) for output in sorted(outputs)}

    def _run(self, inputs: dict[str, Tensor], lengths: npt.NDArray[np.int64]) -> Tensor:
        """Return the logits (N, labels) or states (N, L, H) of padded inputs (N, L). lengths: (N,) of the texts."""
        if not self.one_length:
            return self._answer(inputs)
        answers: Tensor | None = None
        for length in np.unique(lengths).tolist():
            texts = torch.tensor(np.flatnonzero(lengths == length), device=self._device)
            answer = self._answer({name: rows[texts, :length] for name, rows in inputs.items()})
            if answers is None:
                whole = (
                    (len(lengths), *answer.shape[1:])
                    if self._classifies
                    else (*inputs["input_ids"].shape, answer.shape[-1])
                )
                answers = answer.new_zeros(whole)
            if self._classifies:
                answers[texts] = answer
            else:
                answers[texts, :length] = answer
        assert answers is not None, "an empty batch"
        return answers

    def _answer(self, inputs: dict[str, Tensor]) -> Tensor:
        answer = self._body(**inputs)
        return cast("Tensor", answer.logits if self._classifies else answer.last_hidden_state)


# --- lengths --------------------------------------------------------------------------------------------------

_LIMIT_KEYS = re.compile("position|window|block|chunk|landmark|seq_len|span|stride|mem_len|bucket|pool")


def _is_invariant(model: TransformersModel, spec: ModelSpec) -> bool:
    tolerance = SHORT_TOLERANCE if model.dtype != torch.float32 else TOLERANCE
    return is_batch_invariant(partial(_run, model), spec, model.limits, tolerance)


def _length_limits(config: PreTrainedConfig) -> frozenset[int]:
    """The numbers of config.json at which a class may change how it reads a text."""
    found = set()
    entries = [config.to_dict()]
    while entries:
        for key, value in entries.pop().items():
            if isinstance(value, dict):
                entries.append(value)
            elif _LIMIT_KEYS.search(str(key)):
                found |= {number for number in (value if isinstance(value, list) else [value]) if type(number) is int}
    return frozenset(found)


# --- config ---------------------------------------------------------------------------------------------------


def read_config(spec: ModelSpec, settings: Settings) -> PreTrainedConfig:
    """Return config.json as transformers' class, with only those keys that the class has fields for. settings: records
    the keys that are read."""
    if spec.model_type not in CONFIG_MAPPING:
        raise ModelUnavailable(f"model_type {spec.model_type!r} is supported neither by vectord nor by transformers")
    config_class = CONFIG_MAPPING[spec.model_type]
    if config_class.sub_configs_defaults:
        raise ModelUnavailable(f"model_type {spec.model_type!r} is made of several models; only texts are served")
    own = {field.name for field in fields(config_class)} - {field.name for field in fields(PreTrainedConfig)}
    allowed = {name for name in own | config_class.attribute_map.keys() | _OLD_KEYS if not name.startswith("_")}
    known: dict[str, Any] = {
        key: settings.get(key)
        for key, value in settings.items()
        if key in allowed and (key in _OBJECTS or not isinstance(value, dict))
    }
    for key, value in known.items():  # bounded, because the network is built before its weights are checked
        limit = MAX_LAYERS if any(part in key for part in ("layer", "group", "block")) else MAX_SIZE
        if isinstance(value, list) and len(value) > MAX_LAYERS:
            raise ModelUnavailable(f"config.json: {key} lists {len(value):,} values; the limit is {MAX_LAYERS:,}")
        if type(value) is int and not -limit <= value <= limit:
            raise ModelUnavailable(f"config.json: {key} must be at most {limit:,}; found {value:,}"[:200])
    if _classifies(spec):
        known["id2label"] = dict(enumerate(spec.labels))
    try:
        config = config_class(**known)
    except Exception as error:  # each class raises its own exceptions
        raise ModelUnavailable(f"config.json: transformers' {config_class.__name__} refuses it ({error})") from error
    if getattr(config, "hidden_size", spec.hidden_size) != spec.hidden_size:
        raise ModelUnavailable(
            f"the network is {config.hidden_size} wide, the model's modules expect {spec.hidden_size}"
        )
    if _classifies(spec) and config.pad_token_id is None:
        raise ModelUnavailable("config.json: no pad_token_id, by which transformers' classifiers find a text's end")
    if getattr(config, "attention_type", None) == "block_sparse":  # the first short text would turn it off for good
        raise ModelUnavailable("config.json: attention_type block_sparse is not supported, only original_full")
    config.use_cache = False
    if not flag(settings, "is_causal", True):
        config.is_causal = False  # no field of any class, but transformers' masks depend on it
    return config


# --- model ----------------------------------------------------------------------------------------------------


def find_class(spec: ModelSpec, settings: Settings) -> tuple[PreTrainedConfig, ModelClass]:
    """Return the class that computes the model, from ids and mask to states, or logits; and its config.

    settings: config.json. Raises ModelUnavailable if there is none.
    """
    own: set[Output] = {"splade"}
    if spec.scores_by_words and spec.model_type not in _PLAIN_HEADS:
        own.add("scores")
    if missing := spec.outputs & own:
        raise ModelUnavailable(f"model_type {spec.model_type!r}: {', '.join(missing)} need a network of our own")
    config = read_config(spec, settings)
    mappings = [MODEL_FOR_TEXT_ENCODING_MAPPING, MODEL_MAPPING]
    if _classifies(spec):
        mappings = [MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING]
    if type(config).is_encoder_decoder:  # only the encoder
        mappings = [mapping for mapping in mappings if mapping is MODEL_FOR_TEXT_ENCODING_MAPPING]
    entry = next((mapping[type(config)] for mapping in mappings if type(config) in mapping), None)
    found: ModelClass | None = entry[0] if isinstance(entry, tuple) else entry
    if found is None:
        what = "classifier" if _classifies(spec) else "encoder"
        raise ModelUnavailable(f"model_type {spec.model_type!r}: transformers has no {what} of texts for it")
    if not {"input_ids", "attention_mask"} <= signature(found.forward).parameters.keys():
        raise ModelUnavailable(f"model_type {spec.model_type!r}: its network knows no padding, so texts would mix")
    return config, found


def _classifies(spec: ModelSpec) -> bool:
    """Whether transformers' class gives the scores."""
    return "scores" in spec.outputs and not spec.scores_by_modules and not spec.scores_by_words


def _load_body(
    model_class: ModelClass,
    config: PreTrainedConfig,
    checkpoint: Mapping[str, Weight],
    ops: TorchOps,
    dtype: torch.dtype,
    spec: ModelSpec,
) -> torch.nn.Module:
    _check_extent(model_class, config, checkpoint)
    state = {name: ops.constant(weight) for name, weight in checkpoint.items() if weight.dtype in NETWORK_DTYPES}
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # its warnings are refused below
    try:
        body, report = cast(
            "tuple[PreTrainedModel, dict[str, Any]]",
            model_class.from_pretrained(
                None,
                config=config,
                state_dict=state,
                dtype=dtype,
                local_files_only=True,
                ignore_mismatched_sizes=True,  # reported, with names
                output_loading_info=True,
            ),
        )
    except Exception as error:  # exceptions differ between classes
        raise ModelUnavailable(f"transformers' {model_class.__name__} refuses the weights ({error})"[:500]) from error
    # transformers would continue with random numbers. The pooler may be missing, because its output is not used.
    if missing := sorted(name for name in report["missing_keys"] if not name.startswith("pooler.")):
        raise ModelUnavailable(f"the checkpoint has no tensor {missing[0]}, and lacks {len(missing)} in all")
    is_ours = find_architecture(spec.architecture) is not None
    known = class_of(spec.architecture).HARMLESS_TENSORS if is_ours else _HARMLESS_TENSORS
    check_all_read(report["unexpected_keys"], known, spec.outputs, config.model_type)
    if wrong := sorted(report["mismatched_keys"]):
        name, found, expected = wrong[0]
        raise ModelUnavailable(f"the checkpoint's tensor {name} is {[*found]}; by config.json it is {[*expected]}")
    return body


def _attend_both_ways(body: torch.nn.Module, spec: ModelSpec, device: torch.device) -> None:
    """Let every token attend to all. Raises ModelUnavailable if the class does not support it.

    Masks follow the config, and attention without padding follows its own module. Some classes make causal masks of
    their own, so this observes whether a first token's state depends on the second token, with and without padding.
    """
    for module in body.modules():
        if getattr(module, "is_causal", False):
            setattr(module, "is_causal", False)  # noqa: B010  # its type is declared nowhere
    bare = getattr(body, str(body.base_model_prefix), body)
    plain = [[2, 3], [2, 4]], [[1, 1], [1, 1]]
    padded = [[2, 3, 0], [2, 4, 0], [2, 3, 4]], [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    for batch in (plain, padded):
        ids, mask = (torch.tensor(rows, device=device) for rows in batch)
        with torch.inference_mode():
            states = bare(input_ids=ids, attention_mask=mask).last_hidden_state
        if torch.equal(states[0, 0], states[1, 0]):
            raise ModelUnavailable(
                f"config.json: is_causal false is not supported with model_type {spec.model_type!r}, "
                "whose tokens attend to earlier ones only"
            )


def _check_extent(model_class: ModelClass, config: PreTrainedConfig, checkpoint: Mapping[str, Weight]) -> None:
    """Check that config.json describes no more than the weights hold: transformers would invent the rest."""
    try:
        with torch.device("meta"):  # shapes without memory
            model = model_class(config)
    except Exception as error:
        raise ModelUnavailable(f"config.json: transformers' {model_class.__name__} refuses it ({error})") from error
    described = sum(parameter.numel() for parameter in model.parameters())
    stored = sum(prod(weight.shape) for weight in checkpoint.values() if weight.dtype in NETWORK_DTYPES)
    tables = sum(buffer.numel() for buffer in model.buffers())
    if described > 2 * stored + MAX_SIZE or tables > MAX_BUFFER_ITEMS:
        raise ModelUnavailable(
            f"config.json describes a network of {described:,} numbers and tables of {tables:,}; "
            f"the weights hold {stored:,}"
        )
