"""A model as a function of packed tokens: a body and heads, over any op set.

A backend creates one Network for each loaded model. With an eager op set (numpy, torch) it calls the network for each
batch; with a symbolic one (OpenVINO) it calls it once for each graph that it compiles. `model_type` in config.json
selects the class of this folder that loads the body, from ARCHITECTURES. The outputs in the spec select the heads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any, Generic, cast

from vectord.checkpoints.adapters import merge_adapter, split_adapters
from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.config_keys import refuse_unread_config
from vectord.checkpoints.files.read import OPTION, unread_settings
from vectord.checkpoints.folder import ANSWERS_CLASS, ATTENTION_CLASS, LIST_CLASS, TASKS_CLASS
from vectord.checkpoints.quantized import expand
from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute import networks
from vectord.compute.networks.adapters import Adapters
from vectord.compute.networks.architecture import Architecture
from vectord.compute.networks.heads import Head, heads_of, pooled_head, splade_head, yes_no_head
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import WeightReader, check_all_read
from vectord.compute.ops.base import Ops, T, Tokens
from vectord.errors import ModelUnavailable, installing

# By model_type, with _ for -: the file and class of this folder that reads it, and the prefixes of its classes' names.
ARCHITECTURES: Mapping[str, tuple[str, str]] = {
    "albert": ("bert.Albert", "Albert"),
    "bert": ("bert.Bert", "Bert"),
    "bidirectional_pplx_qwen3": ("qwen2.Qwen3", "PPLXQwen3"),
    "bigemma3_text": ("gemma.BiGemma3", "BiGemma3(Text)?"),
    "biqwen3": ("qwen2.Qwen3", "BiQwen3"),
    "c2llm": ("qwen2.C2LLM", "C2LLM"),
    "camembert": ("roberta.Roberta", "Camembert"),
    "clip_text_model": ("clip.Clip", "CLIP"),
    "clip_vision_model": ("clip.Clip", "CLIP"),
    "colmodernvbert": ("pages.ColPali", "ColModernVBert"),
    "colpali": ("pages.ColPali", "ColPali"),
    "colqwen2": ("qwen_vl.QwenVL", "ColQwen2"),
    "colqwen3": ("qwen_vl.QwenVL", "ColQwen3"),
    "deberta_v2": ("deberta_v2.DebertaV2", "DebertaV2"),
    "distilbert": ("bert.DistilBert", "DistilBert"),
    "electra": ("bert.Electra", "Electra"),
    "embedding_gemma2": ("embedding_gemma2.EmbeddingGemma2", "EmbeddingGemma2"),
    "embedding_gemma2_text": ("embedding_gemma2.EmbeddingGemma2Text", "EmbeddingGemma2Text"),
    "ernie": ("bert.Ernie", "Ernie"),
    "eurobert": ("llama.EuroBert", "EuroBert"),
    "gemma": ("gemma.Gemma", "Gemma"),
    "gemma2": ("gemma.Gemma2", "Gemma2"),
    "gemma3_text": ("gemma.Gemma3", "Gemma3Text|Gemma3"),
    "gemma4_vision": ("gemma4_vision.Gemma4Vision", "Gemma4Vision"),
    "gte": ("gte.Gte", "Gte|New"),
    "jina_bert_v2": ("jina_bert_v2.JinaBert", "JinaBert|Bert"),
    "jina_embeddings_v3": ("roberta.Roberta", "JinaEmbeddingsV3"),
    "lfm2": ("lfm2.Lfm2", "Lfm2|Lfm2Bidirectional"),
    "lfm2_bidirectional": ("lfm2.Lfm2", "Lfm2Bidirectional"),
    "llama": ("llama.Llama", "Llama"),
    "llama_bidirec": ("llama.LlamaBidirec", "LlamaBidirectional"),
    "ministral3": ("llama.Ministral", "Ministral3"),
    "ministral3_bidirec": ("llama.Ministral", "Ministral3Bidirectional"),
    "minicpm": ("llama.MiniCpm", "LayerWiseMiniCPM"),
    "mistral": ("llama.Mistral", "Mistral"),
    "modernbert": ("modernbert.ModernBert", "ModernBert"),
    "mpnet": ("roberta.MPNet", "MPNet"),
    "mt5": ("t5.T5", "MT5"),
    "new": ("gte.Gte", "New|Gte"),
    "nomic_bert": ("nomic_bert.NomicBert", "NomicBert"),
    "qwen2": ("qwen2.Qwen2", "Qwen2"),
    "qwen2_5_vl_vision": ("qwen_vl.QwenVL", "Qwen2_5_VL"),
    "qwen2_vl_text": ("qwen_vl.QwenVL", "Qwen2VL"),
    "qwen2_vl_vision": ("qwen_vl.QwenVL", "Qwen2VL"),
    "qwen3": ("qwen2.Qwen3", "Qwen3"),
    "qwen3_bidirec": ("qwen2.Qwen3", "Qwen3Bidirectional"),
    "qwen3_vl_text": ("qwen_vl.QwenVL", "Qwen3VL"),
    "qwen3_vl_vision": ("qwen_vl.QwenVL", "Qwen3VL"),
    "roberta": ("roberta.Roberta", "Roberta"),
    "siglip2_text_model": ("clip.Siglip2", "Siglip2"),
    "siglip2_vision_model": ("clip.Siglip2", "Siglip2"),
    "siglip_text_model": ("clip.Siglip", "Siglip"),
    "siglip_vision_model": ("clip.Siglip", "Siglip"),
    "t5": ("t5.T5", "T5"),
    "t5gemma2_decoder": ("t5gemma2.T5Gemma2Decoder", "T5Gemma2"),
    "t5gemma2_encoder": ("t5gemma2.T5Gemma2Encoder", "T5Gemma2"),
    "ultrabert": ("llama.UltraBert", "U(?i:ltraBert)"),
    "xlm_roberta": ("roberta.Roberta", "XLMRoberta"),
}
# What may follow a prefix in the name of such a class, as config.json's `architectures` has it.
_CLASS_SUFFIXES = (
    "Model|EncoderModel|ForMaskedLM|ForSequenceClassification|ForCausalLM|ForConditionalGeneration|ForPreTraining"
    "|ForTokenClassification|ForQuestionAnswering"
)
# Custom classes that we support.
_CUSTOM_CLASSES = frozenset(
    {"HF_ColBERT", ANSWERS_CLASS, ATTENTION_CLASS, LIST_CLASS, TASKS_CLASS, "VoyageQwen3BidirectionalEmbedModel"}
)


class Network(Generic[T]):
    def __init__(self, spec: ModelSpec, weights: Mapping[str, Weight], ops: Ops[T]) -> None:
        """Raises ModelUnavailable for an unknown architecture, an unsupported config, or a tensor of another shape."""
        architecture, config = check_architecture(spec), unread_settings(spec.folder / "config.json", spec.config)
        weights, changes = split_adapters(expand(weights, config), spec.adapters)
        weights = merge_adapter(weights, spec)
        reader = WeightReader(weights, ops, adapters=Adapters(changes, len(spec.adapters), ops))
        self._body: Transformer[T] = architecture(config, reader, ops).load()
        _check(self._body, spec)
        plain, exact = (architecture(config, reader.over(each), each) for each in (ops, ops.heads))
        self._heads = heads_of(spec, ops.heads, weights) | _architecture_heads(spec, plain, exact)
        unread = reader.unread() - spec.tensors_of_heads
        check_all_read(unread, architecture.HARMLESS_TENSORS, spec.outputs, spec.model_type)
        model_type = str(config.get("model_type"))  # a section's, in models of several networks
        refuse_unread_config(config, model_type, architecture.HARMLESS)

    def __call__(self, tokens: Tokens[T], outputs: Collection[Output]) -> dict[Output, T]:
        """Return the requested outputs; `Output` in checkpoints/spec.py lists their shapes."""
        x = self._body(tokens)
        return {output: self._heads[output](x, tokens) for output in sorted(outputs)}


def find_architecture(model_type: str) -> tuple[str, str] | None:
    """Return the entry of ARCHITECTURES; None: no class of this folder reads such a model."""
    return ARCHITECTURES.get(model_type.replace("-", "_"))


def check_architecture(spec: ModelSpec) -> type[Architecture[Any]]:
    """Return the class that reads the model. Raises ModelUnavailable if there is none, or for a class of the model's
    own that is not known."""
    found = find_architecture(spec.architecture)
    if found is None:
        raise ModelUnavailable(
            f"model_type {spec.model_type[:80]!r} is not supported; supported are {', '.join(ARCHITECTURES)}. "
            f"transformers may know it: {installing('transformers')}"
        )
    config = unread_settings(spec.folder / "config.json", spec.config)
    listed = config.get("architectures")
    if not config.get("auto_map") or not isinstance(listed, list) or not listed:
        return class_of(spec.architecture)
    name = str(listed[0])[:80]
    known = name in _CUSTOM_CLASSES or re.fullmatch(f"({found[1]})({_CLASS_SUFFIXES})", name) is not None
    if not known and "architectures" not in config.allowed:
        raise ModelUnavailable(
            f"{config.path}: the class {repr(name)[1:-1]} is in the model's own code (auto_map), which is never "
            f"run and may differ from {spec.model_type[:80]}; {OPTION} architectures ignores it"
        )
    return class_of(spec.architecture)


def class_of(architecture: str) -> type[Architecture[Any]]:
    """Return the class of an entry of ARCHITECTURES."""
    file, _, name = ARCHITECTURES[architecture.replace("-", "_")][0].partition(".")
    return cast("type[Architecture[Any]]", getattr(import_module(f"{networks.__name__}.{file}"), name))


def _check(body: Transformer[T], spec: ModelSpec) -> None:
    if body.hidden_size != spec.hidden_size:
        raise ModelUnavailable(
            f"the network's hidden size is {body.hidden_size}; the model's modules expect {spec.hidden_size}"
        )
    if body.max_tokens < spec.max_tokens:
        raise ModelUnavailable(
            f"the network has {body.max_tokens} positions, fewer than the model's maximum of {spec.max_tokens} tokens"
        )
    # The engine computes the prefix that several pairs share only once, and leaves out what follows a list's markers,
    # which causal attention allows.
    needs_causal = spec.listwise is not None or (spec.yes_no is not None and spec.yes_no.shares_prefix)
    if needs_causal and not body.shares_prefix:
        raise ModelUnavailable(
            "a reranker of this kind must have causal attention; by config.json, this model's is bidirectional, or it "
            "has convolutions"
        )


def _architecture_heads(spec: ModelSpec, plain: Architecture[T], exact: Architecture[T]) -> dict[Output, Head[T]]:
    """The heads whose weights have a different name in each architecture. plain, exact: over the op sets of the body
    and of heads. SPLADE's multiplies by the whole vocabulary, so it uses the body's."""
    heads: dict[Output, Head[T]] = {}
    if spec.pooling == "attention":
        heads["dense"] = plain.pooler()
    if "splade" in spec.outputs:
        heads["splade"] = splade_head(plain.masked_lm(), spec, plain.ops)
    if "scores" in spec.outputs and not spec.scores_by_modules:
        if spec.yes_no is not None and spec.yes_no.token_ids is not None:
            heads["scores"] = yes_no_head(exact.head_rows(spec.yes_no.token_ids), exact.ops)
        else:
            head = exact.classifier(len(spec.labels))
            heads["scores"] = pooled_head(head.pooling, head.projections, exact.ops, head.tokens)
    return heads
