"""The facts of one model, read once from its folder: `read_spec(located) -> ModelSpec`.

Called at start, before models load; the tokenizer, the backend and the engine are created from the result. Parses
the folder's JSON files, reads the shapes of BGE-M3's heads, and samples the weight files for the fingerprint. Nothing
in the folder is executed or imported, not even code that `auto_map` names.

    open_folder ─▶ find_kind ─▶ facts of every model ─▶ facts of its kind ─▶ fingerprint
                                (below)                 (kinds/)
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

from msgspec import Meta
from msgspec.structs import replace

from vectord.checkpoints.adapters import find_adapters, read_adapter, read_tasks
from vectord.checkpoints.checkpoint import find_weight_files
from vectord.checkpoints.config_keys import SENTENCE, TRANSFORMER_MODULE, refuse_null, refuse_unread
from vectord.checkpoints.files.gguf_file import is_gguf
from vectord.checkpoints.files.read import OPTION, read_settings
from vectord.checkpoints.fingerprint import fingerprint
from vectord.checkpoints.folder import (
    ANSWERS_CLASS,
    LIST_CLASS,
    STATIC,
    ModelFolder,
    open_folder,
    read_chat_template,
    wrong_order,
)
from vectord.checkpoints.kinds.colbert import add_colbert, keeps_own_lengths
from vectord.checkpoints.kinds.embedding import add_embedding, add_splade, has_pooling, is_splade
from vectord.checkpoints.kinds.encoder_decoder import T5GEMMA2, add_passages
from vectord.checkpoints.kinds.pages import PAGES, add_pages
from vectord.checkpoints.kinds.qwen_vl import QWEN_VL, add_networks
from vectord.checkpoints.kinds.scores import (
    add_classifier,
    add_listwise,
    add_modular_classifier,
    add_token_classifier,
    add_yes_no,
    has_layer_heads,
    is_yes_no,
)
from vectord.checkpoints.kinds.static import add_static
from vectord.checkpoints.kinds.towers import TOWERS, add_towers
from vectord.checkpoints.kinds.vision import MODEL_TYPES, add_vision
from vectord.checkpoints.quantized import read_quantization
from vectord.checkpoints.spec import PAD_TOKEN_ID, POSITIONS_AFTER_PAD, Adapter, Located, ModelSpec, Pooling, PromptText
from vectord.errors import ConfigError, ModelUnavailable

log = logging.getLogger("vectord.checkpoints")

TaskChoice: TypeAlias = Literal["auto", "embed", "rerank", "classify"]  # the operator's choice
ModelKind: TypeAlias = Literal[
    "embed", "static", "towers", "colbert", "pages", "splade", "classify", "classify-pooled", "yes-no", "listwise"
]

_KINDS: Mapping[TaskChoice, tuple[ModelKind, ...]] = {
    "auto": get_args(ModelKind),
    "embed": ("embed", "static", "towers", "colbert", "pages", "splade"),
    "rerank": ("classify", "classify-pooled", "yes-no", "listwise", "colbert", "pages"),
    "classify": ("classify", "classify-pooled"),
}


def read_spec(
    located: Located,
    *,
    pooling: Pooling | None = None,
    default_prompt_name: str | None = None,
    chat_template: str | None = None,
    task: TaskChoice = "auto",
    is_splade: bool = False,
    allow_unknown: Collection[str] = (),
) -> ModelSpec:
    """Return all facts of the model in `located.folder`.

    pooling, default_prompt_name, chat_template: replace the model's own; task: the use of the model, auto for its
    intended one; is_splade: a masked-language model is a SPLADE, whatever its name. allow_unknown: keys of
    configuration files that may be unknown (config_keys.py).
    """
    allowed = frozenset(allow_unknown)
    folder = open_folder(located, allowed)
    read = partial(
        _read_route, pooling=pooling, default_prompt_name=default_prompt_name, task=task, chosen_splade=is_splade
    )
    spec = read(folder)
    if folder.listed.queries:
        queries = read(open_folder(located, allowed, reads_queries=True))
        if {"dense"} != (spec.outputs & queries.outputs) - {"tokens"} or spec.dimensions != queries.dimensions:
            raise ModelUnavailable(
                f"{located.folder / 'router_config.json'}: two networks are supported where both make dense vectors of "
                f"one width; those of documents have {spec.dimensions} numbers, those of queries {queries.dimensions}"
            )
        queries = replace(queries, fingerprint=fingerprint(queries), names_kinds=True)
        spec = replace(spec, query=queries)
    if folder.listed.query_by_default:
        spec = replace(spec, query_by_default=True)
    if spec.adapters and spec.default_adapter is None:
        names = ", ".join(adapter.name for adapter in spec.adapters)
        log.warning("%s: texts of requests that select none of its adapters (%s) use none", folder.root, names)
    differ = any(part is not None for part in (spec.query, spec.query_weights, spec.colbert))
    template = read_chat_template(folder, chat_template)
    if spec.template is not None:  # its words are around every input already
        if chat_template is not None:
            raise ConfigError(f"chat_template: {folder.root} has a template of its own")
        template = None
    return replace(spec, names_kinds=differ, fingerprint=fingerprint(spec), chat_template=template)


def _read_route(
    folder: ModelFolder, pooling: Pooling | None, default_prompt_name: str | None, task: TaskChoice, chosen_splade: bool
) -> ModelSpec:
    may_be_splade = not folder.modules and folder.is_saved_as("ForMaskedLM")
    kind: ModelKind = "splade" if chosen_splade and may_be_splade else find_kind(folder, task)
    is_guess = kind == "embed" and pooling is None and task == "auto" and folder.entry is None
    if is_guess and may_be_splade and not has_pooling(folder):
        raise ModelUnavailable(
            f"{folder.config.path}: a masked-language model makes sparse vectors (SPLADE) or dense ones, and no file "
            "says which: set --pooling splade, or for dense vectors --pooling mean, cls, last or max"
        )
    spec = _common_facts(folder, default_prompt_name)
    match kind:
        case "embed":
            spec = add_token_classifier(folder, add_embedding(folder, spec, pooling))
            spec = add_vision(folder, spec) if folder.model_type in MODEL_TYPES else spec
        case "static" | "towers" | "pages":
            spec = {"static": add_static, "towers": add_towers, "pages": add_pages}[kind](folder, spec, pooling)
        case "colbert":
            spec = add_colbert(folder, spec)
        case "splade":
            spec = add_splade(folder, spec)
        case "classify":
            spec = add_classifier(folder, spec)
        case "classify-pooled":
            spec = add_modular_classifier(folder, spec)
        case "yes-no":
            spec = add_yes_no(folder, spec)
        case "listwise":
            spec = add_listwise(folder, spec)
    if task == "rerank" and kind in _KINDS["classify"] and not spec.reranks:
        raise ConfigError(f"task rerank: {folder.root} has {len(spec.labels)} labels; a reranker must have one")
    _check_class(folder, kind)
    refuse_unread(folder.transformer_module, TRANSFORMER_MODULE)
    refuse_unread(folder.sentence, SENTENCE)
    folder.tokenizer_config.one_of("truncation_side", (None, "right"))  # tokenizer.json decides all else
    # sentence-transformers would put every text into the tokenizer's chat template, which is not run here. The words
    # around a yes-or-no reranker's pairs are known.
    settings = folder.transformer_module
    inputs = settings.fields.get("modality_config")
    is_chat = isinstance(inputs, dict) and "message" in inputs and spec.yes_no is None
    if is_chat and "modality_config" not in settings.allowed:
        raise ModelUnavailable(
            f"{settings.path}: modality_config with message is not supported: it puts every text into a chat template; "
            f"{OPTION} modality_config reads texts without it"
        )
    return spec


# sentence-transformers' class of each kind of model, or pylate's; the task of its Transformer module, and its output.
_TOKENS = "token_embeddings"
_CLASSES: Mapping[ModelKind, tuple[tuple[str, ...], str, str]] = {
    "embed": (("SentenceTransformer",), "feature-extraction", _TOKENS),
    "static": (("SentenceTransformer",), "feature-extraction", _TOKENS),
    "towers": (("SentenceTransformer",), "feature-extraction", _TOKENS),
    "colbert": (("ColBERT", "MultiVectorEncoder", "SentenceTransformer"), "feature-extraction", _TOKENS),
    "pages": (("MultiVectorEncoder",), "feature-extraction", _TOKENS),
    "splade": (("SparseEncoder",), "fill-mask", _TOKENS),
    "classify": (("CrossEncoder",), "sequence-classification", "scores"),
    "classify-pooled": (("CrossEncoder",), "feature-extraction", _TOKENS),
    "yes-no": (("CrossEncoder",), "text-generation", "causal_logits"),
    "listwise": (("CrossEncoder",), "text-generation", "causal_logits"),
}


def _check_class(folder: ModelFolder, kind: ModelKind) -> None:
    """Raise ModelUnavailable if the settings name a class, task or output that this kind of model does not have.

    sentence-transformers replaces the modules of another class by its own.
    """
    (classes, task, output), transformer = _CLASSES[kind], folder.transformer_module
    default = "SentenceTransformer", "feature-extraction"
    if not folder.modules:
        classes, default = (*classes, str(folder.sentence.get("model_type"))), (classes[0], task)
    elif folder.modules[0].class_path.endswith("MLMTransformer"):
        default = default[0], "fill-mask"
    for settings, key, supported, unset in (
        (folder.sentence, "model_type", classes, default[0]),
        (transformer, "transformer_task", (task,), default[1]),
        (transformer, "module_output_name", (output,), None if "modality_config" in transformer else output),
    ):
        settings.one_of(key, supported, unset)
    refuse_null(folder.sentence, "__version__ prompts")
    refuse_null(
        transformer, "modality_config model_args tokenizer_args config_args model_kwargs processor_kwargs config_kwargs"
    )


def find_kind(folder: ModelFolder, task: TaskChoice) -> ModelKind:
    """Return the kind of model in the folder:

        embed     one vector per text, and the further outputs of BGE-M3
        static    one vector per text: the mean of a table's rows
        towers    one vector per text or image, from a network for each
        colbert   one vector per token
        pages     the same, and one per part of an image
        splade    one weight per token of the vocabulary
        classify  one number per label, from a classifier's head; with one label, a cross-encoder
        classify-pooled  the same, from modules after a pooling
        yes-no    a language model that answers "no" or "yes" about a pair
        listwise  a language model that reads a list of passages, with a marker after each one

    `task` decides for a plain language model, and a static table is always static. Otherwise modules.json decides, else
    the transformers class that the model was saved as, then the model's name.
    """
    if not folder.modules and folder.is_saved_as("ForCausalLM") and task in ("embed", "rerank"):
        # A language model can do either; the operator chooses.
        return "embed" if task == "embed" else "classify" if has_layer_heads(folder) else "yes-no"
    kind = _kind_of(folder)
    if kind not in _KINDS[task]:
        raise ConfigError(f"task {task}: {folder.root} holds a model of another kind ({kind})")
    return kind


# By model_type; their sizes are in sections.
_SEVERAL_NETWORKS = {**dict.fromkeys(QWEN_VL, add_networks), T5GEMMA2: add_passages}
_KINDS_OF_TYPES: Mapping[ModelKind, Collection[str]] = {"static": {STATIC}, "towers": TOWERS, "pages": PAGES}


def _kind_of(folder: ModelFolder) -> ModelKind:
    for kind, types in _KINDS_OF_TYPES.items():
        if folder.model_type in types:
            return kind
    kinds = [module.kind for module in folder.modules]
    if "SpladePooling" in kinds:
        return "splade"
    if "LogitScore" in kinds:
        return "yes-no"
    if "Pooling" in kinds:
        last = read_settings(folder.modules[-1].folder / "config.json", optional=True)
        scores = last.get("module_output_name") == "scores" or folder.sentence.get("model_type") == "CrossEncoder"
        return "classify-pooled" if kinds[-1] == "Dense" and scores else "embed"
    if kinds == ["Transformer"]:  # a CrossEncoder of version 6
        if folder.is_saved_as("ForSequenceClassification"):
            return "classify"
        raise wrong_order(folder.root, folder.modules, supported="Transformer, Pooling, Dense ..., Normalize")
    if folder.is_saved_as(LIST_CLASS):
        return "listwise"
    if folder.modules or folder.is_saved_as("HF_ColBERT"):
        return "colbert"
    if any(map(folder.is_saved_as, ("ForSequenceClassification", ANSWERS_CLASS))) or has_layer_heads(folder):
        return "classify"
    if (folder.is_saved_as("ForCausalLM") or folder.model_type in _SEVERAL_NETWORKS) and is_yes_no(folder):
        return "yes-no"
    if (folder.is_saved_as("ForMaskedLM") or folder.is_saved_as("ForCausalLM")) and is_splade(folder):
        return "splade"
    return "embed"


# --- facts of every model -------------------------------------------------------------------------------------

_WIDTHS = ("hidden_size", "dim", "d_model", "n_embd")  # bert and most; distilbert; t5; gpt2 and nomic
_PROJECTED = frozenset({"embedding_gemma2", "embedding_gemma2_text"})  # states of the width embedding_dim
_WIDTH_LIMIT = 2**17
_WORDPIECE = frozenset({"bert", "distilbert"})  # their tokenizer can be made from vocab.txt alone (vocabulary.py)


def _common_facts(folder: ModelFolder, default_prompt_name: str | None) -> ModelSpec:
    """The facts that every kind of model has; outputs and fingerprint are still empty."""
    tasks = read_tasks(folder)
    adapters = (*tasks, *find_adapters(folder))
    prompts: dict[str, str] = folder.sentence.value("prompts", _Prompts, {})
    if not any(prompts.values()) and folder.entry is not None:
        # sentence-transformers writes empty prompts for queries and documents where a model has none.
        prompts = {**prompts, **folder.entry.prompts}
    prompts = {**{task.name: task.prompt for task in tasks}, **prompts}
    if folder.has_tasks:  # its own code puts the default prompt before texts of every task
        uses = {"classification", "clustering"} & {adapter.name for adapter in adapters}
        prompts = {**dict.fromkeys(sorted(uses), prompts.get("document", "")), **prompts}
    # Jina's config.json has model_type bert, but its network differs.
    is_jina = folder.model_type == "bert" and folder.config.get("position_embedding_type") == "alibi"
    weights = find_weight_files(folder.transformer)
    is_sized_later = any(folder.model_type in types for types in (_SEVERAL_NETWORKS, *_KINDS_OF_TYPES.values()))
    if weights[0].suffix != ".onnx":  # graphs may be quantized
        read_quantization(folder.config)
    # A local folder may hold other weights under a known name, and an adapter changes those of its base.
    known = None if folder.located.source == "folder" or folder.adapter is not None else folder.entry
    spec = ModelSpec(
        model_id=folder.located.model_id,
        revision=folder.located.revision,
        folder=folder.root,
        config=folder.config,
        model_type=folder.model_type,
        architecture="jina_bert_v2" if is_jina else folder.model_type,
        weights=weights,
        tokenizer=_tokenizer(folder),
        lowercase=folder.transformer_module.flag("do_lower_case", False),
        outputs=frozenset(),
        hidden_size=0 if is_sized_later else _hidden_size(folder),
        max_tokens=0 if is_sized_later else _max_tokens(folder),
        prompts=prompts,
        default_prompt_name=_default_prompt(folder, prompts, default_prompt_name),
        merged=None
        if folder.adapter is None
        else read_adapter("default", folder.adapter, folder.allowed, is_merged=True),
        adapters=adapters,
        default_adapter=_default_task(folder, adapters),
        known_cosines=() if known is None else known.known_cosines,
        fingerprint="",
    )
    add = _SEVERAL_NETWORKS.get(folder.model_type)
    return spec if add is None else add(folder, spec)


def _hidden_size(folder: ModelFolder) -> int:
    inner = folder.config.get("text_config")  # in models that also read images
    keys = ("embedding_dim",) if folder.model_type in _PROJECTED else _WIDTHS
    for config in (folder.config, inner if isinstance(inner, dict) else {}):
        for key in keys:
            size = config.get(key)
            if type(size) is int and 0 < size <= _WIDTH_LIMIT:
                return size
    raise ModelUnavailable(f"{folder.config.path}: {keys[0]} is missing or not a whole number up to {_WIDTH_LIMIT:,}")


def _tokenizer(folder: ModelFolder) -> Path:
    if is_gguf(folder.tokenizer):
        return folder.tokenizer
    path = folder.tokenizer / "tokenizer.json"
    if path.is_file():
        return path
    words = folder.tokenizer / "vocab.txt"
    if folder.model_type in _WORDPIECE and words.is_file():
        return words
    raise ModelUnavailable(
        f"{folder.tokenizer}: no tokenizer.json; transformers' AutoTokenizer makes it from the model's other files, "
        "and its save_pretrained writes it"
    )


def _default_task(folder: ModelFolder, adapters: Sequence[Adapter]) -> str | None:
    """The adapter of texts without one: `default_task` of the module for sentence-transformers, else the adapter with
    which the class of a model with tasks begins."""
    for key in ("model_args", "model_kwargs"):
        arguments = folder.transformer_module.fields.get(key)  # not counted as read: refuse_unread checks the rest
        default = arguments.get("default_task") if isinstance(arguments, dict) else None
        if default is not None:
            if default not in [adapter.name for adapter in adapters]:
                raise ModelUnavailable(
                    f"{folder.transformer_module.path}: default_task {str(default)[:80]!r} is not one of the adapters"
                )
            return str(default)
    return "retrieval" if folder.has_tasks and "retrieval" in [adapter.name for adapter in adapters] else None


# --- lengths: as sentence-transformers decides ----------------------------------------------------------------

_POSITION_KEYS = ("n_positions", "max_position_embeddings")  # nomic (takes precedence if both are set); most models
_BY_DISTANCE = frozenset({"mt5", "t5"})  # no table of positions; n_positions of their files is unread by the class
_NO_LIMIT = 2**20  # transformers writes 1e30 for "no limit"
_DEFAULT_MAX_TOKENS = 512
_Limit = Annotated[float, Meta(ge=1)]


def _max_tokens(folder: ModelFolder) -> int:
    """The maximum length of a text, special tokens included: max_seq_length, else the tokenizer's model_max_length, but
    no more than the network's positions."""
    keys = () if folder.model_type in _BY_DISTANCE else _POSITION_KEYS
    positions = next((limit for key in keys if (limit := _limit(folder.config.get(key)))), None)
    is_rotary = folder.config.get("position_embedding_type") == "rotary"
    if positions is not None and folder.model_type in POSITIONS_AFTER_PAD and not is_rotary:
        pad = folder.config.get("pad_token_id")
        positions -= 1 + (pad if type(pad) is int and pad >= 0 else PAD_TOKEN_ID)
    own = None if keeps_own_lengths(folder) else _limit(folder.transformer_module.value("max_seq_length", _Limit))
    older = "model_max_length" not in folder.tokenizer_config
    own = own or _limit(folder.tokenizer_config.value("max_len" if older else "model_max_length", _Limit))
    limits = [limit for limit in (own, positions) if limit is not None]
    if not limits:
        log.warning("%s has no maximum length: using %d tokens", folder.root, _DEFAULT_MAX_TOKENS)
    max_tokens = min(limits, default=_DEFAULT_MAX_TOKENS)
    if max_tokens < 1:
        raise ModelUnavailable(f"{folder.config.path}: max_position_embeddings leaves no room for a token")
    return max_tokens


def _limit(value: Any) -> int | None:
    return int(value) if type(value) in (int, float) and 1 <= value <= _NO_LIMIT else None


# --- prompts --------------------------------------------------------------------------------------------------

PROMPTS_LIMIT = 1000
_Prompts = Annotated[dict[str, PromptText], Meta(max_length=PROMPTS_LIMIT)]


def _default_prompt(folder: ModelFolder, prompts: Mapping[str, str], chosen: str | None) -> str | None:
    """The name of the prompt for texts without one: the operator's choice, else the model's default."""
    if chosen is not None:
        if chosen not in prompts:
            names = ", ".join(prompts) or "none"
            raise ConfigError(f"default_prompt_name {chosen!r}: the model has no such prompt; it has {names}")
        return chosen
    default: str | None = folder.sentence.value("default_prompt_name", str)
    if default is not None and default not in prompts:
        raise ModelUnavailable(f"{folder.sentence.path}: default_prompt_name is not one of its prompts")
    return default
